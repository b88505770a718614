"""Our estimators as methods of the experiments."""

from __future__ import annotations

from typing import Any

from dada.baselines.outcome import MethodResult
from dada.estimators import DadaClassifier, DadaClassifierCV
from dada.experiments.methods import Method, RunInput


def estimated(given: RunInput, model: DadaClassifier | DadaClassifierCV) -> MethodResult:
    """The result of one of our estimators."""
    train = given.train
    model.fit(train.X, train.y, users=train.users)
    best: DadaClassifier = model.best_estimator_ if isinstance(model, DadaClassifierCV) else model
    values = [model.decision_function(people.X, users=people.users) for people in (train, given.test)]
    rest: Any = {"graph": best.graph_, "bits": best.bits_, "status": best.status_}
    return MethodResult.of(train, given.test, values, best.models_, **rest)


def _defaults(name: str, title: str, graph: str, alone: str | None = "dada-alone") -> Method:
    return Method(name, title, lambda g: estimated(g, DadaClassifier(graph=graph, random_state=g.rng)), alone=alone)


METHODS = {
    method.name: method
    for method in (
        _defaults("dada-auto", "Dada, our defaults", "auto"),
        Method(
            "dada-cv",
            "Dada, our predictors, cross-validated",
            lambda g: estimated(g, DadaClassifierCV(random_state=g.rng)),
            alone="dada-alone",
        ),
        _defaults("dada-auto-evidence", "Dada, our defaults, evidence graph", "evidence"),
        _defaults("dada-auto-everyone", "Dada, our defaults, everyone", "everyone"),
        _defaults("dada-alone", "Our defaults, each user alone", "none", alone=None),
    )
}
