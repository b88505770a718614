"""Our estimators as methods of the experiments. Loaded by name, so that results of rivals do not depend on them."""

from __future__ import annotations

from typing import Any

from dada.baselines.boosting import MethodResult
from dada.core.compiled import Array
from dada.data import UserTable
from dada.estimators import DadaClassifier, DadaClassifierCV, DadaRegressor
from dada.experiments.methods import Method, RunInput


def estimated(given: RunInput, model: DadaClassifier | DadaClassifierCV) -> MethodResult:
    """The result of one of our estimators."""
    train = given.train
    model.fit(train.X, train.y, users=train.users)
    best: DadaClassifier = model.best_estimator_ if isinstance(model, DadaClassifierCV) else model
    values = [model.decision_function(people.X, users=people.users) for people in (train, given.test)]
    rest: Any = {"graph": best.graph_, "bits": best.bits_, "status": best.status_}
    return MethodResult.of(train, given.test, values, best.models_, **rest)


def fitted_labels(X: Array, y: Array, users: Array, rows: Array, row_users: Array, seed: int) -> Array:
    """Fit our defaults and predict the labels of other rows. Labels that are floats are numbers."""
    model = (DadaRegressor if y.dtype.kind == "f" else DadaClassifier)(random_state=seed)
    return model.fit(X, y, users=users).predict(rows, users=row_users)


def table_labels(table: UserTable, is_kept: Array, is_tested: Array, seed: int) -> Array:
    """Fit our defaults to some rows of a table and predict the labels of others."""
    encoder = table.encoder(is_kept)
    model = (DadaRegressor if table.task == "numbers" else DadaClassifier)(random_state=seed)
    model.fit_population(table.people(encoder).take(is_kept.nonzero()[0]), encoder=encoder)
    return model.predict(table.rows(is_tested), users=table.users[is_tested])


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
