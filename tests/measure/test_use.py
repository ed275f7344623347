"""What a record holds of attention for any Problem: which are gated, and how they are timed."""

import pytest
from lesson.errors import GateError
from lesson.launch import attention
from lesson.measure import use
from lesson.problem.problem import Problem


def test_every_width_meets_heads_lengths_and_masks():
    groups = list(use.gated())
    every = [p for group in groups for p in group]
    assert len(groups) == 2 * len(use.LENGTHS) and len(set(every)) == len(every)
    assert {(p.queries, p.keys, p.causal) for p in every} == {
        (*pair, causal) for pair in use.LENGTHS for causal in (False, True)}
    assert {p.d for p in every} == set(use.WIDTHS)
    assert {(p.heads, p.kv_heads) for p in every} == set(use.HEADS)
    for d in use.WIDTHS:
        mine = [p for p in every if p.d == d]
        assert {(p.heads, p.kv_heads) for p in mine} == set(use.HEADS)
        assert any(p.key_lengths for p in mine)


def test_the_worst_of_each_group_is_kept(one_order):
    groups = [[Problem(5, 9), Problem(5, 9, d=8)], [Problem(1, 70, causal=True)]]
    count, worst = use.gates(one_order, lambda *_: None, groups)
    assert count == 3 and len(worst) == 2
    assert all(g.passed and 0 < g.fraction <= 0.35 for g in worst)


def test_a_kernel_outside_the_gate_ends_the_record(one_order, monkeypatch):
    planned = attention.planned

    def wrong(*arguments):
        made = planned(*arguments)
        run = made.run
        made.run = lambda: 1.01 * run()
        return made

    monkeypatch.setattr(attention, "planned", wrong)
    with pytest.raises(GateError, match="attention, random, 5 queries, 9 keys"):
        use.gates(one_order, lambda *_: None, [[Problem(5, 9)]])
