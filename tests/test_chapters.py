"""Every chapter runs top to bottom: emulated, without a compiler, without CuPy, and read-only."""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import ROOT, missing

CHAPTERS = sorted(path.name for path in (ROOT / "book").glob("*.ipynb"))
SETTINGS = ("emulated", "no compiler", "no cupy", "read-only")
COMPILERS = ("g++", "c++", "clang++")
WORKERS = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2  # chapters at once

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, COMPILERS)) and os.environ.get("CI") != "true",
    reason="no C++ compiler on this machine, so nothing is emulated",
)


def surroundings(setting, folder):
    """(book folder, environment, command prefix) of one run in `setting`.

    No GPU in any of them: what a GPU does is recorded evidence, and differs from run to run.
    """
    folder.mkdir(parents=True)
    for name in ("home", "runtime", "tmp"):
        (folder / name).mkdir()
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "HOME": str(folder / "home"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "TMPDIR": str(folder / "tmp"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "IPYTHONDIR", "MPLCONFIGDIR", "CXX"):
        environment.pop(name, None)
    if setting == "no compiler":
        bare = folder / "bin"
        bare.mkdir()
        (bare / "python3").symlink_to(sys.executable)
        environment["PATH"] = str(bare)
    if setting == "no cupy":
        (folder / "hide/cupy").mkdir(parents=True)
        (folder / "hide/cupy/__init__.py").write_text("raise ImportError('No module named cupy')\n")
        environment["PYTHONPATH"] = str(folder / "hide")
    if setting != "read-only":
        return ROOT / "book", environment, []
    checkout = folder / "checkout"
    checkout.mkdir()
    for name in ("book", "kernels", "_config.yml"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, checkout / name)
    for top in (checkout, folder / "home"):
        for path in [*top.rglob("*"), top]:
            path.chmod(path.stat().st_mode & ~0o222)
    prefix = []
    if os.geteuid() == 0:  # root ignores modes unless it lays that power down
        drop = "-dac_override,-dac_read_search"
        prefix = ["setpriv", f"--bounding-set={drop}", f"--inh-caps={drop}"]
        if shutil.which(prefix[0]) is None:
            missing("no setpriv (Debian: util-linux), which makes modes count for root")
    return checkout / "book", environment, prefix


def execute(chapter, setting, folder):
    """Run one chapter; returns (finished process, executed notebook, the book folder)."""
    book, environment, prefix = surroundings(setting, folder)
    outputs = folder / "executed.ipynb"
    command = [sys.executable, ROOT / "tests/run_chapter.py", book / chapter, outputs]
    done = subprocess.run(
        [*prefix, *map(str, command)], env=environment, capture_output=True, text=True, timeout=900
    )
    notebook = json.loads(outputs.read_text()) if outputs.exists() else {"cells": []}
    return done, notebook, book


@pytest.fixture(scope="module")
def runs(request, tmp_path_factory):
    """runs(chapter, setting): the result of one run; those that are asked for run two at a time."""
    wanted = {
        (item.callspec.params["chapter"], item.callspec.params["setting"])
        for item in request.session.items
        if item.module is request.module and hasattr(item, "callspec")
    }
    top = tmp_path_factory.mktemp("chapters")
    with ThreadPoolExecutor(WORKERS) as pool:
        futures = {
            (chapter, setting): pool.submit(
                execute, chapter, setting, top / f"{Path(chapter).stem}-{setting.replace(' ', '-')}"
            )
            for chapter, setting in sorted(wanted)
        }
        yield lambda chapter, setting: futures[chapter, setting].result()
        for future in futures.values():
            future.cancel()
    subprocess.run(["chmod", "-R", "u+w", str(top)], check=True)  # so that pytest can remove it


def html(notebook):
    """All text of a notebook's outputs."""
    text = []
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            text += ["".join(part) for part in output.get("data", {}).values() if part]
            text.append("".join(output.get("text", "")))
    return "\n".join(x for x in text if isinstance(x, str))


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("chapter", CHAPTERS)
@needs_compiler
def test_a_chapter_runs(runs, chapter, setting):
    done, notebook, _ = runs(chapter, setting)
    assert done.returncode == 0, done.stderr[-4000:]
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert code and all(cell["execution_count"] for cell in code)
    text = html(notebook)
    assert 'data-mark="live"' not in text
    if setting == "no compiler":
        assert 'data-mark="emulated"' not in text


@needs_compiler
def test_the_emulator_runs_in_the_chapters(runs):
    """The settings differ in what they should: emulated results only where there is a compiler."""
    for setting in ("emulated", "no cupy", "read-only"):
        texts = [html(runs(chapter, setting)[1]) for chapter in CHAPTERS]
        assert any("emulated" in text for text in texts), setting


def test_the_settings_take_away_what_they_say(tmp_path):
    """A setting that took nothing away would prove nothing."""
    probe = """
import os, shutil, sys, tempfile
try: import cupy; cupy = True
except Exception: cupy = False
def writable(folder):
    try: tempfile.TemporaryFile(dir=folder).close()
    except OSError: return False
    return True
print(any(map(shutil.which, ('g++', 'c++', 'clang++'))), cupy, writable(sys.argv[1]),
      writable(os.path.expanduser('~')))
"""
    found = {}
    for setting in ("no compiler", "no cupy", "read-only"):
        book, environment, prefix = surroundings(setting, tmp_path / setting.replace(" ", "-"))
        command = [*prefix, sys.executable, "-c", probe, str(book)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found[setting] = [word == "True" for word in done.stdout.split()]
    assert not found["no compiler"][0]
    assert not found["no cupy"][1]
    assert not found["read-only"][2] and not found["read-only"][3]
