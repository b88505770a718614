"""The walk of a row through `dada fit` and `dada predict`: few files, one grouping, no table twice."""

import inspect
import sys
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

import dada
from dada.cli.app import app
from dada.data import moons

PACKAGE = Path(dada.__file__).parent
# Of these, boosted trees have two, other trees, calibration and workers one each.
MOST_FILES = 36


class Walk:
    """Records the functions of the package that a command calls, and the tables of base predictions it computes."""

    def __init__(self):
        self.calls = Counter()
        self.tables = Counter()

    def __call__(self, frame, event, arg):
        code = frame.f_code
        # Module and class bodies are not optimised code: they run once, at import.
        if event != "call" or not code.co_flags & inspect.CO_OPTIMIZED:
            return
        if not code.co_filename.startswith(str(PACKAGE)):
            return
        file = str(Path(code.co_filename).relative_to(PACKAGE))
        self.calls[file, code.co_name] += 1
        if code.co_name == "predict" and file.startswith("data/predictors") and not _inside_predictors(frame):
            rows = frame.f_locals["X"]
            predictors = str(frame.f_locals["self"].to_arrays())
            self.tables[self.calls["estimators/base.py", "fit_population"], predictors, rows.tobytes()] += 1

    @property
    def files(self):
        return sorted({file for file, _ in self.calls})


def _inside_predictors(frame):
    return "predictors" in Path(frame.f_back.f_code.co_filename).parts


def walked(*arguments):
    walk, before = Walk(), sys.getprofile()
    sys.setprofile(walk)
    try:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    finally:
        sys.setprofile(before)
    assert result.exit_code == 0, result.output
    return walk


@pytest.fixture(scope="module")
def walks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("walk")
    people = moons(2, n_users=6).train
    frame = pl.DataFrame(people.X[:, :2], schema=["east", "north"])
    frame.with_columns(person=people.users, came=people.y)[:60].write_csv(folder / "visits.csv")
    fit = ["fit", folder / "visits.csv", "--user", "person", "--label", "came", "-o", folder / "visits.dada"]
    walked(*fit, "--updates", 5)  # imports and compiles
    return walked(*fit, "--updates", 5), walked("predict", folder / "visits.dada", folder / "visits.csv")


def test_a_fit_enters_few_files(walks):
    fit, _ = walks
    assert len(fit.files) <= MOST_FILES, "\n".join(fit.files)


def test_a_fit_groups_rows_once_and_writes_one_file(walks):
    fit, _ = walks
    assert fit.calls["estimators/base.py", "fit_population"] == 4  # together, alone, one model for all, and all rows
    assert fit.calls["fitting/held_out.py", "decide"] == 1
    assert fit.calls["data/population.py", "from_arrays"] == 1
    assert fit.calls["data/population.py", "joined"] == 0
    assert fit.calls["modelfile.py", "write"] == 1
    assert fit.calls["modelfile.py", "read"] == 0


def test_a_fit_computes_each_table_of_base_predictions_once(walks):
    fit, _ = walks
    assert fit.tables
    # A trial of trees computes the linear predictors beside them once more.
    again = [predictors for (_, predictors, _), times in fit.tables.items() if times > 1]
    assert all("linear" in predictors and "stumps" not in predictors for predictors in again)
    assert max(fit.tables.values()) <= 2


def test_a_prediction_reads_one_file_and_predicts_each_row_once(walks):
    _, predict = walks
    assert predict.calls["modelfile.py", "read"] == 1
    assert sum(predict.tables.values()) == 1
