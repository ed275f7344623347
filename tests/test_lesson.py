"""The package as a whole: what it needs, and that each verb answers."""

import importlib
import subprocess
import sys

import lesson
import numpy as np
import pytest
from lesson.errors import LessonError
from lesson.text import edits
from support import BOOK

COPY = """extern "C" __global__ void copy(const float* a, float* b) {
    b[threadIdx.x] = a[threadIdx.x];
}"""
# Each verb with arguments that cost little.
CALLS = {
    "attention": lambda f: f(*np.ones((3, 64, 64), np.float32)),
    "bank_conflicts": lambda f: f("attentionOnline"),
    "case": lambda f: f("flat", 64),
    "cases": lambda f: f(64),
    "choice": lambda f: f((64,)),
    "compare": lambda f: f(64),
    "count_bytes": lambda f: f(64),
    "device": lambda f: f(),
    "edits": lambda f: f(),
    "exercise": lambda f: f("update"),
    "facts": lambda f: f("launch"),
    "gate": lambda f: f("online", "flat", 64),
    "gate_formula": lambda f: f(64),
    "ladder": lambda f: f("splits", (64,)),
    "limits": lambda f: f(64),
    "long_runs": lambda f: f("estimate"),
    "masks": lambda f: f("gate", 5, 2, causal=True),
    "mutants": lambda f: f(64),
    "mutation_score": lambda f: f(),
    "output": lambda f: f("online", "flat", 64),
    "plot": lambda f: f("score matrix"),
    "ranks": lambda f: f("run", 64, 2),
    "record": lambda f: f(),
    "reset": lambda f: f(),
    "run": lambda f: f(COPY, "copy", 1, 4, np.ones(4, np.float32), np.zeros(4, np.float32)),
    "rung": lambda f: f(2),
    "save": lambda f: f("mine.cu"),
    "score_matrix": lambda f: f((64,)),
    "summary": lambda f: f(64),
    "table": lambda f: f(64),
    "trace": lambda f: f("flat", 64),
    "watch": lambda f: f(n=64),
}
# Refused here, in these words.
REFUSED = {"exercise": "run the cell that begins with %%kernel exercise/update first",
           "record": "no live GPU", "save": "nothing is edited"}
MOST = 25  # verbs, and those that later chapters brought:
LATER = {"run", "output", "watch", "ranks", "attention", "masks", "mutation_score"}


def test_every_verb_is_called_below_and_they_are_few():
    assert set(CALLS) == set(lesson.VERBS)
    assert len(set(lesson.VERBS) - LATER) <= MOST


@pytest.fixture(scope="module")
def every_module():
    """All modules of the lesson, imported: none may take a verb's place."""
    for path in sorted((BOOK / "lesson").rglob("*.py")):
        parts = path.relative_to(BOOK).with_suffix("").parts
        if parts[-1] not in ("__init__", "__main__"):
            importlib.import_module(".".join(parts))


@pytest.mark.parametrize("verb", lesson.VERBS)
def test_a_verb_answers(every_module, emulated, no_gpu, monkeypatch, verb):
    from lesson.measure import mutants
    from lesson.show import mutants as shown

    for module in (mutants, shown):
        monkeypatch.setattr(module, "MUTANTS", mutants.MUTANTS[:2])
    monkeypatch.setitem(edits.answers, "update", None)  # whatever another test has typed
    call = getattr(lesson, verb)
    if verb in REFUSED:
        with pytest.raises(LessonError, match=REFUSED[verb]):
            CALLS[verb](call)
        return
    answer = CALLS[verb](call)
    if verb == "case":
        assert answer.q.shape == (64, 64)
    elif verb == "attention":
        assert np.allclose(answer, 1)
    elif verb == "reset":
        assert answer is None
    else:  # it shows itself, in a terminal and on a page
        assert len(repr(answer)) > 10
        shown = answer.html() if verb == "watch" else answer._repr_html_()
        assert "data-mark=" in shown or verb in ("edits", "compare")


def test_the_core_imports_with_numpy_alone():
    blocked = ("import sys\n"
               "for name in 'cupy matplotlib ipywidgets anywidget IPython torch'.split():\n"
               "    sys.modules[name] = None\n"
               "import lesson\n"
               "print(lesson.count_bytes(256).text())\n")
    run = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True,
                         cwd=BOOK)
    assert run.returncode == 0 and "compulsory" in run.stdout, run.stderr
