"""Kernels from a shared library, called without Numba and LLVM in the process.

Numba and LLVM take a hundred megabytes, which is much for a peer that wakes once a second. `dada.net.kernels` compiles
the kernels that a peer calls into a library; a process that is started with `DADA_KERNELS` set to its path takes them
from there. They are the same functions, compiled by the same compiler: results are the same to the last bit.

A library comes with a list of its entries. An entry is found by the name of the kernel and the types of its arguments;
tuples and arrays are passed as the plain numbers and pointers in them.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

VARIABLE = "DADA_KERNELS"

# What a kernel returns: nothing, a number ("i", "f" or "b"), or a tuple with the name of its type.
Shape = None | str | list[Any]


class KernelError(TypeError):
    """A call that the library has no compiled form of."""


def flatten(value: Any, numbers: list[Any], types: list[str]) -> None:
    """Append the plain numbers of an argument, and a text that names its type."""
    if isinstance(value, np.ndarray):
        if not value.flags.c_contiguous:
            raise KernelError("kernels take arrays whose elements lie one after the other")
        numbers.append(ctypes.c_void_p(value.__array_interface__["data"][0]))
        numbers.extend(ctypes.c_int64(size) for size in value.shape)
        types.append(f"{value.dtype.str}{value.ndim}")
    elif isinstance(value, tuple):
        types.append(f"{type(value).__name__}(")
        for part in value:
            flatten(part, numbers, types)
        types.append(")")
    elif isinstance(value, bool | np.bool_):
        numbers.append(ctypes.c_int64(int(value)))
        types.append("b")
    elif isinstance(value, int | np.integer):
        numbers.append(ctypes.c_int64(int(value)))
        types.append("i")
    elif isinstance(value, float):
        numbers.append(ctypes.c_double(value))
        types.append("f")
    else:
        raise KernelError(f"kernels take numbers, arrays and tuples of these, got {type(value).__name__}")


def entry_name(function: Callable[..., Any], types: list[str]) -> str:
    """What an entry of a library is called."""
    return f"{function.__module__}.{function.__name__}:{' '.join(types)}"


class Library:
    """A shared library of kernels and the list of its entries."""

    def __init__(self, path: Path) -> None:
        self._code = ctypes.PyDLL(str(path))
        self._entries: dict[str, tuple[str, Shape]] = {
            name: (symbol, shape) for name, (symbol, shape) in json.loads(list_of(path).read_text()).items()
        }

    def kernel(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The compiled form of a function."""
        found: dict[str, tuple[Any, Shape]] = {}
        # Results come back in this; one thread calls kernels.
        results = (ctypes.c_double * 16)()

        def call(*arguments: Any) -> Any:
            numbers: list[Any] = []
            types: list[str] = []
            for argument in arguments:
                flatten(argument, numbers, types)
            key = " ".join(types)
            if key not in found:
                found[key] = self._find(function, types)
            entry, shape = found[key]
            entry(*numbers, results)
            return _rebuilt(shape, iter(results), function)

        call.__name__, call.__doc__ = function.__name__, function.__doc__
        return call

    def _find(self, function: Callable[..., Any], types: list[str]) -> tuple[Any, Shape]:
        name = entry_name(function, types)
        if name not in self._entries:
            raise KernelError(f"the library has no {name}: start without {VARIABLE}, and it is compiled when needed")
        symbol, shape = self._entries[name]
        entry = getattr(self._code, symbol)
        entry.restype = None
        return entry, shape


def list_of(path: Path) -> Path:
    """Where the list of a library's entries lies."""
    return path.with_suffix(".json")


def library_of_process() -> Library | None:
    """The library that this process was told to use, if any."""
    path = os.environ.get(VARIABLE, "")
    return Library(Path(path)) if path else None


def _rebuilt(shape: Shape, numbers: Any, function: Callable[..., Any]) -> Any:
    if shape is None:
        return None
    if isinstance(shape, str):
        kind = {"i": int, "f": float, "b": bool}[shape]
        return kind(next(numbers))
    name, parts = shape
    values = tuple(_rebuilt(part, numbers, function) for part in parts)
    if name == "tuple":
        return values
    return vars(sys.modules[function.__module__])[name](*values)
