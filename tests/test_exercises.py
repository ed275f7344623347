"""Exercises: each stub compiles and fails, each solution passes, and wrong answers do not."""

import ast
import json
import re

import numpy as np
import pytest
from lesson import exercises
from lesson.errors import ArgumentError, CompileError, LessonError
from lesson.machine import emulator, nvrtc
from lesson.text.edits import answers
from lesson.text.source import from_text
from support import ROOT

CHAPTERS = [ROOT / "book/exercises.ipynb", ROOT / "book/exercises-on-masks.ipynb"]
BEGIN, END = "your code", "end of your code"

pytestmark = pytest.mark.skipif(not emulator.available()[0], reason=str(emulator.available()[1]))
needs_nvrtc = pytest.mark.skipif(not nvrtc.available()[0], reason=str(nvrtc.available()[1]))


def shown_cells():
    """The cells of both pages of exercises."""
    return [cell for path in CHAPTERS
            for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]


def sections():
    """``{exercise: (prose, [stub cells], [solution blocks])}`` of the chapters."""
    found, prose, stubs = {}, "", []
    for cell in shown_cells():
        text = "".join(cell["source"])
        if cell["cell_type"] == "code":
            stubs += [text] if "exercise" in cell["metadata"].get("tags", ()) else []
            if check := re.match(r'lesson\.exercise\("(\w+)"', text):
                found[check[1]] = [prose, stubs, []]
                last, stubs = check[1], []
        elif text.startswith("<details>"):
            solution = text.split("<summary>Solution</summary>")[1]
            found[last][2] = re.findall(r"```(?:cuda|python)\n(.*?)\n```", solution, re.S)
            found[last][0] += text
        else:
            prose = text
    return found


SECTIONS = sections()
NAMES = tuple(SECTIONS)


def outside(text):
    """The lines of a cell that are not between the comments that mark the answer's place."""
    kept, inside = [], False
    for line in text.splitlines():
        if END in line:
            inside = False
        if not inside:
            kept.append(line)
        if BEGIN in line and END not in line:
            inside = True
    assert not inside
    return kept


def function(text):
    """The function that a Python cell defines."""
    space = {"np": np}
    exec(compile(text, "cell", "exec"), space)
    return space[ast.parse(text).body[0].name]


def check(name, cells, seed=None):
    """Run cells as a reader does, then the exercise's check."""
    given = None
    for text in cells:
        magic, _, body = text.partition("\n")
        if magic.startswith("%%kernel"):
            assert magic == f"%%kernel exercise/{name}"
            answers[name] = body
        else:
            given = function(text)
    return exercises.exercise(name, given, seed)


def kernel_cell(name, text):
    return f"%%kernel exercise/{name}\n{text}"


def solved(name):
    """The cells of an exercise as a reader leaves them who has solved it."""
    prose, stubs, solutions = SECTIONS[name]
    return stubs[:-1] + solutions


def test_every_exercise_stands_in_the_chapter():
    assert set(NAMES) == set(exercises.NAMES) and len(NAMES) >= 8
    assert set(answers) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_exercise_has_its_parts(name):
    prose, stubs, solutions = SECTIONS[name]
    task, predict = prose.split("**Predict first.**")[0], prose.split("**Predict first.**")[1]
    sentences = re.findall(r"[.?!:](?:\s|$)", re.sub(r"`[^`]*`", "x", task.split("\n\n")[1]))
    assert 2 <= len(sentences) <= 4, sentences  # two sentences, of which each may have a colon
    assert "?" in predict.split("<details>")[0]
    assert prose.count("<summary>Hint</summary>") == prose.count("<summary>Solution</summary>") == 1
    assert stubs and len(solutions) == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_solution_differs_from_its_stub_in_the_marked_place_only(name):
    _, stubs, (solution,) = SECTIONS[name]
    assert outside(solution) == outside(stubs[-1])
    assert solution != stubs[-1]


@pytest.mark.parametrize("name", NAMES)
def test_a_stub_says_how_long_the_answer_is(name):
    _, stubs, (solution,) = SECTIONS[name]
    said = re.findall(rf"{BEGIN}, (?:about )?(\d+) lines?$", solution, re.M)
    if not said:  # lines to change, or places of which some stay empty
        assert "change these lines" in stubs[-1] or "at most 1 line" in stubs[-1]
        return
    marked = len(solution.splitlines()) - len(outside(solution))
    assert [int(number) for number in said] == [marked]


@pytest.mark.parametrize("name", NAMES)
def test_the_answer_stands_nowhere_else(name):
    """Neither the checker nor the chapter's metadata nor a stub holds a line of a solution."""
    code = [cell for cell in shown_cells() if cell["cell_type"] == "code"]
    shown = "\n".join(["".join(cell["source"]) for cell in code]
                      + [json.dumps([cell["metadata"] for cell in shown_cells()], indent=1)]
                      + [(ROOT / "book/lesson/exercises.py").read_text(encoding="utf-8")])
    _, stubs, (solution,) = SECTIONS[name]
    new = {line.strip() for line in solution.splitlines()} - {
        line.strip() for line in stubs[-1].splitlines()}
    new = {line for line in new if len(line) > 4}
    assert new
    assert not new & {line.strip() for line in shown.splitlines()}


@pytest.mark.slow  # N above 320
@pytest.mark.parametrize("name", NAMES)
def test_a_stub_compiles_and_fails(name):
    found = check(name, SECTIONS[name][1])
    assert not found.passed
    assert any(row.met is False for row in found.rows), found
    assert "Not yet" in repr(found) and "data-mark" in found._repr_html_()


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
@pytest.mark.parametrize("name", [n for n in NAMES if SECTIONS[n][1][0].startswith("%%kernel")])
def test_stubs_and_solutions_compile_for_a_gpu(name, arch):
    for text in {SECTIONS[name][1][0], solved(name)[0]}:
        nvrtc.compile_cubin(exercises.build(name, text.partition("\n")[2]), arch)


@pytest.mark.slow  # N above 320
@pytest.mark.parametrize("name", NAMES)
def test_a_solution_passes(name):
    found = check(name, solved(name))
    assert all(row.met is not False for row in found.rows), found
    if nvrtc.available()[0]:
        assert found.passed and "Solved" in repr(found), found


def swap(name, *swaps):
    """A solved exercise with replacements in its last cell: an answer that is nearly right."""
    cells = solved(name)
    for old, new in swaps:
        assert cells[-1].count(old) == 1, old
        cells[-1] = cells[-1].replace(old, new)
    return cells


WRONG = {
    "update: no rescale": ("update", ("o0[r] *= rescale;", ""), ("o1[r] *= rescale;", "")),
    "update: no rescale of l": ("update", ("l[r] * rescale +", "l[r] +")),
    "update: the tile's maximum": ("update", ("fmaxf(m[r], warpMax(s))", "warpMax(s)")),
    "update: no maximum": ("update", ("fmaxf(m[r], warpMax(s))", "0.0f")),
    "update: every weight 1": ("update", ("expf(s - mNew)", "1.0f")),
    "update: one column for the other": ("update", ("vTile[j][lane + 32]", "vTile[j][lane]")),
    "update: a key left out": ("update", ("int j = 0;", "int j = 1;")),
    "barriers: none before the loads": (
        "barriers", ("__syncthreads();   // all reads of the tile before must be over", "")),
    "barriers: none after the loads": (
        "barriers", ("__syncthreads();   // the tiles must be complete", "")),
    "barriers: of a warp only": (
        "barriers", ("__syncthreads();   // the tiles must be complete", "__syncwarp();")),
    "barriers: one too many": (
        "barriers", ("__syncthreads();   // the tiles must be complete",
                     "__syncthreads(); __syncthreads();")),
    "swizzle: no pad, no swizzle": ("swizzle", ("(e ^ key)", "e")),
    "swizzle: half of the banks": ("swizzle", ("(e ^ key)", "(e ^ (key & 15))")),
    "swizzle: two elements in one place": ("swizzle", ("(e ^ key)", "((e ^ key) & 31)")),
    "swizzle: beyond the tile": ("swizzle", ("(e ^ key)", "(e + key)")),
    "registers: a row left out": ("registers", ("r = 0;", "r = 1;")),
    "registers: not unrolled": ("registers", ("#pragma unroll", "#pragma unroll 1")),
    "tile: bank conflicts": ("tile", ("(e ^ key)", "e")),
    "tile: 64 rows": ("tile", ("BM = 128", "BM = 64")),
    "bytes: K and V once": ("bytes", ("64 * (n // 64)", "64")),
    "bytes: the first load forgotten": ("bytes", ("(n // 32 + 1)", "(n // 32)")),
    "bytes: nothing stored": ("bytes", ("stores += 4 * n * 64   ", "stores += 0")),
    "merge: no rescale": ("merge", ("a.l * ra + b.l * rb", "a.l + b.l")),
    "merge: NaN from two empty parts": ("merge", ("a.m == c.m ? 1.0f : ", "")),
    "merge: one side": ("merge", ("a.o * ra + b.o * rb", "a.o * ra + b.o")),
    "merge: divided output": ("merge", ("a.o * ra + b.o * rb", "(a.o * ra + b.o * rb) / c.l")),
    "products: lo lo": ("products", ("qHi[i][step], lo[j]", "qLo[i][step], lo[j]")),
    "products: hi hi again": ("products", ("qHi[i][step], lo[j]", "qHi[i][step], hi[j]")),
    "products: four": ("products", ("qHi[i][step], lo[j]);", "qHi[i][step], lo[j]); "
                                    "mma(s[i][j0 + j], qLo[i][step], lo[j]);")),
    "notice: the spike comes first": ("notice", ("k[-1, 0]", "k[0, 0]")),
    "notice: scores out of bounds": ("notice", ("4 * 9", "4 * 90")),
    "align: bottom right": ("align", ("min(row + 1, end)", "max(0, min(row + 1 + nK - nQ, end))")),
    "align: off by one": ("align", ("min(row + 1, end)", "min(row, end)")),
    "align: past the end": ("align", ("min(row + 1, end)", "row + 1")),
    "align: always": ("align", ("causal ? min(row + 1, end) : end", "min(row + 1, end)")),
    "share: in groups": ("share", ("head % heads % kvHeads", "head % heads / (heads / kvHeads)")),
    "share: one for all": ("share", ("head % heads % kvHeads", "0")),
    "walk: the first row": ("walk", ("last + 1 + keys", "row0 + 1 + keys")),
    "walk: off by one": ("walk", ("max(0, last + 1", "max(0, last")),
    "walk: negative": ("walk", ("max(0, last + 1 + keys - queries)", "last + 1 + keys - queries")),
    "blind: a square": ("blind", ("80, 40", "80, 80")),
    "blind: more keys": ("blind", ("80, 40", "40, 80")),
    "blind: too long": ("blind", ("80, 40", "800, 40")),
    "blind: blocks that walk nothing": ("blind", ("80, 40", "80, 16")),
    "start: too low": ("start", ("-4 * 98", "-4 * 105")),
    "start: high enough for expf": ("start", ("-4 * 98", "-4 * 80")),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", WRONG)
def test_what_is_nearly_right_does_not_pass(what):
    name, *swaps = WRONG[what]
    if name == "registers" and not nvrtc.available()[0] and "not unrolled" in what:
        pytest.skip(nvrtc.available()[1])
    found = check(name, swap(name, *swaps))
    assert any(row.met is False for row in found.rows), found


@pytest.mark.slow
def test_another_right_answer_passes():
    found = check("swizzle", swap("swizzle", ("(e ^ key)", "(e + key) % D")))
    assert all(row.met is not False for row in found.rows), found
    found = check("merge", swap(
        "merge", ("a.m == c.m ? 1.0f : expf(a.m - c.m);", "a.l > 0.0f ? expf(a.m - c.m) : 0.0f;"),
        ("b.m == c.m ? 1.0f : expf(b.m - c.m);", "b.l > 0.0f ? expf(b.m - c.m) : 0.0f;")))
    assert found.passed, found


def test_the_maximum_of_the_tile_is_caught_with_every_seed():
    """It gives the right quotient until it falls by so much that the rescale overflows."""
    for seed in range(50):
        for multiple in (64, 128):
            case = list(exercises.fresh(seed, multiple))[-1]
            tiles = (case.q @ case.k.T / 8).reshape(case.n, -1, 32).max(axis=2)
            with np.errstate(over="ignore"):
                rescale = np.exp(tiles[:, :-1] - tiles[:, 1:])  # float32, as in the kernel
            assert np.isinf(rescale).any(axis=1).all(), seed


def test_inputs_are_fresh_and_a_seed_repeats_them():
    first, again, other = (list(exercises.fresh(seed)) for seed in (1, 1, 2))
    assert [case.name for case in first] == list(exercises.FRESH)
    for a, b, c in zip(first, again, other, strict=True):
        assert np.array_equal(a.q, b.q) and np.array_equal(a.v, b.v)
        assert a.n != c.n or not np.array_equal(a.q, c.q)
    seeds = {re.search(r"seed (\d+)", check("merge", solved("merge")).note)[1] for _ in range(3)}
    assert len(seeds) > 1


def test_fresh_inputs_are_what_their_names_say():
    """On 20 seeds: the spike moves every row's maximum where it should; levels are as stated."""
    for seed in range(20):
        for case in exercises.fresh(seed):
            s = case.q.astype(np.float64) @ case.k.T / 8
            tiles = s.reshape(case.n, -1, 32).max(axis=2)
            if case.name == "a spike in the last tile":
                jump = tiles[:, -1] - tiles[:, :-1].max(axis=1)
                assert (jump > 1).mean() > 0.95
            elif case.name == "a spike in the first tile":
                assert (tiles.argmax(axis=1) == 0).mean() > 0.95
            elif case.name == "rising scores":
                assert (np.diff(tiles, axis=1) > 0).mean() > 0.6
            elif case.name == "scores below -100":
                assert s.max() < -100
            elif case.name == "scores beyond ±100":
                assert s.min() < -100 and s.max() > 100


def passes(emulated, index):
    """(passes, passes without conflicts) of 2 warps that read word ``index`` of shared memory."""
    text = f'''extern "C" __global__ void f(float* x) {{
        __shared__ float tile[4096];
        for (int i = threadIdx.x; i < 4096; i += 64) tile[i] = i;
        __syncthreads();
        const int lane = threadIdx.x % 32;
        x[threadIdx.x] = tile[{index}]; }}'''
    program = emulated.compile(from_text(text, "banks.cu"))
    found = program.shared_accesses("f", (1,), (64,), (emulated.full((64,), 0),))
    read, = (access for access in found if "x[threadIdx.x]" in access.line)
    store, = (access for access in found if "tile[i] = i" in access.line)
    assert (store.wavefronts, store.ideal) == (128, 128)  # 64 rounds of 2 warps
    return read.wavefronts, read.ideal


@pytest.mark.parametrize("index, conflict", [
    ("lane", 1), ("2 * lane", 2), ("3 * lane", 1), ("8 * lane", 8), ("32 * lane", 32),
    ("33 * lane", 1), ("64 * lane", 32), ("65 * lane", 1), ("64 * lane + lane", 1),
    ("17 * lane", 1), ("7", 1), ("lane / 2", 1), ("32 * (lane % 2)", 2)])
def test_bank_conflicts_are_those_of_32_banks_of_one_word(emulated, index, conflict):
    assert passes(emulated, index) == (2 * conflict, 2)


def test_a_mistake_in_the_cell_is_reported_in_its_lines():
    cell = SECTIONS["swizzle"][1][0].replace("+ e;", "+ e")
    with pytest.raises(CompileError) as error:
        check("swizzle", [cell])
    line = cell.splitlines().index("    return key * K_STRIDE + e") + 1
    assert f"cell exercise/swizzle, line {line}: expected ';'" in str(error.value)


def test_questions_that_cannot_be_answered_are_refused(monkeypatch):
    with pytest.raises(ArgumentError, match="no exercise is called 'updat'; there are: update"):
        exercises.exercise("updat")
    with pytest.raises(ArgumentError, match="needs your function"):
        exercises.exercise("notice")
    with pytest.raises(ArgumentError, match=r"must return q, k, v of shape \(\d+, 64\)"):
        exercises.exercise("notice", lambda n: None)
    with pytest.raises(ArgumentError, match="k has shape"):
        exercises.exercise("start", lambda n: (np.ones((n, 64)), np.ones((n, 3)), np.ones((n, 64))))
    monkeypatch.setitem(answers, "update", None)
    with pytest.raises(LessonError, match="run the cell that begins with %%kernel exercise/update"):
        exercises.exercise("update")


def test_without_a_backend_a_check_says_so_and_decides_nothing(monkeypatch):
    monkeypatch.setattr(exercises.backends, "choose", lambda: None)
    found = exercises.exercise("update")
    assert not found.passed and found.rows[0].met is None
    assert "Not decided on this machine" in repr(found)
