"""What commands show while they work."""

from rich.console import Console
from rich.progress import Progress

from dada import events
from dada.cli.console import RunBar


def test_a_bar_names_the_trial_at_hand_and_then_its_task():
    bars = Progress(console=Console(quiet=True))
    bar = RunBar(bars, "all rows")
    bar(events.TrialStarted("linear, everyone"))
    assert bars.tasks[0].description == "all rows: trying linear, everyone"
    bar(events.Progress(3, 10))
    assert (bars.tasks[0].description, bars.tasks[0].completed, bars.tasks[0].total) == ("all rows", 3, 10)
