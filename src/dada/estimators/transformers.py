"""The fitted steps of a pipeline before its model, as bytes without pickle.

The bytes are those of skops, in an order that depends on the steps only. Reading accepts the types that skops trusts
by default, and of these only Python's, NumPy's, SciPy's and scikit-learn's; and data types, which imputers keep.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from dada.data.population import shorten
from dada.modelfile import stored_members, zip_bytes

PACKAGES = ("builtins", "collections", "numpy", "scipy", "sklearn")
# Types that skops does not trust by default, and that do nothing when they are read.
TRUSTED = ("numpy.dtype",)
PASSES = (None, "passthrough")
SCHEMA = "schema.json"
# States of these are numbers and text: whether two of them are one object does not matter.
_PLAIN = ("JsonNode", "BytesNode")
# Positions in the state of NumPy's Mersenne twister.
_TWISTER = 624


def to_bytes(pipeline: Pipeline) -> bytes:
    """The steps before the model; `TypeError` names a step that could not be read again."""
    skops = _skops()
    for name, step in pipeline.steps[:-1]:
        if step not in PASSES:
            check_is_fitted(step)
            _refuse_unreadable(skops, name, step)
    # Where intermediate fits are cached is no part of the model.
    settings = {"verbose": pipeline.verbose, "transform_input": pipeline.transform_input}
    steps = [*pipeline.steps[:-1], (pipeline.steps[-1][0], "passthrough")]
    return _in_order(skops.dumps(Pipeline(steps, **settings)))


def from_bytes(data: bytes, model: Any) -> Pipeline:
    """The pipeline of stored steps and a model; `ValueError` says what is wrong with the bytes."""
    skops = _skops()
    try:
        unknown = _unknown_types(skops, data)
    # Damaged and crafted bytes may raise anything.
    except Exception as error:
        raise ValueError(f"the steps before the model are damaged ({error!r})") from error
    if unknown:
        raise ValueError(f"the steps before the model hold {_refused(unknown)}")
    try:
        pipeline = skops.loads(data, trusted=[*TRUSTED])
        is_sound = type(pipeline) is Pipeline and all(_is_step(step) for _, step in pipeline.steps)
        name, placeholder = pipeline.steps[-1]
    except Exception as error:
        raise ValueError(f"the steps before the model are damaged ({error!r})") from error
    if not is_sound or placeholder != "passthrough":
        raise ValueError("the steps before the model are no pipeline of transformers")
    pipeline.steps[-1] = (name, model)
    pipeline.memory = None
    return pipeline


def _skops() -> Any:
    """Import skops, or raise with install instructions."""
    try:
        import skops.io
    except ImportError as error:
        raise ImportError('a pipeline in a model file needs skops: pip install "dada-learn[pipelines]"') from error
    return skops.io


def _refuse_unreadable(skops: Any, name: str, step: Any) -> None:
    cannot = f"step {name!r} of the pipeline, a {type(step).__name__}, cannot be written to a model file"
    try:
        data = _in_order(skops.dumps(step))
        unknown = _unknown_types(skops, data)
        is_same = not unknown and _in_order(skops.dumps(skops.loads(data, trusted=[*TRUSTED]))) == data
    # Whatever an object does while it is written or read, it is not written.
    except Exception as error:
        raise TypeError(f"{cannot}: {error}") from error
    if unknown:
        raise TypeError(f"{cannot}: it holds {_refused(unknown)}. Leave it out, or transform the rows beforehand")
    if not is_same:
        raise TypeError(f"{cannot}: it would change")


def _refused(names: list[str]) -> str:
    return f"{shorten(names)}, which is not among the plain types of scikit-learn, NumPy and SciPy that skops trusts"


def _is_step(step: Any) -> bool:
    return step in PASSES or hasattr(step, "transform")


def _unknown_types(skops: Any, data: bytes) -> list[str]:
    """Types that are not trusted; checks what skops leaves open, because compiled code does not check bounds."""
    members = stored_members(data)
    shared: dict[Any, Any] = {}
    foreign = set()
    for state in _states(json.loads(members[SCHEMA])):
        kind = state["__loader__"]
        # One object has one state: of two with the same identity, skops would read the first only.
        if state.get("__id__") is not None:
            content = _content(state, members)
            if shared.setdefault(state["__id__"], content) != content:
                raise ValueError("two states of one object")
        if kind == "RandomStateNode":
            position = json.loads(state["content"]["content"]["state"]["content"]["pos"]["content"])
            if type(position) is not int or not 0 <= position <= _TWISTER:
                raise ValueError("a random state out of range")
        is_foreign = kind not in _PLAIN and state["__module__"].partition(".")[0] not in PACKAGES
        # The positions in a sparse matrix are not checked when it is read.
        if is_foreign or kind == "SparseMatrixNode":
            foreign.add(f"{state['__module__']}.{state['__class__']}")
    return sorted(foreign.union(skops.get_untrusted_types(data=data)).difference(TRUSTED))


def _content(node: Any, members: dict[str, bytes]) -> Any:
    """What a state says, whatever its objects and files are called."""
    if isinstance(node, list):
        return [_content(child, members) for child in node]
    if not isinstance(node, dict):
        return node
    content = {name: _content(child, members) for name, child in node.items() if name != "__id__"}
    return content | {"file": members[node["file"]]} if isinstance(node.get("file"), str) else content


def _states(node: Any) -> Iterator[dict[str, Any]]:
    """States of objects, an object before its parts."""
    if isinstance(node, dict):
        if isinstance(node.get("__loader__"), str):
            yield node
        for child in node.values():
            yield from _states(child)
    elif isinstance(node, list):
        for child in node:
            yield from _states(child)


def _in_order(data: bytes) -> bytes:
    """The same bytes for the same steps: skops names objects by their places in memory."""
    members = stored_members(data)
    schema = json.loads(members[SCHEMA])
    times = Counter(state.get("__id__") for state in _states(schema) if state["__loader__"] not in _PLAIN)
    numbers: dict[Any, int] = {}
    files: dict[str, str] = {}
    for state in _states(schema):
        identity = state.pop("__id__", None)
        if times[identity] > 1 and state["__loader__"] not in _PLAIN:
            state["__id__"] = numbers.setdefault(identity, len(numbers) + 1)
        if "file" in state:
            name = state["file"]
            state["file"] = files.setdefault(name, f"{len(files)}{PurePosixPath(name).suffix}")
    arrays = {new: members[old] for old, new in files.items()}
    return zip_bytes({SCHEMA: json.dumps(schema, indent=1).encode(), **arrays})
