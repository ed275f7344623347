"""A chapter as one file: a notebook that carries the kernels and the lesson inside it.

It runs in an empty folder without a network, and so in Colab without a repository. Before the
chapter's own cells, which stay as they are, come the kernels as text, one cell a file, and one cell
with all else that a chapter runs: a zip archive in base64, checked against its SHA-256 and unpacked
into a temporary folder.
"""

import base64
import hashlib
import io
import json
import zipfile
from pathlib import Path

from lesson.errors import LessonError

ROOT = Path(__file__).resolve().parents[2]

ABOUT = """\
*This is the chapter as one file. It carries the kernels, as text in the next cells, and the rest \
of the lesson, as an archive in the cell after them. It needs no repository and no network. In \
Colab, choose Runtime > Run all.*"""

UNPACK = '''\
#@title The lesson's Python and its recorded runs, as an archive
import base64
import hashlib
import io
import os
import tempfile
import zipfile
from pathlib import Path

SHA256 = "{digest}"
ARCHIVE = """
{archive}"""

packed = base64.b64decode(ARCHIVE)
if hashlib.sha256(packed).hexdigest() != SHA256:
    raise RuntimeError("The archive in this cell is damaged: download the file again.")
if "FOLDER" not in globals():
    FOLDER = Path(tempfile.mkdtemp(prefix="attention-two-ways-"))
zipfile.ZipFile(io.BytesIO(packed)).extractall(FOLDER)
for name, text in KERNELS.items():
    path = FOLDER / "kernels" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
os.chdir(FOLDER / "book")
'''


def kernels(root=ROOT):
    """``{'online.cu': text, ...}``: every source in ``kernels/``."""
    folder = Path(root, "kernels")
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
            for path in sorted(folder.rglob("*.cu"), key=lambda p: (len(p.parts), p))}


def carried(root=ROOT):
    """Paths, relative to ``root``, that the archive holds: the lesson's files and its evidence."""
    root = Path(root)
    files = [*root.glob("book/lesson/**/*"), *root.glob("book/evidence/**/*.json"),
             root / "LICENSE"]
    return sorted(file.relative_to(root).as_posix() for file in files
                  if file.is_file() and "__pycache__" not in file.parts)


def archive(root=ROOT):
    """The zip archive's bytes: the same files give the same bytes, whenever it is made."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as zipped:
        for name in carried(root):
            entry = zipfile.ZipInfo(name)  # dated 1980, whatever the file's own date is
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            zipped.writestr(entry, Path(root, name).read_bytes())
    return packed.getvalue()


def kernel_cell(name, text):
    """The cell that holds the kernel source called ``name``, readable and editable."""
    if "'''" in text or text.endswith(("'", "\\")):
        raise LessonError(f"kernels/{name} cannot stand between r''' and ''': it holds ''' or ends "
                          "with a quote or a backslash")
    return f"#@title kernels/{name}\nKERNELS[\"{name}\"] = r'''{text}'''"


def build(notebook, setup, root=ROOT):
    """The chapter as one file.

    notebook: its JSON text; setup: the text of its setup cell. Returns JSON text, the same bytes
    for the same files. Raises LessonError for a notebook without the setup cell.
    """
    chapter = json.loads(notebook)
    at = _place(chapter, setup)
    if at is None:
        raise LessonError("the notebook has no setup cell (make notebooks writes it)")
    packed = archive(root)
    unpack = UNPACK.format(digest=hashlib.sha256(packed).hexdigest(),
                           archive=base64.encodebytes(packed).decode())
    sources = [kernel_cell(name, text) for name, text in kernels(root).items()]
    sources[0] = sources[0].replace("\n", "\nKERNELS = {}\n", 1)
    cells = [_cell("markdown", "about", ABOUT),
             *(_cell("code", f"kernels-{i:02d}", text) for i, text in enumerate(sources)),
             _cell("code", "archive", unpack.rstrip())]
    chapter["cells"][at:at] = cells
    return json.dumps(chapter, indent=1, ensure_ascii=False) + "\n"


def has_setup(notebook, setup):
    """Whether a notebook, as JSON text, has the setup cell."""
    return _place(json.loads(notebook), setup) is not None


def _place(chapter, setup):
    """Index of the setup cell; None if there is none."""
    return next((i for i, cell in enumerate(chapter["cells"]) if cell["cell_type"] == "code"
                 and "".join(cell["source"]).strip() == setup.strip()), None)


def _cell(kind, name, text):
    cell = {"cell_type": kind, "id": f"one-file-{name}", "metadata": {},
            "source": text.splitlines(keepends=True)}
    if kind == "code":
        # Colab and JupyterLab show the first line and unfold the rest on request.
        cell["metadata"] = {"cellView": "form", "jupyter": {"source_hidden": True}}
        cell |= {"execution_count": None, "outputs": []}
    return dict(sorted(cell.items()))
