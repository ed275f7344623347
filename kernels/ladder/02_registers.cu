// Rung 2: the state of a row really is in registers.
//
// What changes: the loops over the 8 rows of a warp are unrolled. Registers have no index, so m[r]
// can be one only where the compiler knows r; rung 1, the lesson's kernel, kept m, l and o in local
// memory.
// What it buys: 32 bytes a thread, row and tile no longer travel to the cache and back, 512 MiB at
// N = 4096. And 8 rows are computed side by side: while one waits for a shuffle, the others go on.
// What it costs: more than 200 registers a thread, where rung 1 has 40 on an H200 and 56 on a T4.
// So one block on an SM.
// Prediction: the bytes are a tenth of the time and the waiting is more: 1.3 times faster.

constexpr int D = 64;               // width of the head
constexpr int BM = 64;              // query rows of a block
constexpr int BN = 32;              // keys of a tile
constexpr int WARPS = 8;
constexpr int THREADS = 32 * WARPS;
constexpr int R = BM / WARPS;       // query rows of a warp
constexpr unsigned FULL = 0xffffffffu;

static_assert(BN == 32, "a tile must have 32 keys: one lane scores one key");
static_assert(D == 2 * 32, "d must be 64: a lane owns 2 of the 64 output columns");
static_assert(BM % WARPS == 0, "a block's query rows must divide evenly among its warps");
static_assert((BM * D + BN * (D + 1) + BN * D) * 4 <= 48 * 1024,
              "the tiles must fit in 48 KiB: what a block gets on a T4 without opting in");

__device__ float warpMax(float x)
{
    for (int offset = 16; offset > 0; offset /= 2)
        x = fmaxf(x, __shfl_xor_sync(FULL, x, offset));
    return x;
}

__device__ float warpSum(float x)
{
    for (int offset = 16; offset > 0; offset /= 2)
        x += __shfl_xor_sync(FULL, x, offset);
    return x;
}

// Assumes blockDim = 256, gridDim = N/64.
extern "C" __global__ void __launch_bounds__(THREADS)
attentionOnline(const float* q, const float* k, const float* v, float* o, size_t n, float scale)
{
    __shared__ float qTile[BM][D];
    __shared__ float kTile[BN][D + 1];   // 32 lanes read 32 rows: the pad puts them in 32 banks
    __shared__ float vTile[BN][D];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t row0 = (size_t)blockIdx.x * BM;      // first query row of the block

    float m[R], l[R], o0[R], o1[R];                   // o0: column lane, o1: column lane + 32
    #pragma unroll
    for (int r = 0; r < R; ++r) {
        m[r] = __int_as_float(0xff800000);            // -inf: the first tile's rescale is exp(-inf) = 0
        l[r] = 0.0f;
        o0[r] = 0.0f;
        o1[r] = 0.0f;
    }
    for (int i = threadIdx.x; i < BM * D; i += THREADS)
        qTile[i / D][i % D] = q[row0 * D + i];                           // 4 N d bytes in all

    for (size_t key0 = 0; key0 < n; key0 += BN) {
        for (int i = threadIdx.x; i < BN * D; i += THREADS) {
            kTile[i / D][i % D] = k[key0 * D + i];    // 4 N d bytes per block: N/64 times in all
            vTile[i / D][i % D] = v[key0 * D + i];    // the same
        }
        __syncthreads();   // the tiles are read by all warps: they must be complete first

        #pragma unroll
        for (int r = 0; r < R; ++r) {
            const int row = warp * R + r;
            float s = 0.0f;
            for (int e = 0; e < D; ++e)
                s += qTile[row][e] * kTile[lane][e];
            s *= scale;

            const float mNew = fmaxf(m[r], warpMax(s));
            const float rescale = expf(m[r] - mNew);
            const float w = expf(s - mNew);
            m[r] = mNew;
            l[r] = l[r] * rescale + warpSum(w);
            float a0 = o0[r] * rescale, a1 = o1[r] * rescale;
            for (int j = 0; j < BN; ++j) {
                const float wj = __shfl_sync(FULL, w, j);   // the weight of key j, from its lane
                a0 += wj * vTile[j][lane];
                a1 += wj * vTile[j][lane + 32];
            }
            o0[r] = a0;
            o1[r] = a1;
        }
        __syncthreads();   // the next tile overwrites K and V: all reads must be over
    }

    #pragma unroll
    for (int r = 0; r < R; ++r) {
        const size_t row = row0 + warp * R + r;
        o[row * D + lane] = o0[r] / l[r];                                // 4 N d bytes in all
        o[row * D + lane + 32] = o1[r] / l[r];
    }
}
// Requested: Q and O once, K and V once per query tile = 8 N d + 8 N d (N/64) bytes.
