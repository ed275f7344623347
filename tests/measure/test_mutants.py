"""The gate is tested too: every broken kernel is rejected, the correct ones pass everything."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lesson
import pytest
from lesson.measure.gates_and_times import outcome
from lesson.measure.mutants import MUTANTS, RACE, TENSOR, rejection, tensor_rejection
from lesson.measure.records import GATE_N
from lesson.problem import cases
from lesson.text.edits import current, edited, replace


def test_periodic_alone_lets_mutants_through(one_order):
    weak = [m for m in MUTANTS if m.name in ("no maximum, online", "m starts at 0")]
    assert not any(rejection(one_order, m, "periodic").rejected for m in weak)


@pytest.mark.parametrize("mutant", TENSOR, ids=lambda m: m.name)
def test_every_mutant_on_tensor_cores_is_rejected(one_order, mutant):
    found = tensor_rejection(one_order, mutant, mutant.caught_by, 128)
    assert found.rejected, found.message


def test_equivalent_where_it_says_so(one_order):
    by_name = {m.name: m for m in MUTANTS}
    for name, case in (("no rescale at all", "descending"), ("mean of V", "flat"),
                       ("tile maximum, not running", "periodic"),
                       ("a step missing in warpMax", "flat")):
        assert by_name[name].equivalent and not rejection(one_order, by_name[name], case).rejected


SNAPSHOT = Path(__file__).parent / "mutant_messages.txt"


# ---- the mutants, typed as cells ---------------------------------------------------------------

def typed(mutant):
    """Type a mutant as its cells; returns the Source that the next gate compiles."""
    lesson.reset()
    if mutant.whole:
        replace(mutant.path, mutant.whole)
    else:
        text = mutant.source().text
        for name, snippet in re.findall(r"^// snippet: (\w+)\n(.*?)^// end snippet$", text,
                                        re.M | re.S):
            replace(f"{mutant.path}/{name}", snippet)
    assert edited(mutant.path), mutant.name
    return current(mutant.path)


def messages(backend):
    """``{mutant: (rejected, message)}`` of every mutant as cell edits, on its promised case."""
    sources = {mutant.name: typed(mutant) for mutant in MUTANTS}
    lesson.reset()

    def run(mutant):
        case = mutant.case
        found = outcome(backend, mutant.path, cases.make(case, GATE_N), sources[mutant.name])
        said = found.verdict.reason if found.stopped else \
            found.verdict.explain(mutant.path, case, GATE_N)
        return mutant.name, (not found.passed, found.stopped, said)

    with ThreadPoolExecutor(2) as pool:
        return dict(pool.map(run, MUTANTS))


@pytest.fixture(scope="module")
def said(one_order):
    return messages(one_order)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_a_mutant_typed_as_cells_is_caught_by_its_case(said, mutant):
    rejected, stopped, message = said[mutant.name]
    assert rejected and (stopped == RACE) == (mutant.caught_by == RACE), message
    if stopped == RACE:  # both lines, of which an edited one is named by its cell
        assert "race on" in message and len(re.findall(r", line \d+:", message)) == 2
    elif stopped:  # a value that nobody wrote, at the line that uses it
        assert re.search(r"before anything was written|has no value", message)
        assert re.search(r", line \d+:", message)
    else:
        assert f"{mutant.path}, {mutant.case}, N = {GATE_N}: " in message
        assert "first at query row" in message


def test_the_messages_are_the_ones_that_were_read(said):
    """mutant_messages.txt holds each message; with LESSON_WRITE=1 this test writes it."""
    if os.environ.get("LESSON_WRITE"):
        SNAPSHOT.write_text(written(said), encoding="utf-8")
    assert masked(written(said)) == masked(SNAPSHOT.read_text(encoding="utf-8"))


def written(found):
    return "".join(f"{name}\n{'=' * len(name)}\n{message}\n\n"
                   for name, (_, _, message) in found.items())


def masked(text):
    """Without the digits that another machine's exponential may change."""
    return re.sub(r"-?\b\d+(\.\d+)?(e[+-]?\d+)?\b(?! elements)", "#",
                  re.sub(r"\(\d+ elements", "(# elements", text))
