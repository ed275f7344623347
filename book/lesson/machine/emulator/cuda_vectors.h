// Vector types and their makers, with the alignment that CUDA gives them.
#pragma once

#define EMULATOR_VECTORS(T, name, two, four) \
    struct name##1 { T x; }; \
    struct __align__(two) name##2 { T x, y; }; \
    struct EMULATOR_THREE_##name { T x, y, z; }; \
    struct __align__(four) name##4 { T x, y, z, w; }; \
    inline name##1 make_##name##1(T x) { return name##1{x}; } \
    inline name##2 make_##name##2(T x, T y) { return name##2{x, y}; } \
    inline name##3 make_##name##3(T x, T y, T z) { return name##3{x, y, z}; } \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return name##4{x, y, z, w}; }
#define EMULATOR_THREE_char char3
#define EMULATOR_THREE_uchar uchar3
#define EMULATOR_THREE_short short3
#define EMULATOR_THREE_ushort ushort3
#define EMULATOR_THREE_int int3
#define EMULATOR_THREE_uint __emulator_uint3  // uint3 is there already
#define EMULATOR_THREE_long long3
#define EMULATOR_THREE_ulong ulong3
#define EMULATOR_THREE_longlong longlong3
#define EMULATOR_THREE_ulonglong ulonglong3
#define EMULATOR_THREE_float float3
#define EMULATOR_THREE_double double3
EMULATOR_VECTORS(signed char, char, 2, 4)
EMULATOR_VECTORS(unsigned char, uchar, 2, 4)
EMULATOR_VECTORS(short, short, 4, 8)
EMULATOR_VECTORS(unsigned short, ushort, 4, 8)
EMULATOR_VECTORS(int, int, 8, 16)
EMULATOR_VECTORS(unsigned, uint, 8, 16)
EMULATOR_VECTORS(long, long, 16, 16)
EMULATOR_VECTORS(unsigned long, ulong, 16, 16)
EMULATOR_VECTORS(long long, longlong, 16, 16)
EMULATOR_VECTORS(unsigned long long, ulonglong, 16, 16)
EMULATOR_VECTORS(float, float, 8, 16)
EMULATOR_VECTORS(double, double, 16, 16)
