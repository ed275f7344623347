"""The reader's kernels: cells that replace a snippet, or a whole source, for this session.

    %%kernel online/score
            for (int r = 0; r < R; ++r) {
            ...

The cell's text takes the place of that snippet, and whatever runs next compiles it:
``current(name)`` is the one place where edits are applied. Files in ``kernels/`` are never
written to.
"""

import difflib
import os
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

from ..errors import ArgumentError
from ..tables import mark_html
from . import source

WHOLE = ""  # stands for a snippet's name where a cell holds a whole source

EXERCISE = "exercise/"  # before an exercise's name: its cell touches no source of the lesson

_cells = {}  # {source name: {snippet: text}}, only what differs from the file
answers = {}  # {exercise: text of its cell, None before it ran}; exercises.py puts the names in


def targets():
    """What a cell can hold: 'online' (a whole source) and 'online/score' (one snippet of it)."""
    return (*(target for name in source.names()
              for target in (name, *(f"{name}/{s}" for s in source.snippets(name)))),
            *(EXERCISE + name for name in answers))


def find(target):
    """(source name, snippet) of a target; raises ArgumentError with the names there are."""
    name, _, snippet = target.rpartition("/")
    if target in source.names():
        return target, WHOLE
    if name in source.names():
        known = source.snippets(name)
        if snippet in known:
            return name, snippet
        raise ArgumentError(f"{name}.cu has no snippet {snippet!r}; a cell can hold: "
                            + ", ".join(f"{name}/{s}" for s in known))
    raise ArgumentError(f"%%kernel {target}: no such source; a cell can hold one snippet of a "
                        "source, such as online/score, or all of it: "
                        + ", ".join(source.names()))


def replace(target, text):
    """Use ``text`` for ``target`` from now on. Returns a sentence, or '' if nothing changed.

    The last cell that ran counts: a whole source replaces its edited snippets, and a snippet
    replaces an edited whole.
    """
    if target.startswith(EXERCISE):
        name = target.removeprefix(EXERCISE)
        if name not in answers:
            raise ArgumentError(f"%%kernel {target}: no such exercise; there are: "
                                + ", ".join(EXERCISE + known for known in answers))
        answers[name] = text
        return ""
    name, snippet = find(target)
    old = _cells.get(name, {})
    original = source.read(name) if snippet == WHOLE else source.snippets(name)[snippet]
    kept = {s: t for s, t in old.items() if snippet != WHOLE and s not in (WHOLE, snippet)}
    if text.rstrip() != original.rstrip():
        kept[snippet] = text.rstrip() + "\n"
    if kept == old:
        return ""
    _cells[name] = kept
    if not kept:
        del _cells[name]
        return f"{target}: as in the file again."
    dropped = [_target(name, s) for s in old if s not in kept and s != snippet]
    also = f" It takes the place of {', '.join(dropped)}." if dropped else ""
    if snippet not in kept:
        return f"{target}: as in the file again.{also}"
    return f"{target} is edited: what runs next compiles this cell.{also}"


def _target(name, snippet):
    return name if snippet == WHOLE else f"{name}/{snippet}"


def current(name):
    """The Source called ``name`` with this session's edits: what a path compiles."""
    cells = _cells.get(name, {})
    # Line 1 of a cell is the magic itself: an empty line here keeps the reader's numbers.
    if WHOLE in cells:
        text = f'#line 2 "cell {name}"\n{cells[WHOLE]}'
        return source.Source(name, text, f"cell {name}", edits=dict(cells))
    return source.load(name, {s: ("\n" + text, f"cell {name}/{s}") for s, text in cells.items()})


def edited(*names):
    """Targets that differ from the files: 'online/score', ...; of these sources, or of all."""
    return [_target(name, s) for name, cells in _cells.items() if not names or name in names
            for s in cells]


def note(*names):
    """'edited: online/score' for a table's note, or ''."""
    found = edited(*names)
    return f"edited: {', '.join(found)}" if found else ""


def clean(name):
    """The text of a source with this session's edits and no #line: what save() writes."""
    cells = _cells.get(name, {})
    return cells[WHOLE] if WHOLE in cells else source.substitute(name, cells)


@dataclass(frozen=True)
class Diff:
    """What differs from the shared kernels, as a unified diff."""

    text: str

    def __repr__(self):
        return self.text or "nothing is edited"

    def _repr_html_(self):
        if not self.text:
            return '<p class="lesson-note">nothing is edited</p>'
        return ('<div class="lesson-output" data-mark="computed">'
                '<div class="lesson-scroll" role="region" tabindex="0" aria-label="Edits" '
                f'style="overflow-x:auto"><pre class="lesson-diff">{escape(self.text)}</pre></div>'
                f'<p class="lesson-note">{mark_html("computed")}</p></div>')


def edits():
    """What this session's cells change in the shared kernels, as a diff."""
    parts = []
    for name in _cells:
        parts += difflib.unified_diff(source.read(name).splitlines(), clean(name).splitlines(),
                                      f"kernels/{name}.cu", f"this session's {name}.cu",
                                      lineterm="")
    return Diff("\n".join(parts))


def reset(target=None):
    """Forget the edits of ``target`` ('online/score', 'online'), or all of them."""
    if target is None:
        gone = edited()
        _cells.clear()
    else:
        name, snippet = find(target)
        gone = edited(name) if snippet == WHOLE else [t for t in edited(name) if t == target]
        for s in [s for s in _cells.get(name, {}) if snippet in (WHOLE, s)]:
            del _cells[name][s]
        if not _cells.get(name):
            _cells.pop(name, None)
    print(f"back to the file: {', '.join(gone)}" if gone else "nothing was edited")


def save(path, name=None):
    """Write the edited source as a complete ``.cu`` file: nvcc and ``check`` take it as it is.

    ``name`` says which source where several are edited. Returns the Path. Raises ArgumentError
    for a path inside ``kernels/``, which is never written to, or one that cannot be written.
    """
    if name is None:
        if len(_cells) != 1:
            raise ArgumentError("name = None: " + (
                f"several sources are edited; choose one: {', '.join(_cells)}" if _cells else
                f"nothing is edited; choose a source: {', '.join(source.names())}"))
        name = next(iter(_cells))
    source.path_of(name)  # refuses an unknown one
    path = Path(path)
    if path.suffix != ".cu":
        raise ArgumentError(f"path = {str(path)!r}: needs a name that ends in .cu")
    shared = source.KERNELS.resolve()
    if shared in path.resolve().parents or any(
            path.exists() and os.path.samefile(path, source.path_of(n)) for n in source.names()):
        raise ArgumentError(f"path = {str(path)!r}: the shared kernels are never written to; "
                            "choose a file outside kernels/")
    try:
        path.write_text(clean(name), encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"path = {str(path)!r} cannot be written: {error.strerror}") from None
    return path


def kernel(line, cell):
    """Edit a CUDA kernel of the lesson in this cell.

    Usage::

        %%kernel online/score        one snippet of kernels/online.cu
        %%kernel online              all of kernels/online.cu

    The cell's text takes the place of the snippet for this session, and the next gate, table or
    lesson.compare() compiles it. An unedited cell changes nothing.

        lesson.compare()    compile, gate on every case, show beside the file
        lesson.edits()      what differs from the files
        lesson.reset()      back to the files
        lesson.save(path)   write the edited kernel as a complete .cu file

    The Tab key completes names.
    """
    words = line.split()
    if len(words) != 1:
        raise ArgumentError("%%kernel needs one name: a snippet, such as online/score, or a "
                            f"source: {', '.join(source.names())}")
    said = replace(words[0], cell)
    if said:
        print(said)


def register():
    """Add ``%%kernel`` to IPython, where this runs inside it."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is None:
        return
    shell.register_magic_function(kernel, "cell", "kernel")
    shell.set_hook("complete_command", lambda _, event: list(targets()), str_key="%%kernel")
