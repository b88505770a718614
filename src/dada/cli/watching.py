"""Watching runs: `dada dashboard`, `dada report`, and the options `--live` and `--record` of other commands."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dada.cli.console import OUTPUT, stderr, stdout

if TYPE_CHECKING:
    import numpy as np

    from dada import DadaClassifier, DadaRegressor
    from dada.cli.simulated_runs import NetworkUsers
    from dada.data import BasePredictors, SyntheticUsers
    from dada.events import Observer, RunInfo, Snapshot
    from dada.net.home import Home
    from dada.net.network_file import NetworkFile

Live = Annotated[bool, typer.Option("--live", help="Open a page that shows the run; it stays until Ctrl-C.")]
Record = Annotated[Path | None, typer.Option("--record", help="Record the run in this file (.dadalog), to replay it.")]

LOOK_EVERY_S = 1.0
# A running peer writes its status every second.
SILENT_AFTER_S = 4.0


@contextmanager
def watching(live: bool, record: Path | None) -> Iterator[Observer]:
    """An observer that records a run and, with `live`, shows it on a page until Ctrl-C; silent without either."""
    from dada.events import silent

    if not live and record is None:
        yield silent
        return
    from dada.dashboard.pages import LivePage
    from dada.dashboard.records import Recorder

    with ExitStack() as stack:
        if record is None:
            record = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dada-"))) / "run.dadalog"
        recorder = stack.enter_context(Recorder(record))
        if live:
            announce(stack.enter_context(LivePage(record)).url)
        yield recorder
        if recorder.failure is not None:
            stderr().print(f"The recording is incomplete: {recorder.failure}", style="yellow", highlight=False)
        if live:
            with suppress(KeyboardInterrupt):
                stderr().print("The run is over; the page stays until Ctrl-C.", style="dim")
                threading.Event().wait()


def announce(url: str) -> None:
    """Print the address of the page, and open it if there is a display."""
    stderr().print(f"Watch it at [bold]{url}[/bold]", highlight=False, soft_wrap=True)
    if sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        # The run does not wait for the browser to start.
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()


def synthetic_info(
    title: str, people: SyntheticUsers | NetworkUsers, predictors: BasePredictors, **known: Any
) -> RunInfo:
    """Facts about synthetic users for the page: their names, and the true group of each if they are grouped."""
    from dada.data.synthetic import GROUP_ANGLES_DEG
    from dada.task import info

    if people.groups.any():
        known |= {"groups": people.groups, "group_names": tuple(f"{angle:g}°" for angle in GROUP_ANGLES_DEG)}
    return info(people.train, predictors, title, **known)


class Ending:
    """Forwards the events of a fit; after it, those of the models with the trees that have joined since the run.

    Accuracies and most used predictors are those of the final models, losses those at the end of the run.
    """

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self._info: Any = None
        self._offer: Any = None
        self._stopped: Any = None

    def __call__(self, event: Any) -> None:
        """Forward an event; the end is kept until `finish`."""
        from dada import events

        if isinstance(event, events.Stopped):
            self._stopped = event
            return
        if isinstance(event, events.RunInfo):
            self._info = event
        elif isinstance(event, events.SnapshotOffer):
            self._offer = event
        self.observer(event)

    def finish(self, model: DadaClassifier | DadaRegressor) -> None:
        """Show the fitted models, and that the run is over."""
        from dada.events import SnapshotOffer

        n_before = 0 if self._info is None else len(self._info.predictors)
        if self._offer is not None and model.models_.shape[1] > n_before > 0:
            order, names = self._extended(model, n_before)
            self.observer(replace(self._info, predictors=names))
            self.observer(SnapshotOffer(lambda: self._last(model, order), milestone=True))
        if self._stopped is not None:
            self.observer(self._stopped)

    def _extended(self, model: DadaClassifier | DadaRegressor, n_before: int) -> tuple[np.ndarray, tuple[str, ...]]:
        """Columns of the models in the order of the run, the new ones last, and their names."""
        import numpy as np

        n = model.predictors_.n
        n_blocks = model.models_.shape[1] // n
        by_block = np.arange(n_blocks * n).reshape(n_blocks, n)
        old = n_before // n_blocks
        texts = [model.predictors_.describe(j, model.used_features_) for j in range(old, n)]
        of_class = [f" (class {c})" for c in range(n_blocks)] if n_blocks > 1 else [""]
        names = (*self._info.predictors, *(text + which for which in of_class for text in texts))
        return np.concatenate([by_block[:, :old].ravel(), by_block[:, old:].ravel()]), names

    def _last(self, model: DadaClassifier | DadaRegressor, order: np.ndarray) -> Snapshot:
        from dada.events import heaviest_predictors

        snapshot, end = self._offer.take(), model.trace_[-1]
        accuracy = end.test_accuracy if end.test_accuracy.size else end.train_accuracy
        predictors, weights = heaviest_predictors(model.models_[:, order])
        changed: dict[str, Any] = {"predictors": predictors, "predictor_weights": weights}
        return replace(snapshot, **changed, accuracy=accuracy if snapshot.accuracy.size else snapshot.accuracy)


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


def dashboard(
    path: Annotated[
        Path | None,
        typer.Argument(
            help="Recording (.dadalog), folder of a peer, or folder with several of either; this folder if not given."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to serve at; beyond this machine, the link contains a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to serve at; 0 is any free one.")] = 0,
) -> None:
    """Show a run in the browser: the graph as it grew, every user, the curves; or the peers that run on this machine.

    A recording that a run is still writing is followed as it grows. For peers the page shows which are up, restarts,
    round trips, refused messages, and of private peers the budget and what was released. Stop with Ctrl-C.

    **Examples**

    - `dada dashboard run.dadalog`
    - `dada demo --record run.dadalog & dada dashboard run.dadalog`
    - `dada dashboard run.dadalog --host 0.0.0.0 --port 8000`
    - `dada dashboard ann`, where ann is the folder of a peer
    """
    from dada.dashboard.pages import server_module

    server = server_module()
    place = Path() if path is None else path
    homes = peers_in(place)
    if homes:
        follow_peers(place, homes, host, port)
        return
    recording = newest_recording(place) if place.is_dir() else place
    check_recording(recording)
    server.serve(recording, server.Address(host, port), announce)


def peers_in(folder: Path) -> list[Home]:
    """The peer of a folder, or the peers of the folders within it."""
    candidates = [folder, *sorted(entry for entry in folder.iterdir() if entry.is_dir())] if folder.is_dir() else []
    found = [place for place in candidates if (place / "key").is_file() and (place / "network.json").is_file()]
    if not found:
        return []
    from dada.net.home import Home

    return [Home(found[0])] if found[0] == folder else [Home(place) for place in found]


def follow_peers(place: Path, homes: list[Home], host: str, port: int) -> None:
    """Show the status that peers report, until Ctrl-C."""
    from dada.dashboard.pages import LivePage
    from dada.dashboard.records import Recorder
    from dada.net.forkserver import PeerOverview
    from dada.net.network_file import read_network

    with tempfile.TemporaryDirectory(prefix="dada-") as folder, Recorder(Path(folder) / "run.dadalog") as recorder:
        network = read_network(homes[0].network)
        overview = PeerOverview(recorder, _info(place, homes, network), directed=network.config.graph == "evidence")
        with LivePage(recorder.path, host, port) as page, suppress(KeyboardInterrupt):
            announce(page.url)
            noted = ""
            while recorder.failure is None:
                statuses = [last_status(home) for home in homes]
                overview.update(statuses)
                if (text := privacy_note(homes, statuses)) != noted:
                    recorder.note(noted := text)
                time.sleep(LOOK_EVERY_S)
            raise OSError(f"the page has ended because its recording could not be written: {recorder.failure}")


def privacy_note(homes: list[Home], statuses: list[dict[str, Any]]) -> str:
    """Budgets and releases of the private peers among some, as a line; empty if there is none."""
    from dada.net.home import privacy_text

    found = [(home, home.privacy_status() | status) for home, status in zip(homes, statuses, strict=True)]
    lines = [f"{home.folder.name}: {'; '.join(privacy_text(status))}" for home, status in found if "privacy" in status]
    return " · ".join(lines)


def _info(place: Path, homes: list[Home], network: NetworkFile) -> RunInfo:
    from dada.data import predictors_from_arrays
    from dada.events import RunInfo

    predictors = predictors_from_arrays(network.predictors, network.arrays)
    names = [home.folder.resolve().name for home in homes]
    return RunInfo(
        title=f"Peer {names[0]}" if len(names) == 1 else f"{len(names)} peers in {place.resolve().name}",
        users=tuple(names),
        predictors=tuple(predictors.describe(j, network.features) for j in range(predictors.n)),
    )


def last_status(home: Home) -> dict[str, Any]:
    """The last status of a peer, and whether it is recent; its lock is not touched: the peer may be starting."""
    try:
        status: dict[str, Any] = json.loads(home.status.read_bytes())
    except FileNotFoundError:
        return {"running": False}
    return status | {"running": time.time() - status["time"] < SILENT_AFTER_S}


def newest_recording(folder: Path) -> Path:
    """The recording in a folder that was written to last."""
    found = sorted(folder.glob("*.dadalog"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise FileNotFoundError(
            f"no recording (*.dadalog) and no peer in {folder.resolve()}: "
            "make a recording with dada demo --record run.dadalog, or name one"
        )
    return found[-1]


def check_recording(path: Path) -> None:
    """Raise if the file is not a recording of this version; warn if it is truncated."""
    from dada.dashboard.records import LogReader

    reader = LogReader(path)
    n_records = sum(1 for _ in reader)
    if reader.lost_bytes:
        stderr().print(
            f"{path} ends within a record, or is still being written: "
            f"{n_records} records are good, the last {reader.lost_bytes} bytes are ignored.",
            style="yellow",
            highlight=False,
        )


def report(
    file: Annotated[Path, typer.Argument(help="Recording (.dadalog).")],
    output: Annotated[Path, typer.Option(*OUTPUT, help="HTML file to write.")] = Path("report.html"),
) -> None:
    """Write a recorded run as one HTML file that opens in any browser, without a network.

    **Examples**

    - `dada report run.dadalog -o report.html`
    """
    from dada.dashboard.pages import write_report

    check_recording(file)
    write_report(file, output)
    stdout().print(f"Written to [bold]{output}[/bold].", highlight=False)
