"""Write a fitted estimator to a model file, and read it back."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from dada import __version__, modelfile
from dada.core.graph import CollaborationGraph
from dada.core.graph_steps import DegreeFunction, DegreeTarget, LogDegree
from dada.core.losses import Loss, Reliability
from dada.data import BoostedTrees, Constant, Linear, RandomFourier, Stumps, Trees, Union
from dada.data.encoding import TableEncoder
from dada.data.predictors.families import REGISTERED_RECIPES
from dada.estimators.classifier import DadaClassifier, DadaRegressor
from dada.estimators.transformers import from_bytes, to_bytes
from dada.fitting.calibration import Calibration
from dada.modelfile import StoredModel
from dada.privacy.accounting import Privacy

# Name, among the stored settings, of the values used for "auto".
USED = "used"
# Fields of a stored model, and the attributes of an estimator that hold the same.
ATTRIBUTES = {
    **{name: f"{name}_" for name in ("predictors", "models", "confidence", "graph", "trace", "ledger", "status")},
    **{"user_ids": "users_", "n_updates": "n_iter_"},
}
# Files of fits without these parameters are the same as before there were any.
LATER_PARAMETERS = {"privacy": None, "user_column": None, "encode": "auto"}
_STORED = (BoostedTrees, Constant, DegreeTarget, Linear, LogDegree, Privacy, RandomFourier, Stumps, Trees)
_KINDS = {kind.__name__: kind for kind in _STORED}


def save_model(
    model: DadaClassifier | DadaRegressor | Pipeline,
    path: str | os.PathLike[str],
    *,
    note: dict[str, str] | None = None,
) -> None:
    """Write a fitted estimator, or a pipeline that ends in one, to a model file, without pickle.

    Parameters
    ----------
    model : DadaClassifier, DadaRegressor or Pipeline
        Fitted. Its predictions after `load_model` are the same, bit for bit. A scikit-learn pipeline whose last step is
        such an estimator needs the extra `pipelines`.
    path : path
        Where to write; an existing file is replaced once the new one is complete.
    note : dict of str to str, optional
        Text to keep in the file, such as names of columns.

    Notes
    -----
    Functions are not stored. Of a custom loss or degree function the file holds the name: the loaded classifier
    predicts, but needs the function again, by ``set_params``, before another fit. Of a graph rule it holds the graph.
    Base predictors of your own are stored after `dada.data.register_predictors`. Nor is the state of a random
    generator stored: `random_state` is kept only if it is an integer.

    Of a pipeline, the steps before the last may hold types of scikit-learn, NumPy and SciPy that skops trusts by
    default. Others, such as functions and transformers of your own, are refused before anything is written. The
    `memory` of a pipeline is not stored.

    Examples
    --------
    >>> import tempfile
    >>> X, y, users = [[0.0], [1.0], [0.2], [0.9]], ["no", "yes", "no", "yes"], ["ann", "ann", "bob", "bob"]
    >>> model = DadaClassifier(random_state=0).fit(X, y, users=users)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_model(model, f"{folder}/people.dada")
    ...     load_model(f"{folder}/people.dada").predict([[0.1], [0.8]], users=["ann", "bob"])
    array(['no', 'yes'], dtype='<U3')
    """
    transformers = None
    check_is_fitted(model)
    if type(model) is Pipeline and isinstance(model[-1], DadaClassifier | DadaRegressor):
        transformers = to_bytes(model)
        model = model[-1]
    if not isinstance(model, DadaClassifier | DadaRegressor):
        raise TypeError(
            "a model file holds a DadaClassifier or a DadaRegressor, or a pipeline that ends in one, "
            f"got a {type(model).__name__}: for a search, save its best_estimator_"
        )
    is_regression = isinstance(model, DadaRegressor)
    names = model.used_features_
    params = model.get_params(deep=False)
    for name, default in LATER_PARAMETERS.items():
        if params[name] == default:
            del params[name]
    stored = StoredModel(
        library=f"dada-learn {__version__}",
        settings={**{name: _to_json(name, value) for name, value in params.items()}, USED: _used(model)},
        classes=np.empty(0) if is_regression else model.classes_,
        feature_names=None if names is None else tuple(names),
        note=note or {},
        table=_table(model),
        transformers=transformers,
        **_calibration(model),
        target=(model.target_mean_, model.target_scale_) if is_regression else None,
        **{name: getattr(model, attribute) for name, attribute in ATTRIBUTES.items()},
    )
    modelfile.write(stored, path)


def load_model(path: str | os.PathLike[str]) -> DadaClassifier | DadaRegressor | Pipeline:
    """Read a fitted estimator from a model file.

    Parameters
    ----------
    path : path
        A file written by `save_model`.

    Returns
    -------
    DadaClassifier, DadaRegressor or Pipeline
        Fitted, with the hyper-parameters of the one that was saved.

    Raises
    ------
    OSError
        If there is no such file, or it cannot be read.
    ModelFileError
        If it is something else, damaged, cut short or written by a newer version, or if the steps of a pipeline hold
        types that are not trusted.
    ImportError
        If it holds a pipeline, and the extra `pipelines` is not installed.
    """
    return restored(modelfile.read(path), path)


def restored(stored: StoredModel, path: str | os.PathLike[str]) -> DadaClassifier | DadaRegressor | Pipeline:
    """The fitted estimator or pipeline of a stored model; the path is for error messages."""
    try:
        settings = dict(stored.settings)
        used = settings.pop(USED, {})
        params = {name: _from_json(value, stored.graph) for name, value in settings.items()}
        model = _empty(stored, params)
        _restore_columns(model, stored)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise modelfile.ModelFileError(f"{path}: the settings of the model file make no sense ({error!r})") from error
    for name, attribute in ATTRIBUTES.items():
        setattr(model, attribute, getattr(stored, name))
    model.n_users_ = len(stored.user_ids)
    model.settings_ = used
    if stored.transformers is None:
        return model
    try:
        return from_bytes(stored.transformers, model)
    except ValueError as error:
        raise modelfile.ModelFileError(f"{path}: {error}") from error


def _empty(stored: StoredModel, params: dict[str, Any]) -> DadaClassifier | DadaRegressor:
    """The estimator of the stored kind, with its classes or the scale of its targets."""
    if stored.target is None:
        classifier = DadaClassifier(**params)
        classifier.classes_ = stored.classes
        classifier.calibration_ = _restored_calibration(stored)
        return classifier
    regressor = DadaRegressor(**params)
    regressor.target_mean_, regressor.target_scale_ = stored.target
    return regressor


def _calibration(model: DadaClassifier | DadaRegressor) -> dict[str, Any]:
    """Temperatures and reliability as a model file holds them; nothing without calibration."""
    found = getattr(model, "calibration_", None)
    if found is None:
        return {}
    each = {"before": found.before, "after": found.after}
    reliability = {
        name: {item.name: np.asarray(getattr(one, item.name)).tolist() for item in fields(one)}
        for name, one in each.items()
    }
    return {"temperatures": found.temperatures, "calibration": {"common": found.common, **reliability}}


def _restored_calibration(stored: StoredModel) -> Calibration | None:
    if stored.temperatures is None or stored.calibration is None:
        return None
    before, after = (_reliability(stored.calibration[name]) for name in ("before", "after"))
    return Calibration(float(stored.calibration["common"]), stored.temperatures, before, after)


def _reliability(stored: dict[str, Any]) -> Reliability:
    confidence, accuracy, share = (np.array(stored[name], float) for name in ("confidence", "accuracy", "share"))
    return Reliability(confidence, accuracy, share, float(stored["log_loss"]))


def _table(model: DadaClassifier | DadaRegressor) -> dict[str, Any] | None:
    """The columns of X and their encoding, if base predictors do not use just these columns."""
    if model.encoder_ is None and model.user_column is None:
        return None
    names = getattr(model, "feature_names_in_", None)
    return {
        "n_columns": model.n_features_in_,
        "columns": None if names is None else names.tolist(),
        "encoder": None if model.encoder_ is None else model.encoder_.to_json(),
    }


def _restore_columns(model: DadaClassifier | DadaRegressor, stored: StoredModel) -> None:
    table = stored.table or {
        "n_columns": stored.predictors.n_features,
        "columns": stored.feature_names,
        "encoder": None,
    }
    encoder = table["encoder"]
    model.encoder_ = None if encoder is None else TableEncoder.from_json(encoder)
    model.n_features_in_ = int(table["n_columns"])
    if table["columns"] is not None:
        model.feature_names_in_ = np.array(table["columns"], dtype=object)
    if model.encoder_ is not None and model.encoder_.feature_names != stored.feature_names:
        raise ValueError("the encoded columns are not the features of the model")


def _used(model: DadaClassifier | DadaRegressor) -> dict[str, Any]:
    return {name: value for name, value in model.settings_.items() if isinstance(value, str | int | float)}


def _to_json(name: str, value: Any) -> Any:
    """A hyper-parameter as JSON can express it; objects become {"kind": their class, their fields}."""
    if name == "random_state":
        return int(value) if isinstance(value, int | np.integer) else None
    if name == "dtype":
        return np.dtype(value).name
    if name == "graph" and not isinstance(value, str):
        return {"kind": "given"}
    if isinstance(value, Union):
        return {"kind": "Union", "recipes": [_to_json(name, recipe) for recipe in value.recipes]}
    if isinstance(value, Loss):
        return {"kind": "Function", "name": value.name}
    if isinstance(value, DegreeFunction):
        return {"kind": "Function", "name": "DegreeFunction"}
    if type(value) in (*_KINDS.values(), *REGISTERED_RECIPES.values()):
        own = {item.name: _to_json(item.name, getattr(value, item.name)) for item in fields(value)}
        return {"kind": type(value).__name__, **own}
    if isinstance(value, dict):
        return {"kind": "weights", "of": [[_to_json(name, label), float(value[label])] for label in value]}
    if isinstance(value, np.generic):
        return value.item()
    if name in ("ranges", "targets") and value is not None:
        return [np.asarray(side).tolist() for side in value]
    if name == "groups" and value is not None:
        return [[_to_json("user", user), group] for user, group in value]
    if name == "ledger" and value is not None:
        return os.fspath(value)
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(
        f"{name} of type {type(value).__name__} cannot be written to a model file, which holds numbers and text but no "
        "code: use stumps, linear or constant predictors, or name your own with dada.data.register_predictors"
    )


def _from_json(value: Any, graph: CollaborationGraph) -> Any:
    if not isinstance(value, dict):
        return value
    content = dict(value)
    kind = content.pop("kind")
    if kind == "given":
        return graph
    if kind == "weights":
        return dict(content["of"])
    if kind == "Function":
        return content["name"]
    if kind == "Union":
        return Union(*(_from_json(recipe, graph) for recipe in content["recipes"]))
    return (_KINDS | REGISTERED_RECIPES)[kind](**content)
