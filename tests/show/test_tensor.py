"""Tables and stories of tensor cores."""

import re
from dataclasses import replace

import lesson
import pytest
from lesson.launch import rungs
from lesson.machine.gpus import H200, T4
from lesson.measure import evidence, mutants
from lesson.show import rungs as shown
from lesson.show import stories, t4, tensor

each = pytest.mark.parametrize("rung", (*rungs.TENSOR, *rungs.HOPPER),
                               ids=lambda r: r.name.split("/")[-1])


@each
def test_a_header_has_its_parts_and_its_prediction_in_numbers(rung):
    found = shown.header(rung)
    assert tuple(found.parts) == shown.PARTS and all(found.parts.values())
    assert found.title.startswith(f"Rung {rung.number}")
    assert (f"leaves rung {rung.leaves}" in found.title) == bool(rung.leaves)
    said = shown.prediction(rung)
    for n, ms in rung.expected:
        assert f"{ms:g} ms" in said and str(n) in said


@each
def test_a_rung_tells_what_came(record, rung):
    text = lesson.rung(rung.number).text()
    assert "@@" in text and "tensor cores were busy in 60% of the cycles" in text
    for n, guess in rung.expected:
        row = next(row for row in (*record.tensor.rows, *record.tensor.failing)
                   if (row.rung, row.n, row.heads) == (rung.number, n, 1))
        assert f"{row.median_ms:.4f} ms at N = {n:,}, where {guess:g} was" in text
    assert ("as fast as rung" in text or "times the time of rung" in text) != (
        rung.fails or rungs.before(rung).fails)


def test_what_fails_is_set_apart(record):
    right, wrong, verdict = lesson.ladder("tensor cores").parts
    number = re.compile(r"^rung (\d+)")
    inside = {int(m[1]) for cells, _ in right.rows if (m := number.match(cells[0]))}
    assert inside == {19, 20, 21, 23, 24, 25}
    assert [cells[0] for cells, _ in wrong.rows] == [
        shown.title(rungs.TENSOR[0]), "FlashAttention-2, FP16", "cuDNN, FP16"]
    assert all(float(cells[1]) <= 1 for cells, _ in right.rows)
    assert all(float(cells[1]) > 1 for cells, _ in wrong.rows)
    assert "no result" in wrong.title and "rung 23 at " in verdict.words  # the sample's fastest


def test_a_failing_rung_says_so_in_its_story(record):
    words = " ".join(s.words for s in stories.story(rungs.TENSOR[0]))
    assert "outside the gate, by 200 times on periodic" in words
    assert "at 0.1 of the gate at worst" in stories.story(rungs.TENSOR[2])[0].words


def test_counts_fragments_and_mutants_are_those_of_the_record(record):
    (counts,) = lesson.ladder("tensor counters").parts
    assert [cells[1] for cells, _ in counts.rows] == ["300", "300", "600", "600"]
    said, bits = lesson.ladder("fragments").parts
    assert said.words == f"Of {16 * 8192:,} results 0 differ in any bit."
    assert bits.text().count(" 8,192 ") == 16
    text = lesson.ladder("broken products").text()
    assert f"Rejected: {len(mutants.TENSOR)} of {len(mutants.TENSOR)} " in text
    assert all(m.name in text for m in mutants.TENSOR) and "LET THROUGH" not in text


def test_a_mutant_that_got_through_shows(record, tmp_path):
    first, *rest = record.tensor.mutants
    rows = [replace(first, rejected=False), *rest]
    evidence.write(replace(record, tensor=replace(record.tensor, mutants=rows)),
                   tmp_path / "sample.json")
    assert "LET THROUGH" in lesson.ladder("broken products").text()


def test_a_t4_by_hand(record):
    """64 rows x 64 x 2 products x 3, at 65 TFLOP/s on 40 SMs: 30 ns a key of a block."""
    r = rungs.TENSOR[-1]
    clocks = t4.pipes(r, T4, rate=T4.tensor_flops)["mma"]
    clock = 8.1e12 / (2 * 64 * 40)
    assert clocks / clock == pytest.approx(64 * 64 * 2 * 2 * 3 / (65e12 / 40))
    counted = record.tensor.counters[-1]
    found = t4.pipes(r, H200, counted, 600e12)
    assert found["float32"] == pytest.approx(1e7 / (4096 * 64) * 32 / 128)
    assert found["shared memory"] == pytest.approx(1e6 / (4096 * 64))
    table = lesson.ladder("tensor T4")
    for cells, _ in table.rows:  # the line meets the recorded times at both of its ends
        if cells[0] in ("256", "16,384"):
            assert float(cells[5]) == pytest.approx(float(cells[6]), rel=2e-3)
    assert table.mark == "computed"


def test_without_a_record_all_say_so(no_record):
    for what in ("tensor cores", "tensor counters", "fragments", "broken products"):
        assert "python -m lesson record" in lesson.ladder(what).text()
    table = lesson.ladder("tensor T4")
    assert {cells[1] for cells, _ in table.rows} == {"–"} and "no prediction" in table.footer
    assert "no recorded run" in lesson.rung(24).text()
    assert tensor.beside().parts[0].mark == "computed"
