// Attention as people run it: three FP16 products for one of float32, on any GPU since Turing.
//
// Rung 24 of the ladder, for any Problem: any number of queries and keys from 1, a causal mask
// (aligned to the bottom right: query i sees keys 0 to i + keys - queries), a number of keys for
// each batch entry, heads that share K and V, and a width d up to WIDTH, a multiple of 8. splitKeys
// (keys.cu) has written K and V as FP16 hi and lo in tiles of 64 keys, filled up with zeros.
// A tile that no row of a block sees is not walked; a tile that only some see is masked, score by
// score; the others are not. A row that sees no key has m = -inf, and gives zeros and lse = -inf.

#ifndef WIDTH
#define WIDTH 64
#endif
constexpr int D = WIDTH;            // columns of a tile; d of them are those of the head
constexpr int BN = 64;              // keys of a tile
constexpr int WARPS = 4;
constexpr int THREADS = 32 * WARPS;
constexpr int R = D > 64 ? 16 : 32; // query rows of a warp: Q and the sums must find registers
constexpr int BM = R * WARPS;       // query rows of a block
constexpr int TM = R / 16;          // operands of 16 rows of a warp
constexpr int TN = BN / 8;          // results of 8 keys
constexpr int TD = D / 8;           // results of 8 columns
constexpr int KD = D / 16;          // steps of 16 along d
constexpr int KN = BN / 16;         // steps of 16 along the keys
constexpr int WIDE = 4;             // results of 8 that are computed side by side
constexpr int TILE = BN * D;        // words of 4 bytes of one matrix of a tile, hi and lo
constexpr unsigned FULL = 0xffffffffu;
constexpr float LOG2E = 1.4426950408889634f;
constexpr float SLACK = 8.0f;       // a weight may reach 2^8 before its row is rescaled
constexpr float LN2 = 0.6931471805599453f;

static_assert(R % 16 == 0, "a warp must have whole operands of 16 rows");
static_assert(D == 64 || D == 128, "WIDTH must be 64 or 128");

// snippet: mma
#ifndef __CUDA_ARCH__
__device__ float2 unpack(unsigned word);

constexpr int LEAST = -14;              // of FP16

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

// c += a b: 16 rows, 16 summed over, 8 columns. Of c a lane has rows lane/4 and 8 more, columns
// 2 (lane%4) and the next; of a the same rows, pairs lane%4 and 4 more; of b column lane/4, the
// same pairs (PTX manual, m16n8k16).
__device__ void mma(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
#if !defined(__CUDA_ARCH__)
    const int lane = threadIdx.x % 32;
    float rows[2][16], columns[2][16];
    for (int pair = 0; pair < 8; ++pair)
        for (int x = 0; x < 2; ++x) {
            const int row = lane / 4, column = lane % 4 * 2 + x, at = pair % 4;
            const float2 y = unpack(__shfl_sync(FULL, a[pair / 4 * 2 + x], row * 4 + at));
            const float2 z = unpack(__shfl_sync(FULL, b[pair / 4], column * 4 + at));
            rows[x][2 * pair] = y.x;
            rows[x][2 * pair + 1] = y.y;
            columns[x][2 * pair] = z.x;
            columns[x][2 * pair + 1] = z.y;
        }
    for (int i = 0; i < 4; ++i)
        c[i] = dot<16>(c[i], rows[i / 2], columns[i % 2]);
#elif __CUDA_ARCH__ < 800
    for (int half = 0; half < 2; ++half)                 // a T4's product sums over 8
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
                     "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}
// end snippet

// snippet: split
#ifndef __CUDA_ARCH__
// FP16 of a float32 number, rounded to nearest even, and back: what the GPU's cvt does.
__device__ unsigned toHalf(float x)
{
    const unsigned bits = __float_as_uint(x), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size > 0x7f800000)
        return 0x7fff;                                        // NaN
    if (size >= 0x477ff000)
        return sign | 0x7c00;                                 // 65520 and more: infinity
    if (size < 0x38800000)
        return sign | (unsigned)rintf(fabsf(x) * 0x1p24f);    // below 2^-14: steps of 2^-24
    return sign | ((size + 0xfff + (size >> 13 & 1)) >> 13) - (112 << 10);
}

__device__ float toFloat(unsigned half)
{
    const unsigned sign = (half & 0x8000) << 16, digits = half & 0x7fff;
    if (digits < 0x0400)
        return __uint_as_float(sign | __float_as_uint(digits * 0x1p-24f));
    return __uint_as_float(sign | (digits << 13) + (digits < 0x7c00 ? 112 << 23 : 224 << 23));
}
#endif

// Two FP16 numbers in a word, x in the low half.
__device__ unsigned pack(float x, float y)
{
#if !defined(__CUDA_ARCH__)
    return toHalf(x) | toHalf(y) << 16;
#elif __CUDA_ARCH__ >= 800
    unsigned word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(y), "f"(x));
    return word;
#else
    unsigned word;
    asm("{.reg .b16 x, y; cvt.rn.f16.f32 x, %1; cvt.rn.f16.f32 y, %2; mov.b32 %0, {x, y};}"
        : "=r"(word) : "f"(x), "f"(y));
    return word;
#endif
}

__device__ float2 unpack(unsigned word)
{
#ifndef __CUDA_ARCH__
    return make_float2(toFloat(word & 0xffff), toFloat(word >> 16));
#else
    float2 to;
    asm("{.reg .b16 x, y; mov.b32 {x, y}, %2; cvt.f32.f16 %0, x; cvt.f32.f16 %1, y;}"
        : "=f"(to.x), "=f"(to.y) : "r"(word));
    return to;
#endif
}

// x and y as hi, rounded, and lo, what hi lacks.
__device__ void split(float x, float y, unsigned& hi, unsigned& lo)
{
    hi = pack(x, y);
    const float2 h = unpack(hi);
    lo = pack(x - h.x, y - h.y);
}
// end snippet

// snippet: scale
// The exponent e for which 2^e brings a number of this size to [2^14, 2^15), as far as 2^e and its
// inverse are float32 numbers.
__device__ int exponentFor(float size)
{
    return min(max(141 - (__float_as_int(size) >> 23), -126), 126);
}

__device__ float power(int e) { return __int_as_float((e + 127) << 23); }

// The size of a finite number; NaN and infinity must not choose a tile's scale.
__device__ float sizeOf(float x) { return fabsf(x) < __int_as_float(0x7f800000) ? fabsf(x) : 0.0f; }
// end snippet

// 16 bytes from global to shared memory, through no register (sm_80 and newer).
__device__ void copyAsync(unsigned* to, const unsigned* from)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    const unsigned address = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(address), "l"(from) : "memory");
#else
    *(uint4*)to = *(const uint4*)from;
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

// Which keys the rows of a batch entry see.
struct Rows {
    int end;                 // keys that are no padding
    int shift;               // under the mask query i sees the keys 0 to i + shift
    bool causal;

    // How many keys a query row sees. They are the first ones.
    __device__ int seen(int row) const
    {
        return causal ? max(min(end, row + 1 + shift), 0) : end;
    }
};

// A warp's rows of Q as operands, hi and lo, and of each row what a score must be multiplied by.
// A step of 16 along d: word pairs 2t and 2t + 1 of a lane are d = 4t to 4t + 3, as in keys.cu.
// Past the last row: the last row again. Past d: zeros.
__device__ void loadQ(unsigned (&qHi)[TM][KD][4], unsigned (&qLo)[TM][KD][4],
                      float (&factor)[TM][2], const float* q, int row0, int queries, int d,
                      float scale)
{
    const int lane = threadIdx.x % 32;
    #pragma unroll
    for (int i = 0; i < TM; ++i)
        #pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = min(row0 + i * 16 + h * 8 + lane / 4, queries - 1);
            float4 x[KD];
            float size = 0.0f;
            #pragma unroll
            for (int step = 0; step < KD; ++step) {
                const int column = step * 16 + lane % 4 * 4;
                x[step] = column < d ? *(const float4*)(q + (size_t)row * d + column)
                                     : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                size = fmaxf(fmaxf(size, fmaxf(sizeOf(x[step].x), sizeOf(x[step].y))),
                             fmaxf(sizeOf(x[step].z), sizeOf(x[step].w)));
            }
            const int e = exponentFor(rowMax(size));
            const float up = power(e);
            factor[i][h] = power(-e) * scale;
            #pragma unroll
            for (int step = 0; step < KD; ++step) {
                split(x[step].x * up, x[step].y * up, qHi[i][step][h], qLo[i][step][h]);
                split(x[step].z * up, x[step].w * up, qHi[i][step][2 + h], qLo[i][step][2 + h]);
            }
        }
}

__device__ void loadTile(unsigned* to, const unsigned* from)
{
    #pragma unroll
    for (int i = 0; i < 2 * TILE; i += THREADS * 4)
        copyAsync(to + threadIdx.x * 4 + i, from + threadIdx.x * 4 + i);
}

// What a lane reads of the right-hand side, hi and lo.
__device__ void operand(unsigned (&hi)[2], unsigned (&lo)[2], const unsigned* from)
{
    const uint4 x = *(const uint4*)from;
    hi[0] = x.x;
    hi[1] = x.y;
    lo[0] = x.z;
    lo[1] = x.w;
}

// a b is lo hi + hi lo + hi hi; lo lo is left out. The small products first.
__device__ void score(float (&s)[TM][TN][4], const unsigned (&qHi)[TM][KD][4],
                      const unsigned (&qLo)[TM][KD][4], const unsigned* kMine)
{
    #pragma unroll
    for (int step = 0; step < KD; ++step)
        #pragma unroll
        for (int j0 = 0; j0 < TN; j0 += WIDE) {
            unsigned hi[WIDE][2], lo[WIDE][2];
            #pragma unroll
            for (int j = 0; j < WIDE; ++j)
                operand(hi[j], lo[j], kMine + (step * TN + j0 + j) * 128);
            #pragma unroll
            for (int product = 0; product < 3; ++product)
                #pragma unroll
                for (int j = 0; j < WIDE; ++j)
                    #pragma unroll
                    for (int i = 0; i < TM; ++i)
                        mma(s[i][j0 + j], product == 0 ? qLo[i][step] : qHi[i][step],
                            product == 1 ? lo[j] : hi[j]);
        }
}

// m, or 0 where it is still -inf.
__device__ float finite(float m) { return m == __int_as_float(0xff800000) ? 0.0f : m; }

// Keys that a row does not see have a score of -inf. It is put there, not computed, so that a NaN
// of such a key goes no further.
__device__ void mask(float (&s)[TM][TN][4], const Rows& rows, int row0, int key0)
{
    const int lane = threadIdx.x % 32;
    #pragma unroll
    for (int i = 0; i < TM; ++i)
        #pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int seen = rows.seen(row0 + i * 16 + h * 8 + lane / 4) - key0 - lane % 4 * 2;
            #pragma unroll
            for (int j = 0; j < TN; ++j)
                #pragma unroll
                for (int x = 0; x < 2; ++x)
                    if (j * 8 + x >= seen)
                        s[i][j][2 * h + x] = __int_as_float(0xff800000);
        }
}

// A new maximum, where a row has risen far: what has been summed so far shrinks. factor: what makes
// a score of s.
__device__ void rescale(float (&m)[TM][2], float (&l)[TM][2], float (&acc)[TM][TD][4],
                        const float (&s)[TM][TN][4], const float (&factor)[TM][2])
{
    float top[TM][2];
    bool rise = false;
    #pragma unroll
    for (int i = 0; i < TM; ++i)
        #pragma unroll
        for (int h = 0; h < 2; ++h) {
            top[i][h] = fmaxf(s[i][0][2 * h], s[i][0][2 * h + 1]);
            #pragma unroll
            for (int j = 1; j < TN; ++j)
                top[i][h] = fmaxf(top[i][h], fmaxf(s[i][j][2 * h], s[i][j][2 * h + 1]));
            top[i][h] *= factor[i][h];
            rise |= top[i][h] > m[i][h] + SLACK;
        }
    if (__any_sync(FULL, rise)) {
        #pragma unroll
        for (int i = 0; i < TM; ++i)
            #pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float mNew = fmaxf(m[i][h], rowMax(top[i][h]));
                // A row that has seen no key yet: -inf - (-inf) would be NaN.
                const float shrink = exp2Fast(m[i][h] - finite(mNew));
                m[i][h] = mNew;
                l[i][h] *= shrink;
                #pragma unroll
                for (int j = 0; j < TD; ++j) {
                    acc[i][j][2 * h] *= shrink;
                    acc[i][j][2 * h + 1] *= shrink;
                }
            }
    }
}

// The weights of 16 keys as operands: results 2 step and 2 step + 1 of S are the 4 words of P.
// A score is rounded before m is taken off, as m was: a fused multiply-add would keep what m has
// lost, which is more than any exponent once scores reach 2^32.
__device__ void weigh(unsigned (&pHi)[TM][4], unsigned (&pLo)[TM][4], float (&l)[TM][2],
                      const float (&s)[TM][TN][4], int step, const float (&m)[TM][2],
                      const float (&factor)[TM][2])
{
    #pragma unroll
    for (int i = 0; i < TM; ++i)
        #pragma unroll
        for (int x = 0; x < 4; ++x) {
            const int j = 2 * step + x / 2, h = x % 2;
            const float top = finite(m[i][h]);
            const float p0 = exp2Fast(__fmul_rn(s[i][j][2 * h], factor[i][h]) - top);
            const float p1 = exp2Fast(__fmul_rn(s[i][j][2 * h + 1], factor[i][h]) - top);
            l[i][h] += p0 + p1;                       // of this lane's keys
            split(p0, p1, pHi[i][x], pLo[i][x]);
        }
}

// The running output, once a tile, in float32; undo: the inverse of V's power of two.
__device__ void accumulate(float (&acc)[TM][TD][4], const unsigned (&pHi)[KN][TM][4],
                           const unsigned (&pLo)[KN][TM][4], const unsigned* vMine, float undo)
{
    #pragma unroll
    for (int j0 = 0; j0 < TD; j0 += WIDE) {
        float fresh[TM][WIDE][4] = {};                   // of this tile alone
        #pragma unroll
        for (int step = 0; step < KN; ++step) {
            unsigned hi[WIDE][2], lo[WIDE][2];
            #pragma unroll
            for (int j = 0; j < WIDE; ++j)
                operand(hi[j], lo[j], vMine + (step * TD + j0 + j) * 128);
            #pragma unroll
            for (int product = 0; product < 3; ++product)
                #pragma unroll
                for (int j = 0; j < WIDE; ++j)
                    #pragma unroll
                    for (int i = 0; i < TM; ++i)
                        mma(fresh[i][j], product == 0 ? pLo[step][i] : pHi[step][i],
                            product == 1 ? lo[j] : hi[j]);
        }
        #pragma unroll
        for (int i = 0; i < TM; ++i)
            #pragma unroll
            for (int j = 0; j < WIDE; ++j)
                #pragma unroll
                for (int x = 0; x < 4; ++x)
                    acc[i][j0 + j][x] = fmaf(fresh[i][j][x], undo, acc[i][j0 + j][x]);
    }
}

// splitKeys has left numbers of V that are not finite out of the tiles: a product of 0 and NaN
// would bring them to rows that do not see their key. Here they reach the rows that do. bad: a bit
// a key.
__device__ void addBad(float (&acc)[TM][TD][4], const unsigned* bad, const float* v,
                       const Rows& rows, int row0, int tile, int d)
{
    const int lane = threadIdx.x % 32;
    for (int key = 0; key < BN; ++key) {
        if (!(bad[2 * tile + key / 32] >> key % 32 & 1))
            continue;
        const float* line = v + ((size_t)tile * BN + key) * d;
        #pragma unroll
        for (int i = 0; i < TM; ++i)
            #pragma unroll
            for (int h = 0; h < 2; ++h)
                if (rows.seen(row0 + i * 16 + h * 8 + lane / 4) > tile * BN + key)
                    #pragma unroll
                    for (int j = 0; j < TD; ++j)
                        #pragma unroll
                        for (int x = 0; x < 2; ++x) {
                            const int column = j * 8 + lane % 4 * 2 + x;
                            const float its = column < d ? line[column] : 0.0f;
                            if (!isfinite(its))
                                acc[i][j][2 * h + x] += its;
                        }
    }
}

// One split: O, and L where it is asked for. More: of each its running output, undivided, and m and
// l after all of those.
__device__ void write(float* o, float* lse, const float (&m)[TM][2], float (&l)[TM][2],
                      const float (&acc)[TM][TD][4], int row0, int queries, int d)
{
    const int lane = threadIdx.x % 32;
    const bool whole = gridDim.y == 1;
    const size_t part = ((size_t)blockIdx.x * gridDim.y + blockIdx.y) * queries;  // rows before
    float* ml = o + (size_t)gridDim.x * gridDim.y * queries * d;
    #pragma unroll
    for (int i = 0; i < TM; ++i)
        #pragma unroll
        for (int h = 0; h < 2; ++h) {
            l[i][h] = rowSum(l[i][h]);
            const int row = row0 + i * 16 + h * 8 + lane / 4;
            const bool none = l[i][h] == 0.0f;           // no key was seen
            const float norm = !whole ? 1.0f : none ? 0.0f : 1.0f / l[i][h];
            if (row < queries) {
                if (lane % 4 == 0 && !whole)
                    *(float2*)(ml + (part + row) * 2) = make_float2(m[i][h], l[i][h]);
                if (lane % 4 == 0 && whole && lse)
                    lse[part + row] = none ? m[i][h] : m[i][h] * LN2 + logf(l[i][h]);
                #pragma unroll
                for (int j = 0; j < TD; ++j)
                    if (j * 8 < d)
                        *(float2*)(o + (part + row) * d + j * 8 + lane % 4 * 2) =
                            make_float2(acc[i][j][2 * h] * norm, acc[i][j][2 * h + 1] * norm);
            }
        }
}

// Assumes blockDim = 128, gridDim = (batch * heads, splits, ceil(queries/BM)); tiles, scales and
// bad from splitKeys. group: heads that share one of K and V. lengths: of the keys of each batch
// entry, or null; lse: log-sum-exp of each row, or null. With splits > 1 o is a workspace: o of
// every head, split and row, then (m, l) of every one.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
attend(const float* q, const float* v, const unsigned* tiles, const float* scales,
       const unsigned* bad, const int* lengths, float* o, float* lse, int queries, int keys, int d,
       int heads, int group, int causal, float scale)
{
    extern __shared__ __align__(16) unsigned stages[];   // two tiles, each K, then V
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int entry = blockIdx.x / heads, head = blockIdx.x % heads;
    const int own = entry * (heads / group) + head / group;              // of K and V
    // The last rows see most under a mask: those of every head begin first.
    const int block = (causal ? gridDim.z - 1 - blockIdx.z : blockIdx.z) * BM;
    const int row0 = block + warp * R, perHead = (keys + BN - 1) / BN;
    const Rows rows = {lengths ? lengths[entry] : keys, keys - queries, causal != 0};
    const int all = (rows.seen(min(block + BM, queries) - 1) + BN - 1) / BN;  // tiles that are seen
    const int least = rows.seen(block);                  // keys that every row sees
    const int first = (int)((long long)all * blockIdx.y / gridDim.y);    // tiles of this split
    const int count = (int)((long long)all * (blockIdx.y + 1) / gridDim.y) - first;
    q += (size_t)blockIdx.x * queries * d;
    v += (size_t)own * keys * d;
    bad += (size_t)own * perHead * 2;
    tiles += ((size_t)own * perHead + first) * 2 * TILE;
    scales += ((size_t)own * perHead + first) * 2;

    float m[TM][2], l[TM][2] = {}, acc[TM][TD][4] = {};  // acc: the running output
    #pragma unroll
    for (int i = 0; i < TM; ++i)
        m[i][0] = m[i][1] = __int_as_float(0xff800000);  // -inf: the first tile's rescale is 0
    if (count > 0)
        loadTile(stages, tiles);
    unsigned qHi[TM][KD][4], qLo[TM][KD][4];
    float qFactor[TM][2];
    loadQ(qHi, qLo, qFactor, q, row0, queries, d, scale * LOG2E);

    #pragma unroll 1
    for (int t = 0; t < count; ++t) {
        const unsigned* stage = stages + t % 2 * 2 * TILE + lane * 4;
        awaitCopies();
        __syncthreads();   // the tile is complete, and no warp still reads the one before
        if (t + 1 < count)
            loadTile(stages + (t + 1) % 2 * 2 * TILE, tiles + (size_t)(t + 1) * 2 * TILE);
        float s[TM][TN][4] = {}, factor[TM][2];
        const float kUndo = scales[0];
        score(s, qHi, qLo, stage);
        if ((first + t + 1) * BN > least)
            mask(s, rows, row0, (first + t) * BN);
        #pragma unroll
        for (int i = 0; i < TM; ++i)
            #pragma unroll
            for (int h = 0; h < 2; ++h)
                factor[i][h] = qFactor[i][h] * kUndo;
        rescale(m, l, acc, s, factor);
        unsigned pHi[KN][TM][4], pLo[KN][TM][4];
        #pragma unroll
        for (int step = 0; step < KN; ++step)
            weigh(pHi[step], pLo[step], l, s, step, m, factor);
        accumulate(acc, pHi, pLo, stage + TILE, scales[1]);
        scales += 2;
    }

    for (int t = first; t < first + count; ++t)
        if (bad[2 * t] | bad[2 * t + 1])
            addBad(acc, bad, v, rows, row0, t, d);
    write(o, lse, m, l, acc, row0, queries, d);
}
