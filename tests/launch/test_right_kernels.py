"""One right online kernel, typed in many ways: each passes its gate, far inside."""

import pytest
from lesson.launch import paths
from lesson.machine.emulator import HostBackend
from lesson.measure.gates_and_times import judged
from lesson.problem import cases
from lesson.text.source import from_text

MOST = 0.35  # of the gate, as for the lesson's own kernels
SIGNATURE = "const float* q, const float* k, const float* v, float* o, size_t n, float scale"

# 256 threads, 64 query rows: four threads share a row, each with 16 of its 64 columns.
KERNEL = """
constexpr int WIDTH = 64;
constexpr int KEYS = 32;
@helpers
@head(@signature)
{
    __shared__ float kTile[KEYS][WIDTH];
    __shared__ float vTile[KEYS][WIDTH];
    const int part = threadIdx.x % 4;
    const size_t row = (size_t)blockIdx.x * 64 + threadIdx.x / 4;
    const int column = part * 16;
    float mine[16], sum[16];
    for (int i = 0; i < 16; ++i) {
        mine[i] = q[row * WIDTH + column + i];
        sum[i] = 0.0f;
    }
    float highest = @infinity;
    float total = 0.0f;
    for (size_t first = 0; first < n; first += KEYS) {
        for (int i = threadIdx.x; i < KEYS * WIDTH; i += blockDim.x) {
            kTile[i / WIDTH][i % WIDTH] = k[first * WIDTH + i];
            vTile[i / WIDTH][i % WIDTH] = v[first * WIDTH + i];
        }
        __syncthreads();
        for (int j = 0; j < KEYS; ++j) {
            float score = 0.0f;
            for (int i = 0; i < 16; ++i)
                score += mine[i] * kTile[j][column + i];
            score += __shfl_xor_sync(0xffffffffu, score, 1);
            score += __shfl_xor_sync(0xffffffffu, score, 2);
            score *= scale;
            @update
        }
        __syncthreads();
    }
    for (int i = 0; i < 16; ++i)
        o[row * WIDTH + column + i] = sum[i] / total;
}
@after
"""
UPDATE = """const float above = fmaxf(highest, score);
            const float rescale = expf(highest - above), weight = expf(score - above);
            total = total * rescale + weight;
            for (int i = 0; i < 16; ++i)
                sum[i] = sum[i] * rescale + weight * vTile[j][column + i];
            highest = above;"""


def kernel(*swaps, **parts):
    """The text of KERNEL with other parts, then with ``swaps`` of (old, new)."""
    known = {"helpers": "", "head": 'extern "C" __global__ void attentionOnline',
             "signature": SIGNATURE, "infinity": "__int_as_float(0xff800000)",
             "update": UPDATE, "after": ""}
    text = KERNEL
    for name, part in {**known, **parts}.items():
        text = text.replace(f"@{name}", part)
    for old, new in swaps:
        assert old in text, old
        text = text.replace(old, new)
    return text


ONE_THREAD_A_ROW = """
extern "C" __global__ void attentionOnline(const float* q, const float* k, const float* v, float* o,
                                           size_t n, float scale)
{
    if (threadIdx.x >= 64)
        return;
    const size_t row = blockIdx.x * (size_t)64 + threadIdx.x;
    float m = __int_as_float(0xff800000), l = 0.0f, sum[64] = {};
    for (size_t j = 0; j < n; ++j) {
        float s = 0.0f;
        for (int e = 0; e < 64; ++e)
            s = fmaf(q[row * 64 + e], k[j * 64 + e], s);
        s *= scale;
        if (s > m) {
            const float down = expf(m - s);
            l *= down;
            for (float& x : sum)
                x *= down;
            m = s;
        }
        const float w = expf(s - m);
        l += w;
        for (int e = 0; e < 64; ++e)
            sum[e] += w * v[j * 64 + e];
    }
    for (int e = 0; e < 64; ++e)
        o[row * 64 + e] = sum[e] / l;
}
"""

WARP_A_ROW = """
struct State {
    float m, l, a, b;
    __device__ State() : m(__int_as_float(0xff800000)), l(0), a(0), b(0) {}
    __device__ void take(float s, float va, float vb)
    {
        const float high = max(m, s), down = __expf(m - high), w = __expf(s - high);
        l = l * down + w;
        a = a * down + w * va;
        b = b * down + w * vb;
        m = high;
    }
};

extern "C" __global__ void __launch_bounds__(256)
attentionOnline(const float* q, const float* k, const float* v, float* o, size_t n, float scale)
{
    const unsigned lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (size_t row = blockIdx.x * 64 + warp; row < blockIdx.x * 64 + 64; row += 8) {
        const float2 mine = reinterpret_cast<const float2*>(q + row * 64)[lane];
        State state;
        for (size_t j = 0; j < n; ++j) {
            const float2 key = reinterpret_cast<const float2*>(k + j * 64)[lane];
            float s = mine.x * key.x + mine.y * key.y;
            for (int step = 16; step; step >>= 1)
                s += __shfl_xor_sync(~0u, s, step);
            state.take(s * scale, v[j * 64 + lane], v[j * 64 + lane + 32]);
        }
        o[row * 64 + lane] = state.a / state.l;
        o[row * 64 + lane + 32] = state.b / state.l;
    }
}
"""

WAYS = {
    "as it is": kernel(),
    "arrays as parameters": kernel(
        signature="const float q[], const float k[], const float v[], float o[], size_t n, "
                  "float scale"),
    "const everywhere": kernel(
        signature="float const* const q, const float* const k, float const* const v, "
                  "float* const o, size_t const n, const float scale"),
    "restrict in three forms": kernel(
        signature="const float* __restrict__ q, const float* __restrict k, const float* "
                  "__restrict__ const v, float* __restrict__ o, const size_t n, float scale"),
    "types by other names": kernel(
        helpers="typedef const float* In;\nusing Out = float*;\nusing Size = unsigned long;",
        signature="In q, In k, In v, Out o, Size n, float scale"),
    "a long": kernel(signature=SIGNATURE.replace("size_t n", "long n")),
    "an unsigned": kernel(signature=SIGNATURE.replace("size_t n", "unsigned n")),
    "the signature in a macro": kernel(
        helpers="#define READ const float* __restrict__\n#define WRITE float* __restrict__",
        signature="READ q, READ k, READ v, WRITE o, size_t n, float scale"),
    "the head in a macro": kernel(
        helpers='#define GLOBAL(name) extern "C" __global__ void name',
        head="GLOBAL(attentionOnline)"),
    "bounds from constants": kernel(
        head='extern "C" __global__ void __launch_bounds__((KEYS * WIDTH) / (2 * 4), 1) '
             "attentionOnline"),
    "words in another order": kernel(head='extern "C" void __global__ attentionOnline'),
    "linkage as a block": kernel(head='extern "C" {\n__global__ void attentionOnline',
                                 after="}"),
    "declared before": kernel(
        helpers=f'extern "C" __global__ void attentionOnline({SIGNATURE});'),
    "in a namespace": kernel(helpers="namespace attention {", after="}"),
    "a default argument": kernel(signature=SIGNATURE + " = 0.125f"),
    "a switched-off older one": kernel(
        helpers="#if 0\nextern \"C\" __global__ void attentionOnline(float* q, int n) { q[n]; }\n"
                "#endif"),
    "other kernels beside it": kernel(
        after="template <class T> __global__ void fill(T* x, T y) { x[threadIdx.x] = y; }\n"
              "__global__ void zero(float* x) { *x = 0; }\n"
              "__global__ void zero(int* x) { *x = 0; }\n"
              'extern "C" __global__ void nothing(void) {}'),
    "a template as a helper": kernel(
        ("fmaxf(highest, score)", "larger<float>(highest, score)"),
        helpers="template <class T> __device__ T larger(T a, T b) { return a < b ? b : a; }"),
    "overloads as helpers": kernel(
        ("expf(highest - above)", "power(highest, above)"),
        helpers="__device__ float power(float x) { return expf(x); }\n"
                "__device__ float power(float x, float y) { return power(x - y); }"),
    "a macro as a helper": kernel(
        ("fmaxf(highest, score)", "LARGER(highest, score)"),
        helpers="#define LARGER(a, b) ((a) > (b) ? (a) : (b))"),
    "a lambda": kernel(
        update="auto step = [&](float s) { const float up = max(highest, s);\n"
               "const float r = expf(highest - up); highest = up; total *= r;\n"
               "for (float& x : sum) x *= r; return expf(s - up); };\n"
               "const float w = step(score); total += w;\n"
               "for (int i = 0; i < 16; ++i) sum[i] += w * vTile[j][column + i];"),
    "a branch instead of a maximum": kernel(
        update="if (score > highest) { const float r = expf(highest - score);\n"
               "total *= r; for (int i = 0; i < 16; ++i) sum[i] *= r; highest = score; }\n"
               "const float w = expf(score - highest); total += w;\n"
               "for (int i = 0; i < 16; ++i) sum[i] += w * vTile[j][column + i];"),
    "powers of two": kernel(
        ("score *= scale;", "score *= scale * 1.44269504f;"), ("expf(", "exp2f(")),
    "loops of other kinds": kernel(
        ("for (int i = 0; i < 16; ++i) {\n        mine", "#pragma unroll\n    for (int i = 15; i "
         ">= 0; i--) {\n        mine"),
        ("for (size_t first = 0; first < n; first += KEYS) {",
         "size_t first = 0;\n    while (first != n) {"),
        ("        __syncthreads();\n    }\n    for", "        __syncthreads();\n        first += "
         "KEYS;\n    }\n    for")),
    "infinity as a constant": kernel(
        helpers="__device__ const float LOWEST = -1.0f / 0.0f;", infinity="LOWEST"),
    "dynamic indices in 2D": kernel(
        ("float* o, size_t", "float (*o)[64], size_t"),
        ("o[row * WIDTH + column + i]", "o[row][column + i]")),
    "vectors of four": kernel(
        ("mine[i] * kTile[j][column + i]", "at(four, i) * kTile[j][column + i]"),
        ("float highest", "float4 four[4];\n    for (int i = 0; i < 4; ++i)\n        four[i] = "
         "reinterpret_cast<const float4*>(q + row * WIDTH + column)[i];\n    float highest"),
        helpers="__device__ __forceinline__ float at(const float4* x, int i)\n{ const float4 y = "
                "x[i / 4]; return i % 4 < 2 ? (i % 2 ? y.y : y.x) : (i % 2 ? y.w : y.z); }"),
    "a byte-order mark": "\ufeff" + kernel(),
    "with Windows's line ends": kernel().replace("\n", "\r\n"),
    "one thread a row": ONE_THREAD_A_ROW,
    "one warp a row": WARP_A_ROW,
}


@pytest.fixture(scope="module")
def one_order(emulated):
    return HostBackend(orders=("ascending",))


@pytest.mark.parametrize("way", WAYS)
def test_a_right_kernel_passes_however_it_is_typed(one_order, way):
    for case in ("spike-late", "descending"):
        inputs = cases.make(case, 128)
        output, _ = paths.run(one_order, "online", inputs, from_text(WAYS[way], f"{way}.cu"))
        verdict = judged(inputs, output)
        assert verdict.passed and verdict.fraction <= MOST, verdict.explain(way, case, 128)


def test_there_are_as_many_ways_as_promised():
    assert len(set(WAYS.values())) == len(WAYS) >= 25
