"""The gate: its formula, and what it says of a result."""

import numpy as np
import pytest
from lesson.problem import cases
from lesson.problem.gate import EPS, judge, tolerance
from lesson.problem.problem import Problem
from lesson.problem.reference import attention


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


def test_judge_of_several_heads_names_the_row_in_its_head():
    p = Problem(5, 9, batch=2, heads=2, d=4)
    ref = np.ones(p.q_shape)
    got = ref.copy()
    got[1, 0, 3, 2] = 2.0
    verdict = judge(got, ref, p)
    assert not verdict.passed and (verdict.row, verdict.col, verdict.wrong) == (3, 2, 1)
    assert "5 queries, 9 keys, 2 batch entries, 2 heads, d = 4" in verdict.explain("x", "y", p)
    rows = [4, 1]
    assert judge(got[..., rows, :], ref[..., rows, :], p, rows=rows).passed
    got[1, 1, 1] = np.nan
    found = judge(got[..., rows, :], ref[..., rows, :], p, rows=rows)
    assert not found.passed and found.row == 1


def test_the_number_of_keys_sets_the_tolerance():
    assert tolerance(Problem(3, 4096, heads=2)) == tolerance(4096)
