"""Compiles the kernels that a peer calls into a shared library, so that a peer's process needs no compiler.

Which kernels with which arguments is found out by a rehearsal: a few peers learn together for a moment, under every
rule, and each call they make is noted. Every noted kernel is then wrapped in a C function, compiled by Numba, and
linked by the system's linker. Where there is no linker, a peer compiles when needed, at the price of some 100 MB.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from platformdirs import user_cache_path

from dada.core import linked
from dada.core.compiled import Array
from dada.peer.config import PeerConfig
from dada.peer.inputs import GraphStep, ModelStep, Received, ResetModel, Send
from dada.peer.member import Member, Planner, Rhythm
from dada.peer.peer import Peer
from dada.peer.sampling import PeerSampling

Call = tuple[Callable[..., Any], tuple[Any, ...]]

LINKERS = (("cc", "-shared"), ("gcc", "-shared"), ("clang", "-shared"), ("ld", "-shared"))
CONFIGS: tuple[dict[str, Any], ...] = (
    {"vet": True},
    {"step": "local", "graph_step": "lipschitz"},
    {"step": "line-search", "graph_loss": "logistic"},
    {"graph": "evidence"},
)


def ensure_library(
    margins: Array, folder: Path | None = None, say: Callable[[str], None] = lambda _: None
) -> Path | None:
    """The library for peers with such margins, made if there is none; None where there is no linker.

    Parameters
    ----------
    margins : array of shape (samples, n_predictors)
        A peer's data; only its type and number of columns matter.
    folder : Path, optional
        Where libraries are kept; the user's cache folder where not given.
    say : function of one str
        Told before something that takes long.
    """
    folder = user_cache_path("dada") / "kernels" if folder is None else folder
    path = folder / f"{_stamp()}-{margins.dtype.str[1:]}-{'wide' if margins.shape[1] >= 2**15 else 'narrow'}.so"
    if linked.list_of(path).exists() and path.exists():
        return path
    linker = next((linker for linker in LINKERS if shutil.which(linker[0])), None)
    if linker is None or sys.platform != "linux":
        return None
    say("Compiling for this machine; this takes some 10 to 30 seconds, and happens once.")
    folder.mkdir(parents=True, exist_ok=True)
    build(rehearse(margins.dtype, margins.shape[1]), path, linker)
    return path


def lean_environment(
    margins: Array, folder: Path | None = None, say: Callable[[str], None] = lambda _: None
) -> dict[str, str]:
    """Environment variables that keep the process of a peer with such margins small; `say` hears of a long wait."""
    library = ensure_library(margins, folder, say)
    # A peer multiplies nothing large and allocates little: one thread of NumPy's linear algebra and one arena of the C
    # library's memory are enough, and each more takes memory.
    return {"OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"} | (
        {} if library is None else {linked.VARIABLE: str(library)}
    )


def rehearse(dtype: np.dtype[Any], n_predictors: int) -> dict[str, Call]:
    """Let peers learn for a moment; returns one call for every kernel and types of arguments."""
    calls: dict[str, Call] = {}
    rng = np.random.default_rng(0)
    with _noted(calls):
        for settings in CONFIGS:
            config = PeerConfig(n_predictors, beta=5.0, mu1=1.0, **settings)
            margins = [(2 * rng.integers(0, 2, (3, n_predictors)) - 1).astype(dtype) for _ in range(3)]
            peers = [Peer(bytes([k + 1]), A, config) for k, A in enumerate(margins)]
            members = [Member(one, PeerSampling(one.me, rng), Planner(Rhythm(), rng)) for one in peers]
            play(peers)
            _ = [member.model for member in members]
    return calls


def play(peers: list[Peer]) -> None:
    """Let peers learn together for a moment, on a network without delay."""
    ids = [one.me for one in peers]

    def settle(sender: Peer, effects: list[Any]) -> None:
        queue = deque((sender, effect) for effect in effects)
        while queue:
            author, effect = queue.popleft()
            if isinstance(effect, Send):
                receiver = peers[ids.index(effect.to)]
                queue.extend((receiver, answer) for answer in receiver.handle(Received(0.0, author.me, effect.message)))

    for _ in range(3):
        for one in peers:
            settle(one, one.handle(ModelStep(0.0)))
            settle(one, one.handle(GraphStep(0.0, tuple(other for other in ids if other != one.me))))
    for action in (ResetModel(0.0), ModelStep(0.0), ModelStep(0.0)):
        for one in peers:
            settle(one, one.handle(action))


@contextmanager
def _noted(calls: dict[str, Call]) -> Iterator[None]:
    """Note what the callers call."""
    from numba.core.dispatcher import Dispatcher

    changed = []
    callers = [module for name, module in sys.modules.items() if name.startswith("dada.peer.")]
    for module in callers:
        kernels = {name: value for name, value in vars(module).items() if isinstance(value, Dispatcher)}
        own = [value.py_func for value in kernels.values() if value.py_func.__module__ == module.__name__]
        # A kernel that is called by another one of its module must stay what the compiler understands.
        inner = {name for function in own for name in function.__code__.co_names}
        for name, value in kernels.items():
            if name not in inner:
                changed.append((module, name, value))
                setattr(module, name, _noting(value, calls))
    try:
        yield
    finally:
        for module, name, value in changed:
            setattr(module, name, value)


def _noting(kernel: Any, calls: dict[str, Call]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        types: list[str] = []
        for argument in arguments:
            linked.flatten(argument, [], types)
        calls.setdefault(linked.entry_name(kernel.py_func, types), (kernel, arguments))
        return kernel(*arguments)

    return call


def build(calls: dict[str, Call], path: Path, linker: tuple[str, ...]) -> None:
    """Compile and link one entry per noted call."""
    entries: dict[str, tuple[str, linked.Shape]] = {}
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        assemblies = {}
        for number, (name, (kernel, arguments)) in enumerate(calls.items()):
            symbol = f"kernel_{number}"
            assemblies[symbol], shape = _compiled(kernel, arguments, symbol)
            entries[name] = (symbol, shape)
        assemblies["runtime"] = _runtime(assemblies.values())
        objects = [Path(folder, f"{symbol}.o") for symbol in assemblies]
        for file, assembly in zip(objects, assemblies.values(), strict=True):
            file.write_bytes(_object_code(assembly))
        made = Path(folder, "library.so")
        line = [*linker, "-o", str(made), *(str(one) for one in objects)]
        line += [] if linker[0] == "ld" else ["-lm"]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OSError(f"the linker {linker[0]} failed: {done.stderr.strip()[-500:]}")
        listed = Path(folder, "library.json")
        listed.write_text(json.dumps(entries))
        os.replace(listed, linked.list_of(path))
        os.replace(made, path)


def _compiled(kernel: Any, arguments: tuple[Any, ...], symbol: str) -> tuple[str, linked.Shape]:
    """A C function that calls a kernel, in LLVM's language, and what it returns."""
    from numba import carray, cfunc, types

    names: dict[str, Any] = {"carray": carray, "kernel": kernel}
    parameters: list[Any] = []
    passed = ", ".join([_expression(argument, parameters, names) for argument in arguments])
    shape = _shape(kernel.overloads[tuple(kernel.typeof_pyval(one) for one in arguments)].signature.return_type)
    listed = "".join(f"a{position}, " for position in range(len(parameters)))
    lines = [f"def entry({listed}out):", f"    result = kernel({passed})", "    numbers = carray(out, 16)"]
    lines += [f"    numbers[{position}] = {place}" for position, place in enumerate(_places(shape, "result"))]
    exec("\n".join(lines), names)
    wrapped = cfunc(types.void(*parameters, types.CPointer(types.float64)))(names["entry"])
    return wrapped.inspect_llvm().replace(wrapped.native_name, symbol), shape


def _expression(argument: Any, parameters: list[Any], names: dict[str, Any]) -> str:
    """An argument in terms of the parameters of the C function, which are added to the list."""
    from numba import from_dtype, types

    first = len(parameters)
    if isinstance(argument, np.ndarray):
        parameters += [types.CPointer(from_dtype(argument.dtype)), *[types.int64] * argument.ndim]
        sizes = "".join(f"a{first + 1 + axis}, " for axis in range(argument.ndim))
        return f"carray(a{first}, ({sizes}))"
    if isinstance(argument, tuple):
        kind = type(argument)
        if kind is not tuple:
            names[kind.__name__] = kind
        parts = "".join([_expression(part, parameters, names) + ", " for part in argument])
        return f"({parts})" if kind is tuple else f"{kind.__name__}({parts})"
    parameters.append(types.float64 if isinstance(argument, float) else types.int64)
    return f"bool(a{first})" if isinstance(argument, bool | np.bool_) else f"a{first}"


def _shape(kind: Any) -> linked.Shape:
    """What a type of Numba is, as the list of a library says it."""
    from numba import types

    if isinstance(kind, types.NoneType):
        return None
    if isinstance(kind, types.BaseTuple):
        name = kind.instance_class.__name__ if isinstance(kind, types.BaseNamedTuple) else "tuple"
        return [name, [_shape(part) for part in kind.types]]
    return "b" if isinstance(kind, types.Boolean) else "i" if isinstance(kind, types.Integer) else "f"


def _places(shape: linked.Shape, place: str) -> Iterator[str]:
    if isinstance(shape, str):
        yield place
    elif shape is not None:
        for position, part in enumerate(shape[1]):
            yield from _places(part, f"{place}[{position}]")


def _runtime(assemblies: Iterable[str]) -> str:
    """Stand-ins for the functions of Numba's runtime, which free arrays of Numba's own and build exceptions.

    Kernels do neither, so nothing calls these; but a library that names them must have them.
    """
    wanted = {name for text in assemblies for name in re.findall(r"^declare [^@]*@(NRT_\w+|numba_\w+)", text, re.M)}
    stubs = [f"define void @{name}() {{\n call void @abort()\n unreachable\n}}" for name in sorted(wanted)]
    return "\n".join(["declare void @abort()", *stubs])


def _object_code(assembly: str) -> bytes:
    """Machine code that may be loaded anywhere, for this machine's processor as Numba sees it."""
    from llvmlite import binding
    from numba.core.registry import cpu_target

    codegen = cpu_target.target_context.codegen()
    target = binding.Target.from_triple(binding.get_process_triple())
    machine = target.create_target_machine(
        cpu=codegen._get_host_cpu_name(),
        features=codegen._get_host_cpu_features(),
        opt=3,
        reloc="pic",
        codemodel="small",
    )
    return bytes(machine.emit_object(binding.parse_assembly(assembly)))


def _stamp() -> str:
    """Names what a library depends on: the sources of the kernels, the compiler and the processor."""
    import llvmlite
    import numba
    from numba.core.registry import cpu_target

    digest = hashlib.sha256()
    codegen = cpu_target.target_context.codegen()
    about = (numba.__version__, llvmlite.__version__, sys.version, codegen._get_host_cpu_name())
    digest.update(repr((about, codegen._get_host_cpu_features())).encode())
    package = Path(linked.__file__).parents[1]
    for source in (*sorted(package.glob("core/*.py")), *sorted(package.glob("peer/*.py")), Path(__file__)):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
