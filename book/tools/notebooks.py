"""One canonical form of a chapter, checked and repaired by one command.

    python -m tools.notebooks            repair every chapter   (make notebooks)
    python -m tools.notebooks --check    name those that differ; exit code 1 if there are any

The form: no outputs, counts or widget state; metadata with the stock kernel and a T4 for Colab;
cell ids by position; the first code cell the same everywhere, and folded on the page; a cell that
begins with ``%%kernel SOURCE/SNIPPET`` or ``%%kernel SOURCE`` holds that text of ``kernels/``,
unless it has the tag ``exercise``.
"""

import argparse
import json
import re
import sys
from pathlib import Path

from lesson.errors import ArgumentError
from lesson.text.source import names, read, snippets

BOOK = Path(__file__).resolve().parents[1]
SETUP = BOOK / "tools" / "setup_cell.py"
TOC = BOOK.parent / "_toc.yml"

METADATA = {
    "accelerator": "GPU",
    "colab": {"gpuType": "T4", "provenance": []},
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
KEPT = ("mystnb", "tags")  # cell metadata that a chapter's author writes


def chapters():
    """The notebooks of the book, in the order of its table of contents."""
    listed = re.findall(r"^ *- file: book/(\S+)$", TOC.read_text(encoding="utf-8"), re.M)
    place = {name: i for i, name in enumerate(listed)}
    found = BOOK.glob("[!.]*.ipynb")  # not what an editor keeps beside them
    return sorted(found, key=lambda path: (place.get(path.stem, len(place)), path.name))


def canonical(text, setup=None):
    """The canonical form of a notebook.

    Args:
        text: the notebook as JSON text, of any nbformat 4.
        setup: the text of the first code cell; None leaves it as it is.

    Returns: the notebook as JSON text.
    Raises: ArgumentError if the text is no notebook, or a kernel cell names no snippet.
    """
    try:
        cells = json.loads(text)["cells"]
    except (ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"not a notebook of nbformat 4: {error!r}") from error
    kept = []
    for cell in cells:
        source = "".join(cell["source"]).strip("\n")
        if not source.strip():
            continue
        metadata = {key: cell["metadata"][key] for key in KEPT if cell["metadata"].get(key)}
        new = {
            "cell_type": cell["cell_type"],
            "id": f"cell-{len(kept):02d}",
            "metadata": metadata,
            "source": source,
        }
        if cell["cell_type"] == "code":
            if setup is not None:
                new["source"], setup = setup.strip("\n"), None
                metadata["tags"] = ["hide-input"]  # folded on the page
            elif source.startswith("%%kernel") and "exercise" not in metadata.get("tags", ()):
                new["source"] = kernel_cell(source)
            new |= {"execution_count": None, "outputs": []}
        new["source"] = new["source"].splitlines(keepends=True)
        kept.append(new)
    notebook = {"cells": kept, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"  # as nbformat


def kernel_cell(source):
    """A kernel cell with the text that ``kernels/`` has for it now."""
    magic = source.split("\n", 1)[0]
    name = magic.partition(" ")[2].strip()
    if name in names():  # a whole source
        return f"{magic}\n{read(name).rstrip()}"
    file, _, snippet = name.rpartition("/")
    known = snippets(file)
    if snippet not in known:
        raise ArgumentError(f"{magic!r}: {file}.cu has no such snippet; it has: {', '.join(known)}")
    return f"{magic}\n{known[snippet].rstrip()}"


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tools.notebooks", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, only name")
    parser.add_argument("files", nargs="*", type=Path, help="notebooks; default: every chapter")
    options = parser.parse_args(argv)
    setup = SETUP.read_text(encoding="utf-8") if SETUP.exists() else None
    differ = []
    for path in options.files or chapters():
        text = path.read_text(encoding="utf-8")
        try:
            new = canonical(text, setup)
        except ArgumentError as error:
            sys.exit(f"{path.name}: {error}")
        if new != text:
            differ.append(path)
            if not options.check:
                path.write_text(new, encoding="utf-8")
    verb = "not in canonical form (make notebooks repairs it)" if options.check else "repaired"
    for path in differ:
        print(f"{path.name}: {verb}")
    return 1 if options.check and differ else 0


if __name__ == "__main__":
    sys.exit(main())
