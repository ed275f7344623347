"""The comparison of tensor cores: what passes and what fails, in one interleaved run."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from lesson.errors import GateError
from lesson.launch import rungs
from lesson.measure import bench, evidence, tensor
from lesson.measure.callers import Inputs
from lesson.problem.problem import of
from support.evidence import sample

INPUTS = Inputs(of(64))
RIGHT = INPUTS.ref.o.astype(np.float32)
NARROW = RIGHT.astype(np.float16).astype(np.float32)
ONE, THREE = rungs.TENSOR[:2]


class Call:
    """A Caller of a fixed answer, and what was done with it."""

    def __init__(self, what, answer, log, rung=None):
        self.o, self.answer, self.log, self.what = None, answer, log, what
        self.caller = tensor.Caller(what, self.run, lambda: self.o, self.spoil, rung)

    def spoil(self):
        self.o = np.full_like(self.answer, np.nan)

    def run(self):
        self.log.append(self.what)
        self.o = self.answer
        return len(self.log) / 1000


def group(*calls):
    top = SimpleNamespace(rounds_ms=[], measure=lambda: 22.0)
    backend = SimpleNamespace(synchronize=lambda what: None)
    return tensor.time_group(backend, INPUTS, [c.caller for c in calls], top), top


def test_callers_take_turns_and_what_fails_is_set_apart():
    log = []
    (good, bad), top = group(Call("right", RIGHT, log), Call("narrow", NARROW, log),
                             Call(ONE.label, NARROW, log, ONE))
    assert log == 10 * ["right", "narrow", ONE.label]
    assert [row.what for row in good] == ["right"]
    assert [(row.what, row.rung) for row in bad] == [("narrow", 0), (ONE.label, ONE.number)]
    assert good[0].fraction <= 1 < bad[0].fraction
    assert (good[0].low_ms, good[0].median_ms, good[0].high_ms) == (0.004, 0.016, 0.028)
    assert top.rounds_ms == 9 * [22.0]


@pytest.mark.parametrize("rung, answer", ((THREE, NARROW), (ONE, RIGHT)))
def test_a_rung_that_is_not_what_it_says_gets_no_time(rung, answer):
    with pytest.raises(GateError, match=f"no time: {rung.name}, random, N = 64"):
        group(Call(rung.label, answer, [], rung))


def test_what_the_last_round_computed_is_gated_as_well():
    call = Call(THREE.label, RIGHT, [], THREE)
    call.caller.measure = lambda: 1.0  # writes nothing
    with pytest.raises(GateError):
        group(call)


def test_scaled_inputs_have_the_same_scores():
    case, plain = tensor.scaled("random", "Q up, K down", 64), tensor.scaled("random", "V up", 64)
    assert np.abs(case.q).max() > 2.0**60 and np.abs(case.k).max() < 2.0**-50
    assert np.array_equal(case.q @ case.k.T, plain.q @ plain.k.T)
    assert np.abs(plain.v).max() > 1e30
    assert len({tensor.scaled(name, how, 64).name for name in tensor.SCALED_CASES
                for how in tensor.SCALED}) == 8


def test_gates_cover_every_case_and_the_scaled_inputs(one_order, monkeypatch):
    monkeypatch.setattr(tensor, "scaled", partial(tensor.scaled, n=64))  # how far asks for no more
    found = tensor.gates(one_order, [THREE], lambda *_: None, ((64, ("random", "flat")),))
    assert [g.case for g in found][:2] == ["random", "flat"] and len(found) == 10
    assert all(g.passed and g.fraction < 0.35 for g in found)


def test_of_many_rows_a_part_is_gated(one_order, monkeypatch):
    monkeypatch.setattr(bench, "ALL_ROWS", 64)
    monkeypatch.setattr(bench, "SAMPLED_ROWS", 4)
    ran = []

    def wrong(backend, r, case):
        ran.append(case.problem.n)
        o = np.zeros((128, 64), np.float32)
        return o, None

    monkeypatch.setattr(bench.ladder, "run", wrong)
    (gate,) = bench.gate_case(one_order, [THREE], tensor.scaled("random", "V up", 128))
    assert ran == [128] and not gate.passed and "(256 elements" in gate.message


def test_the_part_of_a_record_reads_back(record):
    (read,) = evidence.shown("tensor")
    assert read.tensor == record.tensor
    assert not record.stale(evidence.TENSOR)
    old = replace(sample(), kernels=evidence.digests(evidence.LADDER))
    assert set(old.stale(evidence.TENSOR)) == {
        rungs.HALVES, rungs.IMAGES, *(r.name for r in (*rungs.TENSOR, *rungs.HOPPER))}
