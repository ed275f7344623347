// The mathematics of CUDA: the C library's, and CUDA's intrinsics.
//
// The fast intrinsics (__expf, __sinf, __fdividef, ...) are approximations on a GPU; here they have
// the accuracy of the library. Floating-point sums and products are never fused here, as with
// NVRTC's --fmad=false.
#pragma once

// The C library has each function for double, and with an f for float. CUDA has the plain name for
// float too.
#define EMULATOR_UNARY(F) \
    F(acos) F(acosh) F(asin) F(asinh) F(atan) F(atanh) F(cbrt) F(ceil) F(cos) F(cosh) F(erf) \
    F(erfc) F(exp) F(exp10) F(exp2) F(expm1) F(fabs) F(floor) F(lgamma) F(log) F(log10) F(log1p) \
    F(log2) F(logb) F(nearbyint) F(rint) F(round) F(sin) F(sinh) F(sqrt) F(tan) F(tanh) \
    F(tgamma) F(trunc)
#define EMULATOR_BINARY(F) \
    F(atan2) F(copysign) F(fdim) F(fmax) F(fmin) F(fmod) F(hypot) F(nextafter) F(pow) F(remainder)
#define EMULATOR_TO_INTEGER(F) \
    F(int, ilogb) F(long, lrint) F(long, lround) F(long long, llrint) F(long long, llround)

extern "C" {
#define EMULATOR_DECLARE(name) double name(double); float name##f(float);
EMULATOR_UNARY(EMULATOR_DECLARE)
#undef EMULATOR_DECLARE
#define EMULATOR_DECLARE(name) double name(double, double); float name##f(float, float);
EMULATOR_BINARY(EMULATOR_DECLARE)
#undef EMULATOR_DECLARE
#define EMULATOR_DECLARE(T, name) T name(double); T name##f(float);
EMULATOR_TO_INTEGER(EMULATOR_DECLARE)
#undef EMULATOR_DECLARE
double fma(double, double, double), ldexp(double, int), scalbn(double, int);
float fmaf(float, float, float), ldexpf(float, int), scalbnf(float, int);
double scalbln(double, long), frexp(double, int *), modf(double, double *);
float scalblnf(float, long), frexpf(float, int *), modff(float, float *);
double remquo(double, double, int *), nan(const char *);
float remquof(float, float, int *), nanf(const char *);
double j0(double), j1(double), jn(int, double), y0(double), y1(double), yn(int, double);
float j0f(float), j1f(float), jnf(int, float), y0f(float), y1f(float), ynf(int, float);
int abs(int);
long labs(long);
long long llabs(long long);
}
#define EMULATOR_FLOAT(name) inline float name(float x) { return name##f(x); }
EMULATOR_UNARY(EMULATOR_FLOAT)
#undef EMULATOR_FLOAT
#define EMULATOR_FLOAT(name) inline float name(float x, float y) { return name##f(x, y); }
EMULATOR_BINARY(EMULATOR_FLOAT)
#undef EMULATOR_FLOAT
#define EMULATOR_FLOAT(T, name) inline T name(float x) { return name##f(x); }
EMULATOR_TO_INTEGER(EMULATOR_FLOAT)
#undef EMULATOR_FLOAT
inline float fma(float x, float y, float z) { return fmaf(x, y, z); }
inline float ldexp(float x, int n) { return ldexpf(x, n); }
inline float scalbn(float x, int n) { return scalbnf(x, n); }
inline float scalbln(float x, long n) { return scalblnf(x, n); }
inline float frexp(float x, int *n) { return frexpf(x, n); }
inline float modf(float x, float *whole) { return modff(x, whole); }
inline float remquo(float x, float y, int *n) { return remquof(x, y, n); }
inline float pow(float x, int n) { return powf(x, (float)n); }
inline double pow(double x, int n) { return pow(x, (double)n); }
inline long abs(long x) { return labs(x); }
inline long long abs(long long x) { return llabs(x); }
inline float abs(float x) { return fabsf(x); }
inline double abs(double x) { return fabs(x); }

#define EMULATOR_CLASSIFY(T) \
    inline bool isnan(T x) { return __builtin_isnan(x); } \
    inline bool isinf(T x) { return __builtin_isinf(x); } \
    inline bool isfinite(T x) { return __builtin_isfinite(x); } \
    inline bool signbit(T x) { return __builtin_signbit(x); }
EMULATOR_CLASSIFY(float)
EMULATOR_CLASSIFY(double)

// What CUDA adds to the C library.
#define EMULATOR_BOTH(name, parameters, float_value, double_value) \
    inline float name##f parameters(float) { return float_value; } \
    inline double name parameters(double) { return double_value; }
#define EMULATOR_X(T) (T x)
#define EMULATOR_XY(T) (T x, T y)
#define EMULATOR_XYZ(T) (T x, T y, T z)
#define EMULATOR_XYZW(T) (T x, T y, T z, T w)
constexpr double __emulator_pi = 3.14159265358979323846;
EMULATOR_BOTH(rsqrt, EMULATOR_X, 1.0f / sqrtf(x), 1.0 / sqrt(x))
EMULATOR_BOTH(rcbrt, EMULATOR_X, 1.0f / cbrtf(x), 1.0 / cbrt(x))
EMULATOR_BOTH(sinpi, EMULATOR_X, (float)sin(__emulator_pi * fmod((double)x, 2.0)),
              sin(__emulator_pi * fmod(x, 2.0)))
EMULATOR_BOTH(cospi, EMULATOR_X, (float)cos(__emulator_pi * fmod((double)x, 2.0)),
              cos(__emulator_pi * fmod(x, 2.0)))
EMULATOR_BOTH(normcdf, EMULATOR_X, (float)(0.5 * erfc(-(double)x * 0.70710678118654752440)),
              0.5 * erfc(-x * 0.70710678118654752440))
EMULATOR_BOTH(rhypot, EMULATOR_XY, 1.0f / hypotf(x, y), 1.0 / hypot(x, y))
EMULATOR_BOTH(norm3d, EMULATOR_XYZ, hypotf(hypotf(x, y), z), hypot(hypot(x, y), z))
EMULATOR_BOTH(norm4d, EMULATOR_XYZW, hypotf(hypotf(x, y), hypotf(z, w)),
              hypot(hypot(x, y), hypot(z, w)))
EMULATOR_BOTH(rnorm3d, EMULATOR_XYZ, 1.0f / norm3df(x, y, z), 1.0 / norm3d(x, y, z))
EMULATOR_BOTH(rnorm4d, EMULATOR_XYZW, 1.0f / norm4df(x, y, z, w), 1.0 / norm4d(x, y, z, w))
inline float rsqrt(float x) { return rsqrtf(x); }
inline float rcbrt(float x) { return rcbrtf(x); }
inline float sinpi(float x) { return sinpif(x); }
inline float cospi(float x) { return cospif(x); }
inline float normcdf(float x) { return normcdff(x); }
#define EMULATOR_PAIRS(sine, cosine, both, T) \
    inline void both(T x, T *s, T *c) { \
        *s = sine(x); \
        *c = cosine(x); \
    }
EMULATOR_PAIRS(sinf, cosf, sincosf, float)
EMULATOR_PAIRS(sinf, cosf, sincos, float)
EMULATOR_PAIRS(sinf, cosf, __sincosf, float)
EMULATOR_PAIRS(sinpif, cospif, sincospif, float)
EMULATOR_PAIRS(sin, cos, sincos, double)
EMULATOR_PAIRS(sinpi, cospi, sincospi, double)
inline float normf(int n, const float *p) {
    double sum = 0.0;
    for (int i = 0; i < n; i++) sum += (double)p[i] * p[i];
    return (float)sqrt(sum);
}
inline double norm(int n, const double *p) {
    double sum = 0.0;
    for (int i = 0; i < n; i++) sum += p[i] * p[i];
    return sqrt(sum);
}
inline float rnormf(int n, const float *p) { return 1.0f / normf(n, p); }
inline double rnorm(int n, const double *p) { return 1.0 / norm(n, p); }

// Fast intrinsics.
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return exp10f(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __tanhf(float x) { return tanhf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float fdividef(float x, float y) { return x / y; }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }

// Arithmetic and conversions that name their rounding: rn to nearest even, rz to zero, ru up, rd
// down. arithmetic.h has them.
#define EMULATOR_MODES(F, ...) F(rn, __VA_ARGS__) F(rz, __VA_ARGS__) F(ru, __VA_ARGS__) F(rd, __VA_ARGS__)
#define EMULATOR_ARITHMETIC(mode, T, letter, fma_name) \
    T __##letter##add_##mode(T, T), __##letter##sub_##mode(T, T), __##letter##mul_##mode(T, T); \
    T __##letter##div_##mode(T, T), __##letter##rcp_##mode(T), __##letter##sqrt_##mode(T); \
    T __##fma_name##_##mode(T, T, T);
EMULATOR_MODES(EMULATOR_ARITHMETIC, float, f, fmaf)
EMULATOR_MODES(EMULATOR_ARITHMETIC, double, d, fma)
#define EMULATOR_CONVERSIONS(mode, ...) \
    int __float2int_##mode(float), __double2int_##mode(double); \
    unsigned __float2uint_##mode(float), __double2uint_##mode(double); \
    long long __float2ll_##mode(float), __double2ll_##mode(double); \
    unsigned long long __float2ull_##mode(float), __double2ull_##mode(double); \
    float __int2float_##mode(int), __uint2float_##mode(unsigned), __ll2float_##mode(long long); \
    float __ull2float_##mode(unsigned long long), __double2float_##mode(double); \
    double __ll2double_##mode(long long), __ull2double_##mode(unsigned long long);
EMULATOR_MODES(EMULATOR_CONVERSIONS)
inline double __int2double_rn(int x) { return x; }
inline double __uint2double_rn(unsigned x) { return x; }

// The bits of a number as another type.
inline float __int_as_float(int x) { return __emulator::bits<float>(x); }
inline float __uint_as_float(unsigned x) { return __emulator::bits<float>(x); }
inline int __float_as_int(float x) { return __emulator::bits<int>(x); }
inline unsigned __float_as_uint(float x) { return __emulator::bits<unsigned>(x); }
inline double __longlong_as_double(long long x) { return __emulator::bits<double>(x); }
inline long long __double_as_longlong(double x) { return __emulator::bits<long long>(x); }
inline int __double2hiint(double x) { return (int)(__double_as_longlong(x) >> 32); }
inline int __double2loint(double x) { return (int)__double_as_longlong(x); }
inline double __hiloint2double(int high, int low) {
    return __longlong_as_double((long long)((unsigned long long)(unsigned)high << 32 |
                                            (unsigned)low));
}

// Integers.
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
    unsigned y = 0;
    for (int i = 0; i < 32; i++) y |= (x >> i & 1) << (31 - i);
    return y;
}
inline unsigned long long __brevll(unsigned long long x) {
    return (unsigned long long)__brev((unsigned)x) << 32 | __brev((unsigned)(x >> 32));
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    unsigned long long both = (unsigned long long)y << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        unsigned pick = selector >> (4 * i) & 15, byte = (unsigned)(both >> 8 * (pick & 7)) & 255;
        if (pick & 8) byte = byte & 128 ? 255 : 0;  // the sign of the byte, eight times
        result |= byte << (8 * i);
    }
    return result;
}
inline int __mul24(int x, int y) {
    return (int)((unsigned)((int)((unsigned)x << 8) >> 8) * (unsigned)((int)((unsigned)y << 8) >> 8));
}
inline unsigned __umul24(unsigned x, unsigned y) { return (x & 0xffffffu) * (y & 0xffffffu); }
inline int __mulhi(int x, int y) { return (int)((long long)x * y >> 32); }
inline unsigned __umulhi(unsigned x, unsigned y) {
    return (unsigned)((unsigned long long)x * y >> 32);
}
inline long long __mul64hi(long long x, long long y) { return (long long)((__int128)x * y >> 64); }
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return (unsigned long long)((unsigned __int128)x * y >> 64);
}
inline unsigned __sad(int x, int y, unsigned z) {
    return z + (x < y ? (unsigned)y - (unsigned)x : (unsigned)x - (unsigned)y);
}
inline unsigned __usad(unsigned x, unsigned y, unsigned z) { return z + (x < y ? y - x : x - y); }
inline int __hadd(int x, int y) { return (int)(((long long)x + y) >> 1); }
inline int __rhadd(int x, int y) { return (int)(((long long)x + y + 1) >> 1); }
inline unsigned __uhadd(unsigned x, unsigned y) {
    return (unsigned)(((unsigned long long)x + y) >> 1);
}
inline unsigned __urhadd(unsigned x, unsigned y) {
    return (unsigned)(((unsigned long long)x + y + 1) >> 1);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((unsigned long long)high << 32 | low) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((unsigned long long)high << 32 | low) >> (shift & 31));
}
inline unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned shift) {
    return shift >= 32 ? low : __funnelshift_l(low, high, shift);
}
inline unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift) {
    return shift >= 32 ? high : __funnelshift_r(low, high, shift);
}

// Packed bytes (4) and halves (2): each part on its own.
namespace __emulator {
template <class T, class F> inline unsigned packed(unsigned x, unsigned y, F apply) {
    unsigned result = 0;
    for (int i = 0; i < 32; i += 8 * (int)sizeof(T))
        result |= (unsigned)((~0u >> (32 - 8 * (int)sizeof(T))) &
                             (unsigned)apply((T)(x >> i), (T)(y >> i))) << i;
    return result;
}
}  // namespace __emulator
#define EMULATOR_PACKED(name, signed_letter, value) \
    inline unsigned __##name##4(unsigned x, unsigned y) { \
        return __emulator::packed<signed_letter char>(x, y, [](int a, int b) { return value; }); \
    } \
    inline unsigned __##name##2(unsigned x, unsigned y) { \
        return __emulator::packed<signed_letter short>(x, y, [](int a, int b) { return value; }); \
    }
EMULATOR_PACKED(vadd, unsigned, a + b)
EMULATOR_PACKED(vsub, unsigned, a - b)
EMULATOR_PACKED(vmaxs, signed, a < b ? b : a)
EMULATOR_PACKED(vmaxu, unsigned, a < b ? b : a)
EMULATOR_PACKED(vmins, signed, b < a ? b : a)
EMULATOR_PACKED(vminu, unsigned, b < a ? b : a)
EMULATOR_PACKED(vabsdiffu, unsigned, a < b ? b - a : a - b)
#define EMULATOR_DOT(T, a_type, b_type, A, B) \
    inline T __dp4a(A a, B b, T c) { \
        for (int i = 0; i < 32; i += 8) \
            c += (T)((a_type)((unsigned)a >> i)) * (T)((b_type)((unsigned)b >> i)); \
        return c; \
    }
EMULATOR_DOT(int, signed char, signed char, int, int)
EMULATOR_DOT(unsigned, unsigned char, unsigned char, unsigned, unsigned)

#define EMULATOR_MINMAX(T) \
    inline T min(T a, T b) { return b < a ? b : a; } \
    inline T max(T a, T b) { return a < b ? b : a; }
EMULATOR_MINMAX(int)
EMULATOR_MINMAX(unsigned)
EMULATOR_MINMAX(long)
EMULATOR_MINMAX(unsigned long)
EMULATOR_MINMAX(long long)
EMULATOR_MINMAX(unsigned long long)
#define EMULATOR_MIXED(A, B, T) \
    inline T min(A a, B b) { return min((T)a, (T)b); } \
    inline T max(A a, B b) { return max((T)a, (T)b); } \
    inline T min(B a, A b) { return min((T)a, (T)b); } \
    inline T max(B a, A b) { return max((T)a, (T)b); }
EMULATOR_MIXED(int, unsigned, unsigned)
EMULATOR_MIXED(long, unsigned long, unsigned long)
EMULATOR_MIXED(long long, unsigned long long, unsigned long long)
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
EMULATOR_MIXED(float, double, double)
