"""Model files: nothing damaged, foreign or crafted is believed."""

import hashlib
import io
import json
import os
import pickle
import zipfile

import numpy as np
import pytest

from dada import (
    ModelFileError,
    load_model,
    modelfile,
)
from tests.helpers.models import ROWS


def rewritten(path, change_manifest=None, members=None, drop=(), compression=zipfile.ZIP_STORED):
    """Write the archive again with some members changed; the checksums stay as they are unless changed too."""
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist() if name not in drop}
    if change_manifest is not None:
        manifest = json.loads(content["manifest.json"])
        change_manifest(manifest)
        content["manifest.json"] = json.dumps(manifest).encode()
    content.update(members or {})
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in content.items():
            archive.writestr(name, data)


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(array), allow_pickle=True)
    return buffer.getvalue()


def with_checksum(path, name, data):
    """Put in another member together with its right checksum, as an attacker would."""

    def change(manifest):
        manifest["members"][name] = hashlib.sha256(data).hexdigest()

    rewritten(path, change, {name: data})


def test_a_file_without_a_note_is_read(path):
    rewritten(path, lambda manifest: manifest.pop("note"))
    assert modelfile.read(path).note == {}


def test_a_newer_version_is_named(path):
    rewritten(path, lambda manifest: manifest.update(version=5, library="dada-learn 9.1"))
    with pytest.raises(ModelFileError, match=r"people.dada: .*version 5, written by dada-learn 9.1; .*up to 4"):
        load_model(path)


@pytest.mark.parametrize("version", [0, "1", None])
def test_a_version_that_never_was(version, path):
    rewritten(path, lambda manifest: manifest.update(version=version))
    with pytest.raises(ModelFileError, match="version of a model file must be an integer >= 1"):
        load_model(path)


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 and more", pickle.dumps([1])])
def test_something_else(content, path):
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"people.dada: not a model file, or damaged"):
        load_model(path)


def test_a_foreign_zip(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("word/document.xml", "<xml/>")
    with pytest.raises(ModelFileError, match=r"not a model file: it has no manifest\.json"):
        load_model(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", '{"name": "an extension of a browser"}')
    with pytest.raises(ModelFileError, match="does not state format 'dada-model'"):
        load_model(path)


def test_a_file_cut_short_anywhere(path):
    content = path.read_bytes()
    for length in range(0, len(content), 997):
        path.write_bytes(content[:length])
        with pytest.raises(ModelFileError):
            load_model(path)


def test_a_flipped_byte_anywhere_is_noticed_or_harmless(path, model):
    content = path.read_bytes()
    expected = model.decision_function(ROWS.X, users=ROWS.users)
    refused = 0
    for position in range(0, len(content), 211):
        damaged = bytearray(content)
        damaged[position] ^= 0x55
        path.write_bytes(damaged)
        try:
            loaded = load_model(path)
        except ModelFileError:
            refused += 1
        else:
            np.testing.assert_array_equal(loaded.decision_function(ROWS.X, users=ROWS.users), expected)
    assert refused > 50


def test_a_missing_member(path):
    rewritten(path, drop=["models/data.npy"])
    with pytest.raises(ModelFileError, match=r"damaged: it lacks models/data.npy"):
        load_model(path)


def test_a_wrong_checksum(path):
    rewritten(path, members={"users.npy": npy(["eve", "bob", "cid", "dan"])})
    with pytest.raises(ModelFileError, match=r"the checksum of users.npy does not fit"):
        load_model(path)


def test_a_compressed_member_is_refused(path):
    rewritten(path, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(ModelFileError, match="compressed"):
        load_model(path)


class Bomb:
    def __reduce__(self):
        return os._exit, (1,)


CRAFTED = {
    "a pickle": ("users.npy", np.array([Bomb()] * 4, object), "not a plain array"),
    "one user twice": ("users.npy", ["ann", "ann", "cid", "dan"], "4 different users"),
    "fewer users": ("users.npy", ["ann", "bob"], "4 different users"),
    "one class": ("classes.npy", [1, 1], "two classes"),
    "no confidence": ("confidence.npy", [0.0, 1, 1, 1], "confidences > 0"),
    "an index out of reach": ("models/indices.npy", None, "is inconsistent"),
    "a model that is not finite": ("models/data.npy", None, "finite models/data"),
    "a neighbour out of reach": ("graph/indices.npy", None, "is inconsistent"),
    "a negative weight": ("graph/weights.npy", None, "positive weights"),
    "an asymmetric graph": ("graph/weights.npy", None, "a symmetric graph"),
    "a stump of another feature": ("predictors/0.feature.npy", None, "is inconsistent"),
    "a short trace": ("trace/gap.npy", [1.0], "is inconsistent"),
}


@pytest.mark.parametrize("case", CRAFTED)
def test_crafted_content_is_refused(case, path):
    name, array, message = CRAFTED[case]
    if array is None:
        with zipfile.ZipFile(path) as archive:
            array = np.load(io.BytesIO(archive.read(name)))
        array[0] = {"models/data.npy": np.nan, "graph/weights.npy": array[0] + 1}.get(name, 10**6)
        array[0] = -1 if case == "a negative weight" else array[0]
    with_checksum(path, name, npy(array))
    with pytest.raises(ModelFileError, match=message):
        load_model(path)


def test_a_header_that_promises_too_much(path):
    data = npy(np.zeros(4)).replace(b"(4,)", b"(9999999999,)").replace(b" " * 9 + b"\n", b"\n")
    with_checksum(path, "confidence.npy", data)
    with pytest.raises(ModelFileError, match=r"confidence\.npy is not a plain array of the stated size"):
        load_model(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.pop("n_users"), "is inconsistent"),
        (lambda m: m.update(n_users=5), "5 different users"),
        (lambda m: m.update(n_predictors=3), "base predictors where 3 are announced"),
        (lambda m: m.update(status="HAPPY"), "is inconsistent"),
        (lambda m: m.update(feature_names=["a", "b"]), "as many feature names as features"),
        (lambda m: m.update(members=None), "is inconsistent"),
        (lambda m: m["predictors"].update(kind="forest"), "got 'forest'"),
        (lambda m: m["settings"].update(temperature=3), "settings of the model file make no sense"),
        (lambda m: m["settings"].update(predictors={"kind": "Forest"}), "settings of the model file make no sense"),
        (lambda m: m.update(settings=[1]), "is inconsistent"),
    ],
)
def test_a_manifest_that_makes_no_sense(change, message, path):
    rewritten(path, change)
    with pytest.raises(ModelFileError, match=message):
        load_model(path)
