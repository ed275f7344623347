// K and V as pairs of FP16 numbers, for attend.cu: halves.cu of the ladder, for any Problem.
//
// What is split, and why, stands there. Here a tile of 64 keys ends where the keys of its batch
// entry do: what lies behind is not read, and stands as zeros in the tile, as do the columns from d
// to WIDTH. Numbers of V that are not finite stand as zeros, too: `bad` has a bit for each key of a
// tile that has one, and attend.cu brings them to the rows that see the key.

#ifndef WIDTH
#define WIDTH 64
#endif
constexpr int D = WIDTH;            // columns of a tile; d of them are those of the head
constexpr int BN = 64;              // keys of a tile
constexpr int THREADS = 256;
constexpr int TILE = BN * D;        // words of 4 bytes of one matrix of a tile, hi and lo
constexpr int EACH = TILE / 4 / THREADS;        // 16-byte groups of a thread
constexpr unsigned FULL = 0xffffffffu;

static_assert(D == 64 || D == 128, "WIDTH must be 64 or 128");
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

// 4 numbers of a group: of K, of one key and 4 of d; of V, of one column and 4 keys. Zeros from key
// `end` and from column d on.
__device__ float4 group(const float* from, int at, bool isV, int end, int d)
{
    const int lane = at % 32, wide = isV ? D / 8 : BN / 8;
    const int step = at / 32 / wide, column = at / 32 % wide * 8 + lane / 4;
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (!isV) {
        const int part = step * 16 + lane % 4 * 4;
        if (column < end && part < d)
            x = *(const float4*)(from + (size_t)column * d + part);
        return x;
    }
    const int key = step * 16 + lane % 4 * 2;
    if (column < d) {
        from += (size_t)key * d + column;
        x.x = key < end ? from[0] : 0.0f;
        x.y = key + 1 < end ? from[d] : 0.0f;
        x.z = key + 8 < end ? from[8 * d] : 0.0f;
        x.w = key + 9 < end ? from[9 * d] : 0.0f;
    }
    return x;
}

// x, or 0 where it is not finite; then its key's bit is set.
__device__ float good(float x, int key, unsigned* bits)
{
    if (isfinite(x))
        return x;
    atomicOr(bits + key / 32, 1u << key % 32);
    return 0.0f;
}

// Assumes blockDim = 256, gridDim = (ceil(keys/64), 2, batch * kv heads): y = 0 does K, 1 does V.
// lengths: of the keys of each batch entry, or null.
extern "C" __global__ void __launch_bounds__(THREADS)
splitKeys(const float* k, const float* v, const int* lengths, unsigned* tiles, float* scales,
          unsigned* bad, int keys, int d, int kvHeads)
{
    __shared__ float sizes[THREADS / 32];
    __shared__ unsigned bits[2];
    const size_t tile = (size_t)blockIdx.z * gridDim.x + blockIdx.x;
    const bool isV = blockIdx.y;
    const int all = lengths ? lengths[blockIdx.z / kvHeads] : keys;
    const int end = max(min(all - (int)blockIdx.x * BN, BN), 0);         // keys of this tile
    const float* from = (isV ? v : k) + ((size_t)blockIdx.z * keys + (size_t)blockIdx.x * BN) * d;
    if (threadIdx.x < 2)
        bits[threadIdx.x] = 0;
    __syncthreads();       // no bit is set yet
    float4 x[EACH];
    float size = 0.0f;
    #pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int at = threadIdx.x + i * THREADS;
        x[i] = group(from, at, isV, end, d);
        if (isV) {
            const int key = at / 32 / (D / 8) * 16 + at % 4 * 2;
            x[i] = make_float4(good(x[i].x, key, bits), good(x[i].y, key + 1, bits),
                               good(x[i].z, key + 8, bits), good(x[i].w, key + 9, bits));
        }
        size = fmaxf(fmaxf(size, fmaxf(sizeOf(x[i].x), sizeOf(x[i].y))),
                     fmaxf(sizeOf(x[i].z), sizeOf(x[i].w)));
    }
    #pragma unroll
    for (int offset = 16; offset; offset /= 2)
        size = fmaxf(size, __shfl_xor_sync(FULL, size, offset));
    if (threadIdx.x % 32 == 0)
        sizes[threadIdx.x / 32] = size;
    __syncthreads();       // every warp's largest number is there, and every bit
    #pragma unroll
    for (int warp = 0; warp < THREADS / 32; ++warp)
        size = fmaxf(size, sizes[warp]);
    const int e = exponentFor(size);
    const float up = power(e);
    if (threadIdx.x == 0)
        scales[2 * tile + isV] = power(-e);
    if (isV && threadIdx.x < 2)
        bad[2 * tile + threadIdx.x] = bits[threadIdx.x];
    uint4* to = (uint4*)(tiles + (2 * tile + isV) * TILE);
    #pragma unroll
    for (int i = 0; i < EACH; ++i) {
        uint4 y;
        split(x[i].x * up, x[i].y * up, y.x, y.z);
        split(x[i].z * up, x[i].w * up, y.y, y.w);
        to[threadIdx.x + i * THREADS] = y;
    }
}
