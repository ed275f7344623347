"""What orders threads, what does not, and what a GPU makes of barriers that do not meet."""

import numpy as np
import pytest
from lesson.errors import LaunchError, RaceError
from lesson.machine import emulator
from lesson.text import source
from support.emulated import fails, needs_compiler, program, run

pytestmark = needs_compiler


def launch(backend, text, name, grid, block, *args):
    """Launch a kernel of a whole source; returns the arrays as NumPy's, and the Counts."""
    arrays = [backend.put(a) if isinstance(a, np.ndarray) else a for a in args]
    made = backend.compile(source.from_text(text, "mine.cu"))
    counts = made.launch(name, grid, block, tuple(arrays))
    return [backend.get(a) if isinstance(a, np.ndarray) else a for a in arrays], counts


# ---- fences and atomics -------------------------------------------------------------------------

# Each block writes its sum; the block that draws the last ticket adds all of them up.
LAST = """
extern "C" __global__ void lastOne(const float* x, float* sums, unsigned* ticket, float* y) {
    __shared__ float part[64];
    __shared__ bool last;
    int t = threadIdx.x;
    part[t] = x[blockIdx.x * 64 + t];
    __syncthreads();
    for (int half = 32; half > 0; half /= 2) {
        if (t < half) part[t] += part[t + half];
        __syncthreads();
    }
    if (t == 0) {
        WRITE
    }
    __syncthreads();
    if (last) {
        float sum = 0.0f;
        for (int i = t; i < gridDim.x; i += 64) sum += sums[i];
        part[t] = sum;
        __syncthreads();
        if (t == 0) {
            for (int i = 1; i < 64; ++i) sum += part[i];
            *y = sum;
        }
    }
}
"""
PUBLISH = "sums[blockIdx.x] = part[0];"
TICKET = "last = atomicAdd(ticket, 1u) == gridDim.x - 1;"


def last_one(backend, *statements):
    x = np.arange(70 * 64, dtype=np.float32) % 17
    (_, _, _, y), _ = launch(
        backend, LAST.replace("WRITE", " ".join(statements)), "lastOne", (70,), (64,), x,
        np.full(70, np.nan, np.float32), np.zeros(1, np.uint32), np.zeros(1, np.float32))
    return y[0], x.sum()


@pytest.mark.parametrize("fence", ["__threadfence();", "__threadfence_system();"])
def test_a_fence_and_a_ticket_order_blocks(backend, fence):
    got, want = last_one(backend, PUBLISH, fence, TICKET)
    assert got == want


@pytest.mark.parametrize("statements", [
    (PUBLISH, TICKET), (PUBLISH, "__threadfence_block();", TICKET),
    (PUBLISH, TICKET, "__threadfence();"), ("__threadfence();", PUBLISH, TICKET),
    ("__threadfence();", TICKET, PUBLISH),
], ids=["no fence", "of a block", "fence after", "write after the fence", "write after the ticket"])
def test_a_ticket_without_a_fence_between_orders_nothing(backend, statements):
    with pytest.raises(RaceError, match="two blocks use it") as error:
        last_one(backend, *statements)
    assert "race on sums[" in str(error.value)


EACH = """
extern "C" __global__ void each(float* parts, unsigned* ticket, float* y) {
    __shared__ bool last;
    int i = blockIdx.x * 32 + threadIdx.x;
    parts[i] = i;
    {0}
    __syncthreads();
    if (threadIdx.x == 0) last = atomicInc(ticket, gridDim.x) == gridDim.x - 1;
    __syncthreads();
    if (last) y[threadIdx.x] = parts[threadIdx.x] + parts[32 + threadIdx.x];
}
"""


def test_each_thread_may_fence_what_it_wrote_before_the_barrier(backend):
    arrays = np.zeros(64, np.float32), np.zeros(1, np.uint32), np.zeros(32, np.float32)
    (_, _, y), _ = launch(backend, EACH.replace("{0}", "__threadfence();"), "each", (2,), (32,),
                          *arrays)
    assert np.array_equal(y, 2 * np.arange(32) + 32)
    for fence in ("", "__threadfence_block();", "if (threadIdx.x == 0) __threadfence();"):
        with pytest.raises(RaceError, match="race on parts"):
            launch(backend, EACH.replace("{0}", fence), "each", (2,), (32,), *arrays)


def test_the_ticket_may_be_a_variable_of_the_device(backend):
    text = LAST.replace(", unsigned* ticket", "").replace("atomicAdd(ticket", "atomicAdd(&ticket")
    text = "__device__ unsigned ticket = 0;\n" + text.replace("WRITE", " ".join(
        (PUBLISH, "__threadfence();", TICKET.replace("ticket", "&ticket"))))
    x = np.ones(3 * 64, np.float32)
    (_, _, y), _ = launch(backend, text, "lastOne", (3,), (64,), x, np.zeros(3, np.float32),
                          np.zeros(1, np.float32))
    assert y[0] == 192


def test_a_lock_orders_the_threads_that_hold_it(backend):
    body = """__shared__ int lock;
    if (threadIdx.x == 0) lock = 0;
    __syncthreads();
    if (threadIdx.x % 32 == 0) {{
        while (atomicCAS(&lock, 0, 1) != 0) {{ }}
        b[0] = b[0] + 1.0f;
        {0}
        atomicExch(&lock, 0);
    }}"""
    start = np.zeros(1, np.float32)
    for fence in ("__threadfence();", "__threadfence_block();"):
        assert run(backend, body.format(fence), n=1, block=(256,), b=start)[0][0] == 8
    fails(backend, body.format(""), error=RaceError, n=1, block=(256,), b=start)


def test_a_lock_orders_blocks(backend):
    text = """__device__ int lock = 0;
    extern "C" __global__ void count(float* y) {
        if (threadIdx.x == 0) {
            while (atomicCAS(&lock, 0, 1) != 0) { }
            y[0] = y[0] + 1.0f;
            FENCE
            atomicExch(&lock, 0);
        }
    }"""
    (y,), _ = launch(backend, text.replace("FENCE", "__threadfence();"), "count", (9,), (32,),
                     np.zeros(1, np.float32))
    assert y[0] == 9
    for fence in ("", "__threadfence_block();"):
        with pytest.raises(RaceError, match="two blocks use it"):
            launch(backend, text.replace("FENCE", fence), "count", (9,), (32,),
                   np.zeros(1, np.float32))


# ---- one value by many lanes --------------------------------------------------------------------


def test_lanes_of_a_warp_may_store_one_value(backend):
    body = """__shared__ float sums[4];
    float x = a[threadIdx.x];
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    sums[threadIdx.x / 32] = x;
    __syncthreads();
    b[threadIdx.x] = sums[threadIdx.x % 4];"""
    b, _ = run(backend, body, n=128, block=(128,))
    sums = np.arange(128).reshape(4, 32).sum(axis=1)
    assert np.array_equal(b, np.tile(sums, 32))


def test_lanes_of_a_warp_may_store_four_values_at_once(backend):
    body = """float4 x = make_float4(1.0f, 2.0f, 3.0f, n);
    reinterpret_cast<float4*>(b)[threadIdx.x / 32] = x;"""
    assert run(backend, body, n=8, block=(64,))[0].tolist() == [1, 2, 3, 8] * 2


@pytest.mark.parametrize("body, block", [
    ("b[0] = threadIdx.x;", 32), ("b[0] = threadIdx.x == 31;", 32),
    ("b[0] = 1.0f;", 64),
    ("if (threadIdx.x & 1) b[0] = 1.0f;\nelse b[0] = n;", 32),
], ids=["values", "last value", "warps", "instructions"])
def test_other_stores_to_one_word_are_races(backend, body, block):
    message = fails(backend, body, error=RaceError, block=(block,))
    assert "race on b[0]" in message
    if "threadIdx.x;" in body or "31" in body:
        assert "different values to it by one instruction" in message


# ---- sums of floats by atomics ------------------------------------------------------------------


@pytest.mark.parametrize("dtype, name", [(np.float32, "float"), (np.float64, "double")])
def test_rounding_of_sums_by_atomics_is_no_race(backend, dtype, name):
    x = np.random.default_rng(3).standard_normal(1024).astype(dtype)
    text = f"""extern "C" __global__ void total(const {name}* x, {name}* y) {{
        atomicAdd(y, x[blockIdx.x * blockDim.x + threadIdx.x]);
    }}"""
    (_, y), counts = launch(backend, text, "total", (16,), (64,), x, np.zeros(1, dtype))
    assert abs(y[0] - x.sum(dtype=np.float64)) < 1024 * np.finfo(dtype).eps * np.abs(x).sum()
    assert len(counts.notes) == 1 and "y[0] differs from one thread order" in counts.notes[0]
    assert "rounding" in counts.notes[0] and "no race" in counts.notes[0]


def test_what_is_computed_from_such_a_sum_rounds_too(backend):
    body = """__shared__ float total;
    if (threadIdx.x == 0) total = 0.0f;
    __syncthreads();
    atomicAdd(&total, expf(a[threadIdx.x]));
    __syncthreads();
    b[threadIdx.x] = expf(a[threadIdx.x]) / total;"""
    a = np.random.default_rng(5).standard_normal(256).astype(np.float32)
    b, counts = run(backend, body, n=256, block=(256,), a=a)
    assert np.allclose(b, np.exp(a) / np.exp(a).sum(), rtol=1e-5)
    assert "and " in counts.notes[0] and "more elements differ" in counts.notes[0]


@pytest.mark.parametrize("number, bits, as_bits, as_number", [
    ("float", "int", "__float_as_int", "__int_as_float"),
    ("double", "unsigned long long", "__double_as_longlong", "__longlong_as_double"),
])
def test_a_sum_by_compare_and_swap_rounds_too(backend, number, bits, as_bits, as_number):
    text = f"""__device__ void add({number}* y, {number} x) {{
        {bits}* address = ({bits}*)y;
        {bits} old = *address, assumed;
        do {{
            assumed = old;
            old = atomicCAS(address, assumed, ({bits}){as_bits}(x + {as_number}(assumed)));
        }} while (assumed != old);
    }}
    extern "C" __global__ void total(const {number}* x, {number}* y) {{
        add(y, x[blockIdx.x * 64 + threadIdx.x]);
    }}"""
    dtype = {"float": np.float32, "double": np.float64}[number]
    x = np.random.default_rng(4).standard_normal(512).astype(dtype)
    (_, y), counts = launch(backend, text, "total", (8,), (64,), x, np.zeros(1, dtype))
    assert abs(y[0] - x.sum(dtype=np.float64)) < 1e-4 and "rounding" in counts.notes[0]


def test_exact_sums_have_no_note(backend):
    _, counts = run(backend, "atomicAdd(b, 1.0f);", n=1, b=np.zeros(1, np.float32))
    assert counts.notes == ()


def test_a_result_that_depends_on_the_order_is_no_rounding(backend):
    body = "float before = atomicAdd(b, 1.0f);\nif (before == 3.0f) b[1] = threadIdx.x;"
    message = fails(backend, body, error=RaceError, b=np.zeros(32, np.float32))
    assert "depends on the order in which threads run: b[1] is 3.0" in message


# ---- barriers that do not meet ------------------------------------------------------------------


def test_two_barriers_are_forbidden_and_not_waited_at_for_ever(backend):
    message = fails(backend, "if (threadIdx.x < 32)\n__syncthreads();\nelse\n__syncthreads();",
                    block=(64,))
    assert "waits at different barriers in block 0: CUDA forbids that" in message
    assert "32 threads, the first is thread 0, wait at __syncthreads()" in message
    assert "mine.cu, line 3:" in message and "mine.cu, line 5:" in message
    assert "A GPU need not hang there: it counts the warps" in message
    assert "for ever" not in message


def test_two_barriers_within_a_warp(backend):
    message = fails(backend, "if (threadIdx.x < 7)\n__syncthreads();\nelse\n__syncthreads();")
    assert "undefined where the threads of one warp part" in message


def test_a_return_before_a_barrier_says_what_newer_gpus_do(backend):
    message = fails(backend, "if (threadIdx.x == 3) return;\n__syncthreads();")
    assert "has a barrier in block 0 that not all threads reach" in message
    assert "31 threads, the first is thread 0, wait at __syncthreads()" in message
    assert "thread 3 returned" in message
    assert "from compute capability 7.0 on (a T4 has 7.5) wait only for threads that" in message


def test_a_deadlock_stays_one(backend):
    message = fails(backend, "if (threadIdx.x < 16) __syncthreads();\nelse __syncwarp();")
    assert "would wait for ever in block 0" in message


def test_a_thread_that_sleeps_lets_others_run(backend):
    body = """__shared__ volatile int ready;
    if (threadIdx.x == 0) ready = 0;
    __syncthreads();
    if (threadIdx.x / 32 == 1) ready = 1;
    else while (!ready) __nanosleep(100);
    b[threadIdx.x] = 1.0f;"""
    # The flag is a race by the rules of CUDA's memory model; what is seen is that it ends.
    assert "race on element 0 of ready" in fails(backend, body, error=RaceError, n=64, block=(64,))


def test_orders_are_those_of_the_backend():
    one = emulator.HostBackend(orders=("descending",))
    assert np.array_equal(run(one, "b[threadIdx.x] = a[threadIdx.x];")[0], np.arange(32))
    with pytest.raises(LaunchError):
        program(one, "b[0] = 1.0f;").launch("mine", (1,), (2048,), (None, None, 0))
