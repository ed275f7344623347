"""The named inputs: well formed, repeatable, and what each claims of itself."""

import re

import numpy as np
import pytest
from lesson.errors import ArgumentError
from lesson.measure.records import GATE_N
from lesson.problem import cases
from lesson.problem.problem import Problem, of

ORDER = 1e-15  # what equal sums may differ by: a BLAS adds up its last columns in another order


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


GATED_N = (128, 192, 256, GATE_N, 384, 1024, 4096)  # what a reader, a chapter or a record gates


@pytest.mark.parametrize("n", GATED_N)
def test_spike_late_rescales_every_row_in_the_last_tile(n):
    assert running_rescale(cases.make("spike-late", n))[:, -1].max() < 1e-3


@pytest.mark.parametrize("n", GATED_N)
def test_cases_do_what_they_claim(n):
    rescale = {name: running_rescale(cases.make(name, n)) for name in
               ("ascending", "descending", "spike-early", "spike-middle", "ties")}
    assert (rescale["ascending"][:, 1:] < 1.0).all()
    assert (rescale["descending"][:, 1:] == 1.0).all()
    assert (rescale["spike-early"][:, 1:] == 1.0).all()
    middle = (n // 2 + 1) // cases.BN
    assert (rescale["spike-middle"][:, middle] < 1e-3).all()
    assert (np.ptp(scores(cases.make("flat", n)), axis=1) < ORDER).all()
    assert (scores(cases.make("all-negative", n)) < -100).all()
    large = scores(cases.make("large", n))
    assert (large.max(axis=1) > 100).all() and (large.min(axis=1) < -100).all()
    rises = running_rescale(cases.make("large", n))[:, 1:] < 1.0
    assert (rises.any(axis=1) & ~rises.all(axis=1)).all()  # up, and down, in every row
    assert (scores(cases.make("very-negative", n)) < -10_000).all()
    ties = cases.make("ties", n)
    top = scores(ties).reshape(n, -1, cases.BN).max(axis=2)
    assert ((top == top.max(axis=1, keepdims=True)).sum(axis=1) >= 3).all()


@pytest.mark.parametrize("n", GATED_N)
def test_a_peak_towers_over_its_tile_and_stands_at_every_place(n):
    s = scores(cases.make("peaks", n))
    own = s.argmax(axis=1)
    tiles = s.reshape(n, -1, cases.BN)
    tile = tiles[np.arange(n), own // cases.BN]
    others = np.delete(tile.ravel(), np.arange(n) * cases.BN + own % cases.BN).reshape(n, -1)
    assert (s.max(axis=1) - others.max(axis=1) == 100).all()  # exp(100) overflows float32
    assert set(own % cases.BN) == set(range(cases.BN))
    assert set(own // cases.BN) == set(range(n // cases.BN)) or n > 31 * cases.BN
    assert (np.abs(np.diff(s.max(axis=1))) == 200).all()  # no row can take its neighbour's maximum


@pytest.mark.parametrize("n", [0, -64, 2.5, "many", None])
def test_what_is_no_number_of_keys_is_refused(n):
    with pytest.raises(ArgumentError, match=re.escape(f"n = {n!r}: N must be a whole number")):
        cases.make("periodic", n)


def test_an_unknown_case_names_the_known_ones():
    with pytest.raises(ArgumentError, match="spike-late"):
        cases.make("spike", 256)


# --- any Problem ----------------------------------------------------------------------------------

PROBLEMS = (
    of(1), of(33), of(100), Problem(5, 70), Problem(70, 5, causal=True), Problem(64, 64, d=32),
    Problem(40, 72, d=128, scale=0.05), Problem(48, 80, batch=2, heads=4, kv_heads=2, d=16),
    Problem(33, 47, batch=2, key_lengths=(0, 47)),
)


def all_scores(case):
    """(batch, heads, queries, keys), float64."""
    p = case.problem
    q = case.q.astype(float).reshape(p.batch, p.heads, p.queries, p.d)
    k = case.k.astype(float).reshape(p.batch, p.kv_heads, p.keys, p.d)
    return p.scale * q @ np.repeat(k, p.heads // p.kv_heads, axis=1).swapaxes(-1, -2)


@pytest.mark.parametrize("p", PROBLEMS, ids=str)
@pytest.mark.parametrize("name", cases.NAMES)
def test_a_case_is_made_for_any_problem(name, p):
    one, two = cases.make(name, p), cases.make(name, p)
    assert one.problem == p and one.n == p.keys
    for x, y, shape in ((one.q, two.q, p.q_shape), (one.k, two.k, p.kv_shape),
                        (one.v, two.v, p.kv_shape)):
        assert x.shape == shape and x.dtype == np.float32 and x.flags.c_contiguous
        assert np.isfinite(x).all() and np.array_equal(x, y)


@pytest.mark.parametrize("p", [p for p in PROBLEMS if p.keys > cases.BN], ids=str)
def test_what_a_case_claims_holds_in_every_head(p):
    late = all_scores(cases.make("spike-late", p))
    last = (p.keys - 1) // cases.BN * cases.BN  # where the last tile begins, whole or not
    jump = late[..., last:].max(axis=-1) - late[..., :last].max(axis=-1)
    assert np.exp(-jump).max() < 1e-3
    early = all_scores(cases.make("spike-early", p))
    assert (early.argmax(axis=-1) == 1).all()
    assert np.ptp(all_scores(cases.make("flat", p)), axis=-1).max() < ORDER
    assert all_scores(cases.make("all-negative", p)).max() < -100
    assert all_scores(cases.make("very-negative", p)).max() < -10_000
    large = all_scores(cases.make("large", p))
    assert large.max(axis=-1).min() > 100 and large.min(axis=-1).max() < -100


def test_another_head_goes_on_where_the_first_ones_rows_end():
    whole, heads = cases.make("periodic", 192), cases.make("periodic", Problem(64, 64, heads=3))
    for x, y in ((whole.q, heads.q), (whole.v, heads.v)):
        assert np.array_equal(x.reshape(3, 64, 64), y)
    assert not np.array_equal(heads.k[0], heads.k[1])
    shared = cases.make("periodic", Problem(64, 64, heads=3, kv_heads=1))
    assert np.array_equal(shared.q, heads.q) and np.array_equal(shared.k, heads.k[:1])


@pytest.mark.parametrize("name", cases.NAMES)
def test_the_first_head_is_the_lessons_case(name):
    one, several = cases.make(name, 128), cases.make(name, Problem(128, 128, heads=2, kv_heads=2))
    if name != "random":  # which draws all heads at once
        assert all(np.array_equal(getattr(one, x), getattr(several, x)[0]) for x in "qkv")
