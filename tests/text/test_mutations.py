"""The mutator: each operator changes what it says, and nothing else is touched."""

import re
from collections import Counter

import pytest
from lesson.launch import rungs
from lesson.text import mutations, source

KERNEL = """\
constexpr int D = 64;   // a comment with x + 1
static_assert(D % 16 == 0, "d must be a multiple of 16");
__device__ float half(float x)
{
#ifdef __CUDA_ARCH__
    return x / 2;
#else
    return x * 0.5f;
#endif
}
extern "C" __global__ void kernel(const float* a, float* b, size_t n)
{
    __shared__ float tile[D][D + 1];
    const int lane = threadIdx.x % 32;
    float m = __int_as_float(0xff800000), sum = 0.0f;
    for (size_t j = 0; j < n; j += D) {
        sum += tile[lane][j] * a[j + lane];
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, sum, 1));
        __syncthreads();
    }
    if (lane == 0 && n > 1)
        b[(size_t)lane] = n > 2 ? sum / m : 0.0f;
}
"""


@pytest.fixture
def found(monkeypatch):
    """{(operator, changed line)} of the mutations of KERNEL."""
    monkeypatch.setattr(source, "read", lambda name: KERNEL)
    return {(m.operator, m.changed) for m in mutations.mutations("kernel")}


def of(found, operator):
    return {line for its, line in found if its == operator}


@pytest.mark.parametrize("operator, lines", [
    ("arithmetic", {"sum += tile[lane][j] + a[j + lane];", "sum += tile[lane][j] * a[j - lane];",
                    "const int lane = threadIdx.x / 32;",
                    "b[(size_t)lane] = n > 2 ? sum * m : 0.0f;",
                    "__shared__ float tile[D][D - 1];"}),
    ("comparison", {"for (size_t j = 0; j <= n; j += D) {", "for (size_t j = 0; j >= n; j += D) {",
                    "if (lane != 0 && n > 1)", "if (lane == 0 && n >= 1)",
                    "if (lane == 0 && n <= 1)", "b[(size_t)lane] = n >= 2 ? sum / m : 0.0f;",
                    "b[(size_t)lane] = n <= 2 ? sum / m : 0.0f;"}),
    ("condition", {"if (lane == 0 || n > 1)", "if (!(lane == 0 && n > 1))", "if (true)",
                   "b[(size_t)lane] = sum / m;", "b[(size_t)lane] = 0.0f;"}),
    ("mask", {"m = fmaxf(m, __shfl_xor_sync(0xffffu, sum, 1));",
              "m = fmaxf(m, __shfl_xor_sync(0x7fffffffu, sum, 1));"}),
    ("barrier", {"__syncwarp();", "if (threadIdx.x < 32) __syncthreads();",
                 "if (threadIdx.x % 2 == 0) __syncthreads();"}),
    ("call", {"m = (m);", "m = (__shfl_xor_sync(0xffffffffu, sum, 1));", "m = fmaxf(m, sum);"}),
    ("function", {"m = fminf(m, __shfl_xor_sync(0xffffffffu, sum, 1));",
                  "m = fmaxf(m, __shfl_down_sync(0xffffffffu, sum, 1));"}),
    ("statement", {";"}),
    ("component", {"const int lane = threadIdx.y % 32;"}),
    ("type", {"for (unsigned char j = 0; j < n; j += D) {",
              "b[(int)lane] = n > 2 ? sum / m : 0.0f;", "__shared__ int tile[D][D + 1];",
              "int m = __int_as_float(0xff800000), sum = 0.0f;"}),
])
def test_an_operator_changes_what_it_says(found, operator, lines):
    assert of(found, operator) == lines


def test_more_of_what_is_changed(found):
    assert "float m = -3e38f, sum = 0.0f;" in of(found, "initial value")
    assert "float m, sum = 0.0f;" in of(found, "initial value")
    assert "float m = __int_as_float(0xff800000), sum;" in of(found, "initial value")
    assert {"constexpr int D = 65;", "constexpr int D = 63;"} <= of(found, "constant")
    assert "__shared__ float tile[D][D];" in of(found, "operand")
    assert "if (n > 1)" in of(found, "operand")
    assert {"sum += tile[j][lane] * a[j + lane];",
            "sum += tile[lane][j + 1] * a[j + lane];"} <= of(found, "index")
    assert "m += tile[lane][j] * a[j + lane];" in of(found, "variable")
    assert "sum = tile[lane][j] * a[j + lane];" in of(found, "assignment")
    assert "m = fmaxf(m, __shfl_xor_sync(sum, 0xffffffffu, 1));" in of(found, "arguments")
    assert "m = fmaxf(m, __shfl_xor_sync(0xffffffffu, sum, 1));" in of(found, "order")


def test_comments_asserts_heads_and_a_gpus_own_instructions_stay(found):
    lines = "\n".join(line for _, line in found)
    assert not any(words in lines for words in ("* 0.5f", "x / 2", "static_assert"))
    assert "const float* a" not in lines
    for m in mutations.mutations("kernel"):
        assert "// a comment with x + 1" in m.text and 'must be a multiple of 16"' in m.text
        assert "return x / 2;" in m.text and "return x * 0.5f;" in m.text


@pytest.mark.parametrize("name", source.names())
def test_every_change_of_a_kernel_is_another_text(name):
    ms = mutations.mutations(name)
    assert len({m.key for m in ms}) == len({m.text for m in ms}) == len(ms) > 200
    assert source.read(name) not in {m.text for m in ms}
    assert all(re.fullmatch(r"[\da-f]{12}", m.key) for m in ms)


def test_every_operator_is_used_on_the_two_paths():
    used = Counter(m.operator for name in ("materialised", "online")
                   for m in mutations.mutations(name))
    assert set(used) == {"arithmetic", "arguments", "assignment", "barrier", "call", "comparison",
                         "component", "condition", "constant", "function", "index",
                         "initial value", "mask", "operand", "order", "statement", "type",
                         "variable"}


def test_a_comment_may_change_and_a_mutant_keeps_its_key(monkeypatch):
    before = [m.key for m in mutations.mutations("online")]
    text = re.sub(r"//(?! (end )?snippet)[^\n]*", "// set right, at length", source.read("online"))
    monkeypatch.setattr(source, "read", lambda name: text)
    assert [m.key for m in mutations.mutations("online")] == before
    changed = text.replace("BN = 32", "BN = 16")
    monkeypatch.setattr(source, "read", lambda name: changed)
    assert not set(before) & {m.key for m in mutations.mutations("online")}


def test_a_rungs_own_mutations_lie_in_the_lines_that_it_changes():
    r = rungs.rung(12)
    own = mutations.own(r.name, rungs.before(r).name)
    assert 0 < len(own) < len(mutations.mutations(r.name)) / 4
    assert any("SLACK" in m.code for m in own)
    assert all("m[i] + SLACK" not in m.code or m in own for m in mutations.mutations(r.name))


def test_a_diff_shows_the_change_and_its_comment():
    m = next(m for m in mutations.mutations("online") if m.operator == "barrier")
    assert "-        __syncthreads();   // the tiles are read by all warps" in m.diff()
    assert "+        __syncwarp();   // the tiles" in m.diff()
