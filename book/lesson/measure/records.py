"""The lesson's numbers, as plain dataclasses: tables, figures and evidence are drawings of them."""

from dataclasses import dataclass

from ..errors import GateError
from ..problem.problem import Problem, of

TABLE_N = (256, 1024, 4096)
# Where kernels are gated unless a reader says otherwise: no power of two and no multiple of 128, so
# that a kernel which is right for N = 256 alone, the threads of a block, does not pass.
GATE_N = 320
EMULATED_N = (256, 1024)  # what the emulator finishes while a reader waits
PAIR = "online against materialised"


class OfProblem:
    """A number that belongs to a Problem, and how tables speak of it."""

    @property
    def n(self):
        return self.problem.n

    @property
    def heads(self):
        return self.problem.heads


@dataclass(frozen=True)
class Gate(OfProblem):
    """One gate: a path's output on a case, against the float64 reference or the other path."""

    path: str
    case: str
    problem: Problem
    passed: bool
    fraction: float  # worst |got - ref| / (atol + rtol |ref|); NaN where not finite
    max_abs_error: float
    rtol: float
    atol: float
    message: str


@dataclass(frozen=True)
class Time(OfProblem):
    """Milliseconds per run of a path or of one kernel, over rounds."""

    what: str
    problem: Problem
    median_ms: float
    low_ms: float
    high_ms: float
    runs: int
    rounds: int


@dataclass(frozen=True)
class Facts:
    """The compiler's and the scheduler's facts of one kernel on one architecture."""

    kernel: str
    arch: str
    threads: int
    registers: int
    shared_bytes: int
    local_bytes: int
    spill_bytes: int
    blocks: int  # resident blocks per SM, by the rules of occupancy.py
    limit: str
    occupancy: float
    blocks_by_driver: int | None = None  # the driver's own answer, on that device


@dataclass(frozen=True)
class Counters(OfProblem):
    """Bytes that the hardware counters saw during one launch."""

    kernel: str
    problem: Problem
    dram_read_bytes: int
    dram_write_bytes: int
    l2_bytes: int


@dataclass(frozen=True)
class Rejection(OfProblem):
    """Whether one case rejected one mutant, and in which words."""

    mutant: str
    case: str
    problem: Problem
    rejected: bool
    message: str


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
class Row(OfProblem):
    """One way to compute attention, gated and timed for N and a number of heads."""

    what: str
    rung: int  # 0: no rung of the ladder
    problem: Problem
    splits: int
    fraction: float  # of the gate
    median_ms: float
    low_ms: float
    high_ms: float
    runs: int
    rounds: int


@dataclass(frozen=True)
class RungCounters(OfProblem):
    """What the hardware counters saw of one launch of a rung: bytes, and where time went."""

    rung: int
    problem: Problem
    dram_bytes: int
    l2_bytes: int
    local_bytes: int
    instructions: int  # of all warps
    shared_wavefronts: int
    busy: float  # share of the cycles in which an SM had work, mean over SMs
    issued: float  # share of those in which a scheduler issued an instruction
    stalls: dict  # {reason: mean warps waiting for it at each issue}
    tensor: float | None = None  # share of the cycles with work in which tensor cores were busy


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


@dataclass(frozen=True)
class Agreement:
    """Results that a GPU and the host form computed from the same fragments: how many differ."""

    rung: int
    kind: str  # of the numbers in the fragments
    results: int
    different: int


@dataclass(frozen=True)
class Repeat(OfProblem):
    """Runs of a rung on the same inputs: in how many of them any bit differs from the first."""

    rung: int
    problem: Problem
    runs: int
    different: int


@dataclass(frozen=True)
class Rate:
    """How fast tensor cores go through a rung's ``mma`` and nothing else."""

    rung: int
    tflops: float


@dataclass(frozen=True)
class Tensor:
    """Rungs on tensor cores beside float32 and FP16, in one run, interleaved."""

    versions: dict  # of what was compared with
    ceiling: Ceiling
    gates: list[Gate]
    rows: list[Row]  # what passed
    failing: list[Row]  # what did not: set apart, whatever its time
    refused: list[str]  # what did not run
    facts: list[Facts]
    rates: list[Rate]
    mutants: list[Rejection]
    fragments: list[Agreement] | None = None
    counters: list[RungCounters] | None = None
    repeats: list[Repeat] | None = None


@dataclass(frozen=True)
class Use:
    """Attention for any Problem: gates, and times beside PyTorch's and a copy's, in one run."""

    versions: dict  # of what was compared with
    ceiling: Ceiling
    gated: int  # Problems
    gates: list[Gate]  # the worst of each pair of lengths, with a mask and without
    rows: list[Row]


@dataclass(frozen=True)
class Long(OfProblem):
    """One long sequence: time, memory, and the gate on sampled query rows."""

    problem: Problem
    case: str
    rung: int
    splits: int
    seconds: float  # the kernel, all pieces
    estimated_s: float  # before it started
    device_bytes: int  # in use at the time
    score_matrix_bytes: int  # what a score matrix would have taken
    sampled_rows: int
    fraction: float  # of the gate
    max_abs_error: float


@dataclass(frozen=True)
class Shared(OfProblem):
    """One problem shared by several GPUs, gated on sampled query rows."""

    problem: Problem
    case: str
    way: str  # 'plain': one GPU without ranks; 'merge'; 'ring'
    ranks: int
    seconds: float  # median: from all keys in place to the answer in the host's memory
    low_s: float
    high_s: float
    rounds: int
    moved_bytes: int  # that ranks sent to each other
    chunk_rows: int  # query rows of a chunk
    sampled_rows: int
    fraction: float  # of the gate
    max_abs_error: float


@dataclass(frozen=True)
class Several:
    """Runs over several GPUs of one machine."""

    date: str  # ISO 8601, UTC
    versions: dict  # of that machine's software; 'nccl', and 'gpus': how many were used
    limit_s: float  # about what the run of the largest N was to take
    rows: list[Shared]


@dataclass(frozen=True)
class Sanitizer:
    """One tool of compute-sanitizer, run over all kernels."""

    tool: str
    target: str  # what was launched under it
    passed: bool
    summary: str


def gate_row(path, case, problem, verdict):
    """A Gate from a gate.Verdict."""
    return Gate(path, case, of(problem), verdict.passed, verdict.fraction, verdict.max_abs_error,
                verdict.rtol, verdict.atol, verdict.explain(path, case, problem))


def ensure_passed(rows):
    """Raise GateError naming every failed gate of ``rows``."""
    failed = [row.message for row in rows if not row.passed]
    if failed:
        raise GateError("\n".join(failed))
    return rows
