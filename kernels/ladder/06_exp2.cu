// Rung 6: exponentials to the base 2.
//
// What changes: Q is multiplied by scale log2(e) when it is loaded, so scores and maxima come in
// units of 2^x, and a weight is one instruction of the special function unit, ex2.approx. exp(x) is
// 2^(x log2 e): the product was made for each score, now it is made once for each number of Q.
// expf also keeps results below 2^-126, which takes more instructions; here they become 0.
// What it buys: about 6 instructions for each of the 128 multiply-adds that a score costs.
// What it costs: m is in other units now, which the merge must know. ex2.approx is right to 2 units
// in the last place.
// Prediction: 4 % faster.

constexpr int D = 64;           // width of the head
constexpr int BM = 128;         // query rows of a block
constexpr int BN = 64;          // keys of a tile
constexpr int THREADS = 128;
constexpr int R = 8, C = 8;     // a thread's rows and columns: 8 x 8 scores, then 8 x 8 outputs
constexpr int S = D + 4;        // a line of a tile, padded: 8 lanes read 8 lines in 32 banks
constexpr unsigned FULL = 0xffffffffu;
constexpr float LOG2E = 1.4426950408889634f;

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
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int threadRow = lane % 2 + lane / 16 * 2, threadCol = lane / 2 % 8;
    float* qTile = tiles;                                 // [row][d]
    float* kTile = qTile + BM * S;                        // [key][d]
    float* vTile = kTile + BN * S;                        // [key][column]
    float* pTile = vTile + BN * D + warp * 32 * S;        // [row][key] of this warp
    const size_t head = blockIdx.z * n, row0 = (size_t)blockIdx.x * BM;
    const int first = (int)(n / BN * blockIdx.y / gridDim.y);          // tiles of this split
    const int last = (int)(n / BN * (blockIdx.y + 1) / gridDim.y);
    const float* kFrom = k + (head + (size_t)first * BN) * D + threadIdx.x * 4;
    const float* vFrom = v + (head + (size_t)first * BN) * D + threadIdx.x * 4;
    auto copyTile = [&](float* to, int stride, const float*& from) {
        #pragma unroll
        for (int i = 0; i < BN * D; i += THREADS * 4) {
            const int at = threadIdx.x * 4 + i;
            copyAsync(to + at / D * stride + at % D, from + i);
        }
        from += BN * D;
    };

    copyTile(kTile, S, kFrom);

    for (int i = threadIdx.x * 4; i < BM * D; i += THREADS * 4) {
        const size_t row = row0 + i / D < n ? row0 + i / D : n - 1;
        const float4 x = vec4(q + (head + row) * D + i % D);
        vec4(qTile + i / D * S + i % D) =
            make_float4(x.x * (scale * LOG2E), x.y * (scale * LOG2E),
                        x.z * (scale * LOG2E), x.w * (scale * LOG2E));
    }
    const float* qRow = qTile + (warp * 32 + threadRow) * S;   // rows threadRow + 4 i
    float m[R], l[R] = {}, acc[R][C] = {};                // acc: the running output
    #pragma unroll
    for (int i = 0; i < R; ++i)
        m[i] = __int_as_float(0xff800000);                // -inf: the first tile always rescales

    #pragma unroll 1
    for (int tile = first; tile < last; ++tile) {
        awaitCopies();
        __syncthreads();   // K is complete, and no warp still reads the V that is overwritten
        copyTile(vTile, D, vFrom);

        float s[R][C] = {};
        #pragma unroll 1
        for (int d = 0; d < D; d += 4) {
            float4 a[R];
            #pragma unroll
            for (int i = 0; i < R; ++i)
                a[i] = vec4(qRow + i * 4 * S + d);
            #pragma unroll
            for (int j = 0; j < C; ++j) {                 // keys threadCol + 8 j
                const float4 b = vec4(kTile + (threadCol + 8 * j) * S + d);
                #pragma unroll
                for (int i = 0; i < R; ++i) {
                    s[i][j] += a[i].x * b.x;
                    s[i][j] += a[i].y * b.y;
                    s[i][j] += a[i].z * b.z;
                    s[i][j] += a[i].w * b.w;
                }
            }
        }

        #pragma unroll
        for (int i = 0; i < R; ++i) {
            float top = s[i][0];
            #pragma unroll
            for (int j = 1; j < C; ++j)
                top = fmaxf(top, s[i][j]);
            const float mNew = fmaxf(m[i], rowMax(top)), rescale = exp2Fast(m[i] - mNew);
            m[i] = mNew;
            l[i] *= rescale;
            #pragma unroll
            for (int j = 0; j < C; ++j) {
                acc[i][j] *= rescale;
                s[i][j] = exp2Fast(s[i][j] - mNew);
                l[i] += s[i][j];                          // of this lane's keys
                pTile[(threadRow + 4 * i) * S + threadCol + 8 * j] = s[i][j];
            }
        }

        awaitCopies();
        __syncthreads();   // V is complete, and no warp still reads the K that is overwritten
        if (tile + 1 < last)
            copyTile(kTile, S, kFrom);

        #pragma unroll 1
        for (int p = 0; p < BN; ++p) {
            const float* columns = vTile + p * D + threadCol * 4;
            float b[C];
            vec4(b) = vec4(columns);
            vec4(b + 4) = vec4(columns + 32);
            #pragma unroll
            for (int i = 0; i < R; ++i) {
                const float a = pTile[(threadRow + 4 * i) * S + p];
                #pragma unroll
                for (int j = 0; j < C; ++j)
                    acc[i][j] += a * b[j];
            }
        }
    }

    const size_t part = (blockIdx.z * gridDim.y + blockIdx.y) * n;    // rows of o before this part
    float* ml = o + gridDim.z * gridDim.y * n * D;
    #pragma unroll
    for (int i = 0; i < R; ++i) {
        const size_t row = row0 + warp * 32 + threadRow + 4 * i;
        const float sum = rowSum(l[i]), norm = gridDim.y == 1 ? 1.0f / sum : 1.0f;
        if (row >= n)
            continue;
        if (gridDim.y > 1 && threadCol == 0) {
            ml[2 * (part + row)] = m[i];
            ml[2 * (part + row) + 1] = sum;
        }
        #pragma unroll
        for (int h = 0; h < 2; ++h)
            vec4(o + (part + row) * D + threadCol * 4 + h * 32) =
                make_float4(acc[i][4 * h] * norm, acc[i][4 * h + 1] * norm,
                            acc[i][4 * h + 2] * norm, acc[i][4 * h + 3] * norm);
    }
}
