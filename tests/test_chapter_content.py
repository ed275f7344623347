"""What the five chapters must hold, whatever their prose says."""

import json
import re

import pytest
from conftest import ROOT
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
