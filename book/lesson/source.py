"""Kernel text: files, snippets, a reader's replacements. Knows no compiler.

A file in ``kernels/`` is covered by named snippets::

    // snippet: score
    ...
    // end snippet

An edit replaces the text of one snippet for one Source; the file is never written to. ``#line``
directives around an edited snippet make compilers report the reader's own line numbers.
"""

import hashlib
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from .errors import ArgumentError

KERNELS = Path(__file__).resolve().parents[2] / "kernels"

_SNIPPET = re.compile(r"^// snippet: (\w+)\n(.*?)^// end snippet$", re.M | re.S)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_KERNEL = re.compile(
    r"__global__\s+(?:void\s+)?(?:__launch_bounds__\s*\([^)]*\)\s*)?(?:void\s+)?(\w+)\s*\(([^)]*)\)",
    re.S,
)


@dataclass(frozen=True)
class Param:
    """One parameter of a kernel, as declared."""

    type: str  # 'const float*', 'float*', 'size_t', 'float', 'int', ...
    name: str

    @property
    def pointer(self):
        return self.type.endswith("*")


@dataclass(frozen=True)
class Kernel:
    """A ``__global__`` function and its parameters."""

    name: str
    params: tuple[Param, ...]


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
    def kernels(self):
        """``{name: Kernel}`` of the ``__global__`` functions that the text defines."""
        return {
            name: Kernel(name, tuple(_param(p) for p in params.split(",") if p.strip()))
            for name, params in _KERNEL.findall(bare(self.text))
        }

    @cached_property
    def digest(self):
        """SHA-256 of the text, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def _param(text):
    words = text.replace("__restrict__", " ").replace("*", " * ").split()
    *kind, name = words
    return Param(" ".join(kind).replace(" *", "*"), name)


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
    return _COMMENT.sub(" ", text)


def from_text(text, name="pasted.cu"):
    """A source that is not in ``kernels/``: a reader's own text."""
    return Source(name.removesuffix(".cu"), text, name)


def from_file(path):
    """A source read from a file of the reader's. Raises ArgumentError if it cannot be read."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from None
    return from_text(text, path.name)


def digest_of(names_):
    """One SHA-256 over several files of ``kernels/``: what evidence is tied to."""
    total = hashlib.sha256()
    for name in sorted(names_):
        total.update(f"{name}\0".encode() + path_of(name).read_bytes() + b"\0")
    return total.hexdigest()
