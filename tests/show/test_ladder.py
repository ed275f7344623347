"""The ladder's verb, with and without a record."""

import re
from dataclasses import replace

import lesson
import pytest
from lesson.launch import rungs
from lesson.machine import backend as backends
from lesson.measure import evidence
from support.evidence import with_ladder
from support.pictures import words

RECORDED = {
    "times": lambda: lesson.ladder("times"), "counters": lambda: lesson.ladder("counters"),
    "callers": lambda: lesson.ladder("callers"), "long runs": lambda: lesson.long_runs(),
    **{f"plot {what}": lambda what=what: lesson.plot(what)
       for what in ("rungs", "times", "roofline")}}


@pytest.mark.parametrize("shown", RECORDED.values(), ids=RECORDED)
def test_without_a_record_a_verb_says_so_and_shows_no_time(no_record, shown, monkeypatch):
    monkeypatch.setattr(backends, "choose", lambda kind=None: None)  # a GPU would be timed
    page = shown()._repr_html_()
    assert "no recorded run" in page and 'data-mark="recorded"' not in page
    assert not re.search(r"\d ms\b", page)


@pytest.mark.parametrize("shown", RECORDED.values(), ids=RECORDED)
def test_with_a_record_everything_is_marked_recorded(record, shown):
    page = shown()._repr_html_()
    assert "no recorded run" not in page and 'data-mark="recorded"' in page
    assert "H200 Sample, 2026-11-29" in re.sub("<[^>]+>", "", page)


@pytest.mark.parametrize("changed", ("online", rungs.BEST.name, rungs.MERGE))
def test_a_record_of_other_sources_is_not_shown(monkeypatch, tmp_path, changed):
    monkeypatch.setattr(evidence, "FOLDER", tmp_path)
    item = with_ladder()
    evidence.write(replace(item, kernels={**item.kernels, changed: "0" * 64}), tmp_path / "a.json")
    assert evidence.shown("bench") == evidence.shown("long") == []


def test_a_newer_record_without_the_ladder_does_not_hide_it(record, tmp_path):
    newer = replace(record, date="2026-12-01T00:00:00+00:00", bench=None, long=None)
    evidence.write(newer, tmp_path / "newer.json")
    assert evidence.shown("bench") == [record]


def test_regions_of_a_page_have_names_of_their_own(record):
    page = "".join(x._repr_html_() for x in (
        lesson.ladder("callers"), lesson.ladder("times", 4096), lesson.ladder("times", 16384),
        lesson.ladder("counters"), lesson.long_runs(), lesson.plot("rungs"), lesson.plot("times"),
        lesson.plot("roofline"), *(lesson.rung(r.number) for r in rungs.RUNGS[1:])))
    names = re.findall(r'role="region"[^>]*aria-label="([^"]+)"', page)
    assert len(names) == len(set(names)) and len(names) > 15
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_a_table_of_times_and_one_of_counters_folds_below_its_picture(record):
    for shown in (lesson.ladder("times", 4096), lesson.ladder("counters")):
        picture, folded = shown.parts
        assert picture.mark == "recorded" and "<svg" in picture._repr_html_()
        assert folded._repr_html_().startswith("<details>")
        assert len(folded.table.rows) == len(rungs.RUNGS)


def test_what_was_refused_stands_with_the_times_of_its_n(record, tmp_path):
    refused = ["torch math, periodic, N = 4096: NaN", "cublas, N = 256: out of memory",
               "torch math, periodic, N = 4096, 16 heads: NaN"]
    evidence.write(replace(record, bench=replace(record.bench, refused=refused)),
                   tmp_path / "sample.json")
    assert "no time: torch math, periodic, N = 4096: NaN" in words(lesson.ladder("times", 4096))
    assert sum("no time" in x for x in words(lesson.ladder("times", 4096))) == 1
