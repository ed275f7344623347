"""How a source becomes a program: names of its own, and memory that a launch gives it."""

import numpy as np
import pytest
from lesson.errors import LaunchError
from lesson.text.source import from_text

COPY = "(const float* x, float* y, int n) { y[threadIdx.x] = x[threadIdx.x] + n; }\n"


def run(backend, text, name="k", shared=0):
    """What a kernel k(x, y, n) makes of 0, 1, ..., 31 and n = 1."""
    x, y = backend.put(np.arange(32, dtype=np.float32)), backend.full((32,), np.nan)
    backend.compile(from_text(text, "mine.cu")).launch(name, (1,), (32,), (x, y, 1), shared)
    return backend.get(y)


@pytest.mark.parametrize("name", [
    "write", "index", "mmap", "send", "time", "setitimer", "call0", "kernel0", "lane", "print",
    "shuffle", "kernels", "scalars", "access", "barrier", "run_block"])
def test_a_kernel_may_have_a_name_of_the_emulator_or_of_the_c_library(emulated, name):
    assert np.array_equal(run(emulated, f'extern "C" __global__ void {name}{COPY}', name),
                          np.arange(32) + 1)


def test_so_may_functions_and_variables_of_a_kernel_s_file(emulated):
    text = f"""__device__ float environ = 1.0f, stdout = 2.0f;
        extern "C" __device__ int fflush(int n) {{ return n; }}
        __device__ float write(float x) {{ return x; }}
        __device__ float sum() {{ return environ + stdout; }}
        extern "C" __global__ void k{COPY.replace("+ n", "+ write(fflush(n) + sum())")}"""
    assert np.array_equal(run(emulated, text), np.arange(32) + 4)


@pytest.mark.parametrize("declared", [
    "extern __shared__ float pool[];", "extern float __shared__ pool[];",
    "__shared__ extern float pool[];", "extern __shared__ __align__(16) float pool[];",
    "DYNAMIC(pool)"])
@pytest.mark.parametrize("inside", [True, False])
def test_dynamic_shared_memory_in_every_order(emulated, declared, inside):
    before, body = ("", declared) if inside else (declared, "")
    text = f"""#define DYNAMIC(name) extern __shared__ float name[];
        {before}
        extern "C" __global__ void k(const float* x, float* y, int n) {{
            {body}
            pool[threadIdx.x] = x[31 - threadIdx.x];
            __syncthreads();
            y[threadIdx.x] = pool[31 - threadIdx.x] + n;
        }}"""
    assert np.array_equal(run(emulated, text, shared=128), np.arange(32) + 1)


def test_names_of_dynamic_arrays_are_one_memory(emulated):
    text = """namespace a { extern __shared__ int words[]; }
        extern __shared__ float floats[];
        extern "C" __global__ void k(const float* x, float* y, int n) {
            floats[threadIdx.x] = x[threadIdx.x];
            __syncthreads();
            y[threadIdx.x] = __int_as_float(a::words[threadIdx.x]) + n;
        }"""
    assert np.array_equal(run(emulated, text, shared=128), np.arange(32) + 1)


def test_dynamic_shared_memory_that_no_launch_gives(emulated):
    text = """extern "C" __global__ void k(const float* x, float* y, int n) {
        extern __shared__ float pool[];
        pool[threadIdx.x] = x[threadIdx.x];
        y[threadIdx.x] = pool[threadIdx.x];
    }"""
    with pytest.raises(LaunchError) as error:
        run(emulated, text)
    assert "writes dynamic shared memory (extern __shared__), and this launch has none" \
        in str(error.value)
    assert "mine.cu, line 3:" in str(error.value) and "__shared__ float name[SIZE]" in str(
        error.value)


def test_shared_arrays_of_a_file_are_counted_and_named(emulated):
    text = """__shared__ float tile[64];
        extern "C" __global__ void k(const float* x, float* y, int n) {
            __shared__ double part[4];
            tile[threadIdx.x] = x[threadIdx.x] + n;
            if (threadIdx.x == 0) part[n] = 1.0;
            __syncthreads();
            y[threadIdx.x] = tile[31 - threadIdx.x] + part[n];
        }"""
    program = emulated.compile(from_text(text, "mine.cu"))
    assert program.static_shared_bytes("k") == 64 * 4 + 4 * 8
    assert np.array_equal(run(emulated, text), 33 - np.arange(32))
    with pytest.raises(LaunchError, match="of part"):
        run(emulated, text.replace("__syncthreads();", ""))


def test_a_template_cannot_be_launched(emulated):
    with pytest.raises(LaunchError) as error:
        run(emulated, f"template <int W> __global__ void k{COPY}")
    assert "k is a template, and no launch finds a template by its name" in str(error.value)
    assert 'call that from extern "C" __global__ void k(...)' in str(error.value)


def test_kernels_of_the_source_that_no_launch_could_call_are_no_obstacle(emulated):
    text = f"""struct Pair {{ float a, b; }};
        __global__ void mangled(float* x) {{ *x = 1; }}
        extern "C" __global__ void whole(Pair p, float4 v, float* y) {{ y[0] = p.a + v.x; }}
        extern "C" __global__ void k{COPY}"""
    assert np.array_equal(run(emulated, text), np.arange(32) + 1)
    with pytest.raises(LaunchError, match='mangled has no C linkage: write extern "C"'):
        emulated.compile(from_text(text, "mine.cu")).launch("mangled", (1,), (1,), (None,))
