"""Kernels of the kinds that a reader brings: each runs emulated, unedited, and agrees with NumPy.

Reductions, scans, transposes, tiled products, softmax, layer norm, histograms, atomics.
"""

import numpy as np
import pytest
from lesson.errors import ArgumentError, CompileError, LaunchError, RaceError, UndefinedError
from lesson.show.run import run
from support.emulated import needs_compiler

pytestmark = needs_compiler
RNG = np.random.default_rng(11)
F = np.float32


def floats(*shape):
    return RNG.standard_normal(shape).astype(F)


def empty(*shape, dtype=F):
    return np.full(shape, np.nan, dtype)


def launch(text, kernel, grid, block, *args, **more):
    return run(text, kernel, grid, block, *args, on="emulated", **more)


def close(got, want, rtol=1e-5, atol=1e-6):
    assert got.shape == np.shape(want)
    assert np.allclose(got, want, rtol=rtol, atol=atol)


# ---- reductions ---------------------------------------------------------------------------------

SUM_TREE = """
extern "C" __global__ void sumTree(const float* x, float* partial, int n) {
    extern __shared__ float part[];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x * 2 + t;
    part[t] = (i < n ? x[i] : 0.0f) + (i + blockDim.x < n ? x[i + blockDim.x] : 0.0f);
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half >>= 1) {
        if (t < half) part[t] += part[t + half];
        __syncthreads();
    }
    if (t == 0) partial[blockIdx.x] = part[0];
}
"""


def test_sum_by_a_tree_in_shared_memory():
    x = floats(1000)
    got = launch(SUM_TREE, "sumTree", 4, 128, x, empty(4), 1000, shared=512)["partial"]
    close(got, np.pad(x, (0, 24)).reshape(4, 256).sum(axis=1))


SUM_WARPS = """
__inline__ __device__ float warpReduce(float v) {
    for (int offset = warpSize / 2; offset > 0; offset /= 2)
        v += __shfl_down_sync(0xffffffff, v, offset);
    return v;
}
extern "C" __global__ void sumWarps(const float4* __restrict__ x, float* __restrict__ y, int n4) {
    static __shared__ float sums[32];
    float v = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n4; i += blockDim.x * gridDim.x) {
        float4 four = x[i];
        v += four.x + four.y + four.z + four.w;
    }
    int lane = threadIdx.x % warpSize, warp = threadIdx.x / warpSize;
    v = warpReduce(v);
    if (lane == 0) sums[warp] = v;
    __syncthreads();
    v = threadIdx.x < blockDim.x / warpSize ? sums[lane] : 0.0f;
    if (warp == 0) v = warpReduce(v);
    if (threadIdx.x == 0) atomicAdd(y, v);
}
"""


def test_sum_by_shuffles_and_one_atomic_a_block():
    x = floats(4096)
    done = launch(SUM_WARPS, "sumWarps", 3, 160, x, np.zeros(1, F), 1024)
    close(done["y"], [x.sum(dtype=np.float64)], atol=1e-4)


LAST_BLOCK = """
__device__ unsigned int arrived = 0;
template <unsigned W> __device__ float blockSum(float v) {
    __shared__ float part[W];
    part[threadIdx.x] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
        for (int i = threadIdx.x + 32; i < W; i += 32) v += part[i];
        for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(~0u, v, offset);
    }
    __syncthreads();
    return v;
}
extern "C" __global__ void sumAll(const float* x, volatile float* partial, float* y, int n) {
    __shared__ bool isLast;
    float v = 0.0f;
    for (int i = blockIdx.x * 96 + threadIdx.x; i < n; i += gridDim.x * 96) v += x[i];
    v = blockSum<96>(v);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = v;
        __threadfence();
        isLast = atomicInc(&arrived, gridDim.x) == gridDim.x - 1;
    }
    __syncthreads();
    if (isLast) {
        v = 0.0f;
        for (int i = threadIdx.x; i < gridDim.x; i += 96) v += partial[i];
        v = blockSum<96>(v);
        if (threadIdx.x == 0) {
            *y = v;
            arrived = 0;
        }
    }
}
"""


def test_sum_in_one_launch_by_the_last_block():
    x = floats(5000)
    done = launch(LAST_BLOCK, "sumAll", 40, 96, x, empty(40), empty(1), 5000)
    close(done["y"], [x.sum(dtype=np.float64)], atol=1e-4)


MAX_CAS = """
__device__ float atomicMaxFloat(float* address, float value) {
    int* bits = (int*)address;
    int old = *bits, assumed;
    do {
        assumed = old;
        old = atomicCAS(bits, assumed, __float_as_int(fmaxf(value, __int_as_float(assumed))));
    } while (old != assumed);
    return __int_as_float(old);
}
extern "C" __global__ void maxAll(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicMaxFloat(y, x[i]);
}
"""


def test_maximum_by_compare_and_swap():
    x = floats(700)
    close(launch(MAX_CAS, "maxAll", 6, 128, x, np.full(1, -np.inf, F), 700)["y"], [x.max()])


ARGMAX = """
struct Best { float value; int index; };
__device__ Best better(Best a, Best b) {
    return a.value > b.value || (a.value == b.value && a.index < b.index) ? a : b;
}
extern "C" __global__ void argmaxRows(const float* x, int* index, float* value, int columns) {
    __shared__ Best best[64];
    const float* row = x + (size_t)blockIdx.x * columns;
    Best mine = {-3.402823466e+38f, -1};
    for (int c = threadIdx.x; c < columns; c += blockDim.x) mine = better(mine, Best{row[c], c});
    best[threadIdx.x] = mine;
    for (int half = blockDim.x / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            best[threadIdx.x] = better(best[threadIdx.x], best[threadIdx.x + half]);
    }
    if (threadIdx.x == 0) {
        index[blockIdx.x] = best[0].index;
        value[blockIdx.x] = best[0].value;
    }
}
"""


def test_argmax_of_rows():
    x = floats(7, 150)
    x[3, 20] = x[3, 110] = 9
    done = launch(ARGMAX, "argmaxRows", 7, 64, x, np.zeros(7, np.int32), empty(7), 150)
    assert np.array_equal(done["index"], x.argmax(axis=1))
    assert np.array_equal(done["value"], x.max(axis=1))


# ---- scans --------------------------------------------------------------------------------------

HILLIS_STEELE = """
extern "C" __global__ void scanInclusive(const int* x, int* y, int n) {
    __shared__ int buffer[2][128];
    int t = threadIdx.x, from = 0;
    buffer[0][t] = t < n ? x[t] : 0;
    __syncthreads();
    for (int step = 1; step < 128; step *= 2) {
        buffer[1 - from][t] = buffer[from][t] + (t >= step ? buffer[from][t - step] : 0);
        from = 1 - from;
        __syncthreads();
    }
    if (t < n) y[t] = buffer[from][t];
}
"""


def test_inclusive_scan_with_two_buffers():
    x = RNG.integers(-9, 9, 100).astype(np.int32)
    got = launch(HILLIS_STEELE, "scanInclusive", 1, 128, x, np.zeros(100, np.int32), 100)["y"]
    assert np.array_equal(got, np.cumsum(x))


BLELLOCH = """
#define PAD(i) ((i) + ((i) >> 5))
extern "C" __global__ void scanExclusive(const float* x, float* y, float* total) {
    __shared__ float s[256 + 8];
    int t = threadIdx.x;
    s[PAD(t)] = x[t];
    s[PAD(t + 128)] = x[t + 128];
    int stride = 1;
    for (int d = 128; d > 0; d >>= 1, stride <<= 1) {
        __syncthreads();
        if (t < d) s[PAD(stride * (2 * t + 2) - 1)] += s[PAD(stride * (2 * t + 1) - 1)];
    }
    if (t == 0) {
        *total = s[PAD(255)];
        s[PAD(255)] = 0.0f;
    }
    for (int d = 1; d < 256; d <<= 1) {
        stride >>= 1;
        __syncthreads();
        if (t < d) {
            int a = PAD(stride * (2 * t + 1) - 1), b = PAD(stride * (2 * t + 2) - 1);
            float left = s[a];
            s[a] = s[b];
            s[b] += left;
        }
    }
    __syncthreads();
    y[t] = s[PAD(t)];
    y[t + 128] = s[PAD(t + 128)];
}
"""


def test_exclusive_scan_up_and_down_a_tree():
    x = RNG.integers(0, 5, 256).astype(F)
    done = launch(BLELLOCH, "scanExclusive", 1, 128, x, empty(256), empty(1))
    assert np.array_equal(done["y"], np.cumsum(x) - x) and done["total"] == x.sum()


SCAN_WARPS = """
__device__ int scanWarp(int v) {
    int lane = threadIdx.x & 31;
    #pragma unroll
    for (int step = 1; step < 32; step <<= 1) {
        int before = __shfl_up_sync(0xffffffffu, v, step);
        if (lane >= step) v += before;
    }
    return v;
}
extern "C" __global__ void scanBlocks(const int* x, int* y, int* blockSums, int n) {
    __shared__ int warpSums[8];
    int i = blockIdx.x * blockDim.x + threadIdx.x, warp = threadIdx.x >> 5;
    int v = scanWarp(i < n ? x[i] : 0);
    if ((threadIdx.x & 31) == 31) warpSums[warp] = v;
    __syncthreads();
    if (warp == 0) {
        int s = scanWarp(threadIdx.x < 8 ? warpSums[threadIdx.x] : 0);
        if (threadIdx.x < 8) warpSums[threadIdx.x] = s;
    }
    __syncthreads();
    if (warp > 0) v += warpSums[warp - 1];
    if (i < n) y[i] = v;
    if (threadIdx.x == blockDim.x - 1) blockSums[blockIdx.x] = v;
}
extern "C" __global__ void addBlocks(int* y, const int* blockSums, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, before = 0;
    for (int b = 0; b < blockIdx.x; ++b) before += blockSums[b];
    if (i < n) y[i] += before;
}
"""


def test_scan_over_blocks_in_two_launches():
    n = 1500
    x = RNG.integers(-5, 9, n).astype(np.int32)
    first = launch(SCAN_WARPS, "scanBlocks", 6, 256, x, np.zeros(n, np.int32),
                   np.zeros(6, np.int32), n)
    done = launch(SCAN_WARPS, "addBlocks", 6, 256, first["y"], first["blockSums"], n)
    assert np.array_equal(done["y"], np.cumsum(x))


# ---- transposes ---------------------------------------------------------------------------------

TRANSPOSE = """
template <typename T, int TILE, int ROWS>
__device__ void transposeTile(const T* in, T* out, int width, int height) {
    __shared__ T tile[TILE][TILE + 1];
    int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += ROWS)
        if (x < width && y + j < height)
            tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * width + x];
    __syncthreads();
    x = blockIdx.y * TILE + threadIdx.x;
    y = blockIdx.x * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += ROWS)
        if (x < height && y + j < width)
            out[(y + j) * height + x] = tile[threadIdx.x][threadIdx.y + j];
}
extern "C" __global__ void transpose(const float* in, float* out, int width, int height) {
    transposeTile<float, 32, 8>(in, out, width, height);
}
extern "C" __global__ void transposeDoubles(const double* in, double* out, int width, int height) {
    transposeTile<double, 16, 16>(in, out, width, height);
}
"""


def test_transpose_through_a_padded_tile():
    x = floats(70, 45)
    done = launch(TRANSPOSE, "transpose", (2, 3), (32, 8), x, empty(45, 70), 45, 70)
    assert np.array_equal(done["out"], x.T)
    x = x.astype(np.float64)
    done = launch(TRANSPOSE, "transposeDoubles", (3, 5), (16, 16), x, empty(45, 70, dtype=float),
                  45, 70)
    assert np.array_equal(done["out"], x.T)


SWIZZLE = """
extern "C" __global__ void transposeInPlace(float* a, int n) {
    __shared__ float upper[16][16], lower[16][16];
    int tx = threadIdx.x, ty = threadIdx.y, bx = blockIdx.x, by = blockIdx.y;
    if (bx < by) return;                       // whole blocks leave
    float* p = a + (by * 16 + ty) * n + bx * 16 + tx;
    float* q = a + (bx * 16 + ty) * n + by * 16 + tx;
    upper[ty][tx ^ ty] = *p;                   // the column is swizzled: no bank conflict
    lower[ty][tx ^ ty] = *q;
    __syncthreads();
    *q = upper[tx][ty ^ tx];
    if (bx != by) *p = lower[tx][ty ^ tx];
}
"""


def test_transpose_in_place_with_a_swizzle():
    x = floats(64, 64)
    assert np.array_equal(launch(SWIZZLE, "transposeInPlace", (4, 4), (16, 16), x, 64)["a"], x.T)


# ---- products -----------------------------------------------------------------------------------

SGEMM_NAIVE = """
extern "C" __global__ void sgemmNaive(int M, int N, int K, float alpha, const float* A,
                                      const float* B, float beta, float* C) {
    const unsigned x = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < M && y < N) {
        float tmp = 0.0;
        for (int i = 0; i < K; ++i) tmp += A[x * K + i] * B[i * N + y];
        C[x * N + y] = alpha * tmp + beta * C[x * N + y];
    }
}
"""
SGEMM_TILED = """
#define TILE 16
extern "C" __global__ void sgemmTiled(const float* A, const float* B, float* C, int M, int N, int K)
{
    __shared__ float As[TILE][TILE], Bs[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
    float acc = 0.f;
    for (int k0 = 0; k0 < (K + TILE - 1) / TILE; ++k0) {
        int ak = k0 * TILE + threadIdx.x, bk = k0 * TILE + threadIdx.y;
        As[threadIdx.y][threadIdx.x] = row < M && ak < K ? A[row * K + ak] : 0.f;
        Bs[threadIdx.y][threadIdx.x] = bk < K && col < N ? B[bk * N + col] : 0.f;
        __syncthreads();
        #pragma unroll
        for (int k = 0; k < TILE; ++k) acc = fmaf(As[threadIdx.y][k], Bs[k][threadIdx.x], acc);
        __syncthreads();
    }
    if (row < M && col < N) C[row * N + col] = acc;
}
"""
SGEMM_REGISTERS = """
constexpr int BM = 32, BN = 32, BK = 8, TM = 4, TN = 4;
extern "C" __global__ void __launch_bounds__((BM * BN) / (TM * TN), 1)
sgemmRegisters(const float *A, const float *B, float *C, int N, int K) {
    __shared__ float As[BK * BM];   // transposed
    __shared__ float Bs[BK * BN];
    const int threadCol = threadIdx.x % (BN / TN), threadRow = threadIdx.x / (BN / TN);
    const int innerRowA = threadIdx.x / (BK / 4), innerColA = threadIdx.x % (BK / 4);
    const int innerRowB = threadIdx.x / (BN / 4), innerColB = threadIdx.x % (BN / 4);
    A += blockIdx.y * BM * K;
    B += blockIdx.x * BN;
    C += blockIdx.y * BM * N + blockIdx.x * BN;
    float sums[TM * TN] = {0.0}, regM[TM], regN[TN];
    for (int k0 = 0; k0 < K; k0 += BK) {
        float4 a = reinterpret_cast<const float4 *>(&A[innerRowA * K + innerColA * 4])[0];
        As[(innerColA * 4 + 0) * BM + innerRowA] = a.x;
        As[(innerColA * 4 + 1) * BM + innerRowA] = a.y;
        As[(innerColA * 4 + 2) * BM + innerRowA] = a.z;
        As[(innerColA * 4 + 3) * BM + innerRowA] = a.w;
        reinterpret_cast<float4 *>(&Bs[innerRowB * BN + innerColB * 4])[0] =
            reinterpret_cast<const float4 *>(&B[innerRowB * N + innerColB * 4])[0];
        __syncthreads();
        A += BK;
        B += BK * N;
        for (int k = 0; k < BK; ++k) {
            for (int i = 0; i < TM; ++i) regM[i] = As[k * BM + threadRow * TM + i];
            for (int i = 0; i < TN; ++i) regN[i] = Bs[k * BN + threadCol * TN + i];
            for (int m = 0; m < TM; ++m)
                for (int n = 0; n < TN; ++n) sums[m * TN + n] += regM[m] * regN[n];
        }
        __syncthreads();
    }
    for (int m = 0; m < TM; ++m) {
        const float *row = sums + m * TN;
        float4 four = make_float4(row[0], row[1], row[2], row[3]);
        reinterpret_cast<float4 *>(&C[(threadRow * TM + m) * N + threadCol * TN])[0] = four;
    }
}
"""
SPLIT_K = """
extern "C" __global__ void splitK(const float* A, const float* B, float* C, int N, int K) {
    int col = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y, k0 = blockIdx.z * 32;
    float sum = 0.0f;
    for (int k = k0; k < min(k0 + 32, K); ++k) sum += A[row * K + k] * B[k * N + col];
    atomicAdd(&C[row * N + col], sum);
}
"""
MATVEC = """
extern "C" __global__ void matvec(const float* __restrict__ A, const float* __restrict__ x,
                                  float* y, int rows, int columns) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;                   // whole warps leave
    float sum = 0.0f;
    for (int c = lane; c < columns; c += 32) sum += __ldg(A + row * columns + c) * __ldg(x + c);
    for (int offset = 16; offset; offset >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, offset);
    if (!lane) y[row] = sum;
}
"""


def test_product_of_matrices_one_thread_an_element():
    a, b, c = floats(30, 20), floats(20, 25), floats(30, 25)
    done = launch(SGEMM_NAIVE, "sgemmNaive", (2, 2), (16, 16), 30, 25, 20, 0.5, a, b, 2.0, c)
    close(done["C"], 0.5 * a @ b + 2 * c)


def test_product_of_matrices_in_tiles():
    a, b = floats(37, 50), floats(50, 45)
    done = launch(SGEMM_TILED, "sgemmTiled", (3, 3), (16, 16), a, b, empty(37, 45), 37, 45, 50)
    close(done["C"], a @ b, atol=1e-5)


def test_product_of_matrices_in_registers():
    a, b = floats(64, 40), floats(40, 96)
    done = launch(SGEMM_REGISTERS, "sgemmRegisters", (3, 2), 64, a, b, empty(64, 96), 96, 40)
    close(done["C"], a @ b, atol=1e-5)


def test_product_of_matrices_with_k_split_over_blocks():
    a, b = floats(6, 300), floats(300, 64)
    done = launch(SPLIT_K, "splitK", (2, 6, 10), 32, a, b, np.zeros((6, 64), F), 64, 300)
    close(done["C"], a @ b, atol=1e-4)
    assert "rounding" in done.report.footer and "no race" in done.report.footer


def test_matrix_times_vector_a_warp_a_row():
    a, x = floats(50, 70), floats(70)
    close(launch(MATVEC, "matvec", 13, 128, a, x, empty(50), 50, 70)["y"], a @ x, atol=1e-5)


# ---- softmax and layer norm ---------------------------------------------------------------------

SOFTMAX_ONLINE = """
struct __align__(8) MD { float m, d; };
__device__ __forceinline__ MD join(MD a, MD b) {
    bool bigger = a.m > b.m;
    MD big = bigger ? a : b, small = bigger ? b : a;
    return {big.m, big.d + small.d * __expf(small.m - big.m)};
}
extern "C" __global__ void softmaxOnline(const float* x, float* y, int rows, int columns) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int row = blockIdx.x * (blockDim.x / 32) + warp;
    if (row >= rows) return;
    x += row * columns;
    y += row * columns;
    MD total = {-__int_as_float(0x7f800000), 0.0f};
    for (int c = lane; c < columns; c += 32) total = join(total, MD{__ldcs(x + c), 1.0f});
    for (int offset = 16; offset > 0; offset /= 2) {
        MD other = {__shfl_xor_sync(~0u, total.m, offset), __shfl_xor_sync(~0u, total.d, offset)};
        total = join(total, other);
    }
    for (int c = lane; c < columns; c += 32)
        __stcs(y + c, __fdividef(__expf(__ldcs(x + c) - total.m), total.d));
}
"""
SOFTMAX_BLOCK = """
__device__ float blockAll(float v, bool isMax, float* part) {
    for (int offset = 16; offset > 0; offset /= 2) {
        float other = __shfl_xor_sync(~0u, v, offset);
        v = isMax ? fmaxf(v, other) : v + other;
    }
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = part[0];
    for (int w = 1; w < blockDim.x / 32; ++w) v = isMax ? fmaxf(v, part[w]) : v + part[w];
    __syncthreads();
    return v;
}
extern "C" __global__ void softmaxBlock(const float* in, float* out, int columns) {
    extern __shared__ float shared[];
    const float* x = in + blockIdx.x * columns;
    float top = -10000.0f * 3e34f, sum = 0.0f;
    for (int c = threadIdx.x; c < columns; c += blockDim.x) top = fmaxf(top, x[c]);
    top = blockAll(top, true, shared);
    for (int c = threadIdx.x; c < columns; c += blockDim.x) {
        float w = expf(x[c] - top);
        out[blockIdx.x * columns + c] = w;
        sum += w;
    }
    sum = blockAll(sum, false, shared);
    for (int c = threadIdx.x; c < columns; c += blockDim.x) out[blockIdx.x * columns + c] /= sum;
}
"""
LAYER_NORM = """
extern "C" __global__ void layerNorm(float* __restrict__ out, float* __restrict__ mean,
                                     float* __restrict__ rstd, const float* __restrict__ inp,
                                     const float* __restrict__ weight,
                                     const float* __restrict__ bias, int C) {
    __shared__ float shared[64];
    int t = threadIdx.x;
    const float* x = inp + blockIdx.x * C;
    float sum = 0.0f, sum2 = 0.0f;
    for (int i = t; i < C; i += blockDim.x) { sum += x[i]; sum2 += x[i] * x[i]; }
    for (int offset = 16; offset > 0; offset >>= 1) {
        sum += __shfl_xor_sync(0xFFFFFFFFU, sum, offset);
        sum2 += __shfl_xor_sync(0xFFFFFFFFU, sum2, offset);
    }
    int warp = t / 32, lane = t % 32, warps = blockDim.x / 32;
    if (lane == 0) { shared[warp] = sum; shared[32 + warp] = sum2; }
    __syncthreads();
    sum = lane < warps ? shared[lane] : 0.0f;
    sum2 = lane < warps ? shared[32 + lane] : 0.0f;
    for (int offset = 16; offset > 0; offset >>= 1) {
        sum += __shfl_xor_sync(0xFFFFFFFFU, sum, offset);
        sum2 += __shfl_xor_sync(0xFFFFFFFFU, sum2, offset);
    }
    float m = sum / C, s = rsqrtf(sum2 / C - m * m + 1e-5f);
    if (t == 0) { mean[blockIdx.x] = m; __stcs(rstd + blockIdx.x, s); }
    for (int i = t; i < C; i += blockDim.x)
        out[blockIdx.x * C + i] = s * (x[i] - m) * weight[i] + bias[i];
}
"""
WELFORD = """
extern "C" __global__ void normRows(const double* x, double* y, int columns) {
    int lane = threadIdx.x;
    const double* row = x + (size_t)blockIdx.x * columns;
    double mean = 0.0, m2 = 0.0;
    int count = 0;
    for (int c = lane; c < columns; c += 32) {
        double delta = row[c] - mean;
        mean += delta / ++count;
        m2 += delta * (row[c] - mean);
    }
    for (int offset = 16; offset; offset /= 2) {
        double otherMean = __shfl_xor_sync(~0u, mean, offset);
        double otherM2 = __shfl_xor_sync(~0u, m2, offset);
        int otherCount = __shfl_xor_sync(~0u, count, offset), all = count + otherCount;
        if (all > 0) {
            // Both lanes of a pair must round alike: the one with the lower number goes first.
            bool first = !(lane & offset);
            double ma = first ? mean : otherMean, mb = first ? otherMean : mean;
            double qa = first ? m2 : otherM2, qb = first ? otherM2 : m2;
            int na = first ? count : otherCount, nb = all - na;
            double delta = mb - ma;
            mean = ma + delta * nb / all;
            m2 = qa + qb + delta * delta * na * nb / all;
            count = all;
        }
    }
    double scale = rsqrt(m2 / count + 1e-12);
    y += (size_t)blockIdx.x * columns;
    for (int c = lane; c < columns; c += 32) y[c] = (row[c] - mean) * scale;
}
"""


def softmax(x):
    e = np.exp(x.astype(float) - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def test_online_softmax_a_warp_a_row():
    x = 10 * floats(9, 75)
    done = launch(SOFTMAX_ONLINE, "softmaxOnline", 3, 128, x, empty(9, 75), 9, 75)
    close(done["y"], softmax(x))


def test_softmax_a_block_a_row():
    x = 10 * floats(5, 200)
    done = launch(SOFTMAX_BLOCK, "softmaxBlock", 5, 96, x, empty(5, 200), 200, shared=12)
    close(done["out"], softmax(x))


def test_layer_norm_with_its_statistics():
    x, w, b = floats(6, 100), floats(100), floats(100)
    done = launch(LAYER_NORM, "layerNorm", 6, 128, empty(6, 100), empty(6), empty(6), x, w, b, 100)
    mean, rstd = x.mean(axis=1), 1 / np.sqrt(x.var(axis=1) + 1e-5)
    close(done["mean"], mean)
    close(done["rstd"], rstd)
    close(done["out"], (x - mean[:, None]) * rstd[:, None] * w + b, atol=1e-5)


def test_norm_by_welford_s_recurrence():
    x = 1e3 + RNG.standard_normal((4, 90))
    got = launch(WELFORD, "normRows", 4, 32, x, empty(4, 90, dtype=float), 90)["y"]
    close(got, (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True), rtol=1e-9)


# ---- histograms and atomics ---------------------------------------------------------------------

HISTOGRAM = """
extern "C" __global__ void histogramGlobal(const unsigned char* data, unsigned* bins, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&bins[data[i]], 1);
}
extern "C" __global__ void histogramShared(const unsigned char* data, unsigned* bins, int n) {
    __shared__ unsigned own[256];
    for (int b = threadIdx.x; b < 256; b += blockDim.x) own[b] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(own + data[i], 1u);
    __syncthreads();
    for (int b = threadIdx.x; b < 256; b += blockDim.x)
        if (own[b]) atomicAdd(bins + b, own[b]);
}
extern "C" __global__ void histogramWarps(const unsigned char* data, unsigned* bins, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned here = __ballot_sync(0xffffffffu, i < n);
    if (i < n) {
        unsigned same = __match_any_sync(here, (int)data[i]);
        if (__ffs(same) - 1 == threadIdx.x % 32) atomicAdd(bins + data[i], __popc(same));
    }
}
"""


@pytest.mark.parametrize("kernel", ["histogramGlobal", "histogramShared", "histogramWarps"])
def test_histograms(kernel):
    data = (RNG.standard_normal(1000) * 20 + 128).astype(np.uint8)
    done = launch(HISTOGRAM, kernel, 8, 128, data, np.zeros(256, np.uint32), 1000)
    assert np.array_equal(done["bins"], np.bincount(data, minlength=256))


SCATTER = """
extern "C" __global__ void embeddingBackward(float* grad, const int* tokens, const float* out,
                                             int C, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n * C) return;
    atomicAdd(grad + tokens[i / C] * C + i % C, out[i]);
}
extern "C" __global__ void countDistinct(const int* keys, int* table, int* count, int n, int size) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned at = (unsigned)keys[i] * 2654435761u % size;
    while (true) {                              // linear probing
        int old = atomicCAS(table + at, -1, keys[i]);
        if (old == -1) atomicAdd(count, 1);
        if (old == -1 || old == keys[i]) return;
        at = (at + 1) % size;
    }
}
"""


def test_sums_scattered_by_an_index():
    tokens, out = RNG.integers(0, 5, 40).astype(np.int32), floats(40, 12)
    done = launch(SCATTER, "embeddingBackward", 4, 128, np.zeros((5, 12), F), tokens, out, 12, 40)
    want = np.zeros((5, 12))
    np.add.at(want, tokens, out)
    close(done["grad"], want, atol=1e-5)


def test_a_hash_table_counts_what_is_distinct():
    keys = RNG.integers(0, 60, 200).astype(np.int32)
    with pytest.raises(RaceError, match="depends on the order"):  # where a key lies in the table
        launch(SCATTER, "countDistinct", 2, 128, keys, np.full(67, -1, np.int32),
               np.zeros(1, np.int32), 200, 67)
    text = SCATTER.replace("int* table, int* count", "int* count").replace(
        'extern "C" __global__ void countD',
        '__device__ int table[67];  // zeros\nextern "C" __global__ void countD').replace(
        "table + at, -1, keys[i]", "table + at, 0, keys[i]").replace("old == -1", "old == 0")
    done = launch(text, "countDistinct", 2, 128, keys + 1, np.zeros(1, np.int32), 200, 67)
    assert done["count"] == len(set(keys.tolist()))


# ---- others -------------------------------------------------------------------------------------

SORT = """
extern "C" __global__ void bitonicSort(int* keys) {
    __shared__ int s[256];
    int t = threadIdx.x;
    s[t] = keys[t];
    __syncthreads();
    for (int k = 2; k <= 256; k <<= 1)
        for (int j = k >> 1; j > 0; j >>= 1) {
            int partner = t ^ j;
            if (partner > t) {
                int a = s[t], b = s[partner];
                if ((a > b) == ((t & k) == 0)) { s[t] = b; s[partner] = a; }
            }
            __syncthreads();
        }
    keys[t] = s[t];
}
"""
CONVOLUTION = """
#define RADIUS 3
__constant__ float taps[2 * RADIUS + 1] = {1.f, 2.f, 3.f, 4.f, 3.f, 2.f, 1.f};
extern "C" __global__ void convolve(const float* in, float* out, int n) {
    __shared__ float tile[64 + 2 * RADIUS];
    int i = blockIdx.x * 64 + threadIdx.x, t = threadIdx.x + RADIUS;
    tile[t] = i < n ? in[i] : 0.f;
    if (threadIdx.x < RADIUS) {
        tile[t - RADIUS] = i >= RADIUS ? in[i - RADIUS] : 0.f;
        tile[t + 64] = i + 64 < n ? in[i + 64] : 0.f;
    }
    __syncthreads();
    float sum = 0.f;
    #pragma unroll
    for (int k = -RADIUS; k <= RADIUS; ++k) sum += taps[k + RADIUS] * tile[t + k];
    if (i < n) out[i] = sum;
}
"""
GELU = """
#define GELU_SCALE sqrtf(2.0f / 3.14159265358979f)
extern "C" __global__ void gelu(float* out, const float* in, int n) {
    int i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i + 3 < n) {
        float4 x = *(const float4*)(in + i), y;
        float* from = (float*)&x; float* to = (float*)&y;
        for (int k = 0; k < 4; k++) {
            float v = from[k], cube = 0.044715f * v * v * v;
            to[k] = 0.5f * v * (1.0f + tanhf(GELU_SCALE * (v + cube)));
        }
        __stcs((float4*)(out + i), y);
    }
}
"""
CROSS_ENTROPY = """
extern "C" __global__ void crossEntropy(float* losses, const float* logits, const int* targets,
                                        int rows, int V) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        const float* x = logits + row * V;
        float top = -1e30f, sum = 0.0f;
        for (int v = 0; v < V; ++v) {
            float before = top;
            top = fmaxf(top, x[v]);
            sum = sum * expf(before - top) + expf(x[v] - top);
        }
        losses[row] = logf(sum) + top - x[targets[row]];
    }
}
"""


def test_bitonic_sort():
    keys = RNG.integers(-1000, 1000, 256).astype(np.int32)
    assert np.array_equal(launch(SORT, "bitonicSort", 1, 256, keys)["keys"], np.sort(keys))


def test_convolution_with_a_halo():
    x = floats(200)
    got = launch(CONVOLUTION, "convolve", 4, 64, x, empty(200), 200)["out"]
    close(got, np.convolve(x, [1, 2, 3, 4, 3, 2, 1], "same"), atol=1e-5)


def test_gelu_four_at_a_time():
    x = floats(512)
    want = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    close(launch(GELU, "gelu", 2, 64, empty(512), x, 512)["out"], want)


def test_cross_entropy():
    x, targets = floats(20, 33), RNG.integers(0, 33, 20).astype(np.int32)
    got = launch(CROSS_ENTROPY, "crossEntropy", 1, 32, empty(20), x, targets, 20, 33)["losses"]
    close(got, -np.log(softmax(x)[np.arange(20), targets]), atol=1e-5)


# ---- what run() takes and gives back ------------------------------------------------------------

TWICE = 'extern "C" __global__ void twice(const float* x, float* y) { int i = threadIdx.x;\n' \
        "    y[i] = 2.0f * x[i]; }"


def test_arrays_are_copied_and_given_back_by_name_and_place():
    x, y = np.arange(4, dtype=F), empty(4)
    done = launch(TWICE, "twice", 1, 4, x, y)
    assert done["y"].tolist() == done[1].tolist() == [0, 2, 4, 6] and np.isnan(y).all()
    assert type(done["y"]) is np.ndarray and np.array_equal(done["x"], x)
    with pytest.raises(ArgumentError, match="no array is called 'z'; the arrays are: x, y"):
        done["z"]
    assert launch(TWICE, "twice", 1, 4, x, x)["x"].tolist() == [0, 2, 4, 6]  # one array


def test_a_strided_array_is_passed_as_its_elements():
    x = np.arange(16, dtype=F).reshape(4, 4)
    assert launch(TWICE, "twice", 1, 4, x[:, 1], empty(4))["y"].tolist() == [2, 10, 18, 26]
    assert launch(TWICE, "twice", 1, 16, x.T, empty(4, 4))["y"].tolist() == (2 * x.T).tolist()


def test_the_report_shows_itself_with_its_mark():
    done = launch(TWICE, "twice", (1, 1), 4, np.ones(4, F), empty(4))
    text = repr(done)
    assert "Launch of twice [emulated, on the host" in text and "1 x 1 blocks of 4 threads" in text
    assert "races, barriers" in text and "16 bytes of global memory" in text
    assert "float32 (4,): 2, 2, 2, 2" in text and "x " not in text.split("stores")[1]
    assert "emulated" in done._repr_html_()


def test_a_kernel_from_a_file_and_one_of_the_lesson(tmp_path):
    path = tmp_path / "mine.cu"
    path.write_text(TWICE)
    for source in (path, str(path)):
        assert launch(source, "twice", 1, 4, np.ones(4, F), empty(4))["y"].tolist() == [2] * 4
    s, n = floats(3, 64), 64
    done = launch("materialised", "softmaxRows", 3, 256, s, empty(3, 64), empty(3), n)
    close(done["p"] / done["rowSum"][:, None], softmax(s))


@pytest.mark.parametrize("args, error, words", [
    ((np.ones(4, F), 3.0), ArgumentError, "y is a float, and the kernel declares float"),
    ((np.ones(4), empty(4)), ArgumentError, "x has dtype float64, needs float32"),
    ((np.ones(4, F),), ArgumentError, "twice takes 2 arguments"),
    ((np.ones(3, F), empty(4)), LaunchError, r"reads x\[3\], past its end"),
])
def test_what_a_launch_refuses(args, error, words):
    with pytest.raises(error, match=words):
        launch(TWICE, "twice", 1, 4, *args)


def test_other_slips_of_a_reader():
    with pytest.raises(ArgumentError, match="grid is"):
        launch(TWICE, "twice", 1.5, 4, np.ones(4, F), empty(4))
    with pytest.raises(LaunchError, match="it defines: twice"):
        launch(TWICE, "thrice", 1, 4, np.ones(4, F), empty(4))
    with pytest.raises(CompileError, match="line 2"):
        launch(TWICE.replace("2.0f *", "2.0f"), "twice", 1, 4, np.ones(4, F), empty(4))
    with pytest.raises(UndefinedError, match="before it has written it"):
        launch(TWICE.replace("y[i] =", "y[i] +="), "twice", 1, 4, np.ones(4, F), empty(4))
    with pytest.raises(ArgumentError, match="cannot read"):
        launch("no_such_file.cu", "twice", 1, 4)
