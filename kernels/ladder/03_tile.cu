// Rung 3: a thread owns an 8 x 8 piece of the tile, and reads shared memory 16 bytes at a time.
//
// What changes: a block has 128 query rows and 128 threads, a tile 64 keys. A thread holds 8 x 8
// scores in registers, then 8 x 8 outputs. A number that it reads serves 8 rows or 8 keys at once,
// and one read brings four of them. The weights go through shared memory, 4 warps side by side:
// a warp owns its 32 rows, so no other warp needs them.
// What it buys: rung 2 read about one word of shared memory for each multiply-add. Now it is
// 16 reads of 16 bytes for 256 multiply-adds of scores, and 10 reads for 64 of outputs.
// What it costs: 101 KiB of shared memory, so no T4; two blocks on an SM, 8 warps of its 64. And
// twice as many rows a block means half as many blocks: 32 at N = 4096, for 132 SMs.
// Prediction: 3 times faster at N = 16384, where there is a block for nearly every SM; at 4096
// three SMs in four stand empty, so hardly 2 times.

constexpr int D = 64;           // width of the head
constexpr int BM = 128;         // query rows of a block
constexpr int BN = 64;          // keys of a tile
constexpr int THREADS = 128;
constexpr int R = 8, C = 8;     // a thread's rows and columns: 8 x 8 scores, then 8 x 8 outputs
constexpr int S = D + 4;        // a line of a tile, padded: 8 lanes read 8 lines in 32 banks
constexpr unsigned FULL = 0xffffffffu;

static_assert(BM * BN == THREADS * R * C, "a tile must have 8 x 8 scores for each thread");

__device__ float4& vec4(float* x) { return *(float4*)x; }
__device__ float4 vec4(const float* x) { return *(const float4*)x; }

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

// Assumes blockDim = 128, gridDim = (ceil(n/128), 1, heads), n a multiple of 64.
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
    const float* kFrom = k + head * D + threadIdx.x * 4;
    const float* vFrom = v + head * D + threadIdx.x * 4;

    for (int i = threadIdx.x * 4; i < BM * D; i += THREADS * 4) {
        const size_t row = row0 + i / D < n ? row0 + i / D : n - 1;
        const float4 x = vec4(q + (head + row) * D + i % D);
        vec4(qTile + i / D * S + i % D) =
            make_float4(x.x * scale, x.y * scale, x.z * scale, x.w * scale);
    }
    const float* qRow = qTile + (warp * 32 + threadRow) * S;   // rows threadRow + 4 i
    float m[R], l[R] = {}, acc[R][C] = {};                // acc: the running output
    #pragma unroll
    for (int i = 0; i < R; ++i)
        m[i] = __int_as_float(0xff800000);                // -inf: the first tile always rescales

    const int tileCount = (int)(n / BN);
    #pragma unroll 1
    for (int tile = 0; tile < tileCount; ++tile) {
        #pragma unroll
        for (int i = 0; i < BN * D; i += THREADS * 4) {
            const int at = threadIdx.x * 4 + i;
            vec4(kTile + at / D * S + at % D) = vec4(kFrom + i);
            vec4(vTile + at) = vec4(vFrom + i);
        }
        kFrom += BN * D;
        vFrom += BN * D;
        __syncthreads();   // the tiles are read by all warps: they must be complete first

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
            const float mNew = fmaxf(m[i], rowMax(top)), rescale = expf(m[i] - mNew);
            m[i] = mNew;
            l[i] *= rescale;
            #pragma unroll
            for (int j = 0; j < C; ++j) {
                acc[i][j] *= rescale;
                s[i][j] = expf(s[i][j] - mNew);
                l[i] += s[i][j];                          // of this lane's keys
                pTile[(threadRow + 4 * i) * S + threadCol + 8 * j] = s[i][j];
            }
        }
        __syncwarp();   // the warp's weights are read by all its lanes

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
        __syncthreads();   // the next tile overwrites K and V: all reads must be over
    }

    #pragma unroll
    for (int i = 0; i < R; ++i) {
        const size_t row = row0 + warp * 32 + threadRow + 4 * i;
        const float norm = 1.0f / rowSum(l[i]);
        if (row >= n)
            continue;
        #pragma unroll
        for (int h = 0; h < 2; ++h)
            vec4(o + (head + row) * D + threadCol * 4 + h * 32) =
                make_float4(acc[i][4 * h] * norm, acc[i][4 * h + 1] * norm,
                            acc[i][4 * h + 2] * norm, acc[i][4 * h + 3] * norm);
    }
}
