"""The build: one command, every warning an error, no stale output, the same pages twice."""

import re
import shutil

import chapters_executed
import pytest
import yaml
from support import ROOT
from support.books import Markdown, jupyter_book

TEXT = Markdown("# A\n\nText.")


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
    done = jupyter_book(ROOT, tmp_path)
    assert done.returncode == 0, done.stdout
    assert "executing" not in done.stdout
    second = contents(tmp_path / "_build/html")
    assert first.keys() == second.keys()
    assert [str(path) for path in first if first[path] != second[path]] == []


def contents(folder):
    """{path: bytes} of all files below a folder."""
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_raising_cell_fails_the_build(small_book):
    small_book.write("01", TEXT, "print(1)", "1 / 0")
    done = small_book.build()
    assert done.returncode != 0
    assert "01.ipynb" in done.stdout and "ZeroDivisionError" in done.stdout


READS = """
from pathlib import Path
print(Path("../kernels/a.cu").read_text(), "{}".upper())
"""


def test_an_edited_file_or_cell_never_leaves_an_old_output(small_book):
    kernel = small_book.folder / "kernels/a.cu"
    for text, word in (("old", "old"), ("new", "old"), ("new", "new")):
        kernel.write_text(text)
        small_book.write("01", TEXT, READS.format(word))
        assert small_book.build().returncode == 0
        assert f"{text} {word.upper()}" in small_book.page("01")


@pytest.mark.parametrize("file", ["kernels/a.cu", "book/lesson/helper.py", "book/evidence/x.json",
                                  "_config.yml"])
def test_what_a_chapter_may_read_belongs_to_the_digest(tmp_path, file):
    (tmp_path / "requirements.txt").write_text("jupyter-book\n")
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    seen = [chapters_executed.digest(tmp_path)]
    for text in ("old", "new"):
        path.write_text(text)
        seen.append(chapters_executed.digest(tmp_path))
    assert len(set(seen)) == 3


def test_packages_and_compilers_belong_to_the_digest(tmp_path, monkeypatch):
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


def test_a_kernel_cell_is_highlighted_as_cuda(small_pages):
    page = small_pages["kernel"]
    assert '<div class="highlight-cuda' in page
    assert '<span class="k">__global__</span>' in page or ">__global__</span>" in page
    assert 'class="err"' not in page


def test_a_line_in_italics_above_a_table_is_its_caption(small_pages):
    page = small_pages["table"]
    box = 'role="region" tabindex="0" aria-label="What doubles &amp; grows">'
    assert re.search(box + r"\s*<table", page)
    assert re.search(r"<caption>.*What doubles &amp; grows.*</caption>", page)
    assert "<em>What" not in page


def test_the_repository_address_makes_the_links(small_book, small_pages):
    assert "colab.research" not in small_pages["table"] and "og:url" not in small_pages["table"]
    config = small_book.folder / "_config.yml"
    address, text = "https://github.com/someone/some-repo", config.read_text()
    assert 'url: ""' in text, "the address is set: adapt this test's next line"
    config.write_text(text.replace('url: ""', f"url: {address}"))
    small_book.write("01", TEXT)
    done = small_book.build()
    assert done.returncode == 0, done.stdout
    page = small_book.page("01")
    colab = "https://colab.research.google.com/github/someone/some-repo/blob/colab/01.ipynb"
    assert f'href="{colab}"' in page
    assert f'href="{address}/edit/main/book/01.ipynb"' in page
    assert 'content="https://someone.github.io/some-repo/_static/preview.png"' in page
    assert 'rel="canonical" href="https://someone.github.io/some-repo/book/01.html"' in page
    missing = (small_book.html / "404.html").read_text()
    assert '<base href="https://someone.github.io/some-repo/">' in missing


def test_every_chapter_is_in_the_table_of_contents():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    listed = [c["file"] for part in toc["parts"] for c in part["chapters"]]
    pages = [*(ROOT / "book").glob("*.ipynb"), *(ROOT / "book").glob("*.md")]
    there = {p.relative_to(ROOT).with_suffix("").as_posix() for p in pages}
    assert there == {toc["root"], *listed}
    captions = [part["caption"] for part in toc["parts"]]
    assert captions == ["Two ways", "Faster", "Further", "Practice", "Reference"]
    assert len(toc["parts"][0]["chapters"]) == 5


def test_requirements_are_bounded_on_both_sides():
    for file in ("requirements.txt", "requirements-test.txt", "requirements-mpi.txt"):
        for line in (ROOT / file).read_text().splitlines():
            line = line.split("#")[0].strip()
            if line:
                assert re.search(r">=\d", line) and re.search(r",<\d", line), f"{file}: {line}"


def test_jupyter_book_is_bounded_to_the_version_that_reads_these_files():
    assert re.search(r"^jupyter-book>=1\.0\.4,<2\b", (ROOT / "requirements.txt").read_text(), re.M)
