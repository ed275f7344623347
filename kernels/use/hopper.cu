// Attention as people run it, on a Hopper GPU (compute capability 9.0): rung 31, for any Problem.
//
// What a Problem may be, and what is masked, is that of attend.cu; how products run, that of the
// ladder's rungs 26 to 31. splitImages (images.cu) has written K and V. With d = 128 Q finds no
// registers beside the sums, and stands in shared memory, too.

#ifndef WIDTH
#define WIDTH 64
#endif

constexpr int D = WIDTH;            // columns of a tile; d of them are those of the head
constexpr int GROUPS = 2;           // warpgroups that compute
constexpr int BM = 64 * GROUPS;     // query rows of a block
constexpr int BN = 64;              // keys of a tile
constexpr int THREADS = 128 * (GROUPS + 1);     // one more warpgroup, which feeds them
constexpr int HALVES = D / 64;      // images of 64 columns
constexpr int STAGES = D > 64 ? 2 : 6;          // tiles in shared memory
constexpr int STEPS = 4;            // steps of 16 of a sum over 64
constexpr int PART = 64 * 64 * 2;   // bytes of an image of 64 lines
constexpr int IMAGE = PART * HALVES;            // bytes of hi or lo of K or V of a tile
constexpr int TILE = 4 * IMAGE;
constexpr int Q_BYTES = D > 64 ? GROUPS * 2 * IMAGE : 0;  // hi and lo of a warpgroup's 64 rows
constexpr unsigned FULL = 0xffffffffu;
constexpr float LOG2E = 1.4426950408889634f;
constexpr float LN2 = 0.6931471805599453f;
constexpr float SLACK = 8.0f;       // a weight may reach 2^8 before its row is rescaled

static_assert(D == 64 || D == 128, "WIDTH must be 64 or 128");
static_assert(Q_BYTES + STAGES * (TILE + 16) <= 227 * 1024, "the tiles must fit on an SM");

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

// snippet: barrier
// An mbarrier is 8 bytes of shared memory: it counts arrivals, and bytes that a copy still owes. A
// phase ends when both have come; the next one then has the other parity.
__device__ void initBarrier(unsigned barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :: "r"(barrier), "r"(arrivals) : "memory");
}

// Copies see the barriers only after this.
__device__ void showBarriers()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ void arrive(unsigned barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}

__device__ void await(unsigned barrier, int parity)
{
    unsigned ended;
    do
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;}"
                     : "=r"(ended) : "r"(barrier), "r"(parity) : "memory");
    while (!ended);
}
// end snippet

// A tile from global to shared memory in one bulk copy, which arrives at `barrier` when it is done.
__device__ void loadTile(unsigned to, const unsigned* from, unsigned barrier)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(barrier), "n"(TILE) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];"
                 :: "r"(to), "l"(from), "n"(TILE), "r"(barrier) : "memory");
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

__device__ void holdAll(float (&x)[HALVES][32])
{
    #pragma unroll
    for (int half = 0; half < HALVES; ++half)
        hold(x[half]);
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

// The same with a in shared memory, an image of 64 rows.
template <bool ADD>
__device__ void wgmma(float (&c)[32], unsigned long long a, unsigned long long b)
{
    asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
        "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, p, 1, 1, 0, 0;}"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]),
          "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]),
          "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]),
          "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), "+f"(c[24]), "+f"(c[25]),
          "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31])
        : "l"(a), "l"(b), "n"(ADD));
}
// end snippet

// c = a b over 64: lo hi + hi lo + hi hi, the small products first; lo lo is left out. The image of
// b's lo follows that of its hi; a step of 16 is 32 bytes of each line.
__device__ void product(float (&c)[32], const unsigned (&hi)[STEPS][4],
                        const unsigned (&lo)[STEPS][4], unsigned image)
{
    const unsigned long long bHi = describe(image), bLo = describe(image + IMAGE);
    constexpr int STEP = 32 / 16;
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
}

// The same over d with a in shared memory: images of 64 columns follow each other.
__device__ void product(float (&c)[32], unsigned a, unsigned b)
{
    constexpr int STEP = 32 / 16;
    #pragma unroll
    for (int product = 0; product < 3; ++product)
        #pragma unroll
        for (int step = 0; step < HALVES * STEPS; ++step) {
            const unsigned part = step / STEPS * PART;
            const unsigned long long x = describe(a + (product == 0 ? IMAGE : 0) + part);
            const unsigned long long y = describe(b + (product == 1 ? IMAGE : 0) + part);
            if (product == 0 && step == 0)
                wgmma<false>(c, x, y);
            else
                wgmma<true>(c, x + step % STEPS * STEP, y + step % STEPS * STEP);
        }
}

// s = q k^T over d. Q is where there is room for it.
__device__ void score(float (&s)[32], const unsigned (&qHi)[STEPS][4],
                      const unsigned (&qLo)[STEPS][4], unsigned q, unsigned k)
{
    begin();
    if (HALVES == 1)
        product(s, qHi, qLo, k);
    else
        product(s, q, k);
    commit();
}

// fresh = p v over the keys of a tile; each 64 columns are a result of their own.
__device__ void weighted(float (&fresh)[HALVES][32], const unsigned (&pHi)[STEPS][4],
                         const unsigned (&pLo)[STEPS][4], unsigned v)
{
    begin();
    #pragma unroll
    for (int half = 0; half < HALVES; ++half)
        product(fresh[half], pHi, pLo, v + half * PART);
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

// A warp's 16 rows of Q, times scale, as operands, hi and lo, in registers or in the images of its
// warpgroup, and of each row the power of two that a score must be multiplied by. Past the last
// row: the last row again. Past d: zeros.
__device__ void loadQ(unsigned (&qHi)[STEPS][4], unsigned (&qLo)[STEPS][4], unsigned char* images,
                      float (&factor)[2], const float* q, int row0, int queries, int d,
                      float scale)
{
    const int lane = threadIdx.x % 32, line0 = threadIdx.x / 32 % 4 * 16;
    #pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int row = min(row0 + h * 8 + lane / 4, queries - 1), line = line0 + h * 8 + lane / 4;
        float2 x[D / 8];
        float size = 0.0f;
        #pragma unroll
        for (int j = 0; j < D / 8; ++j) {
            const int column = j * 8 + lane % 4 * 2;
            x[j] = j * 8 < d ? *(const float2*)(q + (size_t)row * d + column)
                             : make_float2(0.0f, 0.0f);
            x[j].x *= scale;
            x[j].y *= scale;
            size = fmaxf(size, fmaxf(sizeOf(x[j].x), sizeOf(x[j].y)));
        }
        const int e = exponentFor(rowMax(size));
        const float up = power(e);
        factor[h] = power(-e);
        #pragma unroll
        for (int j = 0; j < D / 8; ++j) {
            unsigned hi, lo;
            split(x[j].x * up, x[j].y * up, hi, lo);
            if (HALVES == 1) {
                qHi[j / 2 % STEPS][j % 2 * 2 + h] = hi;
                qLo[j / 2 % STEPS][j % 2 * 2 + h] = lo;
            } else {
                unsigned char* to = images + j / 8 * PART + line * 128 + (j % 8 ^ line % 8) * 16
                                    + lane % 4 * 4;
                *(unsigned*)to = hi;
                *(unsigned*)(to + IMAGE) = lo;
            }
        }
    }
}

// m, or 0 where it is still -inf.
__device__ float finite(float m) { return m == __int_as_float(0xff800000) ? 0.0f : m; }

// Keys that a row does not see have a score of -inf. It is put there, not computed, so that a NaN
// of such a key goes no further.
__device__ void mask(float (&s)[32], const Rows& rows, int row0, int key0)
{
    const int lane = threadIdx.x % 32;
    #pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int seen = rows.seen(row0 + h * 8 + lane / 4) - key0 - lane % 4 * 2;
        #pragma unroll
        for (int j = 0; j < 8; ++j)
            #pragma unroll
            for (int x = 0; x < 2; ++x)
                if (j * 8 + x >= seen)
                    s[4 * j + 2 * h + x] = __int_as_float(0xff800000);
    }
}

// A new maximum, where a row has risen far: what has been summed so far shrinks, and `shrink` says
// by how much, for the product that is still in flight. factor: what makes a score of s.
__device__ void rescale(float (&m)[2], float (&l)[2], float (&acc)[HALVES][32], float (&shrink)[2],
                        const float (&s)[32], const float (&factor)[2])
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
        shrink[h] = 1.0f;
    }
    if (__any_sync(FULL, rise)) {
        #pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float mNew = fmaxf(m[h], rowMax(top[h]));
            // A row that has seen no key yet: -inf - (-inf) would be NaN.
            shrink[h] = exp2Fast(m[h] - finite(mNew));
            m[h] = mNew;
            l[h] *= shrink[h];
            #pragma unroll
            for (int half = 0; half < HALVES; ++half)
                #pragma unroll
                for (int j = 0; j < 8; ++j) {
                    acc[half][4 * j + 2 * h] *= shrink[h];
                    acc[half][4 * j + 2 * h + 1] *= shrink[h];
                }
        }
    }
}

// Scores become weights. factor is a power of two, so its product with a score is exact, and the
// multiply-add rounds the difference alone.
__device__ void weigh(float (&s)[32], float (&l)[2], const float (&m)[2], const float (&factor)[2])
{
    const float top[2] = {finite(m[0]), finite(m[1])};
    #pragma unroll
    for (int i = 0; i < 32; ++i) {
        const int h = i / 2 % 2;
        s[i] = exp2Fast(fmaf(s[i], factor[h], -top[h]));
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
__device__ void accumulate(float (&acc)[HALVES][32], const float (&fresh)[HALVES][32], float undo,
                           const float (&shrink)[2])
{
    #pragma unroll
    for (int half = 0; half < HALVES; ++half)
        #pragma unroll
        for (int i = 0; i < 32; ++i)
            acc[half][i] = fmaf(fresh[half][i], undo * shrink[i / 2 % 2], acc[half][i]);
}

// splitImages has left numbers of V that are not finite out of the tiles: a product of 0 and NaN
// would bring them to rows that do not see their key. Here they reach the rows that do. bad: a bit
// a key.
__device__ void addBad(float (&acc)[HALVES][32], const unsigned* bad, const float* v,
                       const Rows& rows, int row0, int tile, int d)
{
    const int lane = threadIdx.x % 32;
    for (int key = 0; key < BN; ++key) {
        if (!(bad[2 * tile + key / 32] >> key % 32 & 1))
            continue;
        const float* line = v + ((size_t)tile * BN + key) * d;
        #pragma unroll
        for (int h = 0; h < 2; ++h)
            if (rows.seen(row0 + h * 8 + lane / 4) > tile * BN + key)
                #pragma unroll
                for (int j = 0; j < D / 8; ++j)
                    #pragma unroll
                    for (int x = 0; x < 2; ++x) {
                        const int column = j * 8 + lane % 4 * 2 + x;
                        const float its = column < d ? line[column] : 0.0f;
                        if (!isfinite(its))
                            acc[j / 8][j % 8 * 4 + 2 * h + x] += its;
                    }
    }
}

// One split: O, and L where it is asked for. More: of each its running output, undivided, and m and
// l after all of those.
__device__ void write(float* o, float* lse, const float (&m)[2], float (&l)[2],
                      const float (&acc)[HALVES][32], int row0, int queries, int d)
{
    const int lane = threadIdx.x % 32;
    const bool whole = gridDim.y == 1;
    const size_t part = ((size_t)blockIdx.x * gridDim.y + blockIdx.y) * queries;  // rows before
    float* ml = o + (size_t)gridDim.x * gridDim.y * queries * d;
    #pragma unroll
    for (int h = 0; h < 2; ++h) {
        l[h] = rowSum(l[h]);
        const int row = row0 + h * 8 + lane / 4;
        const bool none = l[h] == 0.0f;                  // no key was seen
        const float norm = !whole ? 1.0f : none ? 0.0f : 1.0f / l[h];
        if (row < queries) {
            if (lane % 4 == 0 && !whole)
                *(float2*)(ml + (part + row) * 2) = make_float2(m[h], l[h]);
            if (lane % 4 == 0 && whole && lse)
                lse[part + row] = none ? m[h] : m[h] * LN2 + logf(l[h]);
            #pragma unroll
            for (int j = 0; j < D / 8; ++j)
                if (j * 8 < d)
                    *(float2*)(o + (part + row) * d + j * 8 + lane % 4 * 2) =
                        make_float2(acc[j / 8][j % 8 * 4 + 2 * h] * norm,
                                    acc[j / 8][j % 8 * 4 + 2 * h + 1] * norm);
        }
    }
}

// snippet: chain
// Wait until the launch before this one has ended, with all that it wrote; let the next one start.
__device__ void awaitLaunch() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__device__ void letNextStart() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
// end snippet

// One thread copies tile after tile; it waits where a stage is still read.
__device__ void feed(unsigned stages, unsigned full, unsigned empty, const unsigned* tiles,
                     int count)
{
    awaitLaunch();         // which writes the tiles
    for (int t = 0; t < count; ++t) {
        const int stage = t % STAGES;
        if (t >= STAGES)
            await(empty + 8 * stage, (t / STAGES - 1) % 2);
        loadTile(stages + stage * TILE, tiles + (size_t)t * (TILE / 4),      // 8 N d per block
                 full + 8 * stage);
    }
}

// The warpgroup's 128 threads have written what its products read.
__device__ void showQ(int group)
{
    asm volatile("fence.proxy.async;" ::: "memory");
    asm volatile("bar.sync %0, 128;" :: "r"(group + 1) : "memory");
}

// Assumes blockDim = 384, gridDim = (batch * heads, splits, ceil(queries/128)); tiles, scales and
// bad from splitImages. group: heads that share one of K and V. lengths: of the keys of each batch
// entry, or null; lse: log-sum-exp of each row, or null. With splits > 1 o is a workspace: o of
// every head, split and row, then (m, l) of every one.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
attend(const float* q, const float* v, const unsigned* tiles, const float* scales,
       const unsigned* bad, const int* lengths, float* o, float* lse, int queries, int keys, int d,
       int heads, int group, int causal, float scale)
{
    extern __shared__ __align__(1024) unsigned char shared[];  // Q; tiles, each with two barriers
    const unsigned stages = addressOf(shared) + Q_BYTES, full = stages + STAGES * TILE;
    const unsigned empty = full + 8 * STAGES;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int entry = blockIdx.x / heads, head = blockIdx.x % heads;
    const int own = entry * (heads / group) + head / group;              // of K and V
    // The last rows see most under a mask: those of every head begin first.
    const int block = (causal ? gridDim.z - 1 - blockIdx.z : blockIdx.z) * BM;
    const int row0 = block + warp * 16, perHead = (keys + BN - 1) / BN;
    const Rows rows = {lengths ? lengths[entry] : keys, keys - queries, causal != 0};
    const int all = (rows.seen(min(block + BM, queries) - 1) + BN - 1) / BN;  // tiles that are seen
    const int least = rows.seen(block);                  // keys that every row sees
    const int first = (int)((long long)all * blockIdx.y / gridDim.y);    // tiles of this split
    const int count = (int)((long long)all * (blockIdx.y + 1) / gridDim.y) - first;
    q += (size_t)blockIdx.x * queries * d;
    v += (size_t)own * keys * d;
    bad += (size_t)own * perHead * 2;
    tiles += ((size_t)own * perHead + first) * (TILE / 4);
    scales += ((size_t)own * perHead + first) * 2;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            initBarrier(full + 8 * i, 1);
            initBarrier(empty + 8 * i, 4 * GROUPS);      // each warp that reads
        }
        showBarriers();
    }
    __syncthreads();       // the barriers are there
    if (warp >= 4 * GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 128 * GROUPS)
            feed(stages, full, empty, tiles, count);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");

    float m[2], l[2] = {}, acc[HALVES][32] = {};         // acc: the running output
    m[0] = m[1] = __int_as_float(0xff800000);            // -inf: the first tile's rescale is 0
    unsigned qHi[STEPS][4], qLo[STEPS][4];
    float qFactor[2];
    const unsigned qMine = addressOf(shared) + warp / 4 * 2 * IMAGE;
    loadQ(qHi, qLo, shared + warp / 4 * 2 * IMAGE, qFactor, q, row0, queries, d, scale * LOG2E);
    if (HALVES > 1)
        showQ(warp / 4);
    awaitLaunch();         // which writes the scales

    float s[32], fresh[HALVES][32] = {}, shrink[2] = {1.0f, 1.0f}, undo = 0.0f;
    unsigned pHi[STEPS][4], pLo[STEPS][4];
    auto toWeights = [&](int t) {
        const float kUndo = scales[2 * t];
        if ((first + t + 1) * BN > least)
            mask(s, rows, row0, (first + t) * BN);
        const float factor[2] = {qFactor[0] * kUndo, qFactor[1] * kUndo};
        rescale(m, l, acc, shrink, s, factor);
        weigh(s, l, m, factor);
    };
    if (count > 0) {
        await(full, 0);
        score(s, qHi, qLo, qMine, stages);
        finish<0>();
        hold(s);
        toWeights(0);
        splitP(pHi, pLo, s);
        int stage = 0, parity = 0;
        #pragma unroll 1
        for (int t = 1; t < count; ++t) {
            const unsigned values = stages + stage * TILE + 2 * IMAGE, done = empty + 8 * stage;
            if (++stage == STAGES) {
                stage = 0;
                parity ^= 1;
            }
            const float vUndo = scales[2 * t - 1];
            await(full + 8 * stage, parity);
            hold(s);
            hold(pHi);
            hold(pLo);
            score(s, qHi, qLo, qMine, stages + stage * TILE);      // of the next tile
            accumulate(acc, fresh, undo, shrink);        // of the tile before
            holdAll(fresh);
            weighted(fresh, pHi, pLo, values);           // of this one
            undo = vUndo;
            finish<1>();
            hold(s);
            toWeights(t);
            finish<0>();
            holdAll(fresh);
            hold(pHi);
            hold(pLo);
            __syncwarp();
            if (lane == 0)
                arrive(done);
            splitP(pHi, pLo, s);
        }
        accumulate(acc, fresh, undo, shrink);
        holdAll(fresh);
        weighted(fresh, pHi, pLo, stages + stage * TILE + 2 * IMAGE);
        finish<0>();
        holdAll(fresh);
        shrink[0] = shrink[1] = 1.0f;
        accumulate(acc, fresh, scales[2 * count - 1], shrink);
        for (int t = first; t < first + count; ++t)
            if (bad[2 * t] | bad[2 * t + 1])
                addBad(acc, bad, v, rows, row0, t, d);
    }
    letNextStart();
    write(o, lse, m, l, acc, row0, queries, d);
}
