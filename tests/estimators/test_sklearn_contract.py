"""scikit-learn's own checks of an estimator."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from dada.estimators import DadaClassifier, DadaRegressor

SETTINGS = [
    DadaClassifier(n_updates=50),
    DadaClassifier(graph="none", loss="squared-hinge", unknown_user="average", n_updates=50),
    DadaRegressor(n_updates=50),
]

THRESHOLDS = "thresholds and scales of base predictors come from rows, whatever these weigh"
EQUIVALENCE = {f"check_sample_weight_equivalence_on_{kind}_data": THRESHOLDS for kind in ("dense", "sparse")}
UNWEIGHTED = {
    f"check_{name}": "this loss takes no weights, and says so"
    for name in (
        "sample_weights_pandas_series",
        "sample_weights_not_an_array",
        "sample_weights_list",
        "sample_weights_shape",
        "sample_weights_not_overwritten",
        "class_weight_classifiers",
    )
}


def known(estimator):
    unweighted = UNWEIGHTED if getattr(estimator, "loss", "auto") == "squared-hinge" else {}
    return {**EQUIVALENCE, **unweighted}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(SETTINGS, expected_failed_checks=known)
def test_check(estimator, check):
    check(estimator)
