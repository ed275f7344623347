"""Every chapter in Colab's software, alone in an empty folder: fetched by its first cell, or as
one file, whose cells run twice and out of order. A stand-in for `google.colab` makes the Colab
branches run; there is no network.

All chapters run in both ways on the newer of Colab's two Pythons, a few on the older.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import ROOT, missing
from lesson import backend as backends
from lesson import colab, host, notebooks, report, single_file
from test_paths import fake_cupy, probe_with

CHAPTERS = [path.name for path in notebooks.chapters()]
FEW = [path.name for path in notebooks.chapters()
       if path.name == CHAPTERS[0] or "OnlineMax" in path.read_text(encoding="utf-8")]
WORKERS = 2  # chapters at once


def interpreter(version):
    """A Python of this version that can make environments, or None."""
    places = [shutil.which(f"python{version}")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    places += sorted(pyenv.glob(f"versions/{version}*/bin/python{version}"))
    for place in filter(None, places):
        done = subprocess.run([place, "-c", "import ensurepip"], capture_output=True)
        if done.returncode == 0:
            return str(place)
    return None


PYTHONS = {version: interpreter(version) for version in ("3.13", "3.12")}
THERE = [version for version, python in PYTHONS.items() if python]
# Where neither is installed, this Python runs Colab's older set of packages.
NEWER = THERE[0] if THERE else "3.12"
OLDER = THERE[1] if len(THERE) > 1 else None
# (Python, GPU image, how the chapter comes, with a C++ compiler) -> chapters
RUNS = {
    (NEWER, True, "fetched", True): CHAPTERS,
    (NEWER, False, "one file", False): CHAPTERS,
}
if OLDER:
    RUNS |= {(OLDER, False, "fetched", False): FEW, (OLDER, True, "one file", True): FEW}


def pip(python, *arguments):
    done = subprocess.run([python, "-m", "pip", "install", "-q", *map(str, arguments)], text=True,
                          capture_output=True)
    if done.returncode:
        missing(f"pip could not install {arguments}: {done.stderr.strip().splitlines()[-1:]}")


def environment(version, gpu_image):
    """The Python of an environment with Colab's packages. Made once, under ``_build``.

    The GPU image is the CPU image's packages and CuPy: a second environment that sees the first.
    """
    folder = ROOT / "_build" / f"colab-{version}{'-gpu' if gpu_image else ''}"
    wanted = ROOT / "tests" / ("colab-cupy.txt" if gpu_image else f"colab-{version}.txt")
    python, stamp = folder / "bin/python", folder / "made-from.txt"
    base = environment(version, False) if gpu_image else None
    if not stamp.exists() or stamp.read_text() != wanted.read_text():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([PYTHONS[version] or sys.executable, "-m", "venv", folder], check=True)
        if gpu_image:
            (packages,) = base.parents[1].glob("lib/python*/site-packages")
            (own,) = folder.glob("lib/python*/site-packages")
            (own / "cpu-image.pth").write_text(f"{packages}\n")
        pip(python, *(["--no-deps"] if gpu_image else []), "-r", wanted)
        stamp.write_text(wanted.read_text())
    return python


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A repository that stands for the published one, its address set by the command."""
    if shutil.which("git") is None:
        missing("git")
    folder = tmp_path_factory.mktemp("published") / "lesson"
    folder.mkdir()
    for name in ("book", "kernels"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "_config.yml", folder)
    subprocess.run([sys.executable, "-m", "lesson.repository", f"file://{folder}", "main"],
                   cwd=folder / "book", check=True, capture_output=True)
    git = ["git", "-C", folder, "-c", "user.name=A", "-c", "user.email=a@example.org"]
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "All"]):
        subprocess.run([*git, *words], check=True)
    return folder


def execute(python, notebook, folder, compiler):
    """Run a notebook, as JSON text, alone in ``folder``. Returns (process, executed notebook)."""
    for name in ("alone", "home", "tmp"):
        (folder / name).mkdir(parents=True)
    path = folder / "alone" / "Copy of a chapter.ipynb"  # as Colab names a saved copy
    path.write_text(notebook, encoding="utf-8")
    keep = {key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ}
    done = subprocess.run(
        [python, ROOT / "tests/run_chapter.py", path, folder / "executed.ipynb"],
        env={**keep, "HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"),
             "PYTHONPATH": str(ROOT / "tests/stand_in"), "PYTHONDONTWRITEBYTECODE": "1",
             "PYDEVD_DISABLE_FILE_VALIDATION": "1", "CUDA_VISIBLE_DEVICES": "",
             "PIP_NO_INDEX": "1",  # whatever would be installed is an error
             **({} if compiler else {"CXX": "none"})},
        capture_output=True, text=True, timeout=600)
    out = folder / "executed.ipynb"
    return done, json.loads(out.read_text()) if out.exists() else None


@pytest.fixture(scope="module")
def runs(request, published, tmp_path_factory):
    """runs(setting, chapter) -> (process, executed notebook, folder); two run at a time."""
    wanted = {(item.callspec.params["setting"], item.callspec.params["chapter"])
              for item in request.session.items
              if item.module is request.module and "setting" in getattr(
                  getattr(item, "callspec", None), "params", ())}
    top = tmp_path_factory.mktemp("colab")
    setup = notebooks.SETUP.read_text(encoding="utf-8")

    def run(setting, chapter, folder):
        version, gpu_image, how, compiler = setting
        if how == "fetched":
            text = (published / "book" / chapter).read_text(encoding="utf-8")
        else:
            text = single_file.build((ROOT / "book" / chapter).read_text(encoding="utf-8"), setup)
            text = restless(text)
        done, executed = execute(environment(version, gpu_image), text, folder, compiler)
        return done, executed, folder

    for version, gpu_image, _, _ in {setting for setting, _ in wanted}:
        environment(version, gpu_image)
    with ThreadPoolExecutor(WORKERS) as pool:
        futures = {job: pool.submit(run, *job, top / str(i))
                   for i, job in enumerate(sorted(wanted))}
        yield lambda *job: futures[job].result()
        for future in futures.values():
            future.cancel()


def restless(notebook):
    """The notebook as a reader may run it: every cell twice, then those that need no other again,
    in the reverse order."""
    chapter = json.loads(notebook)
    code = [cell for cell in chapter["cells"] if cell["cell_type"] == "code"]
    alone = [cell for cell in code if "".join(cell["source"]).startswith(("lesson.", "%%kernel"))]
    cells = [cell for cell in chapter["cells"] for _ in range(1 + (cell in code))]
    chapter["cells"] = [{**cell, "id": f"again-{i}"}
                        for i, cell in enumerate([*cells, *reversed(alone)])]
    return json.dumps(chapter)


def title(setting):
    version, gpu_image, how, compiler = setting
    return (f"{how}, Python {version}, {'GPU' if gpu_image else 'CPU'} image, "
            f"{'g++' if compiler else 'no compiler'}")


def outputs(cell):
    """The text of a cell's outputs."""
    found = []
    for output in cell.get("outputs", ()):
        found += [output.get("text", "")] + list(output.get("data", {}).values())
    return "\n".join("".join(text) for text in found if isinstance(text, (str, list)))


@pytest.mark.parametrize("setting, chapter", [
    pytest.param(setting, chapter, id=f"{title(setting)}, {chapter}")
    for setting, chapters in RUNS.items() for chapter in chapters])
def test_a_chapter_runs_alone_in_colab(runs, setting, chapter):
    version, gpu_image, how, compiler = setting
    done, executed, folder = runs(setting, chapter)
    assert done.returncode == 0, done.stderr[-4000:]
    code = [cell for cell in executed["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in code)

    # The first output says what was found, and how to get a GPU.
    said = next(filter(None, map(outputs, code)))
    reason = "there is no NVIDIA driver" if gpu_image else "CuPy is not installed"
    assert "This machine" in said and reason in said
    assert "Runtime > Change runtime type > T4 GPU" in said.replace("&gt;", ">")
    assert ("emulated from the same .cu files" in said) == compiler

    # Nothing was installed, and nothing lies about.
    left = {path.name for path in (folder / "alone").iterdir()} - {"Copy of a chapter.ipynb"}
    assert left == ({"attention-two-ways"} if how == "fetched" else set())


def test_what_colab_saves_is_repaired(runs, published):
    """An executed chapter, with counts, outputs, widget state and Colab's own cell metadata."""
    setup = notebooks.SETUP.read_text(encoding="utf-8")
    seen = 0
    for chapter in CHAPTERS:
        executed = runs((NEWER, True, "fetched", True), chapter)[1]
        seen += "widgets" in executed["metadata"]
        for number, cell in enumerate(executed["cells"]):
            cell["metadata"] |= {"id": f"x{number}", "colab": {"base_uri": "https://localhost"},
                                 "outputId": "0-1"}
        before = (published / "book" / chapter).read_text(encoding="utf-8")
        saved = notebooks.canonical(json.dumps(executed), setup)
        assert saved == notebooks.canonical(before, setup)
    assert seen, "no chapter left widget state behind: nothing was repaired"


@pytest.mark.parametrize("version", PYTHONS)
def test_the_environments_are_what_they_say(version):
    if version not in THERE:
        pytest.skip(f"no Python {version} here: chapters ran in the packages of Colab's {NEWER}")
    program = ("from importlib.metadata import distributions as d; import sys; "
               "print(sys.version_info[:2], *(f'{x.name}=={x.version}'.lower() for x in d()))")
    for gpu_image, files in ((False, [f"colab-{version}.txt"]),
                             (True, [f"colab-{version}.txt", "colab-cupy.txt"])):
        run = subprocess.run([environment(version, gpu_image), "-c", program], text=True,
                             capture_output=True, check=True)
        assert run.stdout.startswith(f"({version.replace('.', ', ')})")
        pins = [pin for file in files for pin in
                re.findall(r"^[\w-]+==\S+", (ROOT / "tests" / file).read_text(), re.M)]
        assert len(pins) >= 7 and [pin for pin in pins if pin not in run.stdout.split()] == []
        assert ("cupy-cuda12x" in run.stdout) == gpu_image


# The first output, for each way in which a GPU can be missing

@pytest.mark.parametrize("packages, cupy, nvrtc_found, words, switch", [
    ([], None, (True, ""), "CuPy is not installed", True),
    (["cupy-cuda12x"], fake_cupy(error="cudaErrorInsufficientDriver: .."), (True, ""),
     "no NVIDIA driver", True),
    (["cupy-cuda12x"], fake_cupy(error="cudaErrorNoDevice: .."), (True, ""), "finds no GPU", True),
    (["cupy-cuda12x"], fake_cupy(1), (False, "NVRTC does not load"), "NVRTC does not load", False),
    (["cupy-cuda12x", "cupy-cuda13x"], None, (True, ""), "two CuPy packages", False),
])
def test_the_first_output_names_what_is_missing(monkeypatch, packages, cupy, nvrtc_found, words,
                                                switch):
    monkeypatch.setattr(colab, "here", lambda: True)
    monkeypatch.setattr(host, "available", lambda: (True, "g++ 12"))
    found = probe_with(monkeypatch, packages, cupy, nvrtc_found)
    monkeypatch.setattr(backends, "probe", lambda: found)
    table = report.device()
    assert len(table.rows) == 3, "three lines"
    assert words in table.text()
    assert ("Runtime > Change runtime type > T4 GPU" in table.text()) == switch
    assert "pip install cupy" not in table.text(), "in Colab the runtime brings CuPy"


def test_outside_colab_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(colab, "here", lambda: False)
    assert "pip install cupy-cuda12x" in probe_with(monkeypatch, [], None).reason


def test_the_stand_in_is_taken_for_colab():
    run = subprocess.run([sys.executable, "-c", "from lesson import colab; print(colab.here())"],
                         cwd=ROOT / "book", text=True, capture_output=True, check=True,
                         env={**os.environ, "PYTHONPATH": str(ROOT / "tests/stand_in")})
    assert run.stdout == "True\n" and not colab.here()
