"""scikit-learn's own checks of an estimator."""

import numpy as np
import pytest
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

from dada import Constant, Linear, Pretrained, Union
from dada.estimators import DadaClassifier, DadaClassifierCV, DadaRegressor, DadaRegressorCV

# One family and one setting: few trials.
FEW = {"betas": (10.0,), "mu_scales": (1.0,), "n_splits": 2}
LINES = Union(Linear(clip=2.0), Constant())
QUICK = {"predictors": LINES, "graph": "everyone", "n_updates": 20}
SETTINGS = [
    DadaClassifier(n_updates=50),
    DadaClassifier(LINES, graph="none", loss="squared-hinge", unknown_user="average", n_updates=50),
    DadaRegressor(n_updates=50),
    DadaClassifierCV(DadaClassifier(**QUICK), **FEW),
    DadaRegressorCV(DadaRegressor(**QUICK), **FEW),
]

SCALES = "thresholds and scales of base predictors, and of targets, come from rows, whatever these weigh"
DENSE, SPARSE = (f"check_sample_weight_equivalence_on_{kind}_data" for kind in ("dense", "sparse"))
EQUIVALENCE = {DENSE: SCALES, SPARSE: SCALES}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(SETTINGS, expected_failed_checks=lambda estimator: EQUIVALENCE)
def test_check(estimator, check):
    check(estimator)


class Column:
    """A base predictor that no row has a say in."""

    def __init__(self, j):
        self.j = j

    def predict(self, X):
        return np.asarray(X)[:, self.j]


@pytest.mark.parametrize(
    ("loss", "check"), [("auto", DENSE), ("auto", SPARSE), ("adaboost", DENSE), ("squared-hinge", DENSE)]
)
def test_weights_are_repeated_rows_where_base_predictors_are_given(loss, check):
    columns = Pretrained([Column(j) for j in range(8)])
    model = DadaClassifier(columns, loss=loss, beta=3.0, n_updates=3000, dtype="float64")
    getattr(estimator_checks, check)("DadaClassifier", model)
