// Rung 6: a lane scores two keys.
//
// What changes: a tile has 64 keys, and a lane scores two of them for each of its 8 rows: 8 x 2
// scores, as it has 8 x 2 outputs. All rows take each step together.
// What it buys: a number of Q now serves two keys. The work that a row needs once a tile, its
// maximum, its rescale and the barriers, comes half as often; and each lane keeps its own part of l
// until the end, so the sum over lanes goes.
// What it costs: 64.25 KiB of shared memory. A T4's SM has 64.
// Prediction: 14 % fewer instructions and a third fewer passes: 1.2 times faster.

constexpr int D = 64;               // width of the head
constexpr int BM = 64;              // query rows of a block
constexpr int BN = 64;              // keys of a tile
constexpr int WARPS = 8;
constexpr int THREADS = 32 * WARPS;
constexpr int R = BM / WARPS;       // query rows of a warp
constexpr int TM = 8;               // query rows of a thread
constexpr int TN = 2;               // keys of a thread
constexpr int TD = 2;               // output columns of a thread
constexpr int KS = D + 1;           // floats from a line of the K tile to the next
constexpr int PS = BN;              // floats from a line of the P tile to the next
constexpr unsigned FULL = 0xffffffffu;

static_assert(R == TM, "a lane must have all rows of its warp");
static_assert(BN == 32 * TN, "a tile must have 64 keys: one lane scores two");
static_assert(D == 2 * 32, "d must be 64: a lane owns 2 of the 64 output columns");
static_assert(BM % WARPS == 0, "a block's query rows must divide evenly among its warps");

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

// Past the end: the last row again.
__device__ void loadQ(float* qTile, const float* q, size_t row0, size_t n, float scale)
{
    for (int i = threadIdx.x; i < BM * D; i += THREADS) {
        const size_t row = row0 + i / D < n ? row0 + i / D : n - 1;
        qTile[i] = q[row * D + i % D] * scale;                           // 4 N d bytes in all
    }
}

__device__ void loadK(float* kTile, const float* k)
{
    for (int i = threadIdx.x; i < BN * D; i += THREADS)
        kTile[i / D * KS + i % D] = k[i];             // 4 N d bytes per block: N/64 times in all
}

__device__ void loadV(float* vTile, const float* v)
{
    for (int i = threadIdx.x; i < BN * D; i += THREADS)
        vTile[i] = v[i];                              // the same
}

__device__ void score(float (&s)[TM][TN], const float* qMine, const float* kMine)
{
    #pragma unroll 4
    for (int e = 0; e < D; ++e)
        #pragma unroll
        for (int i = 0; i < TM; ++i)
            #pragma unroll
            for (int j = 0; j < TN; ++j)
                s[i][j] += qMine[i * D + e] * kMine[j * 32 * KS + e];
}

// A new maximum: what has been summed so far shrinks.
__device__ void rescale(float (&m)[TM], float (&l)[TM], float (&acc)[TM][TD],
                        const float (&s)[TM][TN])
{
    #pragma unroll
    for (int i = 0; i < TM; ++i) {
        float top = s[i][0];
        #pragma unroll
        for (int j = 1; j < TN; ++j)
            top = fmaxf(top, s[i][j]);
        const float mNew = fmaxf(m[i], warpMax(top)), factor = expf(m[i] - mNew);
        m[i] = mNew;
        l[i] *= factor;
        #pragma unroll
        for (int j = 0; j < TD; ++j)
            acc[i][j] *= factor;
    }
}

__device__ void weigh(float (&s)[TM][TN], float (&l)[TM], float* pTo, const float (&m)[TM])
{
    #pragma unroll
    for (int i = 0; i < TM; ++i)
        #pragma unroll
        for (int j = 0; j < TN; ++j) {
            s[i][j] = expf(s[i][j] - m[i]);
            l[i] += s[i][j];                          // of this lane's keys
            pTo[i * PS + j * 32] = s[i][j];
        }
}

__device__ void accumulate(float (&acc)[TM][TD], const float* pMine, const float* vMine)
{
    #pragma unroll 4
    for (int p = 0; p < BN; ++p)
        #pragma unroll
        for (int i = 0; i < TM; ++i)
            #pragma unroll
            for (int j = 0; j < TD; ++j)
                acc[i][j] += pMine[i * PS + p] * vMine[p * D + j * 32];
}

__device__ void write(float* o, const float (&l)[TM], const float (&acc)[TM][TD], size_t row0,
                      int row, int column, size_t n)
{
    #pragma unroll
    for (int i = 0; i < TM; ++i) {
        const size_t at = row0 + row + i;
        const float sum = warpSum(l[i]);
        if (at < n)
            #pragma unroll
            for (int j = 0; j < TD; ++j)                                 // 4 N d bytes in all
                o[at * D + column + j * 32] = acc[i][j] / sum;
    }
}

// Assumes blockDim = 256, gridDim = (ceil(n/64), 1, heads), n a multiple of 64.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
attentionOnline(const float* q, const float* k, const float* v, float* o, size_t n, float scale)
{
    extern __shared__ __align__(16) float tiles[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float* qTile = tiles;                             // [row][d]
    float* kTile = qTile + BM * D;                    // [key][d]
    float* vTile = kTile + BN * KS;                   // [key][column]
    float* pTile = vTile + BN * D + warp * R * PS;    // [row][key] of this warp
    const size_t head = blockIdx.z, row0 = (size_t)blockIdx.x * BM;
    q += head * n * D;
    k += head * n * D;
    v += head * n * D;
    o += head * n * D;

    float m[TM], l[TM] = {}, acc[TM][TD] = {};        // acc: the running output
    #pragma unroll
    for (int i = 0; i < TM; ++i)
        m[i] = __int_as_float(0xff800000);            // -inf: the first tile's rescale is 0
    loadQ(qTile, q, row0, n, scale);

    for (size_t key0 = 0; key0 < n; key0 += BN) {
        loadK(kTile, k + key0 * D);
        loadV(vTile, v + key0 * D);
        __syncthreads();   // the tiles are read by all warps: they must be complete first

        float s[TM][TN] = {};
        score(s, qTile + warp * R * D, kTile + lane * KS);
        rescale(m, l, acc, s);
        weigh(s, l, pTile + lane, m);
        __syncwarp();   // the warp's weights are read by all its lanes
        accumulate(acc, pTile, vTile + lane);
        __syncthreads();   // the next tile overwrites K and V: all reads must be over
    }

    write(o, l, acc, row0, warp * R, lane, n);
}
// Requested: Q and O once, K and V once per query tile = 8 N d + 8 N d (N/64) bytes.
