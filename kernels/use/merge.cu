// The parts that attend.cu leaves behind, put together: merge.cu of the ladder, for any Problem.
//
// m counts powers of 2. A part that has seen no key of a row is (-inf, 0, 0); a row of such parts
// alone gives zeros, and lse = -inf.

constexpr int THREADS = 128;
constexpr float LN2 = 0.6931471805599453f;

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

// m, or 0 where it is -inf.
__device__ float finite(float m) { return m == __int_as_float(0xff800000) ? 0.0f : m; }

// Wait until the launch before this one has ended: hopper.cu lets this one start earlier.
__device__ void awaitLaunch()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Assumes blockDim = 128, gridDim = (ceil(queries d / 4 / 128), heads of all batch entries). part:
// o of every head, split and row, then (m, l) of every one. lse: log-sum-exp of each row, or null.
extern "C" __global__ void __launch_bounds__(THREADS)
mergeParts(const float* part, float* o, float* lse, int queries, int d, int splits)
{
    const size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x, row = at / (d / 4);
    const int column = (int)(at % (d / 4)) * 4;
    const size_t head = blockIdx.y, first = head * splits * queries + row;
    const float* ml = part + (size_t)gridDim.y * splits * queries * d;
    if (row >= queries)
        return;

    awaitLaunch();         // which writes the parts
    float m = __int_as_float(0xff800000), l = 0.0f;       // -inf: nothing yet
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    #pragma unroll 4
    for (int i = 0; i < splits; ++i) {
        const size_t its = first + (size_t)i * queries;
        const float2 said = *(const float2*)(ml + 2 * its);
        const float4 x = *(const float4*)(part + its * d + column);
        const float mNew = fmaxf(m, said.x);
        const float ours = exp2Fast(m - finite(mNew)), theirs = exp2Fast(said.x - finite(mNew));
        m = mNew;
        l = l * ours + said.y * theirs;
        sum.x = sum.x * ours + x.x * theirs;
        sum.y = sum.y * ours + x.y * theirs;
        sum.z = sum.z * ours + x.z * theirs;
        sum.w = sum.w * ours + x.w * theirs;
    }
    const float norm = l == 0.0f ? 0.0f : 1.0f / l;
    *(float4*)(o + (head * queries + row) * d + column) =
        make_float4(sum.x * norm, sum.y * norm, sum.z * norm, sum.w * norm);
    if (lse && column == 0)
        lse[head * queries + row] = l == 0.0f ? m : m * LN2 + logf(l);
}
