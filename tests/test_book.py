"""The build: one command, every warning an error, no stale output, the same pages twice."""

import html
import json
import re
import shutil
import sys
import time

import pytest
import yaml
from conftest import ROOT, jupyter_book

sys.path.insert(0, str(ROOT / "book/_ext"))


def notebook(*cells):
    """A notebook as JSON text; a cell is Markdown if it begins with '#' and a blank, else code."""
    made = []
    for number, source in enumerate(cells):
        cell = {"id": f"cell-{number}", "metadata": {}, "source": source}
        if source.startswith("# "):
            cell["cell_type"] = "markdown"
        else:
            cell |= {"cell_type": "code", "execution_count": None, "outputs": []}
        made.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return json.dumps(
        {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    )


def test_the_book_builds_without_a_warning(built):
    site, text = built
    complaints = [x for x in text.splitlines() if re.search(r"warning|error", x, re.I)]
    # The configuration that MyST prints has option names with these words in them.
    complaints = [x for x in complaints if "ParserConfig" not in x and "Parser" not in x]
    assert complaints == []
    assert (site / "book/index.html").is_file()


def test_a_second_build_executes_nothing_and_gives_the_same_pages(built, tmp_path):
    site, _ = built
    first = contents(site)
    shutil.copytree(site.parent, tmp_path / "_build")  # other tests read the first
    begin = time.monotonic()
    done = jupyter_book(ROOT, tmp_path)
    seconds = time.monotonic() - begin
    assert done.returncode == 0, done.stdout
    assert "executing" not in done.stdout
    assert seconds < 60
    assert_same_pages(first, tmp_path / "_build/html")


def test_pages_executed_again_are_the_same(built, tmp_path):
    """Nothing that runs may differ from run to run, except what a live GPU measures."""
    site, _ = built
    first = contents(site)
    if any(b'data-mark="live"' in text for path, text in first.items() if path.suffix == ".html"):
        pytest.skip("a GPU measured here: live times differ from run to run")
    done = jupyter_book(ROOT, tmp_path)
    assert done.returncode == 0, done.stdout
    assert_same_pages(first, tmp_path / "_build/html")


def contents(folder):
    """{path: bytes} of all files below a folder."""
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def assert_same_pages(first, folder):
    second = contents(folder)
    assert first.keys() == second.keys()
    assert [str(path) for path in first if first[path] != second[path]] == []


def test_a_raising_cell_fails_the_build(small_book):
    book, build = small_book
    (book / "book/01.ipynb").write_text(notebook("# A\n\nText.", "print(1)", "1 / 0"))
    done = build()
    assert done.returncode != 0
    assert "01.ipynb" in done.stdout and "ZeroDivisionError" in done.stdout


READS = """
from pathlib import Path
import sys; sys.path.insert(0, ".")
from lesson import helper
print(Path("../kernels/a.cu").read_text(), helper.WORD, Path("evidence/x.json").read_text())
"""


@pytest.mark.parametrize("file", ["kernels/a.cu", "book/lesson/helper.py", "book/evidence/x.json"])
def test_an_edited_file_never_leaves_an_old_output(small_book, file):
    book, build = small_book
    (book / "book/evidence").mkdir()
    texts = {"kernels/a.cu": "old", "book/lesson/helper.py": 'WORD = "old"',
             "book/evidence/x.json": "old"}
    for name, text in texts.items():
        (book / name).write_text(text)
    (book / "book/01.ipynb").write_text(notebook("# A\n\nText.", READS))
    page = book / "_build/html/book/01.html"
    assert build().returncode == 0
    assert "old old old" in page.read_text()
    (book / file).write_text(texts[file].replace("old", "new"))
    assert build().returncode == 0
    words = re.search(r"(old|new) (old|new) (old|new)", page.read_text())[0]
    assert words.split().count("new") == 1


def test_an_edited_cell_is_executed_again(small_book):
    book, build = small_book
    for word in ("first", "second"):
        (book / "book/01.ipynb").write_text(notebook("# A\n\nText.", f"print('{word}'.upper())"))
        assert build().returncode == 0
        assert word.upper() in (book / "_build/html/book/01.html").read_text()


def test_packages_and_compilers_belong_to_the_digest(tmp_path, monkeypatch):
    import chapters_executed

    requirements = tmp_path / "requirements.txt"
    requirements.write_text("# a comment\njupyter-book>=1,<2  # why\n")
    assert {x.split("==")[0] for x in chapters_executed.packages(tmp_path)} >= {
        "jupyter-book", "myst-nb", "ipykernel", "nbclient"  # what it needs in turn
    }
    before = chapters_executed.digest(tmp_path)
    assert chapters_executed.digest(tmp_path) == before
    requirements.write_text("jupyter-book\npytest\n")
    assert chapters_executed.digest(tmp_path) != before
    requirements.write_text("jupyter-book\n")
    assert chapters_executed.digest(tmp_path) == before
    monkeypatch.setenv("PATH", str(tmp_path))  # no compiler
    assert chapters_executed.digest(tmp_path) != before


KERNEL = """%%kernel online/score
__global__ void f(float *o, size_t n) { if (o && n > 0x1fu) o[threadIdx.x] = 1.0f; } // it's"""


def test_a_kernel_cell_is_highlighted_as_cuda(small_book):
    book, build = small_book
    magic = "from IPython.core.magic import register_cell_magic\n"
    magic += "@register_cell_magic\ndef kernel(line, cell):\n    pass"
    (book / "book/01.ipynb").write_text(notebook("# A\n\nText.", magic, KERNEL))
    done = build()
    assert done.returncode == 0, done.stdout
    page = (book / "_build/html/book/01.html").read_text()
    assert '<div class="highlight-cuda' in page
    assert '<span class="k">__global__</span>' in page or ">__global__</span>" in page
    assert 'class="err"' not in page


@pytest.mark.parametrize("maths", [r"$\unknown{x}$", "$x_{$", r"$$\left( x$$"])
def test_maths_that_cannot_be_shown_fails_the_build(small_book, maths):
    book, build = small_book
    (book / "book/01.ipynb").write_text(notebook(f"# A\n\nText {maths}."))
    done = build()
    assert done.returncode != 0
    assert "maths not understood" in done.stdout


def test_maths_is_mathml(small_book):
    book, build = small_book
    lines = r"\begin{aligned} m' &= \max(m, s) \\ l' &= l\,e^{m-m'} \end{aligned}"
    (book / "book/01.ipynb").write_text(notebook(f"# A\n\nText $x_1$.\n\n$${lines}$$"))
    done = build()
    assert done.returncode == 0, done.stdout
    page = (book / "_build/html/book/01.html").read_text()
    assert page.count("<math") == 2 and page.count("<mtr>") == 2
    assert "</math>.</span>" in page  # the full stop stays on the formula's line
    assert "_static/maths.css" in page
    assert "mathjax" not in page.lower()


@pytest.mark.parametrize("latex, display, expected", [
    (r"O(\log N)", "inline", "O ( log | N )"),
    (r"8 \epsilon \max |s|", "inline", "8 \u03f5 | max | < s >"),
    (r"\max(m, s)", "inline", "max ( m , s )"),
    (r"= \max_{j} s_j", "inline", "= [sub max j ] | [sub s j ]"),
    (r"= \max_{j} s_j", "block", "= [under max j ] | [sub s j ]"),
    (r"\exp(a) \exp({-\infty})", "inline", "exp ( a ) | exp ( ^\u2212 \u221e )"),
])
def test_maths_has_the_spaces_of_latex(latex, display, expected):
    """In `expected` a bar is a thin space, < and > are fences, ^ is a sign."""
    from latex2mathml.converter import convert
    from mathml import spaced

    text = html.unescape(spaced(convert(latex, display=display), display))
    for pattern, short in (("<mspace[^>]*></mspace>", " | "), ('<mo[^>]*"prefix">\\|</mo>', " < "),
                           ('<mo[^>]*"postfix">\\|</mo>', " > "), ('<mo form="prefix">', " ^"),
                           ("<m(sub|under)>", r" [\1 "), ("</m(sub|under)>", " ] ")):
        text = re.sub(pattern, short, text)
    # Tags, except for the fences above.
    assert re.sub(r"</?m[^>]*>", " ", text).split() == expected.split()


def test_a_line_in_italics_above_a_table_is_its_caption(small_book):
    book, build = small_book
    table = "# A\n\nText.\n\n*What doubles & grows*\n\n| a | b |\n|---|---|\n| 1 | 2 |"
    (book / "book/01.ipynb").write_text(notebook(table))
    done = build()
    assert done.returncode == 0, done.stdout
    page = (book / "_build/html/book/01.html").read_text()
    box = 'role="region" tabindex="0" aria-label="What doubles &amp; grows">'
    assert re.search(box + r"\s*<table", page)
    assert re.search(r"<caption>.*What doubles &amp; grows.*</caption>", page)
    assert "<em>What" not in page


def test_the_repository_address_makes_the_links(small_book):
    book, build = small_book
    (book / "book/01.ipynb").write_text(notebook("# A\n\nText."))
    assert build().returncode == 0
    page = book / "_build/html/book/01.html"
    assert "colab.research" not in page.read_text() and "og:url" not in page.read_text()
    config = (book / "_config.yml").read_text()
    address = "https://github.com/someone/some-repo"
    assert 'url: ""' in config, "the address is set: adapt this test's next line"
    (book / "_config.yml").write_text(config.replace('url: ""', f"url: {address}"))
    done = build()
    assert done.returncode == 0, done.stdout
    text = page.read_text()
    colab = "https://colab.research.google.com/github/someone/some-repo/blob/main/book/01.ipynb"
    assert f'href="{colab}"' in text
    assert f'href="{address}/edit/main/book/01.ipynb"' in text
    assert 'content="https://someone.github.io/some-repo/_static/preview.png"' in text
    assert 'rel="canonical" href="https://someone.github.io/some-repo/book/01.html"' in text
    missing = (book / "_build/html/404.html").read_text()
    assert '<base href="https://someone.github.io/some-repo/">' in missing


def test_every_chapter_is_in_the_table_of_contents():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    listed = [c["file"] for part in toc["parts"] for c in part["chapters"]]
    pages = [*(ROOT / "book").glob("*.ipynb"), *(ROOT / "book").glob("*.md")]
    there = {p.relative_to(ROOT).with_suffix("").as_posix() for p in pages}
    assert there == {toc["root"], *listed}
    chapters = [name for name in listed if re.match(r"book/\d", name)]
    assert chapters == sorted(chapters)


def test_requirements_are_bounded_on_both_sides():
    for file in ("requirements.txt", "requirements-test.txt"):
        for line in (ROOT / file).read_text().splitlines():
            line = line.split("#")[0].strip()
            if line:
                assert re.search(r">=\d", line) and re.search(r",<\d", line), f"{file}: {line}"


def test_jupyter_book_is_bounded_to_the_version_that_reads_these_files():
    assert re.search(r"^jupyter-book>=1\.0\.4,<2\b", (ROOT / "requirements.txt").read_text(), re.M)
