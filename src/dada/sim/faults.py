"""What goes wrong in a simulated network, in numbers and by name."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Faults:
    """Shares of messages and of peers to which something happens.

    Parameters
    ----------
    lost, repeated, held_up : float
        Shares of the messages.
    churning : float
        Share of the peers that crash again and again, and come back from what they have stored.
    late, leaving : float
        Shares of the peers that join late, or leave for good in the middle of the run, half of them without a word.
    lying : float
        Share of the peers that are liars, of all kinds in turn.
    apart : float
        Share of the peers that a partition cuts off for a fifth of the run.

    Examples
    --------
    >>> Faults.named("loss,churn")
    Faults(lost=0.2, repeated=0.05, held_up=0.1, churning=0.1, late=0.04, leaving=0.04, lying=0.0, apart=0.0)
    """

    lost: float = 0.0
    repeated: float = 0.0
    held_up: float = 0.0
    churning: float = 0.0
    late: float = 0.0
    leaving: float = 0.0
    lying: float = 0.0
    apart: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not 0.0 <= getattr(self, field.name) <= 1.0:
                raise ValueError(f"{field.name} must be in 0..1 (a share), got {getattr(self, field.name)}")

    @classmethod
    def named(cls, names: str) -> Faults:
        """The faults of one name, or of several separated by commas."""
        known = {"none": cls(), "loss": LOSS, "churn": CHURN, "byzantine": BYZANTINE, "all": ALL}
        chosen = []
        for name in names.split(","):
            if name not in known:
                raise ValueError(f"faults must be among {', '.join(known)}, or several with commas, got {name!r}")
            chosen.append(known[name])
        return cls(*(max(getattr(one, field.name) for one in chosen) for field in fields(cls)))


LOSS = Faults(lost=0.2, repeated=0.05, held_up=0.1)
CHURN = Faults(churning=0.1, late=0.04, leaving=0.04)
BYZANTINE = Faults(lying=0.1)
ALL = Faults(lost=0.2, repeated=0.05, held_up=0.1, churning=0.1, late=0.04, leaving=0.04, lying=0.1, apart=0.3)
