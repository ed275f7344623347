"""The chapters' files: their names and cells."""

import json
import re

from tools import notebooks

from support import BOOK

CHAPTERS = [path.name for path in notebooks.chapters()]


def cells(chapter, kind, without=""):
    """Sources of a chapter's cells of one kind, 'code' or 'markdown', but for those with a tag."""
    book = json.loads((BOOK / chapter).with_suffix(".ipynb").read_text(encoding="utf-8"))
    return ["".join(c["source"]) for c in book["cells"] if c["cell_type"] == kind
            and without not in c["metadata"].get("tags", ())]


def words(text):
    """The words of Markdown: a formula or a name in code is one; tables, URLs and tags are none."""
    text = re.sub(r"```.*?```", " ", text, flags=re.S)
    text = re.sub(r"\$\$.*?\$\$|\$[^$]*\$|`[^`]*`", " x ", text, flags=re.S)
    text = re.sub(r"<[^>]+>|^\|.*$|\]\([^)]*\)", " ", text, flags=re.M)
    return re.findall(r"[A-Za-z0-9][\w'.,-]*", text)


def passages(chapter):
    """The texts between two cells, tables or folded answers of a chapter."""
    book = json.loads((BOOK / chapter).with_suffix(".ipynb").read_text(encoding="utf-8"))
    text = "".join("".join(c["source"]) + "\n\n" if c["cell_type"] == "markdown" else "\0"
                   for c in book["cells"])
    return re.split(r"\0|<details>.*?</details>|(?:^\|.*\n)+", text, flags=re.S | re.M)
