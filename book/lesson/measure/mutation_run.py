"""All mutants: run what is new, keep what has run, and write the file that the book shows."""

import datetime
import hashlib
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from ..errors import EvidenceError, GateError
from ..launch import paths
from ..machine import nvrtc
from ..machine.emulator.toolchain import toolchain
from ..problem import cases
from ..text import mutations, source
from . import evidence, mutation

STATE = source.KERNELS.parent / "_build" / "mutants.jsonl"  # a line a verdict; ignored by git
FILE = evidence.FOLDER / "mutants" / "record.json"
FORMAT = 1
ON_EVERY_CASE = 240  # mutants that run on every case alone


@dataclass(frozen=True)
class Record:
    """What a whole run has found.

    sources: ``{name: {"code": SHA-256 of the source's code, "checks": that of its checks,
    "verdicts": {key of a mutation: Verdict}}}``. alone: ``{key: a 1 or a 0 for each of
    mutation.ALONE}`` of some mutants of the two paths that a case has rejected, chosen by hash.
    """

    date: str
    versions: dict
    sources: dict
    alone: dict

    @property
    def day(self):
        return self.date[:10]

    def stale(self):
        """The sources whose code or checks have changed since."""
        now = evidence.digests(self.sources)
        return [name for name, found in self.sources.items() if found["code"] != now[name]
                or found["checks"] != _digest(name)]


def _digest(name):
    return mutation.digest(sum(mutation.battery(name), ()))


def run(names=mutation.SOURCES, each=mutation.EACH, workers=None, path=STATE, say=None,
        record=None):
    """Run every chosen mutant of some sources that has no verdict yet. Returns a Record of all.

    What has run is kept in the file ``path``, so a run that was stopped goes on. record: an earlier
    Record, whose verdicts need not be found again. say(what, done, all, seconds left). Raises
    GateError where an original does not pass its own checks.
    """
    jobs = {name: mutation.chosen(name, each) for name in names}
    with _Work(path, workers, say, record) as work:
        mutants = [(name, m.key) for name, ms in jobs.items() for m in ms]
        new = dict.fromkeys(name for name, key in mutants if not work.knows("verdict", name, key))
        for row in work.do("original", [(name, name) for name in new]):
            if row["fails"]:
                raise GateError(f"{row['key']} itself does not pass: {row['fails']}")
        verdicts = [mutation.Verdict(**{k: row.get(k, "") for k in
                                        ("status", "by", "check", "code")})
                    for row in work.do("verdict", mutants)]
        alone = {row["key"]: row["alone"]
                 for row in work.do("alone", _on_every_case(mutants, verdicts))}
    found = {name: {} for name in names}
    for (name, key), verdict in zip(mutants, verdicts):
        found[name][key] = verdict
    compiler, version = nvrtc.available()
    versions = {"compiler": toolchain().version, "nvrtc": version if compiler else "none"}
    codes = evidence.digests(names)
    return Record(datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                  versions, {name: {"code": codes[name], "checks": _digest(name),
                                    "verdicts": found[name]} for name in names}, alone)


def _on_every_case(mutants, verdicts):
    """Those (source, key) of the two paths that a case has rejected and that run on all cases.

    A part of them, by the smallest keys: each takes as many runs as there are cases.
    """
    wrong = sorted((key, name) for (name, key), verdict in zip(mutants, verdicts)
                   if name in paths.PATHS and verdict.by in cases.NAMES)
    return [(name, key) for key, name in wrong[:ON_EVERY_CASE]]


def kept(path=STATE):
    """``{(kind of work, key): row}`` of what has run."""
    found = {}
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return found
    for line in lines:
        try:
            row = json.loads(line)
            found[row["kind"], row["key"]] = row
        except (ValueError, KeyError):
            continue  # written in part, when a run was stopped
    return found


def _rows(record):
    """The verdicts of a Record as ``kept`` gives them."""
    found = {}
    if record is None:
        return found
    for its in record.sources.values():
        for key, verdict in its["verdicts"].items():
            found["verdict", key] = {"kind": "verdict", "key": key, "checks": its["checks"],
                                     **{k: v for k, v in asdict(verdict).items() if v}}
    # The checks of the two paths contain those of ALONE.
    for key, bits in record.alone.items() if not {*paths.PATHS} & {*record.stale()} else ():
        found["alone", key] = {"kind": "alone", "key": key, "alone": bits,
                               "checks": mutation.digest(mutation.ALONE)}
    return found


def _check(name, label):
    """The check of a source that is called ``label``; None if there is none."""
    return next((check for check in sum(mutation.battery(name), ()) if str(check) == label), None)


def valid(name, row):
    """Whether a kept row of a source still holds.

    A rejection needs the check that rejected, as it is; a survivor has passed all checks as they
    are; what does not compile, or is the same machine code, needs none.
    """
    if row["kind"] == "alone":
        return row["checks"] == mutation.digest(mutation.ALONE)
    if row.get("check") and row["checks"] != _digest(name):
        check = _check(name, row["check"])
        return check is not None and row["checks"] == mutation.digest((check,))
    return row.get("status") in (mutation.NONE, mutation.SAME) or row["checks"] == _digest(name)


class _Work:
    """Processes that work, and the file that keeps what they find."""

    def __init__(self, path, workers, say, record=None):
        self.path, self.say = Path(path), say
        self.found = _rows(record) | kept(path)
        self.workers = workers or os.cpu_count() or 1

    def __enter__(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.file = open(self.path, "a", encoding="utf-8")
        self.pool = ProcessPoolExecutor(self.workers)
        return self

    def __exit__(self, *_):
        self.pool.shutdown(cancel_futures=True)
        self.file.close()

    def knows(self, kind, name, key):
        row = self.found.get((kind, key))
        return row is not None and valid(name, row)

    def do(self, kind, jobs):
        """The row of each of ``jobs``, (source, key), in their order; what is kept is not done."""
        new = [job for job in jobs if not self.knows(kind, *job)]
        start = time.monotonic()
        tasks = [self.pool.submit(_do, kind, *job) for job in new]
        for done, task in enumerate(as_completed(tasks), 1):
            row = task.result()
            self.found[kind, row["key"]] = row
            self.file.write(json.dumps(row) + "\n")
            self.file.flush()
            if self.say:
                spent = time.monotonic() - start
                self.say(WORDS[kind], done, len(new), spent / done * (len(new) - done))
        return [self.found[kind, key] for _, key in jobs]


WORDS = {"original": "originals", "verdict": "mutants", "alone": "mutants, case by case"}
_gates, _by_key = {}, {}  # of a worker


def _do(kind, name, key):
    """The row of one piece of work."""
    if name not in _gates:
        _gates[name] = mutation.Gate(name)
        _by_key[name] = {m.key: m for m in mutations.mutations(name)}
    row, gate = {"kind": kind, "key": key, "checks": _digest(name)}, _gates[name]
    if kind == "original":
        return row | {"fails": gate.original_fails()}
    if kind == "alone":
        return row | {"checks": mutation.digest(mutation.ALONE),
                      "alone": gate.alone(_by_key[name][key])}
    verdict = gate.verdict(_by_key[name][key])
    if verdict.check:
        row["checks"] = mutation.digest((_check(name, verdict.check),))
    return row | {k: v for k, v in asdict(verdict).items() if v}


# ---- the file --------------------------------------------------------------------------------

def write(record, path=FILE):
    """Write a Record: a line a mutant, the checks that reject by their number."""
    data = {"format": FORMAT, "date": record.date, "versions": record.versions, "sources": {},
            "alone": [f"{key} {bits}" for key, bits in record.alone.items()]}
    for name, found in record.sources.items():
        checks = sorted({v.check for v in found["verdicts"].values()})
        data["sources"][name] = {
            "code": found["code"], "checks": found["checks"], "named": checks,
            "verdicts": ["/".join((key, v.status, v.by, str(checks.index(v.check)), v.code))
                         for key, v in found["verdicts"].items()]}
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(data, indent=0) + "\n", encoding="utf-8")
    return path


def read(path=FILE):
    """The Record of a file; None where there is none. Raises EvidenceError for another file."""
    path = Path(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise EvidenceError(f"{path.name}: format is {data['format']}, this lesson reads "
                                f"{FORMAT}: run make mutants again")
        found = {}
        for name, its in data["sources"].items():
            rows = (line.split("/") for line in its["verdicts"])
            found[name] = {"code": its["code"], "checks": its["checks"], "verdicts": {
                key: mutation.Verdict(status, by, its["named"][int(check)], code)
                for key, status, by, check, code in rows}}
        return Record(data["date"], data["versions"], found,
                      dict(line.split() for line in data["alone"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise EvidenceError(f"{path.name} is no record of mutants: {error!r}") from None


def sample(each=5, more=3):
    """(source, Mutation) of ``each`` mutants of both paths and of ``more`` other sources.

    Those whose names or keys, with the hashes of all sources, have the least SHA-256: another
    change of any kernel brings another sample.
    """
    stem = "".join(evidence.digests(mutation.SOURCES).values())

    def order(word):
        return hashlib.sha256(f"{stem}{word}".encode()).digest()

    others = sorted(set(mutation.SOURCES) - set(paths.PATHS), key=order)
    return [(name, m) for name in (*paths.PATHS, *others[:more])
            for m in sorted(mutation.chosen(name), key=lambda m: order(m.key))[:each]]
