// Rung 21, a branch that leaves rung 19: the same in 48 KiB, for a T4.
//
// What changes: no cp.async, which a T4 does not have: the next tile is fetched into registers
// while this one is computed. Q takes 32 KiB, K and V 8 KiB each with tiles of 32 keys, and no room
// is left for the weights: when all warps are done with K they go through its tile, 16 keys at a
// time. K, too, is swizzled now: exactly 48 KiB, no pad.
// What it buys: it runs on every GPU since Turing, without asking for more shared memory.
// What it costs: three barriers a tile of 32 keys, 32 registers for the tile to come. One block on
// an SM of a T4, 4 warps of 32: what hides a wait there is the 64 independent multiply-adds of a
// thread, and the next tile that is already on its way.
// Prediction: on an H200 10 % slower than rung 19. Made when rung 19 copied K in one burst.

constexpr int D = 64;               // width of the head
constexpr int BM = 128;             // query rows of a block
constexpr int BN = 32;              // keys of a tile
constexpr int WARPS = 4;
constexpr int THREADS = 32 * WARPS;
constexpr int R = BM / WARPS;       // query rows of a warp
constexpr int TM = 8;               // query rows of a thread
constexpr int TN = 4;               // keys of a thread
constexpr int TD = 8;               // output columns of a thread
constexpr unsigned FULL = 0xffffffffu;
constexpr float LOG2E = 1.4426950408889634f;
constexpr float SLACK = 8.0f;       // a weight may reach 2^8 before its row is rescaled

static_assert(BM % WARPS == 0, "a block's query rows must divide evenly among its warps");
static_assert(BM * BN == THREADS * TM * TN, "a tile must have 8 x 4 scores for each thread");
static_assert(4 * (D * BM + D * BN + BN * D) <= 48 * 1024,
              "the tiles must fit in 48 KiB: what a block gets on a T4 without opting in");
static_assert(BN * BM == 2 * D * BN, "half of the weights must fit in the K tile");

// How far row i and column j (a key, or an output) of a thread are from its first ones.
__device__ int rowOf(int i) { return i / 4 * 16 + i % 4; }
__device__ int colOf(int j) { return j / 4 * 32 + j % 4; }

__device__ float4& vec4(float* x) { return *(float4*)x; }
__device__ float4 vec4(const float* x) { return *(const float4*)x; }

// Two reads of 16 bytes: what a thread needs of one line of a tile.
__device__ void fragment(float (&x)[8], const float* low, const float* high)
{
    vec4(x) = vec4(low);
    vec4(x + 4) = vec4(high);
}

// to += a b^T, forth and back along the shorter side: neighbours in this order share an operand.
template <int N>
__device__ void outer(float (&to)[TM][N], const float (&a)[TM], const float (&b)[N])
{
    #pragma unroll
    for (int x = 0; x < TM * N; ++x) {
        const int side = N < TM ? N : TM, line = x / side;
        const int at = line % 2 ? side - 1 - x % side : x % side;
        const int i = N < TM ? line : at, j = N < TM ? at : line;
        to[i][j] += a[i] * b[j];
    }
}

// 2^x to 2 units in the last place; a result below 2^-126 is 0.
__device__ float exp2Fast(float x)
{
#ifdef __CUDA_ARCH__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

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
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    #pragma unroll
    for (int i = 0; i < 16; ++i) {                    // 8 rows x 64 bytes a warp instruction
        const int row = warp * R + lane / 4 + i / 4 * 8, e = i % 4 * 16 + lane % 4 * 4;
        const size_t at = row0 + row < n ? row0 + row : n - 1;
        const float4 x = vec4(q + at * D + e);        // 4 N d bytes in all
        float* to = qTile + e * BM + (row ^ lane % 4 * 8);
        to[0] = x.x * scale;
        to[BM] = x.y * scale;
        to[2 * BM] = x.z * scale;
        to[3 * BM] = x.w * scale;
    }
}

// The next tile waits in registers. A warp fetches 8 keys x 64 bytes of K an instruction.
__device__ void loadK(float4 (&kNext)[4], const float* kFrom)
{
    #pragma unroll
    for (int i = 0; i < 4; ++i)                       // 4 N d bytes per block: N/128 times
        kNext[i] = vec4(kFrom + i * 16);
}

__device__ void loadV(float4 (&vNext)[4], const float* vFrom)
{
    #pragma unroll
    for (int i = 0; i < 4; ++i)                       // the same
        vNext[i] = vec4(vFrom + i * THREADS * 4);
}

__device__ void storeKV(float* kTo, float* vTo, const float4 (&kNext)[4], const float4 (&vNext)[4])
{
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        float* to = kTo + i * 16 * BN;
        to[0] = kNext[i].x;
        to[BN] = kNext[i].y;
        to[2 * BN] = kNext[i].z;
        to[3 * BN] = kNext[i].w;
        vec4(vTo + i * THREADS * 4) = vNext[i];
    }
}

__device__ void score(float (&s)[TM][TN], const float* (&qMine)[2],
                      const float* (&kMine)[4])
{
    #pragma unroll 1
    for (int e0 = 0; e0 < D; e0 += 16)
        #pragma unroll
        for (int e = 0; e < 16; ++e) {
            float a[TM], b[TN];
            const float* line = qMine[e / 4 % 2] + (e0 + e) * BM;
            fragment(a, line + e / 8 * 16, line + 16 - e / 8 * 16);
            vec4(b) = vec4(kMine[e / 4] + (e0 + e) * BN);
            outer(s, a, b);
        }
}

// A new maximum, where a row has risen far: what has been summed so far shrinks.
__device__ void rescale(float (&m)[TM], float (&l)[TM], float (&acc)[TM][TD],
                        const float (&s)[TM][TN])
{
    float top[TM];
    bool rise = false;
    #pragma unroll
    for (int i = 0; i < TM; ++i) {
        top[i] = s[i][0];
        #pragma unroll
        for (int j = 1; j < TN; ++j)
            top[i] = fmaxf(top[i], s[i][j]);
        rise |= top[i] > m[i] + SLACK;
    }
    if (__any_sync(FULL, rise)) {
        #pragma unroll
        for (int i = 0; i < TM; ++i) {
            const float mNew = fmaxf(m[i], rowMax(top[i])), factor = exp2Fast(m[i] - mNew);
            m[i] = mNew;
            l[i] *= factor;
            #pragma unroll
            for (int j = 0; j < TD; ++j)
                acc[i][j] *= factor;
        }
    }
}

__device__ void weigh(float (&s)[TM][TN], float (&l)[TM], const float (&m)[TM])
{
    #pragma unroll
    for (int i = 0; i < TM; ++i)
        #pragma unroll
        for (int j = 0; j < TN; ++j) {
            s[i][j] = exp2Fast(s[i][j] - m[i]);
            l[i] += s[i][j];                          // of this lane's keys
        }
}

// Weights of keys 4 threadCol + 2 half and the next one.
__device__ void storeP(float* pTo, int high, const float (&s)[TM][TN], int half)
{
    #pragma unroll
    for (int x = 0; x < 2; ++x) {
        const int j = 2 * half + x;
        vec4(pTo + x * R + high) = make_float4(s[0][j], s[1][j], s[2][j], s[3][j]);
        vec4(pTo + x * R + 16 - high) = make_float4(s[4][j], s[5][j], s[6][j], s[7][j]);
    }
}

// The keys of 16 lines of P.
__device__ void accumulate(float (&acc)[TM][TD], const float* (&pMine)[2], const float* vMine,
                           int half)
{
    #pragma unroll
    for (int p = 0; p < 16; ++p) {
        const int key = p / 2 * 4 + 2 * half + p % 2;
        float a[TM], b[TD];
        const float* line = pMine[p / 2 % 2] + p * R;
        fragment(a, line + p / 4 % 2 * 16, line + 16 - p / 4 % 2 * 16);
        fragment(b, vMine + key * D, vMine + key * D + 32);
        outer(acc, a, b);
    }
}

// One split: O. More: of each its running output, undivided, and m and l after all of those.
__device__ void write(float* o, const float (&m)[TM], float (&l)[TM], const float (&acc)[TM][TD],
                      size_t row0, int row, int column, size_t n)
{
    #pragma unroll
    for (int i = 0; i < TM; ++i)
        l[i] = rowSum(l[i]);
    const bool whole = gridDim.y == 1;
    const size_t part = ((size_t)blockIdx.z * gridDim.y + blockIdx.y) * n;   // rows before these
    float* ml = o + gridDim.z * gridDim.y * n * D;
    #pragma unroll
    for (int i = 0; i < TM; ++i) {
        const size_t at = row0 + (row + rowOf(i));
        const float norm = whole ? 1.0f / l[i] : 1.0f;
        if (at < n) {
            if (!whole && column == 0)
                *(float2*)(ml + (part + at) * 2) = make_float2(m[i], l[i]);
            #pragma unroll
            for (int h = 0; h < 2; ++h)                                  // 4 N d bytes a split
                vec4(o + (part + at) * D + column + h * 32) =
                    make_float4(acc[i][4 * h] * norm, acc[i][4 * h + 1] * norm,
                                acc[i][4 * h + 2] * norm, acc[i][4 * h + 3] * norm);
        }
    }
}

// Assumes blockDim = 128, gridDim = (ceil(n/128), splits, heads), n a multiple of 64.
// With splits > 1 o is a workspace: o of every head, split and row, then (m, l) of every one.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
attentionOnline(const float* q, const float* k, const float* v, float* o, size_t n, float scale)
{
    __shared__ __align__(16) float qTile[D * BM];     // [d][row], swizzled
    __shared__ __align__(16) float kTile[D * BN];     // [d][key], swizzled; then half of P
    __shared__ __align__(16) float vTile[BN * D];     // [key][column]
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int threadRow = (lane % 2 + lane / 16 * 2) * 4, threadCol = lane / 2 % 8;
    float* pTile = kTile + warp * 16 * R;             // [key][row] of this warp, swizzled
    const size_t head = blockIdx.z, row0 = (size_t)blockIdx.x * BM;
    q += head * n * D;
    k += head * n * D;
    v += head * n * D;
    const int first = (int)(n / BN * blockIdx.y / gridDim.y);            // tiles of this split
    const int last = (int)(n / BN * (blockIdx.y + 1) / gridDim.y);
    k += (size_t)first * BN * D;
    v += (size_t)first * BN * D;
    // This thread's groups in a line with line/4 % 2 = 0 and 1; line/8 % 2 swaps the halves.
    const float* qMine[2] = {qTile + warp * R + threadRow, qTile + warp * R + (threadRow ^ 8)};
    const float* pMine[2] = {pTile + threadRow, pTile + (threadRow ^ 8)};
    const float* kMine[4] = {kTile + threadCol * 4, kTile + (threadCol ^ 2) * 4,
                             kTile + (threadCol ^ 4) * 4, kTile + (threadCol ^ 6) * 4};
    const int four = lane % 4, key = warp * 8 + lane / 4;
    k += key * D + four * 4;                              // where this thread copies from and to
    v += threadIdx.x * 4;
    float* kTo = kTile + four * 4 * BN + (key ^ four * 8);
    float* vTo = vTile + threadIdx.x * 4;
    float4 kNext[4], vNext[4];

    float m[TM], l[TM] = {}, acc[TM][TD] = {};        // acc: the running output
    #pragma unroll
    for (int i = 0; i < TM; ++i)
        m[i] = __int_as_float(0xff800000);            // -inf: the first tile's rescale is 0
    loadK(kNext, k);
    loadV(vNext, v);
    loadQ(qTile, q, row0, n, scale * LOG2E);

    #pragma unroll 1
    for (int tile = first; tile < last; ++tile) {
        __syncthreads();   // no warp still reads the weights and the V that are overwritten
        storeKV(kTo, vTo, kNext, vNext);
        __syncthreads();   // the tiles are read by all warps: they must be complete first
        if (tile + 1 < last) {
            loadK(kNext, k += BN * D);
            loadV(vNext, v += BN * D);
        }
        float s[TM][TN] = {};
        score(s, qMine, kMine);
        rescale(m, l, acc, s);
        weigh(s, l, m);
        __syncthreads();   // the weights overwrite K: all warps must be done with it

        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            storeP(pTile + threadCol * 2 * R + (threadRow ^ threadCol % 2 * 8),
                   threadCol / 2 % 2 * 16, s, half);
            __syncwarp();  // the warp's weights are read by all its lanes
            accumulate(acc, pMine, vTile + threadCol * 4, half);
            __syncwarp();  // the other half overwrites them: all lanes must be done
        }
    }

    write(o, m, l, acc, row0, warp * R + threadRow, threadCol * 4, n);
}
// Requested: Q and O once, K and V once per query tile = 8 N d + 8 N d (N/128) bytes;
// with splits > 1, Q once a split and 264 bytes a row and split in place of O.
