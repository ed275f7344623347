"""Both ways with masks: right on what in-use kernels meet, and every classic mistake is caught."""

import re

import lesson
import numpy as np
import pytest
from lesson.errors import ArgumentError
from lesson.launch import masked
from lesson.measure.mutants import (
    FAR,
    MASKED,
    masked_case,
    masked_rejection,
    masked_verdicts,
)
from lesson.problem.gate import judge, judge_seen
from lesson.problem.problem import Problem
from lesson.problem.reference import attention
from support.chapters import cells

MOST = 0.35  # of the gate
PROBLEMS = (
    Problem(1, 1), Problem(1, 200), Problem(70, 1, causal=True), Problem(65, 63, d=8),
    Problem(63, 65, causal=True, d=40), Problem(33, 31, causal=True, d=32), Problem(113, 203),
    Problem(128, 217, causal=True), Problem(17, 16, heads=6, kv_heads=3, causal=True, d=96),
    Problem(31, 33, heads=6, kv_heads=1, d=128, causal=True), Problem(15, 47, d=120, scale=0.3),
    Problem(40, 90, batch=3, heads=2, key_lengths=(0, 65, 90)),
    Problem(50, 20, batch=2, heads=2, kv_heads=1, key_lengths=(7, 20), causal=True),
)


@pytest.mark.parametrize("p", PROBLEMS, ids=str)
def test_both_paths_are_attention(one_order, p):
    case = masked_case(p)
    found = dict(masked_verdicts(one_order, case))
    assert set(found) == {*masked.PATHS, "log-sum-exp"}
    for path, v in found.items():
        assert v.passed and v.fraction <= MOST, v.explain(path, "random", p)
    blind = np.broadcast_to(p.seen()[:, None] == 0, (p.batch, p.heads, p.queries))
    for path in masked.PATHS if blind.any() else ():
        o = masked.plan(one_order, path, case).run().reshape(*blind.shape, p.d)
        assert (o[blind] == 0).all()


@pytest.mark.parametrize("name", ("spike-late", "peaks", "very-negative", "large"))
def test_the_cases_that_tell_kernels_apart(one_order, name):
    p = Problem(70, 100, causal=True)
    for path, v in masked_verdicts(one_order, masked_case(p, name)):
        assert v.passed and v.fraction <= MOST, v.explain(path, name, p)


def test_no_result_depends_on_the_order_of_threads(emulated):
    p = Problem(33, 50, causal=True, batch=2, key_lengths=(9, 50))
    assert all(v.passed for _, v in masked_verdicts(emulated, masked_case(p)))


@pytest.mark.parametrize("mutant, caught, passes", MASKED, ids=[m.name for m, *_ in MASKED])
def test_a_classic_mistake_is_caught_and_a_first_test_lets_it_through(
        one_order, mutant, caught, passes):
    assert masked_rejection(one_order, mutant, caught, mutant.caught_by).rejected
    assert not masked_rejection(one_order, mutant, passes).rejected


def test_an_index_beyond_an_int_is_right(one_order):
    last = FAR - 1
    assert (FAR - 1) ** 2 < 2**31 < FAR**2
    assert masked.index(one_order, 0, FAR, last, FAR, last) == FAR * FAR - 1
    assert masked.index(one_order, 63, 5793, 5792, 5793, 5792) == 64 * 5793**2 - 1


def test_late_rows_of_a_causal_mask_have_a_gate_of_their_own():
    """An error that hides behind the first row's size is seen beside rows of its own size."""
    p = Problem(2048, 2048, causal=True, d=8)
    case = masked_case(p)
    ref = attention(case.q, case.k, case.v, problem=p)
    wrong = ref.o.copy()
    wrong[2000] += 0.7 * 1e-5 * np.abs(ref.o).max()
    assert judge(wrong, ref.o, p, ref.max_abs_score).passed
    assert judge_seen(ref.o, ref.o, p, ref.max_abs_score).fraction == 0
    found = judge_seen(wrong, ref.o, p, ref.max_abs_score)
    assert not found.passed and found.row == 2000
    wrong[2000] = np.nan
    assert not judge_seen(wrong, ref.o, p, ref.max_abs_score).passed
    assert not judge_seen(wrong[1:], ref.o, p).passed


def test_tiles_are_those_that_some_row_of_the_block_sees():
    assert masked.tiles(Problem(256, 256)) == (64, 64)
    assert masked.tiles(Problem(256, 256, causal=True)) == (36, 64)  # 8 + 7 + .. + 1
    assert masked.tiles(Problem(5, 2, causal=True)) == (1, 1)
    assert masked.tiles(Problem(1, 70, batch=2, key_lengths=(0, 33))) == (2, 6)


def test_the_verb_says_what_it_cannot_do():
    with pytest.raises(ArgumentError, match="choose one of gate"):
        lesson.masks("mask")
    with pytest.raises(ArgumentError, match="choose from batch"):
        lesson.masks(width=3)
    with pytest.raises(ArgumentError, match="d = 136"):
        lesson.masks(d=136)


def test_a_nan_reaches_the_rows_that_see_it():
    assert "fail" not in repr(lesson.masks("nan", 70, 64, causal=True, heads=2, kv_heads=1))


def test_every_change_of_the_chapters_fails_at_its_gate_and_the_file_passes(capsys):
    """Cells as a reader runs them: after a change the last gate fails, and passes without it."""
    from lesson.text import edits

    changed, verdicts, last = False, [], []
    try:
        for cell in (*cells("masks", "code")[1:], *cells("heads-and-decoding", "code")[1:]):
            if cell.startswith("%%kernel"):
                if last:
                    assert ("fail" in last[-1] or "index() gives -" in last[-1]) == changed, cell
                    verdicts.append(changed)
                magic, text = cell.split("\n", 1)
                edits.replace(magic.removeprefix("%%kernel "), text)
                changed, last = bool(edits.edited("masked")), []
            elif re.match(r'lesson\.masks\("(gate|nan|index)"', cell):
                last.append(repr(eval(cell, {"lesson": lesson})))
    finally:
        edits.reset()
    assert verdicts.count(True) == 7 and not edits.edited("masked")
