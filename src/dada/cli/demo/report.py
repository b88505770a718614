"""The demo's pictures and its page."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from dada import __version__
from dada.baselines import Outcome
from dada.cli.console import number, percent
from dada.cli.demo.methods import DemoResult
from dada.data.moons import GROUP_ANGLES_DEG
from dada.plot import DARK, GraphPanel, Picture, accuracy_picture, drawn, graph_picture, weight_picture
from dada.plot.page import Section, figure, page, paragraph, table

CAPTIONS = {
    "accuracy": (
        "Left: mean accuracy over the users while they collaborate; straight lines are the methods that do not, at "
        "convergence. Right: the test accuracy of each user, sorted for each method."
    ),
    "graph": (
        "The graph that the users learned, beside the one that knows their true angles. Numbers are rotation angles in "
        "degrees. A larger node has more data, a greener one fits its data better, a stronger edge weighs more. Nobody "
        "was told an angle."
    ),
    "weights": "The same graphs as matrices, users sorted by their true group. A stronger mark weighs more.",
}


def write_report(result: DemoResult, folder: Path) -> list[Path]:
    """Write report.html and one PNG file per picture; returns their paths, the report first."""
    files, figures = [folder / "report.html"], {}
    for name, picture in pictures_of(result).items():
        light = drawn(picture)
        files.append(folder / f"{name}.png")
        files[-1].write_bytes(light)
        figures[name] = figure(light, drawn(picture, DARK), CAPTIONS[name])
    files[0].write_text(report_page(result, figures), encoding="utf-8")
    return files


def pictures_of(result: DemoResult) -> dict[str, Picture]:
    """The demo's pictures, by name."""
    collaborating = {name: outcome for name, outcome in result.outcomes.items() if outcome.graph is not None}
    others = {name: outcome for name, outcome in result.outcomes.items() if outcome.graph is None}
    panels = [
        _panel(result, f"{title}: {number(outcome.neighbours)} neighbours per user", outcome)
        for title, outcome in (
            ("Learned graph", result.outcomes["dada-learned"]),
            ("Oracle graph", result.outcomes["dada-oracle"]),
        )
    ]
    angles = [f"{angle:.0f}°" for angle in GROUP_ANGLES_DEG]
    return {
        "accuracy": partial(
            accuracy_picture,
            traces={name: outcome.trace for name, outcome in collaborating.items()},
            levels={name: (o.train_accuracy.mean(), o.test_accuracy.mean()) for name, o in others.items()},
            by_user={name: outcome.test_accuracy for name, outcome in result.outcomes.items()},
        ),
        "graph": partial(graph_picture, panels=panels),
        "weights": partial(weight_picture, panels=panels, groups=result.users.groups, group_names=angles),
    }


def _panel(result: DemoResult, title: str, outcome: Outcome) -> GraphPanel:
    assert outcome.graph is not None
    train = result.users.train
    losses = result.task.problem(beta=1.0, mu1=0.0).graph_losses(outcome.models) / train.confidence
    degrees = np.mod(np.rad2deg(result.users.angles), 360)
    return GraphPanel(title, outcome.graph, train.confidence, losses, [f"{angle:.0f}" for angle in degrees])


def report_page(result: DemoResult, figures: dict[str, str]) -> str:
    """The page that tells the demo's story, around its figures."""
    from dada.cli.demo import HEADER, row_of

    rows = [row_of(outcome) for outcome in result.outcomes.values()]
    header = [name.replace("\n", " ") for name in HEADER]
    learned, local = (result.outcomes[name].test_accuracy.mean() for name in ("dada-learned", "local-boost"))
    repeat = f"dada demo --seed {result.seed} --users {result.users.train.n_users} --rule {result.rule}"
    sections = [
        Section(
            "Result",
            [
                table(header, rows, best=len(rows) - 1),
                *map(paragraph, _reading(result)),
            ],
        ),
        Section("Accuracy", [figures["accuracy"]]),
        Section("Who learns from whom", [figures["graph"], figures["weights"]]),
        Section("Repeat it", [paragraph(f"`{repeat}` with dada {__version__} gives these numbers again.")]),
    ]
    lead = (
        f"{result.users.train.n_users} users with a handful of labelled points each. Alone they reach "
        f"{percent(local)} of test points right; learning from each other, over a graph they find by themselves, "
        f"{percent(learned)}."
    )
    return page("Learning together, without sharing data", lead, sections)


def _reading(result: DemoResult) -> list[str]:
    flipped = "5 % of the test labels are flipped on purpose, so nobody can do better than 95 %. "
    return [
        "Global-boost is one model from all data in one place, Local-boost a model for each user from its own data, "
        "Dada-Oracle collaboration over the true graph of who is alike, Dada-Learned collaboration over a graph that "
        "is learned along with the models.",
        (flipped if result.rule == "run" else "")
        + "Accuracies are means over the users; `pooled` counts all test rows alike. What users send each other are "
        "model updates and a few numbers about themselves, never data.",
    ]
