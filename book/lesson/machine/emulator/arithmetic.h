// Arithmetic and conversions that name their rounding: rn to nearest even, rz to zero, ru up, rd
// down. On a GPU each is an instruction; here the processor's rounding is set around it.
#pragma once

#include <fenv.h>
#include <math.h>

namespace {

struct Rounding {
    int before = fegetround();
    explicit Rounding(int mode) { fesetround(mode); }
    ~Rounding() { fesetround(before); }
};

// As CUDA converts: rounded, then brought into the type's range; a NaN is 0, but from double (and
// to 64 bits) the type's most significant bit alone.
template <class To, class From> To rounded_to(From x, int mode) {
    constexpr bool wide = sizeof(To) == 8, is_signed = To(-1) < To(0);
    constexpr int bits = wide ? 64 : 32;
    const To top = To(1ull << (bits - 1)), largest = is_signed ? To(~(unsigned long long)top) : To(-1);
    if (x != x) return wide || sizeof(From) == 8 ? top : To(0);
    volatile double value;
    {
        Rounding rounding(mode);
        value = nearbyint(double(x));
    }
    double above = is_signed ? (wide ? 0x1p63 : 0x1p31) : (wide ? 0x1p64 : 0x1p32);
    if (value >= above) return largest;
    if (value < (is_signed ? -above : 0.0)) return is_signed ? top : To(0);
    return To(value);
}

}  // namespace

// The operands are volatile, so that the operation stays between the two changes of rounding.
#define ROUNDED(T, name, mode, parameters, copies, value) \
    T name parameters { \
        Rounding rounding(mode); \
        copies; \
        volatile T result = value; \
        return result; \
    }
#define ONE(T) volatile T a = x
#define TWO(T) volatile T a = x, b = y
#define ROUNDED_ARITHMETIC(suffix, mode, T, letter, fma_name, root) \
    ROUNDED(T, __##letter##add_##suffix, mode, (T x, T y), TWO(T), a + b) \
    ROUNDED(T, __##letter##sub_##suffix, mode, (T x, T y), TWO(T), a - b) \
    ROUNDED(T, __##letter##mul_##suffix, mode, (T x, T y), TWO(T), a * b) \
    ROUNDED(T, __##letter##div_##suffix, mode, (T x, T y), TWO(T), a / b) \
    ROUNDED(T, __##letter##rcp_##suffix, mode, (T x), ONE(T), T(1) / a) \
    ROUNDED(T, __##letter##sqrt_##suffix, mode, (T x), ONE(T), root(a)) \
    ROUNDED(T, __##fma_name##_##suffix, mode, (T x, T y, T z), TWO(T), fma_name(a, b, z))
#define CONVERTED(To, name, From, suffix, mode) \
    To __##name##_##suffix(From x) { return rounded_to<To>(x, mode); }
#define ROUNDED_CONVERSION(To, name, From, suffix, mode) \
    ROUNDED(To, __##name##_##suffix, mode, (From x), ONE(From), To(a))
#define ALL_OF(suffix, mode) \
    ROUNDED_ARITHMETIC(suffix, mode, float, f, fmaf, sqrtf) \
    ROUNDED_ARITHMETIC(suffix, mode, double, d, fma, sqrt) \
    CONVERTED(int, float2int, float, suffix, mode) \
    CONVERTED(int, double2int, double, suffix, mode) \
    CONVERTED(unsigned, float2uint, float, suffix, mode) \
    CONVERTED(unsigned, double2uint, double, suffix, mode) \
    CONVERTED(long long, float2ll, float, suffix, mode) \
    CONVERTED(long long, double2ll, double, suffix, mode) \
    CONVERTED(unsigned long long, float2ull, float, suffix, mode) \
    CONVERTED(unsigned long long, double2ull, double, suffix, mode) \
    ROUNDED_CONVERSION(float, int2float, int, suffix, mode) \
    ROUNDED_CONVERSION(float, uint2float, unsigned, suffix, mode) \
    ROUNDED_CONVERSION(float, ll2float, long long, suffix, mode) \
    ROUNDED_CONVERSION(float, ull2float, unsigned long long, suffix, mode) \
    ROUNDED_CONVERSION(float, double2float, double, suffix, mode) \
    ROUNDED_CONVERSION(double, ll2double, long long, suffix, mode) \
    ROUNDED_CONVERSION(double, ull2double, unsigned long long, suffix, mode)
ALL_OF(rn, FE_TONEAREST)
ALL_OF(rz, FE_TOWARDZERO)
ALL_OF(ru, FE_UPWARD)
ALL_OF(rd, FE_DOWNWARD)
