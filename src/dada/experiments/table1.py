"""The published numbers, from the file ``published.toml``; and Table 1, our numbers beside them.

Table 1 is the test accuracy of every method on the real datasets, with standard deviations.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any, NamedTuple

from dada.experiments import page
from dada.experiments.lab import Lab
from dada.experiments.ladders import Settings
from dada.experiments.page import Block, Heading, Page, Table
from dada.experiments.protocol import ChosenSettings, Pair, Summary, finals, method_data, summarise, try_all
from dada.experiments.tasks import SPECS, people

SOURCE = (
    "Published numbers: V. Zantedeschi, A. Bellet, M. Tommasi: Fully Decentralized Joint Learning of Personalized "
    "Models and Collaboration Graphs. AISTATS 2020."
)
# Supplement: neighbours per user on Moons100, and bits for learning the graph of Moons with kappa = 1.
MOONS100_LEARNED_NEIGHBOURS = 42.64
MOONS100_ORACLE_NEIGHBOURS = 60.86
KAPPA_ONE_BITS = 5e5
EVERY_WEIGHT_TO_EVERYONE_BITS = 1.6e7
_FILE = tomllib.loads(files("dada.experiments").joinpath("published.toml").read_text(encoding="utf-8"))
BUDGET_FACTORS = tuple(map(int, _FILE["table2"]))


class Published(NamedTuple):
    """A published accuracy; `std` is over three runs, None for deterministic methods."""

    mean: float
    std: float | None = None


@dataclass(frozen=True)
class AuthorsRun:
    """A run with the settings of the authors, as far as they are known; `pooled` weights all test rows equally."""

    dataset: str
    method: str
    settings: Settings
    pooled: bool = False
    is_known: bool = True
    note: str = ""


AUTHORS = tuple(AuthorsRun(**run) for run in _FILE["authors"])


def accuracy_of(dataset: str, method: str) -> Published | None:
    """The number of Table 1; None if the paper has none."""
    found = _FILE["table1"].get(method, {}).get(SPECS[dataset].column)
    return None if found is None else Published(*found)


def best_accuracy_of(dataset: str) -> float | None:
    """The best number of a column of Table 1; None if the paper has no such column."""
    means = [found.mean for method in _FILE["table1"] if (found := accuracy_of(dataset, method)) is not None]
    return max(means, default=None)


def budget_accuracy_of(dataset: str, method: str, factor: int) -> float | None:
    """The number of Table 2; None if the paper has none."""
    found: float | None = _FILE["table2"][str(factor)][method].get(SPECS[dataset].column)
    return found


IN_PAPER = ("global-lin", "local-lin", "perso-lin-learned", "global-boost", "local-boost", "dada-learned")
BEYOND = ("constant", "hierarchical", "dada-uniform", "dada-random", "dada-evidence", "dada-mixed")
CLOSE = 0.5
AuthorsResults = Sequence[tuple[AuthorsRun, Summary, Published]]


def table1(lab: Lab, datasets: Sequence[str]) -> Page:
    """Make the page for real datasets, all present."""
    methods, texts = (*IN_PAPER, *BEYOND), page.TEXTS["table1"]
    chosen, _, summaries = try_all(lab, [(dataset, method) for dataset in datasets for method in methods])
    theirs = _at_authors_settings(lab, datasets)
    caption = "Mean test accuracy over users; published number in brackets"
    blocks: list[Block] = [
        page.dataset_table(caption, datasets, methods, lambda pair: _cell(summaries[pair], accuracy_of(*pair)))
    ]
    data = {}
    for dataset in datasets:
        own = {pair: choice for pair, choice in chosen.items() if pair[0] == dataset}
        blocks += [Heading(SPECS[dataset].title), _details(dataset, own, summaries)]
        data[dataset] = {
            "partial": SPECS[dataset].column is None,
            "methods": {pair[1]: _data(pair, choice, summaries[pair]) for pair, choice in own.items()},
        }
    if theirs:
        blocks += [Heading("At the authors' settings"), texts["authors"], _authors_table(theirs)]
    blocks += [
        *page.agreement(_verdicts(datasets, chosen, summaries, theirs)),
        Heading("Notes"),
        [*texts["notes"], *_counts(lab, datasets)],
        SOURCE,
    ]
    runs = [asdict(run) | {"test": asdict(own), "published": published._asdict()} for run, own, published in theirs]
    return Page.of("table1", lab, blocks, {"datasets": data, "at_authors_settings": runs})


def _at_authors_settings(lab: Lab, datasets: Sequence[str]) -> AuthorsResults:
    found = []
    for run in AUTHORS:
        pair = (run.dataset, run.method)
        if run.dataset in datasets and (published := accuracy_of(*pair)) is not None:
            runs = finals(lab, {pair: run.settings}, "authors' settings")[pair]
            found.append((run, summarise(runs), published))
    return found


def _cell(summary: Summary, published: Published | None) -> str:
    ours = page.percent(summary.mean, summary.std)
    return ours if published is None else f"{ours} ({page.percent(*published)})"


def _difference(pair: Pair, summary: Summary) -> float | None:
    """Our mean over users minus the published number."""
    published = accuracy_of(*pair)
    return None if published is None else summary.mean - published.mean


def _details(dataset: str, chosen: Mapping[Pair, ChosenSettings], summaries: Mapping[Pair, Summary]) -> Table:
    def more(pair: Pair) -> dict[str, str]:
        published = page.percent(*(accuracy_of(*pair) or (None,)))
        return {"published": published, "difference": page.signed(_difference(pair, summaries[pair]))}

    spec = SPECS[dataset]
    columns = ["mean over users", "all rows", "published", "difference", "10th percentile", "worst user",
               "below their accuracy alone, % of users", "neighbours", "chosen"]  # fmt: skip
    caption = f"{spec.title}: {spec.stumps} stumps, thresholds by {spec.rule}"
    return page.summary_table(caption, columns, chosen, summaries, more)


def _data(pair: Pair, choice: ChosenSettings, summary: Summary) -> dict[str, Any]:
    published, difference = accuracy_of(*pair), _difference(pair, summary)
    more = {"settings": choice.settings, "difference": difference}
    return method_data(choice, summary, published=None if published is None else published._asdict(), **more)


def _authors_table(theirs: AuthorsResults) -> Table:
    rows = []
    for run, summary, published in theirs:
        ours = (summary.pooled, summary.pooled_std) if run.pooled else (summary.mean, summary.std)
        numbers = [page.percent(*ours), page.percent(*published), page.signed(ours[0] - published.mean)]
        over = "all rows" if run.pooled else "mean over users"
        rows.append([page.title_of((run.dataset, run.method)), *numbers, over, run.note or page.DASH])
    columns = ["", "ours", "published", "difference", "accuracy over", "note"]
    return Table("Not tuned: the settings of the authors", columns, rows)


def agrees(summary: Summary, published: Published) -> bool:
    """Whether one of our two accuracies equals the published number up to the spread of the runs."""
    spread = 2 * math.hypot(max(summary.std, summary.pooled_std), published.std or 0.0)
    nearest = min(abs(summary.mean - published.mean), abs(summary.pooled - published.mean))
    return nearest <= max(CLOSE, spread)


def _verdicts(
    datasets: Sequence[str],
    chosen: Mapping[Pair, ChosenSettings],
    summaries: Mapping[Pair, Summary],
    theirs: AuthorsResults,
) -> list[str]:
    sentences = []
    for pair, choice in chosen.items():
        summary, published = summaries[pair], accuracy_of(*pair)
        if published is None:
            continue
        ours = f"{page.percent(summary.mean)} over users, {page.percent(summary.pooled)} over rows"
        numbers = f"{ours}; published {page.percent(*published)}"
        verdict = f"agrees ({numbers})."
        if not agrees(summary, published):
            where = "higher" if summary.mean > published.mean else "lower"
            verdict = f"{where} than published ({numbers}). {_cause(pair, choice, theirs)}".strip()
        sentences.append(f"{page.title_of(pair)}: {verdict}")
    if any(SPECS[dataset].column is None for dataset in datasets):
        sentences.append("VEHICLE (partial) cannot be compared with the published column: its rows and split differ.")
    return sentences


def _cause(pair: Pair, choice: ChosenSettings, theirs: AuthorsResults) -> str:
    """What is known about a difference from a published number."""
    known = [one for one in theirs if (one[0].dataset, one[0].method) == pair and one[0].is_known]
    causes = []
    if not known:
        causes.append("The authors' settings are not known.")
    elif any(agrees(summary, published) for _, summary, published in known):
        causes.append("The authors' settings give the published number.")
    for run, *_ in known[:1]:
        used = {name: run.settings[name] for name in choice.tuned}
        if used != choice.tuned:
            causes.append(
                f"Chosen here: {page.settings_text(choice.tuned)}; by the authors: {page.settings_text(used)}."
            )
    if pair[1] == "perso-lin-learned":
        causes.append(page.TEXTS["table1"]["persolin"])
    return " ".join(causes)


def _counts(lab: Lab, datasets: Sequence[str]) -> list[str]:
    """Facts about the data that differ from the paper."""
    notes = []
    for dataset in datasets:
        users = people(dataset, lab.seed, 0)
        if dataset == "school":
            notes.append(f"SCHOOL has {users.train.n_users} schools; the paper states 140.")
        if dataset == "vehicle_partial":
            rows = users.train.n_rows + users.test.n_rows
            notes.append(f"VEHICLE (partial) is a sample of {rows:,} records of Vehicle Sensor, with our own split.")
    return notes
