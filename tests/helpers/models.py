"""A small fitted classifier."""

from dada import DadaClassifier
from tests.helpers.people import opposites

ROWS = opposites()


def fitted(rows=ROWS, **settings):
    """A classifier of the paper's kind, with some settings changed."""
    usual = {"loss": "adaboost", "beta": 10.0, "mu": 1.0, "lam": 0.1, "graph": "learned", "random_state": 0}
    return DadaClassifier(**{**usual, **settings}).fit(rows.X, rows.y, users=rows.users)
