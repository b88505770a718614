"""What privacy costs: accuracy against epsilon, rivals under the same guarantee, and attacks on released bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dada.experiments import page
from dada.experiments.lab import Job, Lab, run_groups
from dada.experiments.page import Block, Heading, Page
from dada.experiments.privacy_attacks import attack_models, attack_statistics
from dada.experiments.privacy_audit import audit, one_run
from dada.experiments.privacy_study import (
    CASES,
    RIVALS,
    Case,
    groups_scores,
    label_scores,
    rival_scores,
    rival_trials,
    whole_users,
    with_releases,
    without_release,
)
from dada.experiments.tasks import data_digest


class LabelStudy(NamedTuple):
    """A row of the table of protected labels: a case, its draws, and runs that flip the labels of each anew."""

    case: str
    which: str
    draws: tuple[int, ...]
    runs: int = 1

    def title(self, n_results: int) -> str:
        """Dataset and split, and of how many results the row is the mean."""
        return f"{CASES[self.case].title}, {self.which}" + f", mean over {n_results}" * (n_results > 1)


# Draw 0 of Computer is the published split.
LABELS = {
    "school": LabelStudy("school", "published split", (1,)),
    "computer": LabelStudy("computer", "published split", (0,), runs=10),
    "computer-random": LabelStudy("computer", "random splits", tuple(range(1, 11))),
    "moons": LabelStudy("moons", "random draws", (0, 1, 2)),
    "harws": LabelStudy("harws", "published split", (0,)),
}
LABEL_EPSILONS = (1.0, 2.0, 4.0)
GROUP_EPSILONS, GROUP_DRAWS = (0.5, 1.0, 2.0, 4.0), tuple(range(6))
ATTACK_EPSILONS = (None, 1.0, 4.0)
# Generated users, and School's (0), of whom all rows are protected.
WHOLE_USERS, WHOLE_EPSILONS = (0, 250, 1000), (0.5, 1.0, 4.0)
# A difference is clear beyond this number of standard errors.
CLEAR = 2.0
AUDIT_FACTORS, AUDIT_TRIALS, NO_NOISE = (1, 2, 4), 10000, 10**6
# One run shows less than many: it finds a third of the noise, not half.
RUN_FACTORS, RUN_SLOTS = (1, 2, 3), 10000


def privacy_page(lab: Lab, datasets: Sequence[str]) -> Page:
    """Make the page."""
    names = [name for name, case in CASES.items() if case.dataset in (*datasets, "moons")]
    rows = {name: rows_study(lab, name) for name in names}
    labels = labels_study(lab, [key for key, study in LABELS.items() if study.case in names])
    groups = groups_study(lab)
    whole = whole_study(lab) if "school" in names else []
    audits, runs = audit_study(lab), run_study(lab)
    attacks = attack_study(lab) if "computer" in names else []
    blocks: list[Block] = [Heading("Rows protected"), page.TEXTS["privacy"]["rows"]]
    for name, found in rows.items():
        blocks += [rows_table(CASES[name], found), [decision(CASES[name], found), *comparison(CASES[name], found)]]
    blocks += [Heading("Labels protected"), labels_table(labels), page.TEXTS["privacy"]["labels"]]
    blocks += [Heading("Groups found in releases"), groups_table(groups)]
    if whole:
        blocks += [Heading("Whole users protected"), whole_table(whole), page.TEXTS["privacy"]["whole"]]
    blocks += [Heading("Attacks on released bytes"), audit_table(audits), *audit_sentences(audits)]
    blocks += [run_table(runs), *run_sentences(runs)]
    if attacks:
        blocks += [attack_table(attacks), page.TEXTS["privacy"]["attacks"]]
    blocks += [
        Heading("Aims"),
        aims_table(aims(rows, labels, groups)),
        Heading("Notes"),
        page.TEXTS["privacy"]["notes"],
    ]
    data = {"rows": rows, "labels": labels, "groups": groups, "whole users": whole, "audit": audits, "one run": runs}
    data |= {"attacks": attacks}
    return Page.of("privacy", lab, blocks, data)


def _run(lab: Lab, function: Callable[..., Any], digest: str, arguments: Sequence[dict[str, Any]]) -> list[Any]:
    jobs = [Job(function, some | {"seed": lab.seed}, digest) for some in arguments]
    return lab.run(jobs, function.__name__.replace("_", " "))


def rows_study(lab: Lab, name: str) -> dict[str, Any]:
    """Mean scores of a case by method and epsilon, and the decision to send at each epsilon."""
    case = CASES[name]
    draws, tuning = (case.draws[:1], case.tuning[:1]) if lab.quick else (case.draws, case.tuning)
    digest = data_digest(case.dataset)
    epsilons = [str(epsilon) for epsilon in case.epsilons]
    arguments = [{"name": name, "draw": draw} for draw in draws]
    found: dict[str, Any] = {"draws": len(draws)}
    each = _run(lab, without_release, digest, arguments)
    found |= {key: _spread([one[key] for one in each]) for key in ("alone", "no noise")}
    for which, secure_sum in (("released", False), ("secure", True)):
        found[which] = {}
        for epsilon in epsilons:
            each = [one | {"epsilon": float(epsilon), "secure_sum": secure_sum} for one in arguments]
            found[which][epsilon] = _summary(_run(lab, with_releases, digest, each))
    for who, rival in RIVALS.items():
        found[who] = {}
        for epsilon in epsilons:
            same = {"name": name, "epsilon": float(epsilon), "who": who}
            trials = _run(lab, rival_trials, digest, [same | {"draw": draw} for draw in tuning])
            best = {key: chosen([trial[key] for trial in trials], case.is_class) for key in ("home", "released")}
            finals = _run(lab, rival_scores, digest, [same | {"draw": draw, "best": best} for draw in draws])
            found[who][epsilon] = _summary(finals) | {"chosen": {key: rival.settings[i] for key, i in best.items()}}
    return found


def chosen(scores: Sequence[Sequence[float]], more_is_better: bool) -> int:
    """Number of the setting with the best mean over draws.

    >>> chosen([[1.0, 3.0], [2.0, 3.0]], more_is_better=True)
    1
    """
    mean = np.mean(scores, axis=0)
    return int(mean.argmax() if more_is_better else mean.argmin())


def _summary(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means and standard errors of scores over draws; other values are those of the first draw."""
    return {
        key: value if isinstance(value, str | bool) else _spread([result[key] for result in results])
        for key, value in results[0].items()
    }


def _spread(values: Sequence[float]) -> list[float]:
    """Mean and standard error."""
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
    return [round(float(np.mean(values)), 6), round(error, 6)]


def labels_study(lab: Lab, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Mean accuracies with labels protected, by key of `LABELS` and epsilon."""
    found = {}
    epsilons = (None, *LABEL_EPSILONS[-1:]) if lab.quick else (None, *LABEL_EPSILONS)
    for key in keys:
        name, _, draws, runs = LABELS[key]
        pairs = [(draw, lab.seed + run) for draw in draws for run in range(runs)]
        digest = data_digest(CASES[name].dataset)
        jobs = {
            epsilon: [Job(label_scores, {"name": name, "draw": draw, "epsilon": epsilon, "seed": seed}, digest)
                      for draw, seed in (pairs[:1] if lab.quick else pairs)]
            for epsilon in epsilons
        }  # fmt: skip
        results = run_groups(lab, jobs, f"labels of {key}")
        found[key] = {"runs": len(jobs[None])} | _summary(results[None])
        found[key] |= {str(epsilon): _summary(results[epsilon]) for epsilon in epsilons if epsilon is not None}
    return found


def groups_study(lab: Lab) -> list[dict[str, Any]]:
    """Mean accuracies of synthetic users in groups, by epsilon; those of the first draw are kept too."""
    draws = GROUP_DRAWS[:1] if lab.quick else GROUP_DRAWS
    found = []
    for epsilon in GROUP_EPSILONS:
        each = _run(lab, groups_scores, "", [{"epsilon": epsilon, "draw": draw} for draw in draws])
        mean = {key: float(np.mean([one[key] for one in each])) for key in each[0]}
        gaps = [one["found groups"] - one["true groups"] for one in each]
        found.append(mean | {"draws": len(draws), "gap": _spread(gaps), "first": each[0]})
    return found


def whole_study(lab: Lab) -> list[dict[str, Any]]:
    """Accuracies with whole users protected, by their number and epsilon."""
    numbers = WHOLE_USERS[:2] if lab.quick else WHOLE_USERS
    each = [{"n_users": n_users, "epsilon": epsilon} for n_users in numbers for epsilon in WHOLE_EPSILONS]
    results = _run(lab, whole_users, data_digest("school"), each)
    return [one | result for one, result in zip(each, results, strict=True)]


def attack_study(lab: Lab) -> list[dict[str, Any]]:
    """Attacks on what single users send: what is seen, at which epsilon, and their success."""
    digest = data_digest("computer")
    found = []
    for what, function in (("statistics", attack_statistics), ("model", attack_models)):
        results = _run(lab, function, digest, [{"epsilon": epsilon} for epsilon in ATTACK_EPSILONS])
        found += [
            {"what": what, "epsilon": epsilon} | one for epsilon, one in zip(ATTACK_EPSILONS, results, strict=True)
        ]
    return found


def audit_study(lab: Lab) -> list[dict[str, Any]]:
    """Attacks on released statistics and labels: claimed epsilon, by how much noise was divided, epsilon shown."""
    cells = [*_cells(AUDIT_FACTORS), ("rows", 1.0, NO_NOISE)]
    return _audits(lab, audit, cells, n_trials=500 if lab.quick else AUDIT_TRIALS)


def run_study(lab: Lab) -> list[dict[str, Any]]:
    """The same by the guesses of one run."""
    cells = [*_cells(RUN_FACTORS), ("rows", 1.0, NO_NOISE), ("labels", 1.0, NO_NOISE)]
    return _audits(lab, one_run, cells, n_slots=1000 if lab.quick else RUN_SLOTS)


def _cells(factors: Sequence[int]) -> list[tuple[str, float, int]]:
    return [(what, epsilon, factor) for what in ("rows", "labels") for epsilon in (1.0, 4.0) for factor in factors]


def _audits(
    lab: Lab, function: Callable[..., Any], cells: Sequence[tuple[str, float, int]], **size: int
) -> list[dict[str, Any]]:
    each = [{"what": what, "epsilon": epsilon, "factor": factor} | size for what, epsilon, factor in cells]
    return [one | result for one, result in zip(each, _run(lab, function, "", each), strict=True)]


def rows_table(case: Case, found: Mapping[str, Any]) -> page.Table:
    """A row per method, a column per epsilon."""

    def shown(pair: Sequence[float]) -> str:
        return page.percent(*pair) if case.is_class else f"{pair[0]:.5f}"

    same = {
        title: shown(found[key]) for title, key in (("alone, nothing sent", "alone"), ("no noise, home", "no noise"))
    }
    lines = [[title, *[cell] * len(case.epsilons)] for title, cell in same.items()]
    ways = [(f"released statistics, {key}", "released", key) for key in ("home", "released")]
    ways += [("secure aggregation, home", "secure", "home")]
    ways += [(f"{rival.title}, {key}", who, key) for who, rival in RIVALS.items() for key in ("home", "released")]
    for title, which, key in ways:
        results = found[which].values()
        lines.append([title, *(shown(one[key]) if one.get("sent", True) else "nothing sent" for one in results)])
    what = "accuracy, %" if case.is_class else "mean squared error of score / 70"
    caption = f"{case.title}: {what}, {_splits(found)}, rows protected, delta {case.delta:g}"
    return page.Table(caption, ["method", *(f"epsilon {epsilon:g}" for epsilon in case.epsilons)], lines)


def _splits(found: Mapping[str, Any]) -> str:
    return "one split" if found["draws"] == 1 else f"mean over {found['draws']} splits"


def decision(case: Case, found: Mapping[str, Any]) -> str:
    """At which epsilon the program sends, and its reason where it does not."""
    sent = {epsilon: found["released"][str(epsilon)] for epsilon in case.epsilons}
    silent = [epsilon for epsilon, one in sent.items() if not one["sent"]]
    if not silent:
        return page.sentence("privacy", "sends", title=case.title)
    which = "any epsilon tried" if len(silent) == len(sent) else f"epsilon {', '.join(f'{each:g}' for each in silent)}"
    return page.sentence("privacy", "silent", title=case.title, which=which, last=f"{silent[-1]:g}",
                         reason=sent[silent[-1]]["reason"])  # fmt: skip


def comparison(case: Case, found: Mapping[str, Any]) -> list[str]:
    """How released statistics compare with the better rival of each epsilon, home models and released ones."""
    sentences = []
    for key in ("home", "released"):
        verdicts: dict[str, list[str]] = {"ahead of": [], "behind": [], "close to": []}
        for epsilon, own in found["released"].items():
            if own["sent"]:
                gaps = [_gap(own[key], found[who][epsilon][key], case.is_class) for who in RIVALS]
                gap = min(gaps, key=lambda pair: pair[0])
                verdict = "close to" if abs(gap[0]) <= CLEAR * gap[1] else "ahead of" if gap[0] > 0 else "behind"
                verdicts[verdict].append(f"{float(epsilon):g}")
        parts = [f"{verdict} the better rival at epsilon {', '.join(at)}" for verdict, at in verdicts.items() if at]
        if parts:
            sentences.append(f"{case.title}, {key} models: released statistics are {'; '.join(parts)}.")
    return sentences


def _gap(own: Sequence[float], rival: Sequence[float], more_is_better: bool) -> tuple[float, float]:
    """By how much the first is better, and the standard error if the two were independent."""
    return (1 if more_is_better else -1) * (own[0] - rival[0]), float(np.hypot(own[1], rival[1]))


def labels_table(found: Mapping[str, Mapping[str, Any]]) -> page.Table:
    """A row per study: home (released) at each epsilon."""
    epsilons = [key for key in next(iter(found.values())) if key not in ("runs", "alone", "no privacy")]
    lines = []
    for key, own in found.items():
        cells = [f"{own[epsilon]['home'][0]:.1f} ({own[epsilon]['released'][0]:.1f})" for epsilon in epsilons]
        lines.append([LABELS[key].title(own["runs"]), f"{own['alone'][0]:.1f}", *cells,
                      f"{own['no privacy'][0]:.1f}"])  # fmt: skip
    columns = ["dataset", "alone", *(f"epsilon {float(key):g}" for key in epsilons), "no privacy"]
    return page.Table("Accuracy in %, labels protected: home models (released models)", columns, lines)


def groups_table(found: Sequence[Mapping[str, Any]]) -> page.Table:
    """A row per epsilon."""
    ways = ("alone", "one group", "found groups", "true groups")
    lines = [
        [
            f"epsilon {epsilon:g}",
            *(f"{own[way]:.1f}" for way in ways),
            f"{own['groups']:.1f}",
            page.percent(*own["gap"]),
        ]
        for epsilon, own in zip(GROUP_EPSILONS, found, strict=True)
    ]
    draws = "one draw" if found[0]["draws"] == 1 else f"mean over {found[0]['draws']} draws"
    return page.Table(f"200 synthetic users in four groups, home models, %, {draws}",
                      ["", *ways, "groups found", "found less true"], lines)  # fmt: skip


def whole_table(found: Sequence[Mapping[str, Any]]) -> page.Table:
    """A row per number of users."""
    lines = []
    for n_users in dict.fromkeys(one["n_users"] for one in found):
        own = [one for one in found if one["n_users"] == n_users]
        title = f"{own[0]['users']} generated users" if n_users else f"School, {own[0]['users']} users, split 1"
        cells = [f"{one['home']:.1f}" if one["sent"] else "nothing sent" for one in own]
        lines.append([title, f"{own[0]['alone']:.1f}", *cells])
    columns = ["", "alone", *(f"epsilon {epsilon:g}" for epsilon in WHOLE_EPSILONS)]
    return page.Table("Home models, accuracy in %, if a secure sum hides all rows of a user", columns, lines)


def audit_table(found: Sequence[Mapping[str, Any]]) -> page.Table:
    """A row per attack."""
    lines = [
        [*_claim(one), f"{one['counted']:.2f}", f"{one['shown']:.2f}" if one["what"] == "rows" else "", _broken(one)]
        for one in found
    ]  # fmt: skip
    trials = found[0]["n_trials"]
    columns = ["protected", "claimed epsilon", "noise", "epsilon by counting", "as Gaussian noise", "claim broken"]
    return page.Table(f"Likelihood-ratio attack, {trials} releases of either row", columns, lines)


def run_table(found: Sequence[Mapping[str, Any]]) -> page.Table:
    """A row per run."""
    lines = [
        [*_claim(one), f"{one['guesses']}", f"{100 * one['right'] / one['guesses']:.1f}", f"{one['shown']:.2f}",
         _broken(one)]
        for one in found
    ]  # fmt: skip
    columns = ["protected", "claimed epsilon", "noise", "guesses", "right, %", "epsilon shown", "claim broken"]
    return page.Table(f"Attack on one run, {found[0]['n_slots']} slots", columns, lines)


def attack_table(found: Sequence[Mapping[str, Any]]) -> page.Table:
    """A row per thing that is seen."""
    protected = {"statistics": "rows", "model": "labels"}
    lines = []
    for one in found:
        seen = "no privacy" if one["epsilon"] is None else f"{protected[one['what']]}, epsilon {one['epsilon']:g}"
        cells = [f"{one[key]:.1f}" if key in one else "" for key in ("membership", "row", "label")]
        lines.append([one["what"], seen, *cells])
    columns = ["seen", "protected", "membership (AUC)", "missing row found", "its label found"]
    return page.Table("Computer, one split: attacks on what a user sends, mean over users, %", columns, lines)


def _claim(one: Mapping[str, Any]) -> list[str]:
    """What is protected, the epsilon that is claimed, and the noise."""
    return [one["what"], f"{one['epsilon']:g}" if one["factor"] != NO_NOISE else "none", _noise(one)]


def _broken(one: Mapping[str, Any]) -> str:
    return "yes" if one["shown"] > one["epsilon"] else "no"


def _noise(one: Mapping[str, Any]) -> str:
    if one["factor"] == NO_NOISE:
        return "none"
    if one["factor"] == 1:
        return "as claimed"
    return (
        f"divided by {one['factor']}"
        if one["what"] == "rows"
        else f"that of epsilon {one['factor'] * one['epsilon']:g}"
    )


def audit_sentences(found: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Whether the attacks stay below the claim, and from which division of the noise they exceed it."""
    return _verdicts(found, AUDIT_FACTORS, "audit", "caught")


def run_sentences(found: Sequence[Mapping[str, Any]]) -> list[Block]:
    """The same of attacks on one run."""
    return _verdicts(found, RUN_FACTORS, "run", "run_caught")


def _verdicts(found: Sequence[Mapping[str, Any]], factors: Sequence[int], below: str, caught: str) -> list[Block]:
    honest = [one for one in found if one["factor"] == 1]
    parts = [
        page.sentence("privacy", below, below=sum(one["shown"] <= one["epsilon"] for one in honest), n=len(honest))
    ]
    for factor in factors[1:]:
        wrong = [one for one in found if one["factor"] == factor and one["what"] == "rows"]
        broken = sum(one["shown"] > one["epsilon"] for one in wrong)
        parts.append(page.sentence("privacy", caught, factor=factor, caught=broken, n=len(wrong)))
    return [parts]


class Aim(NamedTuple):
    """A figure that was set before, and what came out."""

    text: str
    wanted: float
    reached: float
    more_is_better: bool = True

    @property
    def is_met(self) -> bool:
        """Whether the figure was reached."""
        return self.reached >= self.wanted if self.more_is_better else self.reached <= self.wanted


def aims(
    rows: Mapping[str, Mapping[str, Any]],
    labels: Mapping[str, Mapping[str, Any]],
    groups: Sequence[Mapping[str, float]],
) -> list[Aim]:
    """The aims whose datasets are present."""
    found = []
    if "school" in rows:
        own = rows["school"]
        for text, which, key, epsilon, wanted in (
            ("home, epsilon 1", "released", "home", "1.0", 72.2),
            ("home, epsilon 4", "released", "home", "4.0", 72.7),
            ("released, epsilon 4", "released", "released", "4.0", 72.2),
            ("secure aggregation, home, epsilon 1", "secure", "home", "1.0", 72.8),
            ("secure aggregation, home, epsilon 0.25, against alone", "secure", "home", "0.25", own["alone"][0]),
        ):
            found.append(Aim(f"School, rows: {text}", wanted, own[which][epsilon][key][0]))
    if "scores" in rows:
        reached = rows["scores"]["released"]["6.0"]["released"][0]
        found.append(Aim("School scores, rows: error of released models, epsilon 6", 0.0225, reached, False))
    for key, wanted in (("computer", 76.8), ("harws", 97.3), ("moons", 90.0)):
        if key in labels:
            own = labels[key]
            text = f"{LABELS[key].title(own['runs'])}, labels: home, epsilon 4"
            found.append(Aim(text, wanted, own["4.0"]["home"][0]))
    if "1.0" in labels.get("moons", {}):
        own = labels["moons"]
        found.append(Aim("Moons, labels: home, epsilon 1, against alone", own["alone"][0], own["1.0"]["home"][0]))
    own = groups[GROUP_EPSILONS.index(2.0)]
    error = 100 * float(np.sqrt(0.25 / own["test rows"] / own["draws"]))
    text = f"Four groups: found groups, epsilon 2, against true groups less {error:.1f} (chance)"
    return [*found, Aim(text, own["true groups"] - error, own["found groups"])]


def aims_table(found: Sequence[Aim]) -> page.Table:
    """A row per aim."""
    digits = [5 if aim.wanted < 1 else 1 for aim in found]
    lines = [
        [aim.text, f"{aim.wanted:.{n}f}", f"{aim.reached:.{n + (n == 1)}f}", "reached" if aim.is_met else "missed"]
        for aim, n in zip(found, digits, strict=True)
    ]
    return page.Table(f"Aims set before: {sum(aim.is_met for aim in found)} of {len(found)} reached",
                      ["aim", "wanted", "found", ""], lines)  # fmt: skip
