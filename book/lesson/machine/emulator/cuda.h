// The CUDA names that a kernel may use, with a meaning on the host.
//
// A kernel file is compiled after this header, unedited. A CUDA thread becomes a fiber that
// run.cpp switches at barriers and warp operations; a load or store becomes a call of a hook
// in run.cpp, because the kernel's translation unit is compiled with -fsanitize=thread.
// No standard header is included: compiling stays fast, and a kernel that needs a header
// which NVRTC does not have fails here too. __CUDA_ARCH__ stays undefined.
//
// What is not CUDA's own is called __emulator or EMULATOR_...: a kernel has all other names.
#pragma once

typedef decltype(sizeof(0)) size_t;

#ifndef EMULATOR_RUN
#define __CUDACC__ 1  // as NVRTC 12 defines them
#define __CUDACC_RTC__ 1
#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 9
#endif

// The visibility marks a kernel in the symbol table, where signatures.py looks for it.
#define __global__ __attribute__((noinline, used, visibility("protected")))
#define __device__
#define __host__
#define __constant__
// One OS thread: one copy, static or extern. clang++ would take the value of a variable that nobody
// writes for its first one, as g++ does without an option of toolchain.py.
#ifdef __clang__
#define __shared__ thread_local __attribute__((used))
#else
#define __shared__ thread_local
#endif
#define __managed__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __inline_hint__ inline
// The first bound, as the compiler evaluates it: the attribute puts the function's address into a
// section .fini_array.00256, which build.py reads and takes out before the program is linked.
// clang++ takes no such number from a template's parameter: there the bound is not checked.
#ifdef __clang__
#define __launch_bounds__(...)
#else
#define __launch_bounds__(...) \
    __attribute__((destructor(EMULATOR_FIRST(__VA_ARGS__, 0)), hot))
#define EMULATOR_FIRST(first, ...) first
#endif
#define __maxnreg__(...)
#define __restrict__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __builtin_align__(bytes) __attribute__((aligned(bytes)))
#define alignas(bytes) __attribute__((aligned(bytes)))  // allowed after __shared__, as in CUDA

struct uint3 { unsigned x, y, z; };
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return uint3{x, y, z}; }
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

// Barriers and votes. The default arguments carry the caller's own file and line.
#define EMULATOR_SITE const char *file_ = __builtin_FILE(), int line_ = __builtin_LINE()
void __syncthreads(EMULATOR_SITE);
int __syncthreads_count(int predicate, EMULATOR_SITE);
int __syncthreads_and(int predicate, EMULATOR_SITE);
int __syncthreads_or(int predicate, EMULATOR_SITE);
void __syncwarp(unsigned mask = 0xffffffffu, EMULATOR_SITE);
int __any_sync(unsigned mask, int predicate, EMULATOR_SITE);
int __all_sync(unsigned mask, int predicate, EMULATOR_SITE);
unsigned __ballot_sync(unsigned mask, int predicate, EMULATOR_SITE);
unsigned __activemask(EMULATOR_SITE);
void __threadfence_block();
void __threadfence();
void __threadfence_system();

namespace __emulator {

// A lane hands in `value`, of so many bytes, and receives the value of lane `source`.
unsigned long long shuffle(const char *what, unsigned mask, unsigned long long value,
                           unsigned bytes, int source, const char *file, int line);
unsigned match(bool all, unsigned mask, unsigned long long value, const char *file, int line);
enum Reduction { add, min, max, bit_and, bit_or, bit_xor };
unsigned long long reduce(Reduction operation, const char *what, unsigned mask,
                          unsigned long long value, const char *file, int line);
int lane();
[[noreturn]] void failed(const char *condition, EMULATOR_SITE);
[[noreturn]] void trapped(const char *what, const char *file, int line);

template <class To, class From> inline To bits(From from) {
    union { From from; To to; } box = {from};
    return box.to;
}
template <class T> inline unsigned long long widened(T value) {
    union { T value; unsigned long long bits; } box;
    box.bits = 0;
    box.value = value;
    return box.bits;
}
template <class T>
inline T shuffle_as(const char *what, unsigned mask, T value, int source, const char *file,
                    int line) {
    return bits<T>(shuffle(what, mask, widened(value), sizeof(T), source, file, line));
}

}  // namespace __emulator

#define EMULATOR_PER_TYPE(F) \
    F(int) F(unsigned) F(long) F(unsigned long) F(long long) F(unsigned long long) F(float) F(double)

#define EMULATOR_WARP(T) \
    inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, EMULATOR_SITE) { \
        int lane = __emulator::lane(), from = (lane & -width) | (source & (width - 1)); \
        return __emulator::shuffle_as("__shfl_sync()", mask, value, from, file_, line_); \
    } \
    inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, \
                            EMULATOR_SITE) { \
        int lane = __emulator::lane(), from = lane - (int)delta; \
        if (from < (lane & -width)) from = lane; \
        return __emulator::shuffle_as("__shfl_up_sync()", mask, value, from, file_, line_); \
    } \
    inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, \
                              EMULATOR_SITE) { \
        int lane = __emulator::lane(), from = lane + (int)delta; \
        if (from > (lane | (width - 1))) from = lane; \
        return __emulator::shuffle_as("__shfl_down_sync()", mask, value, from, file_, line_); \
    } \
    inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, \
                             EMULATOR_SITE) { \
        int lane = __emulator::lane(), from = lane ^ lane_mask; \
        if (from > (lane | (width - 1))) from = lane; \
        return __emulator::shuffle_as("__shfl_xor_sync()", mask, value, from, file_, line_); \
    } \
    inline unsigned __match_any_sync(unsigned mask, T value, EMULATOR_SITE) { \
        return __emulator::match(false, mask, __emulator::widened(value), file_, line_); \
    } \
    inline unsigned __match_all_sync(unsigned mask, T value, int *equal, EMULATOR_SITE) { \
        unsigned found = \
            __emulator::match(true, mask, __emulator::widened(value), file_, line_); \
        *equal = found != 0; \
        return found; \
    }
EMULATOR_PER_TYPE(EMULATOR_WARP)

#define EMULATOR_REDUCE(name, T) \
    inline T __reduce_##name##_sync(unsigned mask, T value, EMULATOR_SITE) { \
        return (T)__emulator::reduce(__emulator::EMULATOR_REDUCE_##name, \
                                     "__reduce_" #name "_sync()", mask, \
                                     (unsigned long long)value, file_, line_); \
    }
#define EMULATOR_REDUCE_add add
#define EMULATOR_REDUCE_min min
#define EMULATOR_REDUCE_max max
#define EMULATOR_REDUCE_and bit_and
#define EMULATOR_REDUCE_or bit_or
#define EMULATOR_REDUCE_xor bit_xor
EMULATOR_REDUCE(add, int) EMULATOR_REDUCE(add, unsigned)
EMULATOR_REDUCE(min, int) EMULATOR_REDUCE(min, unsigned)
EMULATOR_REDUCE(max, int) EMULATOR_REDUCE(max, unsigned)
EMULATOR_REDUCE(and, unsigned) EMULATOR_REDUCE(or, unsigned) EMULATOR_REDUCE(xor, unsigned)

// Atomics: checked for bounds, counted as a load and a store, never called a race. The scopes
// _block and _system mean the same here.
#define EMULATOR_ATOMIC(F, T) \
    T F(T *address, T value); \
    __forceinline__ T F##_block(T *address, T value) { return F(address, value); } \
    __forceinline__ T F##_system(T *address, T value) { return F(address, value); }
#define EMULATOR_ATOMICS(F) \
    F(atomicAdd, int) F(atomicAdd, unsigned) F(atomicAdd, unsigned long long) \
    F(atomicAdd, float) F(atomicAdd, double) \
    F(atomicSub, int) F(atomicSub, unsigned) \
    F(atomicExch, int) F(atomicExch, unsigned) F(atomicExch, unsigned long long) \
    F(atomicExch, float) \
    F(atomicMin, int) F(atomicMin, unsigned) F(atomicMin, long long) \
    F(atomicMin, unsigned long long) \
    F(atomicMax, int) F(atomicMax, unsigned) F(atomicMax, long long) \
    F(atomicMax, unsigned long long) \
    F(atomicInc, unsigned) F(atomicDec, unsigned) \
    F(atomicAnd, int) F(atomicAnd, unsigned) F(atomicAnd, unsigned long long) \
    F(atomicOr, int) F(atomicOr, unsigned) F(atomicOr, unsigned long long) \
    F(atomicXor, int) F(atomicXor, unsigned) F(atomicXor, unsigned long long)
EMULATOR_ATOMICS(EMULATOR_ATOMIC)
#define EMULATOR_CAS(T) \
    T atomicCAS(T *address, T compare, T value); \
    __forceinline__ T atomicCAS_block(T *address, T compare, T value) { \
        return atomicCAS(address, compare, value); \
    } \
    __forceinline__ T atomicCAS_system(T *address, T compare, T value) { \
        return atomicCAS(address, compare, value); \
    }
EMULATOR_CAS(int) EMULATOR_CAS(unsigned) EMULATOR_CAS(unsigned long long)
EMULATOR_CAS(unsigned short)

// A clock here counts its own calls: an emulated kernel has no time.
long long clock64();
void __nanosleep(unsigned ns);
unsigned __isShared(const void *pointer);
unsigned __isGlobal(const void *pointer);

#ifndef EMULATOR_RUN  // the rest is for kernels alone; run.cpp has the C library's headers

inline long clock() { return (long)clock64(); }
inline void __trap(EMULATOR_SITE) { __emulator::trapped("__trap()", file_, line_); }
inline void __brkpt(EMULATOR_SITE) { __emulator::trapped("__brkpt()", file_, line_); }
#define __prof_trigger(counter) ((void)(counter))
#ifndef __clang__
#define __builtin_assume(condition) ((void)0)
#endif
#define __assume(condition) ((void)0)
#ifdef NDEBUG
#define assert(condition) ((void)0)
#else
#define assert(condition) ((condition) ? (void)0 : __emulator::failed(#condition))
#endif

#define NULL 0
typedef decltype((char *)0 - (char *)0) ptrdiff_t;

extern "C" {
int printf(const char *format, ...);
void *memcpy(void *to, const void *from, size_t bytes) __asm__("__emulator_memcpy");
void *memmove(void *to, const void *from, size_t bytes) __asm__("__emulator_memmove");
void *memset(void *to, int value, size_t bytes) __asm__("__emulator_memset");
}

inline unsigned __isLocal(const void *p) { return !__isShared(p) && !__isGlobal(p); }
inline unsigned __isConstant(const void *) { return 0; }
inline size_t __cvta_generic_to_shared(const void *p) { return (size_t)p; }
inline size_t __cvta_generic_to_global(const void *p) { return (size_t)p; }
inline size_t __cvta_generic_to_local(const void *p) { return (size_t)p; }
inline size_t __cvta_generic_to_constant(const void *p) { return (size_t)p; }
inline void *__cvta_shared_to_generic(size_t p) { return (void *)p; }
inline void *__cvta_global_to_generic(size_t p) { return (void *)p; }
inline void *__cvta_local_to_generic(size_t p) { return (void *)p; }
inline void *__cvta_constant_to_generic(size_t p) { return (void *)p; }

// Loads and stores with a hint to the caches: none of them is here.
#define EMULATOR_LOAD(name) template <class T> __forceinline__ T name(const T *p) { return *p; }
EMULATOR_LOAD(__ldg) EMULATOR_LOAD(__ldca) EMULATOR_LOAD(__ldcg) EMULATOR_LOAD(__ldcs)
EMULATOR_LOAD(__ldlu) EMULATOR_LOAD(__ldcv)
#define EMULATOR_STORE(name) \
    template <class T> __forceinline__ void name(T *p, T value) { *p = value; }
EMULATOR_STORE(__stwb) EMULATOR_STORE(__stcg) EMULATOR_STORE(__stcs) EMULATOR_STORE(__stwt)

#include "cuda_vectors.h"
#include "cuda_math.h"

#endif  // EMULATOR_RUN
