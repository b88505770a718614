"""scikit-learn's own checks of an estimator."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from dada.estimators import DadaClassifier

SETTINGS = [
    DadaClassifier(),
    DadaClassifier(graph="none", loss="logistic", unknown_user="average"),
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(SETTINGS)
def test_check(estimator, check):
    check(estimator)
