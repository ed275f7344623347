"""Each rung's header, difference and story."""

import html
import re
from dataclasses import replace

import lesson
import pytest
from lesson.errors import ArgumentError
from lesson.launch import rungs
from lesson.measure import evidence
from lesson.measure.counters import STALLS
from lesson.show import rungs as shown
from lesson.show import stories
from lesson.show.stories import row_of
from lesson.text import source
from support.pictures import boxes

FILES = [r for r in rungs.RUNGS if r.number > 1]
MOST = 80  # changed lines of code; a branch may have more, folded
each_file = pytest.mark.parametrize("rung", FILES, ids=lambda r: r.name.split("/")[-1])


@each_file
def test_a_header_has_its_parts_in_their_order(rung):
    text = source.read(rung.name)
    head = text[: text.index("constexpr")]
    assert re.match(rf"// Rung {rung.number}(, a branch [^:]*)?: ", head)
    found = shown.header(rung)
    parts = [part for part in found.parts if part != "Why it is safe"]
    assert tuple(parts) == shown.PARTS and all(found.parts.values())
    words = " ".join(head.replace("//", " ").split())
    for part, said in found.parts.items():
        assert f"{part}: {said}" in words or f"{part}. {said}" in words
    assert words.startswith(found.title)
    assert re.search(r"\d", shown.prediction(rung)), "a prediction has a number"


@each_file
def test_one_change_a_rung(rung):
    lines = shown.changed_lines(rung)
    assert 0 < lines <= MOST or rung.leaves
    diff = shown.difference(rung)
    assert not any("snippet" in x or "Prediction" in x for x in diff)
    signs = [x for x in diff[2:] if x[:1] in "+-"]
    assert "+" in {x[0] for x in signs}
    page = shown.Change(rung, diff)._repr_html_()
    assert f"{lines} changed lines of code" in page
    assert ("<details>" in page) == (len(diff) > 25)


def test_changed_lines_are_counted_without_comments_and_empty_lines():
    """By hand: rung 2 adds three pragmas; rung 18 takes five lines and gives four others."""
    assert shown.changed_lines(2) == 3
    diff = [x for x in shown.difference(18)[2:] if x[:1] in "+-" and x[1:].strip()]
    assert shown.changed_lines(18) == len([x for x in diff if not x[1:].strip().startswith("//")])


def test_a_diff_says_by_sign_and_by_colour_what_a_line_is():
    diff = shown.difference(18)
    page = shown.Change(rungs.rung(18), diff)._repr_html_()
    spans = re.findall(r'<span class="(\w*)" style="([^"]*)">(.*?)\n</span>', page)
    assert [html.unescape(text) for _, _, text in spans] == [x or " " for x in diff]
    assert [kind for kind, _, _ in spans[:2]] == ["place", "place"]  # the names of the files
    for kind, style, text in spans[2:]:
        want = {"+": "added", "-": "removed", "@": "place"}.get(text[0], "")
        assert kind == want
        assert (f"var(--lesson-{kind}, #" in style) == (kind in ("added", "removed"))


def test_a_branch_is_shown_against_the_rung_it_leaves():
    assert rungs.SMALL.leaves == rungs.BEST.number
    text = lesson.rung(rungs.SMALL.number).text()
    assert f"--- {rungs.BEST.name}.cu" in text
    assert f"Rung 21, a branch, against rung {rungs.BEST.number}: " in text
    assert f"a branch that leaves rung {rungs.BEST.number}" in text


def test_the_first_rung_has_no_difference():
    for what in (shown.difference, shown.changed_lines, shown.header):
        with pytest.raises(ArgumentError, match="rung 1 is the lesson's kernel"):
            what(1)
    with pytest.raises(ArgumentError, match="there are 1 to 31"):
        lesson.rung(32)


# --- the story ----------------------------------------------------------------------------------

@pytest.mark.parametrize("rung", FILES, ids=lambda r: r.name.split("/")[-1])
def test_a_rung_is_told_in_order(record, rung):
    text = lesson.rung(rung.number).text()
    places = [text.index(x) for x in (*(f"{part}: " for part in shown.PARTS), "@@", "What came: ")]
    assert places == sorted(places)
    base = rungs.before(rung)
    for n in (4096, 16384):
        this, that = (row_of(record.bench, r, n) for r in (rung, base))
        ratio = that.median_ms / this.median_ms
        assert f"{this.median_ms:.4f} ms at N = {n:,}, " + (
            f"{ratio:.2f} times as fast as rung {base.number}" if ratio >= 1 else
            f"{1 / ratio:.2f} times the time of rung {base.number}") in text


def test_numbers_of_predictions_are_those_of_the_headers():
    """What a ratio is called: '1.2 times', '4 %', 'within 1 %'."""
    for r in FILES:
        said = shown.prediction(r)
        assert r.predicted and r.predicted[0][0] == 4096
        for n, *bounds in r.predicted:
            assert n == 4096 or f"{n}" in said
            for bound in bounds:
                ways = [f"{bound:g} times", f"{bound:g} to ", f"{1 / bound:g} times",
                        f"{100 * abs(bound - 1):.0f} %", f"{100 * abs(bound - 1):.0f} to ",
                        f"{100 * (1 / bound - 1):.0f} % slower"]
                if bound == 1:
                    ways += ["nothing at"]
                assert any(way in said for way in ways), (r.number, bound, said)


@pytest.mark.parametrize("ratio, low, high, want", [
    (1.04, 1.04, 1.04, "as predicted"), (1.03, 1.04, 1.04, "as predicted"),
    (1.0, 1.1, 1.2, "less than predicted"), (0.91, 0.99, 1.01, "slower, against the prediction"),
    (0.7, 1.1, 1.1, "slower, against the prediction"),
    (0.55, 1 / 1.8, 1 / 1.8, "as predicted"), (0.3, 1 / 1.8, 1 / 1.8, "less than predicted"),
    (2.26, 1.3, 1.3, "better than predicted"), (3.5, 4.0, 4.0, "as predicted"),
    (1.0, 0.99, 1.01, "as predicted"), (1.5, 0.99, 1.01, "better than predicted")])
def test_how_a_ratio_meets_its_prediction(ratio, low, high, want):
    assert stories.verdict(ratio, low, high) == want


def counted(record, number, tmp_path, time, **values):
    """Write the sample with other counters and time of one rung; the words of its story."""
    r = rungs.rung(number)
    base = row_of(record.bench, rungs.before(r), 4096).median_ms
    rows = [replace(row, median_ms=base * time) if (row.rung, row.n, row.what) ==
            (number, 4096, r.label) else row for row in record.bench.rows]
    found = [replace(c, **values) if c.rung == number else c for c in record.bench.counters]
    evidence.write(replace(record, bench=replace(record.bench, rows=rows, counters=found)),
                   tmp_path / "sample.json")
    return " ".join(sentence.words for sentence in stories.story(r))


def test_a_rung_that_takes_work_from_the_sms_says_so(record, tmp_path):
    told = counted(record, 8, tmp_path, 2.0, busy=0.2)
    assert "slower, against the prediction" in told
    assert "Why: 32 blocks for 132 SMs, where it was 32, so that an SM had work in 20% of the " \
        "time, where it was 90%" in told
    told = counted(record, 7, tmp_path, 5.0, busy=0.2)
    assert "Why: the SMs had nothing to do: 32 blocks for 132 SMs, where it was 64" in told


def test_a_rung_with_little_to_save_says_so(record, tmp_path):
    same = next(c for c in record.bench.counters if c.rung == 8)
    told = counted(record, 9, tmp_path, 1.0, issued=same.issued,
                   stalls={**same.stalls, "long_scoreboard": 0.03})
    assert "less than predicted. Why: there was little to save: a warp waited for what it had " \
        "asked of global memory in 1% of its time, where it was 0%." in told


def test_a_rung_that_nothing_held_back_says_what_it_saved(record, tmp_path):
    same = next(c for c in record.bench.counters if c.rung == 10)
    told = counted(record, 11, tmp_path, 1.0, issued=same.issued, instructions=9_990_000)
    assert "Why: nothing that was counted stands against it, and this is all it saved: 10.0 " \
        "million instructions, where rung 10 issued 10.0." in told


def test_where_else_a_rung_is_slower(record, tmp_path):
    def slower(by_n):
        r = rungs.rung(11)
        base = {n: row_of(record.bench, rungs.before(r), n).median_ms for n in (256, 1024)}
        rows = [replace(row, median_ms=base[row.n] * by_n[row.n]) if row.what == r.label
                and row.heads == 1 and row.n in by_n else row for row in record.bench.rows]
        evidence.write(replace(record, bench=replace(record.bench, rows=rows)),
                       tmp_path / "sample.json")
        return stories.story(r)[0].words

    assert "But slower at N = 256 and 1,024: 1.10 and 1.03 times the time." in slower(
        {256: 1.1, 1024: 1.03})
    assert "slower at" not in slower({256: 1.01, 1024: 0.9})


def test_a_rung_that_issues_more_says_so_and_what_stands_against_it(record, tmp_path):
    told = counted(record, 20, tmp_path, 1.03, instructions=2 * 10**7, busy=0.9, issued=0.9)
    assert "Why: 20.0 million instructions, where rung 19 issued 10.0. Against that stands: a " \
        "scheduler with work issued an instruction in 90% of the clocks, where it was 59%" in told


def test_a_rung_that_goes_as_predicted_tells_its_count(record, tmp_path):
    told = counted(record, 11, tmp_path, 1 / 1.04, instructions=9 * 10**6)
    assert "at N = 4,096" in told
    assert "The count: 9.0 million instructions, where rung 10 issued 10.0." in told


def test_an_aim_is_something_that_is_counted(record):
    for r in FILES:
        assert not r.aim or r.aim in stories.WAITS or hasattr(record.bench.counters[0], r.aim)
    assert set(stories.WAITS) == set(STALLS)


def test_the_three_factors_are_all_of_the_time(record):
    a, b = record.bench.counters[3:5]
    found = stories.factors(replace(a, instructions=30, busy=0.5, issued=0.2),
                            replace(b, instructions=10, busy=1.0, issued=0.4))
    assert found == {"instructions": 3, "busy": 2, "issued": 2}


def test_without_counters_a_story_is_times_alone(record, tmp_path):
    evidence.write(replace(record, bench=replace(record.bench, counters=None)),
                   tmp_path / "sample.json")
    (told,) = stories.story(rungs.rung(8))
    assert told.words.startswith("What came: ")


def test_the_sentence_on_counts_opens_the_bars_of_both_rungs(record):
    *_, told = lesson.rung(21).parts
    assert told.said.words.startswith(("Why", "The count"))
    page = told._repr_html_()
    assert re.match('<details [^>]*><summary [^>]*data-mark="recorded">', page)
    assert page.count("<svg") == 2
    assert {name.split()[1] for name in boxes(told)} == {"19", "21"}
    assert told.picture.alt in told.text()


def test_a_header_begins_with_a_capital_but_m_stays_m():
    html = lesson.rung(12)._repr_html_()
    assert "<dd>m stays where it is" in html and "<dd>A branch, which" in html
