// Rung 10: the 64 multiply-adds of a step go down one column and up the next.
//
// What changes: the order in which a thread takes its 8 x 8 products, and nothing else. Each one
// then shares b with its neighbour, or a where the column changes.
// What it buys: a multiply-add reads three registers. The compiler marks an operand that the next
// instruction needs again (.reuse in the machine code), and it is not read again. In this order
// nearly every instruction has one, so the registers can keep up with one instruction a cycle.
// What it costs: nothing but a line that looks odd.
// Prediction: rows, one after another from left to right, left one product in eight without a
// shared operand: 4 %.

constexpr int D = 64;           // width of the head
constexpr int BM = 128;         // query rows of a block
constexpr int BN = 64;          // keys of a tile
constexpr int THREADS = 128;
constexpr int R = 8, C = 8;     // a thread's rows and columns: 8 x 8 scores, then 8 x 8 outputs
constexpr int KS = BN + 4;      // a line of the K tile, padded
constexpr int PS = 32 + 4;      // a line of the P tile, padded
constexpr unsigned FULL = 0xffffffffu;
constexpr float LOG2E = 1.4426950408889634f;
constexpr float SLACK = 8.0f;   // a weight may reach 2^8 before its row is rescaled

static_assert(BM * BN == THREADS * R * C, "a tile must have 8 x 8 scores for each thread");

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

// to += a b^T, down one column and up the next: neighbours in this order share an operand.
__device__ void outer(float (&to)[R][C], const float (&a)[R], const float (&b)[C])
{
// snippet: order
    #pragma unroll
    for (int x = 0; x < R * C; ++x) {
        const int j = x / R, i = j % 2 ? R - 1 - x % R : x % R;
        to[i][j] += a[i] * b[j];
    }
// end snippet
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
    extern __shared__ __align__(16) float tiles[];
    float* qTile = tiles;                                 // [d][row]
    float* kTile = qTile + D * BM;                        // [d][key]
    float* vTile = kTile + D * KS;                        // [key][column]
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int threadRow = lane % 2 + lane / 16 * 2, threadCol = lane / 2 % 8;
    float* pTile = vTile + BN * D + warp * BN * PS;       // [key][row] of this warp
    const size_t head = blockIdx.z, row0 = (size_t)blockIdx.x * BM;
    q += head * n * D;
    k += head * n * D;
    v += head * n * D;
    const int first = (int)(n / BN * blockIdx.y / gridDim.y);          // tiles of this split
    const int last = (int)(n / BN * (blockIdx.y + 1) / gridDim.y);
    const float* qLine = qTile + warp * 32 + threadRow * 4;    // this thread's part of a line
    const float* pLine = pTile + threadRow * 4;
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
    const size_t at = row0 + threadIdx.x < n ? row0 + threadIdx.x : n - 1;
    #pragma unroll
    for (int d = 0; d < D; d += 4) {                      // a row a lane: 32 banks when stored
        const float4 x = vec4(q + at * D + d);
        float* to = qTile + d * BM + threadIdx.x;
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

        float s[R][C] = {};
        #pragma unroll 1
        for (int d0 = 0; d0 < D; d0 += 16)
            #pragma unroll
            for (int d = 0; d < 16; ++d) {
                float a[R], b[C];
                fragment(a, qLine + (d0 + d) * BM, qLine + (d0 + d) * BM + 16);
                fragment(b, kLine + (d0 + d) * KS, kLine + (d0 + d) * KS + 32);
                outer(s, a, b);
            }

        float top[R];
        bool rise = false;
        #pragma unroll
        for (int i = 0; i < R; ++i) {
            top[i] = s[i][0];
            #pragma unroll
            for (int j = 1; j < C; ++j)
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
        float* pTo = pTile + threadCol * 4 * PS + threadRow * 4;
        #pragma unroll
        for (int j = 0; j < C; ++j) {
            #pragma unroll
            for (int i = 0; i < R; ++i) {
                s[i][j] = exp2Fast(s[i][j] - m[i]);       // the weight, at most 2^8
                l[i] += s[i][j];                          // of this lane's keys
            }
            float* to = pTo + (j % 4 + j / 4 * 32) * PS;
            vec4(to) = make_float4(s[0][j], s[1][j], s[2][j], s[3][j]);
            vec4(to + 16) = make_float4(s[4][j], s[5][j], s[6][j], s[7][j]);
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
                fragment(a, pLine + (p0 + p) * PS, pLine + (p0 + p) * PS + 16);
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
