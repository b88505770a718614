"""How much of one's attention another peer may take."""

from __future__ import annotations

from collections import OrderedDict

from dada.peer.messages import PeerId

# A message of this many bytes counts as one more.
BYTES_PER_MESSAGE = 1024


class RateLimit:
    """A bucket of messages for every sender: it fills at a steady rate, and each message takes from it.

    A long message counts as several and may leave a debt, so that every message up to the largest allowed can pass.

    Parameters
    ----------
    messages_per_s : float
        How fast a bucket fills.
    burst : float
        How much it holds.
    most_senders : int
        Buckets kept; those not used for longest are forgotten first.

    Examples
    --------
    >>> limit = RateLimit(messages_per_s=1.0, burst=2.0)
    >>> [limit.admits(b"ann", n_bytes=0, now=0.0) for _ in range(3)]
    [True, True, False]
    >>> limit.admits(b"ann", n_bytes=0, now=1.5)
    True
    """

    def __init__(self, messages_per_s: float = 50.0, burst: float = 500.0, most_senders: int = 4096) -> None:
        if not (messages_per_s > 0 and burst >= 1 and most_senders >= 1):
            raise ValueError(
                f"a rate must be > 0, a burst and the number of senders at least 1, "
                f"got {messages_per_s}, {burst}, {most_senders}"
            )
        self.messages_per_s, self.burst, self.most_senders = messages_per_s, burst, most_senders
        self._buckets: OrderedDict[PeerId, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def admits(self, sender: PeerId, n_bytes: int, now: float) -> bool:
        """Whether a message may be listened to; it then has been paid for."""
        left, seen = self._buckets.get(sender, (self.burst, now))
        left = min(self.burst, left + max(0.0, now - seen) * self.messages_per_s)
        is_admitted = left > 0.0
        if is_admitted:
            left -= 1.0 + n_bytes / BYTES_PER_MESSAGE
        self._buckets[sender] = (left, now)
        self._buckets.move_to_end(sender)
        if len(self._buckets) > self.most_senders:
            self._buckets.popitem(last=False)
        return is_admitted
