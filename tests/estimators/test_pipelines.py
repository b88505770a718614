"""A pipeline is saved with its model: the same bits come back, and nothing that could run code is written or read."""

import hashlib
import io
import json
import sys
import zipfile

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
import skops.io
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA, LatentDirichletAllocation
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, PolynomialFeatures, StandardScaler

from dada import DadaClassifier, DadaRegressor, ModelFileError, load_model, save_model
from dada.estimators import transformers
from tests.helpers.people import opposites

ROWS = opposites()
SHORT = {"graph": "none", "n_updates": 5, "random_state": 0}


class Doubler(TransformerMixin, BaseEstimator):
    """A transformer that scikit-learn does not have."""

    def fit(self, X, y=None):
        self.fitted_ = True
        return self

    def transform(self, X):
        return 2 * np.asarray(X)


def with_routing(*steps, y=ROWS.y, model=None):
    with sklearn.config_context(enable_metadata_routing=True):
        pipeline = make_pipeline(*steps, model or DadaClassifier(**SHORT))
        return pipeline.fit(ROWS.X, y, users=ROWS.users)


def members(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def with_steps(path, data):
    """Put in other bytes of the steps together with their right checksum, as an attacker would."""
    content = members(path)
    manifest = json.loads(content["manifest.json"])
    manifest["members"]["transformers.skops"] = hashlib.sha256(data).hexdigest()
    content |= {"manifest.json": json.dumps(manifest).encode(), "transformers.skops": data}
    with zipfile.ZipFile(path, "w") as archive:
        for name, each in content.items():
            archive.writestr(name, each)


def with_schema(data, change):
    """The bytes of some steps with another schema."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    schema = json.loads(content["schema.json"])
    change(schema)
    content["schema.json"] = json.dumps(schema).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, each in content.items():
            archive.writestr(name, each)
    return buffer.getvalue()


@pytest.fixture
def path(tmp_path):
    save_model(with_routing(StandardScaler()), tmp_path / "people.dada")
    return tmp_path / "people.dada"


@pytest.mark.parametrize("y", [ROWS.y, np.array(["low", "middle", "top"])[np.digitize(ROWS.X[:, 0], [-0.3, 0.3])]])
def test_classes_come_back_bit_for_bit(y, tmp_path):
    pipeline = with_routing(StandardScaler(), PolynomialFeatures(3), PCA(2), y=y)
    save_model(pipeline, tmp_path / "p.dada")
    again = load_model(tmp_path / "p.dada")
    assert [name for name, _ in again.steps] == [name for name, _ in pipeline.steps]
    assert again[-1].get_params() == pipeline[-1].get_params()
    with sklearn.config_context(enable_metadata_routing=True):
        assert_array_equal(again.predict(ROWS.X, users=ROWS.users), pipeline.predict(ROWS.X, users=ROWS.users))
        mine, theirs = (each.predict_proba(ROWS.X, users=ROWS.users) for each in (again, pipeline))
        assert again.score(ROWS.X, y, users=ROWS.users) == pipeline.score(ROWS.X, y, users=ROWS.users)
    assert_array_equal(mine, theirs)


def test_numbers_come_back_bit_for_bit(tmp_path):
    pipeline = with_routing(StandardScaler(), y=40 + 3 * ROWS.X[:, 0], model=DadaRegressor(**SHORT))
    save_model(pipeline, tmp_path / "p.dada")
    with sklearn.config_context(enable_metadata_routing=True):
        again = load_model(tmp_path / "p.dada").predict(ROWS.X, users=ROWS.users)
        assert_array_equal(again, pipeline.predict(ROWS.X, users=ROWS.users))


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
@pytest.mark.parametrize("output", ["default", "pandas", "polars"])
def test_columns_of_text_and_of_users_come_back(frame, output, tmp_path):
    rng = np.random.default_rng(0)
    town = rng.choice(["Oslo", "Rome"], ROWS.users.size)
    X = frame({"x": ROWS.X[:, 0], "town": town.tolist(), "person": ROWS.users.tolist()})
    columns = [("n", StandardScaler(), ["x"]), ("t", OneHotEncoder(sparse_output=False), ["town"])]
    before = ColumnTransformer([*columns, ("u", "passthrough", ["person"])]).set_output(transform=output)
    model = DadaClassifier(user_column=-1 if output == "default" else "u__person", **SHORT)
    pipeline = make_pipeline(before, model).fit(X, ROWS.y)
    save_model(pipeline, tmp_path / "p.dada")
    again = load_model(tmp_path / "p.dada")
    assert_array_equal(again.predict_proba(X), pipeline.predict_proba(X))
    assert again.feature_names_in_.tolist() == ["x", "town", "person"]


@pytest.mark.parametrize(
    "steps",
    [
        (),
        ("passthrough",),
        (FunctionTransformer(np.tanh),),
        (FeatureUnion([("s", StandardScaler()), ("p", PolynomialFeatures(2))]),),
        (PolynomialFeatures(3), LatentDirichletAllocation(2, random_state=np.random.RandomState(0))),
        (Pipeline([("s", StandardScaler()), ("p", PCA(1))]), StandardScaler()),
    ],
)
def test_other_steps_come_back(steps, tmp_path):
    X = np.abs(ROWS.X)
    pipeline = make_pipeline(*steps, DadaClassifier(**SHORT)).fit(X, ROWS.y)
    save_model(pipeline, tmp_path / "p.dada")
    assert_array_equal(load_model(tmp_path / "p.dada").predict_proba(X), pipeline.predict_proba(X))


def test_words_come_back(tmp_path):
    X = ["warm sun", "cold rain", "warm rain", "cold sun"] * 4
    pipeline = make_pipeline(TfidfVectorizer(), DadaClassifier(**SHORT)).fit(X, [1, 0, 1, 0] * 4)
    save_model(pipeline, tmp_path / "p.dada")
    assert_array_equal(load_model(tmp_path / "p.dada").predict_proba(X), pipeline.predict_proba(X))


def test_the_same_pipeline_gives_the_same_bytes(path):
    first = path.read_bytes()
    save_model(with_routing(StandardScaler()), path)
    assert path.read_bytes() == first
    save_model(load_model(path), path)
    assert path.read_bytes() == first


def test_a_file_holds_a_pipeline_only_if_one_was_saved(path, tmp_path):
    assert json.loads(members(path)["manifest.json"])["version"] == 4
    save_model(load_model(path)[-1], tmp_path / "model.dada")
    assert "transformers.skops" not in members(tmp_path / "model.dada")
    assert json.loads(members(tmp_path / "model.dada")["manifest.json"])["version"] == 1


def test_the_cache_of_intermediate_fits_is_not_stored(tmp_path):
    pipeline = make_pipeline(StandardScaler(), DadaClassifier(**SHORT), memory=str(tmp_path / "cache"))
    save_model(pipeline.fit(ROWS.X, ROWS.y), tmp_path / "p.dada")
    assert load_model(tmp_path / "p.dada").memory is None


@pytest.mark.parametrize(
    ("step", "named"),
    [
        (FunctionTransformer(lambda X: 2 * X), "functiontransformer.*<lambda>"),
        (Doubler(), "doubler.*Doubler"),
        (FeatureUnion([("mine", Doubler())]), "featureunion.*Doubler"),
    ],
)
def test_a_step_that_could_not_be_read_again_is_named_and_nothing_is_written(step, named, tmp_path):
    pipeline = with_routing(StandardScaler(), step)
    with pytest.raises(TypeError, match=named):
        save_model(pipeline, tmp_path / "p.dada")
    assert list(tmp_path.iterdir()) == []


def test_imputers_are_stored(tmp_path):
    X = np.where(np.random.default_rng(0).random(ROWS.X.shape) < 0.1, np.nan, ROWS.X)
    frame = pd.DataFrame(X).rename(columns=str).assign(word=np.where(ROWS.X[:, 0] > 0, "yes", "?"))
    numbers = SimpleImputer(strategy="median", add_indicator=True)
    words = make_pipeline(SimpleImputer(strategy="most_frequent", missing_values="?"), OneHotEncoder())
    steps = ColumnTransformer(
        [("numbers", numbers, [*frame.columns[:-1]]), ("words", words, ["word"])], sparse_threshold=0
    )
    with sklearn.config_context(enable_metadata_routing=True):
        pipeline = make_pipeline(steps, DadaClassifier(**SHORT)).fit(frame, ROWS.y, users=ROWS.users)
        save_model(pipeline, tmp_path / "p.dada")
        again = load_model(tmp_path / "p.dada")
        assert_array_equal(again.predict(frame, users=ROWS.users), pipeline.predict(frame, users=ROWS.users))


def test_an_unfitted_step_is_refused(tmp_path):
    pipeline = Pipeline([("scaler", StandardScaler()), ("model", with_routing()[-1])])
    with pytest.raises(NotFittedError, match="StandardScaler"):
        save_model(pipeline, tmp_path / "p.dada")


def test_only_pipelines_that_end_in_our_models_are_taken(tmp_path):
    pipeline = make_pipeline(StandardScaler(), LogisticRegression()).fit(ROWS.X, ROWS.y)
    with pytest.raises(TypeError, match="pipeline that ends in one, got a Pipeline"):
        save_model(pipeline, tmp_path / "p.dada")
    wrapped = CalibratedClassifierCV(DadaClassifier(**SHORT), cv=2).fit(ROWS.X, ROWS.y)
    with pytest.raises(TypeError, match="got a CalibratedClassifierCV"):
        save_model(wrapped, tmp_path / "p.dada")


@pytest.mark.parametrize("step", [FunctionTransformer(lambda X: 2 * X), Doubler()])
def test_a_file_with_a_type_that_is_not_trusted_is_refused_by_name(step, path):
    steps = Pipeline([("step", step.fit(ROWS.X)), ("model", "passthrough")])
    with_steps(path, skops.io.dumps(steps))
    named = {"FunctionTransformer": "<lambda>", "Doubler": "Doubler"}
    with pytest.raises(ModelFileError, match=rf"people.dada: .* hold '.*{named[type(step).__name__]}'"):
        load_model(path)


def test_a_function_of_python_is_refused_and_not_called(path):
    def call(schema):
        attributes = schema["content"]["content"]
        attributes["verbose"] = {"__class__": "system", "__module__": "os", "__loader__": "FunctionNode", "__id__": 99}

    with_steps(path, with_schema(members(path)["transformers.skops"], call))
    with pytest.raises(ModelFileError, match=r"os\.system"):
        load_model(path)


@pytest.mark.parametrize("data", [b"", b"not a zip", b"PK\x05\x06" + bytes(18)])
def test_foreign_bytes_are_refused(data, path):
    with_steps(path, data)
    with pytest.raises(ModelFileError, match=r"people.dada: the steps before the model are damaged"):
        load_model(path)


def test_every_cut_is_noticed(path):
    data = members(path)["transformers.skops"]
    for end in range(0, len(data), max(1, len(data) // 40)):
        with pytest.raises(ValueError, match="damaged"):
            transformers.from_bytes(data[:end], None)


def test_changed_bytes_are_noticed(path):
    content = path.read_bytes()
    at = content.index(b"standardscaler")
    path.write_bytes(content[:at] + b"S" + content[at + 1 :])
    with pytest.raises(ModelFileError, match=r"people.dada: .*damaged"):
        load_model(path)


@pytest.mark.parametrize("attributes", [["steps"], ["steps", "verbose", "transform_input"]])
def test_missing_attributes_are_noticed(attributes, path):
    def forget(schema):
        for name in attributes:
            del schema["content"]["content"][name]

    with_steps(path, with_schema(members(path)["transformers.skops"], forget))
    with pytest.raises(ModelFileError, match="damaged"):
        load_model(path)


def test_other_objects_are_no_steps(path):
    with_steps(path, skops.io.dumps(StandardScaler().fit(ROWS.X)))
    with pytest.raises(ModelFileError, match="the steps before the model"):
        load_model(path)
    with_steps(path, skops.io.dumps(Pipeline([("model", LogisticRegression())])))
    with pytest.raises(ModelFileError, match="no pipeline of transformers"):
        load_model(path)


def test_compressed_steps_are_refused(path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("schema.json", " " * 10_000)
    with_steps(path, buffer.getvalue())
    with pytest.raises(ModelFileError, match="compressed"):
        load_model(path)


def test_a_random_state_out_of_range_is_refused(path):
    topics = LatentDirichletAllocation(2, random_state=0).fit(np.abs(ROWS.X))
    steps = skops.io.dumps(Pipeline([("topics", topics), ("model", "passthrough")]))

    def spoil(schema):
        text = json.dumps(schema)
        at = text.index('"pos"')
        start = text.index('"content": "', at) + len('"content": "')
        found = json.loads(text[:start] + "999999" + text[text.index('"', start) :])
        schema.clear()
        schema.update(found)

    with_steps(path, steps)
    load_model(path)
    with_steps(path, with_schema(steps, spoil))
    with pytest.raises(ModelFileError, match="random state out of range"):
        load_model(path)


def test_a_sparse_matrix_is_refused_by_whatever_name(path):
    pipeline = load_model(path)
    pipeline.steps[-1] = ("model", "passthrough")
    pipeline.extra = sparse.csr_array(np.eye(3))
    steps = skops.io.dumps(pipeline)
    with_steps(path, steps)
    with pytest.raises(ModelFileError, match="csr_array"):
        load_model(path)

    def rename(schema):
        schema["content"]["content"]["extra"] |= {"__module__": "scipy.sparse._matrix", "__class__": "spmatrix"}

    with_steps(path, with_schema(steps, rename))
    assert skops.io.get_untrusted_types(data=members(path)["transformers.skops"]) == []
    with pytest.raises(ModelFileError, match="spmatrix"):
        load_model(path)


def test_two_states_of_one_object_are_refused(path):
    def claim(schema):
        attributes = schema["content"]["content"]
        attributes["extra"]["__id__"] = attributes["other"]["__id__"] = 7

    pipeline = load_model(path)
    pipeline.steps[-1] = ("model", "passthrough")
    pipeline.extra, pipeline.other = np.zeros(2), np.zeros(2)
    with_steps(path, with_schema(skops.io.dumps(pipeline), claim))
    load_model(path)
    pipeline.other = np.ones(2)
    with_steps(path, with_schema(skops.io.dumps(pipeline), claim))
    with pytest.raises(ModelFileError, match="two states of one object"):
        load_model(path)


def test_missing_numbers_may_be_left_to_the_model(tmp_path):
    X = pl.DataFrame({"x": ROWS.X[:, 0], "person": ROWS.users.tolist()})
    X = X.with_columns(x=pl.when(pl.int_range(pl.len()) % 5 > 0).then("x"))
    before = ColumnTransformer([("n", StandardScaler(), ["x"]), ("u", "passthrough", ["person"])])
    model = DadaClassifier(user_column="u__person", **SHORT)
    pipeline = make_pipeline(before.set_output(transform="polars"), model).fit(X, ROWS.y)
    save_model(pipeline, tmp_path / "p.dada")
    assert_array_equal(load_model(tmp_path / "p.dada").predict_proba(X), pipeline.predict_proba(X))


def test_without_skops_the_install_command_is_named(path, monkeypatch, tmp_path):
    pipeline = load_model(path)
    monkeypatch.setitem(sys.modules, "skops.io", None)
    with pytest.raises(ImportError, match=r'pip install "dada-learn\[pipelines\]"'):
        save_model(pipeline, tmp_path / "p.dada")
    with pytest.raises(ImportError, match=r'pip install "dada-learn\[pipelines\]"'):
        load_model(path)
    save_model(pipeline[-1], tmp_path / "model.dada")
    assert load_model(tmp_path / "model.dada").n_users_ == 4
