// Rung 11: exponentials to the base 2.
//
// What changes: Q is multiplied by scale log2(e) when it is loaded, so scores and maxima come in
// units of 2^x, and a weight is one instruction of the special function unit, ex2.approx. exp(x) is
// 2^(x log2 e): the product was made for each score, now it is made once for each number of Q. expf
// also keeps results below 2^-126, which takes more instructions; here they become 0.
// What it buys: about 8 instructions for each score, which costs 128 multiply-adds.
// What it costs: m is in other units now, which the merge must know. ex2.approx is right to 2 units
// in the last place.
// Prediction: 4 % faster.

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
constexpr float LOG2E = 1.4426950408889634f;

static_assert(BM % WARPS == 0, "a block's query rows must divide evenly among its warps");
static_assert(BM * BN == THREADS * TM * TN, "a tile must have 8 x 8 scores for each thread");

// How far row i and column j (a key, or an output) of a thread are from its first ones.
__device__ int rowOf(int i) { return 4 * i; }
__device__ int colOf(int j) { return 8 * j; }

__device__ float4& vec4(float* x) { return *(float4*)x; }
__device__ float4 vec4(const float* x) { return *(const float4*)x; }

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
    for (int i = threadIdx.x * 4; i < BM * D; i += THREADS * 4) {
        const size_t row = row0 + i / D < n ? row0 + i / D : n - 1;
        const float4 x = vec4(q + row * D + i % D);                      // 4 N d bytes in all
        vec4(qTile + i / D * QS + i % D) =
            make_float4(x.x * scale, x.y * scale, x.z * scale, x.w * scale);
    }
}

__device__ void loadK(float* kTile, const float* k)
{
    #pragma unroll
    for (int i = 0; i < BN * D; i += THREADS * 4) {
        const int at = threadIdx.x * 4 + i;
        copyAsync(kTile + at / D * KS + at % D, k + at);     // 4 N d bytes per block: N/128 times
    }
}

__device__ void loadV(float* vTile, const float* v)
{
    #pragma unroll
    for (int i = 0; i < BN * D; i += THREADS * 4)
        copyAsync(vTile + threadIdx.x * 4 + i, v + threadIdx.x * 4 + i);     // the same
}

__device__ void score(float (&s)[TM][TN], const float* qMine, const float* kMine)
{
    #pragma unroll 1
    for (int e = 0; e < D; e += 4) {
        float4 a[TM];
        #pragma unroll
        for (int i = 0; i < TM; ++i)
            a[i] = vec4(qMine + rowOf(i) * QS + e);
        #pragma unroll
        for (int j = 0; j < TN; ++j) {
            const float4 b = vec4(kMine + colOf(j) * KS + e);
            #pragma unroll
            for (int i = 0; i < TM; ++i) {
                s[i][j] += a[i].x * b.x;
                s[i][j] += a[i].y * b.y;
                s[i][j] += a[i].z * b.z;
                s[i][j] += a[i].w * b.w;
            }
        }
    }
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
        const float mNew = fmaxf(m[i], rowMax(top)), factor = exp2Fast(m[i] - mNew);
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
            s[i][j] = exp2Fast(s[i][j] - m[i]);
            l[i] += s[i][j];                          // of this lane's keys
            pTo[rowOf(i) * PS + colOf(j)] = s[i][j];
        }
}

__device__ void accumulate(float (&acc)[TM][TD], const float* pMine, const float* vMine)
{
    #pragma unroll 1
    for (int p = 0; p < BN; ++p) {
        float b[TD];
        vec4(b) = vec4(vMine + p * D);
        vec4(b + 4) = vec4(vMine + p * D + 32);
        #pragma unroll
        for (int i = 0; i < TM; ++i)
            #pragma unroll
            for (int j = 0; j < TD; ++j)
                acc[i][j] += pMine[rowOf(i) * PS + p] * b[j];
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
    const int threadRow = lane % 2 + lane / 16 * 2, threadCol = lane / 2 % 8;
    float* qTile = tiles;                             // [row][d]
    float* kTile = qTile + BM * QS;                   // [key][d]
    float* vTile = kTile + BN * KS;                   // [key][column]
    float* pTile = vTile + BN * D + warp * R * PS;    // [row][key] of this warp
    const size_t head = blockIdx.z, row0 = (size_t)blockIdx.x * BM;
    q += head * n * D;
    k += head * n * D;
    v += head * n * D;
    const int first = (int)(n / BN * blockIdx.y / gridDim.y);            // tiles of this split
    const int last = (int)(n / BN * (blockIdx.y + 1) / gridDim.y);
    k += (size_t)first * BN * D;
    v += (size_t)first * BN * D;

    float m[TM], l[TM] = {}, acc[TM][TD] = {};        // acc: the running output
    #pragma unroll
    for (int i = 0; i < TM; ++i)
        m[i] = __int_as_float(0xff800000);            // -inf: the first tile's rescale is 0
    loadK(kTile, k);
    loadQ(qTile, q, row0, n, scale * LOG2E);

    #pragma unroll 1
    for (int tile = first; tile < last; ++tile) {
        awaitCopies();
        __syncthreads();   // K is complete, and no warp still reads the V that is overwritten
        loadV(vTile, v);
        v += BN * D;
        float s[TM][TN] = {};
        score(s, qTile + (warp * R + threadRow) * QS, kTile + threadCol * KS);
        rescale(m, l, acc, s);
        weigh(s, l, pTile + threadRow * PS + threadCol, m);

        awaitCopies();
        __syncthreads();   // V is complete, and no warp still reads the K that is overwritten
        k += BN * D;
        if (tile + 1 < last)
            loadK(kTile, k);
        accumulate(acc, pTile + threadRow * PS, vTile + threadCol * 4);
    }

    write(o, m, l, acc, row0, warp * R + threadRow, threadCol * 4, n);
}
// Requested: Q and O once, K and V once per query tile = 8 N d + 8 N d (N/128) bytes;
// with splits > 1, Q once a split and 264 bytes a row and split in place of O.
