"""What the five chapters must hold, whatever their prose says."""

import json
import re

import lesson
import pytest
from conftest import ROOT
from lesson import evidence
from lesson.edits import replace
from lesson.source import snippets

KERNELS = {"02-the-materialised-path": "materialised", "04-the-online-kernel": "online"}

# What each chapter must run, as it stands in its cells.
RUNS = {
    "01-the-score-matrix": ["lesson.count_bytes()", "lesson.plot_score_matrix()",
                            "lesson.score_matrix()"],
    "02-the-materialised-path": ["lesson.counted(256)", 'lesson.gate("materialised", "periodic")'],
    "03-the-online-maximum": ['lesson.trace("spike-late")', 'lesson.trace("flat")',
                              'lesson.trace("ascending")', "lesson.OnlineMax("],
    "04-the-online-kernel": ['lesson.gate("online", "spike-late")', "lesson.gates()",
                             'lesson.facts("sm_75")', 'lesson.facts("sm_90")'],
    "05-the-gated-table": ["lesson.battery()", "lesson.mutants()", "lesson.count_bytes()",
                           "lesson.table(256)", "lesson.table(1024)", "lesson.table(4096)",
                           "lesson.limits(4096)"],
}
CHAPTERS = tuple(RUNS)


def cells(name, kind):
    """Sources of a chapter's cells of one kind."""
    book = json.loads((ROOT / "book" / f"{name}.ipynb").read_text(encoding="utf-8"))
    return ["".join(c["source"]) for c in book["cells"] if c["cell_type"] == kind]


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_shown_whole_and_as_it_is(name):
    shown = {}
    for cell in cells(name, "code"):
        if cell.startswith("%%kernel "):
            magic, text = cell.split("\n", 1)
            shown[magic.removeprefix("%%kernel ")] = text
    kernel = KERNELS[name]
    wanted = {f"{kernel}/{s}": text.rstrip("\n") for s, text in snippets(kernel).items()}
    assert set(shown) == set(wanted)
    assert shown == wanted


def test_the_online_kernel_is_read_in_the_order_of_its_file():
    shown = re.findall(r"^%%kernel online/(\w+)", "\n".join(cells("04-the-online-kernel", "code")),
                       re.M)
    assert shown == list(snippets("online"))


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_runs_what_it_is_about(name):
    code = "\n".join(cells(name, "code"))
    assert [verb for verb in RUNS[name] if verb not in code] == []


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_opens_and_ends_as_all_do(name):
    text = cells(name, "markdown")
    title, first = text[0].split("\n\n")[:2]
    assert title.startswith("# ")
    assert len(first) <= 200 and first.count(". ") == 0 and first.endswith(".")
    for part in ("**You will**", "**You will learn**", "**You need**"):
        assert part in text[0]
    ending = text[-1]
    questions = re.findall(r"^\*\*\d\.\*\*", ending, re.M)
    assert 2 <= len(questions) <= 3
    assert ending.count("<details>") == ending.count("</details>") == len(questions)


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_is_plain_markdown_in_small_cells(name):
    text = "\n\n".join(cells(name, "markdown"))
    prose = re.sub(r"```.*?```|`[^`]*`|\$[^$]*\$", "", text, flags=re.S)
    assert set(re.findall(r"</?(\w+)", prose)) <= {"details", "summary"}
    assert "{note}" not in text and "```{" not in text
    assert len(re.findall(r"^# ", text, re.M)) == 1
    assert not re.search(r"\b0\d-the-", text), "a file's number stays out of the chapter"
    for cell in cells(name, "code")[1:]:  # the first is the same in every chapter
        if not cell.startswith("%%kernel"):
            assert len(cell.splitlines()) <= 6, cell


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_time_is_never_typed_in(name):
    """Milliseconds stand in the lesson's tables. Prose may quote a paper's, with its source."""
    for cell in cells(name, "markdown"):
        for line in cell.splitlines():
            if re.search(r"\d\s*(ms|milliseconds)\b", line):
                assert "arXiv" in line, line


def numbers(table, line):
    """The cells of a table's row that begins with ``line``, as whole numbers."""
    (cells,) = [c for c, _ in table.rows if c[0].startswith(line)]
    return [int(c.replace(",", "")) for c in cells[1:]]


def test_the_pad_is_what_the_chapter_says(emulated):
    """With it no line of the score loop conflicts; without it a read of K takes 32 passes."""
    line = "s += qTile"
    passes, least = numbers(lesson.bank_conflicts("attentionOnline"), line)
    assert passes == least
    padded = snippets("online")["state"]
    replace("online/state", padded.replace("kTile[BN][D + 1]", "kTile[BN][D]"))
    try:
        unpadded, _ = numbers(lesson.bank_conflicts("attentionOnline"), line)
    finally:
        lesson.reset()
    assert unpadded == least // 2 + 32 * least // 2  # one of its two reads is of Q


def test_the_bounds_follow_from_the_datasheet():
    rows = {cells[0]: cells[1:] for cells, _ in lesson.limits(4096).rows}
    operations, bytes_ = 4 * 4096**2 * 64, 16 * 4096 * 64 + 20 * 4096**2
    assert rows["multiplications and additions at 67 TFLOP/s, ms"][0] == f"{operations / 67e9:.4f}"
    assert rows["compulsory bytes at 4.8 TB/s, ms"][0] == f"{bytes_ / 4.8e9:.4f}"
    assert rows["SMs of 132 that get a block"] == ("132", "64")


def test_a_sentence_on_times_comes_from_a_record(monkeypatch, tmp_path):
    assert "recorded" in lesson.summary(4096).text()
    monkeypatch.setattr(evidence, "FOLDER", tmp_path)
    assert "no recorded run" in lesson.summary(4096).text()
    assert "no recorded run" in lesson.limits(4096).text()
