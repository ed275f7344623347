"""The online-maximum widget without a browser: its two arithmetics agree, and its traits behave."""

import json
import subprocess
import sys

import numpy as np
import pytest
from lesson import ArgumentError
from lesson.online_max import CASES, FAULTS, case_scores, key_values, walk
from lesson.problem.gate import tolerance
from support import ROOT, TESTS
from support.online_max import as_float32, node, ulps

SEEDS = (0, 1, 7, 9999)


def rows():
    """Every case, fault and tile width, and rows that a reader might drag together."""
    for fault in FAULTS:
        for tile in (1, 2, 4, 8, 16, 32):
            for case in CASES:
                yield case_scores(case, 7), tile, fault
        rng = np.random.default_rng(5)
        for size in (3, 40, 120):
            yield np.float32(size * rng.standard_normal(32)), 4, fault
        yield np.float32(3 * rng.standard_normal(45)), 9, fault


@pytest.fixture(scope="module")
def javascript():
    """What core.mjs computes for ``rows()``."""
    from lesson.online_max.widget import GATE

    asked = {"gate": GATE, "seeds": SEEDS,
             "rows": [{"scores": s.tolist(), "tile": t, "fault": f} for s, t, f in rows()]}
    done = subprocess.run([node(), str(TESTS / "online_max/walks.mjs")], input=json.dumps(asked),
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_module_by_itself():
    done = subprocess.run([node(), "--test", str(TESTS / "online_max/core.test.mjs")],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_same_cases_faults_and_values(javascript):
    assert javascript["faults"] == list(FAULTS)
    assert list(javascript["cases"]) == [f"{c} {s}" for c in CASES for s in SEEDS]
    for name, scores in javascript["cases"].items():
        case, seed = name.split()
        assert np.array_equal(as_float32(scores), case_scores(case, int(seed))), name
    assert np.array_equal(as_float32(javascript["values"]), key_values(64))


def test_walks_agree(javascript):
    """Bitwise for the maxima, which only compare; within 2 ulp for all that an exp went into.

    IEEE 754 fixes every operation of the walk but exp. Both sides take exp in float64 and round
    once, so that a difference needs a value within 1e-8 of a rounding edge.
    """
    exact = 0
    for (scores, tile, fault), js in zip(rows(), javascript["walks"], strict=True):
        ours = walk(scores, tile=tile, fault=fault)
        where = f"{fault}, tile {tile}"
        for name, theirs in (("m", "m"), ("tile_max", "tileMax")):
            a, b = getattr(ours, name), as_float32(js[theirs])
            assert a.tobytes() == (b + np.float32(0)).tobytes() or np.array_equal(a, b), where
        for name in ("w", "rescale", "total", "l", "o", "answer"):
            apart = ulps(getattr(ours, name), as_float32(js[name]))
            assert apart.max() <= 2, f"{where}: {name}"
            exact += apart.max() == 0
        np.testing.assert_allclose(js["reference"], ours.reference, rtol=1e-13, atol=1e-15)
        verdict = js["verdict"]
        assert verdict["passed"] == ours.verdict.passed, where
        assert verdict["rtol"] == ours.verdict.rtol
        if np.isfinite(ours.verdict.fraction):
            slack = 2 * np.spacing(np.abs(ours.answer)).max() / ours.verdict.atol
            assert abs(verdict["fraction"] - ours.verdict.fraction) <= slack
    assert exact > 0.99 * 6 * len(javascript["walks"])  # 2 ulp is for the edge, not the rule


def test_gate_constants_are_the_lesson_s(javascript):
    for (scores, _, _), js in zip(rows(), javascript["walks"], strict=True):
        assert js["verdict"]["rtol"] == tolerance(len(scores), float(np.abs(scores).max()))


@pytest.mark.parametrize("case", CASES)
def test_correct_walk_passes_every_case(case):
    for tile in (1, 2, 4, 8, 16, 32):
        verdict = walk(case_scores(case, 3), tile=tile).verdict
        assert verdict.passed and verdict.fraction < 0.35


@pytest.mark.parametrize("fault", FAULTS[1:])
def test_every_fault_is_caught_by_a_case(fault):
    caught = [case for case in CASES if not walk(case_scores(case), fault=fault).verdict.passed]
    assert caught, fault
    assert len(caught) < len(CASES), "a fault that every case catches teaches nothing about cases"


def test_spike_late_moves_the_maximum_in_the_last_tile():
    for tile in (1, 2, 4, 8, 16):
        state = walk(case_scores("spike-late"), tile=tile)
        assert state.m[-1] > state.m[-2] and state.rescale[-1] < 1e-3


def test_ascending_moves_at_every_tile_and_descending_at_none():
    assert (np.diff(walk(case_scores("ascending")).m[1:]) > 0).all()
    assert (np.diff(walk(case_scores("descending")).m[1:]) == 0).all()


def test_overflow_is_shown_as_what_it_is():
    state = walk(case_scores("large"), fault="no-maximum")
    assert np.isposinf(state.w).any() and np.isposinf(state.l[-1]) and np.isnan(state.answer).all()


@pytest.mark.parametrize("arguments, words", [
    ({"scores": [1.0, np.nan]}, "key 1 is not a finite float32"),
    ({"scores": [1.0, 1e39]}, "key 1 is not a finite float32"),
    ({"scores": []}, "one number per key"),
    ({"scores": [[1.0]]}, "one number per key"),
    ({"scores": "abc"}, "not numbers"),
    ({"scores": [1.0] * 32, "tile": 5}, "one of 1, 2, 4, 8, 16, 32"),
    ({"scores": [1.0] * 32, "tile": 0}, "must divide the 32 keys"),
    ({"scores": [1.0] * 32, "tile": 4.0}, "must divide the 32 keys"),
    ({"scores": [1.0] * 32, "fault": "forget"}, "no such fault"),
    ({"scores": [1.0] * 32, "values": np.zeros((32, 2))}, r"need \(32, 3\)"),
])
def test_bad_arguments_are_refused(arguments, words):
    with pytest.raises(ArgumentError, match=words):
        walk(**{"tile": 1, **arguments})


def test_the_walk_needs_numpy_alone():
    code = ("import sys; sys.modules.update(anywidget=None, ipywidgets=None, traitlets=None)\n"
            "from lesson.online_max import walk, case_scores\n"
            "print(walk(case_scores('flat')).verdict.passed)")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "book", capture_output=True,
                          text=True, check=False)
    assert done.stdout == "True\n", done.stderr
