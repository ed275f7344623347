// Rung 13: the same in 48 KiB, for a T4.
//
// What changes: no cp.async, which a T4 does not have: the next tile is fetched into registers
// while this one is computed. Q takes 32 KiB, K and V 8 KiB each with tiles of 32 keys, and no room
// is left for the weights: when all warps are done with K they go through its tile, 16 keys at a
// time. K, too, is swizzled now: exactly 48 KiB, no pad.
// What it buys: it runs on every GPU since Turing, without asking for more shared memory.
// What it costs: three barriers a tile of 32 keys, 32 registers for the tile to come. One block on
// an SM of a T4, 4 warps of 32: what hides a wait there is the 64 independent multiply-adds of a
// thread, and the next tile that is already on its way.
// Prediction: on an H200 10 % slower than rung 11.

constexpr int D = 64;           // width of the head
constexpr int BM = 128;         // query rows of a block
constexpr int BN = 32;          // keys of a tile
constexpr int THREADS = 128;
constexpr int R = 8, C = 8;     // a thread's rows and columns: 8 x 8 outputs
constexpr int W = 4;            // a thread's keys: 8 x 4 scores
constexpr unsigned FULL = 0xffffffffu;
constexpr float LOG2E = 1.4426950408889634f;
constexpr float SLACK = 8.0f;   // a weight may reach 2^8 before its row is rescaled

static_assert(BM * BN == THREADS * R * W, "a tile must have 8 x 4 scores for each thread");
static_assert(4 * (D * BM + D * BN + BN * D) <= 48 * 1024,
              "the tiles must fit in 48 KiB: what a block gets on a T4 without opting in");
static_assert(BN * BM == 2 * D * BN, "half of the weights must fit in the K tile");

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
extern "C" __global__ void __launch_bounds__(THREADS, 2)
attentionOnline(const float* q, const float* k, const float* v, float* o, size_t n, float scale)
{
    __shared__ __align__(16) float qTile[D * BM];         // [d][row], swizzled
    __shared__ __align__(16) float kTile[D * BN];         // [d][key], swizzled; then half of P
    __shared__ __align__(16) float vTile[BN * D];         // [key][column]
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int threadRow = lane % 2 + lane / 16 * 2, threadCol = lane / 2 % 8;
    float* pTile = kTile + warp * 16 * 32;                // [key][row] of this warp, swizzled
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
    const float* kGroup[4] = {kTile + threadCol * 4, kTile + (threadCol ^ 2) * 4,
                              kTile + (threadCol ^ 4) * 4, kTile + (threadCol ^ 6) * 4};
    const float* vLine = vTile + threadCol * 4;

    // The next tile waits in registers. A warp fetches 8 keys x 64 bytes of K an instruction.
    const int part4 = lane % 4, key8 = warp * 8 + lane / 4;
    const float* kFrom = k + ((size_t)first * BN + key8) * D + part4 * 4;
    const float* vFrom = v + (size_t)first * BN * D + threadIdx.x * 4;
    float* kTo = kTile + part4 * 4 * BN + (key8 ^ part4 * 8);
    float* vTo = vTile + threadIdx.x * 4;
    float4 kNext[4], vNext[4];
    auto fetch = [&] {
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            kNext[i] = vec4(kFrom + i * 16);
            vNext[i] = vec4(vFrom + i * THREADS * 4);
        }
        kFrom += BN * D;
        vFrom += BN * D;
    };
    auto store = [&] {
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            float* to = kTo + i * 16 * BN;
            to[0] = kNext[i].x;
            to[BN] = kNext[i].y;
            to[2 * BN] = kNext[i].z;
            to[3 * BN] = kNext[i].w;
            vec4(vTo + i * THREADS * 4) = vNext[i];
        }
    };
    fetch();

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
        __syncthreads();   // no warp still reads the weights and the V that are overwritten
        store();
        __syncthreads();   // the tiles are read by all warps: they must be complete first
        if (tile + 1 < last)
            fetch();

        float s[R][W] = {};
        #pragma unroll 1
        for (int d0 = 0; d0 < D; d0 += 16)
            #pragma unroll
            for (int d = 0; d < 16; ++d) {
                float a[R], b[W];
                const float* line = qGroup[d / 4 % 2] + (d0 + d) * BM;
                fragment(a, line + d / 8 * 16, line + 16 - d / 8 * 16);
                vec4(b) = vec4(kGroup[d / 4] + (d0 + d) * BN);
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
        #pragma unroll
        for (int i = 0; i < R; ++i)
            #pragma unroll
            for (int j = 0; j < W; ++j) {
                s[i][j] = exp2Fast(s[i][j] - m[i]);       // the weight, at most 2^8
                l[i] += s[i][j];                          // of this lane's keys
            }
        __syncthreads();   // the weights overwrite K: all warps must be done with it

        float* pTo = pTile + threadCol * 2 * 32 + (threadRow ^ threadCol % 2 * 2) * 4;
        const int high = threadCol / 2 % 2 * 16;
        #pragma unroll
        for (int half = 0; half < 2; ++half) {            // keys 4 threadCol + 2 half, + 1
            #pragma unroll
            for (int x = 0; x < 2; ++x) {
                const int j = 2 * half + x;
                vec4(pTo + x * 32 + high) = make_float4(s[0][j], s[1][j], s[2][j], s[3][j]);
                vec4(pTo + x * 32 + 16 - high) = make_float4(s[4][j], s[5][j], s[6][j], s[7][j]);
            }
            __syncwarp();  // the warp's weights are read by all its lanes
            #pragma unroll
            for (int p = 0; p < 16; ++p) {                // line p is this key's
                const int key = p / 2 * 4 + 2 * half + p % 2;
                float a[R], b[C];
                const float* line = pGroup[p / 2 % 2] + p * 32;
                fragment(a, line + p / 4 % 2 * 16, line + 16 - p / 4 % 2 * 16);
                fragment(b, vLine + key * D, vLine + key * D + 32);
                outer(acc, a, b);
            }
            __syncwarp();  // the other half overwrites them: all lanes must be done
        }
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
