// The parts that rungs 5 and later leave behind, put together.
//
// A part is (m, l, o): what some of the keys say of a query row. Two parts merge as
//
//   m = max(m1, m2),  l = l1 b^(m1 - m) + l2 b^(m2 - m),  o = o1 b^(m1 - m) + o2 b^(m2 - m)
//
// and the row's answer is o / l. A part stands for l b^m and o b^m, which are sums over its keys,
// and merging adds them. So the order of merging does not matter, up to rounding, and (-inf, 0, 0)
// changes nothing. With one key for a part, (score, 1, v), this is the online recurrence itself.
//
// b = 2^unit: unit is log2(e) where m and the scores are natural, 1 where they count powers of 2.

constexpr int D = 64;
constexpr int THREADS = 128;    // 8 rows of 16 threads, each with 4 of the 64 columns

static_assert(THREADS % (D / 4) == 0, "a block must have whole rows");

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

// Wait until the launch before this one has ended: rung 31 lets this one start earlier.
__device__ void awaitLaunch()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Assumes blockDim = 128, gridDim = (n/8, heads). part: o of every head, split and row, then
// (m, l) of every one.
extern "C" __global__ void __launch_bounds__(THREADS)
mergeSplits(const float* part, float* o, size_t n, int splits, float unit)
{
    const size_t row = (size_t)blockIdx.x * (THREADS / (D / 4)) + threadIdx.x / (D / 4);
    const int column = threadIdx.x % (D / 4) * 4;
    const size_t head = blockIdx.y, first = head * splits * n + row;     // the row in split 0
    const float* ml = part + gridDim.y * splits * n * D;

    awaitLaunch();         // which writes the parts
    float m = __int_as_float(0xff800000), l = 0.0f;       // -inf: nothing yet
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    #pragma unroll 4
    for (int i = 0; i < splits; ++i) {
        const float2 its = *(const float2*)(ml + 2 * (first + i * n));   // 8 bytes a row and split
        const float4 x = *(const float4*)(part + (first + i * n) * D + column);   // 256
        const float mNew = fmaxf(m, its.x);
        const float ours = exp2Fast((m - mNew) * unit), theirs = exp2Fast((its.x - mNew) * unit);
        m = mNew;
        l = l * ours + its.y * theirs;
        sum.x = sum.x * ours + x.x * theirs;
        sum.y = sum.y * ours + x.y * theirs;
        sum.z = sum.z * ours + x.z * theirs;
        sum.w = sum.w * ours + x.w * theirs;
    }
    *(float4*)(o + (head * n + row) * D + column) =
        make_float4(sum.x / l, sum.y / l, sum.z / l, sum.w / l);
}
