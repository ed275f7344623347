// Rung 31: launches that overlap.
//
// What changes: this kernel may start before splitImages has ended, and mergeSplits before this one
// has (programmatic dependent launch). Each waits, where it first needs what the other wrote: here
// after the barriers and Q are there.
// What it buys: the starting of a launch and the loading of Q run under the launch before.
// What it costs: a launch with an attribute of its own; a kernel that forgets to wait reads what is
// not written yet.
// Prediction: a launch in a graph takes about a microsecond to start. Two of them start early: 1.5
// us less, so 0.0094 ms at N = 1024 and 0.0262 ms at 4096, and nothing to be seen at 16384.

constexpr int D = 64;               // width of the head
constexpr int GROUPS = 2;           // warpgroups that compute
constexpr int BM = 64 * GROUPS;     // query rows of a block
constexpr int BN = 64;              // keys of a tile
constexpr int THREADS = 128 * (GROUPS + 1);     // one more warpgroup, which feeds them
constexpr int STAGES = 6;           // tiles in shared memory
constexpr int STEPS = 4;            // steps of 16 of a product's sum: over d, or a tile's keys
constexpr int IMAGE = 2 * BN * D;   // bytes of hi or lo of K or V of a tile
constexpr int TILE = 4 * IMAGE;
constexpr unsigned FULL = 0xffffffffu;
constexpr float LOG2E = 1.4426950408889634f;
constexpr float SLACK = 8.0f;       // a weight may reach 2^8 before its row is rescaled

static_assert(D == 64 && BN == 64, "a product is 64 x 64, summed over 64");
static_assert(STAGES * (TILE + 16) <= 227 * 1024, "the tiles must fit in an SM's shared memory");

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

// A warp's 16 rows of Q, times scale, as operands, hi and lo, and of each row the power of two that
// a score must be multiplied by. Past the end: the last row again.
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
                x[step][g].x *= scale;
                x[step][g].y *= scale;
                size = fmaxf(size, fmaxf(sizeOf(x[step][g].x), sizeOf(x[step][g].y)));
            }
        const int e = exponentFor(rowMax(size));
        const float up = power(e);
        factor[h] = power(-e);
        #pragma unroll
        for (int step = 0; step < STEPS; ++step)
            #pragma unroll
            for (int g = 0; g < 2; ++g)
                split(x[step][g].x * up, x[step][g].y * up,
                      qHi[step][2 * g + h], qLo[step][2 * g + h]);
    }
}

// A new maximum, where a row has risen far: what has been summed so far shrinks, and `shrink` says
// by how much, for the product that is still in flight. factor: what makes a score of s.
__device__ void rescale(float (&m)[2], float (&l)[2], float (&acc)[32], float (&shrink)[2],
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
            shrink[h] = exp2Fast(m[h] - mNew);
            m[h] = mNew;
            l[h] *= shrink[h];
            #pragma unroll
            for (int j = 0; j < 8; ++j) {
                acc[4 * j + 2 * h] *= shrink[h];
                acc[4 * j + 2 * h + 1] *= shrink[h];
            }
        }
    }
}

// Scores become weights. factor is a power of two, so its product with a score is exact, and the
// multiply-add rounds the difference alone.
__device__ void weigh(float (&s)[32], float (&l)[2], const float (&m)[2], const float (&factor)[2])
{
    #pragma unroll
    for (int i = 0; i < 32; ++i) {
        const int h = i / 2 % 2;
        s[i] = exp2Fast(fmaf(s[i], factor[h], -m[h]));
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
__device__ void accumulate(float (&acc)[32], const float (&fresh)[32], float undo,
                           const float (&shrink)[2])
{
    #pragma unroll
    for (int i = 0; i < 32; ++i)
        acc[i] = fmaf(fresh[i], undo * shrink[i / 2 % 2], acc[i]);
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

// Assumes blockDim = 384, gridDim = (ceil(n/128), splits, heads), n a multiple of 64; tiles and
// scales from splitImages.
// With splits > 1 o is a workspace: o of every head, split and row, then (m, l) of every one.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
attentionOnline(const float* q, const unsigned* tiles, const float* scales, float* o, size_t n,
                float scale)
{
    extern __shared__ __align__(1024) unsigned char shared[];  // tiles, then two barriers of each
    const unsigned stages = addressOf(shared), full = stages + STAGES * TILE;
    const unsigned empty = full + 8 * STAGES;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t head = blockIdx.z, row0 = (size_t)blockIdx.x * BM + warp * 16;
    const int first = (int)(n / BN * blockIdx.y / gridDim.y);            // tiles of this split
    const int count = (int)(n / BN * (blockIdx.y + 1) / gridDim.y) - first;
    tiles += (head * (n / BN) + first) * (TILE / 4);
    scales += (head * (n / BN) + first) * 2;

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

    float m[2], l[2] = {}, acc[32] = {};                 // acc: the running output
    m[0] = m[1] = __int_as_float(0xff800000);            // -inf: the first tile's rescale is 0
    unsigned qHi[STEPS][4], qLo[STEPS][4];
    float qFactor[2];
    loadQ(qHi, qLo, qFactor, q + head * n * D, row0, n, scale * LOG2E);

    float s[32], fresh[32] = {}, shrink[2], undo = 0.0f;
    unsigned pHi[STEPS][4], pLo[STEPS][4];
    auto toWeights = [&](float kUndo) {
        const float factor[2] = {qFactor[0] * kUndo, qFactor[1] * kUndo};
        rescale(m, l, acc, shrink, s, factor);
        weigh(s, l, m, factor);
    };
    awaitLaunch();         // which writes the scales
    const float kFirst = scales[0];
    await(full, 0);
    product(s, qHi, qLo, stages);
    finish<0>();
    hold(s);
    toWeights(kFirst);
    splitP(pHi, pLo, s);
    int stage = 0, parity = 0;
    #pragma unroll 1
    for (int t = 1; t < count; ++t) {
        const unsigned v = stages + stage * TILE + 2 * IMAGE, done = empty + 8 * stage;
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
        const float kUndo = scales[2 * t], vUndo = scales[2 * t - 1];
        await(full + 8 * stage, parity);
        hold(s);
        hold(pHi);
        hold(pLo);
        product(s, qHi, qLo, stages + stage * TILE);     // of the next tile
        accumulate(acc, fresh, undo, shrink);            // of the tile before
        hold(fresh);
        product(fresh, pHi, pLo, v);                     // of this one
        undo = vUndo;
        finish<1>();
        hold(s);
        toWeights(kUndo);
        finish<0>();
        hold(fresh);
        hold(pHi);
        hold(pLo);
        __syncwarp();
        if (lane == 0)
            arrive(done);
        splitP(pHi, pLo, s);
    }
    accumulate(acc, fresh, undo, shrink);
    hold(fresh);
    product(fresh, pHi, pLo, stages + stage * TILE + 2 * IMAGE);
    finish<0>();
    hold(fresh);
    shrink[0] = shrink[1] = 1.0f;
    accumulate(acc, fresh, scales[2 * count - 1], shrink);
    letNextStart();
    write(o, m, l, acc, row0, n);
}
// Requested: Q and O once, the tiles once per query tile = 8 N d + 8 N d (N/128) bytes, and 8 bytes
// a tile; with splits > 1, Q once a split and 264 bytes a row and split in place of O.
