"""Kernel cells: what they change, what they say, and that the shared kernels stay as they are."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lesson
import nbformat
import pytest
from conftest import ROOT, missing
from lesson import backend, cases, host, nvrtc, report, source
from lesson.compare import one, one_order
from lesson.edits import current, edited, find, replace, targets
from lesson.errors import ArgumentError, CompileError, LessonError
from lesson.mutants import MUTANTS, RACE
from lesson.timing import Timing
from nbclient import NotebookClient

SNAPSHOT = Path(__file__).parent / "mutant_messages.txt"
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
SOURCES = ("online", "materialised")

needs_nvrtc = pytest.mark.skipif(not nvrtc.available()[0], reason=str(nvrtc.available()[1]))


def digests():
    return {name: hashlib.sha256(source.path_of(name).read_bytes()).hexdigest()
            for name in SOURCES}


@pytest.fixture(scope="module", autouse=True)
def kernels_stay_as_they_are():
    before = digests()
    yield
    assert digests() == before


@pytest.fixture(autouse=True)
def no_edits():
    yield
    lesson.reset()
    assert not edited()


CHOOSE = backend.choose


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    """The same tests on every machine: emulated, also where there is a GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # for the notebooks' kernels
    if host.available()[0]:
        monkeypatch.setattr(backend, "choose", lambda kind=None: CHOOSE(kind or "emulated"))


def edit(target, old, new):
    """Edit one place of a snippet, as a reader does."""
    name, snippet = find(target)
    text = source.snippets(name)[snippet]
    assert text.count(old) == 1, old
    return replace(target, text.replace(old, new))


def run_notebook(cells):
    """Run code cells in a real kernel, errors allowed. Returns the text that each printed."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    client = NotebookClient(notebook, timeout=300, allow_errors=True,
                            resources={"metadata": {"path": str(ROOT / "book")}},
                            extra_arguments=["--log-level=ERROR"])
    client.execute()
    found = []
    for cell in notebook.cells:
        parts = []
        for output in cell.outputs:
            if output.output_type == "stream" and output.name == "stdout":
                parts.append(output.text)
            elif output.output_type == "error":
                parts.append("\n".join(output.traceback))
            elif "data" in output:
                parts.append(output.data.get("text/plain", ""))
        found.append(ESCAPES.sub("", "\n".join(parts)))
    return found


# ---- in a real notebook -----------------------------------------------------------------------

@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    """Every snippet of both sources in one notebook: as it is, edited, broken, and repaired.

    Returns {(target, step): output of the cell that follows}: of a gate, run by the emulator, and
    of the two compilations that CuPy does on a GPU.
    """
    ready, reason = host.available()
    if not ready:
        missing(reason)
    steps, cells = [], ["import lesson"]
    for name in SOURCES:
        for snippet, text in source.snippets(name).items():
            target = f"{name}/{snippet}"
            for step, body in (("as it is", text), ("edited", f"{text}// mine\n"),
                               ("broken", f"{text}    oops oops;\n"), ("repaired", text)):
                steps.append((target, step))
                cells.append(f"%%kernel {target}\n{body}")
                cells.append(f'lesson.gate("{name}", "spike-late", n=64)')
                cells.append("\n".join([
                    "from lesson import nvrtc", "from lesson.edits import current",
                    'for arch in ("sm_75", "sm_90"):',
                    f'    nvrtc.compile_cubin(current("{name}"), arch)',
                    'print("compiled")']))
    outputs = run_notebook(cells)[1:]
    return {step: outputs[3 * i:3 * i + 3] for i, step in enumerate(steps)}


TARGETS = [f"{name}/{snippet}" for name in SOURCES for snippet in source.snippets(name)]


@pytest.mark.parametrize("target", TARGETS)
def test_an_unedited_cell_changes_nothing(walk, target):
    magic, gate, _ = walk[target, "as it is"]
    assert magic == "" and " pass " in gate and "edited" not in gate


@pytest.mark.parametrize("target", TARGETS)
def test_an_edited_cell_is_compiled_and_named(walk, target):
    magic, gate, _ = walk[target, "edited"]
    assert magic.strip() == f"{target} is edited: what runs next compiles this cell."
    assert not re.search(r"\d", magic) and magic.count("\n") == 1
    assert " pass " in gate and f"edited: {target}" in gate


@pytest.mark.parametrize("target", TARGETS)
def test_a_broken_cell_is_reported_in_its_own_lines(walk, target):
    _, gate, compiled = walk[target, "broken"]
    line = len(source.snippets(find(target)[0])[find(target)[1]].splitlines()) + 2
    for said in [gate] + [compiled] * nvrtc.available()[0]:
        assert said.startswith("CompileError: "), said
        assert f"cell {target}, line {line}: " in said and "oops oops;" in said
        assert "Traceback" not in said and "/tmp" not in said and ".py" not in said


@pytest.mark.parametrize("target", TARGETS)
def test_a_repaired_cell_is_the_file_again(walk, target):
    magic, gate, _ = walk[target, "repaired"]
    assert magic.strip() == f"{target}: as in the file again."
    assert " pass " in gate and "edited" not in gate


@needs_nvrtc
@pytest.mark.parametrize("target", TARGETS)
def test_what_cupy_compiles_is_what_the_cells_say(walk, target):
    for step in ("as it is", "edited", "repaired"):
        assert walk[target, step][2].strip() == "compiled", (step, walk[target, step][2])


def test_a_readers_mistakes_get_short_answers():
    """Wrong names, help and completion, in the notebook; never more than five lines of traceback.
    """
    score = source.snippets("online")["score"]
    outputs = run_notebook([
        "import lesson", f"%%kernel online/scor\n{score}", f"%%kernel onlin/score\n{score}",
        f"%%kernel online score\n{score}", "%%kernel exercise/updat\nx",
        'get_ipython().complete("online/s", "%%kernel online/s", 17)[1]',
        'get_ipython().complete("exercise/m", "%%kernel exercise/m", 19)[1]',
        'print(get_ipython().object_inspect_text("%%kernel"))',
        f"%%kernel online/score\n{score.replace('s *= scale;', 's *= 2;')}",
        "lesson.edits()", "lesson.reset()", "lesson.edits()",
        f"%%kernel online/score\n{score.replace('[e]', '[e + 4096 * 4096]')}",
        'lesson.gate("online", "random", 64)',
        'lesson.save("../kernels/online.cu")',
    ])
    assert all(f"online/{s}" in outputs[1] for s in source.snippets("online"))
    assert all(name in outputs[2] for name in SOURCES) and "online/score" in outputs[2]
    assert "needs one name" in outputs[3]
    assert "exercise/update" in outputs[4]
    for said in (*outputs[1:5], outputs[13], outputs[14]):
        assert re.match(r"(Argument|Launch)Error: ", said) and len(said.splitlines()) <= 5, said
    assert outputs[5] == "['online/state', 'online/score']"
    assert outputs[6] == "['exercise/merge']"
    assert "%%kernel online/score" in outputs[7] and "lesson.compare()" in outputs[7]
    assert "-            s *= scale;" in outputs[9] and "+            s *= 2;" in outputs[9]
    assert outputs[10].strip() == "back to the file: online/score"
    assert outputs[11] == "nothing is edited"
    assert "cell online/score, line 6" in outputs[13]
    assert "never written to" in outputs[14]


def test_ipython_is_needed_nowhere_else():
    done = subprocess.run([sys.executable, "-c", "import sys, lesson; "
                           "print(any(m.split('.')[0] == 'IPython' for m in sys.modules))"],
                          cwd=ROOT / "book", capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


LADDER = [target for target in targets() if target.startswith("ladder/")]


@pytest.mark.skipif(not LADDER, reason="there is no ladder")
def test_a_broken_cell_of_the_ladder_is_reported_in_its_own_lines():
    compilers = [lambda text: nvrtc.compile_cubin(text, "sm_90")] if nvrtc.available()[0] else \
        [host.HostBackend().compile] if host.available()[0] else missing("no compiler")
    for target in LADDER:
        name, snippet = find(target)
        text = source.snippets(name)[snippet] if snippet else source.read(name)
        replace(target, f"{text.rstrip()}\n    oops oops;\n")
        with pytest.raises(CompileError) as error:
            compilers[0](current(name))
        line = text.rstrip().count("\n") + 3
        assert f"cell {target}, line {line}: " in str(error.value)
        replace(target, text)


# ---- which text is compiled -------------------------------------------------------------------

def test_targets_are_sources_snippets_and_exercises():
    assert {"online", "online/score", "materialised/softmax", "exercise/merge"} <= set(targets())


def test_a_whole_source_and_its_snippets_take_each_others_place():
    whole = source.read("online").replace("s *= scale;", "s *= scale + 0.0f;")
    edit("online/load", "// the same", "// mine")
    said = replace("online", whole)
    assert edited() == ["online"] and "It takes the place of online/load" in said
    assert current("online").text.startswith('#line 2 "cell online"\n')
    said = edit("online/load", "// the same", "// mine")
    assert edited() == ["online/load"] and "It takes the place of online" in said
    replace("online", whole)
    assert replace("online", source.read("online")) == "online: as in the file again."
    assert current("online") == source.load("online")


def test_white_space_at_the_end_is_no_edit():
    assert replace("online/score", source.snippets("online")["score"] + "\n\n  ") == ""
    assert not edited() and current("online").text == source.read("online")


@pytest.mark.parametrize("target", ["online/score", "online"])
def test_line_one_of_a_cell_is_the_magic(target):
    name, snippet = find(target)
    text = source.snippets(name)[snippet] if snippet else source.read(name)
    replace(target, f"{text.rstrip()}\n// last\n")
    from lesson.explain import line_of

    assert line_of(current(name), f"cell {target}", 1) == ""
    for number, line in enumerate(text.rstrip().splitlines(), 2):
        assert line_of(current(name), f"cell {target}", number) == line.strip()


def test_reset_of_one_snippet_keeps_the_others(capsys):
    edit("online/load", "// the same", "// mine")
    edit("online/score", "s *= scale;", "s = s * scale;")
    edit("materialised/softmax", "l += w;", "l = l + w;")
    lesson.reset("online/load")
    assert edited() == ["online/score", "materialised/softmax"]
    lesson.reset("online")
    assert edited() == ["materialised/softmax"]
    lesson.reset()
    lesson.reset()
    assert not edited() and capsys.readouterr().out.splitlines()[-1] == "nothing was edited"


def test_the_diff_says_what_a_reader_changed():
    edit("online/score", "s *= scale;", "s = s * scale;")
    text = repr(lesson.edits())
    assert [line for line in text.splitlines() if line[0] in "+-" and line[:3] not in "+++---"] \
        == ["-            s *= scale;", "+            s = s * scale;"]
    page = lesson.edits()._repr_html_()
    assert 'data-mark="computed"' in page and "s = s * scale;" in page


def test_a_saved_kernel_is_a_complete_file(tmp_path, emulated):
    edit("online/score", "s *= scale;", "s = s * scale;")
    edit("online/load", "// the same", "// mine")
    path = lesson.save(tmp_path / "mine.cu")
    assert path.read_text() == source.read("online").replace(
        "s *= scale;", "s = s * scale;").replace("// the same", "// mine")
    done = subprocess.run([sys.executable, "-m", "lesson", "check", str(path), "--backend",
                           "emulated", "--n", "64"], cwd=ROOT / "book", capture_output=True,
                          text=True)
    assert done.returncode == 0 and "all cases passed" in done.stdout, done.stderr
    if shutil.which("nvcc"):
        subprocess.run(["nvcc", "-arch=sm_75", "-cubin", "-o", tmp_path / "mine.cubin", path],
                       check=True)
    replace("materialised", source.read("materialised") + "// mine\n")
    with pytest.raises(ArgumentError, match="several sources are edited; choose one"):
        lesson.save(tmp_path / "mine.cu")
    assert lesson.save(tmp_path / "m.cu", "materialised").read_text().endswith("// mine\n")


def test_save_refuses_what_it_must_not_write(tmp_path):
    with pytest.raises(ArgumentError, match="nothing is edited; choose a source"):
        lesson.save(tmp_path / "mine.cu")
    edit("online/score", "s *= scale;", "s = s * scale;")
    shared = source.path_of("online")
    (tmp_path / "link.cu").symlink_to(shared)
    os.link(shared, tmp_path / "hard.cu")
    for path in (shared, source.KERNELS / "new.cu", tmp_path / "link.cu", tmp_path / "hard.cu"):
        with pytest.raises(ArgumentError, match="the shared kernels are never written to"):
            lesson.save(path)
    with pytest.raises(ArgumentError, match=r"needs a name that ends in \.cu"):
        lesson.save(tmp_path / "mine.txt")
    with pytest.raises(ArgumentError, match="cannot be written"):
        lesson.save(tmp_path / "no/folder/mine.cu")


# ---- what a reader sees -----------------------------------------------------------------------

def slip(target, old, new):
    """The messages that the C++ compiler and NVRTC have for a slip, without the first line."""
    edit(target, old, new)
    compilers = [host.HostBackend().compile] if host.available()[0] else []
    if nvrtc.available()[0]:
        compilers.append(lambda text: nvrtc.compile_cubin(text, "sm_75"))
    if not compilers:
        missing("neither a C++ compiler nor NVRTC")
    found = []
    for compiler in compilers:
        with pytest.raises(CompileError) as error:
            compiler(current(find(target)[0]))
        first, *rest = str(error.value).splitlines()
        assert first.endswith(" does not compile")
        found.append(rest)
    return found


def test_a_missing_semicolon_on_line_7_of_a_cell():
    for said in slip("online/score", "s *= scale;", "s *= scale"):
        assert said[0].startswith("cell online/score, line 7: expected ';'")
        assert said[1].strip() == "s *= scale" and said[2].index("^") == len(said[1])
        assert len(said) == 3


def test_a_misspelt_intrinsic():
    for said in slip("online/update", "__shfl_sync(", "__shlf_sync("):
        assert said[0].startswith("cell online/update, line 9: ")
        assert "__shlf_sync" in said[0] and "did you mean '__shfl_sync'?" in said[0]
        assert "__shlf_sync(FULL, w, j)" in said[1]


def test_a_misspelt_function():
    for said in slip("online/update", "w = expf(", "w = exfp("):
        assert "line 4: " in said[0] and "did you mean 'expf'?" in said[0]


@pytest.mark.parametrize("old, new, what", [
    ("        }\n        __sync", "        __sync", "a '}' is missing"),
    ("m[r] = mNew;", "m[r] = mNew; }", "there is a '}' too many")])
def test_a_brace_is_missed_in_the_cell_that_lacks_it(old, new, what):
    assert all(said == [f"cell online/update: {what}"] for said in slip("online/update", old, new))


def test_a_precondition_speaks_in_its_own_words():
    for said in slip("online/tiles", "BM = 64;", "BM = 60;"):
        assert said[0].endswith(": a block's query rows must divide evenly among its warps")


def test_what_an_edit_broke_elsewhere_is_said_to_be_elsewhere():
    for said in slip("online/score", "float s = 0.0f;\n", "float t = 0.0f; float& s2 = t;\n"):
        assert said[0].startswith("cell online/score, line 6: ")  # in the cell first
    lesson.reset()
    for said in slip("online/state", "const int lane = ", "const int lan = "):
        assert said[0].startswith("online.cu, line ") and "did you mean 'lan'?" in said[0]
        assert said[-1].startswith("These lines are not edited")


DOUBLES = [("s *= scale;", "s *= scale * 1.1;"), ("s *= scale;", "s = exp(s * (double)scale);")]


@needs_nvrtc
@pytest.mark.parametrize("old, new", DOUBLES)
def test_a_double_literal_is_warned_about(old, new):
    edit("online/score", old, new)
    (place, text), = nvrtc.double_lines(current("online")).items()
    assert place == ("cell online/score", 7) and text == new


@needs_nvrtc
def test_no_warning_where_the_compiler_computes_in_float():
    assert not nvrtc.double_lines(source.load("online"))
    assert not nvrtc.double_lines(source.load("materialised"))
    edit("online/score", "s *= scale;", "s = s * scale * 0.125;")  # narrowed: it is exact
    assert not nvrtc.double_lines(current("online"))


@pytest.mark.parametrize("old, new", DOUBLES)
def test_a_double_literal_is_warned_about_without_nvrtc(old, new, emulated):
    assert not host.double_lines(source.load("online"))
    edit("online/score", old, new)
    assert host.double_lines(current("online")) == {("cell online/score", 7): new}


def rows_of(table):
    return {cells[0]: dict(zip(table.columns, cells, strict=True)) for cells, _ in table.rows}


def test_compare_shows_a_failure_and_its_cost(emulated):
    edit("online/update", "float a0 = o0[r] * rescale, a1 = o1[r] * rescale;",
         "float a0 = o0[r], a1 = o1[r] * (rescale * 1.1);")
    gates, costs, *warnings = lesson.compare(64).parts
    found = rows_of(gates)
    assert list(found) == list(cases.NAMES)
    late = found["spike-late"]
    assert late["verdict"] == "fail"
    wrong = re.fullmatch(r"query row 0, column 0: yours (\S+), expected (\S+)",
                         late["first wrong element"])
    assert float(wrong[1]) != float(wrong[2])
    assert late["the case catches"] == cases.make("spike-late", 64).catches
    assert "edited: online/update" in gates.note and gates.mark == "emulated"
    assert gates.footer == "every case: outside the gate"
    cost = rows_of(costs)
    assert cost["attentionOnline: bytes its loads ask for, N = 64"]["edited"] == "49,152"
    if nvrtc.available()[0]:
        assert {"registers a thread", "shared bytes a block", "local bytes a thread",
                "occupancy, T4"} <= {what.removeprefix("attentionOnline: ") for what in cost}
    assert not [what for what in cost if "time" in what]  # emulated: never a time
    warning, = warnings
    assert "cell online/update, line 7 computes in double" in warning and "0.5f" in warning


def test_compare_with_a_race_an_overrun_and_nothing(emulated):
    assert "Nothing is edited" in repr(lesson.compare())
    edit("online/update", "        __syncthreads();", "        ")
    gates, costs, *_ = lesson.compare(128).parts
    assert {row["fraction, edited"] for row in rows_of(gates).values()} == {"race"}
    assert "every case: attentionOnline has a race on" in gates.footer
    assert "written by" in gates.footer and "read by" in gates.footer
    replace("online/update", source.snippets("online")["update"])
    edit("online/load", "k[key0 * D + i]", "k[key0 * D + i + 99999]")
    with pytest.raises(LessonError, match="reads k\\[99999\\], past its end"):
        lesson.compare(64)
    replace("online/load", source.snippets("online")["load"])
    edit("materialised/values", "weightedV(", "weightedW(")
    with pytest.raises(LessonError, match="no kernel 'weightedV'; it defines: .*weightedW"):
        lesson.compare(64)


def test_compare_says_what_it_leaves_out(emulated):
    name = next((n for n in source.names() if n.startswith("ladder/")), None)
    if name is None:
        pytest.skip("there is no ladder")
    replace(name, source.read(name) + "// mine\n")
    assert repr(lesson.compare()).startswith(f"{name}: edited, but compare() runs")
    edit("online/score", "s *= scale;", "s = s * scale;")
    said, gates, *_ = lesson.compare(64).parts
    assert said.startswith(f"{name}: edited") and gates.footer == "all cases passed their gates"
    assert len(gates.columns) == 4  # nothing is wrong: nothing to explain


class Pretend(host.HostBackend):
    """A live backend for a test: the emulator's results, and a clock that counts its uses."""

    mark = "live"
    timed = 0

    def time(self, enqueue, what):
        self.timed += 1
        return Timing((float(self.timed),), 1, 0)


def test_compare_times_both_on_a_gpu_and_never_a_wrong_kernel(emulated, monkeypatch):
    pretend = Pretend()
    monkeypatch.setattr(backend, "choose", lambda kind=None: pretend)
    edit("online/score", "s *= scale;", "s = s * scale;")
    gates, costs = lesson.compare(64).parts
    row = rows_of(costs)["time, ms (min–max), N = 64"]
    assert gates.mark == "live" and pretend.timed == 2
    assert row["file"].startswith("1.0000 ") and row["edited"].startswith("2.0000 ")
    assert ("live" in {mark for cells, mark in costs.rows if "time" in cells[0]})
    edit("online/update", "l[r] * rescale + warpSum(w)", "l[r] + warpSum(w)")
    _, costs = lesson.compare(64).parts
    assert rows_of(costs)["time, ms (min–max), N = 64"]["edited"] == "no time: a gate failed"
    assert pretend.timed == 3  # the file's alone


def test_compare_on_a_gpu_tells_of_a_race_that_the_emulator_sees(emulated, monkeypatch):
    pretend = Pretend()
    monkeypatch.setattr(backend, "choose", lambda kind=None: pretend)
    edit("online/update", "        __syncthreads();", "        ")
    whole = current("online").text
    # What the GPU runs passes its gates here: only the counting run beside it sees the race.
    monkeypatch.setattr(Pretend, "compile", lambda self, text: host.HostBackend.compile(
        self, source.load("online") if text.text == whole else text))
    gates, costs = lesson.compare(128).parts
    assert gates.footer == "all cases passed their gates"
    assert costs.footer.startswith("Emulated beside it: attentionOnline has a race on")


def test_compare_is_ready_in_ten_seconds(emulated):
    """All cases at N = 256. In seconds of processor, since other tests may run: 20 on 2 cores."""
    edit("online/score", "s *= scale;", "s = s * scale;")
    before = os.times()
    lesson.compare(256)
    after = os.times()
    assert sum(after[:4]) - sum(before[:4]) < 20


def test_compare_is_ready_in_two_seconds_on_a_gpu(monkeypatch):
    """All cases at N = 256 and both times, after the first compilation."""
    found = backend.probe()
    if not found.gpu:
        pytest.skip(f"no GPU here: {found.reason}")
    monkeypatch.setattr(backend, "choose", CHOOSE)
    edit("online/score", "s *= scale;", "s = s * scale;")
    lesson.compare(256)
    lesson.reset()
    edit("online/score", "s *= scale;", "s = scale * s;")
    start = time.perf_counter()
    gates, costs = lesson.compare(256).parts
    assert time.perf_counter() - start < 2
    assert gates.mark == "live" and gates.footer == "all cases passed their gates"
    assert "time, ms (min–max), N = 256" in rows_of(costs)


def test_recorded_results_do_not_pass_for_an_edited_kernels(monkeypatch):
    edit("online/score", "s *= scale;", "s = s * scale;")
    parts = [p for p in lesson.table(256).parts if not isinstance(p, str)]
    recorded = [cells for t in parts for cells, mark in t.rows if mark == "recorded"]
    assert recorded and all("unedited kernels" in " ".join(cells) for cells in recorded)
    assert all("edited: online/score" in t.note for t in parts if "Gated" in t.title)
    assert "unedited kernels" in lesson.count_bytes(256).note
    monkeypatch.setattr(report.nvrtc, "available", lambda: (False, "no NVRTC here"))
    assert not lesson.facts("sm_75").rows
    lesson.reset()
    assert lesson.facts("sm_75").mark == "recorded"


def test_a_record_is_of_the_files():
    from lesson.record import record

    edit("online/score", "s *= scale;", "s = s * scale;")
    with pytest.raises(ArgumentError, match=r"online/score is edited.*lesson.reset\(\) first"):
        record(None)


# ---- the mutants, typed as cells ---------------------------------------------------------------

def typed(mutant):
    """Type a mutant as its cells; returns the Source that the next gate compiles."""
    lesson.reset()
    if mutant.whole:
        replace(mutant.path, mutant.whole)
    else:
        text = mutant.source().text
        for name, snippet in re.findall(r"^// snippet: (\w+)\n(.*?)^// end snippet$", text,
                                        re.M | re.S):
            replace(f"{mutant.path}/{name}", snippet)
    assert edited(mutant.path), mutant.name
    return current(mutant.path)


def messages():
    """``{mutant: (rejected, message)}`` of every mutant as cell edits, on its promised case."""
    sources = {mutant.name: typed(mutant) for mutant in MUTANTS}
    lesson.reset()

    def run(mutant):
        case = "periodic" if mutant.caught_by == RACE else mutant.caught_by
        found = one(one_order(), mutant.path, cases.make(case, 256), sources[mutant.name])
        said = found.verdict.reason if found.stopped else \
            found.verdict.explain(mutant.path, case, 256)
        return mutant.name, (not found.passed, found.stopped, said)

    with ThreadPoolExecutor(2) as pool:
        return dict(pool.map(run, MUTANTS))


@pytest.fixture(scope="module")
def said():
    ready, reason = host.available()
    if not ready:
        missing(reason)
    return messages()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_a_mutant_typed_as_cells_is_caught_by_its_case(said, mutant):
    rejected, stopped, message = said[mutant.name]
    assert rejected and (stopped == "race") == (mutant.caught_by == RACE), message
    if stopped:  # both lines, of which an edited one is named by its cell
        assert "race on" in message and len(re.findall(r", line \d+:", message)) == 2
    else:
        assert f"{mutant.path}, {mutant.caught_by}, N = 256: " in message
        assert "first at query row" in message


def test_the_messages_are_the_ones_that_were_read(said):
    """tests/mutant_messages.txt holds each message; `python tests/test_edits.py` writes it."""
    assert masked(written(said)) == masked(SNAPSHOT.read_text(encoding="utf-8"))


def written(found):
    return "".join(f"{name}\n{'=' * len(name)}\n{message}\n\n"
                   for name, (_, _, message) in found.items())


def masked(text):
    """Without the digits that another machine's exponential may change."""
    return re.sub(r"-?\b\d+(\.\d+)?(e[+-]?\d+)?\b(?! elements)", "#",
                  re.sub(r"\(\d+ elements", "(# elements", text))


if __name__ == "__main__":
    SNAPSHOT.write_text(written(messages()), encoding="utf-8")
