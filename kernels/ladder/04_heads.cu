// Rung 4: several heads, a ragged end, and the scale in Q.
//
// What changes: block z does head z. A row past the last one is loaded as the last one again, and
// never written: with blocks of 128 rows N = 192 needs that. Q is multiplied by scale when it is
// loaded, once for each number of Q and no more for each score.
// What it buys: 16 heads in one launch, and one multiplication less for each score.
// What it costs: a comparison for each number of Q and each row of O.
// Prediction: 8 instructions less of the 2,000 that 8 rows need for a tile: 0 to 1 % faster.

constexpr int D = 64;               // width of the head
constexpr int BM = 64;              // query rows of a block
constexpr int BN = 32;              // keys of a tile
constexpr int WARPS = 8;
constexpr int THREADS = 32 * WARPS;
constexpr int R = BM / WARPS;       // query rows of a warp
constexpr int KS = D + 1;           // floats from a line of the K tile to the next
constexpr unsigned FULL = 0xffffffffu;

static_assert(BN == 32, "a tile must have 32 keys: one lane scores one key");
static_assert(D == 2 * 32, "d must be 64: a lane owns 2 of the 64 output columns");
static_assert(BM % WARPS == 0, "a block's query rows must divide evenly among its warps");
static_assert((BM * D + BN * KS + BN * D) * 4 <= 48 * 1024,
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

__device__ float score(const float* qRow, const float* kRow)
{
    float s = 0.0f;
    for (int e = 0; e < D; ++e)
        s += qRow[e] * kRow[e];
    return s;
}

// A new maximum: what has been summed so far shrinks. Returns the weight of this lane's key.
__device__ float rescale(float& m, float& l, float& o0, float& o1, float s)
{
    const float mNew = fmaxf(m, warpMax(s)), factor = expf(m - mNew), w = expf(s - mNew);
    m = mNew;
    l = l * factor + warpSum(w);
    o0 *= factor;
    o1 *= factor;
    return w;
}

__device__ void accumulate(float& o0, float& o1, float w, const float* vTile, int lane)
{
    for (int j = 0; j < BN; ++j) {
        const float wj = __shfl_sync(FULL, w, j);     // the weight of key j, from its lane
        o0 += wj * vTile[j * D + lane];
        o1 += wj * vTile[j * D + lane + 32];
    }
}

__device__ void write(float* oRow, float l, float o0, float o1, int lane)
{
    oRow[lane] = o0 / l;                                                 // 4 N d bytes in all
    oRow[lane + 32] = o1 / l;
}

// Assumes blockDim = 256, gridDim = (ceil(n/64), 1, heads), n a multiple of 32.
extern "C" __global__ void __launch_bounds__(THREADS)
attentionOnline(const float* q, const float* k, const float* v, float* o, size_t n, float scale)
{
    __shared__ __align__(16) float qTile[BM * D];     // [row][d]
    __shared__ __align__(16) float kTile[BN * KS];    // [key][d]
    __shared__ __align__(16) float vTile[BN * D];     // [key][column]
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t head = blockIdx.z, row0 = (size_t)blockIdx.x * BM;
    q += head * n * D;
    k += head * n * D;
    v += head * n * D;
    o += head * n * D;

    float m[R], l[R], o0[R], o1[R];                   // o0: column lane, o1: column lane + 32
    #pragma unroll
    for (int r = 0; r < R; ++r) {
        m[r] = __int_as_float(0xff800000);            // -inf: the first tile's rescale is exp(-inf) = 0
        l[r] = 0.0f;
        o0[r] = 0.0f;
        o1[r] = 0.0f;
    }
    loadQ(qTile, q, row0, n, scale);

    for (size_t key0 = 0; key0 < n; key0 += BN) {
        loadK(kTile, k + key0 * D);
        loadV(vTile, v + key0 * D);
        __syncthreads();   // the tiles are read by all warps: they must be complete first

        #pragma unroll
        for (int r = 0; r < R; ++r) {
            const int row = warp * R + r;
            const float s = score(qTile + row * D, kTile + lane * KS);
            const float w = rescale(m[r], l[r], o0[r], o1[r], s);
            accumulate(o0[r], o1[r], w, vTile, lane);
        }
        __syncthreads();   // the next tile overwrites K and V: all reads must be over
    }

    #pragma unroll
    for (int r = 0; r < R; ++r) {
        const size_t row = row0 + warp * R + r;
        if (row < n)
            write(o + row * D, l[r], o0[r], o1[r], lane);
    }
}
// Requested: Q and O once, K and V once per query tile = 8 N d + 8 N d (N/64) bytes.
