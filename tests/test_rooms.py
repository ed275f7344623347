"""The house: imports go one way, names are not verbs, and the README says where things are."""

import ast
import importlib
import re

import lesson
import pytest
from support import BOOK, ROOT

LESSON = BOOK / "lesson"
COMING = ("attention", "attention_grad", "take_home")  # verbs that are announced
# What may be imported only where it is used: the lesson must import with NumPy alone.
LATER = {"cupy", "cupyx", "matplotlib", "anywidget", "ipywidgets", "traitlets", "IPython", "torch",
         "mpi4py"}


def listed():
    """``{path below book/lesson: its room}`` of the README's listing, in its order."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = text.partition("    errors.py")[2]
    lines = ["    errors.py" + block.partition("\n\n")[0]][0].splitlines()
    found, room = {}, ""
    for line in lines:
        name = line.split()[0]
        if not line.startswith("      "):
            room = name if name.endswith("/") else ""
            found[name] = ""
        else:
            found[room + name] = room
    return found


def modules():
    """``{dotted name: path}`` of every module of the lesson."""
    return {".".join(path.relative_to(BOOK).with_suffix("").parts): path
            for path in sorted(LESSON.rglob("*.py"))}


def imported(name, path):
    """(module of the lesson, or top-level name of another package; at the top of the file?)."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    package = [part for part in package if part != "__init__"]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], id(node) in top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if not node.level:
                yield node.module.split(".")[0], id(node) in top
                continue
            base = package[: len(package) - node.level + 1]
            base += node.module.split(".") if node.module else []
            for alias in node.names:
                full = ".".join([*base, alias.name])
                yield full if full in modules() or f"{full}.__init__" in modules() else \
                    ".".join(base), id(node) in top


def room_of(name):
    """The room of a module, or its own name where it stands directly under the lesson."""
    parts = [part for part in name.split(".")[1:] if part != "__init__"]
    return parts[0] if parts else "__init__"


def arrows():
    """{(module, module that it imports)} inside the lesson."""
    return {(name, target) for name, path in modules().items()
            for target, _ in imported(name, path) if target.split(".")[0] == "lesson"}


def order():
    """Rooms and modules directly under the lesson, in the README's order: imports go up in it."""
    return [name.removesuffix("/").removesuffix(".py") for name, room in listed().items()
            if not room]


def test_imports_go_one_way_between_rooms():
    place = {name: i for i, name in enumerate(order())}
    against = sorted((a, b) for a, b in arrows() if place[room_of(a)] < place[room_of(b)])
    assert against == []


def test_no_imports_go_in_a_circle():
    graph = {}
    for a, b in arrows():
        a, b = (x.removesuffix(".__init__") for x in (a, b))
        if a != b and not a.startswith(b + "."):  # a package's own parts may ask for the package
            graph.setdefault(a, set()).add(b)
    done, path = set(), []

    def visit(name):
        assert name not in path, " -> ".join([*path[path.index(name):], name])
        if name in done:
            return
        path.append(name)
        for other in sorted(graph.get(name, ())):
            visit(other)
        path.pop()
        done.add(name)

    for name in sorted(graph):
        visit(name)


def test_numpy_is_enough_to_import_the_lesson():
    late = sorted((name, target) for name, path in modules().items()
                  for target, at_top in imported(name, path) if at_top and target in LATER)
    assert late == [("lesson.online_max.widget", "anywidget"),
                    ("lesson.online_max.widget", "traitlets"),
                    ("lesson.stepper.widget", "anywidget"),
                    ("lesson.stepper.widget", "traitlets")]  # themselves imported when used


def test_no_name_under_the_lesson_is_that_of_a_verb():
    names = {path.stem for path in LESSON.iterdir() if not path.name.startswith("_")}
    assert names & {*lesson.VERBS, *COMING} == set()
    for name in modules():  # importing a module could put its name in a verb's place
        importlib.import_module(name.removesuffix(".__init__").removesuffix(".__main__"))
    assert all(callable(getattr(lesson, verb)) for verb in lesson.VERBS)


def test_the_readme_lists_what_is_there():
    there = set()
    for path in LESSON.rglob("*"):
        parts = path.relative_to(LESSON).parts
        if "__pycache__" in parts or parts[0] in ("online_max", "stepper") and len(parts) > 1:
            continue
        if path.is_dir():
            there.add("/".join(parts) + "/")
        elif parts[-1] == "__init__.py" and len(parts) > 1 or parts[:2] == ("machine", "emulator"):
            continue
        else:
            there.add("/".join(parts))
    assert set(listed()) == there


def places():
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Where a change goes")[2]
    return re.findall(r"^\| (an? .+?) \| `(.+?)` \|$", text.partition("\n## ")[0], re.M)


@pytest.mark.parametrize("change, file", places())
def test_a_change_goes_where_the_readme_says(change, file):
    assert (ROOT / file).is_file()


def test_the_readme_names_every_kind_of_change():
    kinds = {change.removeprefix("an ").removeprefix("a ").split(" of ")[0]
             for change, _ in places()}
    assert kinds >= {"case", "kernel", "rung", "exercise", "chapter", "column", "error message",
                     "GPU", "colour", "field"}
