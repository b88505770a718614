"""The recording and the page of a run, for the options `--live` and `--record`."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dada.cli.console import stderr

if TYPE_CHECKING:
    from dada.data import BasePredictors, SyntheticUsers
    from dada.events import Observer, RunInfo


@contextmanager
def recorded(live: bool, record: Path | None) -> Iterator[Observer]:
    """An observer that records a run and, if asked for, shows it on a page that stays until Ctrl-C."""
    from dada.dashboard.pages import LivePage
    from dada.dashboard.recorder import Recorder

    with ExitStack() as stack:
        if record is None:
            record = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dada-"))) / "run.dadalog"
        recorder = stack.enter_context(Recorder(record))
        page = stack.enter_context(LivePage(record)) if live else None
        if page is not None:
            announce(page.url)
        yield recorder
        if recorder.failure is not None:
            stderr().print(f"The recording is incomplete: {recorder.failure}", style="yellow", highlight=False)
        if page is not None:
            stay()


def announce(url: str) -> None:
    """Print the address of the page, and open it if there is a display."""
    stderr().print(f"Watch it at [bold]{url}[/bold]", highlight=False, soft_wrap=True)
    if sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        # The run does not wait for the browser to start.
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()


def stay() -> None:
    """Keep the page open until Ctrl-C."""
    try:
        stderr().print("The run is over; the page stays until Ctrl-C.", style="dim")
        threading.Event().wait()
    except KeyboardInterrupt:
        return


def synthetic_peers(data: str, n_users: int, seed: int) -> tuple[SyntheticUsers, BasePredictors]:
    """The users of a simulated or real network, and their base predictors."""
    from dada.data import Stumps, moons, moons100

    draws = {"moons": moons, "moons100": moons100}
    if data not in draws:
        raise ValueError(f"data must be one of {', '.join(draws)}, got {data!r}")
    people = draws[data](seed, n_users=n_users)
    return people, Stumps(n=200, rule="feature-range").fit(people.train.X)


def synthetic_info(title: str, people: SyntheticUsers, predictors: BasePredictors, **known: Any) -> RunInfo:
    """Facts about synthetic users for the page: their names, and the true group of each if they are grouped."""
    from dada.data.synthetic import GROUP_ANGLES_DEG
    from dada.task import info

    if people.groups.any():
        known |= {"groups": people.groups, "group_names": tuple(f"{angle:g}°" for angle in GROUP_ANGLES_DEG)}
    return info(people.train, predictors, title, **known)


class SlowMotion:
    """Forwards events and delays the run, so that a short run can be watched.

    The run lasts about `lasts_s` seconds. Its beginning, when users learn alone and the graph is empty, passes faster
    than the rest.
    """

    def __init__(
        self,
        observer: Observer,
        lasts_s: float,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Any] = time.sleep,
    ) -> None:
        self.observer, self.lasts_s = observer, lasts_s
        self._now, self._sleep = now, sleep
        self._began: float | None = None

    def __call__(self, event: Any) -> None:
        """Forward an event."""
        from dada.events import Progress

        if self._began is None:
            self._began = self._now()
        self.observer(event)
        if isinstance(event, Progress) and event.total:
            early_s = self._began + self.lasts_s * (event.done / event.total) ** 2 - self._now()
            if early_s > 0:
                self._sleep(early_s)
