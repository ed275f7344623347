"""Recorded runs: files under ``book/evidence/``, written by ``record``, validated when read.

Each file says what ran (GPU, driver, CUDA, CuPy), when, and which kernels were measured, by the
SHA-256 of their code. The format is described in ``book/evidence/README.md``.
"""

import hashlib
import json
import types
import typing
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

from ..errors import ArgumentError, EvidenceError
from ..launch import paths, rungs
from ..problem.problem import Problem
from ..text import source
from .records import (
    Bench,
    Counters,
    Facts,
    Gate,
    Long,
    Rejection,
    Sanitizer,
    Several,
    Tensor,
    Time,
    Use,
)

FOLDER = Path(__file__).resolve().parents[2] / "evidence"
FORMAT = 2


@dataclass(frozen=True)
class Evidence:
    """One recorded run. Optional parts are None where they were not measured."""

    format: int
    date: str  # ISO 8601, UTC
    versions: dict  # gpu, compute_capability, sms, memory_bytes, driver, cuda, cupy, ...
    kernels: dict  # {source name: SHA-256 of the code that was measured}
    gates: list[Gate]
    times: list[Time]
    facts: list[Facts]
    compile_ms: dict
    mutants: list[Rejection] | None = None
    counters: list[Counters] | None = None
    sanitizer: list[Sanitizer] | None = None
    bench: Bench | None = None  # the ladder and what it is compared with
    long: list[Long] | None = None  # lengths up to one whose score matrix no GPU holds
    tensor: Tensor | None = None  # rungs on tensor cores, and what they are compared with
    use: Use | None = None  # attention for any Problem
    several: Several | None = None  # keys dealt to several GPUs

    @property
    def gpu(self):
        return self.versions["gpu"].removeprefix("NVIDIA ")

    @property
    def day(self):
        return self.date[:10]

    def stale(self, names=tuple(paths.PATHS)):
        """The sources among ``names`` whose code has changed since, or was not measured."""
        now = digests(names)
        return [name for name in names if self.kernels.get(name) != now[name]]


def digests(names):
    """``{source name: SHA-256 of its code}``: what changes in comments alone keeps its evidence."""
    return {name: hashlib.sha256(source.code(source.read(name)).encode()).hexdigest()
            for name in names}


def _check(kind, value, where):
    """Value of type ``kind`` from JSON; EvidenceError names the field that is wrong."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return _check(next(a for a in args if a is not type(None)), value, where)
    if origin is list:
        if not isinstance(value, list):
            raise EvidenceError(f"{where} must be a list, is {type(value).__name__}")
        return [_check(args[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
    if is_dataclass(kind):
        if not isinstance(value, dict):
            raise EvidenceError(f"{where} must be an object, is {type(value).__name__}")
        known = {f.name: f for f in fields(kind)}
        for name in value:
            if name not in known:
                raise EvidenceError(f"{where}.{name} is not a field of format {FORMAT}")
        hints = typing.get_type_hints(kind)
        found = {}
        for name, f in known.items():
            if name in value:
                found[name] = _check(hints[name], value[name], f"{where}.{name}")
            elif f.default is f.default_factory:  # both MISSING: the field is required
                raise EvidenceError(f"{where}.{name} is missing")
        try:
            return kind(**found)
        except ArgumentError as error:  # a Problem that is none
            raise EvidenceError(f"{where}: {error}") from None
    if kind is tuple and isinstance(value, list):
        return tuple(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise EvidenceError(f"{where} must be {kind.__name__}, is {value!r}")
    return value


def _from_format_1(data):
    """Format 2 of a file of format 1.

    Its rows had N and heads instead of a Problem, and its hashes were of whole files.
    """
    def row(old):
        problem = {"queries": old["n"], "keys": old["n"]}
        problem |= {"heads": old["heads"]} if old.get("heads", 1) > 1 else {}
        return {**{k: v for k, v in old.items() if k not in ("n", "heads")}, "problem": problem}

    def rows(part):
        return {name: [row(r) for r in value] if isinstance(value, list) and value
                and isinstance(value[0], dict) and "n" in value[0] else value
                for name, value in part.items()}

    def measured(name, old):  # a file that is still the same has the same code
        if name in source.names() and hashlib.sha256(
                source.path_of(name).read_bytes()).hexdigest() == old:
            return digests([name])[name]
        return old

    kernels = data.get("kernels")
    if isinstance(kernels, dict):
        kernels = {name: measured(name, old) for name, old in kernels.items()}
    new = rows(data) | {"format": 2} | ({"kernels": kernels} if kernels else {})
    return new | {"bench": rows(new["bench"])} if new.get("bench") else new


def parse(text, name="evidence"):
    """Evidence from JSON text. Raises EvidenceError naming the field that is wrong."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise EvidenceError(f"{name} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise EvidenceError(f"{name} must hold one JSON object")
    if data.get("format") == 1:
        data = _from_format_1(data)
    if data.get("format") != FORMAT:
        raise EvidenceError(f"{name}.format is {data.get('format')!r}, this lesson reads {FORMAT}: "
                            "record it again")
    found = _check(Evidence, data, name)
    for field_name in ("gpu", "driver", "cuda", "cupy"):
        if field_name not in found.versions:
            raise EvidenceError(f"{name}.versions.{field_name} is missing")
    return found


def read(path):
    """Evidence from a file. Raises EvidenceError."""
    try:
        return parse(Path(path).read_text(encoding="utf-8"), Path(path).name)
    except OSError as error:
        raise EvidenceError(f"{Path(path).name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise EvidenceError(f"{Path(path).name} is not UTF-8 text") from None


def read_all(folder=None):
    """(list of Evidence, newest first, and list of messages about files that cannot be used)."""
    found, problems = [], []
    for path in sorted(Path(folder or FOLDER).glob("*.json")):
        try:
            found.append(read(path))
        except EvidenceError as error:
            problems.append(str(error))
    return sorted(found, key=lambda e: e.date, reverse=True), problems


def latest(folder=None):
    """The newest Evidence of each GPU: ``{gpu: Evidence}``."""
    newest = {}
    for item in read_all(folder)[0]:
        newest.setdefault(item.gpu, item)
    return newest


# The sources that a part of the evidence was measured with.
LADDER = (*(r.name for r in rungs.RUNGS), rungs.MERGE)
TENSOR = (*(r.name for r in rungs.FINAL_AND_TENSOR), rungs.HALVES, rungs.IMAGES, rungs.MERGE)
USE = ("use/attend", "use/keys", "use/hopper", "use/images", "use/decode", "use/merge")
_SOURCES = {"bench": LADDER, "long": LADDER, "tensor": TENSOR, "use": USE, "several": LADDER}


def shown(part):
    """The runs to show for ``part``, a field of Evidence: of each GPU the newest that fits.

    It fits where it has that part and measured the part's kernels as they are now.
    """
    found = {}
    for item in read_all()[0]:
        if getattr(item, part) is not None and not item.stale(_SOURCES.get(part, paths.PATHS)):
            found.setdefault(item.gpu, item)
    return list(found.values())


def _plain(value):
    """What JSON can hold of a dataclass; a Problem in its short form."""
    if isinstance(value, Problem):
        return value.given()
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def write(evidence, path):
    """Write an Evidence as JSON, after checking that it reads back."""
    data = {k: v for k, v in _plain(evidence).items() if v is not None}
    text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    parse(text, Path(path).name)
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"cannot write {path}: {error.strerror}; "
                            "name another file with --out") from None
    return path
