"""Any kernel, launched once: a reader's own, with arrays and numbers of their own."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import ArgumentError
from ..machine import backend as backends
from ..machine.arguments import kernel_of
from ..tables import Table
from ..text import source as sources
from ..text.edits import current


@dataclass
class Launched:
    """What a launch left: ``arrays``, by parameter, as NumPy arrays; and a report to look at.

    ``launched["y"]`` and ``launched[1]`` are the array of a parameter, by its name or place.
    """

    arrays: dict  # {parameter: array, or None where it is a number}
    report: Table

    def __getitem__(self, key):
        name = list(self.arrays)[key] if isinstance(key, int) else key
        if self.arrays.get(name) is None:
            names = ", ".join(n for n, array in self.arrays.items() if array is not None)
            raise ArgumentError(f"no array is called {name!r}; the arrays are: {names}")
        return self.arrays[name]

    def __repr__(self):
        return self.report.text()

    def _repr_html_(self):
        return self.report._repr_html_()


def run(source, kernel, grid, block, *args, shared=0, on=None):
    """Launch one kernel and return what it left: a Launched.

    source: CUDA text, the path of a .cu file, or the name of a source of the lesson ('online').
    kernel: its name. grid, block: a number, or 1 to 3 of them. args: NumPy arrays, numbers and None
    (a null pointer), in the order that the kernel declares. The arrays stay as they are: the
    kernel gets copies. An array that is NaN everywhere counts as an output without a value yet.
    shared: bytes of dynamic shared memory. on: 'live', 'emulated', or None for the best there is.

    Emulated, every address, race, barrier and value is checked. With neither a GPU nor a C++
    compiler nothing runs, and the report says so. Raises CompileError, ArgumentError,
    LaunchError and what belongs to it, with the line at fault.
    """
    chosen = backends.choose(on)
    if chosen is None:  # no error: a chapter goes on without
        nothing = Table(f"Launch of {kernel}", ["what"], footer="nothing ran: "
                        f"{backends.probe().reason}; there is no C++ compiler either")
        return Launched({}, nothing)
    program = chosen.compile(_source(source))
    declared = kernel_of(program, kernel, args)
    grid, block = _sizes("grid", grid), _sizes("block", block)
    put, given = {}, []
    for param, value in zip(declared.params, args, strict=True):
        if not param.pointer or value is None:
            given.append(value)
            continue
        if not isinstance(value, np.ndarray):
            raise ArgumentError(f"{kernel}: {param.name} is a {type(value).__name__}, and the "
                                f"kernel declares {param.type}: pass a NumPy array")
        if id(value) not in put:  # the same array twice is one array on the device too
            put[id(value)] = _put(chosen, value)
        given.append(put[id(value)])
    counts = program.launch(kernel, grid, block, tuple(given), shared)
    arrays = {param.name: chosen.get(value) if param.pointer and value is not None else None
              for param, value in zip(declared.params, given, strict=True)}
    return Launched(arrays, _report(chosen, declared, grid, block, shared, counts, arrays))


def _source(source):
    if isinstance(source, sources.Source):
        return source
    text = str(source)
    if isinstance(source, str) and ("__global__" in text or "\n" in text):
        return sources.from_text(text)
    if text in sources.names():
        return current(text)
    return sources.from_file(Path(text))


def _sizes(what, sizes):
    sizes = tuple(sizes) if isinstance(sizes, (tuple, list)) else (sizes,)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(n, (int, np.integer)) for n in sizes):
        raise ArgumentError(f"{what} is {sizes}, needs 1 to 3 whole numbers")
    return tuple(int(n) for n in sizes)


def _put(backend, array):
    floating = array.dtype.kind == "f" and array.size
    if floating and np.isnan(array).all():
        return backend.full(array.shape, np.nan, array.dtype)
    return backend.put(np.ascontiguousarray(array))


def _report(backend, kernel, grid, block, shared, counts, arrays):
    table = Table(f"Launch of {kernel.name}", ["what", "how"], note=backend.describe())
    table.add(backend.mark, "grid and block", f"{_times(grid)} blocks of {_times(block)} threads"
              + (f", {shared:,} bytes of dynamic shared memory" if shared else ""))
    if counts is None:
        table.add(backend.mark, "checked", "nothing: a GPU looks for no race and few wrong "
                  "addresses; run(..., on='emulated') does")
    else:
        orders = ", ".join(backend.orders)
        table.add(backend.mark, "checked", "addresses, races, barriers and values never written; "
                  f"the same result with threads {orders}")
        table.add(backend.mark, "loads", f"{counts.loads_bytes:,} bytes of global memory")
        table.add(backend.mark, "stores", f"{counts.stores_bytes:,} bytes of global memory")
        table.footer = " ".join(counts.notes)
    for param in kernel.params:
        array = arrays[param.name]
        if array is not None and not param.read_only:
            table.add(backend.mark, param.name, _shown(array))
    return table


def _times(sizes):
    return " x ".join(map(str, sizes))


def _shown(array, most=4):
    """'float32 (256,): 0, 1, 2, 3, ...'."""
    numbers = ", ".join(f"{x:.6g}" for x in array.reshape(-1)[:most].tolist())
    return (f"{array.dtype} {array.shape}: {numbers}"
            + (", ..." if array.size > most else ""))
