// The CUDA names that the lesson's kernels use, with a meaning on the host.
//
// A kernel file is compiled after this header, unedited. A CUDA thread becomes a fiber that
// run.cpp switches at barriers and warp operations; a load or store becomes a call of a hook
// in run.cpp, because the kernel's translation unit is compiled with -fsanitize=thread.
// No standard header is included: compiling stays fast, and a kernel that needs a header
// which NVRTC does not have fails here too. __CUDA_ARCH__ stays undefined.
#pragma once

typedef decltype(sizeof(0)) size_t;

#define __global__ __attribute__((noinline))
#define __device__
#define __host__
#define __constant__
#define __shared__ thread_local  // one OS thread: one copy, static or extern
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __restrict__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define alignas(bytes) __attribute__((aligned(bytes)))  // allowed after __shared__, as in CUDA

struct uint3 { unsigned x, y, z; };
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// The kernel sees them as constants: each fiber has its own values, and run.cpp stores them
// before it switches to a fiber.
#ifdef EMULATOR_RUN
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
#else
extern const uint3 threadIdx, blockIdx;
extern const dim3 blockDim, gridDim;
constexpr int warpSize = 32;
#endif

// Barriers. The default arguments carry the caller's own file and line.
#define EMULATOR_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()
void __syncthreads(EMULATOR_SITE);
int __syncthreads_count(int predicate, EMULATOR_SITE);
int __syncthreads_and(int predicate, EMULATOR_SITE);
int __syncthreads_or(int predicate, EMULATOR_SITE);
void __syncwarp(unsigned mask = 0xffffffffu, EMULATOR_SITE);
int __any_sync(unsigned mask, int predicate, EMULATOR_SITE);
int __all_sync(unsigned mask, int predicate, EMULATOR_SITE);
unsigned __ballot_sync(unsigned mask, int predicate, EMULATOR_SITE);
inline void __threadfence() {}
inline void __threadfence_block() {}

namespace emulator {

// A lane hands in `value` and receives the value of lane `source`.
unsigned long long shuffle(const char *what, unsigned mask, unsigned long long value, int source,
                           const char *file, int line);
int lane();
int print(const char *format, ...);

struct Kernel {
    const char *name;
    void (*call)(void **arguments);
};
extern const Kernel kernels[];
extern const int kernel_count;

template <int I, class F> struct Param;
template <class A, class... P> struct Param<0, void (*)(A, P...)> { typedef A type; };
template <int I, class A, class... P>
struct Param<I, void (*)(A, P...)> : Param<I - 1, void (*)(P...)> {};

template <class T>
T shuffle_as(const char *what, unsigned mask, T value, int source, const char *file, int line) {
    static_assert(sizeof(T) <= 8, "a shuffle moves a value of 4 or 8 bytes");
    union { T value; unsigned long long bits; } box;
    box.bits = 0;
    box.value = value;
    box.bits = shuffle(what, mask, box.bits, source, file, line);
    return box.value;
}

}  // namespace emulator

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, EMULATOR_SITE) {
    int lane = emulator::lane();
    int from = (lane & -width) | (source & (width - 1));
    return emulator::shuffle_as("__shfl_sync()", mask, value, from, file, line);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, EMULATOR_SITE) {
    int lane = emulator::lane(), from = lane - (int)delta;
    if (from < (lane & -width)) from = lane;
    return emulator::shuffle_as("__shfl_up_sync()", mask, value, from, file, line);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, EMULATOR_SITE) {
    int lane = emulator::lane(), from = lane + (int)delta;
    if (from > (lane | (width - 1))) from = lane;
    return emulator::shuffle_as("__shfl_down_sync()", mask, value, from, file, line);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, EMULATOR_SITE) {
    int lane = emulator::lane(), from = lane ^ lane_mask;
    if (from > (lane | (width - 1))) from = lane;
    return emulator::shuffle_as("__shfl_xor_sync()", mask, value, from, file, line);
}

// Atomics: checked for bounds, counted as a load and a store, never called a race.
#define EMULATOR_ATOMIC(name, T) T name(T *address, T value);
EMULATOR_ATOMIC(atomicAdd, int)
EMULATOR_ATOMIC(atomicAdd, unsigned)
EMULATOR_ATOMIC(atomicAdd, unsigned long long)
EMULATOR_ATOMIC(atomicAdd, float)
EMULATOR_ATOMIC(atomicAdd, double)
EMULATOR_ATOMIC(atomicMax, int)
EMULATOR_ATOMIC(atomicMax, unsigned)
EMULATOR_ATOMIC(atomicMin, int)
EMULATOR_ATOMIC(atomicMin, unsigned)
EMULATOR_ATOMIC(atomicExch, int)
EMULATOR_ATOMIC(atomicExch, unsigned)
EMULATOR_ATOMIC(atomicExch, float)
int atomicCAS(int *address, int compare, int value);
unsigned atomicCAS(unsigned *address, unsigned compare, unsigned value);

#ifndef EMULATOR_RUN  // the rest is for kernels alone; run.cpp has the C library's headers

#define EMULATOR_VECTOR2(T, name, align) \
    struct __align__(align) name { T x, y; }; \
    inline name make_##name(T x, T y) { return name{x, y}; }
#define EMULATOR_VECTOR4(T, name, align) \
    struct __align__(align) name { T x, y, z, w; }; \
    inline name make_##name(T x, T y, T z, T w) { return name{x, y, z, w}; }
EMULATOR_VECTOR2(int, int2, 8)
EMULATOR_VECTOR4(int, int4, 16)
EMULATOR_VECTOR2(unsigned, uint2, 8)
EMULATOR_VECTOR4(unsigned, uint4, 16)
EMULATOR_VECTOR2(float, float2, 8)
EMULATOR_VECTOR4(float, float4, 16)
EMULATOR_VECTOR2(double, double2, 16)
struct float3 { float x, y, z; };
struct int3 { int x, y, z; };
inline float3 make_float3(float x, float y, float z) { return float3{x, y, z}; }
inline int3 make_int3(int x, int y, int z) { return int3{x, y, z}; }
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return uint3{x, y, z}; }

#define printf emulator::print

extern "C" {
float expf(float), exp2f(float), expm1f(float), logf(float), log2f(float), log10f(float);
float log1pf(float), powf(float, float), sqrtf(float), fabsf(float), floorf(float), ceilf(float);
float roundf(float), rintf(float), truncf(float), fmodf(float, float), fmaxf(float, float);
float fminf(float, float), fmaf(float, float, float), sinf(float), cosf(float), tanhf(float);
float erff(float), ldexpf(float, int), copysignf(float, float);
double exp(double), exp2(double), log(double), log2(double), pow(double, double), sqrt(double);
double fabs(double), floor(double), ceil(double), fmax(double, double), fmin(double, double);
double fma(double, double, double), sin(double), cos(double), tanh(double);
int abs(int);
}
inline float exp(float x) { return expf(x); }
inline float exp2(float x) { return exp2f(x); }
inline float log(float x) { return logf(x); }
inline float log2(float x) { return log2f(x); }
inline float pow(float x, float y) { return powf(x, y); }
inline float sqrt(float x) { return sqrtf(x); }
inline float fabs(float x) { return fabsf(x); }
inline float abs(float x) { return fabsf(x); }
inline float floor(float x) { return floorf(x); }
inline float ceil(float x) { return ceilf(x); }
inline float fmax(float x, float y) { return fmaxf(x, y); }
inline float fmin(float x, float y) { return fminf(x, y); }
inline float fma(float x, float y, float z) { return fmaf(x, y, z); }
inline float tanh(float x) { return tanhf(x); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float exp10f(float x) { return powf(10.0f, x); }
inline bool isnan(float x) { return __builtin_isnan(x); }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline bool isfinite(float x) { return __builtin_isfinite(x); }
// The fast intrinsics are approximations on a GPU; here they have the accuracy of the library.
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return exp10f(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }

inline float __int_as_float(int x) { union { int i; float f; } u = {x}; return u.f; }
inline float __uint_as_float(unsigned x) { return __int_as_float((int)x); }
inline int __float_as_int(float x) { union { float f; int i; } u = {x}; return u.i; }
inline unsigned __float_as_uint(float x) { return (unsigned)__float_as_int(x); }
inline int __float2int_rn(float x) { return (int)rintf(x); }
inline float __int2float_rn(int x) { return (float)x; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }

template <class T> __forceinline__ T __ldg(const T *address) { return *address; }
template <class T> __forceinline__ T __ldcg(const T *address) { return *address; }
template <class T> __forceinline__ void __stcs(T *address, T value) { *address = value; }

#define EMULATOR_MINMAX(T) \
    inline T min(T a, T b) { return b < a ? b : a; } \
    inline T max(T a, T b) { return a < b ? b : a; }
EMULATOR_MINMAX(int)
EMULATOR_MINMAX(unsigned)
EMULATOR_MINMAX(long)
EMULATOR_MINMAX(unsigned long)
EMULATOR_MINMAX(long long)
EMULATOR_MINMAX(unsigned long long)
inline unsigned min(int a, unsigned b) { return min((unsigned)a, b); }
inline unsigned min(unsigned a, int b) { return min(a, (unsigned)b); }
inline unsigned max(int a, unsigned b) { return max((unsigned)a, b); }
inline unsigned max(unsigned a, int b) { return max(a, (unsigned)b); }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(float a, double b) { return fmin(a, b); }
inline double min(double a, float b) { return fmin(a, b); }
inline double max(float a, double b) { return fmax(a, b); }
inline double max(double a, float b) { return fmax(a, b); }

#endif  // EMULATOR_RUN
