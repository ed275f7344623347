"""What a reader would call instead: cuBLAS and PyTorch, each gated, timed and gated again."""

import ctypes

import numpy as np

from ..errors import (
    GateError,
    LessonError,
)
from ..machine.timing import Timing
from ..problem import cases
from ..problem.gate import judge
from ..problem.problem import of
from ..problem.reference import attention
from .records import (
    Ceiling,
    Row,
)

SAMPLED_ROWS = 256  # of query rows, where all would take the reference long
CEILING_N = 8192  # of the square SGEMM


class Inputs:
    """``random`` for a Problem, with the reference of all query rows or of a sample."""

    def __init__(self, problem):
        self.problem = p = of(problem)
        self.case = cases.make("random", p)
        self.q, self.k, self.v = self.case.q, self.case.k, self.case.v
        if p.heads == 1 and p.queries <= 4096:
            self.rows = np.arange(p.queries)
        else:
            self.rows = np.linspace(0, p.queries - 1, SAMPLED_ROWS // p.heads).astype(int)
        self.ref = attention(self.q, self.k, self.v, self.rows, problem=p)

    @property
    def by_head(self):
        """Q, K and V with their heads, also where there is one: (heads, N, d)."""
        return tuple(x.reshape(-1, *x.shape[-2:]) for x in (self.q, self.k, self.v))

    def verdict(self, output):
        """The Verdict on an output of Q's shape, with more axes or not."""
        got = output.reshape(self.problem.q_shape)[..., self.rows, :]
        return judge(got, self.ref.o, self.problem, self.ref.max_abs_score, self.rows)

    def judge(self, output, what):
        """The gate fraction of an output of Q's shape, with more axes or not; raises GateError."""
        verdict = self.verdict(output)
        if not verdict.passed:
            raise GateError(f"no time: {verdict.explain(what, 'random', self.problem)}")
        return verdict.fraction

    @property
    def runs(self):
        """Runs in a round: fewer where one takes long."""
        return 10 if self.problem.operations <= 4 * self.problem.d << 28 else 2

    def row(self, what, rung, splits, fraction, t):
        """The Row of what was timed on these inputs."""
        return Row(what, rung, self.problem, splits, fraction, t.median, t.low, t.high, t.runs,
                   len(t.rounds_ms))


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
    q, k, v = (cp.asarray(x) for x in inputs.by_head)
    p = inputs.problem
    s = cp.empty((p.heads, p.queries, p.keys), np.float32)
    o = cp.full_like(q, np.nan)

    def call():
        sgemm(q, k, s, p.scale, transpose=True)
        sgemm(softmax(s, axis=-1), v, o)

    call()
    backend.synchronize(what)
    fraction = inputs.judge(backend.get(o), what)
    t = backend.time(call, what, spoil=lambda: o.fill(np.nan), runs=inputs.runs)
    inputs.judge(backend.get(o), what)
    return inputs.row(what, 0, 1, fraction, t)


def torch_callers():
    """(``{what: call(q, k, v)}`` of what PyTorch offers in float32, versions); empty without it."""
    try:
        import torch
    except ImportError:
        return {}, {}
    if not torch.cuda.is_available():
        return {}, {}
    torch.backends.cuda.matmul.allow_tf32 = False

    def three(q, k, v):
        return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-1, -2)), -1), v)

    three.scaled = True  # takes q multiplied by scale beforehand: what is timed is three calls

    return {"PyTorch: matmul, softmax, matmul": three,
            "PyTorch SDPA, math": sdpa("MATH"),
            "PyTorch SDPA, memory-efficient": sdpa("EFFICIENT_ATTENTION"),
            }, {"torch": torch.__version__, "torch_cuda": torch.version.cuda}


def half_callers():
    """What PyTorch offers in FP16: ``{what: call(q, k, v)}`` of Q, K and V in FP16."""
    return {"FlashAttention-2, FP16": sdpa("FLASH_ATTENTION"),
            "cuDNN, FP16": sdpa("CUDNN_ATTENTION")}


def sdpa(kind, causal=False):
    """A call of PyTorch's attention through one of its back ends."""
    def call(q, k, v):
        from torch.nn import functional
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel(getattr(SDPBackend, kind)):
            return functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return call


class TorchCall:
    """One PyTorch caller on some Inputs; it has its own CUDA graphs. ``half``: Q, K, V in FP16."""

    def __init__(self, call, inputs, half=False):
        import torch

        self.torch, self.call, self.stream = torch, call, torch.cuda.Stream()
        scale = np.float32(inputs.problem.scale if hasattr(call, "scaled") else 1)
        arrays = [torch.from_numpy(x).cuda()[None] for x in inputs.by_head]
        arrays[0] *= scale
        self.arrays = [x.half() for x in arrays] if half else arrays
        torch.cuda.synchronize()
        with torch.no_grad(), torch.cuda.stream(self.stream):
            for _ in range(3):
                call(*self.arrays)
        torch.cuda.synchronize()

    def capture(self, runs):
        """``runs`` calls as one CUDA graph, run once: a function that gives milliseconds a call."""
        torch, stream, graph = self.torch, self.stream, self.torch.cuda.CUDAGraph()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.no_grad(), torch.cuda.graph(graph, stream=stream):
            for _ in range(runs):
                self.out = self.call(*self.arrays)

        def measure():
            with torch.cuda.stream(stream):
                start.record(stream)
                graph.replay()
                end.record(stream)
            end.synchronize()
            return start.elapsed_time(end) / runs

        measure()
        return measure

    def get(self):
        """The last output, float32, as a NumPy array."""
        return self.out.float().cpu().numpy()

    def spoil(self):
        """Fill the output with NaN: what is gated afterwards was computed after this."""
        self.out.fill_(float("nan"))
        self.torch.cuda.synchronize()


def time_torch(what, call, inputs):
    """Row of one PyTorch caller."""
    import torch

    caller, runs = TorchCall(call, inputs), inputs.runs
    measure = caller.capture(runs)
    fraction = inputs.judge(caller.get(), what)
    more = max(runs, min(200, int(2.0 / max(measure(), 1e-3)) + 1))
    if more > runs:
        del measure
        measure = caller.capture(runs := more)
    rounds = [measure() for _ in range(4)]
    caller.spoil()
    t = Timing((*rounds, measure()), runs, 3)
    inputs.judge(caller.get(), what)
    del caller, measure
    torch.cuda.empty_cache()
    return inputs.row(what, 0, 1, fraction, t)


def ceiling(backend, sgemm):
    """The SGEMM rate of this GPU, now."""
    cp, n = backend.cupy, CEILING_N
    rng = cp.random.default_rng(2026)
    a, b = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    c = cp.empty((n, n), np.float32)
    t = backend.time(lambda: sgemm(a, b, c), "SGEMM", spoil=lambda: c.fill(np.nan), runs=2)
    return Ceiling(n, 2 * n**3 / (t.median * 1e9), t.median, t.low, t.high, len(t.rounds_ms))
