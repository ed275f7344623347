// K and V as FP16 hi and lo, as images: in the order in which wgmma reads shared memory.
//
// What is split, and the power of two of each tile of 64 keys, are those of halves.cu. The order is
// another one. wgmma takes its right-hand side from shared memory as 64 lines of 128 bytes: a line
// of K is a key, with its 64 d; a line of V is a column, with its 64 keys, so V is transposed. The
// eight groups of 16 bytes of line i stand in the order group ^ (i mod 8), the 128-byte swizzle:
// eight lines that are read together then lie in all 32 banks. An image has 8 KiB; a tile is four
// of them, hi and lo of K, hi and lo of V, one after the other: one copy brings it.

constexpr int D = 64;               // width of the head
constexpr int BN = 64;              // keys of a tile
constexpr int THREADS = 256;
constexpr int IMAGE = BN * D / 2;   // words of 4 bytes of an image
constexpr int GROUPS = 2;           // groups of 8 numbers of a thread
constexpr unsigned FULL = 0xffffffffu;

static_assert(THREADS * GROUPS * 8 == BN * D, "the threads must have all groups of a matrix");

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

// Eight numbers of a line: of K, d next to each other; of V, keys below each other.
__device__ void load(float (&x)[8], const float* from, int line, int group, bool isV)
{
    if (isV) {
        #pragma unroll
        for (int i = 0; i < 8; ++i)
            x[i] = from[(group * 8 + i) * D + line];
    } else {
        *(float4*)&x[0] = *(const float4*)(from + line * D + group * 8);
        *(float4*)&x[4] = *(const float4*)(from + line * D + group * 8 + 4);
    }
}

// The launch after this one may start now, if it is chained (rung 31): it waits for the images.
__device__ void letNextStart() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Assumes blockDim = 256, gridDim = (n/64, 2, heads): y = 0 does K, 1 does V.
extern "C" __global__ void __launch_bounds__(THREADS)
splitImages(const float* k, const float* v, unsigned* tiles, float* scales, size_t n)
{
    __shared__ float sizes[THREADS / 32];
    const size_t tile = blockIdx.z * (n / BN) + blockIdx.x;
    const bool isV = blockIdx.y;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int line = warp * 8 + lane % 8;           // 8 lines, 4 groups of each: whole sectors
    letNextStart();
    float x[GROUPS][8], size = 0.0f;
    #pragma unroll
    for (int i = 0; i < GROUPS; ++i) {
        load(x[i], (isV ? v : k) + tile * BN * D, line, i * 4 + lane / 8, isV);   // 4 N d bytes
        #pragma unroll
        for (int j = 0; j < 8; ++j)
            size = fmaxf(size, sizeOf(x[i][j]));
    }
    #pragma unroll
    for (int offset = 16; offset; offset /= 2)
        size = fmaxf(size, __shfl_xor_sync(FULL, size, offset));
    if (lane == 0)
        sizes[warp] = size;
    __syncthreads();       // every warp's largest number is there
    #pragma unroll
    for (int i = 0; i < THREADS / 32; ++i)
        size = fmaxf(size, sizes[i]);
    const int e = exponentFor(size);
    const float up = power(e);
    if (threadIdx.x == 0)
        scales[2 * tile + isV] = power(-e);
    unsigned* to = tiles + (2 * tile + isV) * 2 * IMAGE;
    #pragma unroll
    for (int i = 0; i < GROUPS; ++i) {
        uint4 hi, lo;
        split(x[i][0] * up, x[i][1] * up, hi.x, lo.x);
        split(x[i][2] * up, x[i][3] * up, hi.y, lo.y);
        split(x[i][4] * up, x[i][5] * up, hi.z, lo.z);
        split(x[i][6] * up, x[i][7] * up, hi.w, lo.w);
        const int at = line * (D / 2) + ((i * 4 + lane / 8) ^ line % 8) * 4;
        *(uint4*)(to + at) = hi;                             // the same bytes again
        *(uint4*)(to + IMAGE + at) = lo;
    }
}
// Requested: K and V read once and written once, and 8 bytes a tile = 16 N d + N/8 bytes.
