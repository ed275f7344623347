"""Kernel cells: what they change, what they say, and that the shared kernels stay as they are."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import lesson
import nbformat
import pytest
from lesson.errors import ArgumentError
from lesson.machine import emulator, nvrtc
from lesson.text import source
from lesson.text.edits import current, edited, find, replace, targets
from lesson.text.source import lines_of
from nbclient import NotebookClient
from support import ROOT, missing
from support.kernels import edit, needs_nvrtc

pytestmark = pytest.mark.usefixtures("no_gpu")

SNAPSHOT = Path(__file__).parent / "mutant_messages.txt"
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
SOURCES = ("online", "materialised")


def digests():
    return {name: hashlib.sha256(source.path_of(name).read_bytes()).hexdigest()
            for name in SOURCES}


@pytest.fixture(scope="module", autouse=True)
def kernels_stay_as_they_are():
    before = digests()
    yield
    assert digests() == before


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
    ready, reason = emulator.available()
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
                    "from lesson.machine import nvrtc", "from lesson.text.edits import current",
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
    lines = lines_of(current(name))
    assert not lines.get((f"cell {target}", 1))  # the magic
    for number, line in enumerate(text.rstrip().splitlines(), 2):
        assert lines[f"cell {target}", number] == line


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
