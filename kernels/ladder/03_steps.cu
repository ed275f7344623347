// Rung 3: the steps of a tile stand in functions.
//
// What changes: load, score, rescale, accumulate and write get names; every later rung has them.
// The kernel is left with its order and its barriers. A row's arithmetic is the same.
// What it buys: no time. A later diff touches the step that it is about, and the kernel reads in
// one look.
// What it costs: K and V are copied in two functions, and so in two loops: V is not asked for
// before K has come.
// Prediction: the compiler puts the functions back where they were called: within 1 % of rung 2.

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

__device__ void loadQ(float (*qTile)[D], const float* q)
{
    for (int i = threadIdx.x; i < BM * D; i += THREADS)
        qTile[i / D][i % D] = q[i];                                      // 4 N d bytes in all
}

__device__ void loadK(float (*kTile)[D + 1], const float* k)
{
    for (int i = threadIdx.x; i < BN * D; i += THREADS)
        kTile[i / D][i % D] = k[i];                   // 4 N d bytes per block: N/64 times in all
}

__device__ void loadV(float (*vTile)[D], const float* v)
{
    for (int i = threadIdx.x; i < BN * D; i += THREADS)
        vTile[i / D][i % D] = v[i];                   // the same
}

__device__ float score(const float* qRow, const float* kRow, float scale)
{
    float s = 0.0f;
    for (int e = 0; e < D; ++e)
        s += qRow[e] * kRow[e];
    return s * scale;
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

__device__ void accumulate(float& o0, float& o1, float w, const float (*vTile)[D], int lane)
{
    for (int j = 0; j < BN; ++j) {
        const float wj = __shfl_sync(FULL, w, j);     // the weight of key j, from its lane
        o0 += wj * vTile[j][lane];
        o1 += wj * vTile[j][lane + 32];
    }
}

__device__ void write(float* oRow, float l, float o0, float o1, int lane)
{
    oRow[lane] = o0 / l;                                                 // 4 N d bytes in all
    oRow[lane + 32] = o1 / l;
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
    loadQ(qTile, q + row0 * D);

    for (size_t key0 = 0; key0 < n; key0 += BN) {
        loadK(kTile, k + key0 * D);
        loadV(vTile, v + key0 * D);
        __syncthreads();   // the tiles are read by all warps: they must be complete first

        #pragma unroll
        for (int r = 0; r < R; ++r) {
            const int row = warp * R + r;
            const float s = score(qTile[row], kTile[lane], scale);
            const float w = rescale(m[r], l[r], o0[r], o1[r], s);
            accumulate(o0[r], o1[r], w, vTile, lane);
        }
        __syncthreads();   // the next tile overwrites K and V: all reads must be over
    }

    #pragma unroll
    for (int r = 0; r < R; ++r) {
        const size_t row = row0 + warp * R + r;
        write(o + row * D, l[r], o0[r], o1[r], lane);
    }
}
// Requested: Q and O once, K and V once per query tile = 8 N d + 8 N d (N/64) bytes.
