"""The ladder against what a reader would call instead: gates first, then times, in one run.

Every time is of CUDA graphs, so the callers' launch overhead is not in it; every row passed its
gate before it was timed and again after.
"""

import csv
import ctypes
import io
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from . import cases, ladder, nvrtc, source
from .errors import GateError, LessonError
from .gate import judge
from .occupancy import T4, occupancy
from .reference import attention
from .results import Facts, Gate, ensure_passed, gate_row
from .table import Table, Tables, ms
from .timing import Timing

BENCH_N = (256, 1024, 4096, 16384)
HEADS = (1, 16)
GATED = ((256, cases.NAMES), (1024, cases.NAMES), (4096, ("periodic", "spike-late", "random")))
SAMPLED_ROWS = 256  # of query rows, where all would take the reference long
CEILING_N = 8192  # of the square SGEMM


@dataclass(frozen=True)
class Ceiling:
    """The rate of a square float32 matrix product through cuBLAS, TF32 off."""

    n: int
    tflops: float
    median_ms: float
    low_ms: float
    high_ms: float
    rounds: int


@dataclass(frozen=True)
class Row:
    """One way to compute attention, gated and timed for N and a number of heads."""

    what: str
    rung: int  # 0: no rung of the ladder
    n: int
    heads: int
    splits: int
    fraction: float  # of the gate
    median_ms: float
    low_ms: float
    high_ms: float
    runs: int
    rounds: int


@dataclass(frozen=True)
class RungCounters:
    """What the hardware counters saw of one launch of a rung: bytes, and where time went."""

    rung: int
    n: int
    dram_bytes: int
    l2_bytes: int
    local_bytes: int
    instructions: int  # of all warps
    shared_wavefronts: int
    busy: float  # share of the cycles in which an SM had work, mean over SMs
    issued: float  # share of those in which a scheduler issued an instruction
    stalls: dict  # {reason: mean warps waiting for it at each issue}


@dataclass(frozen=True)
class Bench:
    """One comparison: rungs, final kernels and callers, on one GPU."""

    versions: dict  # of what was compared with
    ceiling: Ceiling
    gates: list[Gate]
    rows: list[Row]
    facts: list[Facts]
    refused: list[str]  # why a caller has no time: its result did not pass the gate
    counters: list[RungCounters] | None = None


def flops(n, heads=1):
    """Floating-point operations of attention: two products, a multiply and an add each."""
    return 4 * n * n * ladder.D * heads


def share(row, ceiling):
    """A Row's rate as a share of the SGEMM rate."""
    return flops(row.n, row.heads) / (row.median_ms * 1e9) / ceiling.tflops


def gate_rungs(backend, progress, which=None, gated=GATED):
    """Gates of every rung that runs here, or of ``which``, on every case and N of ``gated``."""
    which, rows = which or ladder.runnable(backend), []
    for n, names in gated:
        for i, name in enumerate(names):
            progress(f"gates of the ladder, N = {n}", i, len(names))
            case = cases.make(name, n)
            ref = attention(case.q, case.k, case.v)
            for r in which:
                output, _ = ladder.run(backend, r, case)
                rows.append(gate_row(r.name, name, n, judge(output, ref.o, n, ref.max_abs_score)))
    return rows


class Inputs:
    """Heads of ``random`` for one N, with the reference of all rows or of a sample."""

    def __init__(self, n, heads):
        case = cases.make("random", heads * n)
        self.n, self.heads = n, heads
        self.q, self.k, self.v = (x.reshape(heads, n, ladder.D) for x in (case.q, case.k, case.v))
        if heads == 1 and n <= 4096:
            self.rows = np.arange(n)
        else:
            self.rows = np.linspace(0, n - 1, SAMPLED_ROWS // heads).astype(int)
        found = [attention(*x, rows=self.rows) for x in zip(self.q, self.k, self.v)]
        self.ref = np.concatenate([f.o for f in found])
        self.largest = max(f.max_abs_score for f in found)

    def judge(self, output, what):
        """The gate fraction of an output (heads, n, 64); raises GateError."""
        got = output.reshape(self.heads, self.n, ladder.D)[:, self.rows].reshape(-1, ladder.D)
        verdict = judge(got, self.ref, self.n, self.largest, np.tile(self.rows, self.heads))
        if not verdict.passed:
            case = f"random, {self.heads} head{'s' * (self.heads > 1)}"
            raise GateError(f"no time: {verdict.explain(what, case, self.n)}")
        return verdict.fraction


def _runs(n, heads):
    """Runs in a round: fewer where one takes long."""
    return 10 if n * n * heads <= 1 << 28 else 2


def _row(what, rung, inputs, splits, fraction, t):
    return Row(what, rung, inputs.n, inputs.heads, splits, fraction, t.median, t.low, t.high,
               t.runs, len(t.rounds_ms))


def time_rung(backend, which, inputs):
    """Gate, time and gate again one rung, or 'best'. Returns a Row."""
    arrays = [backend.put(x) for x in (inputs.q, inputs.k, inputs.v)]
    if inputs.heads == 1:
        arrays = [x[0] for x in arrays]
    planned = ladder.plan(backend, which, *arrays)
    r = planned.rung
    what = "the lesson's choice" if which == "best" else r.label
    fraction = inputs.judge(planned.run(), what)
    t = backend.time(planned.enqueue, what, runs=_runs(inputs.n, inputs.heads))
    inputs.judge(backend.get(planned.output), what)
    return _row(what, r.number, inputs, planned.splits, fraction, t)


class Sgemm:
    """cuBLAS's product of float32 matrices in row-major order, on the current stream.

    CuPy's matmul calls the same routine, but not while a CUDA graph is captured; this does. Default
    math mode: no TF32.
    """

    def __init__(self, cp):
        self.cp = cp
        cp.cuda.device.get_cublas_handle()  # loads the library
        with open("/proc/self/maps", encoding="ascii") as maps:
            loaded = [line.split()[-1] for line in maps if "/libcublas.so" in line]
        if not loaded:
            raise LessonError("CuPy's cuBLAS is not where this Linux keeps loaded libraries: "
                              "the comparison needs it")
        self.lib, self.handle = ctypes.CDLL(loaded[0]), ctypes.c_void_p()
        self._call("cublasCreate_v2", ctypes.byref(self.handle))
        self._call("cublasSetMathMode", self.handle, 0)
        self.workspace = cp.empty(32 << 20, np.uint8)  # so that none is allocated in a capture

    def _call(self, name, *arguments):
        status = getattr(self.lib, name)(*arguments)
        if status:
            raise LessonError(f"{name} failed with status {status}")

    def __call__(self, a, b, out, alpha=1.0, transpose=False):
        """out = alpha a b, or alpha a b^T; a (.., m, k), b (.., k, n) or (.., n, k), contiguous."""
        (m, k), n = a.shape[-2:], out.shape[-1]
        stream = self.cp.cuda.get_current_stream().ptr
        self._call("cublasSetStream_v2", self.handle, ctypes.c_void_p(stream))
        self._call("cublasSetWorkspace_v2", self.handle, ctypes.c_void_p(self.workspace.data.ptr),
                   ctypes.c_size_t(self.workspace.nbytes))

        def matrix(x, width):  # pointer, width of a line, distance to the next head
            return ctypes.c_void_p(x.data.ptr), width, ctypes.c_longlong(x.shape[-2] * x.shape[-1])

        # cuBLAS counts by columns: out^T = b^T a^T.
        self._call("cublasSgemmStridedBatched", self.handle, int(transpose), 0, n, m, k,
                   ctypes.byref(ctypes.c_float(alpha)), *matrix(b, k if transpose else n),
                   *matrix(a, k), ctypes.byref(ctypes.c_float(0.0)), *matrix(out, n),
                   a.size // (m * k))


def time_cublas(backend, sgemm, inputs):
    """Row of three calls: a product and a product by cuBLAS, CuPy's softmax between them."""
    cp = backend.cupy
    from cupyx.scipy.special import softmax

    what = "cuBLAS, CuPy softmax, cuBLAS"
    q, k, v = (cp.asarray(x) for x in (inputs.q, inputs.k, inputs.v))
    s, o = cp.empty((inputs.heads, inputs.n, inputs.n), np.float32), cp.full_like(v, np.nan)

    def call():
        sgemm(q, k, s, ladder.D**-0.5, transpose=True)
        sgemm(softmax(s, axis=-1), v, o)

    call()
    backend.synchronize(what)
    fraction = inputs.judge(backend.get(o), what)
    t = backend.time(call, what, runs=_runs(inputs.n, inputs.heads))
    inputs.judge(backend.get(o), what)
    return _row(what, 0, inputs, 1, fraction, t)


def torch_callers():
    """(``{what: call(q, k, v)}`` of what PyTorch offers in float32, versions); empty without it."""
    try:
        import torch
        from torch.nn import functional
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        return {}, {}
    if not torch.cuda.is_available():
        return {}, {}
    torch.backends.cuda.matmul.allow_tf32 = False

    def three(q, k, v):
        return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-1, -2)), -1), v)

    three.scaled = True  # takes q multiplied by scale beforehand: what is timed is three calls

    def sdpa(kind):
        def call(q, k, v):
            with sdpa_kernel(kind):
                return functional.scaled_dot_product_attention(q, k, v)
        return call

    return {"PyTorch: matmul, softmax, matmul": three,
            "PyTorch SDPA, math": sdpa(SDPBackend.MATH),
            "PyTorch SDPA, memory-efficient": sdpa(SDPBackend.EFFICIENT_ATTENTION),
            }, {"torch": torch.__version__, "torch_cuda": torch.version.cuda}


def time_torch(what, call, inputs):
    """Row of one PyTorch caller; it has its own CUDA graphs."""
    import torch

    scale = np.float32(ladder.D**-0.5 if hasattr(call, "scaled") else 1)
    q, k, v = (torch.from_numpy(np.ascontiguousarray(x)).cuda()[None]
               for x in (inputs.q * scale, inputs.k, inputs.v))
    stream = torch.cuda.Stream()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def capture(count):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(count):
                out = call(q, k, v)
        graph.replay()
        torch.cuda.synchronize()
        return graph, out

    def measure(graph, count):
        start.record(stream)
        graph.replay()
        end.record(stream)
        end.synchronize()
        return start.elapsed_time(end) / count

    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(3):
            call(q, k, v)
        torch.cuda.synchronize()
        runs = _runs(inputs.n, inputs.heads)
        graph, out = capture(runs)
        fraction = inputs.judge(out.cpu().numpy(), what)
        estimate = measure(graph, runs)
        more = max(runs, min(200, int(2.0 / max(estimate, 1e-3)) + 1))
        if more > runs:
            del graph, out
            graph, out = capture(runs := more)
        t = Timing(tuple(measure(graph, runs) for _ in range(5)), runs, 3)
        inputs.judge(out.cpu().numpy(), what)
    del graph, out
    torch.cuda.empty_cache()
    return _row(what, 0, inputs, 1, fraction, t)


def ceiling(backend, sgemm):
    """The SGEMM rate of this GPU, now."""
    cp, n = backend.cupy, CEILING_N
    rng = cp.random.default_rng(2026)
    a, b = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    c = cp.empty((n, n), np.float32)
    t = backend.time(lambda: sgemm(a, b, c), "SGEMM", runs=2)
    return Ceiling(n, 2 * n**3 / (t.median * 1e9), t.median, t.low, t.high, len(t.rounds_ms))


def facts_of(backend):
    """Facts of every rung as compiled for this GPU."""
    gpu, _ = ladder.device_gpu(backend)
    return [_facts_row(r, backend.compile(source.load(r.name)).facts("attentionOnline"), gpu)
            for r in ladder.runnable(backend)]


def t4_facts():
    """Facts of the rungs that a T4 can run, compiled for it by NVRTC; needs no GPU."""
    return [_facts_row(r, nvrtc.facts(source.load(r.name), T4.arch)["attentionOnline"], T4)
            for r in ladder.RUNGS if ladder.blocks_on(r, T4)]


def _facts_row(r, f, gpu):
    o = occupancy(f, r.threads, gpu, r.shared)
    return Facts(r.name, gpu.arch, r.threads, f.registers, f.shared_bytes + r.shared,
                 f.local_bytes, f.spill_bytes, o.blocks, o.limit, o.fraction)


def measure(backend, progress, ns=BENCH_N, all_heads=HEADS, gated=GATED):
    """Gate every rung, then time everything. Returns a Bench; raises GateError."""
    gates = ensure_passed(gate_rungs(backend, progress, gated=gated))
    sgemm = Sgemm(backend.cupy)
    top = ceiling(backend, sgemm)
    torch_calls, versions = torch_callers()
    versions["cupy"] = backend.cupy.__version__
    rows, refused = [], []
    for heads in all_heads:
        for n in ns:
            progress(f"comparison, {heads} heads, N = {n}", 0, 1)
            inputs = Inputs(n, heads)
            rows += [time_rung(backend, r, inputs) for r in ladder.runnable(backend)
                     if heads == 1 or r.heads]
            rows.append(time_rung(backend, "best", inputs))
            callers = [partial(time_cublas, backend, sgemm, inputs)]
            callers += [partial(time_torch, *item, inputs) for item in torch_calls.items()]
            for caller in callers:
                try:
                    rows.append(caller())
                except GateError as error:  # not the lesson's: said, and the others go on
                    refused.append(str(error))
                except Exception as error:  # CuPy's and PyTorch's share no class but this name
                    if type(error).__name__ != "OutOfMemoryError":
                        raise
                    what = caller.func.__name__.removeprefix("time_")
                    refused.append(f"{what}, {heads} heads, N = {n}: {error}".splitlines()[0])
                backend.cupy.get_default_memory_pool().free_all_blocks()
    return Bench(versions, top, gates, rows, facts_of(backend), refused)


STALLS = ("short_scoreboard", "long_scoreboard", "lg_throttle", "mio_throttle", "barrier", "wait",
          "no_instruction", "dispatch_stall", "math_pipe_throttle", "branch_resolving")
_METRICS = {
    "dram_bytes": ("dram__bytes_read.sum", "dram__bytes_write.sum"),
    "l2_bytes": ("lts__t_bytes.sum",),
    "local_bytes": ("l1tex__t_bytes_pipe_lsu_mem_local_op_ld.sum",
                    "l1tex__t_bytes_pipe_lsu_mem_local_op_st.sum"),
    "instructions": ("smsp__inst_executed.sum",),
    "shared_wavefronts": ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",),
    "busy": ("sm__cycles_active.avg", "sm__cycles_elapsed.max"),
    "issued": ("smsp__issue_active.avg.pct_of_peak_sustained_active",),
}
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
_UNITS = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}


def counters(rungs, n=4096):
    """RungCounters of the rungs by ncu, or None where it is not installed or may not count."""
    ncu = shutil.which("ncu")
    if ncu is None:
        return None
    metrics = [m for names in _METRICS.values() for m in names] + [_STALL.format(s) for s in STALLS]
    run = subprocess.run(
        [ncu, "--csv", "--page", "raw", "--metrics", ",".join(metrics), "--cache-control", "none",
         "--clock-control", "none", "--kernel-name", "attentionOnline", sys.executable, "-m",
         "lesson", "launch", "--ladder", "--n", str(n)],
        capture_output=True, text=True, timeout=600)
    return parse_counters(run.stdout, n, rungs)


def parse_counters(text, n, rungs=ladder.RUNGS):
    """RungCounters from ncu's raw CSV, one launch a rung in their order; None if it has others."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    if len(lines) < 3:
        return None
    head, units, *body = csv.reader(io.StringIO("\n".join(lines)))
    column = {name: i for i, name in enumerate(head)}
    wanted = [m for names in _METRICS.values() for m in names]
    if len(body) != len(rungs) or any(m not in column for m in wanted):
        return None
    found = []
    for r, row in zip(rungs, body):
        def value(metric, row=row):
            i = column[metric]
            return float(row[i].replace(",", "")) * _UNITS.get(units[i], 1)

        numbers = {field: round(sum(value(m) for m in names))
                   for field, names in _METRICS.items() if field not in ("busy", "issued")}
        active, elapsed = (value(m) for m in _METRICS["busy"])
        stalls = {s: value(_STALL.format(s)) for s in STALLS if _STALL.format(s) in column}
        found.append(RungCounters(r.number, n, busy=active / elapsed,
                                  issued=value(_METRICS["issued"][0]) / 100, stalls=stalls,
                                  **numbers))
    return found


def record(backend, progress, tools=True):
    """The comparison as evidence keeps it: a Bench, with counters where ``tools`` and ncu are."""
    found = measure(backend, progress)
    if tools:
        progress("hardware counters of the ladder", 0, 1)
        found = replace(found, counters=counters(ladder.runnable(backend)))
    return found


def times_table(bench, heads=1, mark="live", note=""):
    """One number of heads: the time of each row per N, and its share of the SGEMM rate."""
    ns = sorted({row.n for row in bench.rows if row.heads == heads})
    title = "one head" if heads == 1 else f"{heads} heads in one launch"
    t = Table(f"Time in ms, {title}",
              ["what", *(f"N = {n:,}" for n in ns), *(f"of SGEMM, {n:,}" for n in ns[-2:])],
              note=note)
    for what in dict.fromkeys(row.what for row in bench.rows if row.heads == heads):
        rows = {r.n: r for r in bench.rows if r.heads == heads and r.what == what}
        t.add(mark, what, *(f"{rows[n].median_ms:.4f}" if n in rows else "–" for n in ns),
              *(f"{share(rows[n], bench.ceiling):.1%}" if n in rows else "–" for n in ns[-2:]))
    t.footer = (f"SGEMM, N = {bench.ceiling.n:,}: {bench.ceiling.tflops:.1f} TFLOP/s. CUDA graphs; "
                "median of 5 rounds; each row passed its gate before and after"
                + "".join(f"\n{message}" for message in bench.refused))
    return t


def spread_table(bench, n=4096, heads=1, mark="live", note=""):
    """One N in full: splits, gate fraction, spread."""
    t = Table(f"N = {n:,}, {heads} head{'s' * (heads > 1)}",
              ["what", "splits", "gate fraction", "time, ms (min–max)", "of SGEMM"], note=note)
    for row in bench.rows:
        if (row.n, row.heads) == (n, heads):
            t.add(mark, row.what, row.splits, f"{row.fraction:.3f}", ms(row),
                  f"{share(row, bench.ceiling):.1%}")
    return t


def show(bench, mark="live", note=""):
    """Every table of a Bench."""
    heads = sorted({row.heads for row in bench.rows})
    return Tables([*(times_table(bench, h, mark, note) for h in heads),
                   spread_table(bench, 4096, 1, mark, note)])
