// Rung 12: more warps, on smaller tiles.
//
// What changes: tiles of 32 keys, so 8 x 4 scores a thread. That leaves 66 KiB a block and fewer
// than 168 registers a thread: three blocks on an SM in place of two, 12 warps in place of 8.
// What it buys: half as many warps again, to issue from while others wait.
// What it costs: a step of the scores is 3 reads for 32 multiply-adds, where it was 4 for 64; twice
// as many barriers; and a third more blocks to start, finish and merge. Where a block has few tiles,
// as at N = 4096, it is slower than rung 11; where it has many, as at 16384, it is faster.
// Prediction: 3 % faster for the waiting it hides.

constexpr int D = 64;           // width of the head
constexpr int BM = 128;         // query rows of a block
constexpr int BN = 32;          // keys of a tile
constexpr int THREADS = 128;
constexpr int R = 8, C = 8;     // a thread's rows and columns: 8 x 8 outputs
constexpr int W = 4;            // a thread's keys: 8 x 4 scores
constexpr int KS = BN + 4;      // a line of the K tile, padded
constexpr unsigned FULL = 0xffffffffu;
constexpr float LOG2E = 1.4426950408889634f;
constexpr float SLACK = 8.0f;   // a weight may reach 2^8 before its row is rescaled

static_assert(BM * BN == THREADS * R * W, "a tile must have 8 x 4 scores for each thread");
static_assert(3 * (4 * (D * BM + D * KS + BN * D + BN * BM) + 1024) <= 228 * 1024,
              "three blocks must fit in 228 KiB: what an SM of sm_90 has, 1 KiB of it for each");

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

// WORDS floats from global to shared memory, through no register (sm_80 and newer).
template <int WORDS> __device__ void copyAsync(float* to, const float* from)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    const unsigned address = (unsigned)__cvta_generic_to_shared(to);
    if constexpr (WORDS == 4)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(address), "l"(from));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(address), "l"(from));
#else
    for (int i = 0; i < WORDS; ++i)
        to[i] = from[i];
#endif
}

__device__ void awaitCopies()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

__device__ float4& vec4(float* x) { return *(float4*)x; }
__device__ float4 vec4(const float* x) { return *(const float4*)x; }

// Two reads of 16 bytes: what a thread needs of one line of a tile.
__device__ void fragment(float (&x)[8], const float* low, const float* high)
{
    vec4(x) = vec4(low);
    vec4(x + 4) = vec4(high);
}

// to += a b^T, forth and back along the shorter side: neighbours in this order share an operand.
template <int N> __device__ void outer(float (&to)[R][N], const float (&a)[R], const float (&b)[N])
{
    #pragma unroll
    for (int x = 0; x < R * N; ++x) {
        const int side = N < R ? N : R, line = x / side;
        const int at = line % 2 ? side - 1 - x % side : x % side;
        const int i = N < R ? line : at, j = N < R ? at : line;
        to[i][j] += a[i] * b[j];
    }
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

// Assumes blockDim = 128, gridDim = (ceil(n/128), splits, heads), n a multiple of 64.
// With splits > 1 o is a workspace: o of every head, split and row, then (m, l) of every one.
extern "C" __global__ void __launch_bounds__(THREADS, 3)
attentionOnline(const float* q, const float* k, const float* v, float* o, size_t n, float scale)
{
    extern __shared__ __align__(16) float tiles[];
    float* qTile = tiles;                                 // [d][row], swizzled
    float* kTile = qTile + D * BM;                        // [d][key]
    float* vTile = kTile + D * KS;                        // [key][column]
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int threadRow = lane % 2 + lane / 16 * 2, threadCol = lane / 2 % 8;
    float* pTile = vTile + BN * D + warp * BN * 32;       // [key][row] of this warp, swizzled
    const size_t head = blockIdx.z, row0 = (size_t)blockIdx.x * BM;
    q += head * n * D;
    k += head * n * D;
    v += head * n * D;
    const int first = (int)(n / BN * blockIdx.y / gridDim.y);          // tiles of this split
    const int last = (int)(n / BN * (blockIdx.y + 1) / gridDim.y);
    // Where this thread's groups are in a line with line/4 % 2 = 0 and 1; line/8 % 2 swaps halves.
    const float* qGroup[2] = {qTile + warp * 32 + threadRow * 4,
                              qTile + warp * 32 + (threadRow ^ 2) * 4};
    const float* pGroup[2] = {pTile + threadRow * 4, pTile + (threadRow ^ 2) * 4};
    const float* kLine = kTile + threadCol * 4;
    const float* vLine = vTile + threadCol * 4;

    // K is transposed on the way: 4 keys x 8 of d a warp instruction, 4 bytes a lane.
    const float* kFrom = k + ((size_t)first * BN + lane / 8) * D + warp * 8 + lane % 8;
    float* kTo = kTile + (warp * 8 + lane % 8) * KS + lane / 8;
    const float* vFrom = v + (size_t)first * BN * D + threadIdx.x * 4;
    float* vTo = vTile + threadIdx.x * 4;
    auto copyK = [&](int key) {                           // 16 keys of the tile
        #pragma unroll
        for (int i = 0; i < 8; ++i)
            copyAsync<1>(kTo + key + i % 2 * 32 * KS + i / 2 * 4,
                         kFrom + i % 2 * 32 + (key + i / 2 * 4) * D);
    };
    #pragma unroll
    for (int key = 0; key < BN; key += 16)
        copyK(key);
    kFrom += BN * D;

    const float unit = scale * LOG2E;
    #pragma unroll
    for (int i = 0; i < 16; ++i) {                        // 8 rows x 64 bytes a warp instruction
        const int row = warp * 32 + lane / 4 + i / 4 * 8, d = i % 4 * 16 + lane % 4 * 4;
        const size_t at = row0 + row < n ? row0 + row : n - 1;
        const float4 x = vec4(q + at * D + d);
        float* to = qTile + d * BM + (row ^ lane % 4 * 8);
        to[0] = x.x * unit;
        to[BM] = x.y * unit;
        to[2 * BM] = x.z * unit;
        to[3 * BM] = x.w * unit;
    }

    float m[R], l[R] = {}, acc[R][C] = {};                // acc: the running output
    #pragma unroll
    for (int i = 0; i < R; ++i)
        m[i] = __int_as_float(0xff800000);                // -inf: the first tile always rescales

    #pragma unroll 1
    for (int tile = first; tile < last; ++tile) {
        awaitCopies();
        __syncthreads();   // K is complete, and no warp still reads the V that is overwritten
        #pragma unroll
        for (int i = 0; i < BN * D; i += THREADS * 4)
            copyAsync<4>(vTo + i, vFrom + i);
        vFrom += BN * D;

        float s[R][W] = {};
        #pragma unroll 1
        for (int d0 = 0; d0 < D; d0 += 16)
            #pragma unroll
            for (int d = 0; d < 16; ++d) {
                float a[R], b[W];
                const float* line = qGroup[d / 4 % 2] + (d0 + d) * BM;
                fragment(a, line + d / 8 * 16, line + 16 - d / 8 * 16);
                vec4(b) = vec4(kLine + (d0 + d) * KS);
                outer(s, a, b);
            }

        float top[R];
        bool rise = false;
        #pragma unroll
        for (int i = 0; i < R; ++i) {
            top[i] = s[i][0];
            #pragma unroll
            for (int j = 1; j < W; ++j)
                top[i] = fmaxf(top[i], s[i][j]);
            rise |= top[i] > m[i] + SLACK;
        }
        if (__any_sync(FULL, rise)) {
            #pragma unroll
            for (int i = 0; i < R; ++i) {
                const float mNew = fmaxf(rowMax(top[i]), m[i]), rescale = exp2Fast(m[i] - mNew);
                m[i] = mNew;
                l[i] *= rescale;
                #pragma unroll
                for (int j = 0; j < C; ++j)
                    acc[i][j] *= rescale;
            }
        }
        float* pTo = pTile + threadCol * 4 * 32 + (threadRow ^ threadCol % 2 * 2) * 4;
        const int high = threadCol / 2 % 2 * 16;
        #pragma unroll
        for (int j = 0; j < W; ++j) {
            #pragma unroll
            for (int i = 0; i < R; ++i) {
                s[i][j] = exp2Fast(s[i][j] - m[i]);       // the weight, at most 2^8
                l[i] += s[i][j];                          // of this lane's keys
            }
            float* to = pTo + j * 32;
            vec4(to + high) = make_float4(s[0][j], s[1][j], s[2][j], s[3][j]);
            vec4(to + 16 - high) = make_float4(s[4][j], s[5][j], s[6][j], s[7][j]);
        }

        awaitCopies();
        __syncthreads();   // V is complete, and no warp still reads the K that is overwritten
        #pragma unroll 1
        for (int p0 = 0; p0 < BN; p0 += 16) {
            if (tile + 1 < last)
                copyK(p0);
            #pragma unroll
            for (int p = 0; p < 16; ++p) {
                float a[R], b[C];
                const float* line = pGroup[p / 4 % 2] + (p0 + p) * 32;
                fragment(a, line + p / 8 * 16, line + 16 - p / 8 * 16);
                fragment(b, vLine + (p0 + p) * D, vLine + (p0 + p) * D + 32);
                outer(acc, a, b);
            }
        }
        kFrom += BN * D;
    }

    #pragma unroll
    for (int i = 0; i < R; ++i)
        l[i] = rowSum(l[i]);
    const bool whole = gridDim.y == 1;
    const size_t part = (head * gridDim.y + blockIdx.y) * n + row0;    // rows of o before these
    float* to = o + part * D + threadCol * 4;
    float* ml = o + gridDim.z * gridDim.y * n * D + part * 2;
    #pragma unroll
    for (int i = 0; i < R; ++i) {
        const int row = warp * 32 + i / 4 * 16 + threadRow * 4 + i % 4;
        const float norm = whole ? 1.0f / l[i] : 1.0f;
        if (row0 + row < n) {
            if (!whole && threadCol == 0)
                *(float2*)(ml + row * 2) = make_float2(m[i], l[i]);
            #pragma unroll
            for (int h = 0; h < 2; ++h)
                vec4(to + row * D + h * 32) =
                    make_float4(acc[i][4 * h] * norm, acc[i][4 * h + 1] * norm,
                                acc[i][4 * h + 2] * norm, acc[i][4 * h + 3] * norm);
        }
    }
}
