"""`dada fit --epsilon`: what was released and when, what is left of the budget, and what it brought."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dada import Population, Privacy
    from dada.cli.model_commands import Model
    from dada.events import Event, Observer, Snapshot
    from dada.fitting.benefit import Benefit


def public_groups(file: Path, user: str, group: str) -> dict[Any, str]:
    """The public group of each user, which must be the same in all of its rows."""
    from dada.data import read_table

    frame = read_table(file)
    for name in (user, group):
        if name not in frame.columns:
            raise ValueError(f"{file} has no column {name!r}, it has {', '.join(frame.columns)}")
    pairs = set(zip(frame[user].to_list(), map(str, frame[group].to_list()), strict=True))
    found = dict(sorted(pairs, key=str))
    if len(found) < len(pairs):
        raise ValueError(f"--group {group}: a user belongs to one group, but some have rows in several")
    return found


def about_privacy(model: Model) -> dict[str, Any]:
    """What was sent, when, and at what cost."""
    report = model.privacy_
    about = _about_budget(model.privacy, report.sent) | {"reason": report.reason}
    about |= {"releases": len(report.releases), "bytes": sum(map(len, report.releases))}
    if report.releases:
        about["sha256"] = hashlib.sha256(b"".join(report.releases)).hexdigest()
    return about


def _about_budget(privacy: Any, is_sent: bool) -> dict[str, Any]:
    """What is spent and left. A ledger was last written to when its latest release was made."""
    spent = privacy.epsilon if is_sent else 0.0
    about = {"sent": is_sent, "protects": privacy.protects, "epsilon": privacy.epsilon, "spent": spent}
    about |= {"left": privacy.epsilon - spent, "delta": 0.0 if privacy.protects == "labels" else privacy.delta}
    if is_sent:
        ledger = None if privacy.ledger is None else Path(privacy.ledger)
        about["ledger"] = None if ledger is None else str(ledger)
        about["time"] = time.time() if ledger is None else ledger.stat().st_mtime
    return about


def benefit(model: Model, people: Population, seed: int) -> dict[str, Any]:
    """What a private fit brought on rows held out at home."""
    scores = {name: round(score, 6) for name, score in _benefit(model, people, seed)._asdict().items()}
    return {"held_out": scores, "score": "accuracy" if people.n_classes else "mean absolute error"}


def _benefit(model: Model, people: Population, seed: int) -> Benefit:
    from sklearn.base import clone

    from dada.fitting.benefit import benefit_of_labels, benefit_of_statistics
    from dada.fitting.private import Shared
    from dada.privacy.noise import label_correlation

    privacy = model.privacy
    assert privacy is not None
    if model.centres_ is not None:
        scale = 1.0 if people.n_classes else model.target_scale_
        return benefit_of_statistics(model.predictors_, model.centres_, people, scale, seed)
    free = clone(model).set_params(privacy=None).fit_population(people)
    released, exact = (
        Shared(one.predictors_, one.settings_, sent, one.graph_)
        for one, sent in ((model, model.released_models_), (free, free.models_))
    )
    return benefit_of_labels(released, exact, people, label_correlation(privacy.epsilon, people.n_classes), seed)


def budget_lines(about: dict[str, Any]) -> list[str]:
    """What was sent and when, and what is left of the budget.

    >>> about = {"sent": False, "reason": "Nothing is sent.", "epsilon": 4.0, "spent": 0.0, "left": 4.0}
    >>> budget_lines(about)
    ['Nothing is sent.', 'Each user spent epsilon 0 of 4, 4 is left.']
    """
    lines = [about["reason"]] if "reason" in about else []
    lines.append(f"Each user spent epsilon {about['spent']:g} of {about['epsilon']:g}, {about['left']:g} is left.")
    if about["sent"]:
        what = "labels after randomised response" if about["protects"] == "labels" else "sums of users' statistics"
        if "sha256" in about:
            what = f"{about['releases']} releases, {about['bytes']} bytes, SHA-256 {about['sha256']}"
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(about["time"]))
        kept = f"made {when}" if about["ledger"] is None else f"recorded in {about['ledger']}, last written {when}"
        lines.append(f"Released: {what}; {kept}.")
        if about["ledger"] is None:
            lines.append("No --ledger was given, so another fit will spend the budget again.")
    return lines


def benefit_line(about: dict[str, Any], shown: Callable[[str, float], str]) -> str:
    """What collaboration brought; `shown` writes a score."""
    scores = {name: shown(about["score"], value) for name, value in about["held_out"].items()}
    return (
        f"On rows held out at home ({about['score']}): {scores['private']} with epsilon {about['spent']:g}, "
        f"{scores['alone']} if nothing is sent, {scores['no_privacy']} without privacy."
    )


def noting(page: Observer, privacy: Privacy) -> Observer:
    """The page, with the budget below the graph once labels are released: a fit to them follows."""
    from dada.dashboard.records import Recorder
    from dada.events import RunInfo

    def forward(event: Event) -> None:
        page(event)
        if isinstance(page, Recorder) and isinstance(event, RunInfo):
            page.note(" ".join(budget_lines(_about_budget(privacy, is_sent=True))))

    return forward


def show_result(page: Observer, model: Model, people: Population, title: str) -> None:
    """Show the home models and the budget of a fit to released statistics, which has no steps to watch."""
    from dada.dashboard.records import Recorder
    from dada.events import SnapshotOffer, Stopped
    from dada.task import info

    if isinstance(page, Recorder):
        page(info(people, model.predictors_, title))
        page.note(" ".join(budget_lines(about_privacy(model))))
        page(SnapshotOffer(lambda: _snapshot(model, people), milestone=True))
        page(Stopped(model.status_.value))


def _snapshot(model: Model, people: Population) -> Snapshot:
    """Home models, with their mean squared errors on the users' own rows, and a release sent to every other user."""
    import numpy as np

    from dada.core.losses import mean_per_user
    from dada.events import Snapshot, heaviest_predictors
    from dada.fitting.models import decisions
    from dada.fitting.private import outputs

    values = decisions(model.predictors_.predict(people.X), people.row_start, model.models_)
    errors = (values.reshape(people.n_rows, -1) - outputs(people)) ** 2
    predictors, weights = heaviest_predictors(model.models_)
    k, l, w = model.graph_.edges()
    return Snapshot(
        phase="models",
        updates=0,
        k=k,
        l=l,
        w=w,
        directed=False,
        confidence=model.confidence_,
        loss=mean_per_user(errors.sum(axis=1), people.row_start),
        accuracy=model.users_frame()["train_accuracy"].to_numpy() if people.n_classes else np.zeros(0),
        predictors=predictors,
        predictor_weights=weights,
        messages=np.full(people.n_users, (people.n_users - 1) * model.privacy_.sent),
        bits=np.full(people.n_users, model.bits_ / people.n_users),
    )
