"""Kernels compiled ahead of time do what kernels compiled when needed do, in a process without a compiler."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

from dada.core import linked
from dada.net import kernels

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not any(shutil.which(linker[0]) for linker in kernels.LINKERS), reason="needs a linker"
)

# Three peers learn together; prints their models as bytes, and whether Numba was needed for it.
SCENE = """
import sys
import numpy as np
from dada.net.kernels import play
from dada.peer.config import PeerConfig
from dada.peer.peer import Peer

rng = np.random.default_rng(1)
config = PeerConfig(40, beta=5.0, mu1=1.0)
peers = [Peer(bytes([k + 1]), (2 * rng.integers(0, 2, (9, 40)) - 1).astype(np.int8), config) for k in range(3)]
for _ in range(5):
    play(peers)
print("numba" in sys.modules, *(peer.own.model.alpha.tobytes().hex() for peer in peers))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return kernels.ensure_library(np.zeros((1, 40), np.int8), tmp_path_factory.mktemp("kernels"))


def play(**environment):
    line = [sys.executable, "-c", SCENE]
    done = subprocess.run(line, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    needed_numba, *models = done.stdout.split()
    return needed_numba == "True", models


def test_peers_without_a_compiler_learn_the_same_bits(library):
    with_numba, expected = play()
    without_numba, models = play(DADA_KERNELS=str(library))
    assert (with_numba, without_numba) == (True, False)
    assert models == expected
    assert any(int(model, 16) for model in models)


def test_the_rehearsal_calls_every_kernel_that_a_peer_may_call():
    calls = kernels.rehearse(np.dtype(np.int8), 10)
    modules = [module for name, module in sys.modules.items() if name.startswith("dada.peer.")]
    known = {value.py_func for module in modules for value in vars(module).values() if isinstance(value, Dispatcher)}
    assert known <= {kernel.py_func for kernel, _ in calls.values()}


def test_a_library_is_made_once(library):
    made = library.stat().st_mtime_ns
    assert kernels.ensure_library(np.ones((5, 40), np.int8), library.parent) == library
    assert library.stat().st_mtime_ns == made


def test_what_was_not_compiled_is_named(library):
    def unknown(x):
        return x

    with pytest.raises(linked.KernelError, match=r"has no .*unknown:f: start without DADA_KERNELS"):
        linked.Library(library).kernel(unknown)(1.0)


def test_the_list_of_entries_is_plain_json(library):
    entries = json.loads(linked.list_of(library).read_text())
    assert all(name.startswith(("dada.core.", "dada.peer.")) for name in entries)


def test_without_a_linker_peers_compile_when_needed(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "LINKERS", (("no-such-linker",),))
    assert kernels.ensure_library(np.zeros((1, 4), np.int8), tmp_path) is None
    assert "DADA_KERNELS" not in kernels.lean_environment(np.zeros((1, 4), np.int8), tmp_path)


@pytest.mark.parametrize("value", [np.zeros((4, 4))[:, ::2], "text", None])
def test_what_kernels_cannot_take_is_refused(value):
    with pytest.raises(linked.KernelError):
        linked.flatten(value, [], [])
