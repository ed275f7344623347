// K and V as pairs of FP16 numbers, in the order in which the tensor cores take them.
//
// A float32 number x becomes hi = x rounded to FP16 and lo = x - hi rounded to FP16: 22 bits of 24.
// FP16 ends at 65504, and below 2^-14 it loses bits. So a tile of 64 keys is multiplied first, K
// and V apart, by the power of two that brings its largest number to [2^14, 2^15); the inverse goes
// to `scales`. A number more than 2^17 below that keeps fewer than 22 bits: its error is below
// 2^-39 of the tile's largest number: beside a key of 1e31 the others of its tile count as 0. NaN
// comes out as NaN, and so does infinity: in every row where it is in K, in its column where it is
// in V.
//
// A lane of an m16n8k16 product holds 4 numbers of the right-hand side: column lane/4 and 4 of the
// 16 lines that are summed over. Here they lie as 16 bytes: hi of two and two, lo of two and two.
// So one read of 16 bytes, next to those of the other lanes, brings what three products need.

constexpr int D = 64;               // width of the head
constexpr int BN = 64;              // keys of a tile
constexpr int THREADS = 256;
constexpr int TILE = BN * D;        // words of 4 bytes of one matrix of a tile, hi and lo
constexpr int EACH = TILE / 4 / THREADS;        // 16-byte groups of a thread
constexpr unsigned FULL = 0xffffffffu;

static_assert(TILE % (4 * THREADS) == 0, "a tile's groups must divide evenly among the threads");

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

// 4 numbers of a group: of K, of one key and 4 of d; of V, of one column and 4 keys.
__device__ float4 group(const float* from, int at, bool isV)
{
    const int lane = at % 32, step = at / 32 / 8, column = at / 32 % 8 * 8 + lane / 4;
    if (!isV)
        return *(const float4*)(from + column * D + step * 16 + lane % 4 * 4);
    from += (step * 16 + lane % 4 * 2) * D + column;
    return make_float4(from[0], from[D], from[8 * D], from[9 * D]);
}

// Assumes blockDim = 256, gridDim = (n/64, 2, heads): y = 0 does K, 1 does V.
extern "C" __global__ void __launch_bounds__(THREADS)
splitTiles(const float* k, const float* v, unsigned* tiles, float* scales, size_t n)
{
    __shared__ float sizes[THREADS / 32];
    const size_t tile = blockIdx.z * (n / BN) + blockIdx.x;
    const bool isV = blockIdx.y;
    const float* from = (isV ? v : k) + tile * BN * D;       // 4 N d bytes each of K and V
    float4 x[EACH];
    float size = 0.0f;
    #pragma unroll
    for (int i = 0; i < EACH; ++i) {
        x[i] = group(from, threadIdx.x + i * THREADS, isV);
        size = fmaxf(fmaxf(size, fmaxf(sizeOf(x[i].x), sizeOf(x[i].y))),
                     fmaxf(sizeOf(x[i].z), sizeOf(x[i].w)));
    }
    #pragma unroll
    for (int offset = 16; offset; offset /= 2)
        size = fmaxf(size, __shfl_xor_sync(FULL, size, offset));
    if (threadIdx.x % 32 == 0)
        sizes[threadIdx.x / 32] = size;
    __syncthreads();       // every warp's largest number is there
    #pragma unroll
    for (int warp = 0; warp < THREADS / 32; ++warp)
        size = fmaxf(size, sizes[warp]);
    const int e = exponentFor(size);
    const float up = power(e);
    if (threadIdx.x == 0)
        scales[2 * tile + isV] = power(-e);
    uint4* to = (uint4*)(tiles + (2 * tile + isV) * TILE);
    #pragma unroll
    for (int i = 0; i < EACH; ++i) {
        uint4 y;
        split(x[i].x * up, x[i].y * up, y.x, y.z);
        split(x[i].z * up, x[i].w * up, y.y, y.w);
        to[threadIdx.x + i * THREADS] = y;                   // the same bytes again
    }
}
// Requested: K and V read once and written once, and 8 bytes a tile = 16 N d + N/8 bytes.
