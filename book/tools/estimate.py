"""How long a chapter's Run all takes on a T4, from a count of what it runs there. An estimate.

    python -m tools.estimate                   write the table in record-your-gpu.md
    python -m tools.estimate CHAPTER.ipynb     the count of one chapter, as JSON

Nothing is measured: no T4 is here. A chapter's cells run once on a stand-in, which counts what a T4
would be asked for (launches, compilations, references) and answers launches of the lesson's own
kernels with the NumPy models. What each of these costs is stated below, on the slow side.
"""

import argparse
import contextlib
import io
import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from lesson.errors import ArgumentError, LessonError
from lesson.launch import paths
from lesson.machine import backend as backends
from lesson.machine import emulator, gpus, nvrtc
from lesson.machine.arguments import kernel_of, scalar
from lesson.machine.gpu import GpuBackend
from lesson.machine.gpus import H200, T4
from lesson.machine.occupancy import occupancy
from lesson.measure import callers, evidence, long_sequences, records
from lesson.problem import model, reference
from lesson.problem.problem import D
from lesson.show import long_sequences as long_verb
from lesson.show import several_gpus as ranks_verb
from lesson.text import source

from . import notebooks

PAGE = Path(__file__).resolve().parents[1] / "record-your-gpu.md"
BEGIN, END = "<!-- estimate: make estimate -->\n", "<!-- end of the estimate -->\n"

# A T4 against the H200 whose times are recorded, by the datasheets. A kernel is slower by the worse
# of the two ratios, of FP32 rate and of bandwidth.
SLOWER = max(H200.flops / T4.flops, H200.bytes_per_s / T4.bytes_per_s)
COMPILER_SLOWER = 4  # the runtime's processor against the one that compiled for the record
START_S = 30.0  # fetching the lesson, importing CuPy, a CUDA context
REFERENCE_FLOPS = 2e9  # float64, NumPy on two cores: 4 N^2 d operations, and the exponentials
SGEMM_RUNS = 30  # of the ceiling's product: warm-ups, the estimate and the rounds
LONG_N = 1 << 20
EMULATED_S = 3.0  # a launch emulated on the host, which counts requested bytes


class _Array(np.ndarray):
    """Memory of the stand-in: a NumPy array that only put() and full() make."""


class StandIn(GpuBackend):
    """A T4 that counts. Its clock is the estimate; its results are the NumPy models'.

    times_ms: ``{(kernel, n): ms}`` on the T4, as ``kernel_times`` gives them.
    """

    array_name = "an array of the stand-in"

    def __init__(self, times_ms):
        self.times_ms, self.counts, self.clock_ms = times_ms, Counter(), 0.0
        self.arch, self._captured, self._programs = "sm_75", None, {}
        self.inputs = {}  # Q, K and V of the path that is running
        self.cupy = SimpleNamespace(
            __version__="none", ndarray=_Array,
            cuda=SimpleNamespace(
                Stream=lambda **_: _Stream(self), Event=lambda: _Event(self),
                get_elapsed_time=lambda start, end: end.at - start.at,
                runtime=SimpleNamespace(deviceSynchronize=lambda: None, CUDARuntimeError=OSError),
                driver=SimpleNamespace(CUDADriverError=OSError)))

    def versions(self):
        return {"gpu": "Tesla T4 (stand-in)", "compute_capability": "7.5", "sms": T4.sms,
                "memory_bytes": 15102 << 20, "l2_bytes": T4.l2_bytes, "driver_cuda": "none",
                "cuda": "none", "nvrtc": nvrtc.available()[1], "cupy": "none"}

    def compile(self, source, defines=None):
        key = (source.digest, source.label)
        if key not in self._programs:
            self.counts["compile"] += 1
            self._programs[key] = _Program(self, source)
        return self._programs[key]

    def put(self, array):
        return np.array(array).view(_Array)

    def full(self, shape, value, dtype=np.float32):
        return np.full(shape, value, dtype=dtype).view(_Array)

    def get(self, array):
        return np.array(array, subok=False)

    def owns(self, array):
        return isinstance(array, _Array)

    def free_bytes(self):
        return 15102 << 20

    def sgemm(self, cupy):
        """In place of cuBLAS: count the ceiling's runs at half of a T4's datasheet rate."""
        ms = 1e3 * 2 * callers.CEILING_N**3 / (T4.flops / 2)
        self.counts["SGEMM"] += SGEMM_RUNS
        self.clock_ms += SGEMM_RUNS * ms
        return records.Ceiling(callers.CEILING_N, T4.flops / 2e12, ms, ms, ms, 5)

    def ran(self, kernel, n, compute):
        """Count a launch and do its work, or hold it back while a graph is being captured."""
        if self._captured is not None:
            self._captured.append((kernel, n, compute))
            return
        compute()
        self.counts[f"{kernel}, N = {n}"] += 1
        self.clock_ms += self.times_ms(kernel, n)


class _Stream:
    """What GpuBackend.time asks of a CuPy stream."""

    def __init__(self, backend):
        self.backend = backend

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def begin_capture(self):
        self.backend._captured = []

    def end_capture(self):
        launches, self.backend._captured = self.backend._captured, None

        def launch_all(stream):
            for launch in launches:
                self.backend.ran(*launch)

        return SimpleNamespace(launch=launch_all)


class _Event:
    def __init__(self, backend):
        self.backend = backend

    def record(self, stream):
        self.at = self.backend.clock_ms

    def synchronize(self):
        pass


class _Program:
    """A source on the stand-in. What is not the file itself computes NaN, as a failure does."""

    def __init__(self, backend, text):
        self.backend, self.source = backend, text
        self.kernels = nvrtc.kernels(text)
        self.own = text.path is not None and text.text == source.read(text.name)

    def enqueue(self, name, grid, block, args, shared=0):
        kernel = kernel_of(self, name, args)
        given = {}
        for param, value in zip(kernel.params, args, strict=True):
            if param.pointer and value is not None and not self.backend.owns(value):
                raise ArgumentError(f"{name}: {param.name} needs {self.backend.array_name}")
            given[param.name] = value if param.pointer else scalar(kernel, param, value)
        # The kernel that writes O is not always the one that reads Q and K.
        self.backend.inputs |= {key: given[key] for key in "qkv" if key in given}
        inputs, o = dict(self.backend.inputs), given.get("o")

        plain = self.own and "n" in given and o is not None  # others leave NaN: no cell minds

        def compute():
            if plain and np.isnan(o.flat[0]) and o.shape == inputs["q"].shape:
                heads = (np.asarray(inputs[key]).reshape(-1, *o.shape[-2:]) for key in "qkv")
                o[...] = np.stack([model.online(*head) for head in zip(*heads)]).reshape(o.shape)

        self.backend.ran(name, int(given["n"] if "n" in given else given.get("keys", 1)), compute)

    def launch(self, name, grid, block, args, shared=0):
        self.enqueue(name, grid, block, args, shared)

    def facts(self, name):
        return nvrtc.facts(self.source, self.backend.arch)[name]

    def resident_blocks(self, name, threads, shared=0):
        return occupancy(self.facts(name), threads, T4, shared).blocks


def recorded():
    """The newest usable record of an H200, which the estimate scales; None if there is none."""
    return next((item for item in evidence.shown("times")
                 if gpus.product(item.versions["gpu"]) is H200), None)


def kernel_ms(item):
    """A function ``(kernel, n) -> ms`` on a T4: the H200's time, made slower, scaled by N^2."""
    found = {}
    for time in item.times:
        kernels = paths.kernels_of(time.what) or (time.what,)
        if len(kernels) == 1:
            found[kernels[0], time.n] = time.median_ms

    def estimate(kernel, n):
        # What has no time of its own counts as the slowest kernel that has one.
        own = {size: ms for (name, size), ms in found.items() if name == kernel} or {
            size: ms for (name, size), ms in found.items() if name == "attentionOnline"}
        near = min(own, key=lambda size: abs(size - n))
        return SLOWER * own[near] * max(n / near, 1.0) ** 2

    return estimate


def count(cells, name="cells"):
    """Run code cells (their texts) on a stand-in, in this process, whose backends it replaces.

    Returns ``{"launches": .., "kernels_s": .., "compiled": .., "references_s": ..,
    "emulated": ..}``. Raises LessonError naming the cell that raised.
    """
    from IPython.core.interactiveshell import InteractiveShell
    from lesson.text.edits import register

    item = recorded()
    if item is None:
        raise LessonError("no usable record of an H200 to scale")
    stand_in, seen, choose = StandIn(kernel_ms(item)), Counter(), backends.choose
    versions = {"numpy": np.__version__, **stand_in.versions()}
    backends.choose = lambda kind=None: choose(kind) if kind == "emulated" else stand_in
    backends.probe = lambda: backends.Probe(True, "", versions)

    def attention(q, k, v, rows=None, **options):
        seen["operations"] += 4 * (q.shape[-2] if rows is None else len(rows)) * k.size
        return reference.attention(q, k, v, rows, **options)

    def launch(*arguments, **options):
        seen["emulated"] += 1
        return emulate(*arguments, **options)

    def compile_cubin(*arguments, **options):
        seen["compiled"] += 1
        return nvrtc_compiles(*arguments, **options)

    def long_run(n=None):
        # The size that is offered takes OFFER_S by design; its N is at most of this order.
        stand_in.clock_ms += 1e3 * long_sequences.OFFER_S
        seen["operations"] += 4 * callers.SAMPLED_ROWS * LONG_N * D

    def ranks_run(n, count, way):
        # One rank on one GPU: the time of the recorded long run of that N, or of the next one.
        near = min(recorded().long, key=lambda row: abs(row.n - n))
        stand_in.clock_ms += 1e3 * SLOWER * near.seconds * (n / near.n) ** 2
        seen["operations"] += 4 * callers.SAMPLED_ROWS * n * D

    callers.Sgemm, callers.ceiling = stand_in.sgemm, lambda backend, counted: counted
    long_verb.show, ranks_verb.here = long_run, ranks_run
    emulate, emulator.HostProgram.launch = emulator.HostProgram.launch, launch
    nvrtc_compiles, nvrtc.compile_cubin = nvrtc.compile_cubin, compile_cubin
    for module in [m for n, m in sys.modules.items() if n.startswith("lesson.")]:
        if module is not reference and getattr(module, "attention", None) is reference.attention:
            module.attention = attention
    shell = InteractiveShell.instance()
    register()
    for number, text in enumerate(cells):
        result = shell.run_cell(text)
        if not result.success:
            error = result.error_in_exec or result.error_before_exec
            raise LessonError(f"{name}, code cell {number}: {type(error).__name__}: {error}")
    compiled = stand_in.counts.pop("compile", 0) + seen["compiled"]
    return {"launches": sum(stand_in.counts.values()), "kernels_s": stand_in.clock_ms / 1e3,
            "compiled": compiled, "references_s": seen["operations"] / REFERENCE_FLOPS,
            "emulated": seen["emulated"]}


def count_apart(chapter):
    """``count`` of a chapter in a process of its own."""
    done = subprocess.run([sys.executable, "-m", "tools.estimate", str(chapter)], text=True,
                          cwd=notebooks.BOOK, capture_output=True)
    if done.returncode:
        raise LessonError(done.stderr.strip() or f"{chapter} does not run on the stand-in")
    return json.loads(done.stdout)


def compile_s():
    """Seconds to compile a source in a runtime."""
    return COMPILER_SLOWER * max(recorded().compile_ms.values()) / 1e3


def total_s(c):
    """Seconds of Run all, from what ``count`` returned."""
    return (START_S + c["kernels_s"] + compile_s() * c["compiled"] + c["references_s"]
            + EMULATED_S * c["emulated"])


def markdown(counts):
    """The table of ``{chapter: what count returned}``, with how it was computed."""
    item = recorded()
    lines = [f"*Run all on a T4, computed from times of an {item.gpu}, {item.day}*", "",
             "| chapter | launches | kernels, s | sources compiled | compiling, s "
             "| on the processor, s | in all, s |", "|---" + "|--:" * 6 + "|"]
    for name, c in counts.items():
        processor = c["references_s"] + EMULATED_S * c["emulated"]
        lines.append(f"| {name} | {c['launches']:,} | {c['kernels_s']:.1f} | {c['compiled']} "
                     f"| {compile_s() * c['compiled']:.1f} | {processor:.1f} | {total_s(c):.0f} |")
    lines += ["", f"Kernels: {SLOWER:.0f} times the recorded times, the worse of the two ratios of "
              "FP32 rate and of bandwidth. Compiling a source: "
              f"{compile_s():.1f} s. Float64 references: {REFERENCE_FLOPS / 1e9:.0f} GFLOP/s; a "
              f"launch emulated to count its bytes: {EMULATED_S:.0f} s. In all: with "
              f"{START_S:.0f} s to start."]
    return "\n".join(lines) + "\n"


def count_all():
    """``{chapter: what count returned}`` of every chapter, counted two at a time."""
    names = [path.name for path in notebooks.chapters()]
    with ThreadPoolExecutor(2) as pool:
        return {Path(name).stem: c for name, c in zip(names, pool.map(count_apart, names))}


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tools.estimate", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chapter", type=Path, nargs="?")
    chapter = parser.parse_args(argv).chapter
    try:
        if chapter is None:
            before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
            after = rest.partition(END)[2]
            PAGE.write_text(before + BEGIN + "\n" + markdown(count_all()) + "\n" + END + after,
                            encoding="utf-8")
            return
        cells = json.loads(chapter.read_text(encoding="utf-8"))["cells"]
        with contextlib.redirect_stdout(io.StringIO()):
            found = count(["".join(cell["source"]) for cell in cells
                           if cell["cell_type"] == "code"], chapter.name)
        print(json.dumps(found))
    except LessonError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
