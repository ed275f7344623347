"""What every chapter that is read must hold, whatever its prose says."""

import json
import re

import lesson
import pytest
from lesson.show.plots import PICTURES
from lesson.text.source import snippets
from support import BOOK
from support.chapters import CHAPTERS, cells, passages, words

KERNELS = {"the-materialised-path": "materialised", "the-online-kernel": "online"}

# Those that are read from the top to the end.
READ = [name for name in CHAPTERS
        if name not in ("exercises.ipynb", "exercises-on-masks.ipynb", "playground.ipynb")]


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_shown_whole_and_as_it_is(name):
    shown = {}
    for cell in cells(name, "code", without="exercise"):  # which holds a change
        if cell.startswith("%%kernel "):
            magic, text = cell.split("\n", 1)
            shown[magic.removeprefix("%%kernel ")] = text
    kernel = KERNELS[name]
    wanted = {f"{kernel}/{s}": text.rstrip("\n") for s, text in snippets(kernel).items()}
    assert set(shown) == set(wanted)
    assert shown == wanted


def test_the_online_kernel_is_read_in_the_order_of_its_file():
    shown = re.findall(r"^%%kernel online/(\w+)", "\n".join(cells("the-online-kernel", "code")),
                       re.M)
    assert shown == list(snippets("online"))


def test_every_verb_stands_in_a_chapter_or_on_a_page():
    code = "\n".join(cell for name in CHAPTERS for cell in cells(name, "code"))
    pages = "\n".join(path.read_text(encoding="utf-8") for path in BOOK.glob("*.md"))
    prose = "\n".join(cell for name in CHAPTERS for cell in cells(name, "markdown"))
    said = set(re.findall(r"lesson\.(\w+)\(", f"{code}\n{prose}\n{pages}"))
    assert set(lesson.VERBS) - said == set()


@pytest.mark.parametrize("name", READ)
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


@pytest.mark.parametrize("name", READ)
def test_a_chapter_is_plain_markdown_in_small_cells(name):
    text = "\n\n".join(cells(name, "markdown"))
    prose = re.sub(r"```.*?```|`[^`]*`|\$[^$]*\$", "", text, flags=re.S)
    assert set(re.findall(r"</?(\w+)", prose)) <= {"details", "summary"}
    assert "{note}" not in text and "```{" not in text
    assert len(re.findall(r"^# ", text, re.M)) == 1
    for cell in cells(name, "code")[1:]:  # the first is the same in every chapter
        if not cell.startswith("%%kernel"):
            assert len(cell.splitlines()) <= 12, cell


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_speaks_to_its_reader(name):
    found = words("\n\n".join(cells(name, "markdown")))
    spoken = [w for w in found if w.lower().strip(".,") in ("you", "we", "us", "let")]
    assert len(spoken) >= 12 * len(found) / 1000


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_reader_never_reads_for_long_before_something_happens(name):
    """Something to run, to see or to predict: a cell, a table, a folded answer."""
    long = [text for text in passages(name) if len(words(text)) > 120]
    assert long == []


@pytest.mark.parametrize("name", READ)
def test_a_time_is_never_typed_in(name):
    """Milliseconds stand in the lesson's tables. Prose may quote a paper's, with its source."""
    for cell in cells(name, "markdown"):
        for line in cell.splitlines():
            if re.search(r"\d\s*(ms|milliseconds)\b", line):
                assert "arXiv" in line, line


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_stands_in_a_chapter_and_has_its_question_before_it(name):
    asked = []
    for chapter in CHAPTERS:
        book = json.loads((BOOK / chapter).read_text(encoding="utf-8"))["cells"]
        asked += ["".join(before["source"]) for before, cell in zip(book, book[1:])
                  if f'lesson.plot("{name}")' in "".join(cell["source"])]
    assert len(asked) == 1 and "?" in asked[0].split("\n\n")[-1]
