// Attention as people run it, both ways: ends, a causal mask, padding, heads, another width.
//
//   scoresMasked      S = scale Q K^T, masked    grid (ceil(nK/16), ceil(nQ/16), heads), block (16, 16)
//   softmaxMasked     P = exp(S - rowmax)        grid (nQ, heads),                       block 256
//   valuesMasked      O = (P V) / rowSum         grid (ceil(d/16), ceil(nQ/16), heads),  block (16, 16)
//   attentionMasked   O, and the log-sum-exp     grid (ceil(nQ/BM), heads),              block 256
//   indexOf           what index() gives         grid 1,                                 block 1
//
// Q and O are (batch, heads, nQ, d), K and V (batch, kvHeads, nK, d), S and P (batch, heads, nQ, nK),
// row-major float32; a grid's heads are those of all batch entries. lengths: for each batch entry
// how many keys are no padding. A row that sees no key gives zeros and lse = -inf; so does one
// whose scores are all -inf.

// snippet: width
#ifndef WIDTH
#define WIDTH 64
#endif
constexpr int D = WIDTH;            // columns of a tile; d of them are the head's, the rest zeros
constexpr int BM = 2048 / D;        // query rows of an online block
constexpr int BN = 32;              // keys of an online tile: one lane scores one key
constexpr int BLK = 16;             // edge of a tile of the materialised path
constexpr int WARPS = 8;
constexpr int THREADS = 32 * WARPS;
constexpr int R = BM / WARPS;       // query rows of a warp
constexpr int C = D / 32;           // output columns of a lane: lane, lane + 32, ..
constexpr unsigned FULL = 0xffffffffu;

static_assert(D % 32 == 0 && D <= 128, "WIDTH must be 32, 64 or 128: a lane owns D/32 columns");
static_assert(BM % WARPS == 0, "a block's query rows must divide evenly among its warps");
// end snippet

// snippet: index
// Where a number stands in a tensor (heads, rows, width).
__device__ size_t index(int head, int rows, int row, int width, int column)
{
    return ((size_t)head * rows + row) * width + column;
}
// end snippet

// snippet: end
// How many keys are there for a head to see? The rest of nK is padding.
__device__ int endOf(int head, int heads, int nK, const int* lengths)
{
    return min(lengths[head / heads], nK);
}
// end snippet

// snippet: causal
// How many keys does query `row` see? They are the first ones.
__device__ int seenBy(int row, int end, int nQ, int nK, int causal)
{
    return causal ? max(0, min(end, row + 1 + nK - nQ)) : end;
}
// end snippet

// snippet: heads
// Which head of K and V belongs to a head of Q, each counted through all batch entries?
__device__ int kvOf(int head, int heads, int kvHeads)
{
    return head / heads * kvHeads + head % heads / (heads / kvHeads);
}
// end snippet

// snippet: mask
// A score as the softmax gets it: a key that a row does not see weighs exp(-inf) = 0.
__device__ float masked(float score, int key, int seen)
{
    return key < seen ? score : __int_as_float(0xff800000);
}
// end snippet

// snippet: reference
// What is subtracted from a row's scores: its maximum. -inf - -inf is NaN, so where no key was
// seen yet it is 0, and every exp(-inf - 0) is 0.
__device__ float reference(float m)
{
    return m == __int_as_float(0xff800000) ? 0.0f : m;
}
// end snippet

// snippet: reduce
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
// end snippet

// snippet: scores
// Assumes blockDim = (16, 16), gridDim = (ceil(nK/16), ceil(nQ/16), batch heads).
extern "C" __global__ void scoresMasked(const float* q, const float* k, const int* lengths, float* s,
                                        int nQ, int nK, int d, int heads, int kvHeads, int causal,
                                        float scale)
{
    __shared__ float qTile[BLK][BLK];
    __shared__ float kTile[BLK][BLK + 1];
    const int x = threadIdx.x, y = threadIdx.y, head = blockIdx.z;
    const int row = blockIdx.y * BLK + y, key0 = blockIdx.x * BLK, key = key0 + x;
    const int kv = kvOf(head, heads, kvHeads), end = endOf(head, heads, nK, lengths);
    const int blockSees = seenBy(min((int)(blockIdx.y + 1) * BLK, nQ) - 1, end, nQ, nK, causal);

    float sum = 0.0f;
    for (int e0 = 0; key0 < blockSees && e0 < d; e0 += BLK) {   // a tile that no row sees: no step
        qTile[y][x] = row < nQ && e0 + x < d ? q[index(head, nQ, row, d, e0 + x)] : 0.0f;
        kTile[x][y] = key0 + y < blockSees && e0 + x < d ? k[index(kv, nK, key0 + y, d, e0 + x)]
                                                         : 0.0f;
        __syncthreads();   // a tile is read by all threads: it must be complete first
        for (int e = 0; e < BLK; ++e)
            sum += qTile[y][e] * kTile[e][x];
        __syncthreads();   // the next step overwrites the tiles: all reads must be over
    }
    if (row < nQ && key < nK)
        s[index(head, nQ, row, nK, key)] = masked(scale * sum, key,
                                                  seenBy(row, end, nQ, nK, causal));
}
// end snippet

// snippet: softmax
// Assumes blockDim = 256, gridDim = (nQ, batch heads).
extern "C" __global__ void softmaxMasked(const float* s, float* p, float* rowSum, int nQ, int nK)
{
    __shared__ float partial[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.x, head = blockIdx.y;

    float m = __int_as_float(0xff800000);   // -inf
    for (int j = threadIdx.x; j < nK; j += THREADS)
        m = fmaxf(m, s[index(head, nQ, row, nK, j)]);
    m = warpMax(m);
    if (lane == 0)
        partial[warp] = m;
    __syncthreads();       // every warp reads the maxima of all warps
    for (int i = 0; i < WARPS; ++i)
        m = fmaxf(m, partial[i]);
    __syncthreads();       // partial is used again for the sums: all reads must be over

    float l = 0.0f;
    for (int j = threadIdx.x; j < nK; j += THREADS) {
        const float w = expf(s[index(head, nQ, row, nK, j)] - reference(m));
        p[index(head, nQ, row, nK, j)] = w;
        l += w;
    }
    l = warpSum(l);
    if (lane == 0)
        partial[warp] = l;
    __syncthreads();       // thread 0 reads the sums of all warps
    if (threadIdx.x == 0) {
        l = 0.0f;
        for (int i = 0; i < WARPS; ++i)
            l += partial[i];
        rowSum[index(head, 1, 0, nQ, row)] = l;
    }
}
// end snippet

// snippet: values
// Assumes blockDim = (16, 16), gridDim = (ceil(d/16), ceil(nQ/16), batch heads).
extern "C" __global__ void valuesMasked(const float* p, const float* v, const float* rowSum,
                                        const int* lengths, float* o, int nQ, int nK, int d,
                                        int heads, int kvHeads, int causal)
{
    __shared__ float pTile[BLK][BLK];
    __shared__ float vTile[BLK][BLK];
    const int x = threadIdx.x, y = threadIdx.y, head = blockIdx.z;
    const int row = blockIdx.y * BLK + y, column = blockIdx.x * BLK + x;
    const int kv = kvOf(head, heads, kvHeads), end = endOf(head, heads, nK, lengths);
    const int blockSees = seenBy(min((int)(blockIdx.y + 1) * BLK, nQ) - 1, end, nQ, nK, causal);
    const int seen = seenBy(row, end, nQ, nK, causal);

    float sum = 0.0f;
    for (int j0 = 0; j0 < blockSees; j0 += BLK) {
        pTile[y][x] = row < nQ && j0 + x < nK ? p[index(head, nQ, row, nK, j0 + x)] : 0.0f;
        vTile[y][x] = j0 + y < blockSees && column < d ? v[index(kv, nK, j0 + y, d, column)] : 0.0f;
        __syncthreads();   // a tile is read by all threads: it must be complete first
        for (int j = 0; j < min(BLK, seen - j0); ++j)   // 0 times a NaN would be NaN: not to be added
            sum += pTile[y][j] * vTile[j][x];
        __syncthreads();   // the next step overwrites the tiles: all reads must be over
    }
    if (row < nQ && column < d) {
        const float l = rowSum[index(head, 1, 0, nQ, row)];   // 0: no key was seen
        o[index(head, nQ, row, d, column)] = l == 0.0f ? 0.0f : sum / l;
    }
}
// end snippet

// snippet: state
// Assumes blockDim = 256, gridDim = (ceil(nQ/BM), batch heads).
extern "C" __global__ void __launch_bounds__(THREADS)
attentionMasked(const float* q, const float* k, const float* v, const int* lengths, float* o,
                float* lse, int nQ, int nK, int d, int heads, int kvHeads, int causal, float scale)
{
    __shared__ float qTile[BM][D];
    __shared__ float kTile[BN][D + 1];   // 32 lanes read 32 rows: the pad puts them in 32 banks
    __shared__ float vTile[BN][D];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row0 = blockIdx.x * BM;
    const int head = blockIdx.y, kv = kvOf(head, heads, kvHeads);
    const int end = endOf(head, heads, nK, lengths);

    float m[R], l[R], acc[R][C];
    for (int r = 0; r < R; ++r) {
        m[r] = __int_as_float(0xff800000);   // -inf
        l[r] = 0.0f;
        for (int c = 0; c < C; ++c)
            acc[r][c] = 0.0f;
    }
    for (int i = threadIdx.x; i < BM * D; i += THREADS)
        qTile[i / D][i % D] = row0 + i / D < nQ && i % D < d
                                  ? q[index(head, nQ, row0 + i / D, d, i % D)] : 0.0f;
// end snippet

// snippet: tiles
    // The block's last row sees the most keys. No tile beyond them is walked.
    const int blockSees = seenBy(min(row0 + BM, nQ) - 1, end, nQ, nK, causal);
    for (int key0 = 0; key0 < blockSees; key0 += BN) {
// end snippet

// snippet: load
        for (int i = threadIdx.x; i < BN * D; i += THREADS) {
            const int key = key0 + i / D, column = i % D;
            const bool there = key < blockSees && column < d;
            kTile[i / D][column] = there ? k[index(kv, nK, key, d, column)] : 0.0f;
            vTile[i / D][column] = there ? v[index(kv, nK, key, d, column)] : 0.0f;
        }
        __syncthreads();   // the tiles are read by all warps: they must be complete first
// end snippet

// snippet: score
        for (int r = 0; r < R; ++r) {
            const int row = warp * R + r, seen = seenBy(row0 + row, end, nQ, nK, causal);
            float s = 0.0f;
            for (int e = 0; e < D; ++e)
                s += qTile[row][e] * kTile[lane][e];
            s = masked(scale * s, key0 + lane, seen);
// end snippet

// snippet: update
            const float mNew = fmaxf(m[r], warpMax(s));
            const float rescale = expf(m[r] - reference(mNew));
            const float w = expf(s - reference(mNew));
            m[r] = mNew;
            l[r] = l[r] * rescale + warpSum(w);
            for (int c = 0; c < C; ++c)
                acc[r][c] *= rescale;
// end snippet

// snippet: add
            // Weights of keys that the row does not see are 0, but 0 times a NaN is NaN.
            for (int j = 0; j < min(BN, seen - key0); ++j) {
                const float wj = __shfl_sync(FULL, w, j);   // the weight of key j, from its lane
                for (int c = 0; c < C; ++c)
                    acc[r][c] += wj * vTile[j][lane + 32 * c];
            }
        }
        __syncthreads();   // the next tile overwrites K and V: all reads must be over
    }
// end snippet

// snippet: write
    for (int r = 0; r < R; ++r) {
        const int row = row0 + warp * R + r;
        if (row >= nQ)
            continue;
        for (int c = 0; c < C; ++c)
            if (lane + 32 * c < d)
                o[index(head, nQ, row, d, lane + 32 * c)] = l[r] == 0.0f ? 0.0f : acc[r][c] / l[r];
        if (lane == 0)
            lse[index(head, 1, 0, nQ, row)] = m[r] + logf(l[r]);   // no key: -inf
    }
}
// end snippet

// snippet: indexOf
// What index() gives, in two words: lets the index of a matrix that nobody holds be checked.
extern "C" __global__ void indexOf(unsigned* words, int head, int rows, int row, int width, int column)
{
    const size_t at = index(head, rows, row, width, column);
    words[0] = (unsigned)(at & 0xffffffffu);
    words[1] = (unsigned)(at >> 32);
}
// end snippet
