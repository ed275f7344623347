"""The merge of two parts of a row's attention: its laws, and the kernel that does it."""


import numpy as np
import pytest
from lesson.launch import ladder, rungs
from lesson.problem import cases, merge
from lesson.problem.gate import judge
from lesson.problem.reference import attention
from lesson.text import source


def part(seed, rows=8, level=0.0):
    rng = np.random.default_rng(seed)
    m = (level + 20 * rng.standard_normal(rows)).astype(np.float32)
    return m, rng.uniform(1, 300, rows).astype(np.float32), \
        (100 * rng.standard_normal((rows, 64))).astype(np.float32)


def close(one, other):
    (m1, l1, o1), (m2, l2, o2) = one, other
    return np.array_equal(m1, m2) and np.allclose(l1, l2, rtol=3e-6) and np.allclose(
        o1, o2, rtol=3e-6, atol=3e-6 * np.abs(o1).max())


@pytest.mark.parametrize("level", (0.0, -1e4, 1e4))
def test_merging_is_commutative_and_associative_up_to_rounding(level):
    a, b, c = (part(seed, level=level) for seed in (1, 2, 3))
    assert all(np.array_equal(x, y) for x, y in zip(merge.merge(a, b), merge.merge(b, a)))
    assert close(merge.merge(merge.merge(a, b), c), merge.merge(a, merge.merge(b, c)))


def test_a_contracted_merge_rounds_one_product_and_differs_in_the_last_bit():
    a, b = part(1, 2000, 0.0), part(2, 2000, 0.0)
    a, b = ((x[0] / 20, x[1], x[2]) for x in (a, b))  # maxima a few units apart
    (m, l, o), (_, other, _) = (merge.merge(x, y, contracted=True) for x, y in ((a, b), (b, a)))
    apart = np.abs(l.astype(float) - other)
    assert 100 < np.count_nonzero(apart) < 1000 and (apart <= np.spacing(l)).all()
    w1, w2 = (np.exp(x - m).astype(np.float32) for x in (a[0], b[0]))
    exact = a[1].astype(np.longdouble) * w1 + b[1] * w2  # the second product a float32, rounded
    assert np.array_equal(l, exact.astype(np.float32))
    assert close((m, l, o), merge.merge(a, b))


def test_no_keys_change_nothing():
    a = part(4)
    none = np.full(8, -np.inf, np.float32), np.zeros(8, np.float32), np.zeros((8, 64), np.float32)
    for merged in (merge.merge(a, none), merge.merge(none, a)):
        assert all(np.array_equal(x, y) for x, y in zip(merged, a))
    empty = merge.merge(none, none)
    assert np.all(np.isneginf(empty[0])) and not empty[1].any() and not empty[2].any()


def test_parts_of_one_key_are_the_online_recurrence():
    case = cases.make("random", 64)
    scores = (case.q @ case.k.T / np.float32(8)).astype(np.float32)
    found = None
    for j in range(64):
        key = scores[:, j], np.ones(64, np.float32), np.tile(case.v[j], (64, 1))
        found = key if found is None else merge.merge(found, key)
    ref = attention(case.q, case.k, case.v)
    output = found[2] / found[1][:, None]
    assert judge(output, ref.o, 64, ref.max_abs_score).passed


@pytest.mark.parametrize("unit", (1.0, rungs.LOG2E))
@pytest.mark.parametrize("splits", (1, 2, 7))
def test_the_merge_kernel_does_the_algebra(emulated, splits, unit):
    heads, n = 2, 64
    parts = [part(10 * s, heads * n) for s in range(splits)]
    whole = parts[0]
    for other in parts[1:]:
        natural = [(p[0] * np.float32(unit / rungs.LOG2E), p[1], p[2]) for p in (whole, other)]
        m, l, o = merge.merge(*natural)
        whole = m * np.float32(rungs.LOG2E / unit), l, o
    workspace = np.empty(heads * splits * n * 66, np.float32)
    o = workspace[: heads * splits * n * 64].reshape(heads, splits, n, 64)
    ml = workspace[heads * splits * n * 64:].reshape(heads, splits, n, 2)
    for s, (m, l, out) in enumerate(parts):
        o[:, s], ml[:, s, :, 0], ml[:, s, :, 1] = (
            out.reshape(heads, n, 64), m.reshape(heads, n), l.reshape(heads, n))
    result = emulated.full((heads, n, 64), np.nan)
    emulated.compile(source.load(rungs.MERGE)).launch(
        "mergeSplits", (n // ladder.MERGE_ROWS, heads), (ladder.MERGE_THREADS,),
        (emulated.put(workspace), result, n, splits, unit))
    want = (whole[2] / whole[1][:, None]).reshape(heads, n, 64)
    assert np.allclose(emulated.get(result), want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
