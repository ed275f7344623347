"""The chapter on the ladder: its verbs, its computed numbers, and what a record makes of it."""

import json
import re
from dataclasses import replace

import lesson
import numpy as np
import pytest
from conftest import ROOT
from lesson import bench, cases, climb, evidence, host, impossible, ladder, source
from lesson.edits import replace as edit
from lesson.errors import ArgumentError
from lesson.occupancy import T4
from test_evidence import VERSIONS
from test_evidence import sample as small

CHAPTER = ROOT / "book/06-the-ladder.ipynb"
CALLERS = (climb.CUBLAS, "PyTorch: matmul, softmax, matmul", "PyTorch SDPA, math",
           "PyTorch SDPA, memory-efficient")
N_COUNTED = 4096


def sample():
    """Evidence with a comparison and long runs, of a GPU that does not exist."""
    top = bench.Ceiling(8192, 50.0, 22.0, 21.9, 22.1, 5)
    rows, per_flop = [], 1e-9 / 50.0  # ms of an operation at the ceiling
    for heads in (1, 16):
        for n in bench.BENCH_N:
            best = bench.flops(n, heads) * per_flop + 0.002
            for r in ladder.RUNGS:
                if heads > 1 and not r.heads:
                    continue
                slow = 1.2 + 10 / r.number - (0.3 if r.number == 11 else 0)
                rows.append(bench.Row(r.label, r.number, n, heads, ladder.split(r, n).splits, 0.1,
                                      best * slow, best * slow * 0.99, best * slow * 1.01, 10, 5))
            rows.append(bench.Row(climb.CHOICE, 11, n, heads, 2, 0.1, best * 1.8, best * 1.7,
                                  best * 1.9, 10, 5))
            rows += [bench.Row(what, 0, n, heads, 1, 0.1, best * (3 + i), best * 3, best * 7, 10, 5)
                     for i, what in enumerate(CALLERS)]
    counters = [bench.RungCounters(r.number, N_COUNTED, 4 << 20, 90 << 20, 0, 10**7, 3 * 10**7, 0.9,
                                   0.4 + r.number / 100, {"barrier": 1.5, "wait": 0.5})
                for r in ladder.RUNGS]
    long = [impossible.Long(n, "random", 11, 1, 1e-11 * n * n, 1e-11 * n * n, 1024 * n, 4 * n * n,
                            256, 0.1, 1e-7) for n in impossible.LONG_N]
    return replace(
        small(), versions={**VERSIONS, "gpu": "NVIDIA H200 Sample"},
        kernels=evidence.digests(("materialised", *climb.SOURCES)),
        bench=bench.Bench({"torch": "2"}, top, [], rows, [], [], counters), long=long)


@pytest.fixture
def no_record(monkeypatch, tmp_path):
    monkeypatch.setattr(evidence, "FOLDER", tmp_path)


@pytest.fixture
def record(monkeypatch, tmp_path):
    """The sample as the only record there is. Returns it."""
    monkeypatch.setattr(evidence, "FOLDER", tmp_path)
    evidence.write(sample(), tmp_path / "sample.json")
    return sample()


def cells(kind):
    book = json.loads(CHAPTER.read_text(encoding="utf-8"))
    return ["".join(c["source"]) for c in book["cells"] if c["cell_type"] == kind]


# --- with and without a record ------------------------------------------------------------------

RECORDED = ("rung_times", "rung_counters", "comparison", "long_runs", "plot_rungs", "plot_times",
            "plot_roofline")


@pytest.mark.parametrize("verb", RECORDED)
def test_without_a_record_a_verb_says_so_and_shows_no_time(no_record, verb):
    page = getattr(lesson, verb)()._repr_html_()
    assert "no recorded run" in page and 'data-mark="recorded"' not in page
    assert not re.search(r"\d ms\b", page)


@pytest.mark.parametrize("verb", RECORDED)
def test_with_a_record_everything_is_marked_recorded(record, verb):
    page = getattr(lesson, verb)()._repr_html_()
    assert "no recorded run" not in page and 'data-mark="recorded"' in page
    assert "H200 Sample, 2026-11-29" in page


@pytest.mark.parametrize("changed", ("online", "ladder/11_swizzle", ladder.MERGE))
def test_a_record_of_other_sources_is_not_shown(monkeypatch, tmp_path, changed):
    monkeypatch.setattr(evidence, "FOLDER", tmp_path)
    item = sample()
    evidence.write(replace(item, kernels={**item.kernels, changed: "0" * 64}), tmp_path / "a.json")
    assert climb.recorded("bench") == [] and climb.recorded("long") == []


def test_a_newer_record_without_the_ladder_does_not_hide_it(record, tmp_path):
    newer = replace(record, date="2026-12-01T00:00:00+00:00", bench=None, long=None)
    evidence.write(newer, tmp_path / "newer.json")
    assert climb.recorded("bench") == [record]


def test_regions_of_a_page_have_names_of_their_own(record):
    page = "".join(x._repr_html_() for x in (
        lesson.comparison(), lesson.rung_times(4096), lesson.rung_times(16384),
        lesson.rung_counters(), lesson.long_runs(), lesson.plot_rungs(), lesson.plot_times(),
        lesson.plot_roofline(), *(lesson.rung(r.number) for r in ladder.RUNGS[1:])))
    names = re.findall(r'role="region"[^>]*aria-label="([^"]+)"', page)
    assert len(names) == len(set(names)) and len(names) > 15
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_plots_say_what_they_show_and_take_the_pages_colours(record):
    for plot in (lesson.plot_rungs(), lesson.plot_times(), lesson.plot_roofline()):
        (figure,) = plot.parts
        assert len(figure.alt) > 100 and "var(--lesson-1" in figure.svg
        assert not re.search("#0[1-8]0", figure.svg)
    share = bench.share(climb.row_of(record.bench, ladder.BEST, 4096), record.bench.ceiling)
    assert f"rung 11 {100 * share:.0f} %" in lesson.plot_rungs().parts[0].alt


# --- one rung -----------------------------------------------------------------------------------

@pytest.mark.parametrize("rung", ladder.RUNGS[1:], ids=lambda r: r.name.split("/")[-1])
def test_a_rung_shows_its_prediction_before_its_measurement(record, rung):
    text = lesson.rung(rung.number).text()
    predicted, changed, found = (text.index(x) for x in ("Predicted", "@@", "Measured"))
    assert predicted < changed < found
    assert ladder.prediction(rung) in text
    base = ladder.BEST if rung is ladder.SMALL else ladder.rung(rung.number - 1)
    this, that = (climb.row_of(record.bench, r, 4096) for r in (rung, base))
    assert f"{this.median_ms:.4f} ms" in text
    ratio = that.median_ms / this.median_ms
    assert (f"{ratio:.2f} times as fast as rung {base.number}" if ratio >= 1 else
            f"{1 / ratio:.2f} times the time of rung {base.number}") in text


def test_the_first_rung_has_no_difference():
    with pytest.raises(ArgumentError, match="rung 1 is the lesson's kernel"):
        lesson.rung(1).text()
    with pytest.raises(ArgumentError, match="there are 1 to 13"):
        lesson.rung(14)


def test_rungs_that_are_not_faster_get_their_reason(record):
    text = lesson.rung_counters().text()
    base = {r.number: climb.row_of(record.bench, climb.before(r), 4096).median_ms
            for r in ladder.RUNGS[1:]}
    slower = [r.number for r in ladder.RUNGS[1:]
              if climb.row_of(record.bench, r, 4096).median_ms >= base[r.number]]
    assert slower == [12, 13]
    assert re.findall(r"Rung (\d+) took", text) == ["12", "13"]
    assert "issue slots in use went from 51% to 52%" in text  # 12 against 11


# --- the gate of a rung, and an edit ------------------------------------------------------------

def test_a_rung_is_gated_as_edited(emulated):
    assert "pass" in lesson.rung_gate(7, "spike-late").text()
    text = source.snippets("ladder/07_lazy")["rescale"]
    assert text.count("m[i] + SLACK") == 1
    edit("ladder/07_lazy/rescale", text.replace("m[i] + SLACK", "m[i] + 1000.0f"))
    try:
        # As the chapter's first answer says.
        for name in ("spike-late", "ascending", "all-negative", "random"):
            assert "pass" in lesson.rung_gate(7, name, 256, splits=1).text(), name
        assert "pass" in lesson.rung_gate(7, "large", 256, splits=4).text()
        failed = lesson.rung_gate(7, "large", 256, splits=1).text()
        assert "fail" in failed and "edited: ladder/07_lazy/rescale" in failed
        edit("ladder/07_lazy/rescale", text.replace("m[i] + SLACK", "m[i] + 0.0f"))
        assert "pass" in lesson.rung_gate(7, "ascending").text()  # at every rise: slower, right
    finally:
        lesson.reset()


def test_a_gpu_that_cannot_hold_a_rung_leaves_it_to_the_emulator(emulated, monkeypatch):
    monkeypatch.setattr(ladder, "device_gpu", lambda backend: (T4, T4.sms))
    tried = []
    choose = climb.backends.choose
    monkeypatch.setattr(climb.backends, "choose",
                        lambda kind=None: tried.append(kind) or choose(kind))
    assert "emulated" in lesson.rung_gate(11, "flat").text() and tried == [None, "emulated"]
    tried.clear()
    assert "pass" in lesson.rung_gate(13, "flat").text() and tried == [None]


def test_without_gpu_and_compiler_a_rung_is_not_gated(monkeypatch):
    monkeypatch.setattr(climb.backends, "choose", lambda kind=None: None)
    assert "nothing ran" in lesson.rung_gate(11).text()


def test_a_long_run_needs_a_gpu_and_a_good_n(monkeypatch):
    monkeypatch.setattr(climb.backends, "choose", lambda kind=None: None)
    assert "needs a GPU" in lesson.run_long().text()
    with pytest.raises(ArgumentError, match="n = 1000: choose a multiple of 128"):
        lesson.run_long(1000)


# --- what is computed ---------------------------------------------------------------------------

def test_predictions_cover_what_a_t4_runs_and_follow_the_rules(record):
    rows = {tuple(cells[:2]): cells for cells, _ in lesson.t4_times().rows}
    runs = [r for r in ladder.RUNGS if ladder.blocks_on(r, T4)]
    assert [r.number for r in runs] == [1, 2, 13]
    assert set(rows) == {(climb.title(r), f"{n:,}") for r in runs for n in bench.BENCH_N}
    for r in runs:
        for n in bench.BENCH_N:
            least = 1e3 * bench.flops(n) / 8.1e12
            assert float(rows[climb.title(r), f"{n:,}"][3]) >= round(least, 3)
    # Rung 1 at 4096, by hand: 64 blocks on 40 SMs, so 2 on one; 64 rows x 128 / 64 lanes a key.
    clock, first = 8.1e12 / (2 * 64 * 40), climb.title(ladder.RUNGS[0])
    assert rows[first, "4,096"][3] == f"{1e3 * 2 * 4096 * 128 / clock:.3f}"
    # Its passes outweigh that: 3e7 of them in the sample, for 64 blocks. The H200 has 1 block a SM.
    passes = 3e7 / 64
    h200 = 1e3 * passes / (67e12 / (2 * 128 * 132))
    near = climb.row_of(record.bench, ladder.RUNGS[0], 4096).median_ms / h200
    assert passes / 4096 > 64
    want = 1e3 * 2 * max(passes, 4096 * 128) / clock * near
    assert rows[first, "4,096"][4] == f"{want:.3f}"


def test_without_a_record_a_t4_has_a_bound_alone(no_record):
    rows = lesson.t4_times().rows
    assert rows and all(cells[-1] == "–" for cells, _ in rows)


@pytest.mark.parametrize("number, splits",
                         [(1, 1), (2, 1), (3, 1), (5, 2), (11, 1), (11, 4), (13, 3)])
def test_requested_bytes_are_what_the_emulator_counts(emulated, number, splits):
    r, n = ladder.rung(number), 256
    backend = host.HostBackend(orders=("ascending",))
    _, planned = ladder.run(backend, r, cases.make("periodic", n), splits if r.splits else None)
    counted = sum(c.loads_bytes + c.stores_bytes for c in planned.counts.values())
    assert counted == climb.requested(r, n, splits)


def test_a_late_rescale_keeps_its_bound_and_is_rare():
    rows = {cells[0]: cells[1:] for cells, _ in lesson.rescales(512).rows}
    for steps, eager, lazy, largest in rows.values():
        assert int(steps) == 16 * 8 and float(largest) <= 8.0
        assert int(lazy[:-1]) <= int(eager[:-1])
    assert int(rows["periodic"][2][:-1]) == 12  # of 8 tiles the first alone
    rows = {cells[0]: cells[1:] for cells, _ in lesson.rescales().rows}  # as in the chapter
    assert rows["random"][1:3] == ("98%", "6%")  # of 16 tiles the first alone
    assert rows["ascending"][1:3] == ("100%", "50%")


def test_the_laws_of_the_merge_hold_and_the_check_can_fail(monkeypatch):
    rows = {cells[0]: float(cells[1]) for cells, _ in lesson.merge_properties().rows}
    assert rows["commutative"] == rows["no keys change nothing"] == 0
    assert 0 < rows["associative"] < 100
    monkeypatch.setattr(ladder, "merge", lambda a, b: (np.maximum(a[0], b[0]), a[1] + b[1],
                                                       a[2] + b[2]))
    wrong = {cells[0]: float(cells[1]) for cells, _ in lesson.merge_properties().rows}
    assert wrong["associative"] < 100  # sums alone are associative too: only the gate sees that
    monkeypatch.setattr(ladder, "merge", lambda a, b: a)
    assert float(lesson.merge_properties().rows[0][0][1]) > 100


def test_estimates_are_the_datasheets():
    (cells,) = [c for c, _ in lesson.long_estimates((1048576,)).rows]
    work = 4 * 1048576**2 * 64
    assert cells[1:] == ("4,194,304", "1,024", f"{work / 67e12:.3g}", f"{work / 8.1e12:.3g}")


# --- the chapter --------------------------------------------------------------------------------

def test_the_chapter_runs_what_it_is_about():
    code = "\n".join(cells("code"))
    wanted = [f"lesson.rung({r.number})" for r in ladder.RUNGS[1:]]
    wanted += [f"lesson.{verb}(" for verb in (
        *RECORDED, "splits", "choice", "merge_properties", "rescales", "rung_gate", "t4_times",
        "long_estimates", "run_long")]
    assert [verb for verb in wanted if verb not in code] == []
    assert code.index("lesson.long_estimates") < code.index("lesson.long_runs")


def test_the_chapter_opens_and_ends_as_all_do():
    text = cells("markdown")
    title, first = text[0].split("\n\n")[:2]
    assert title == "# The ladder"
    assert len(first) <= 200 and first.count(". ") == 0 and first.endswith(".")
    for part in ("**You will**", "**You will learn**", "**You need**"):
        assert part in text[0]
    questions = re.findall(r"^\*\*\d\.\*\*", text[-1], re.M)
    assert 2 <= len(questions) <= 3
    assert text[-1].count("<details>") == text[-1].count("</details>") == len(questions)


def test_no_time_and_no_speed_is_typed_in():
    for cell in cells("markdown"):
        assert not re.search(r"\d\s*(ms|milliseconds|TFLOP)\b", cell), cell
        assert not re.search(r"\d times (faster|slower|as fast)", cell), cell
