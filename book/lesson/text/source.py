"""Kernel text: files, snippets, a reader's replacements. Knows no compiler.

A file in ``kernels/`` is covered by named snippets::

    // snippet: score
    ...
    // end snippet

An edit replaces the text of one snippet for one Source; the file is never written to. ``#line``
directives around an edited snippet make compilers report the reader's own line numbers.
"""

import hashlib
import os
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ..errors import ArgumentError

KERNELS = Path(__file__).resolve().parents[3] / "kernels"

_SNIPPET = re.compile(r"^// snippet: (\w+)\n(.*?)^// end snippet$", re.M | re.S)
_LINE = re.compile(r'\s*#\s*(?:line\s+)?(\d+)(?:\s+"(.*?)")?')
# What is no code, and the numbers whose ' would look like the start of a character.
_NO_CODE = re.compile(
    r"""(?P<comment>//(?:\\\n|[^\n])*|/\*.*?(?:\*/|\Z))
    |(?P<literal>\bR"(?P<mark>[^\s()\\]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |\b\d[\w.']*""", re.S | re.X)


@dataclass(frozen=True)
class Source:
    """A kernel source as a compiler sees it.

    ``label`` names it in compiler messages; ``path`` is the file it came from, if any;
    ``edits`` maps a snippet's name to the text that replaced it.
    """

    name: str
    text: str
    label: str
    path: Path | None = None
    edits: dict = field(default_factory=dict)

    @cached_property
    def digest(self):
        """SHA-256 of the text, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def names():
    """Names of the sources in ``kernels/``: 'materialised', 'online', 'ladder/02_...'."""
    return tuple(
        path.relative_to(KERNELS).with_suffix("").as_posix()
        for path in sorted(KERNELS.rglob("*.cu"), key=lambda p: (len(p.parts), p))
    )


def path_of(name):
    """The file of the source called ``name``."""
    path = KERNELS / f"{name}.cu"
    if name not in names():
        raise ArgumentError(f"no kernel source is called {name!r}; there are: {', '.join(names())}")
    return path


def snippets(name):
    """``{snippet: text}`` of a source, in the order of the file."""
    return dict(_SNIPPET.findall(read(name)))


def read(name):
    """The text of the file of the source called ``name``."""
    return path_of(name).read_text(encoding="utf-8")


def constants(name):
    """``{name: value}`` of a source's constexpr ints, in the order of the file."""
    values = {}
    for constant, value in re.findall(r"^constexpr int (\w+) = (.+?);", read(name), re.M):
        values[constant] = eval(value.replace("/", "//"), {}, values)  # of our own files
    return values


def substitute(name, edits):
    """The file's text with ``edits`` ({snippet: text}) in place, without ``#line``."""
    return _SNIPPET.sub(
        lambda m: f"// snippet: {m[1]}\n{edits.get(m[1], m[2])}// end snippet", read(name))


def load(name, edits=None):
    """The source called ``name``, with ``edits`` ({snippet: text}) in place of its snippets.

    A replacement may be a ``(text, label)`` pair; the label, such as ``'cell online/score'``,
    is what compiler messages call it. Raises ArgumentError for an unknown name or snippet.
    """
    path = path_of(name)
    text = read(name)
    label = f"{name}.cu"
    found = dict(_SNIPPET.findall(text))
    applied = {}
    for snippet, new in (edits or {}).items():
        if snippet not in found:
            raise ArgumentError(
                f"{label} has no snippet {snippet!r}; it has: {', '.join(found)}"
            )
        new, new_label = new if isinstance(new, tuple) else (new, f"edited {name}/{snippet}")
        if new.rstrip() != found[snippet].rstrip():
            applied[snippet] = (new.rstrip("\n") + "\n", new_label)

    def replace(match):
        if match[1] not in applied:
            return match[0]
        new, new_label = applied[match[1]]
        after = text.count("\n", 0, match.end()) + 1  # the line of '// end snippet'
        return (
            f'// snippet: {match[1]}\n#line 1 "{new_label}"\n{new}'
            f'#line {after} "{label}"\n// end snippet'
        )

    edited = _SNIPPET.sub(replace, text)
    return Source(name, edited, label, path, {s: new for s, (new, _) in applied.items()})


def bare(text):
    """CUDA text without its comments."""
    return _NO_CODE.sub(lambda m: " " if m["comment"] else m[0], text)


def code(text):
    """What a compiler reads of a CUDA text: no comments, no blank lines, no spaces at line ends."""
    lines = (line.rstrip() for line in bare(text).splitlines())
    return "".join(f"{line}\n" for line in lines if line)


def blanked(text):
    """CUDA text with blanks for its comments and for what its quotation marks hold.

    Every line keeps its number and every word its column.
    """
    def blank(match):
        found = match[0]
        if match["comment"]:
            return re.sub(r"[^\n]", " ", found)
        return found if not match["literal"] else (
            found[0] + re.sub(r"[^\n]", " ", found[1:-1]) + found[-1])

    return _NO_CODE.sub(blank, text)


def numbered(source):
    """The text of a Source under the name that messages call it by."""
    return f'#line 1 "{source.label}"\n{source.text}'


def lines_of(source, text=None):
    """``{(file, line): text}`` as the compiler numbers them, after #line.

    ``text``: what to show instead of the source's own, line for line.
    """
    found, file, number = {}, source.label, 1
    shown = source.text if text is None else text
    for line, words in zip(source.text.split("\n"), shown.split("\n"), strict=True):
        if match := _LINE.match(line):
            number, file = int(match[1]), match[2] or file
            continue
        found[file, number] = words
        number += 1
    return found


def from_text(text, name="pasted.cu"):
    """A source that is not in ``kernels/``: a reader's own text. ``name`` is for messages."""
    # #line has no way to write these in a name, and every message takes its name from there.
    label = re.sub(r"[\x00-\x1f\x7f]", " ", name.replace("\\", "/").replace('"', "'"))
    return Source(label.removesuffix(".cu"), text.removeprefix("\ufeff"), label)


def from_file(path):
    """A source read from a file of the reader's. Raises ArgumentError if it cannot be read."""
    path = Path(path)
    # A name that the locale has no letters for, as UTF-8 all the same.
    name = os.fsencode(path.name or path).decode("utf-8", "replace")
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a zero in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise ArgumentError(f"cannot read {name}: {reason}") from None
    if data[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in data:
        raise ArgumentError(f"cannot read {name}: it holds zero bytes, as text in UTF-16 does, "
                            "which > in an old PowerShell writes: save it as UTF-8")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ArgumentError(f"cannot read {name}: line {line} has a letter that is no UTF-8 "
                            f"(byte {data[error.start]:#04x}; in Latin-1 it would be "
                            f"{bytes([data[error.start]]).decode('latin-1')!r}): save it as "
                            "UTF-8") from None
    return from_text(text.replace("\r\n", "\n").replace("\r", "\n"), name)


def digest_of(names_):
    """One SHA-256 over several files of ``kernels/``: what evidence is tied to."""
    total = hashlib.sha256()
    for name in sorted(names_):
        total.update(f"{name}\0".encode() + path_of(name).read_bytes() + b"\0")
    return total.hexdigest()
