"""Bars and the grid of mutants: each length and each cell is the number's."""

from dataclasses import replace

import pytest
from lesson.measure.mutants import MUTANTS, RACE, UNDEFINED
from lesson.measure.records import Rejection
from lesson.problem.problem import of
from lesson.show import bars
from lesson.show.stories import share
from support.pictures import boxes, images, outside, words


def outcomes():
    """Made-up Rejections; every third mutant gets by on periodic."""
    rows = {}
    for i, m in enumerate(MUTANTS):
        for case in ("periodic", m.case):
            caught = case != "periodic" or i % 3 > 0
            rows[m.name, case] = Rejection(m.name, case, of(320), caught, "")
    return list(rows.values())


def test_every_cell_of_the_grid_is_its_outcome():
    rows = outcomes()
    found = boxes(bars.grid(rows, "recorded", "a test"))
    assert set(found) == {f"{r.mutant} on {r.case}: {'caught' if r.rejected else 'let through'}"
                          for r in rows}
    columns = {name.split(" on ")[-1].split(":")[0]: set() for name in found}
    for name, box in list(found.items()):
        columns[name.split(" on ")[-1].split(":")[0]].add(box["x"])
    first = {case: min(xs) for case, xs in columns.items() if case != "periodic"}
    assert len(set(first.values())) == len(first)  # a case has a place of its own


def test_a_cell_says_its_outcome_by_a_sign():
    picture = bars.grid(outcomes(), "recorded", "a test")
    said = words(picture)
    through = sum(not r.rejected for r in outcomes())
    assert said.count("○") + said.count("!") == through
    assert f"lets {through} of {len(MUTANTS)}" in picture.caption
    kinds = {m.name: m.caught_by for m in MUTANTS}
    for kind, sign in ((RACE, "T"), (UNDEFINED, "V")):
        assert said.count(sign) == sum(kinds[r.mutant] == kind and r.rejected for r in outcomes())
    assert said.count("✓") + said.count("T") + said.count("V") == len(outcomes()) - through


def test_a_mutant_that_its_own_input_misses_has_a_sign_of_its_own():
    (mutant,) = [m for m in MUTANTS if m.caught_by == "very-negative"][:1]
    rows = [Rejection(mutant.name, case, of(320), False, "") for case in ("periodic", mutant.case)]
    said = words(bars.grid(rows, "recorded", "a test"))
    assert said.count("○") == said.count("!") == 1 and f"! {bars.MISSED}" in said


def test_mutants_that_a_record_does_not_know_are_left_out():
    rows = [r for r in outcomes() if r.mutant != MUTANTS[0].name]
    picture = bars.grid(rows, "recorded", "a test")
    assert not any(x.startswith(MUTANTS[0].name) for x in boxes(picture))


def test_counts_are_as_long_as_what_was_counted(record):
    a, b = record.bench.counters[:2]
    a = replace(a, instructions=4 * 10**7, stalls={"short_scoreboard": 2.0, "barrier": 0.05},
                l2_bytes=0)
    picture = bars.counts([a, b], "Counters", "a test")
    found = boxes(picture)
    for above, below, value, form in bars.COLUMNS:
        long = [found[f"rung {c.rung} {above} {below}"]["width"] for c in (a, b)]
        most = max(value(a), value(b))
        assert long == pytest.approx([26 * value(c) / most for c in (a, b)], abs=0.01)
        assert form.format(value(a)) in words(picture)


def test_a_warp_s_time_is_all_drawn_and_each_part_has_its_letter(record):
    a = replace(record.bench.counters[0], stalls={"short_scoreboard": 2.0, "barrier": 0.05})
    b = replace(record.bench.counters[1], stalls={"wait": 1.0, "barrier": 0.0})
    picture = bars.counts([a, b], "Counters", "a test")
    found, said = boxes(picture), words(picture)
    for c in (a, b):
        mine = {name.split()[-1]: box["width"] for name, box in found.items()
                if name.startswith(f"rung {c.rung} ") and name.split()[-1] in bars.WHY}
        assert sum(mine.values()) == pytest.approx(268, abs=0.1)
        assert mine[bars.ISSUES] == pytest.approx(268 / (1 + sum(c.stalls.values())), abs=0.01)
        for kind in ("short_scoreboard", "wait"):
            assert mine[kind] == pytest.approx(268 * share(c, kind), abs=0.01)
        assert "barrier" not in mine  # below SHOWN in both: part of the rest
    legend = [f"{bars.WHY[kind][0]} {bars.WHY[kind][2]}" for kind in
              (bars.ISSUES, "short_scoreboard", "wait", bars.REST)]
    assert said[-4:] == legend
    assert "50%" in picture.panels[1].alt


def test_letters_are_told_apart():
    letters = [letter for letter, _, _ in bars.WHY.values()]
    assert len(letters) == len(set(letters))


def at_4096(record):
    return [row for row in record.bench.rows if (row.n, row.heads) == (4096, 1)]


def test_times_are_as_long_as_they_were_measured(record):
    rows = at_4096(record)
    picture = bars.times(rows, "Times", "recorded", "a test")
    found = boxes(picture)
    assert set(found) == {row.what for row in rows}
    least = min(row.median_ms for row in rows)
    for far in (True, False):
        part = [row for row in rows if (row.median_ms > bars.NEAR * least) == far]
        most = max(row.median_ms for row in part)
        assert part
        for row in part:
            assert found[row.what]["width"] == pytest.approx(84 * row.median_ms / most, abs=0.01)
            assert f"{row.median_ms:.4f}" in words(picture)
    slowest = [row.what for row in sorted(rows, key=lambda row: -row.median_ms)]
    assert list(found) == slowest  # the callers among the rungs


def test_what_failed_its_gate_is_set_apart_and_has_no_time(record):
    rows = [replace(row, fraction=2.0) if row.rung == 5 else row for row in at_4096(record)]
    picture = bars.times(rows, "Times", "recorded", "a test", ["torch math, N = 4096: NaN"])
    (failed,) = [row for row in rows if row.fraction > 1]
    found, said = boxes(picture), words(picture)
    assert [name for name, box in found.items() if not box["solid"]] == [failed.what]
    assert f"{failed.median_ms:.4f}" not in said and said.count("gate failed") == 1
    assert "no time: torch math, N = 4096: NaN" in said


def test_pictures_in_front_of_tables_keep_within_their_frames(record):
    shown = (bars.grid(outcomes(), "recorded", "x"), bars.counts(record.bench.counters, "x", "x"),
             bars.times(at_4096(record), "x", "recorded", "x"))
    for picture in shown:
        for image in images(picture):
            assert outside(image) == [] and len(image.get("aria-label")) > 60
