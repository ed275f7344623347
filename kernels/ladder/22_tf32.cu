// Rung 22, a branch that leaves rung 19: tensor cores, the naive way, one TF32 product.
//
// What changes: a warp computes 16 x 8 scores over 8 of d in one instruction, mma, and P V in the
// same way. It takes TF32: of a float32 number the exponent and 10 bits of 23; the rest is cut off.
// An accumulator of S holds what the left operand of P V wants, for keys in another order: P stays
// in registers. Within a step of 16 along d a lane takes 4 numbers next to each other, of Q and of
// K.
// What it buys: eight times the multiply-adds of the float32 units in a second, and a fragment that
// a lane reads serves 16 rows.
// What it costs: the answer. A score of size s is wrong by 2^-11 s or so, and its weight by as
// much: this fails the gate on nearly every case, by up to 240 times. It is here to show it.
// Prediction: 62 % of the TF32 peak through mma.sync, half of that in an attention: 0.3 ms at N =
// 16384, if it were right.

constexpr int D = 64;               // width of the head
constexpr int BM = 128;             // query rows of a block
constexpr int BN = 64;              // keys of a tile
constexpr int WARPS = 8;
constexpr int THREADS = 32 * WARPS;
constexpr int R = BM / WARPS;       // query rows of a warp
constexpr int TM = R / 16;          // operands of 16 rows of a warp
constexpr int TN = BN / 8;          // results of 8 keys
constexpr int TD = D / 8;           // results of 8 columns
constexpr int KD = D / 16;          // double steps of 16 along d
constexpr int KS = D + 16;          // floats from a line of the K tile to the next
constexpr int VS = D + 4;           // floats from a line of the V tile to the next
constexpr int STAGE = BN * KS + BN * VS;
constexpr unsigned FULL = 0xffffffffu;
constexpr float LOG2E = 1.4426950408889634f;
constexpr float SLACK = 8.0f;       // a weight may reach 2^8 before its row is rescaled

static_assert(R % 16 == 0, "a warp must have whole operands of 16 rows");
static_assert(2 * STAGE * 4 <= 113 * 1024, "two blocks, of two tiles each, must fit on an SM");

__device__ float4& vec4(float* x) { return *(float4*)x; }
__device__ float4 vec4(const float* x) { return *(const float4*)x; }

// What TF32 keeps of a number.
__device__ float tf32(float x) { return __uint_as_float(__float_as_uint(x) & 0xffffe000u); }

// snippet: mma
#ifndef __CUDA_ARCH__
constexpr int LEAST = -126;             // of TF32

// The power of 2 of a number's first bit; LEAST where it lies below that.
__device__ int exponentOf(float x) { return max((__float_as_int(x) >> 23 & 255) - 127, LEAST); }

// c + a b over K numbers as an H200's tensor core sums: products are exact; all are cut off,
// towards zero, at BITS below the largest; the sum is exact; the float32 result is cut off, too.
template <int K>
__device__ float dot(float c, const float (&a)[K], const float (&b)[K])
{
    constexpr int BITS = 25, NONE = -1000;
    float plain = c;
    int top = c == 0.0f ? NONE : max((__float_as_int(c) >> 23 & 255) - 127, -126);
    for (int i = 0; i < K; ++i) {
        plain += a[i] * b[i];
        if (a[i] != 0.0f && b[i] != 0.0f)
            top = max(top, exponentOf(a[i]) + exponentOf(b[i]));
    }
    if (top == NONE || !isfinite(plain))
        return plain;
    const double up = exp2((double)(BITS - top));
    long long sum = (long long)(c * up);
    for (int i = 0; i < K; ++i)
        sum += (long long)((double)a[i] * b[i] * up);
    const double exact = sum / up;
    const float near = (float)exact;
    return fabs((double)near) > fabs(exact) ? __uint_as_float(__float_as_uint(near) - 1) : near;
}
#endif

// c += a b: 16 rows, 8 summed over, 8 columns. Of c a lane has rows lane/4 and 8 more, columns
// 2 (lane%4) and the next; of a the same rows, numbers lane%4 and 4 more; of b column lane/4, the
// same numbers (PTX manual, m16n8k8).
__device__ void mma(float (&c)[4], const float (&a)[4], const float (&b)[2])
{
#if !defined(__CUDA_ARCH__)
    const int lane = threadIdx.x % 32;
    float rows[2][8], columns[2][8];
    for (int k = 0; k < 8; ++k)
        for (int x = 0; x < 2; ++x) {
            rows[x][k] = tf32(__shfl_sync(FULL, a[k / 4 * 2 + x], lane / 4 * 4 + k % 4));
            columns[x][k] = tf32(__shfl_sync(FULL, b[k / 4], (lane % 4 * 2 + x) * 4 + k % 4));
        }
    for (int i = 0; i < 4; ++i)
        c[i] = dot<8>(c[i], rows[i / 2], columns[i % 2]);
#elif __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])),
                   "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
                   "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
#endif
}
// end snippet

// c += a b for two operands of rows and four of columns.
__device__ void products(float (&c)[TM][4][4], const float (&a)[TM][4], const float (&b)[4][2])
{
    #pragma unroll
    for (int j = 0; j < 4; ++j)
        #pragma unroll
        for (int i = 0; i < TM; ++i)
            mma(c[i][j], a[i], b[j]);
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

// The 4 lanes that share a row differ in bits 0 and 1.
__device__ float rowMax(float x)
{
    x = fmaxf(x, __shfl_xor_sync(FULL, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL, x, 2));
}

__device__ float rowSum(float x)
{
    x += __shfl_xor_sync(FULL, x, 1);
    return x + __shfl_xor_sync(FULL, x, 2);
}

// A warp's rows of Q. Past the end: the last row again.
__device__ void loadQ(float (&mine)[TM][2 * KD][4], const float* q, size_t row0, size_t n,
                      float scale)
{
    const int lane = threadIdx.x % 32;
    #pragma unroll
    for (int i = 0; i < TM; ++i)
        #pragma unroll
        for (int h = 0; h < 2; ++h) {
            const size_t row = row0 + i * 16 + h * 8 + lane / 4, at = row < n ? row : n - 1;
            #pragma unroll
            for (int step = 0; step < KD; ++step) {
                const float4 x = vec4(q + at * D + step * 16 + lane % 4 * 4);  // 4 N d bytes in all
                mine[i][2 * step][h] = x.x * scale;
                mine[i][2 * step][2 + h] = x.y * scale;
                mine[i][2 * step + 1][h] = x.z * scale;
                mine[i][2 * step + 1][2 + h] = x.w * scale;
            }
        }
}

__device__ void loadTile(float* stage, const float* k, const float* v)
{
    #pragma unroll
    for (int i = 0; i < BN * D; i += THREADS * 4) {                      // 4 N d bytes per block:
        const int at = threadIdx.x * 4 + i, line = at / D, e = at % D;   // N/128 times
        copyAsync(stage + line * KS + e, k + at);
        copyAsync(stage + BN * KS + line * VS + e, v + at);              // the same
    }
}

// Four operands of 8 keys at a time.
__device__ void score(float (&s)[TN / 4][TM][4][4], const float (&qMine)[TM][2 * KD][4],
                      const float* kMine)
{
    #pragma unroll
    for (int step = 0; step < KD; ++step)
        #pragma unroll
        for (int half = 0; half < TN / 4; ++half) {
            float b[2][4][2], a[2][TM][4];
            #pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float4 x = vec4(kMine + (half * 4 + j) * 8 * KS + step * 16);
                b[0][j][0] = x.x;
                b[0][j][1] = x.y;
                b[1][j][0] = x.z;
                b[1][j][1] = x.w;
            }
            #pragma unroll
            for (int pair = 0; pair < 2; ++pair) {
                #pragma unroll
                for (int i = 0; i < TM; ++i)
                    #pragma unroll
                    for (int x = 0; x < 4; ++x)
                        a[pair][i][x] = qMine[i][2 * step + pair][x];
                products(s[half], a[pair], b[pair]);
            }
        }
}

// A new maximum, where a row has risen far: what has been summed so far shrinks.
__device__ void rescale(float (&m)[TM][2], float (&l)[TM][2], float (&acc)[TD / 4][TM][4][4],
                        const float (&s)[TN / 4][TM][4][4])
{
    float top[TM][2];
    bool rise = false;
    #pragma unroll
    for (int i = 0; i < TM; ++i)
        #pragma unroll
        for (int h = 0; h < 2; ++h) {
            top[i][h] = s[0][i][0][2 * h];
            #pragma unroll
            for (int j = 0; j < TN; ++j)
                top[i][h] = fmaxf(top[i][h], fmaxf(s[j / 4][i][j % 4][2 * h],
                                                   s[j / 4][i][j % 4][2 * h + 1]));
            rise |= top[i][h] > m[i][h] + SLACK;
        }
    if (__any_sync(FULL, rise)) {
        #pragma unroll
        for (int i = 0; i < TM; ++i)
            #pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float mNew = fmaxf(m[i][h], rowMax(top[i][h]));
                const float shrink = exp2Fast(m[i][h] - mNew);
                m[i][h] = mNew;
                l[i][h] *= shrink;
                #pragma unroll
                for (int j = 0; j < TD; ++j) {
                    acc[j / 4][i][j % 4][2 * h] *= shrink;
                    acc[j / 4][i][j % 4][2 * h + 1] *= shrink;
                }
            }
    }
}

__device__ void weigh(float (&s)[TN / 4][TM][4][4], float (&l)[TM][2], const float (&m)[TM][2])
{
    #pragma unroll
    for (int i = 0; i < TM; ++i)
        #pragma unroll
        for (int j = 0; j < TN; ++j)
            #pragma unroll
            for (int x = 0; x < 4; ++x) {
                float& p = s[j / 4][i][j % 4][x];
                p = exp2Fast(p - m[i][x / 2]);
                l[i][x / 2] += p;                     // of this lane's keys
            }
}

// Results of P for 8 keys are a left operand: of the keys, too, a lane has 2 (lane%4) and the next.
// Four operands of columns a time: columns 4 (lane/4) to 4 (lane/4) + 3 of a half.
__device__ void accumulate(float (&acc)[TD / 4][TM][4][4], const float (&p)[TN / 4][TM][4][4],
                           const float* vMine)
{
    #pragma unroll
    for (int half = 0; half < TD / 4; ++half) {
        #pragma unroll
        for (int step = 0; step < TN; ++step) {
            float a[TM][4], b[4][2];
            #pragma unroll
            for (int i = 0; i < TM; ++i)
                #pragma unroll
                for (int x = 0; x < 4; ++x)
                    a[i][x] = p[step / 4][i][step % 4][x % 2 * 2 + x / 2];
            const float4 x = vec4(vMine + step * 8 * VS + half * 32);
            const float4 y = vec4(vMine + step * 8 * VS + half * 32 + VS);
            b[0][0] = x.x;
            b[1][0] = x.y;
            b[2][0] = x.z;
            b[3][0] = x.w;
            b[0][1] = y.x;
            b[1][1] = y.y;
            b[2][1] = y.z;
            b[3][1] = y.w;
            products(acc[half], a, b);
        }
    }
}

// One split: O. More: of each its running output, undivided, and m and l after all of those.
__device__ void write(float* o, const float (&m)[TM][2], float (&l)[TM][2],
                      const float (&acc)[TD / 4][TM][4][4], size_t row0, size_t n)
{
    const int lane = threadIdx.x % 32;
    const bool whole = gridDim.y == 1;
    const size_t part = ((size_t)blockIdx.z * gridDim.y + blockIdx.y) * n;   // rows before these
    float* ml = o + gridDim.z * gridDim.y * n * D;
    #pragma unroll
    for (int i = 0; i < TM; ++i)
        #pragma unroll
        for (int h = 0; h < 2; ++h) {
            l[i][h] = rowSum(l[i][h]);
            const size_t at = row0 + i * 16 + h * 8 + lane / 4;
            const float norm = whole ? 1.0f / l[i][h] : 1.0f;
            if (at < n) {
                if (!whole && lane % 4 == 0)
                    *(float2*)(ml + (part + at) * 2) = make_float2(m[i][h], l[i][h]);
                #pragma unroll
                for (int x = 0; x < 4; ++x) {                            // 4 N d bytes a split
                    const float (&from)[4][4] = acc[x / 2][i];
                    const int c = 2 * h + x % 2;
                    vec4(o + (part + at) * D + x / 2 * 32 + lane % 4 * 8 + x % 2 * 4) =
                        make_float4(from[0][c] * norm, from[1][c] * norm, from[2][c] * norm,
                                    from[3][c] * norm);
                }
            }
        }
}

// Assumes blockDim = 256, gridDim = (ceil(n/128), splits, heads), n a multiple of 64.
// With splits > 1 o is a workspace: o of every head, split and row, then (m, l) of every one.
extern "C" __global__ void __launch_bounds__(THREADS)
attentionOnline(const float* q, const float* k, const float* v, float* o, size_t n, float scale)
{
    extern __shared__ __align__(16) float stages[];      // two tiles, each K, then V
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t head = blockIdx.z, row0 = (size_t)blockIdx.x * BM + warp * R;
    const int first = (int)(n / BN * blockIdx.y / gridDim.y);            // tiles of this split
    const int last = (int)(n / BN * (blockIdx.y + 1) / gridDim.y);
    q += head * n * D;
    k += (head * n + first * BN) * D;
    v += (head * n + first * BN) * D;

    float m[TM][2], l[TM][2] = {}, acc[TD / 4][TM][4][4] = {};   // acc: the running output
    #pragma unroll
    for (int i = 0; i < TM; ++i)
        m[i][0] = m[i][1] = __int_as_float(0xff800000);  // -inf: the first tile's rescale is 0
    loadTile(stages, k, v);
    float qMine[TM][2 * KD][4];
    loadQ(qMine, q, row0, n, scale * LOG2E);

    #pragma unroll 1
    for (int tile = first; tile < last; ++tile) {
        const float* stage = stages + (tile - first) % 2 * STAGE;
        awaitCopies();
        __syncthreads();   // the tile is complete, and no warp still reads the one before
        k += BN * D;
        v += BN * D;
        if (tile + 1 < last)
            loadTile(stages + (tile + 1 - first) % 2 * STAGE, k, v);
        float s[TN / 4][TM][4][4] = {};
        score(s, qMine, stage + lane / 4 * KS + lane % 4 * 4);
        rescale(m, l, acc, s);
        weigh(s, l, m);
        accumulate(acc, s, stage + BN * KS + lane % 4 * 2 * VS + lane / 4 * 4);
    }

    write(o, m, l, acc, row0, n);
}
// Requested: Q and O once, K and V once per query tile = 8 N d + 8 N d (N/128) bytes;
// with splits > 1, Q once a split and 264 bytes a row and split in place of O.
