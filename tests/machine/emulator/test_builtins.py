"""CUDA's built-in names on the host: each has the value that CUDA gives it."""

import math
import re

import numpy as np
import pytest
from lesson.errors import LaunchError
from lesson.machine import nvrtc
from lesson.machine.emulator import toolchain
from lesson.text import source
from support.emulated import fails, needs_compiler, program, run

pytestmark = needs_compiler


def values(backend, expressions, dtype="double", before=""):
    """The values of CUDA expressions of float x, double d, int i, unsigned u, long long L and
    unsigned long long U, one kernel for all of them."""
    lines = "\n".join(f"out[{k}] = (double)({e});" for k, e in enumerate(expressions))
    text = (f'{before}\nextern "C" __global__ void all(double* out, float x, double d, int i, '
            f"unsigned u, long long L, unsigned long long U) {{\n{lines}\n}}\n")
    out = backend.full((len(expressions),), np.nan, np.float64)
    backend.compile(source.from_text(text, "all.cu")).launch(
        "all", (1,), (1,), (out, 0.75, 0.6, -5, 12, -(2**40) - 3, 2**63 + 1))
    return backend.get(out)


def agree(backend, table, tolerance=0.0):
    got = values(backend, list(table))
    for (expression, want), value in zip(table.items(), got, strict=True):
        near = abs(value - want) <= tolerance * abs(want) + (1e-300 if tolerance else 0)
        assert near, f"{expression} is {value!r}, wanted {want!r}"


X, D = 0.75, 0.6
FUNCTIONS = {
    "acos": math.acos, "asin": math.asin, "asinh": math.asinh, "atan": math.atan,
    "atanh": math.atanh, "cbrt": lambda v: v ** (1 / 3), "ceil": math.ceil, "cos": math.cos,
    "cosh": math.cosh, "erf": math.erf, "erfc": math.erfc, "exp": math.exp,
    "exp10": lambda v: 10.0**v, "exp2": lambda v: 2.0**v, "expm1": math.expm1, "fabs": abs,
    "floor": math.floor, "lgamma": math.lgamma, "log": math.log, "log10": math.log10,
    "log1p": math.log1p, "log2": math.log2, "logb": lambda v: -1.0, "nearbyint": round,
    "rint": round, "round": round, "sin": math.sin, "sinh": math.sinh, "sqrt": math.sqrt,
    "tan": math.tan, "tanh": math.tanh, "tgamma": math.gamma, "trunc": math.trunc,
    "rsqrt": lambda v: v**-0.5, "rcbrt": lambda v: v ** (-1 / 3),
    "sinpi": lambda v: math.sin(math.pi * v), "cospi": lambda v: math.cos(math.pi * v),
    "normcdf": lambda v: 0.5 * math.erfc(-v / math.sqrt(2)),
}


def test_functions_of_one_number(backend):
    for suffix, argument, tolerance in (("f", "x", 3e-7), ("", "x", 3e-7), ("", "d", 3e-15)):
        agree(backend, {f"{name}{suffix}({argument})": float(function(X if argument == "x" else D))
                        for name, function in FUNCTIONS.items()}, tolerance)


def test_acosh_and_functions_of_several_numbers(backend):
    agree(backend, {
        "acoshf(x + 1.0f)": math.acosh(1.75), "atan2f(x, 2.0f)": math.atan2(X, 2),
        "atan2(d, 2.0)": math.atan2(D, 2), "copysignf(x, -1.0f)": -X, "fdimf(2.0f, x)": 1.25,
        "fmaxf(x, 2.0f)": 2.0, "fmin(x, 2.0f)": X, "fmodf(2.0f, x)": 0.5, "fmod(x, 0.5f)": 0.25,
        "hypotf(x, 1.0f)": 1.25, "powf(x, 2.0f)": 0.5625, "pow(x, 3)": 0.421875,
        "remainderf(2.0f, x)": -0.25, "ldexpf(x, 4)": 12.0, "scalbnf(x, 1)": 1.5,
        "fmaf(x, 2.0f, 1.0f)": 2.5, "norm3df(2.0f, 3.0f, 6.0f)": 7.0, "rhypotf(x, 1.0f)": 0.8,
        "norm4df(1.0f, 1.0f, 1.0f, 1.0f)": 2.0, "normf(1, &x)": X, "nextafterf(1.0f, 2.0f)":
        1 + 2.0**-23, "fdividef(x, 0.5f)": 1.5, "abs(i)": 5, "labs(-7L)": 7, "abs(L)": 2**40 + 3,
        "llabs(L)": 2**40 + 3, "abs(-x)": X, "signbit(-x) ? 1 : 0": 1, "isnan(x - x) ? 1 : 0": 0,
        "lrintf(x)": 1, "lroundf(2.5f)": 3, "llrint(d)": 1, "ilogbf(x)": -1,
        "max(i, 3)": 3, "min(u, 3)": 3, "max(x, d)": X, "min(L, 0LL)": -(2**40) - 3,
    }, 3e-7)


def test_fast_intrinsics_have_the_library_s_accuracy(backend):
    agree(backend, {
        "__expf(x)": math.exp(X), "__exp10f(x)": 10**X, "__logf(x)": math.log(X),
        "__log2f(x)": math.log2(X), "__log10f(x)": math.log10(X), "__powf(x, 2.0f)": X * X,
        "__sinf(x)": math.sin(X), "__cosf(x)": math.cos(X), "__tanf(x)": math.tan(X),
        "__fdividef(x, 4.0f)": X / 4, "__saturatef(x + 1.0f)": 1.0, "__saturatef(-x)": 0.0,
        "__frsqrt_rn(x)": X**-0.5,
    }, 3e-7)


def test_arithmetic_that_names_its_rounding(backend):
    third = np.float32(1) / np.float32(3)
    below, above = np.nextafter(third, np.float32(0)), np.nextafter(third, np.float32(1))
    exact = 1 / 3
    down, up = (third, above) if third < exact else (below, third)
    one_up = float(np.nextafter(np.float32(1), np.float32(2)))
    agree(backend, {
        "__fdiv_rn(1.0f, 3.0f)": third, "__fdiv_rz(1.0f, 3.0f)": down,
        "__fdiv_ru(1.0f, 3.0f)": up, "__fdiv_rd(-1.0f, 3.0f)": -up,
        "__frcp_rz(3.0f)": down, "__frcp_ru(3.0f)": up,
        "__fadd_rz(1.0f, 1e-9f)": 1, "__fadd_ru(1.0f, 1e-9f)": one_up,
        "__fsub_rd(1.0f, -1e-9f)": 1, "__fsub_ru(1.0f, -1e-9f)": one_up,
        "__fmul_rz(1.0000001f, 1.0000001f)": float(np.float32(1.0000001) + np.float32(2.0**-23)),
        "__fmul_ru(1.0000001f, 1.0000001f)": float(np.float32(1.0000001) + np.float32(2.0**-22)),
        "__fmaf_rz(1.0f, 1.0f, 1e-9f)": 1, "__fmaf_ru(1.0f, 1.0f, 1e-9f)": one_up,
        "__fsqrt_rn(4.0f)": 2, "__dadd_rn(d, 0.5)": D + 0.5, "__dmul_ru(1.0, 1.0)": 1,
        "__dadd_ru(1.0, 1e-30)": 1 + 2.0**-52, "__fma_rn(d, 2.0, 1.0)": 2.2,
    })


def test_conversions(backend):
    agree(backend, {
        "__float2int_rn(2.5f)": 2, "__float2int_rz(-2.5f)": -2, "__float2int_ru(2.1f)": 3,
        "__float2int_rd(-2.1f)": -3, "__float2int_rn(1e20f)": 2**31 - 1,
        "__float2int_rz(x / (x - x) * 0.0f)": 0, "__float2uint_rn(2.5f)": 2,
        "__float2uint_rz(-1.0f)": 0, "__float2ll_rn(1e15f)": float(np.float32(1e15)),
        "__float2ull_rz(3.9f)": 3, "__double2int_rz(-2.9)": -2, "__double2uint_ru(2.1)": 3,
        "__double2ll_rd(-2.1)": -3, "__int2float_rz(16777217)": 16777216,
        "__int2float_ru(16777217)": 16777218, "__uint2float_rn(7u)": 7,
        "__ll2float_rd(16777217LL)": 16777216, "__ull2double_rn(1ull << 60)": 2.0**60,
        "__double2float_rz(1.0 - 1e-12)": 1 - 2.0**-24, "__double2float_ru(1.0 + 1e-12)":
        1 + 2.0**-23, "__int2double_rn(i)": -5,
    })


def test_bits(backend):
    agree(backend, {
        "__float_as_int(1.0f)": 0x3F800000, "__uint_as_float(0x40000000u)": 2,
        "__double_as_longlong(1.0)": 0x3FF0000000000000, "__longlong_as_double(1LL << 62)": 2,
        "__hiloint2double(0x3ff00000, 0)": 1, "__double2hiint(1.0)": 0x3FF00000,
        "__popc(u)": 2, "__popcll(U)": 2, "__clz(u)": 28, "__clz(0)": 32, "__clzll(1LL)": 63,
        "__ffs(u)": 3, "__ffsll(0LL)": 0, "__ffsll(1LL << 40)": 41, "__brev(1u)": 2**31,
        "__brevll(1ull)": 2.0**63, "__byte_perm(0x03020100u, 0x07060504u, 0x7531u)": 0x07050301,
        "__byte_perm(0x00000080u, 0u, 0x8888u)": 0xFFFFFFFF, "__mul24(i, 3)": -15,
        "__umul24(u, 3u)": 36, "__mulhi(-1, 1)": -1, "__umulhi(0x80000000u, 4u)": 2,
        "__umul64hi(U, 4ull)": 2, "__mul64hi(-1LL, 1LL)": -1, "__sad(i, 3, 1u)": 9,
        "__usad(3u, 5u, 1u)": 3, "__hadd(-3, 0)": -2, "__rhadd(3, 0)": 2,
        "__uhadd(0xffffffffu, 1u)": 2**31, "__funnelshift_l(0x80000000u, 1u, 1)": 3,
        "__funnelshift_r(2u, 1u, 1)": 2**31 + 1, "__funnelshift_lc(5u, 1u, 40)": 5,
        "__dp4a(0x01020304, 0x01010101, 5)": 15, "__dp4a(-1, 0x01010101, 0)": -4,
        "__dp4a(0xffffffffu, 0x01010101u, 0u)": 1020, "__vadd4(0x01ff0102u, 0x01010101u)":
        0x02000203, "__vmaxs2(0xffff0001u, 0x00010000u)": 0x00010001,
    })


def test_vector_types(backend):
    table = {f"make_{t}{n}({', '.join(map(str, range(1, n + 1)))}).{'xyzw'[n - 1]}": n
             for t in ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong",
                       "longlong", "ulonglong", "float", "double") for n in (1, 2, 3, 4)}
    table |= {f"sizeof({t})": size for t, size in (
        ("float3", 12), ("float4", 16), ("uchar4", 4), ("short2", 4), ("double2", 16),
        ("longlong2", 16), ("char3", 3), ("uint3", 12), ("dim3", 12))}
    table |= {f"__alignof__({t})": size for t, size in (
        ("float2", 8), ("float3", 4), ("float4", 16), ("uchar4", 4), ("short4", 8),
        ("int2", 8), ("double2", 16), ("char2", 2))}
    agree(backend, table)


def test_names_of_the_language(backend):
    agree(backend, {
        "(float*)NULL == nullptr": 1, "(int)sizeof(ptrdiff_t)": 8, "warpSize": 32,
        "(assert(u == 12), 3)": 3, "(__builtin_assume(u > 0), 3)": 3, "__CUDACC_VER_MAJOR__": 12,
        "(__prof_trigger(0), 4)": 4, "dim3(3, 2).z": 1,
    })
    before = "#if defined(__CUDA_ARCH__) || !defined(__CUDACC__)\n#error as on a host\n#endif"
    if not nvrtc.available()[0]:  # which has a __CUDA_ARCH__
        values(backend, ["1"], before=before)


# ---- memory, atomics, the warp ------------------------------------------------------------------


def test_loads_and_stores_with_hints_to_the_caches(backend):
    body = """int t = threadIdx.x;
    float x = __ldg(a + t) + __ldca(a + t + 1) + __ldcg(a + t + 2) + __ldcs(a + t + 3) +
              __ldlu(a + t + 4) + __ldcv(a + t + 5);
    __stwb(b + t, x); __stcg(b + t + 8, x); __stcs(b + t + 16, x); __stwt(b + t + 24, x);"""
    b, counts = run(backend, body, block=(8,))
    assert np.array_equal(b, np.tile(6 * np.arange(8) + 15, 4))
    assert (counts.loads_bytes, counts.stores_bytes) == (8 * 24, 8 * 16)


def test_copies_of_memory_are_checked_and_counted(backend):
    body = """float4 part;
    memcpy(&part, a + 4 * threadIdx.x, 4 * n / 8);
    memcpy(b + 4 * threadIdx.x, &part, sizeof part);
    memset(b, 0, 4 * (n > 1000));"""
    b, counts = run(backend, body, block=(8,))
    assert np.array_equal(b, np.arange(32))
    assert (counts.loads_bytes, counts.stores_bytes) == (128, 128)
    assert "writes b[24]" in fails(backend, "memset(b + 24, 0, n + 1);", block=(1,))
    assert "mine.cu, line 2" in fails(backend, "memcpy(b, a, n * 4 + 4);", block=(1,))


ATOMICS = """
extern "C" __global__ void all(int* i, unsigned* u, unsigned long long* U, float* f, double* d) {
    int t = threadIdx.x;
    atomicAdd(i + 0, 1); atomicSub(i + 1, 2); atomicMin(i + 2, -t); atomicMax(i + 3, t);
    atomicAnd(i + 4, ~(1 << t)); atomicOr(i + 5, 1 << t); atomicXor(i + 6, 1 << t);
    atomicAdd_block(i + 7, 1); atomicAdd_system(i + 7, 1);
    if (t == 0) { atomicExch(i + 8, 7); atomicCAS(i + 9, 0, 8); atomicCAS(i + 10, 5, 8); }
    atomicAdd(u + 0, 3u); atomicInc(u + 1, 4u); atomicDec(u + 2, 4u);
    atomicMin(u + 3, (unsigned)t); atomicMax(u + 4, (unsigned)t);
    atomicAnd(u + 5, 6u); atomicOr(u + 6, 1u); atomicXor(u + 7, 1u); atomicSub(u + 8, 1u);
    atomicAdd(U + 0, 1ull << 40); atomicMax(U + 1, (unsigned long long)t);
    atomicMin(U + 2, 1ull); atomicExch(U + 3, 9ull);
    if (t == 0) atomicCAS(U + 4, 0ull, 6ull);
    atomicAdd(f, 0.5f); atomicAdd(d, 0.25);
    if (t == 0) atomicExch(f + 1, 2.5f);
}
"""


def test_atomics(backend):
    arrays = [backend.full((n,), v, t) for n, v, t in (
        (11, 0, np.int32), (9, 0, np.uint32), (5, 0, np.uint64), (2, 0, np.float32),
        (1, 0, np.float64))]
    arrays[0][4], arrays[1][5], arrays[2][2] = -1, 7, 100
    backend.compile(source.from_text(ATOMICS, "all.cu")).launch("all", (1,), (16,), arrays)
    i, u, wide, f, d = map(backend.get, arrays)
    assert i.tolist() == [16, -32, -15, 15, -1 << 16, 65535, 65535, 32, 7, 8, 0]
    assert u.tolist() == [48, 16 % 5, (5 - 16 % 5) % 5, 0, 15, 6, 1, 0, 2**32 - 16]
    assert wide.tolist() == [16 << 40, 15, 1, 9, 6]
    assert f.tolist() == [8, 2.5] and d.tolist() == [4]


def test_votes_matches_and_reductions(backend):
    """Reductions of a warp are for compute capability 8.0 and newer."""
    body = """int t = threadIdx.x, pred;
    const unsigned all = 0xffffffffu;
    unsigned ok = __match_any_sync(all, t / 4) == 15u << (t & ~3);
    ok += __match_all_sync(all, n, &pred) == all && pred;
    ok += __match_all_sync(all, t, &pred) == 0 && !pred;
    ok += __match_any_sync(all, 1.5f) == all;
    ok += __reduce_add_sync(all, t) == 496;
    ok += __reduce_min_sync(all, t - 7) == -7;
    ok += __reduce_max_sync(all, (unsigned)t) == 31u;
    ok += __reduce_and_sync(all, t | 8u) == 8u;
    ok += __reduce_or_sync(all, 1u << t) == all;
    ok += __reduce_xor_sync(all, 1u << t) == all;
    ok += __activemask() == all;
    if (t < 5) ok += __activemask() == 31u;
    else ok += __activemask() == ~31u;
    ok += __shfl_sync(__activemask(), (long long)t << 40, 3) == 3ll << 40;
    ok += __shfl_xor_sync(all, (unsigned long long)t, 1) == (t ^ 1);
    b[t] = ok;"""
    assert (run(backend, body)[0] == 14).all()


def test_counters_shared_by_the_lanes_that_are_active(backend):
    """One atomic for all lanes that come: the pattern that __activemask() is for."""
    body = """__shared__ int count;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    if (a[threadIdx.x] > 10.0f) {
        unsigned active = __activemask();
        int lane = threadIdx.x % 32, leader = __ffs(active) - 1, first;
        if (lane == leader) first = atomicAdd(&count, __popc(active));
        first = __shfl_sync(active, first, leader);
        int place = first + __popc(active & ((1u << lane) - 1));
        if (place < 0) b[1] = 0.0f;
    }
    __syncthreads();
    if (threadIdx.x == 0) b[0] = count;"""
    assert run(backend, body, n=96, block=(96,))[0][0] == 85


def test_spaces_of_memory(backend):
    body = """__shared__ float s[32];
    float mine = 0.0f;
    s[threadIdx.x] = __isShared(s) + 2 * __isGlobal(a) + 4 * __isLocal(&mine) +
                     8 * (__cvta_shared_to_generic(__cvta_generic_to_shared(s)) == (void*)s);
    b[threadIdx.x] = s[threadIdx.x] + 16 * __isShared(a);"""
    assert (run(backend, body)[0] == 15).all()


def test_a_clock_says_that_it_is_none(backend):
    body = """long long start = clock64();
    while (clock64() - start < 50) { }
    b[threadIdx.x] = clock() > 0;"""
    b, counts = run(backend, body)
    assert (b == 1).all()
    assert any("reads a clock" in note and "no time" in note for note in counts.notes)


# ---- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [
    "write", "send", "index", "fiber", "barrier", "access", "copy", "emulator", "kernels", "time",
    "settle", "fence", "restore", "signal", "exit", "conj",
])
def test_a_kernel_may_have_any_name(backend, name):
    text = f"""__device__ int lane, g_current;
    namespace own {{ __device__ int barrier() {{ return 1; }} }}
    extern "C" __global__ void {name}(float* file, int line) {{
        file[threadIdx.x] = line + own::barrier(); }}"""
    x = backend.full((4,), 0.0)
    backend.compile(source.from_text(text, "mine.cu")).launch(name, (1,), (4,), (x, 2))
    assert (x == 3).all()


def test_what_the_emulator_adds_has_its_own_names():
    """Every name at file scope of cuda.h is CUDA's, or begins as the emulator's own do."""
    folder = toolchain.EMULATOR
    macros = set()
    for name in ("cuda.h", "cuda_math.h", "cuda_vectors.h"):
        text = (folder / name).read_text(encoding="utf-8")
        macros |= set(re.findall(r"^#define (\w+)", text, re.M))
    own = {m for m in macros if not m.startswith(("EMULATOR_", "__"))}
    assert own == {"alignas", "assert", "NULL"}


def test_the_block_of_launch_bounds_is_the_largest(backend):
    if "clang" in backend.describe():
        pytest.skip("clang++ takes no bound from a template's parameter, so none is read")
    text = """constexpr int W = 2;
    template <int T> __global__ void __launch_bounds__(T) other(float* y) { y[0] = 1.0f; }
    extern "C" __global__ void __launch_bounds__((W * 64) / (1 + 1), 2) mine(float* y) {
        y[threadIdx.x] = 1.0f; }
    extern "C" __launch_bounds__(32) __global__ void small(float* y) { y[threadIdx.x] = 1.0f; }"""
    made = backend.compile(source.from_text(text, "mine.cu"))
    x = backend.full((64,), 0.0)
    made.launch("mine", (1,), (64,), (x,))
    for name, block, bound in (("mine", (65,), 64), ("small", (8, 8), 32)):
        with pytest.raises(LaunchError, match=rf"__launch_bounds__\({bound}\)"):
            made.launch(name, (1,), block, (x,))


def test_variables_of_the_device_begin_anew_in_every_launch(backend):
    before = "__device__ int calls = 3; __device__ int zero[2];"
    body = "if (threadIdx.x == 0) { calls += 1; zero[1] += 1; b[0] = calls; b[1] = zero[1]; }"
    mine = program(backend, body, before=before)
    for _ in range(2):
        b = backend.full((2,), np.nan)
        mine.launch("mine", (1,), (32,), (backend.full((1,), 0), b, 0))
        assert backend.get(b).tolist() == [4, 1]
