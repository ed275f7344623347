// Rung 16: P lies transposed too.
//
// What changes: a line of P is one key of the 32 rows of a warp, so that a step of the output loop
// is one line of P and one of V, and both loops have one shape.
// What it buys: 16 numbers in registers for a step here too, in place of 40; the unrolling of the
// next rung needs them free.
// What it costs: the lanes of a store of P meet in pairs in the same banks again: 8 passes for a
// store that needs 4. Rung 19 will part them.
// Prediction: no fewer instructions, and 64 more passes a warp and tile, of about 1,200: within 1 %
// of rung 15.

constexpr int D = 64;               // width of the head
constexpr int BM = 128;             // query rows of a block
constexpr int BN = 64;              // keys of a tile
constexpr int WARPS = 4;
constexpr int THREADS = 32 * WARPS;
constexpr int R = BM / WARPS;       // query rows of a warp
constexpr int TM = 8;               // query rows of a thread
constexpr int TN = 8;               // keys of a thread
constexpr int TD = 8;               // output columns of a thread
constexpr int KS = BN + 4;          // floats from a line of the K tile to the next
constexpr int PS = R + 4;           // floats from a line of the P tile to the next
constexpr unsigned FULL = 0xffffffffu;
constexpr float LOG2E = 1.4426950408889634f;
constexpr float SLACK = 8.0f;       // a weight may reach 2^8 before its row is rescaled

static_assert(BM % WARPS == 0, "a block's query rows must divide evenly among its warps");
static_assert(BM * BN == THREADS * TM * TN, "a tile must have 8 x 8 scores for each thread");

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

// to += a b^T
template <int N>
__device__ void outer(float (&to)[TM][N], const float (&a)[TM], const float (&b)[N])
{
    #pragma unroll
    for (int i = 0; i < TM; ++i)
        #pragma unroll
        for (int j = 0; j < N; ++j)
            to[i][j] += a[i] * b[j];
}

// 16 bytes from global to shared memory, through no register (sm_80 and newer).
__device__ void copyAsync(float* to, const float* from)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    const unsigned address = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(address), "l"(from) : "memory");
#else
    vec4(to) = vec4(from);
#endif
}

// The same for 4 bytes.
__device__ void copyWord(float* to, const float* from)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    const unsigned address = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(address), "l"(from) : "memory");
#else
    *to = *from;
#endif
}

__device__ void awaitCopies()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
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
    const size_t at = row0 + threadIdx.x < n ? row0 + threadIdx.x : n - 1;
    #pragma unroll
    for (int e = 0; e < D; e += 4) {                  // a row a lane: 32 banks when stored
        const float4 x = vec4(q + at * D + e);        // 4 N d bytes in all
        float* to = qTile + e * BM + threadIdx.x;
        to[0] = x.x * scale;
        to[BM] = x.y * scale;
        to[2 * BM] = x.z * scale;
        to[3 * BM] = x.w * scale;
    }
}

// Transposed on the way: 4 keys x 8 of d a warp instruction, 4 bytes a lane.
__device__ void loadK(float* kTo, const float* kFrom)
{
    #pragma unroll
    for (int i = 0; i < 32; ++i)                      // 4 N d bytes per block: N/128 times
        copyWord(kTo + i % 2 * 32 * KS + i / 2 * 4, kFrom + i % 2 * 32 + i / 2 * 4 * D);
}

__device__ void loadV(float* vTile, const float* v)
{
    #pragma unroll
    for (int i = 0; i < BN * D; i += THREADS * 4)
        copyAsync(vTile + threadIdx.x * 4 + i, v + threadIdx.x * 4 + i);     // the same
}

__device__ void score(float (&s)[TM][TN], const float* qMine, const float* kMine)
{
    #pragma unroll 4
    for (int e = 0; e < D; ++e) {
        float a[TM], b[TN];
        fragment(a, qMine + e * BM, qMine + e * BM + 16);
        fragment(b, kMine + e * KS, kMine + e * KS + 32);
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

__device__ void weigh(float (&s)[TM][TN], float (&l)[TM], float* pTo, const float (&m)[TM])
{
    #pragma unroll
    for (int j = 0; j < TN; ++j) {
        #pragma unroll
        for (int i = 0; i < TM; ++i) {
            s[i][j] = exp2Fast(s[i][j] - m[i]);
            l[i] += s[i][j];                          // of this lane's keys
        }
        vec4(pTo + colOf(j) * PS) = make_float4(s[0][j], s[1][j], s[2][j], s[3][j]);
        vec4(pTo + colOf(j) * PS + 16) = make_float4(s[4][j], s[5][j], s[6][j], s[7][j]);
    }
}

__device__ void accumulate(float (&acc)[TM][TD], const float* pMine, const float* vMine)
{
    #pragma unroll 4
    for (int p = 0; p < BN; ++p) {
        float a[TM], b[TD];
        fragment(a, pMine + p * PS, pMine + p * PS + 16);
        fragment(b, vMine + p * D, vMine + p * D + 32);
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
    extern __shared__ __align__(16) float tiles[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int threadRow = (lane % 2 + lane / 16 * 2) * 4, threadCol = lane / 2 % 8;
    float* qTile = tiles;                             // [d][row]
    float* kTile = qTile + D * BM;                    // [d][key]
    float* vTile = kTile + D * KS;                    // [key][column]
    float* pTile = vTile + BN * D + warp * BN * PS;   // [key][row] of this warp
    const size_t head = blockIdx.z, row0 = (size_t)blockIdx.x * BM;
    q += head * n * D;
    k += head * n * D;
    v += head * n * D;
    const int first = (int)(n / BN * blockIdx.y / gridDim.y);            // tiles of this split
    const int last = (int)(n / BN * (blockIdx.y + 1) / gridDim.y);
    k += (size_t)first * BN * D;
    v += (size_t)first * BN * D;
    k += lane / 8 * D + warp * 8 + lane % 8;              // where this thread copies from and to
    float* kTo = kTile + (warp * 8 + lane % 8) * KS + lane / 8;

    float m[TM], l[TM] = {}, acc[TM][TD] = {};        // acc: the running output
    #pragma unroll
    for (int i = 0; i < TM; ++i)
        m[i] = __int_as_float(0xff800000);            // -inf: the first tile's rescale is 0
    loadK(kTo, k);
    loadQ(qTile, q, row0, n, scale * LOG2E);

    #pragma unroll 1
    for (int tile = first; tile < last; ++tile) {
        awaitCopies();
        __syncthreads();   // K is complete, and no warp still reads the V that is overwritten
        loadV(vTile, v);
        v += BN * D;
        float s[TM][TN] = {};
        score(s, qTile + warp * R + threadRow, kTile + threadCol * 4);
        rescale(m, l, acc, s);
        weigh(s, l, pTile + threadCol * 4 * PS + threadRow, m);

        awaitCopies();
        __syncthreads();   // V is complete, and no warp still reads the K that is overwritten
        k += BN * D;
        if (tile + 1 < last)
            loadK(kTo, k);
        accumulate(acc, pTile + threadRow, vTile + threadCol * 4);
    }

    write(o, m, l, acc, row0, warp * R + threadRow, threadCol * 4, n);
}
// Requested: Q and O once, K and V once per query tile = 8 N d + 8 N d (N/128) bytes;
// with splits > 1, Q once a split and 264 bytes a row and split in place of O.
