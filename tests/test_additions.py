"""A case, a GPU and a rung, each added in the one file that the README names, arrive everywhere."""

import json
import re
import shutil
import subprocess
import sys

import pytest
from support import ROOT


def place(change):
    """The file that the README names for a change."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.search(rf"^\| {change} \| `(.+?)` \|$", text, re.M)[1]


@pytest.fixture
def copy(tmp_path):
    """A copy of the lesson: copy(change, old, new) edits it, copy.says(...) runs Python in it."""
    return Copy(tmp_path)


class Copy:
    def __init__(self, folder):
        self.folder = folder
        for name in ("book/lesson", "book/evidence", "kernels"):
            shutil.copytree(ROOT / name, folder / name,
                            ignore=shutil.ignore_patterns("__pycache__"))

    def edit(self, change, old, new):
        """Edit the file that the README names for ``change``."""
        path = self.folder / place(change)
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{place(change)}: {old}"
        path.write_text(text.replace(old, new), encoding="utf-8")

    def says(self, *expressions):
        """The text of each expression's value, from one process that has ``lesson``."""
        program = ("import json, lesson\n"
                   f"print(json.dumps([x.text() for x in ({', '.join(expressions)},)]))")
        run = subprocess.run([sys.executable, "-c", program], cwd=self.folder / "book", text=True,
                             capture_output=True)
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout.splitlines()[-1])


def test_a_case_arrives_in_the_tables_and_the_commands(copy):
    copy.edit("a case", '_CASES = {\n', '_CASES = {\n    "mine": (_flat, "what I looked for"),\n')
    cases, gates, one = copy.says("lesson.cases(64)", 'lesson.gate("all", "all", 64)',
                                  'lesson.gate("online", "mine", 64)')
    for text in (cases, gates):
        assert re.search(r"^mine .*what I looked for", text, re.M)
    assert " pass " in re.search("^mine .*", gates, re.M)[0] and " pass " in one
    run = subprocess.run([sys.executable, "-m", "lesson", "check", "--help"], text=True,
                         cwd=copy.folder / "book", capture_output=True)
    assert "mine" in run.stdout


def test_a_gpu_arrives_in_the_tables(copy):
    gpu = ('    Gpu("L4", "sm_89", 58, 100 * KIB, threads=1536, blocks=24, lanes=128, '
           'flops=30.3e12, bytes_per_s=300e9, memory_bytes=24e9, l2_bytes=48 * MIB, '
           'source="made up", **_NEWER),\n')
    copy.edit("a GPU", "    H200,\n", f"{gpu}    H200,\n")
    splits, choice, long = copy.says('lesson.ladder("splits")', "lesson.choice()",
                                     'lesson.long_runs("estimate")')
    assert re.search("^L4 ", splits, re.M) and re.search("^L4 ", choice, re.M)
    assert "L4, at least, s" in long and "30.3" in long


def test_a_rung_arrives_in_the_tables(copy):
    folder = copy.folder / "kernels/ladder"
    text = (folder / "21_small.cu").read_text(encoding="utf-8")
    assert text.startswith("// Rung 21")
    (folder / "26_mine.cu").write_text(text.replace("// Rung 21", "// Rung 26", 1).replace(
        "exp2f(", "exp2("), encoding="utf-8")
    rung = '_rung(26, "mine", "an idea of mine", bn=32, together=(1.3, 2.2), leaves=21)'
    copy.edit("a rung", ")\n_called = ", f"    {rung},\n)\n_called = ")
    shown, splits, t4, gate = copy.says(
        "lesson.rung(26)", 'lesson.ladder("splits", (256,), 26)', 'lesson.ladder("T4", (256,))',
        'lesson.gate(26, "flat", 64)')
    assert shown.startswith("Rung 26") and "exp2(" in shown
    assert "Splits of rung 26" in splits and "rung 26, an idea of mine" in t4
    assert "rung 26, an idea of mine" in gate or "nothing ran" in gate
