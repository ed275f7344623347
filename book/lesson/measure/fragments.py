"""Products of tensor cores, bit for bit: what a GPU computes and what the host form computes.

A rung's helper ``mma`` is one instruction on a GPU and a few lines of C++ in the emulator. Both get
the same random fragments here. That they agree in every bit is what makes an emulated gate of these
rungs worth something: how a tensor core rounds is not in a manual.
"""

import numpy as np

from ..launch.rungs import rung
from ..text import source
from .records import Agreement, Rate

KINDS = ("alike", "no sum yet", "far apart", "any bits")
_KERNEL = """
// One product for each block of 32 threads.
extern "C" __global__ void oneProduct(const {type}* a, const {type}* b, const float* c, float* d)
{{
    const size_t lane = blockIdx.x * 32 + threadIdx.x;
    float sum[4];
    for (int i = 0; i < 4; ++i)
        sum[i] = c[lane * 4 + i];
    const {type} left[4] = {{a[lane * 4], a[lane * 4 + 1], a[lane * 4 + 2], a[lane * 4 + 3]}};
    const {type} right[2] = {{b[lane * 2], b[lane * 2 + 1]}};
    mma(sum, left, right);
    for (int i = 0; i < 4; ++i)
        d[lane * 4 + i] = sum[i];
}}

// Nothing but products: 8 sums a warp, all of the same operands.
extern "C" __global__ void manyProducts(const {type}* a, const {type}* b, float* d, int times)
{{
    const int lane = threadIdx.x % 32;
    const {type} left[4] = {{a[lane * 4], a[lane * 4 + 1], a[lane * 4 + 2], a[lane * 4 + 3]}};
    const {type} right[2] = {{b[lane * 2], b[lane * 2 + 1]}};
    float sum[8][4] = {{}}, total = 0.0f;
    #pragma unroll 1
    for (int i = 0; i < times; ++i)
        #pragma unroll
        for (int j = 0; j < 8; ++j)
            mma(sum[j], left, right);
    for (int j = 0; j < 8; ++j)
        for (int x = 0; x < 4; ++x)
            total += sum[j][x];
    d[(size_t)blockIdx.x * blockDim.x + threadIdx.x] = total;
}}
"""
BLOCKS, THREADS, SUMS = 4, 128, 8  # of manyProducts: blocks an SM, threads of each, sums of a warp


def places(which):
    """Who holds what of a rung's product, by the PTX manual: ``{"a" | "b" | "c": (row, column)}``.

    row, column: int arrays (32 lanes, numbers of a lane); the left operand a has 16 rows, the right
    one b 8 columns. The tests hold the host form of ``mma`` to it.
    """
    pairs = 2 if rung(which).halves else 1  # numbers of a word

    def each(numbers):  # lane / 4, lane % 4, word and place in the word of every number
        lane, at = np.arange(32)[:, None], np.arange(numbers)[None, :]
        return lane // 4, lane % 4, at // pairs, at % pairs

    group, t, word, x = each(4 * pairs)
    a = group + word % 2 * 8, word // 2 * 4 * pairs + t * pairs + x
    group, t, word, x = each(2 * pairs)
    b = word * 4 * pairs + t * pairs + x, group + 0 * word
    group, t = np.arange(32)[:, None] // 4, np.arange(32)[:, None] % 4
    i = np.arange(4)[None, :]
    return {"a": a, "b": b, "c": (group + i // 2 * 8, 2 * t + i % 2)}


def fragments(which, kind, count=64, seed=2026):
    """Random a, b and c of ``count`` products of a rung, lane by lane: arrays of its type.

    ``kind``: 'alike' (normal), 'no sum yet' (c = 0), 'far apart' (sizes from 2^-10 to 2^10), 'any
    bits' (every finite FP16 number; float32 numbers from 2^-40 to 2^40).
    """
    halves = rung(which).halves
    rng = np.random.default_rng([seed, KINDS.index(kind), halves])
    spread = 10 if kind == "far apart" else 0

    def numbers(size):
        if kind != "any bits":
            x = rng.standard_normal(size) * np.exp2(rng.uniform(-spread, spread, size))
            return x.astype(np.float16 if halves else np.float32)
        if halves:
            bits = rng.integers(0, 2**16, size, dtype=np.uint16)
            bits[bits & 0x7C00 == 0x7C00] &= 0xBFFF  # neither infinity nor NaN
            return bits.view(np.float16)
        return (rng.uniform(1, 2, size) * rng.choice((-1.0, 1.0), size)
                * np.exp2(rng.integers(-40, 41, size))).astype(np.float32)

    dtype, each = (np.uint32, 2) if halves else (np.float32, 1)
    a, b = (numbers(count * 32 * words * each).view(dtype) for words in (4, 2))
    c = rng.standard_normal(count * 32 * 4) * np.exp2(rng.uniform(-20, 20, count * 32 * 4))
    return a, b, (0.0 * c if kind == "no sum yet" else c).astype(np.float32)


def program(backend, which):
    """A rung's file with the kernels of this module behind it, compiled."""
    r = rung(which)
    text = source.read(r.name) + _KERNEL.format(type="unsigned" if r.halves else "float")
    return backend.compile(source.from_text(text, f"{r.name}, products alone.cu"))


def products(backend, which, a, b, c):
    """c + a b by a rung's ``mma``: lane by lane, float32."""
    d = backend.full(c.shape, np.nan)
    program(backend, which).launch("oneProduct", (len(c) // 128,), (32,),
                                   (*map(backend.put, (a, b, c)), d))
    return backend.get(d)


def rate(backend, which, sms, times=2000):
    """The Rate of a rung's ``mma`` on a GPU with this many SMs: every warp does nothing else."""
    r = rung(which)
    a, b, _ = (backend.put(x) for x in fragments(which, "alike", 1))
    d = backend.full((BLOCKS * sms * THREADS,), np.nan)
    compiled, grid = program(backend, which), (BLOCKS * sms,)
    t = backend.time(lambda: compiled.enqueue("manyProducts", grid, (THREADS,), (a, b, d, times)),
                     f"products of rung {r.number}", spoil=lambda: d.fill(np.nan))
    operations = 2 * 16 * 8 * (16 if r.halves else 8)
    return Rate(r.number, BLOCKS * sms * (THREADS // 32) * SUMS * times * operations
                / (t.median * 1e9))


def agreements(one, other, which, count=64):
    """An Agreement of two backends, such as a GPU and the emulator, for each kind of fragments."""
    found = []
    for kind in KINDS:
        inputs = fragments(which, kind, count)
        results = [products(backend, which, *inputs).view(np.uint32) for backend in (one, other)]
        found.append(Agreement(rung(which).number, kind, results[0].size,
                               int((results[0] != results[1]).sum())))
    return tuple(found)
