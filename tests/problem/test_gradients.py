"""The float64 gradients, and a gate that right float32 passes and named faults do not."""

import functools
import re

import numpy as np
import pytest
from lesson.errors import ArgumentError
from lesson.problem import cases
from lesson.problem.gate import EPS
from lesson.problem.gradients import KINDS, NAMES, gradient_case, gradients, judge, tolerance
from lesson.problem.problem import Problem, of
from lesson.problem.reference import attention

F32 = np.float32
TILE = slice(32, 64)  # the keys of the second tile


@functools.cache
def made(name, n, kind="normal"):
    """(Case, dO, Gradients)."""
    case, do = gradient_case(name, n, kind)
    return case, do, gradients(case.q, case.k, case.v, do, problem=case.problem)


def float32_gradients(case, do, fault=None):
    """{which: array} in float32 by the formulas, P from S and L as a kernel has it.

    ``fault`` names what is done wrong.
    """
    q, k, v, scale = case.q, case.k, case.v, F32(case.problem.scale)
    s = scale * (q @ k.T)
    top = s.max(axis=1, keepdims=True)
    w = np.exp(s - top)
    total = w.sum(axis=1, keepdims=True)
    o = w @ v / total
    lse = top + np.log(total)
    if fault == "L before the last tile":
        top = s[:, :-32].max(axis=1, keepdims=True)
        lse = top + np.log(np.exp(s[:, :-32] - top).sum(axis=1, keepdims=True))
    p = w if fault == "P not normalised" else np.exp(s - lse)
    dp = do @ v.T
    d = (do * o).sum(axis=1, keepdims=True)
    d = {"D left out": F32(0) * d, "D of the undivided output": d * total,
         "the sign of D": -d}.get(fault, d)
    ds = p * (dp - d)
    keep = np.ones(len(k), dtype=bool)
    if fault == "a tile missing in dQ":
        keep[TILE] = False
    found = {"dq": scale * (ds[:, keep] @ k[keep]), "dk": scale * (ds.T @ q), "dv": p.T @ do}
    if fault in ("a tile missing in dK", "a tile missing in dV"):
        found["dk" if fault.endswith("dK") else "dv"][TILE] = 0
    if fault in ("scale forgotten in dQ", "scale forgotten in dK"):
        found["dq" if fault.endswith("dQ") else "dk"] /= scale
    if fault == "a tile of queries missing":
        rows = np.r_[: TILE.start, TILE.stop : len(q)]
        found["dk"], found["dv"] = scale * (ds[rows].T @ q[rows]), p[rows].T @ do[rows]
    if fault == "dK and dV exchanged":
        found["dk"], found["dv"] = found["dv"], found["dk"]
    if fault == "the sign of dQ":
        found["dq"] = -found["dq"]
    return found


# --- the gradients --------------------------------------------------------------------------------

PROBLEMS = (
    of(64), Problem(5, 9, d=6, causal=True), Problem(9, 5, d=8, causal=True, scale=0.7),
    Problem(6, 6, heads=4, kv_heads=2, d=5), Problem(4, 7, batch=3, heads=2, kv_heads=1, d=6,
                                                     causal=True, key_lengths=(0, 4, 7)),
)


@pytest.mark.parametrize("p", PROBLEMS, ids=str)
@pytest.mark.parametrize("name", ["random", "periodic", "flat", "spike-late"])
def test_they_are_the_central_differences_of_attention(name, p):
    case, do, ref = made(name, p)
    rng, step = np.random.default_rng(1), 1e-5
    for x, which in zip("qkv", NAMES):
        want, terms = getattr(ref, which), getattr(ref, f"t_{which}")
        places = [tuple(rng.integers(want.shape)) for _ in range(8)]
        places.append(np.unravel_index(np.abs(want).argmax(), want.shape))
        for at in places:
            sums = []
            for change in (step, -step):
                inputs = {y: getattr(case, y).astype(float) for y in "qkv"}
                inputs[x][at] += change
                sums.append((do * attention(**inputs, problem=p).o).sum())
            difference = (sums[0] - sums[1]) / (2 * step)
            assert abs(difference - want[at]) < 1e-7 * terms.max(), (which, at)


@pytest.mark.parametrize("p", PROBLEMS, ids=str)
def test_output_lse_and_terms(p):
    case, do, ref = made("random", p)
    forward = attention(case.q, case.k, case.v, problem=p)
    np.testing.assert_allclose(ref.o, forward.o, rtol=1e-13, atol=1e-15)
    assert ref.max_abs_score == forward.max_abs_score
    group, seen = p.heads // p.kv_heads, p.seen()
    q, k, v, dO, lse, o = (x.reshape(p.batch, heads, *shape).astype(float) for x, heads, shape in (
        (case.q, p.heads, (p.queries, p.d)), (case.k, p.kv_heads, (p.keys, p.d)),
        (case.v, p.kv_heads, (p.keys, p.d)), (do, p.heads, (p.queries, p.d)),
        (ref.lse, p.heads, (p.queries,)), (ref.o, p.heads, (p.queries, p.d))))
    t_dq, t_dk, t_dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for e, h, i in np.ndindex(p.batch, p.heads, p.queries):  # one query at a time
        g, end = h // group, seen[e, i]
        s = [p.scale * float(q[e, h, i] @ k[e, g, j]) for j in range(end)]
        assert lse[e, h, i] == pytest.approx(np.logaddexp.reduce(s) if s else -np.inf, rel=1e-12)
        for j in range(end):
            weight = np.exp(s[j] - lse[e, h, i])
            b = weight * (abs(dO[e, h, i] @ v[e, g, j]) + abs(dO[e, h, i] @ o[e, h, i]))
            t_dv[e, g, j] += weight * abs(dO[e, h, i])
            t_dq[e, h, i] += p.scale * b * abs(k[e, g, j])
            t_dk[e, g, j] += p.scale * b * abs(q[e, h, i])
    for found, want in ((ref.t_dq, t_dq), (ref.t_dk, t_dk), (ref.t_dv, t_dv)):
        np.testing.assert_allclose(found.ravel(), want.ravel(), rtol=1e-11)


def test_blocks_of_any_size_give_the_same():
    p = Problem(70, 90, heads=2, kv_heads=1, causal=True)
    case, do, ref = made("random", p)
    for block in (1, 33):
        other = gradients(case.q, case.k, case.v, do, block, p)
        for name, value in vars(ref).items():
            np.testing.assert_allclose(getattr(other, name), value, rtol=1e-11, atol=1e-14)


def test_without_a_problem_the_shapes_are_one_heads_and_another_do_is_refused():
    case, do, ref = made("random", 64)
    assert np.array_equal(gradients(case.q, case.k, case.v, do).dk, ref.dk)
    with pytest.raises(ArgumentError, match=re.escape("do has shape (64, 63): needs the output's")):
        gradients(case.q, case.k, case.v, do[:, 1:])


# --- dO -------------------------------------------------------------------------------------------

def test_each_case_has_a_do_of_its_own_the_same_each_time():
    seen = set()
    for name in cases.NAMES:
        for kind in KINDS:
            case, do = gradient_case(name, 64, kind)
            assert np.array_equal(do, gradient_case(name, 64, kind)[1])
            assert np.array_equal(case.q, cases.make(name, 64).q)
            assert do.shape == case.q.shape and do.dtype == F32 and do.flags.c_contiguous
            seen.add(do.tobytes())
    assert len(seen) == 2 * len(cases.NAMES)
    normal = gradient_case("random", 256)[1]
    assert abs(normal.mean()) < 0.02 and abs(normal.std() - 1) < 0.02
    assert gradient_case("random", 256, "all-positive")[1].min() >= 0.5
    several = Problem(5, 9, heads=2, d=8)
    assert gradient_case("flat", several)[1].shape == several.q_shape
    with pytest.raises(ArgumentError, match="kind = 'positive': needs one of 'normal', 'all-po"):
        gradient_case("random", 64, "positive")


# --- the gate -------------------------------------------------------------------------------------

def test_tolerance_is_the_stated_formula():
    assert tolerance(64) == 4e-6
    assert tolerance(4096) == 2 * EPS * 64
    assert tolerance(256, 120.0) == 4 * EPS * 120
    assert tolerance(Problem(3, 4096)) == 2 * EPS * 64
    assert tolerance(Problem(1024, 256, heads=8, kv_heads=2)) == 2 * EPS * 64  # 4 heads' queries


@pytest.mark.parametrize("n", [64, 256])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", cases.NAMES)
def test_float32_gradients_pass_every_case(name, kind, n):
    case, do, ref = made(name, n, kind)
    for which, got in float32_gradients(case, do).items():
        assert got.dtype == F32
        verdict = judge(got, ref, which, n)
        assert verdict.passed and verdict.fraction <= 0.35, verdict.explain("NumPy", name, n)


# Fault, case, and the gradients that it spoils. The others are untouched by it and pass.
FAULTS = (
    ("D left out", "random", "dq dk"),
    ("D of the undivided output", "random", "dq dk"),
    ("the sign of D", "random", "dq dk"),
    ("the sign of dQ", "random", "dq"),
    ("scale forgotten in dQ", "random", "dq"),
    ("scale forgotten in dK", "random", "dk"),
    ("P not normalised", "random", "dq dk dv"),
    ("L before the last tile", "spike-late", "dq dk dv"),
    ("dK and dV exchanged", "random", "dk dv"),
    ("a tile missing in dQ", "random", "dq"),
    ("a tile missing in dK", "random", "dk"),
    ("a tile missing in dV", "random", "dv"),
    ("a tile of queries missing", "random", "dk dv"),
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault, name, spoilt", FAULTS, ids=[x[0] for x in FAULTS])
def test_a_fault_is_far_outside(fault, name, spoilt, kind):
    case, do, ref = made(name, 256, kind)
    for which, got in float32_gradients(case, do, fault).items():
        verdict = judge(got, ref, which, 256)
        text = verdict.explain(fault, name, 256)
        if which in spoilt.split():
            assert not verdict.passed and verdict.fraction > 1000, text
        else:
            assert verdict.passed, text


def test_a_verdict_names_gradient_case_n_and_the_worst_element():
    _, _, ref = made("random", 64)
    assert all(judge(getattr(ref, which), ref, which, 64).fraction == 0 for which in NAMES)
    got = ref.dk.copy()
    got[9, 2] += 1e-3
    got[40, 3] += 1.0
    verdict = judge(got, ref, "dk", 64)
    assert (verdict.row, verdict.col, verdict.worst, verdict.wrong) == (9, 2, (40, 3), 2)
    allowed = tolerance(64, ref.max_abs_score) * (ref.t_dk[40, 3] + ref.t_dk.max())
    assert verdict.fraction == pytest.approx(1.0 / allowed)
    text = verdict.explain("mine", "random", 64)
    for part in ("mine, dK, random, N = 64: ", "times the gate", "first at key row 9, column 2",
                 "worst at key row 40, column 3"):
        assert part in text
    assert "dQ, flat, N = 64: passed at 0.000 of the gate; worst at query row 0, column 0" in judge(
        ref.dq, ref, "dq", 64).explain("mine", "flat", 64)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("which", NAMES)
def test_what_is_not_finite_fails(which, value):
    _, _, ref = made("random", 64)
    got = getattr(ref, which).astype(F32)
    got[7, 5] = value
    verdict = judge(got, ref, which, 64)
    assert not verdict.passed and np.isnan(verdict.fraction) and verdict.worst == (7, 5)
    row = "query row 7" if which == "dq" else "key row 7"
    assert re.search(f"not finite.* at {row}, column 5", verdict.explain("mine", "random", 64))


def test_another_shape_fails_and_another_name_is_refused():
    _, _, ref = made("random", 64)
    verdict = judge(ref.dq[1:], ref, "dq", 64)
    assert not verdict.passed
    assert "dQ, random, N = 64: the result has shape" in verdict.explain("mine", "random", 64)
    with pytest.raises(ArgumentError, match="which = 'dQ': needs one of 'dq', 'dk', 'dv'"):
        judge(ref.dq, ref, "dQ", 64)


def test_no_gradient_at_all_passes_as_zeros_only():
    case, do, _ = made("random", 64)
    ref = gradients(case.q, case.k, case.v, 0 * do)
    assert judge(0 * ref.dq, ref, "dq", 64).fraction == 0
    assert not judge(ref.dq + 1e-30, ref, "dq", 64).passed
