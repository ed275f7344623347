"""Beside each chapter's page, the chapter as one file: what Colab runs without a repository."""

import sys
from pathlib import Path

from pages import names_of

FOLDER = "one-file"
BOOK = Path(__file__).resolve().parents[1]
SETUP = BOOK / "tools" / "setup_cell.py"


def chapter(app, name):
    """Text of the chapter that the page called `name` shows; None if it is no lesson chapter."""
    source = Path(app.env.doc2path(name)) if name in app.env.found_docs else Path()
    if source.suffix != ".ipynb" or not SETUP.exists():
        return None
    from tools.single_file import has_setup

    text = source.read_text(encoding="utf-8")
    return text if has_setup(text, SETUP.read_text(encoding="utf-8")) else None


def add_link(app, pagename, templatename, context, doctree):
    """Give the page's template the address of the one file."""
    if chapter(app, pagename) is not None:
        name = Path(app.env.doc2path(pagename)).name
        context["one_file"] = context["pathto"](f"{FOLDER}/{name}", 1)


def write(app, exception):
    """Write one file a chapter."""
    if exception or app.builder.format != "html":
        return
    for name in sorted(app.env.found_docs):
        text = chapter(app, name)
        if text is not None:
            from tools.single_file import build

            made = build(text, SETUP.read_text(encoding="utf-8"), BOOK.parent)
            for place in names_of(name):
                out = Path(app.outdir, FOLDER, f"{Path(place).name}.ipynb")
                out.parent.mkdir(exist_ok=True)
                out.write_text(made, encoding="utf-8")


def setup(app):
    if str(BOOK) not in sys.path:
        sys.path.insert(0, str(BOOK))  # for `import lesson`, as in a chapter
    app.connect("html-page-context", add_link)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
