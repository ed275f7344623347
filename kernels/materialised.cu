// Attention for one head through an N x N matrix in memory: O = softmax(scale Q K^T) V.
//
//   scoresQKt     S = scale Q K^T        grid (N/16, N/16), block (16, 16)
//   softmaxRows   P = exp(S - rowmax)    grid (N),          block 256
//   weightedV     O = (P V) / rowSum     grid (D/16, N/16), block (16, 16)
//
// Q, K, V, O are (N, 64) and S, P are (N, N), row-major float32. N is a multiple of 16.
// Passes over the N x N matrix: S written, S read twice, P written, P read. One transfer each makes
// 20 N^2 bytes.

// snippet: constants
constexpr int D = 64;         // width of the head
constexpr int BLK = 16;       // a block computes a BLK x BLK tile of its result
constexpr int ROW_THREADS = 256;
constexpr int ROW_WARPS = ROW_THREADS / 32;

static_assert(D % BLK == 0, "d must be a multiple of 16: the matmul walks d in steps of 16");
static_assert(ROW_THREADS % 32 == 0, "a row's block must be whole warps: the reduction shuffles");
// end snippet

// snippet: reduce
__device__ float warpMax(float x)
{
    for (int offset = 16; offset > 0; offset /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

__device__ float warpSum(float x)
{
    for (int offset = 16; offset > 0; offset /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}
// end snippet

// snippet: scores
// Assumes blockDim = (16, 16), gridDim = (N/16, N/16).
extern "C" __global__ void scoresQKt(const float* q, const float* k, float* s, size_t n, float scale)
{
    __shared__ float qTile[BLK][BLK];
    // Held transposed. The pad makes the row stride 17, so that the 16 stores of a column of K
    // go to 16 different banks.
    __shared__ float kTile[BLK][BLK + 1];
    const int x = threadIdx.x, y = threadIdx.y;
    const size_t row = (size_t)blockIdx.y * BLK + y;   // query
    const size_t key0 = (size_t)blockIdx.x * BLK;      // first key of the tile
    const size_t col = key0 + x;                       // key

    float sum = 0.0f;
    for (int e0 = 0; e0 < D; e0 += BLK) {
        qTile[y][x] = row < n ? q[row * D + e0 + x] : 0.0f;              // 4 B a thread and step
        kTile[x][y] = key0 + y < n ? k[(key0 + y) * D + e0 + x] : 0.0f;  // 4 B a thread and step
        __syncthreads();   // a tile is read by all threads: it must be complete first
        for (int e = 0; e < BLK; ++e)
            sum += qTile[y][e] * kTile[e][x];
        __syncthreads();   // the next step overwrites the tiles: all reads must be over
    }
    if (row < n && col < n)
        s[row * n + col] = scale * sum;                                  // 4 B a thread
}
// Requested: N^2 threads x (4 steps x 8 B + 4 B) = 32 N^2 + 4 N^2 bytes.
// end snippet

// snippet: softmax
// Assumes blockDim = 256, gridDim = N. S and P are two buffers: a kernel that overwrites its
// input gives another result the second time, so it could not be timed in a loop.
extern "C" __global__ void softmaxRows(const float* s, float* p, float* rowSum, size_t n)
{
    __shared__ float partial[ROW_WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t row = blockIdx.x;

    float m = __int_as_float(0xff800000);              // -inf
    for (size_t j = threadIdx.x; j < n; j += ROW_THREADS)
        m = fmaxf(m, s[row * n + j]);                                    // 4 B an element
    m = warpMax(m);
    if (lane == 0)
        partial[warp] = m;
    __syncthreads();       // every warp reads the maxima of all warps
    for (int i = 0; i < ROW_WARPS; ++i)
        m = fmaxf(m, partial[i]);
    __syncthreads();       // partial is used again for the sums: all reads must be over

    float l = 0.0f;
    for (size_t j = threadIdx.x; j < n; j += ROW_THREADS) {
        const float w = expf(s[row * n + j] - m);                        // 4 B an element
        p[row * n + j] = w;                                              // 4 B an element
        l += w;
    }
    l = warpSum(l);
    if (lane == 0)
        partial[warp] = l;
    __syncthreads();       // thread 0 reads the sums of all warps
    if (threadIdx.x == 0) {
        l = 0.0f;
        for (int i = 0; i < ROW_WARPS; ++i)
            l += partial[i];
        rowSum[row] = l;                                                 // 4 B a row
    }
}
// Requested: 8 N^2 + 4 N^2 + 4 N bytes.
// end snippet

// snippet: values
// Assumes blockDim = (16, 16), gridDim = (64/16, N/16).
extern "C" __global__ void weightedV(const float* p, const float* v, const float* rowSum, float* o,
                                     size_t n)
{
    __shared__ float pTile[BLK][BLK];
    __shared__ float vTile[BLK][BLK];
    const int x = threadIdx.x, y = threadIdx.y;
    const size_t row = (size_t)blockIdx.y * BLK + y;   // query
    const int col = blockIdx.x * BLK + x;              // output column

    float sum = 0.0f;
    for (size_t j0 = 0; j0 < n; j0 += BLK) {
        pTile[y][x] = row < n && j0 + x < n ? p[row * n + j0 + x] : 0.0f;   // 4 B
        vTile[y][x] = j0 + y < n ? v[(j0 + y) * D + col] : 0.0f;            // 4 B
        __syncthreads();   // a tile is read by all threads: it must be complete first
        for (int j = 0; j < BLK; ++j)
            sum += pTile[y][j] * vTile[j][x];
        __syncthreads();   // the next step overwrites the tiles: all reads must be over
    }
    if (row < n)
        o[row * D + col] = sum / rowSum[row];                               // 4 B + 4 B
}
// Requested: 64 N threads x (N/16 steps x 8 B + 8 B) = 32 N^2 + 256 N + 256 N bytes.
// end snippet
