"""What the chapters of the ladder must hold: two of rungs, the merge, and the comparison."""

import re

from lesson.launch import rungs
from lesson.show.ladder import SEEN
from lesson.show.plots import PICTURES, PLOTS
from support.chapters import cells
from support.ladder import LETTERS

RUNGS = ("the-ladder", "the-upper-ladder")
CHAPTERS = (*RUNGS, "tensor-cores", "past-float32", "hopper", "the-merge",
            "the-comparison", "attention-in-use", "more-than-one-gpu")
ALL = rungs.ALL[1:]
SHOWN = (*(f"lesson.rung({r.number})" for r in ALL),
         *(f'lesson.ladder("{what}"' for what in SEEN),
         *(f'lesson.plot("{what}"' for what in PLOTS
           if what not in ("score matrix", *PICTURES)))


def joined(kind, chapters=CHAPTERS):
    return "\n".join(cell for name in chapters for cell in cells(name, kind))


def test_every_rung_view_and_plot_is_shown_and_the_rungs_in_their_order():
    code = joined("code")
    assert [call for call in SHOWN if call not in code] == []
    places = [code.index(f"lesson.rung({r.number})") for r in ALL]
    assert places == sorted(places)


def test_each_rung_is_announced_and_the_branch_is_called_one():
    """A heading names every rung, in order: '### 5. ..', '### 11 to 13. ..'."""
    text = joined("markdown", (*RUNGS, "past-float32", "hopper"))
    named = []
    for first, last in re.findall(r"^### (\d+)(?: (?:to|and) (\d+))?\. ", text, re.M):
        named += range(int(first), int(last or first) + 1)
    assert named == [r.number for r in ALL]
    assert re.findall(r"^### (\d+)\. A branch", text, re.M) == [str(rungs.SMALL.number)]
    assert f"it is a branch that leaves the ladder at rung {rungs.SMALL.leaves}" in text


def test_what_the_chapter_says_of_letters_and_bytes():
    text = joined("markdown")
    for letter, meaning in LETTERS.items():
        assert f"`{letter}`" in text or letter == "SLACK", meaning
    for r, words in ((rungs.BEST, "asks for"), (rungs.WARPS, "its variant rung 20 for")):
        assert r.shared % 1024 == 0
        assert f"{words} {r.shared // 1024} KiB" in text
    assert f"Rung {rungs.SMALL.number} runs on every GPU since Turing" in text


def test_no_time_and_no_speed_is_typed_in():
    for cell in [cell for name in CHAPTERS for cell in cells(name, "markdown")]:
        assert not re.search(r"\d\s*(ms|milliseconds|TFLOP)\b", cell), cell
        assert not re.search(r"\d times (faster|slower|as fast)", cell), cell
