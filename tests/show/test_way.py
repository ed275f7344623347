"""The whole way in one picture and one table."""

from dataclasses import replace

import lesson
import pytest
from lesson.errors import ArgumentError
from lesson.launch import rungs
from lesson.measure import evidence
from lesson.show import way
from lesson.text import source
from support.pictures import boxes, images, outside, words


@pytest.fixture(scope="module")
def shown():
    return lesson.ladder("way")


def test_every_rung_and_every_caller_is_there_once_with_its_gate_fraction(shown):
    (item,) = evidence.shown("tensor")
    _, folded = shown.parts
    names = [cells[0] for cells, _ in folded.table.rows]
    assert len(set(names)) == len(names)
    numbers = [int(name.split()[1].rstrip(",")) for name in names if name.startswith("rung ")]
    assert numbers == [r.number for r in rungs.ALL if not r.fails]
    callers = {row.what for found in (item.bench, item.tensor) for row in found.rows
               if not row.rung} - {"the lesson's choice"}
    assert callers <= set(names) and len(callers) == 4
    apart = [cells for cells, _ in folded.table.rows if cells[0].startswith("fails: ")]
    assert len(apart) == len({row.what for row in item.tensor.failing})
    assert all(float(cells[3]) > 1 for cells in apart)
    assert all(float(cells[3]) <= 1 for cells, _ in folded.table.rows if cells not in apart)


def test_bars_are_rates_over_that_of_sgemm_in_the_same_run(shown):
    (item,) = evidence.shown("tensor")
    picture, _ = shown.parts
    found = boxes(picture)
    scale = found["rung 31, launches that overlap"]["width"]
    (last,) = [row for row in item.tensor.rows
               if (row.rung, row.n, row.heads) == (31, 4096, 1)]
    (first,) = [row for row in item.bench.rows if (row.rung, row.n, row.heads) == (1, 4096, 1)]
    ratio = (last.median_ms / first.median_ms
             * item.tensor.ceiling.tflops / item.bench.ceiling.tflops)
    assert found["rung 1, the lesson's kernel"]["width"] == pytest.approx(scale * ratio, abs=0.02)
    assert found["rung 31, launches that overlap"]["solid"]
    assert not found["FlashAttention-2, FP16"]["solid"]
    assert f"{last.median_ms:.4f}" in words(picture)
    for image in images(picture):
        assert outside(image) == [] and len(image.get("aria-label")) > 60


def test_what_a_rung_costs():
    for r, names in ((rungs.rung(19), ["ladder/19_swizzle"]),
                     (rungs.rung(24), ["ladder/24_fp16", "ladder/halves"]),
                     (rungs.rung(31), ["ladder/31_chained", "ladder/images"])):
        mine = sum(line.strip() != "" for name in names
                   for line in source.code(source.read(name)).splitlines())
        merge = len(source.code(source.read("ladder/merge")).splitlines())
        assert way.lines(r) == mine and way.lines(r, 4) == mine + merge
    assert way.capabilities(rungs.rung(1)) == way.capabilities(rungs.rung(25)) == "7.5 and newer"
    assert way.capabilities(rungs.rung(19)) == "8.0 and newer"
    assert way.capabilities(rungs.rung(7)) == "8.0, 9.0, 10.0"  # 101 KiB
    assert way.capabilities(rungs.rung(31)) == "9.0"


def test_other_sizes_and_those_that_nobody_recorded():
    text = lesson.ladder("way", n=4096, heads=16).text()
    assert "rung 31" in text and "rung 1," not in text and "16 heads" in text
    with pytest.raises(ArgumentError, match="16 x 1,024"):
        lesson.ladder("way", n=2048)


def test_a_record_without_the_ladder_shows_none(record, tmp_path):
    evidence.write(replace(record, bench=None), tmp_path / "sample.json")
    assert "no recorded run" in lesson.ladder("way").text()
