"""The emulated backend: what CUDA code means on the host, and what each mistake says."""

import itertools
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from lesson.errors import ArgumentError, CompileError, InputError, LaunchError, RaceError
from lesson.machine import emulator
from lesson.text import source
from support import BOOK
from support.emulated import fails, needs_compiler, program, run

pytestmark = needs_compiler

FULL = "0xffffffffu"
WARP_MAX = """
__device__ float warpMax(float x) {
    for (int offset = 16; offset > 0; offset /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}
"""


# ---- what runs ------------------------------------------------------------------------------


def test_copies_and_counts_every_byte(backend):
    b, counts = run(backend, "int i = blockIdx.x * blockDim.x + threadIdx.x; b[i] = a[i];",
                    n=128, grid=(4,))
    assert np.array_equal(b, np.arange(128))
    assert counts == emulator.Counts(loads_bytes=512, stores_bytes=512)


def test_counts_rereads_and_vectors(backend):
    body = """float4 x = reinterpret_cast<const float4*>(a)[threadIdx.x % 8];
    float sum = 0.0f;
    for (int i = 0; i < n; ++i) sum += a[i];
    b[threadIdx.x] = sum + x.x + x.y + x.z + x.w;"""
    _, counts = run(backend, body)
    assert counts == emulator.Counts(loads_bytes=32 * 16 + 32 * 32 * 4, stores_bytes=128)


def test_threads_have_their_own_indices(backend):
    body = """int i = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    b[block * 24 + i] = 1000 * block + i;"""
    b, _ = run(backend, body, n=24 * 12, block=(2, 3, 4), grid=(2, 2, 3))
    assert np.array_equal(b, [1000 * block + i for block in range(12) for i in range(24)])


def test_shared_memory_is_reversed_through_a_barrier(backend):
    body = """__shared__ float tile[256];
    tile[threadIdx.x] = a[threadIdx.x];
    __syncthreads();
    b[threadIdx.x] = tile[255 - threadIdx.x];"""
    b, _ = run(backend, body, n=256, block=(256,))
    assert np.array_equal(b, np.arange(255, -1, -1))


def test_dynamic_shared_memory_and_alignment(backend):
    body = """extern __shared__ float pool[];
    __shared__ __align__(16) float four[4];
    __shared__ alignas(128) float wide[32];
    pool[threadIdx.x] = a[threadIdx.x];
    wide[threadIdx.x] = (size_t)wide % 128;
    if (threadIdx.x == 0) *reinterpret_cast<float4*>(four) = make_float4(1, 2, 3, 4);
    __syncthreads();
    b[threadIdx.x] = pool[31 - threadIdx.x] + four[3] + wide[threadIdx.x];"""
    b, _ = run(backend, body, shared=128)
    assert np.array_equal(b, np.arange(31, -1, -1) + 4)


def test_shuffles_and_votes(backend):
    body = f"""float x = a[threadIdx.x];
    int lane = threadIdx.x % 32;
    float ok = __shfl_sync({FULL}, x, 5) == x - lane + 5;
    ok += __shfl_up_sync({FULL}, x, 1) == (lane ? x - 1 : x);
    ok += __shfl_down_sync({FULL}, x, 2) == (lane < 30 ? x + 2 : x);
    ok += __shfl_xor_sync({FULL}, x, 16) == x - lane + (lane ^ 16);
    ok += __shfl_sync({FULL}, x, 1, 8) == x - lane + (lane & 24) + 1;
    ok += __ballot_sync({FULL}, lane < 3) == 7u;
    ok += __any_sync({FULL}, lane == 9) && !__all_sync({FULL}, lane == 9);
    ok += __all_sync({FULL}, n == 64) && !__any_sync({FULL}, n == 63);
    ok += warpMax(x) == x - lane + 31;
    ok += __shfl_sync({FULL}, (double)x, 31) == x - lane + 31;
    if (lane < 16) ok += __shfl_xor_sync(0xffffu, lane, 15) == 15 - lane;
    else ok += __shfl_sync(0xffff0000u, lane, 20) == 20;
    __syncwarp();
    ok += __syncthreads_count(threadIdx.x < 40) == 40;
    ok += __syncthreads_or(threadIdx.x == 63) && !__syncthreads_and(threadIdx.x == 63);
    b[threadIdx.x] = ok;"""
    b, _ = run(backend, body, n=64, block=(64,), before=WARP_MAX)
    assert (b == 13).all()


def test_language_of_the_kernels(backend):
    before = """
    __constant__ float table[4] = {1.0f, 2.0f, 3.0f, 4.0f};
    template <int K, class T> __device__ __forceinline__ T scaled(T x) { return K * x; }
    """
    body = """auto half = [](float x) { return 0.5f * x; };
    float kept[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) kept[i] = table[i];
    float x = half(scaled<4>(a[threadIdx.x])) + kept[threadIdx.x % 4] * max(0, min(1, n));
    x = fmaf(x, 1.0f, __int_as_float(0x3f800000)) + __ldg(a) + rsqrtf(4.0f) + __expf(0.0f);
    b[threadIdx.x] = x + (__int_as_float(0xff800000) < 0.0f) + __fdividef(1.0f, 2.0f);"""
    b, _ = run(backend, body, before=before)
    i = np.arange(32)
    assert np.array_equal(b, 2 * i + i % 4 + 1 + 1 + 0.5 + 1 + 1 + 0.5)


def test_atomics_are_no_race(backend):
    a = backend.full((32,), 0)
    b = backend.full((2,), 0)
    program(backend, "atomicAdd(b, 1.0f); atomicMax((int*)b + 1, (int)threadIdx.x);").launch(
        "mine", (4,), (64,), (a, b, 2))
    assert backend.get(b)[0] == 256
    assert backend.get(b).view(np.int32)[1] == 63


def test_defines_reach_the_kernel(backend):
    text = 'extern "C" __global__ void mine(float* b) { b[threadIdx.x] = SIZE * threadIdx.x; }'
    b = backend.full((4,), np.nan)
    for size in ("2", "3"):
        program = backend.compile(source.from_text(text, "mine.cu"), {"SIZE": size})
        program.launch("mine", (1,), (4,), (b,))
        assert np.array_equal(backend.get(b), int(size) * np.arange(4))


def test_arguments_are_converted_to_the_declared_types(backend):
    text = """extern "C" __global__ void mine(double* b, int i, unsigned u, size_t n, float f,
                                        bool t) {
    b[0] = i; b[1] = u; b[2] = n; b[3] = f; b[4] = t; }"""
    b = backend.full((5,), np.nan, dtype=np.float64)
    args = (b, -7, 4_000_000_000, 2**40, 0.1, True)
    backend.compile(source.from_text(text, "mine.cu")).launch("mine", (1,), (1,), args)
    assert backend.get(b).tolist() == [-7, 4e9, 2.0**40, float(np.float32(0.1)), 1]


@pytest.mark.parametrize("path", ["materialised", "online"])
@pytest.mark.parametrize("n", [64, 192])
def test_the_lesson_s_paths_ask_for_the_bytes_of_the_formulas(backend, path, n):
    from lesson.launch import paths
    from lesson.problem.cases import make

    _, plan = paths.run(backend, path, make("periodic", n))
    total = {name: c.loads_bytes + c.stores_bytes for name, c in plan.counts.items()}
    d = 64
    if path == "online":
        assert total == {"attentionOnline": 8 * n * d + 8 * n * d * (n // 64)}
    else:
        assert total["scoresQKt"] == 32 * n * n + 4 * n * n
        assert total["softmaxRows"] == 8 * n * n + 4 * n * n + 4 * n
        assert plan.counts["weightedV"].stores_bytes == 4 * n * d


# ---- what fails: memory ---------------------------------------------------------------------


def test_read_past_the_end(backend):
    message = fails(backend, "int i = threadIdx.x;\nb[i] = a[i + 1];")
    assert "mine reads a[32], past its end: it has 32 elements, 0 to 31" in message
    assert "mine.cu, line 3:  b[i] = a[i + 1];" in message
    assert "block 0, thread 31" in message


def test_read_before_the_start(backend):
    assert "reads a[-1], before its start" in fails(
        backend, "b[threadIdx.x] = a[(int)threadIdx.x - 1];")


def test_write_past_the_end_names_block_and_thread_in_their_dimensions(backend):
    body = "int i = threadIdx.x + 8 * threadIdx.y + 32 * blockIdx.y;\nb[i] = 1.0f;"
    message = fails(backend, body, block=(8, 4), grid=(1, 2))
    assert "writes b[32], past its end" in message and "block (0, 1), thread (0, 0)" in message


def test_an_index_that_is_far_off(backend):
    assert "writes memory that belongs to none of its arguments" in fails(
        backend, "b[threadIdx.x * ((size_t)1 << 40)] = 1.0f;")


def test_null_pointer(backend):
    message = fails(backend, "float* p = n ? nullptr : b;\np[threadIdx.x] = 1.0f;")
    assert "writes through a null pointer" in message and "line 3" in message


def test_none_is_a_null_pointer(backend):
    with pytest.raises(LaunchError, match="reads through a null pointer"):
        program(backend, "b[0] = a[0];").launch(
            "mine", (1,), (1,), (None, backend.full((1,), 0), 1))


@pytest.mark.parametrize("use", [
    "float x = reinterpret_cast<const float4*>(a + 1)->x;\nb[threadIdx.x] = x;",
    "float4 x = *reinterpret_cast<const float4*>(a + 1);\nb[threadIdx.x] = x.x;",
], ids=["member", "whole"])
def test_misaligned_vector(backend, use):
    if "clang" in backend.describe() and "float4 x" in use:
        pytest.skip("clang++ does not check the alignment of a whole struct that is copied")
    message = fails(backend, use)
    assert re.search(r"uses a \w+ at a\[1\], which is not aligned", message)
    assert "mine.cu, line 2" in message


def test_write_to_a_const_argument(backend):
    message = fails(backend, "const_cast<float*>(a)[threadIdx.x] = 0.0f;", error=InputError)
    assert "writes to its input: a[0] is declared const" in message


@pytest.mark.parametrize("array", ["__shared__ float t[32];", "float t[32];"])
def test_index_past_a_fixed_array(backend, array):
    message = fails(backend, f"{array}\nt[threadIdx.x + 1] = 1.0f;\nb[threadIdx.x] = t[n - 32];")
    assert "uses index 32 in an array of type float[32]" in message
    assert "mine.cu, line 3:" in message and "thread 31" in message


def test_past_dynamic_shared_memory(backend):
    message = fails(backend, "extern __shared__ float pool[];\npool[threadIdx.x] = 1.0f;",
                    shared=64)
    assert "writes byte 64 of dynamic shared memory; the launch asked for 64 bytes" in message


def test_stack_overflow(backend):
    body = """float big[40000];
    for (int i = 0; i < 40000; ++i) big[i] = a[i % n];
    b[threadIdx.x] = big[n];"""
    assert "needs more than the 128 KiB of stack" in fails(backend, body)


def test_integer_division_by_zero(backend):
    message = fails(backend, "b[threadIdx.x] = n / (int)(threadIdx.x / 32);")
    assert "divides an integer by zero" in message and "line 2" in message


# ---- what fails: order ------------------------------------------------------------------------


def test_missing_barrier(backend):
    body = """__shared__ float tile[64];
    tile[threadIdx.x] = a[threadIdx.x];
    b[threadIdx.x] = tile[63 - threadIdx.x];"""
    message = fails(backend, body, error=RaceError, n=64, block=(64,))
    assert "of tile" in message and "with no __syncthreads() between them" in message
    assert "mine.cu, line 3:" in message and "mine.cu, line 4:" in message


@pytest.mark.parametrize("order", emulator.ORDERS)
@pytest.mark.parametrize("barrier", [1, 2])
def test_each_barrier_of_a_loop_is_needed_in_any_order(order, barrier):
    one = emulator.HostBackend(orders=(order,))
    sync = ["__syncthreads();"] * 2
    sync[barrier - 1] = ""
    body = f"""__shared__ float tile[64];
    float sum = 0.0f;
    for (int i = 0; i < n; i += 64) {{
        tile[threadIdx.x] = a[i + threadIdx.x];
        {sync[0]}
        sum += tile[63 - threadIdx.x];
        {sync[1]}
    }}
    b[threadIdx.x] = sum;"""
    fails(one, body, error=RaceError, n=128, block=(64,))


def test_a_race_names_two_threads_even_if_the_writer_has_read_too():
    body = """__shared__ float one;
    if (threadIdx.x == 0) one = a[0];
    __syncthreads();
    float x = one;
    if (threadIdx.x == 0) one = x + 1.0f;
    __syncthreads();
    b[threadIdx.x] = x + one;"""
    for order, block in itertools.product(emulator.ORDERS, (32, 64)):
        backend = emulator.HostBackend(orders=(order,))
        message = fails(backend, body, error=RaceError, n=64, block=(block,))
        assert message.count("by thread 0\n") == 1, message


def test_race_within_a_warp(backend):
    body = """__shared__ float tile[32];
    tile[threadIdx.x] = a[threadIdx.x];
    {0}
    float x = tile[31 - threadIdx.x];
    {1}
    tile[threadIdx.x] = x;
    b[threadIdx.x] = x;"""
    for missing in (("", "__syncwarp();"), ("__syncwarp();", "")):
        message = fails(backend, body.format(*missing), error=RaceError)
        assert "no __syncwarp() or __syncthreads() between them" in message
    b, _ = run(backend, body.format("__syncwarp();", "__syncwarp();"))
    assert np.array_equal(b, np.arange(31, -1, -1))


def test_a_warp_s_barrier_orders_no_other_warp(backend):
    body = """__shared__ float tile[64];
    tile[threadIdx.x] = a[threadIdx.x];
    __syncwarp();
    b[threadIdx.x] = tile[63 - threadIdx.x];"""
    fails(backend, body, error=RaceError, n=64, block=(64,))


def test_blocks_are_not_ordered(backend):
    message = fails(backend, "b[threadIdx.x] = blockIdx.x;", error=RaceError, grid=(2,))
    assert "two blocks use it" in message and "written by block 0, thread 0" in message
    body = """b[32 * blockIdx.x + threadIdx.x] = 1.0f;
    if (blockIdx.x == 1) b[threadIdx.x + 32] += b[threadIdx.x];"""
    assert "read by" in fails(backend, body, error=RaceError, n=64, grid=(2,))
    body = "float x = b[0]; if (x == 3.0f || blockIdx.x + threadIdx.x == 2) b[0] = 3.0f;"
    assert "read by" in fails(backend, body, error=RaceError, grid=(3,))


def test_a_barrier_orders_global_memory_of_a_block(backend):
    body = """b[threadIdx.x] = threadIdx.x; {}
    float x = b[n - 1 - threadIdx.x]; {}
    b[threadIdx.x] = x;"""
    sync = "__syncthreads();"
    b, _ = run(backend, body.format(sync, sync), n=64, block=(64,))
    assert np.array_equal(b, np.arange(63, -1, -1))
    for missing in ((sync, ""), ("", sync)):
        fails(backend, body.format(*missing), error=RaceError, n=64, block=(64,))


def test_a_result_that_depends_on_the_order_of_atomics(backend):
    body = """if (threadIdx.x == 0) b[0] = 0.0f;
    __syncthreads();
    float ticket = atomicAdd(b, 1.0f);
    b[threadIdx.x + 1] = ticket;"""
    message = fails(backend, body, error=RaceError, n=33)
    assert "depends on the order in which threads run: b[1] is 0.0" in message
    assert "31.0 when they run descending" in message


# ---- what fails: waiting ----------------------------------------------------------------------


def test_barrier_in_a_loop_of_different_lengths(backend):
    message = fails(backend, "for (int i = 0; i < threadIdx.x; ++i)\n__syncthreads();")
    assert "thread 0 returned" in message


def test_lane_that_never_comes_to_a_shuffle(backend):
    message = fails(backend, f"if (threadIdx.x == 3) return;\n__shfl_sync({FULL}, 1.0f, 0);")
    assert "every lane in the mask must reach the same warp operation" in message
    assert "wait at __shfl_sync() with mask 0xffffffff" in message
    message = fails(backend, f"if (threadIdx.x < 16) __syncthreads();\nelse __syncwarp({FULL});")
    assert "16 threads, the first is thread 16, wait at __syncwarp()" in message


def test_mask_that_leaves_out_the_calling_lane(backend):
    assert "leaves out the calling lane 0" in fails(
        backend, "if (threadIdx.x < 16) b[0] = __shfl_sync(0xffff0000u, 1.0f, 16);")


@pytest.mark.parametrize("loop", [
    "while (n > 0)\n    n |= 1;",
    "volatile float* w = b;\n    while (w[threadIdx.x] != 3.0f) { }",
    "\n    while (n) __syncthreads();",
    "\n    while (n) __syncwarp();",
], ids=["arithmetic", "memory", "barrier", "warp"])
def test_endless_loop(backend, loop):
    message = fails(backend, loop)
    assert "was given up: one block ran for more than 1 s" in message
    assert "mine.cu, line" in message and "block 0, thread" in message


def test_child_that_does_not_answer(backend, tmp_path):
    """The parent's own limit, should the child's timer fail."""
    mine = program(backend, "b[threadIdx.x] = 1.0f;")
    stuck = tmp_path / "stuck"
    stuck.write_text("#!/bin/sh\nexec sleep 100\n")
    stuck.chmod(0o755)
    real, mine._built.executable = mine._built.executable, stuck
    try:
        with pytest.raises(LaunchError, match="does not answer"):
            mine.launch("mine", (1,), (32,), (backend.full((32,), 0),) * 2 + (32,))
    finally:
        mine._built.executable = real


# ---- what fails: the source -------------------------------------------------------------------


def compile_error(backend, text, name="mine.cu", **how):
    with pytest.raises(CompileError) as caught:
        backend.compile(source.from_text(text, name), **how)
    message = str(caught.value)
    assert "/tmp" not in message and "kernel.cpp" not in message and "cuda.h" not in message
    return message


def test_compile_error_shows_the_reader_s_line(backend):
    message = compile_error(backend, 'extern "C" __global__ void f(float* b) {\n\tb[0] = tyle;\n}')
    assert "mine.cu does not compile" in message
    assert "mine.cu, line 2: " in message and "'tyle'" in message
    assert "\n    \tb[0] = tyle;\n    \t       ^" in message


def test_compile_error_in_an_edited_cell(backend):
    text = ('extern "C" __global__ void f(float* b) {\n#line 1 "cell online/score"\n'
            'float x = 1.0f;\nb[0] = y;\n#line 5 "online.cu"\n}\n')
    message = compile_error(backend, text, "online.cu")
    assert "cell online/score, line 2: " in message and "'y'" in message


def test_run_time_error_in_an_edited_cell(backend):
    text = ('extern "C" __global__ void f(float* b) {\n#line 1 "cell online/score"\n'
            'float x = 1.0f;\nb[n_()] = x;\n#line 5 "online.cu"\n}\n')
    text = "__device__ int n_() { return 9; }\n" + text
    with pytest.raises(LaunchError, match=r"cell online/score, line 2:  b\[n_\(\)\] = x;"):
        backend.compile(source.from_text(text, "online.cu")).launch(
            "f", (1,), (1,), (backend.full((4,), 0),))


def test_static_assert_says_its_reason(backend):
    message = compile_error(backend, 'static_assert(sizeof(float) == 8, "a reason in words");\n')
    assert "line 1: a reason in words" in message


def test_missing_brace_and_missing_function(backend):
    assert "a '}' is missing" in compile_error(
        backend, 'extern "C" __global__ void f(float* b) { if (b) { b[0] = 1.0f; }')
    assert "not defined: helper" in compile_error(
        backend, '__device__ float helper(float);\n'
                 'extern "C" __global__ void f(float* b) { b[0] = helper(1.0f); }')


def test_only_names_that_nvrtc_has_too(backend):
    assert "INFINITY" in compile_error(
        backend, 'extern "C" __global__ void f(float* b) { b[0] = INFINITY; }')


def test_too_much_static_shared_memory(backend):
    message = compile_error(backend, """extern "C" __global__ void f(float* b) {
    __shared__ float t[16384]; t[threadIdx.x] = 1.0f; __syncthreads(); b[threadIdx.x] = t[0]; }""")
    assert "f declares 65,536 bytes of __shared__ arrays; a block gets at most 49,152" in message


# ---- what is refused before it runs -----------------------------------------------------------


def test_kernel_without_c_linkage(backend):
    text = "__global__ void mine(float* b) { b[0] = 1.0f; }"
    with pytest.raises(LaunchError, match='mine has no C linkage: write extern "C"'):
        backend.compile(source.from_text(text, "mine.cu")).launch(
            "mine", (1,), (1,), (backend.full((1,), 0),))


def test_unknown_kernel_and_wrong_number_of_arguments(backend):
    mine = program(backend, "b[0] = 1.0f;")
    with pytest.raises(LaunchError, match="mine.cu defines no kernel 'yours'; it defines: mine"):
        mine.launch("yours", (1,), (1,), ())
    with pytest.raises(ArgumentError, match="takes 3 arguments"):
        mine.launch("mine", (1,), (1,), (backend.full((1,), 0),))


@pytest.mark.parametrize("args, words", [
    (lambda h: (np.zeros(4, np.float32), h.full((4,), 0), 4), "a is numpy.ndarray"),
    (lambda h: (h.full((4,), 0, np.float64), h.full((4,), 0), 4), "a has dtype float64"),
    (lambda h: (h.full((4, 4), 0).T, h.full((4,), 0), 4), "a is a view that is not C-contiguous"),
    (lambda h: (h.full((4,), 0), h.full((4,), 0), "four"), "n = 'four' is no int"),
    (lambda h: (lambda x: (x[:4], x[2:6], 4))(h.full((8,), 0)), "a and b overlap in memory"),
], ids=["numpy", "float64", "view", "string", "overlap"])
def test_arguments_that_a_gpu_would_misread(backend, args, words):
    with pytest.raises(ArgumentError, match=words):
        program(backend, "b[0] = a[0];").launch("mine", (1,), (1,), args(backend))


@pytest.mark.parametrize("grid, block, shared, words", [
    ((1,), (32, 64), 0, "has 2048 threads; a GPU runs at most 1024"),
    ((0,), (1,), 0, "needs 1 to 3 whole numbers"),
    ((1, 1, 1, 1), (1,), 0, "needs 1 to 3 whole numbers"),
    ((1, 70000), (1,), 0, "grid.y is 70000, at most 65535"),
    ((2**25,), (1,), 0, "is more than the 16,777,216 blocks"),
    ((1,), (1,), 300_000, "300,000 dynamic bytes of shared memory; a block gets at most"),
])
def test_launches_that_a_gpu_refuses(backend, grid, block, shared, words):
    x = backend.full((1,), 0)
    with pytest.raises(LaunchError, match=words):
        program(backend, "b[0] = 1.0f;").launch("mine", grid, block, (x, x, 1), shared)


def test_options_of_the_backend():
    with pytest.raises(ArgumentError, match="orders"):
        emulator.HostBackend(orders=("sideways",))
    with pytest.raises(ArgumentError, match="limit_s"):
        emulator.HostBackend(limit_s=0)


# ---- the surroundings -------------------------------------------------------------------------


def in_child(code, **environment):
    """Output of Python code that runs in ``book/`` with another environment."""
    return subprocess.run([sys.executable, "-c", code], cwd=BOOK, capture_output=True, text=True,
                          env={**os.environ, **environment}, timeout=60)


TRIAL = """
import numpy as np
from lesson.machine import emulator
from lesson.text import source
print(emulator.available())
h = emulator.HostBackend()
b = h.full((4,), np.nan)
h.compile(source.from_text('extern "C" __global__ void f(float* b) { b[threadIdx.x] = 1.0f; }')
          ).launch("f", (1,), (4,), (b,))
print(h.get(b))
"""


def test_no_compiler_is_said_in_a_sentence(tmp_path):
    code = "from lesson.machine import emulator; print(emulator.available())"
    done = in_child(code, PATH=str(tmp_path), CXX="")
    assert "(False, 'no C++ compiler was found: install g++" in done.stdout, done.stderr
    done = in_child(code, CXX="no-such-compiler")
    assert "CXX is 'no-such-compiler', which is no program that can be run" in done.stdout
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'fatal error: out of order' >&2\nexit 1\n")
    broken.chmod(0o755)
    done = in_child(code, CXX=str(broken))
    assert "(False," in done.stdout and "out of order" in done.stdout, done.stderr


def test_other_systems_are_said_in_a_sentence(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    ready, reason = emulator.available()
    assert not ready and "runs on Linux" in reason


def test_needs_no_home_and_leaves_nothing_behind(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = in_child(TRIAL, HOME="/nonexistent", TMPDIR=str(scratch), PYTHONDONTWRITEBYTECODE="1")
    assert done.returncode == 0 and "[1. 1. 1. 1.]" in done.stdout, done.stderr
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("add, said", [
    ("-DEMULATOR_PORTABLE", 'exec'),  # as on machines other than x86-64
    ("", 'if [ "$1" = --version ]; then echo "g++ 11.4.0"; else exec'),  # without a mark for locals
], ids=["another machine", "an older compiler"])
def test_other_machines_and_older_compilers(tmp_path, add, said):
    import shutil

    real, wrapper = shutil.which(os.environ.get("CXX") or "g++"), tmp_path / "wrapper"
    end = "; fi" if said.startswith("if") else ""
    wrapper.write_text(f'#!/bin/sh\n{said} {real} {add} "$@"{end}\n')
    wrapper.chmod(0o755)
    code = TRIAL.replace("b[threadIdx.x] = 1.0f;", "__shared__ float s[4]; float y[2]; "
                         "s[threadIdx.x] = 1.0f; __syncthreads(); __shfl_sync(15u, 1.0f, 0); "
                         "b[threadIdx.x] = s[3 - threadIdx.x] + 0.0f * (b ? 0.0f : y[1]);")
    done = in_child(code, CXX=str(wrapper), XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.returncode == 0 and "[1. 1. 1. 1.]" in done.stdout, done.stderr


def test_threads_may_share_a_backend(backend):
    from concurrent.futures import ThreadPoolExecutor

    def one(i):
        b, _ = run(backend, f"b[threadIdx.x] = a[threadIdx.x] + {i % 3};")
        return np.array_equal(b, np.arange(32) + i % 3)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(one, range(12)))


def test_a_failed_launch_leaves_the_process_and_its_arrays_alone(backend):
    b = backend.full((32,), 7)
    broken = program(backend, "b[threadIdx.x] = 1.0f; b[n + threadIdx.x] = 2.0f;")
    with pytest.raises(LaunchError):
        broken.launch("mine", (1,), (32,), (backend.full((32,), 0), b, 32))
    assert (backend.get(b) == 7).all()


def test_a_launch_returns_bytes_and_no_time(backend):
    _, counts = run(backend, "b[threadIdx.x] = 1.0f;")
    assert list(vars(counts)) == ["loads_bytes", "stores_bytes", "notes"]
