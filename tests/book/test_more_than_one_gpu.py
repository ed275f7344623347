"""The chapter on more than one GPU: its cells, with what a reader would change, and its numbers."""

import lesson
import numpy as np
import pytest
from lesson.machine.gpus import H200
from lesson.problem import cases
from lesson.problem.gate import judge
from lesson.problem.reference import attention
from lesson.show import several_gpus
from lesson.spread import model, processes
from lesson.spread import run as spread
from support.chapters import cells

NAME = "more-than-one-gpu"


@pytest.fixture(scope="module")
def page():
    """What the chapter's cells define up to the ring."""
    found = {"lesson": lesson, "np": np}
    for cell in cells(NAME, "code"):
        if any(name in cell for name in ("def deal", "def part", "exact = part", "def ring")):
            exec(cell, found)
    return found


def says(words):
    assert "\n".join(cells(NAME, "markdown") + cells(NAME, "code")).count(words) == 1, words


def fraction(case, o):
    ref = attention(case.q, case.k, case.v)
    return judge(o, ref.o, case.problem, ref.max_abs_score).fraction


@pytest.mark.parametrize("p", (1, 3, 8))
@pytest.mark.parametrize("name", ("spike-late", "large", "random"))
def test_both_ways_of_the_page_pass_the_gate(page, name, p):
    case = cases.make(name, 300)
    parts = [page["part"](case.q, case.k[share], case.v[share]) for share in page["deal"](300, p)]
    _, l, o = page["reduce"](page["merge"], parts)
    assert fraction(case, o / l[:, None]) < 0.35
    assert fraction(case, page["ring"](case, p)) < 0.35


def test_a_maximum_and_sums_are_the_merge(page):
    cell = next(cell for cell in cells(NAME, "code") if "top = " in cell)
    exec(cell, page)
    assert fraction(page["case"], page["o"] / page["l"][:, None]) < 0.35


def test_what_a_reader_changes_does_what_the_answers_say(page):
    n, p, case = 300, 4, cases.make("random", 300)
    says("ends = [0] + [n // 2 + n // 2 * r // (p - 1) for r in range(p)]")
    ends = [0] + [n // 2 + n // 2 * r // (p - 1) for r in range(p)]
    shares = [slice(a, b) for a, b in zip(ends, ends[1:])]
    assert len(shares) == p and ends[-1] == n and ends[1] == n // 2
    parts = [page["part"](case.q, case.k[share], case.v[share]) for share in shares]
    _, l, o = page["reduce"](page["merge"], parts)
    assert fraction(case, o / l[:, None]) < 0.35
    text = next(cell for cell in cells(NAME, "code") if "def ring" in cell)
    line = "        keys = keys[-1:] + keys[:-1]  # every rank passes its keys on to the next\n"
    loop = "    for step in range(p):\n"
    assert line in text and loop in text
    changed = dict(page)
    exec(text.replace(line, "").replace(loop, loop + line), changed)
    assert fraction(case, changed["ring"](case, 3)) < 0.35
    flat = cases.make("flat", 300)
    parts = [page["part"](flat.q, flat.k[s], flat.v[s]) for s in page["deal"](300, 3)]
    _, l, o = page["reduce"](page["merge"], [*parts, parts[2]])
    assert np.isfinite(o / l[:, None]).all() and fraction(flat, o / l[:, None]) > 1


def test_numbers_of_the_page():
    says("Sixteen times the keys take 256 times as long")
    says("66 numbers")
    says("128 numbers for each key")
    says("Between machines each GPU has a ninth of that")
    assert H200.link_bytes_per_s / H200.network_bytes_per_s == 9
    says("Merging moves about half.")
    for d in (64, 128):
        merge, ring = (model.moved_bytes(1, 2, way, d, False) for way in spread.WAYS)
        assert 0.5 < merge / ring < 0.52
    says("a, B = 5.3e-12, 50e9")
    _, unit = several_gpus.one_gpu()
    assert f"{unit:.1e}" == "5.3e-12" and H200.network_bytes_per_s == 50e9
    says("For short sequences a few dozen GPUs are all that one head can use.")
    useful = [model.useful_ranks(65536, way, unit, 50e9) for way in spread.WAYS]
    assert 24 < useful[1] < useful[0] < 72
    says("1,024 ranks merge in ten steps")
    says("by ring it says 512 x 2,000 x 3")
    assert model.moved_bytes(2000, 4, "ring") == 512 * 2000 * 3
    assert "the same command goes on" in processes.ADVICE
