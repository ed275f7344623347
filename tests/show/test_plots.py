"""Figures: what they show, say, and take from the page."""

import re
from dataclasses import replace

import lesson
from lesson.launch import rungs
from lesson.measure import bench, evidence
from lesson.show.stories import row_of


def test_plots_say_what_they_show_and_take_the_pages_colours(record):
    for plot in (lesson.plot("rungs"), lesson.plot("times"), lesson.plot("roofline")):
        figure = plot.parts[0]
        assert len(figure.alt) > 100 and "var(--lesson-1" in figure.svg
        assert not re.search("#0[1-8]0", figure.svg)
    share = bench.share(row_of(record.bench, rungs.BEST, 4096), record.bench.ceiling)
    assert f"rung {rungs.BEST.number} {100 * share:.0f} %" in lesson.plot("rungs").parts[0].alt


def test_the_roofline_says_what_its_triangles_stand_for(record, tmp_path):
    said = lesson.plot("roofline").parts[1].text()
    assert "Q, K, V and O hold 4 MiB. Device memory moved 4 MiB for rung 1 and 4 MiB for rung 19" \
        in said and "recorded" in said
    uncounted = replace(record, bench=replace(record.bench, counters=None))
    evidence.write(uncounted, tmp_path / "sample.json")
    assert len(lesson.plot("roofline").parts) == 1


def test_memory_is_the_drivers_where_a_gpu_was_recorded_else_the_datasheets(record, tmp_path):
    assert "H200's memory, 141 GB at N = 187,750" in lesson.plot("score matrix").alt
    evidence.write(replace(record, versions={**record.versions, "memory_bytes": 150109880320}),
                   tmp_path / "sample.json")
    assert ("H200's memory, 150.1 GB recorded at N = 193,720"
            in lesson.plot("score matrix").alt)
