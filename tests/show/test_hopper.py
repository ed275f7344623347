"""A Hopper GPU: the pipeline in time, what was counted and checked, and pages without one."""

from dataclasses import replace
from types import SimpleNamespace

import lesson
import pytest
from lesson.errors import ArgumentError
from lesson.launch import ladder, rungs, splits
from lesson.machine import backend as backends
from lesson.machine.gpus import H200, by_arch
from lesson.measure import evidence
from lesson.measure.records import RungCounters
from lesson.measure.tensor import BY_NVCC
from lesson.problem.problem import Problem, of
from lesson.show import hopper, tensor
from support.pictures import boxes, images, outside, words

LAST = rungs.HOPPER[-1]


@pytest.fixture(scope="module")
def h200():
    """The recorded run of an H200."""
    return evidence.latest()["H200"]


def counters(**changes):
    found = RungCounters(26, of(4096), 0, 0, 0, 32 * 64 * 4 * 900, 0, 0.9, 0.3, {}, 0.5)
    return replace(found, **changes)


def test_a_tile_by_hand():
    """900 instructions of each of four schedulers, one in 0.3 clocks: 3,000 clocks a tile."""
    tile = hopper.Tile.of(hopper.FIRST, counters())
    assert tile.clocks == pytest.approx(3000) and tile.product == pytest.approx(375)
    assert tile.own(3) == pytest.approx(3000 - 3 * 375)
    more = counters(problem=Problem(4096, 4096, heads=4), instructions=4 * 32 * 64 * 4 * 900)
    assert hopper.Tile.of(hopper.FIRST, more).clocks == pytest.approx(3000)


def test_counted_products_last_as_long_as_the_datasheet_lets_them(h200):
    """12 wgmma of 2 x 64 x 64 x 16 operations; the datasheet's rate is that at 1.83 GHz."""
    clock = H200.tensor_flops / (H200.sms * 1.83e9)  # operations of an SM
    for r, c in hopper.counted(h200).items():
        product = hopper.Tile.of(r, c).product
        assert product == pytest.approx(12 * 2 * 64 * 64 * 16 / clock, rel=0.06), r.number


@pytest.mark.parametrize("r", hopper.AWAITED, ids=lambda r: str(r.number))
def test_nothing_in_the_pipeline_happens_before_it_can(h200, r):
    tile = hopper.Tile.of(r, hopper.counted(h200)[r])
    periods = 4
    found = sorted(hopper.schedule(r, tile, periods * tile.clocks), key=lambda x: x[2])
    lanes = [[x for x in found if x[0] == lane and x[1] != "copy"] for lane in range(4)]
    for lane in lanes[1:]:  # nobody does two things at once
        for (_, _, _, end), (_, _, begin, _) in zip(lane, lane[1:]):
            assert begin >= end - 1e-6
    for lane in lanes[1:3]:  # and a group is always somewhere
        assert sum(end - begin for _, _, begin, end in lane) == pytest.approx(
            periods * tile.clocks)
    busy = sum(end - begin for _, _, begin, end in lanes[3])
    assert busy == pytest.approx(periods * tile.clocks * tile.busy)
    for g in (1, 2):
        products = {(what, round(begin)) for _, what, begin, _ in lanes[3]}
        own = [x for x in lanes[g] if x[1] == "own" and x[2] > 0 and x[3] < periods * tile.clocks]
        for _, _, begin, end in own:
            assert (f"S{g}", round(begin - tile.product)) in products  # its scores are there
            after = f"S{g}" if r is hopper.OVERLAP else f"PV{g}"
            assert (after, round(end)) in products  # and what needs its weights follows
        assert own
    copies = [begin for _, what, begin, _ in found if what == "copy" and begin > tile.clocks]
    ends = {round(end) for _, what, _, end in lanes[3] if what.startswith("PV")}
    assert copies and all(round(x) in ends for x in copies)  # the last reader is done


def test_the_pipeline_is_drawn_to_scale_and_says_so_in_words(h200):
    picture = lesson.plot("pipeline")
    assert picture.mark == "recorded" and "H200" in picture.note
    found = boxes(picture)
    tiles = {r: hopper.Tile.of(r, hopper.counted(h200)[r]) for r in hopper.AWAITED}
    longest = 2 * max(t.clocks for t in tiles.values())
    for r, tile in tiles.items():
        own = [box["width"] for name, box in found.items() if name.startswith(f"{r.number} 1 own")]
        assert max(own) == pytest.approx((328 - hopper.LEFT - 2) * tile.own(hopper.AWAITED[r])
                                         / longest, abs=0.02)
        assert f"{tile.clocks:,.0f} a tile: tensor cores busy {tile.busy:.0%}" in words(picture)
    assert "half a tile is drawn" in picture.text() and "was not counted" in picture.text()


def test_gates_of_the_two_compilers_are_not_mixed(record, tmp_path):
    """The sample's NVRTC gates are at 0.1, those by nvcc at 0.2."""
    rows = {cells[0]: cells[1:] for cells, _ in lesson.ladder("Hopper checks").parts[1].table.rows}
    assert len(rows) == len(rungs.HOPPER)
    for cells in rows.values():
        assert cells[:4] == ("1 of 1", "0.100", "1 of 1", "0.200") and cells[4:] == ("20", "0")
    assert "at 0.1 of the gate at worst" in lesson.rung(31).text()
    gates = [replace(g, passed=False, fraction=3.0) if g.path == LAST.name + BY_NVCC else g
             for g in record.tensor.gates]
    again = [replace(x, different=2) if x.rung == 30 else x for x in record.tensor.repeats]
    bad = replace(record, tensor=replace(record.tensor, gates=gates, repeats=again))
    evidence.write(bad, tmp_path / "sample.json")
    text = lesson.ladder("Hopper checks").text()
    assert "6 of 6 as NVRTC built them, 5 of 6 as nvcc built them" in text
    assert "another bit than the first: 4 of 120" in text
    assert "0 of 1" in text and "3.000" in text and "20                4" in text
    assert "at 0.1 of the gate at worst" in lesson.rung(31).text()


def test_every_rung_gave_the_same_bits_and_both_builds_passed(h200):
    for r in rungs.HOPPER:
        for path, least in ((r.name, 30), (r.name + BY_NVCC, 26)):
            mine = [g for g in h200.tensor.gates if g.path == path]
            assert len(mine) >= least and all(g.passed and g.fraction <= 0.35 for g in mine)
        mine = [x for x in h200.tensor.repeats if x.rung == r.number]
        assert {x.heads for x in mine} == {1, 16}
        assert all(x.runs == 10 and x.different == 0 for x in mine)


def test_a_rung_that_cannot_run_says_so_and_shows_its_recorded_gates(record):
    said, folded = lesson.gate(26, "periodic", 128).parts
    assert folded.summary.endswith("on periodic: 2 of 2 passed, at 0.200 of the gate at worst")
    table = folded.table
    assert said.words.startswith("Nothing ran here: rung 26 needs a Hopper GPU")
    assert [cells[:3] for cells, _ in table.rows] == [("320", "NVRTC", "pass"),
                                                      ("320", "nvcc", "pass")]
    assert table.mark == "recorded"
    text = lesson.gate(26, "flat").text()
    assert "flat is none of the cases that were gated on H200 Sample" in text


def test_without_a_record_all_of_it_says_so(no_record):
    for what in ("Hopper", "Hopper counters", "Hopper checks", "way"):
        assert "python -m lesson record" in lesson.ladder(what).text()
    for shown in (lesson.plot("pipeline"), lesson.gate(31), lesson.rung(31)):
        assert "no recorded run" in shown.text()
    assert "31, in 4" in lesson.choice(4096, 1).text()  # which needs none


def test_a_record_without_counters_still_shows(record, tmp_path):
    evidence.write(replace(record, tensor=replace(record.tensor, counters=None, repeats=None)),
                   tmp_path / "sample.json")
    assert "Nsight Compute" in lesson.plot("pipeline").text()
    assert "Nsight Compute" in lesson.ladder("Hopper counters").text()
    assert "no repeated runs" in lesson.ladder("Hopper checks").text()


def test_the_sentence_on_the_limit_is_computed(h200):
    folded, said = lesson.ladder("Hopper counters").parts
    c = hopper.counted(h200)[LAST]
    assert f"busy in {c.tensor:.0%} of the clocks in which an SM has work" in said.words
    registers = hopper.source_registers(LAST)
    assert registers * 128 * 2 <= H200.registers < registers * 128 * 3
    assert f"three take {registers * 128 * 3:,}" in said.words
    # products cannot cover what a group does on its own
    tile = hopper.Tile.of(LAST, c)
    assert tile.own(1) > 1.5 * hopper.PRODUCTS / 2 * tile.product
    assert len(folded.table.rows) == len(rungs.HOPPER)


def test_the_rungs_stand_beside_rung_24_and_what_fails_apart(h200):
    picture, *folded, verdict = lesson.ladder("Hopper").parts
    right, wrong = (part.table for part in folded)
    inside = [cells[0] for cells, _ in right.rows]
    for number in (19, 20, 21, 24, *range(26, 32)):
        assert sum(name.startswith(f"rung {number},") for name in inside) == 1
    assert not any(name.startswith(("rung 23,", "rung 25,")) for name in inside)
    assert [cells[0] for cells, _ in wrong.rows] == ["FlashAttention-2, FP16", "cuDNN, FP16"]
    for heads, n in tensor.SHOWN:
        assert f"{heads} x {n:,}: rung 31 at " in verdict.words
    for image in images(picture):
        assert outside(image) == []
    (last,) = [row for row in h200.tensor.rows if (row.rung, row.heads, row.n) == (31, 1, 16384)]
    assert f"{last.median_ms:.4f}" in words(picture)
    assert "rung 31, launches that overlap 4." in picture.panels[1].alt
    assert not any(row.rung == 22 and f"{row.median_ms:.4f}" in words(picture)
                   for row in h200.tensor.failing)
    assert verdict.words.count("FlashAttention-2, FP16, which misses the gate by") == 3


# --- the choice -----------------------------------------------------------------------------------

def test_the_choice_is_that_of_splits_for_every_device_heads_and_n():
    table, why = lesson.choice(ns=(1024, 16384)).parts
    rows = {(cells[0], int(cells[1])): cells[2:] for cells, _ in table.rows}
    assert {gpu for gpu, _ in rows} == {"H200", "A100", "T4"} and {h for _, h in rows} == {1, 16}
    for (gpu, heads), cells in rows.items():
        arch = {"H200": "sm_90", "A100": "sm_80", "T4": "sm_75"}[gpu]
        sms = {"H200": 132, "A100": 108, "T4": 40}[gpu]
        for n, cell in zip((1024, 16384), cells):
            found = splits.choose(Problem(n, n, heads=heads), by_arch()[arch], sms,
                                  among=rungs.FASTEST)
            assert cell == f"{found.rung.number}, in {found.split.splits}"
            assert found.why in why.text()
    assert all("31" in cell for cell in rows["H200", 1])


def test_the_choice_among_float32_units_and_of_odd_requests():
    text = lesson.choice(4096, 1, among="best").text()
    assert "19, in 8" in text and "rung 31" not in text
    for wrong in ({"among": "all"}, {"ns": 100}, {"heads": 0}):
        with pytest.raises(ArgumentError):
            lesson.choice(**wrong)


def a_gpu(arch, sms):
    """A live backend that knows no more than its architecture."""
    return SimpleNamespace(mark="live", arch=arch, versions=lambda: {"sms": sms},
                           describe=lambda: "a test's GPU")


@pytest.mark.parametrize("arch, rung", [("sm_75", 25), ("sm_89", 24), ("sm_90", 31),
                                        ("sm_100", 24)])
def test_on_this_gpu_the_choice_goes_on_without_hopper(monkeypatch, arch, rung):
    monkeypatch.setattr(backends, "choose", lambda *_: a_gpu(arch, 80))
    table = lesson.choice(16384, 16).parts[0]
    (mine,) = [cells for cells, _ in table.rows if cells[0] == "this GPU"]
    assert mine[2].startswith(f"{rung}, in ")
    assert rungs.rung(rung) in ladder.CHOSEN["fastest"]
    if arch != "sm_90":  # a live GPU, but no Hopper
        assert "needs a Hopper GPU" in lesson.gate(31, "random").text()
