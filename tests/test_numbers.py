"""Cases, reference, gate, bytes and occupancy: arithmetic that runs anywhere."""

import numpy as np
import pytest
from lesson import cases, model, traffic
from lesson.errors import ArgumentError
from lesson.gate import EPS, judge, tolerance
from lesson.occupancy import H200, T4, KernelFacts, occupancy
from lesson.reference import attention


def scores(case):
    return case.q.astype(np.float64) @ case.k.astype(np.float64).T / 8.0


def running_rescale(case):
    """Per query row and tile: exp(maximum before - maximum after), 0 for the first tile."""
    tiles = scores(case).reshape(case.n, -1, cases.BN).max(axis=2)
    after = np.maximum.accumulate(tiles, axis=1)
    before = np.concatenate([np.full((case.n, 1), -np.inf), after[:, :-1]], axis=1)
    return np.exp(before - after)


@pytest.mark.parametrize("n", [64, 256, 1024])
@pytest.mark.parametrize("name", cases.NAMES)
def test_case_is_the_same_each_time_and_well_formed(name, n):
    one, two = cases.make(name, n), cases.make(name, n)
    for x, y in ((one.q, two.q), (one.k, two.k), (one.v, two.v)):
        assert x.shape == (n, 64) and x.dtype == np.float32 and x.flags.c_contiguous
        assert np.isfinite(x).all() and np.array_equal(x, y)
    assert np.ptp(one.v, axis=0).min() > 0.05, "V varies, or a constant would pass"


def test_periodic_is_the_recorded_formula():
    case = cases.make("periodic", 256)
    assert case.q[3, 5] == np.float32((31 * 3 + 7 * 5) % 97 - 48) * np.float32(0.021)
    assert case.v[9, 2] == np.float32((13 * 9 + 5 * 2) % 83 - 41) * np.float32(0.011)
    k = np.float32((17 * 253 + 11 * 4) % 89 - 44) * np.float32(0.019) * np.float32(3.0)
    assert case.k[253, 4] == k


@pytest.mark.parametrize("n, share", [(256, 0.25), (1024, 0.34), (4096, 0.28)])
def test_periodic_moves_few_maxima_in_the_last_tile(n, share):
    case = cases.make("periodic", n)
    moved = running_rescale(case)[:, -1] < 1.0
    assert moved.mean() == pytest.approx(share, abs=0.005)


@pytest.mark.parametrize("n", [256, 1024, 4096])
def test_spike_late_rescales_every_row_in_the_last_tile(n):
    assert running_rescale(cases.make("spike-late", n))[:, -1].max() < 1e-3


@pytest.mark.parametrize("n", [256, 1024, 4096])
def test_cases_do_what_they_claim(n):
    rescale = {name: running_rescale(cases.make(name, n)) for name in
               ("ascending", "descending", "spike-early", "spike-middle", "ties")}
    assert (rescale["ascending"][:, 1:] < 1.0).all()
    assert (rescale["descending"][:, 1:] == 1.0).all()
    assert (rescale["spike-early"][:, 1:] == 1.0).all()
    middle = (n // 2 + 1) // cases.BN
    assert (rescale["spike-middle"][:, middle] < 1e-3).all()
    assert (np.ptp(scores(cases.make("flat", n)), axis=1) == 0).all()
    assert (scores(cases.make("all-negative", n)) < -100).all()
    large = scores(cases.make("large", n))
    assert (large.max(axis=1) > 100).all() and (large.min(axis=1) < -100).all()
    ties = cases.make("ties", n)
    top = scores(ties).reshape(n, -1, cases.BN).max(axis=2)
    assert ((top == top.max(axis=1, keepdims=True)).sum(axis=1) >= 3).all()


@pytest.mark.parametrize("n", [0, -64, 65, 100, 2.5])
def test_an_n_that_the_tiles_do_not_divide_is_refused_with_the_number(n):
    with pytest.raises(ArgumentError, match=f"n = {n}.*multiple of 64"):
        cases.make("periodic", n)


def test_an_unknown_case_names_the_known_ones():
    with pytest.raises(ArgumentError, match="spike-late"):
        cases.make("spike", 256)


def test_reference_by_an_independent_formula():
    case = cases.make("random", 128)
    s = scores(case)
    p = np.exp(s - np.log(np.exp(s).sum(axis=1, keepdims=True)))  # log-sum-exp, not max
    ref = attention(case.q, case.k, case.v)
    np.testing.assert_allclose(ref.o, p @ case.v.astype(np.float64), rtol=1e-12, atol=1e-15)
    assert ref.max_abs_score == pytest.approx(np.abs(s).max())


def test_reference_of_sampled_rows_never_holds_n_by_n():
    case = cases.make("spike-late", 1024)
    rows = np.array([0, 7, 1023])
    sampled = attention(case.q, case.k, case.v, rows, block=2)
    whole = attention(case.q, case.k, case.v).o
    np.testing.assert_allclose(sampled.o, whole[rows], rtol=1e-12, atol=1e-15)


def test_tolerance_is_the_stated_formula_for_periodic():
    for n in (256, 1024, 4096):
        case = cases.make("periodic", n)
        worst = attention(case.q, case.k, case.v).max_abs_score
        assert tolerance(n, worst) == max(1e-5, 4 * EPS * n**0.5)
    assert tolerance(256, 120.0) == 8 * EPS * 120.0


def test_judge_accepts_the_reference_and_names_the_first_bad_element():
    ref = np.arange(1.0, 129.0).reshape(2, 64)
    assert judge(ref, ref, 256).passed
    bad = ref.copy()
    bad[1, 3] *= 1.01
    verdict = judge(bad, ref, 256)
    assert not verdict.passed and (verdict.row, verdict.col) == (1, 3)
    text = verdict.explain("online", "periodic", 256)
    for part in ("online", "periodic", "N = 256", "row 1", "column 3", "wanted 68", "68.68"):
        assert part in text


@pytest.mark.parametrize("value, word", [(np.nan, "NaN"), (np.inf, "overflowed")])
def test_judge_fails_what_is_not_finite(value, word):
    ref = np.ones((2, 64))
    got = ref.copy()
    got[1, 5] = value
    verdict = judge(got, ref, 256)
    assert not verdict.passed and (verdict.row, verdict.col) == (1, 5)
    assert word in verdict.reason


def test_judge_of_sampled_rows_names_the_query_row():
    ref = np.ones((2, 64))
    got = ref + [[0.0], [1.0]]
    assert judge(got, ref, 256, rows=[10, 99]).row == 99


def test_judge_refuses_another_shape():
    assert not judge(np.ones((2, 63)), np.ones((2, 64)), 256).passed


@pytest.mark.parametrize("name", cases.NAMES)
@pytest.mark.parametrize("path", ["online", "materialised"])
def test_numpy_models_pass_every_case(path, name):
    case = cases.make(name, 256)
    ref = attention(case.q, case.k, case.v)
    verdict = judge(getattr(model, path)(case.q, case.k, case.v), ref.o, 256, ref.max_abs_score)
    assert verdict.passed and verdict.fraction <= 0.35


def test_compulsory_bytes_and_the_ratio():
    found = traffic.compulsory(4096)
    assert found["online"] == 16 * 4096 * 64
    assert found["materialised"] == 16 * 4096 * 64 + 20 * 4096**2
    assert found["materialised"] / found["online"] == 81


def test_score_matrix_mib():
    sizes = {256: 0.25, 1024: 1 * 4, 4096: 64, 8192: 256, 32768: 4096, 131072: 65536,
             1048576: 4194304}
    assert {n: traffic.score_matrix_mib(n) for n in sizes} == sizes


@pytest.mark.parametrize("registers, shared, threads, gpu, blocks, limit", [
    (61, 32896, 256, T4, 1, "shared memory"),  # two need 65,792 bytes, 256 more than an SM has
    (61, 32768, 256, T4, 2, "shared memory"),
    (64, 0, 256, T4, 4, "threads and registers"),
    (65, 0, 256, T4, 3, "registers"),  # 65 registers round up to 2,304 a warp
    (32, 0, 32, T4, 16, "blocks"),
    (32, 0, 1024, T4, 1, "threads"),
    (40, 32896, 256, H200, 6, "registers and shared memory"),
])
def test_occupancy_rules(registers, shared, threads, gpu, blocks, limit):
    found = occupancy(KernelFacts("k", registers, shared, 0, 0), threads, gpu)
    assert (found.blocks, found.limit) == (blocks, limit)
    assert found.fraction == blocks * threads / gpu.threads
