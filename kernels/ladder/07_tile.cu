// Rung 7: a thread owns an 8 x 8 piece of the tile.
//
// What changes: a block has 128 query rows and 128 threads. The lanes of a warp stand 4 x 8: a
// thread has 8 of its 32 rows, and 8 of the tile's 64 keys or of the output's 64 columns. A number
// that it reads serves 8 rows or 8 keys at once.
// What it buys: 16 words read for 64 multiply-adds, of scores and of outputs. With 8 x 2 it was 10
// words for 16.
// What it costs: 101 KiB of shared memory: two blocks on an SM, 8 warps of its 64. And twice as
// many rows a block means half as many blocks: 32 at N = 4096, for 132 SMs.
// Prediction: 7 % fewer instructions, but a quarter of the warps, one for each scheduler: with
// nobody to take over while it waits, 1.2 times the time of rung 6 at N = 16384, and at 4096, where
// half of the SMs that had work lose it, 1.8 times. It pays when every SM has two blocks: from rung
// 10 on.

constexpr int D = 64;               // width of the head
constexpr int BM = 128;             // query rows of a block
constexpr int BN = 64;              // keys of a tile
constexpr int WARPS = 4;
constexpr int THREADS = 32 * WARPS;
constexpr int R = BM / WARPS;       // query rows of a warp
constexpr int TM = 8;               // query rows of a thread
constexpr int TN = 8;               // keys of a thread
constexpr int TD = 8;               // output columns of a thread
constexpr int QS = D + 4;           // floats from a line of the Q tile to the next
constexpr int KS = D + 4;           // floats from a line of the K tile to the next
constexpr int PS = BN + 4;          // floats from a line of the P tile to the next
constexpr unsigned FULL = 0xffffffffu;

static_assert(BM % WARPS == 0, "a block's query rows must divide evenly among its warps");
static_assert(BM * BN == THREADS * TM * TN, "a tile must have 8 x 8 scores for each thread");

// How far row i and column j (a key, or an output) of a thread are from its first ones.
__device__ int rowOf(int i) { return 4 * i; }
__device__ int colOf(int j) { return 8 * j; }

// The 8 lanes that share a row differ in bits 1 to 3.
__device__ float rowMax(float x)
{
    #pragma unroll
    for (int offset = 2; offset <= 8; offset *= 2)
        x = fmaxf(x, __shfl_xor_sync(FULL, x, offset));
    return x;
}

__device__ float rowSum(float x)
{
    #pragma unroll
    for (int offset = 2; offset <= 8; offset *= 2)
        x += __shfl_xor_sync(FULL, x, offset);
    return x;
}

// Past the end: the last row again.
__device__ void loadQ(float* qTile, const float* q, size_t row0, size_t n, float scale)
{
    for (int i = threadIdx.x; i < BM * D; i += THREADS) {
        const size_t row = row0 + i / D < n ? row0 + i / D : n - 1;
        qTile[i / D * QS + i % D] = q[row * D + i % D] * scale;          // 4 N d bytes in all
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
    #pragma unroll 1
    for (int e = 0; e < D; ++e)
        #pragma unroll
        for (int i = 0; i < TM; ++i)
            #pragma unroll
            for (int j = 0; j < TN; ++j)
                s[i][j] += qMine[rowOf(i) * QS + e] * kMine[colOf(j) * KS + e];
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
        const float mNew = fmaxf(m[i], rowMax(top)), factor = expf(m[i] - mNew);
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
            pTo[rowOf(i) * PS + colOf(j)] = s[i][j];
        }
}

__device__ void accumulate(float (&acc)[TM][TD], const float* pMine, const float* vMine)
{
    #pragma unroll 1
    for (int p = 0; p < BN; ++p)
        #pragma unroll
        for (int i = 0; i < TM; ++i)
            #pragma unroll
            for (int j = 0; j < TD; ++j)
                acc[i][j] += pMine[rowOf(i) * PS + p] * vMine[p * D + colOf(j)];
}

__device__ void write(float* o, const float (&l)[TM], const float (&acc)[TM][TD], size_t row0,
                      int row, int column, size_t n)
{
    #pragma unroll
    for (int i = 0; i < TM; ++i) {
        const size_t at = row0 + row + rowOf(i);
        const float sum = rowSum(l[i]);
        if (at < n)
            #pragma unroll
            for (int j = 0; j < TD; ++j)                                 // 4 N d bytes in all
                o[at * D + column + colOf(j)] = acc[i][j] / sum;
    }
}

// Assumes blockDim = 128, gridDim = (ceil(n/128), 1, heads), n a multiple of 64.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
attentionOnline(const float* q, const float* k, const float* v, float* o, size_t n, float scale)
{
    extern __shared__ __align__(16) float tiles[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int threadRow = lane % 2 + lane / 16 * 2, threadCol = lane / 2 % 8;
    float* qTile = tiles;                             // [row][d]
    float* kTile = qTile + BM * QS;                   // [key][d]
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
        score(s, qTile + (warp * R + threadRow) * QS, kTile + threadCol * KS);
        rescale(m, l, acc, s);
        weigh(s, l, pTile + threadRow * PS + threadCol, m);
        __syncwarp();   // the warp's weights are read by all its lanes
        accumulate(acc, pTile + threadRow * PS, vTile + threadCol);
        __syncthreads();   // the next tile overwrites K and V: all reads must be over
    }

    write(o, l, acc, row0, warp * R + threadRow, threadCol, n);
}
// Requested: Q and O once, K and V once per query tile = 8 N d + 8 N d (N/128) bytes.
