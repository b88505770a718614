"""A fitted model, and its file."""

import pytest

from dada import save_model
from tests.helpers.models import fitted


@pytest.fixture(scope="module")
def model():
    return fitted()


@pytest.fixture
def path(model, tmp_path):
    save_model(model, tmp_path / "people.dada")
    return tmp_path / "people.dada"
