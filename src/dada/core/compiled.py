"""How kernels are compiled, and how they call a custom function.

Kernels take arrays, scalars and tuples of these, because only such arguments let Numba find its compiled code on disk
again in the next process. A custom scalar function therefore enters a kernel as the address of its compiled form.
No fast-math: the same operations in the same order must give the same bits wherever a kernel is inlined.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from llvmlite import ir
from numba import cfunc, njit, types
from numba.extending import intrinsic, register_jitable
from numpy.typing import NDArray

Array = NDArray[Any]
ScalarFunction = Callable[[float], float]


# Identifies this process in the names of the files that it writes.
_PROCESS = uuid.uuid4().hex[:12]


@cache
def source_stamp(module: str) -> tuple[tuple[str, int, int], ...]:
    """Names, times and sizes of the sources on which a module's kernels depend: `core` and the module's own package."""
    folder = Path(__file__).parents[1]
    packages = {"core", module.split(".")[1]} if module.startswith("dada.") else {"core"}
    files = [file for package in sorted(packages) for file in sorted((folder / package).rglob("*.py"))]
    return tuple((str(file.relative_to(folder)), file.stat().st_mtime_ns, file.stat().st_size) for file in files)


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function when it is first called, and keep the compiled code on disk.

    Numba's cache is changed in two ways. Numba compiles a kernel again when its own file has changed, but not when the
    file of a kernel that it calls has: here a change of any file of `core` or of the kernel's own package counts. And
    two processes that compile one kernel for different arguments may write to the same file, so that the index points
    to the wrong code: here each process writes files with unique names.
    """
    return _compiled(function)


def lean_kernel(function: Callable[..., Any]) -> Any:
    """Compile a kernel that neither makes nor returns an array (Numba refuses one that does).

    It leaves out the atomic counting of references to arrays and slices, which in small kernels takes as long as the
    arithmetic.
    """
    return _compiled(function, _nrt=False)


def inlined(function: Callable[..., Any]) -> Any:
    """Inline a function into every kernel that calls it, so that even a lean kernel may call it for an array."""
    return register_jitable(inline="always")(function)


def _compiled(function: Callable[..., Any], **options: Any) -> Any:
    dispatcher = njit(cache=True, nogil=True, error_model="numpy", **options)(function)
    cache_file = dispatcher._cache._cache_file
    cache_file._source_stamp = (cache_file._source_stamp, source_stamp(function.__module__))
    cache_file._data_name_pattern = cache_file._data_name_pattern.replace("{number:d}", f"{{number:d}}-{_PROCESS}")
    return dispatcher


class Addresses(NamedTuple):
    """Addresses of a custom function and its first two derivatives, in compiled form; zero for built-in functions."""

    value: int = 0
    slope: int = 0
    curvature: int = 0


NO_ADDRESSES = Addresses()
# Addresses stay valid only while their compiled functions live, so each is kept once made.
_compiled_functions: dict[ScalarFunction, Any] = {}


def addresses_of(*functions: ScalarFunction) -> Addresses:
    """Compile scalar functions of one float; kernels call them at the addresses."""
    for function in functions:
        if function not in _compiled_functions:
            _compiled_functions[function] = cfunc(types.float64(types.float64), error_model="numpy")(function)
    return Addresses(*(int(_compiled_functions[function].address) for function in functions))


@intrinsic
def call(typing_context: Any, address: Any, x: Any) -> Any:  # pragma: no cover - compiled
    """Call the scalar function compiled at an address."""
    signature = types.float64(types.int64, types.float64)

    def codegen(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        function_type = ir.FunctionType(ir.DoubleType(), [ir.DoubleType()])
        pointer = builder.inttoptr(arguments[0], function_type.as_pointer())
        return builder.call(pointer, [arguments[1]])

    return signature, codegen


@intrinsic
def bits_of(typing_context: Any, x: Any) -> Any:  # pragma: no cover - compiled
    """The bits of a float as an integer of its size; the order of non-negative floats is that of these integers."""
    integer = types.int32 if x == types.float32 else types.int64

    def codegen(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(integer.bitwidth))

    return integer(x), codegen


@intrinsic
def prefetch_cell(typing_context: Any, array: Any, index: Any) -> Any:  # pragma: no cover - compiled
    """Prefetch the memory of array.flat[index]; the array must be C-contiguous if it has several dimensions."""
    signature = types.void(array, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        struct = context.make_array(signature.args[0])(context, builder, arguments[0])
        start = builder.bitcast(struct.data, ir.IntType(8).as_pointer())
        step = builder.extract_value(struct.strides, signature.args[0].ndim - 1)
        pointer = builder.gep(start, [builder.mul(step, arguments[1])])
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), word, word, word])
        function = builder.module.declare_intrinsic("llvm.prefetch", [ir.IntType(8).as_pointer()], kind)
        # Into the second cache, not the first: the processor can await far more lines there.
        builder.call(function, [pointer, word(0), word(2), word(1)])
        return context.get_dummy_value()

    return signature, codegen


@lean_kernel
def prefetch(array: Array, first: int, last: int) -> None:
    """Prefetch the memory of the flat cells first..last-1, a cache line of 64 bytes at a time.

    It changes no value. If users' data exceeds the caches, most of an update would be waiting for memory.
    """
    step = 64 // array.itemsize
    for index in range(first, last, step):
        prefetch_cell(array, index)
