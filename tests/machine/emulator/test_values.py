"""Values that nobody gave: variables, shared memory, outputs, and lanes that take no part."""

import numpy as np
import pytest
from lesson.errors import LaunchError, RaceError, UndefinedError
from lesson.machine import emulator
from lesson.machine.emulator.backend import _UNSET
from lesson.machine.emulator.toolchain import nan_for_no_value
from support import missing
from support.emulated import fails, needs_compiler, program, run

pytestmark = needs_compiler
KEEPS_NAN = "clang" in str(emulator.available()[1]) or any(
    f"g++ {age}." in str(emulator.available()[1]) for age in range(12, 30))


# ---- variables without a first value ----------------------------------------------------------


@pytest.mark.parametrize("declared, used", [
    ("float sum;", "for (int i = 0; i < n; ++i) sum += a[i]; b[t] = sum;"),
    ("float sum;", "for (int i = 0; i < n; ++i) sum = sum * 0.0f + a[i]; b[t] = sum;"),
    ("float sum[8];", "for (int i = 0; i < n; ++i) sum[i % 8] += a[i]; b[t] = sum[t % 8];"),
    ("float sum[300];", "for (int i = 0; i < n; ++i) sum[i * 9] += a[i]; b[t] = sum[9 * t];"),
    ("double sum;", "for (int i = 0; i < n; ++i) sum += a[i]; b[t] = sum;"),
    ("struct { float x, y; } sum;", "sum.x = 0.0f; sum.y += a[t]; b[t] = sum.x + sum.y;"),
    ("", "b[t] = unset(a[t]);"),
], ids=["scalar", "times zero", "array", "large array", "double", "struct", "function"])
def test_a_variable_without_a_first_value_is_nan(backend, declared, used):
    if not KEEPS_NAN:
        missing("a compiler that marks variables without a value (g++ 12 or clang++)")
    before = "__device__ float unset(float x) { float y; return x * 0.0f + y; }"
    b, _ = run(backend, f"int t = threadIdx.x;\n{declared}\n{used}", before=before)
    assert np.isnan(b).all()


def test_the_stack_of_each_call_begins_without_what_the_last_one_left(backend):
    """Also where the compiler marks nothing: an address hides the variable from it."""
    before = """
    __device__ __noinline__ float first(float x) {
        float kept[16];
        for (int i = 0; i < 16; ++i) kept[i] = x + i;
        return kept[(int)x & 15];
    }
    """
    body = """float mine[16];
    float *all = mine + (n - 32);
    float seen = all[threadIdx.x & 15];
    b[blockIdx.x * 32 + threadIdx.x] = seen + 0.0f * first(a[threadIdx.x]);"""
    b, _ = run(backend, body, grid=(1,), before=before)
    assert np.isnan(b).all()


def test_the_value_in_assembly_is_the_one_that_is_replaced():
    text = ("\tmovl\t$-16843010, %eax\n\t.long\t-16843010\n\tmovabsq\t$-72340172838076674, %rax\n"
            "\tmovl\t$254, %esi\n\tmovq\t%rsp, %rdi\n\tcall\tmemset\n\tmovl\t$254, %esi\n\tret\n"
            "\t.long\t-168430101\n"
            "\t.byte\t-2\n\t.byte\t-2\n\t.byte\t1\n" + 8 * "\t.byte\t-2\n")
    assert nan_for_no_value(text) == (
        "\tmovl\t$-1, %eax\n\t.long\t-1\n\tmovabsq\t$-1, %rax\n"
        "\tmovl\t$255, %esi\n\tmovq\t%rsp, %rdi\n\tcall\tmemset\n\tmovl\t$254, %esi\n\tret\n"
        "\t.long\t-168430101\n"
        "\t.byte\t-2\n\t.byte\t-2\n\t.byte\t1\n" + 8 * "\t.byte\t-1\n")


# ---- shared memory ------------------------------------------------------------------------------


def test_shared_memory_has_no_value_in_any_block(backend):
    body = """__shared__ float tile[32];
    if (blockIdx.x == 0) tile[threadIdx.x] = 1.0f;
    __syncthreads();
    b[blockIdx.x * 32 + threadIdx.x] = fmaxf(0.0f, tile[threadIdx.x]);"""
    message = fails(backend, body, error=UndefinedError, n=64, grid=(2,))
    assert "reads element 0 of tile (counted from its start) before anything was written" in message
    assert "mine.cu, line 5:" in message and "block 1, thread 0" in message


@pytest.mark.parametrize("declared", ["__shared__ int done;", "__shared__ bool done;",
                                      "__shared__ int done[4];"])
def test_shared_memory_that_nobody_writes(backend, declared):
    read = "done[n & 3]" if "[" in declared else "done"
    message = fails(backend, f"{declared}\nb[threadIdx.x] = {read} ? 1.0f : a[threadIdx.x];",
                    error=UndefinedError)
    assert "of done" in message and "mine.cu, line 3:" in message


def test_a_part_of_a_word_that_nobody_wrote(backend):
    body = """__shared__ unsigned char flag[64];
    flag[2 * threadIdx.x] = 1;
    __syncthreads();
    b[threadIdx.x] = flag[n - 32 + 2 * threadIdx.x {}];"""
    assert (run(backend, body.format(""))[0] == 1).all()
    assert "of flag" in fails(backend, body.format("+ 1"), error=UndefinedError)


def test_dynamic_and_wide_reads_of_shared_memory(backend):
    body = """extern __shared__ float pool[];
    if (threadIdx.x != 7) pool[threadIdx.x] = 1.0f;
    __syncthreads();
    float4 four = reinterpret_cast<float4*>(pool)[threadIdx.x % 8];
    b[threadIdx.x] = four.w;"""
    message = fails(backend, body, error=UndefinedError, shared=128)
    assert "reads byte 28 of dynamic shared memory before" in message


def test_an_atomic_on_shared_memory_that_nobody_set(backend):
    body = "__shared__ unsigned count;\natomicAdd(&count, 1u);\n__syncthreads();\nb[0] = count;"
    assert "changes element 0 of count" in fails(backend, body, error=UndefinedError)


def test_a_missing_barrier_is_a_race_and_not_a_value_that_is_not_there(backend):
    body = """__shared__ float tile[64];
    tile[threadIdx.x] = a[threadIdx.x];
    b[threadIdx.x] = tile[63 - threadIdx.x];"""
    assert "has a race on" in fails(backend, body, error=RaceError, n=64, block=(64,))


def test_what_comes_of_a_value_that_is_not_there_is_told_with_it(backend):
    body = "__shared__ int start[32];\nb[threadIdx.x] = a[start[threadIdx.x]];"
    message = fails(backend, body)
    assert "reads a[-1], before its start" in message
    assert "before that, thread 0 of block 0 read element 0 of start" in message


# ---- outputs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("add, said", [
    ("b[threadIdx.x] += a[threadIdx.x];", "reads b[0] before it has written it"),
    ("atomicAdd(b + threadIdx.x, a[threadIdx.x]);", "adds to b[0] before it has written it"),
])
def test_an_output_that_is_added_to(backend, add, said):
    message = fails(backend, add, error=UndefinedError)
    assert said in message and "mine.cu, line 2:" in message
    assert "Set the element (=)" in message
    b, _ = run(backend, add, b=np.ones(32, np.float32))
    assert np.array_equal(b, 1 + np.arange(32))


def test_an_input_that_no_kernel_has_written(backend):
    a = backend.full((32,), np.nan)
    mine = program(backend, "b[threadIdx.x] = 2.0f * a[31 - threadIdx.x];")
    with pytest.raises(UndefinedError, match=r"reads a\[31\], which has no value"):
        mine.launch("mine", (1,), (32,), (a, backend.full((32,), np.nan), 32))


def test_a_value_that_is_not_there_may_be_read_and_left(backend):
    body = "float x = b[threadIdx.x];\nb[threadIdx.x] = n == 32 ? a[threadIdx.x] : x;"
    assert np.array_equal(run(backend, body)[0], np.arange(32))


def test_a_reader_s_own_nan_is_a_value(backend):
    body = "b[threadIdx.x] = a[threadIdx.x] + 1.0f;"
    b, _ = run(backend, body, a=np.full(32, np.nan, np.float32))
    assert np.isnan(b).all()


def test_filling_with_nan_marks_an_array_of_floats(backend):
    for dtype in (np.float32, np.float64):
        x = backend.full((4,), np.nan, dtype)
        assert np.isnan(x).all() and (x.view(np.uint32) == _UNSET).all()
        x.fill(1.0)
        assert (x == 1.0).all()
        x.fill(np.nan)
        assert (x.view(np.uint32) == _UNSET).all()


# ---- lanes that take no part --------------------------------------------------------------------

TREE = """float x = a[threadIdx.x];
if (threadIdx.x < 8) {{
    for (int offset = 4; offset > 0; offset /= 2) x {0};
    {1}
}}"""


@pytest.mark.parametrize("step", [
    "+= __shfl_down_sync(0xffu, x, offset)", "= fmaxf(x, __shfl_down_sync(0xffu, x, offset))",
    "= fminf(x, __shfl_down_sync(0xffu, x, offset))",
])
def test_a_value_from_outside_the_mask_may_be_received(backend, step):
    b, _ = run(backend, TREE.format(step, "if (threadIdx.x == 0) b[0] = x;"))
    assert b[0] == {"+": 28, "=": 7 if "fmaxf" in step else 0}[step[0]]


@pytest.mark.parametrize("step", [
    "+= __shfl_down_sync(0xffu, x, offset)", "= fmaxf(x, __shfl_down_sync(0xffu, x, offset))",
    "= fminf(x, __shfl_down_sync(0xffu, x, offset))",
    "+= (int)__shfl_down_sync(0xffu, (int)x, offset)",
    "+= (float)__shfl_down_sync(0xffu, (double)x, offset)",
])
def test_a_value_from_outside_the_mask_may_not_be_used(backend, step):
    message = fails(backend, TREE.format(step, "b[threadIdx.x] = x;"), error=UndefinedError)
    assert "lane 4 asked by __shfl_down_sync() for the value of lane 8, and the mask 0x000000ff " \
           "leaves that lane out" in message
    assert "mine.cu, line 4:" in message and "block 0, thread 4" in message
    assert "With one such value b[" in message


def test_a_lane_that_the_block_does_not_have(backend):
    message = fails(backend, "b[threadIdx.x] = fmaxf(0.0f, __shfl_sync(0xffffffffu, 1.0f, 25));",
                    error=UndefinedError, block=(20,))
    assert "for the value of lane 25, and its warp has 20 threads" in message


def test_a_lane_that_has_returned(backend):
    message = fails(backend, "if (threadIdx.x >= 16) return;\n"
                    "b[threadIdx.x] = __shfl_sync(0xffffffffu, 1.0f, 25);")
    assert "every lane in the mask must reach the same warp operation" in message
    assert "do not wait for lanes that have returned" in message


def test_an_index_from_outside_the_mask(backend):
    body = """int i = threadIdx.x < 4 ? __shfl_down_sync(0xfu, (int)threadIdx.x, 8) : 0;
    b[0] = a[i];"""
    message = fails(backend, body)
    assert "reads a[-1]" in message and "before that, lane 0 asked by __shfl_down_sync()" in message


def test_every_verdict_is_the_same_twice(backend):
    body = "float x;\nif (a[threadIdx.x] > 40.0f) x = 1.0f;\nb[threadIdx.x] = x;"
    first, again = (run(backend, body)[0] for _ in range(2))
    assert np.array_equal(first.view(np.uint32), again.view(np.uint32))


def test_the_limit_counts_the_time_that_a_block_runs(backend):
    """A kernel that never ends is given up, whatever else the machine does."""
    assert "ran for more than 1 s" in fails(backend, "while (n > 0) n |= 1;", error=LaunchError)
