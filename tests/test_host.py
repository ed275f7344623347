"""The emulated backend: what CUDA code means on the host, and what each mistake says."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from lesson import host, source
from lesson.errors import ArgumentError, CompileError, InputError, LaunchError, RaceError

READY, REASON = host.available()
pytestmark = pytest.mark.skipif(not READY, reason=f"the emulator needs a compiler: {REASON}")

BOOK = Path(__file__).resolve().parents[1] / "book"
FULL = "0xffffffffu"
WARP_MAX = """
__device__ float warpMax(float x) {
    for (int offset = 16; offset > 0; offset /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}
"""


@pytest.fixture(scope="module")
def backend():
    return host.HostBackend(limit_s=1.0)


def program(backend, body, params="const float* a, float* b, int n", before="", name="mine"):
    """A program with one kernel, whose body starts in line 2 of the file."""
    text = (f'extern "C" __global__ void {name}({params}) {{\n{body}\n}}\n')
    return backend.compile(source.from_text(before.replace("\n", " ") + text, f"{name}.cu"))


def run(backend, body, n=32, block=(32,), grid=(1,), a=None, shared=0, before=""):
    """Run a kernel mine(a, b, n). Returns (b, Counts)."""
    a = backend.put(np.arange(n, dtype=np.float32) if a is None else a)
    b = backend.full((n,), np.nan)
    counts = program(backend, body, before=before).launch("mine", grid, block, (a, b, n), shared)
    return backend.get(b), counts


def fails(backend, body, error=LaunchError, **how):
    """The message of a kernel that must fail, within the time a reader is promised."""
    start = time.monotonic()
    with pytest.raises(error) as caught:
        run(backend, body, **how)
    assert time.monotonic() - start < 20
    assert type(caught.value) is error
    message = str(caught.value)
    assert "/tmp" not in message and "kernel.cpp" not in message
    return message


# ---- what runs ------------------------------------------------------------------------------


def test_copies_and_counts_every_byte(backend):
    b, counts = run(backend, "int i = blockIdx.x * blockDim.x + threadIdx.x; b[i] = a[i];",
                    n=128, grid=(4,))
    assert np.array_equal(b, np.arange(128))
    assert counts == host.Counts(loads_bytes=512, stores_bytes=512)


def test_counts_rereads_and_vectors(backend):
    body = """float4 x = reinterpret_cast<const float4*>(a)[threadIdx.x % 8];
    float sum = 0.0f;
    for (int i = 0; i < n; ++i) sum += a[i];
    b[threadIdx.x] = sum + x.x + x.y + x.z + x.w;"""
    _, counts = run(backend, body)
    assert counts == host.Counts(loads_bytes=32 * 16 + 32 * 32 * 4, stores_bytes=128)


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


def test_shared_memory_starts_as_nan_in_each_block(backend):
    body = """__shared__ float tile[32];
    b[blockIdx.x * 32 + threadIdx.x] = tile[threadIdx.x];
    tile[threadIdx.x] = 1.0f;"""
    b, _ = run(backend, body, n=64, grid=(2,))
    assert np.isnan(b).all()


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


def test_printf_is_heard_once(backend, capsys):
    run(backend, 'if (threadIdx.x == 3) printf("lane %d\\n", threadIdx.x); b[threadIdx.x] = 0;')
    assert capsys.readouterr().out == "lane 3\n"
