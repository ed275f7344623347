// Rung 26, a branch that leaves rung 24: products from shared memory, on a Hopper GPU (compute
// capability 9.0).
//
// What changes: wgmma in place of mma.sync. Four warps, a warpgroup, start one product of 64 x 64
// over 16, whose right-hand side the tensor cores read from shared memory themselves. splitImages
// (images.cu) writes K and V in the order that they want. Q and P come from registers, as before.
// What it buys: no reading of operands by lanes, 192 reads of 16 bytes for each lane and tile; and
// mma.sync alone reaches only six tenths of the datasheet's rate on a Hopper GPU.
// What it costs: products run on their own, and must be waited for; a block of 256 threads has an
// SM for itself.
// Prediction: three products at the datasheet's 989 TFLOP/s would be 330. But here tensor cores
// wait while a warpgroup computes weights, unless the other one has products to do: half of that,
// 0.42 ms at N = 16384.

constexpr int D = 64;               // width of the head
constexpr int GROUPS = 2;           // warpgroups that compute
constexpr int BM = 64 * GROUPS;     // query rows of a block
constexpr int BN = 64;              // keys of a tile
constexpr int THREADS = 128 * GROUPS;
constexpr int STAGES = 2;           // tiles in shared memory
constexpr int STEPS = 4;            // steps of 16 of a product's sum: over d, or a tile's keys
constexpr int IMAGE = 2 * BN * D;   // bytes of hi or lo of K or V of a tile
constexpr int TILE = 4 * IMAGE;
constexpr unsigned FULL = 0xffffffffu;
constexpr float LOG2E = 1.4426950408889634f;
constexpr float SLACK = 8.0f;       // a weight may reach 2^8 before its row is rescaled

static_assert(D == 64 && BN == 64, "a product is 64 x 64, summed over 64");
static_assert(STAGES * TILE <= 227 * 1024, "the tiles must fit in an SM's shared memory");

// snippet: split
// Two FP16 numbers in a word, x in the low half.
__device__ unsigned pack(float x, float y)
{
    unsigned word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(y), "f"(x));
    return word;
}

__device__ float2 unpack(unsigned word)
{
    float2 to;
    asm("{.reg .b16 x, y; mov.b32 {x, y}, %2; cvt.f32.f16 %0, x; cvt.f32.f16 %1, y;}"
        : "=f"(to.x), "=f"(to.y) : "r"(word));
    return to;
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

// The size of a finite number; NaN and infinity must not choose a row's scale.
__device__ float sizeOf(float x) { return fabsf(x) < __int_as_float(0x7f800000) ? fabsf(x) : 0.0f; }
// end snippet

__device__ unsigned addressOf(const void* in) { return (unsigned)__cvta_generic_to_shared(in); }

// A tile from global to shared memory, 16 bytes a thread at a time, through no register.
__device__ void loadTile(unsigned to, const unsigned* from)
{
    #pragma unroll
    for (int i = 0; i < TILE; i += THREADS * 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                     :: "r"(to + threadIdx.x * 16 + i), "l"(from + threadIdx.x * 4 + i / 4)
                     : "memory");
}

// The thread's copies are done, and products, which are not the thread's own reads, may see them.
__device__ void awaitCopies()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
}

// snippet: wgmma
// Products of a warpgroup, 4 warps. They run on their own: between commit and finish nobody may
// touch what they read or write, and hold keeps the compiler from moving such a touch past them.
__device__ void begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Wait until at most LEFT of the committed groups have not ended.
template <int LEFT>
__device__ void finish()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LEFT) : "memory");
}

__device__ void hold(float (&x)[32])
{
    #pragma unroll
    for (int i = 0; i < 32; ++i)
        asm volatile("" : "+f"(x[i]) :: "memory");
}

__device__ void hold(unsigned (&x)[STEPS][4])
{
    #pragma unroll
    for (int i = 0; i < STEPS * 4; ++i)
        asm volatile("" : "+r"(x[i / 4][i % 4]) :: "memory");
}

// An image in shared memory as wgmma wants it told: its address and the 1024 bytes of 8 lines, both
// in units of 16 bytes, and the 128-byte swizzle (PTX manual, matrix descriptor).
__device__ unsigned long long describe(unsigned image)
{
    return (unsigned long long)(image >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// c = a b, or c += a b where ADD: 64 rows, 16 summed over, 64 columns. A warp has 16 of the rows.
// Of c a lane has rows lane/4 and 8 more, columns 8 j + 2 (lane%4) and the next: c[4 j] and
// c[4 j + 1], and in the other row c[4 j + 2] and c[4 j + 3]. Of a the same rows, pairs lane%4 and
// 4 more.
template <bool ADD>
__device__ void wgmma(float (&c)[32], const unsigned (&a)[4], unsigned long long b)
{
    asm volatile("{.reg .pred p; setp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
        "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, p, 1, 1, 0;}"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]),
          "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]),
          "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]),
          "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), "+f"(c[24]), "+f"(c[25]),
          "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADD));
}
// end snippet

// c = a b over 64: lo hi + hi lo + hi hi, the small products first; lo lo is left out. The image of
// b's lo follows that of its hi; a step of 16 is 32 bytes of each line.
__device__ void product(float (&c)[32], const unsigned (&hi)[STEPS][4],
                        const unsigned (&lo)[STEPS][4], unsigned image)
{
    const unsigned long long bHi = describe(image), bLo = describe(image + IMAGE);
    constexpr int STEP = 32 / 16;
    begin();
    wgmma<false>(c, lo[0], bHi);
    #pragma unroll
    for (int step = 1; step < STEPS; ++step)
        wgmma<true>(c, lo[step], bHi + step * STEP);
    #pragma unroll
    for (int step = 0; step < STEPS; ++step)
        wgmma<true>(c, hi[step], bLo + step * STEP);
    #pragma unroll
    for (int step = 0; step < STEPS; ++step)
        wgmma<true>(c, hi[step], bHi + step * STEP);
    commit();
}

// 2^x to 2 units in the last place; a result below 2^-126 is 0.
__device__ float exp2Fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
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

// A warp's 16 rows of Q as operands, hi and lo, and of each row what a score must be multiplied by.
// Past the end: the last row again.
__device__ void loadQ(unsigned (&qHi)[STEPS][4], unsigned (&qLo)[STEPS][4], float (&factor)[2],
                      const float* q, size_t row0, size_t n, float scale)
{
    const int lane = threadIdx.x % 32;
    #pragma unroll
    for (int h = 0; h < 2; ++h) {
        const size_t row = row0 + h * 8 + lane / 4, at = row < n ? row : n - 1;
        float2 x[STEPS][2];
        float size = 0.0f;
        #pragma unroll
        for (int step = 0; step < STEPS; ++step)
            #pragma unroll
            for (int g = 0; g < 2; ++g) {
                x[step][g] = *(const float2*)(q + at * D + step * 16 + g * 8 + lane % 4 * 2);
                size = fmaxf(size, fmaxf(sizeOf(x[step][g].x), sizeOf(x[step][g].y)));
            }
        const int e = exponentFor(rowMax(size));
        const float up = power(e);
        factor[h] = power(-e) * scale;
        #pragma unroll
        for (int step = 0; step < STEPS; ++step)
            #pragma unroll
            for (int g = 0; g < 2; ++g)
                split(x[step][g].x * up, x[step][g].y * up,
                      qHi[step][2 * g + h], qLo[step][2 * g + h]);
    }
}

// A new maximum, where a row has risen far: what has been summed so far shrinks. factor: what makes
// a score of s.
__device__ void rescale(float (&m)[2], float (&l)[2], float (&acc)[32], const float (&s)[32],
                        const float (&factor)[2])
{
    float top[2];
    bool rise = false;
    #pragma unroll
    for (int h = 0; h < 2; ++h) {
        top[h] = fmaxf(s[2 * h], s[2 * h + 1]);
        #pragma unroll
        for (int j = 1; j < 8; ++j)
            top[h] = fmaxf(top[h], fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
        top[h] *= factor[h];
        rise |= top[h] > m[h] + SLACK;
    }
    if (__any_sync(FULL, rise)) {
        #pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float mNew = fmaxf(m[h], rowMax(top[h]));
            const float shrink = exp2Fast(m[h] - mNew);
            m[h] = mNew;
            l[h] *= shrink;
            #pragma unroll
            for (int j = 0; j < 8; ++j) {
                acc[4 * j + 2 * h] *= shrink;
                acc[4 * j + 2 * h + 1] *= shrink;
            }
        }
    }
}

// Scores become weights. A score is rounded before m is taken off, as m was: a fused multiply-add
// would keep what m has lost, which is more than any exponent once scores reach 2^32.
__device__ void weigh(float (&s)[32], float (&l)[2], const float (&m)[2], const float (&factor)[2])
{
    #pragma unroll
    for (int i = 0; i < 32; ++i) {
        const int h = i / 2 % 2;
        s[i] = exp2Fast(__fmul_rn(s[i], factor[h]) - m[h]);
        l[h] += s[i];                                     // of this lane's keys
    }
}

// Weights as operands: what a lane has of S are, in their order, its words of P.
__device__ void splitP(unsigned (&pHi)[STEPS][4], unsigned (&pLo)[STEPS][4], const float (&p)[32])
{
    #pragma unroll
    for (int i = 0; i < 16; ++i)
        split(p[2 * i], p[2 * i + 1], pHi[i / 4][i % 4], pLo[i / 4][i % 4]);
}

// The running output, once a tile, in float32; undo: the inverse of V's power of two.
__device__ void accumulate(float (&acc)[32], const float (&fresh)[32], float undo)
{
    #pragma unroll
    for (int i = 0; i < 32; ++i)
        acc[i] = fmaf(fresh[i], undo, acc[i]);
}

// One split: O. More: of each its running output, undivided, and m and l after all of those.
__device__ void write(float* o, const float (&m)[2], float (&l)[2], const float (&acc)[32],
                      size_t row0, size_t n)
{
    const int lane = threadIdx.x % 32;
    const bool whole = gridDim.y == 1;
    const size_t part = ((size_t)blockIdx.z * gridDim.y + blockIdx.y) * n;   // rows before these
    float* ml = o + gridDim.z * gridDim.y * n * D;
    #pragma unroll
    for (int h = 0; h < 2; ++h) {
        l[h] = rowSum(l[h]);
        const size_t at = row0 + h * 8 + lane / 4;
        const float norm = whole ? 1.0f / l[h] : 1.0f;
        if (at < n) {
            if (!whole && lane % 4 == 0)
                *(float2*)(ml + (part + at) * 2) = make_float2(m[h], l[h]);
            #pragma unroll
            for (int j = 0; j < 8; ++j)                                  // 4 N d bytes a split
                *(float2*)(o + (part + at) * D + j * 8 + lane % 4 * 2) =
                    make_float2(acc[4 * j + 2 * h] * norm, acc[4 * j + 2 * h + 1] * norm);
        }
    }
}

// Assumes blockDim = 256, gridDim = (ceil(n/128), splits, heads), n a multiple of 64; tiles and
// scales from splitImages.
// With splits > 1 o is a workspace: o of every head, split and row, then (m, l) of every one.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
attentionOnline(const float* q, const unsigned* tiles, const float* scales, float* o, size_t n,
                float scale)
{
    extern __shared__ __align__(1024) unsigned char shared[];  // two tiles
    const unsigned stages = addressOf(shared);
    const int warp = threadIdx.x / 32;
    const size_t head = blockIdx.z, row0 = (size_t)blockIdx.x * BM + warp * 16;
    const int first = (int)(n / BN * blockIdx.y / gridDim.y);            // tiles of this split
    const int count = (int)(n / BN * (blockIdx.y + 1) / gridDim.y) - first;
    tiles += (head * (n / BN) + first) * (TILE / 4);
    scales += (head * (n / BN) + first) * 2;

    float m[2], l[2] = {}, acc[32] = {};                 // acc: the running output
    m[0] = m[1] = __int_as_float(0xff800000);            // -inf: the first tile's rescale is 0
    loadTile(stages, tiles);
    unsigned qHi[STEPS][4], qLo[STEPS][4];
    float qFactor[2];
    loadQ(qHi, qLo, qFactor, q + head * n * D, row0, n, scale * LOG2E);

    float s[32], fresh[32];
    unsigned pHi[STEPS][4], pLo[STEPS][4];
    #pragma unroll 1
    for (int t = 0; t < count; ++t) {
        const unsigned k = stages + t % STAGES * TILE;
        const float kUndo = scales[2 * t], vUndo = scales[2 * t + 1];
        awaitCopies();
        __syncthreads();   // the tile is complete, and no warp still reads the one before
        if (t + 1 < count)
            loadTile(stages + (t + 1) % STAGES * TILE,              // 8 N d per block: N/128 times
                     tiles + (size_t)(t + 1) * (TILE / 4));
        product(s, qHi, qLo, k);
        finish<0>();
        hold(s);
        const float factor[2] = {qFactor[0] * kUndo, qFactor[1] * kUndo};
        rescale(m, l, acc, s, factor);
        weigh(s, l, m, factor);
        splitP(pHi, pLo, s);
        product(fresh, pHi, pLo, k + 2 * IMAGE);
        finish<0>();
        hold(fresh);
        accumulate(acc, fresh, vUndo);
    }

    write(o, m, l, acc, row0, n);
}
// Requested: Q and O once, the tiles once per query tile = 8 N d + 8 N d (N/128) bytes, and 8 bytes
// a tile; with splits > 1, Q once a split and 264 bytes a row and split in place of O.
