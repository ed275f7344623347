// K and V as FP16 hi and lo, as images for hopper.cu: images.cu of the ladder, for any Problem.
//
// The order of an image stands there; what is zero in a tile, and what `bad` is, in keys.cu. A line
// of K has WIDTH numbers: where that is 128, two images of 64 columns follow each other. A line of
// V is a column, so V has WIDTH lines.

#ifndef WIDTH
#define WIDTH 64
#endif

constexpr int D = WIDTH;            // columns of a tile; d of them are those of the head
constexpr int BN = 64;              // keys of a tile
constexpr int THREADS = 256;
constexpr int IMAGE = BN * D / 2;   // words of 4 bytes of hi or lo of K or V
constexpr int GROUPS = BN * D / 8 / THREADS;    // groups of 8 numbers of a thread
constexpr unsigned FULL = 0xffffffffu;

static_assert(D == 64 || D == 128, "WIDTH must be 64 or 128");

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

// The size of a finite number; NaN and infinity must not choose a tile's scale.
__device__ float sizeOf(float x) { return fabsf(x) < __int_as_float(0x7f800000) ? fabsf(x) : 0.0f; }
// end snippet

// Eight numbers of a line: of K, d next to each other; of V, keys below each other. Zeros from key
// `end` and from column d on.
__device__ void load(float (&x)[8], const float* from, int line, int group, bool isV, int end,
                     int d)
{
    #pragma unroll
    for (int i = 0; i < 8; ++i)
        x[i] = 0.0f;
    if (isV) {
        #pragma unroll
        for (int i = 0; i < 8; ++i)
            if (line < d && group * 8 + i < end)
                x[i] = from[(size_t)(group * 8 + i) * d + line];
    } else if (line < end && group * 8 < d) {
        *(float4*)&x[0] = *(const float4*)(from + (size_t)line * d + group * 8);
        *(float4*)&x[4] = *(const float4*)(from + (size_t)line * d + group * 8 + 4);
    }
}

// x, or 0 where it is not finite; then its key's bit is set.
__device__ float good(float x, int key, unsigned* bits)
{
    if (isfinite(x))
        return x;
    atomicOr(bits + key / 32, 1u << key % 32);
    return 0.0f;
}

// The launch after this one may start now, if it is chained (rung 31): it waits for the images.
__device__ void letNextStart() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Assumes blockDim = 256, gridDim = (ceil(keys/64), 2, batch * kv heads): y = 0 does K, 1 does V.
// lengths: of the keys of each batch entry, or null.
extern "C" __global__ void __launch_bounds__(THREADS)
splitImages(const float* k, const float* v, const int* lengths, unsigned* tiles, float* scales,
            unsigned* bad, int keys, int d, int kvHeads)
{
    __shared__ float sizes[THREADS / 32];
    __shared__ unsigned bits[2];
    letNextStart();
    const size_t tile = (size_t)blockIdx.z * gridDim.x + blockIdx.x;
    const bool isV = blockIdx.y;
    const int all = lengths ? lengths[blockIdx.z / kvHeads] : keys;
    const int end = max(min(all - (int)blockIdx.x * BN, BN), 0);         // keys of this tile
    const float* from = (isV ? v : k) + ((size_t)blockIdx.z * keys + (size_t)blockIdx.x * BN) * d;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x < 2)
        bits[threadIdx.x] = 0;
    __syncthreads();       // no bit is set yet
    float x[GROUPS][8], size = 0.0f;
    int line[GROUPS], group[GROUPS];
    #pragma unroll
    for (int i = 0; i < GROUPS; ++i) {              // 8 lines, 4 groups of each: whole sectors
        line[i] = warp * 8 + lane % 8 + (isV ? i / 2 * 64 : 0);
        group[i] = (isV ? i % 2 : i) * 4 + lane / 8;
        load(x[i], from, line[i], group[i], isV, end, d);
        #pragma unroll
        for (int j = 0; j < 8; ++j) {
            if (isV)
                x[i][j] = good(x[i][j], group[i] * 8 + j, bits);
            size = fmaxf(size, sizeOf(x[i][j]));
        }
    }
    #pragma unroll
    for (int offset = 16; offset; offset /= 2)
        size = fmaxf(size, __shfl_xor_sync(FULL, size, offset));
    if (lane == 0)
        sizes[warp] = size;
    __syncthreads();       // every warp's largest number is there, and every bit
    #pragma unroll
    for (int i = 0; i < THREADS / 32; ++i)
        size = fmaxf(size, sizes[i]);
    const int e = exponentFor(size);
    const float up = power(e);
    if (threadIdx.x == 0)
        scales[2 * tile + isV] = power(-e);
    if (isV && threadIdx.x < 2)
        bad[2 * tile + threadIdx.x] = bits[threadIdx.x];
    unsigned* to = tiles + (2 * tile + isV) * 2 * IMAGE;
    #pragma unroll
    for (int i = 0; i < GROUPS; ++i) {
        uint4 hi, lo;
        split(x[i][0] * up, x[i][1] * up, hi.x, lo.x);
        split(x[i][2] * up, x[i][3] * up, hi.y, lo.y);
        split(x[i][4] * up, x[i][5] * up, hi.z, lo.z);
        split(x[i][6] * up, x[i][7] * up, hi.w, lo.w);
        const int at = group[i] / 8 * BN * 32 + line[i] * 32 + (group[i] % 8 ^ line[i] % 8) * 4;
        *(uint4*)(to + at) = hi;
        *(uint4*)(to + IMAGE + at) = lo;
    }
}
