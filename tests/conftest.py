"""Shared by the tests: the built book, small books of their own, and a browser."""

import os
import shutil
import threading

import pytest
from support import BOOK, ROOT, TESTS, missing
from support.books import Markdown, SmallBook, executed_by_build, jupyter_book
from support.executions import Executed, execute
from support.front_ends import front_end, notebook  # noqa: F401 - fixtures
from support.once import once, shared

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Several test files run at once: a BLAS thread more would only wait, and takes a core to do so.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


# What `make quick` leaves out by itself: tests that need a browser, a built book, an executed
# chapter or one of test_edits.py. Others are marked slow by hand, where they stand.
SLOW = {"browser", "built", "executed", "small_book", "small_pages", "walk"}
# Files whose tests each worker takes one by one; those of the others stay together, since they
# share what one of them has made. Their long ones begin first, so that no worker is left alone
# with one at the end: what the others read, then what takes longest.
ONE_BY_ONE = ("tools/test_estimate.py", "book/test_colab.py", "book/test_chapters.py",
              "book/test_build.py", "test_exercises.py", "measure/test_gates_and_times.py",
              "test_main.py", "machine/test_nvrtc.py", "book/test_mathml.py",
              "online_max/test_live.py", "stepper/test_live.py")
FIRST = "test_the_book_builds_without_a_warning"  # many read it, and would wait for it
# They read what many others have made.
LAST = ("test_what_colab_saves_is_repaired", "test_the_emulator_runs_in_the_chapters",
        "test_a_chapter_executed_again_elsewhere_says_the_same")


def pytest_collection_modifyitems(items):
    places = {name: i for i, name in enumerate(ONE_BY_ONE)}

    def place(item):
        file = item.path.relative_to(TESTS).as_posix()
        order = (item.originalname in LAST) - (item.originalname == FIRST)
        return order, places.get(file, len(places))

    for item in items:
        if SLOW & set(item.fixturenames):
            item.add_marker(pytest.mark.slow)
        file = item.path.relative_to(TESTS).as_posix()
        if file == "book/test_pages.py":  # a browser each, and so the pages spread
            item.add_marker(pytest.mark.xdist_group(f"{file} {item.originalname}"))
        elif file not in places:
            item.add_marker(pytest.mark.xdist_group(file))
    items.sort(key=place)


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The whole book, built once from the working tree; its folder of HTML, and the build's text.

    Chapters are executed afresh, whatever an earlier `make book` has left. Nobody may change it.
    """
    output = shared(tmp_path_factory) / "book"

    def build():
        done = jupyter_book(ROOT, output)
        return [done.returncode, done.stdout]

    code, text = once(output.parent, "book", build)
    assert code == 0, text[-6000:]
    return output / "_build/html", text


@pytest.fixture(scope="session")
def executed(request, tmp_path_factory):
    """executed(chapter, setting) -> Executed; where the book's build has run it, from there."""
    from lesson.machine import backend

    def get(chapter, setting):
        if setting == "emulated" and not backend.probe().gpu:
            site, _ = request.getfixturevalue("built")
            return Executed(0, "", executed_by_build(site.parent)[chapter])
        return execute(chapter, setting, shared(tmp_path_factory))
    return get


@pytest.fixture(scope="session")
def site(built):
    """The folder of the built book's HTML."""
    return built[0]


@pytest.fixture
def small_book(tmp_path):
    """A SmallBook of this test's own."""
    return SmallBook(tmp_path / "small")


MAGIC = """from IPython.core.magic import register_cell_magic
@register_cell_magic
def kernel(line, cell):
    pass"""
KERNEL = """%%kernel online/score
__global__ void f(float *o, size_t n) { if (o && n > 0x1fu) o[threadIdx.x] = 1.0f; } // it's"""
LINES = r"\begin{aligned} m' &= \max(m, s) \\ l' &= l\,e^{m-m'} \end{aligned}"
TABLE = "| a | b |\n|---|---|\n| 1 | 2 |"


@pytest.fixture(scope="session")
def small_pages(tmp_path_factory):
    """{chapter: its page} of a small book that holds one of each thing that pages are made of.

    Its chapters: 'kernel', a kernel cell; 'maths'; 'table', one with a caption; 'lesson', one that
    begins as the lesson's do.
    """
    folder = shared(tmp_path_factory)

    def build():
        book = SmallBook(folder / "small", lesson=True)
        text = Markdown("# A\n\nText.")
        book.write("kernel", text, MAGIC, KERNEL)
        book.write("maths", Markdown(f"# A\n\nText $x_1$.\n\n$${LINES}$$"))
        book.write("table", Markdown(f"{text}\n\n*What doubles & grows*\n\n{TABLE}"))
        setup = (BOOK / "tools/setup_cell.py").read_text(encoding="utf-8")
        book.write("lesson", text, setup.strip("\n"), Markdown("Text."))
        done = book.build()
        assert done.returncode == 0, done.stdout
        return {name: book.page(name) for name in ("kernel", "maths", "table", "lesson")}

    return once(folder, "small-book", build)


@pytest.fixture(scope="session")
def browser():
    """The system's Chromium; its network ends at this machine."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        missing("no Chromium on this machine (Debian: apt-get install chromium)")
    flags = ["--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    flags += ["--disable-sync", "--no-first-run", "--force-device-scale-factor=1"]
    flags.append("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
    if os.geteuid() == 0:
        flags.append("--no-sandbox")  # Chromium's sandbox refuses root
    playwright.expect.set_options(timeout=60_000)  # a busy machine is no fault of a page
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=flags)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def server(site):
    """The built book as a web server gives it: compressed, with validators. Returns its address."""
    from support.webserver import serve

    httpd = serve(site)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    httpd.server_close()


@pytest.fixture(scope="session")
def emulated():
    """The emulated backend; its tests need a C++ compiler."""
    from lesson.machine import backend, emulator

    ready, reason = emulator.available()
    if not ready:
        missing(reason)
    return backend.choose("emulated")


@pytest.fixture(scope="session")
def one_order(emulated):
    """An emulated backend with one order of threads, where races are not the question."""
    return type(emulated)(orders=("ascending",))


@pytest.fixture
def no_gpu(monkeypatch):
    """The same test on every machine: emulated, also where there is a GPU."""
    from lesson.machine import backend, emulator

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # for the notebooks' kernels
    choose = backend.choose
    if emulator.available()[0]:
        monkeypatch.setattr(backend, "choose", lambda kind=None: choose(kind or "emulated"))


@pytest.fixture(autouse=True)
def no_edits():
    """No test leaves an edited kernel to the next one."""
    from lesson.text import edits

    yield
    if edits.edited():
        edits.reset()
    assert not edits.edited()


@pytest.fixture
def no_record(monkeypatch, tmp_path):
    """No recorded run at all."""
    from lesson.measure import evidence

    monkeypatch.setattr(evidence, "FOLDER", tmp_path)


@pytest.fixture
def record(no_record, tmp_path):
    """A recorded run with the ladder, the only one that there is. Returns it."""
    from lesson.measure import evidence
    from support.evidence import with_ladder

    evidence.write(with_ladder(), tmp_path / "sample.json")
    return with_ladder()
