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


@dataclass(frozen=True)
class Record:
    """What a whole run has found.

    sources: ``{name: {"code": SHA-256 of the source's code, "checks": that of its checks,
    "verdicts": {key of a mutation: Verdict}}}``. alone: ``{key: a 1 or a 0 for each of
    mutation.ALONE}`` of the mutants of the two paths that a case has rejected.
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


def kept(path=STATE):
    """``{(digest of the checks, key): row}`` of what has run."""
    found = {}
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return found
    for line in lines:
        try:
            row = json.loads(line)
            found[row["checks"], row["key"]] = row
        except (ValueError, KeyError):
            continue  # written in part, when a run was stopped
    return found


def run(names=mutation.SOURCES, each=mutation.EACH, workers=None, path=STATE, say=None):
    """Run every chosen mutant of some sources that has no verdict yet. Returns a Record of all.

    say(what, done, all, seconds left). Raises GateError where an original does not pass its own
    checks.
    """
    jobs = {name: mutation.chosen(name, each) for name in names}
    with _Pool(path, workers, say) as pool:
        new = [name for name, ms in jobs.items()
               if any((_digest(name), m.key) not in pool.found for m in ms)]
        pool.do("originals", [(_original, name, _digest(name), f"original {name}")
                              for name in new])
        for name in new:
            if fails := pool.found[_digest(name), f"original {name}"]["fails"]:
                raise GateError(f"{name} itself does not pass: {fails}")
        pool.do("mutants", [(_verdict, name, _digest(name), m.key)
                            for name, ms in jobs.items() for m in ms])
        found = {name: {m.key: _read(pool.found[_digest(name), m.key]) for m in ms}
                 for name, ms in jobs.items()}
        alone = mutation.digest(mutation.ALONE)
        wrong = [(name, key) for name in names if name in paths.PATHS
                 for key, verdict in found[name].items() if verdict.by in cases.NAMES]
        pool.do("mutants, case by case", [(_alone, name, alone, key) for name, key in wrong])
        bits = {key: pool.found[alone, key]["alone"] for _, key in wrong}
    compiler, version = nvrtc.available()
    versions = {"compiler": toolchain().version, "nvrtc": version if compiler else "none"}
    codes = evidence.digests(names)
    return Record(datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                  versions, {name: {"code": codes[name], "checks": _digest(name),
                                    "verdicts": found[name]} for name in names}, bits)


class _Pool:
    """Processes that work, and the file that keeps what they find."""

    def __init__(self, path, workers, say):
        self.path, self.say, self.found = Path(path), say, kept(path)
        self.workers = workers or os.cpu_count() or 1

    def __enter__(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.file = open(self.path, "a", encoding="utf-8")
        self.pool = ProcessPoolExecutor(self.workers)
        return self

    def __exit__(self, *_):
        self.pool.shutdown(cancel_futures=True)
        self.file.close()

    def do(self, what, jobs):
        """Do those of ``jobs``, (function, source, digest of checks, key), that are not kept."""
        new = [job for job in jobs if job[2:] not in self.found]
        start = time.monotonic()
        tasks = [self.pool.submit(_work, *job) for job in new]
        for done, task in enumerate(as_completed(tasks), 1):
            row = task.result()
            self.found[row["checks"], row["key"]] = row
            self.file.write(json.dumps(row) + "\n")
            self.file.flush()
            if self.say:
                spent = time.monotonic() - start
                self.say(what, done, len(new), spent / done * (len(new) - done))


_gates, _by_key = {}, {}  # of a worker


def _work(function, name, checks, key):
    """The row that a function finds of one mutant of a source."""
    if name not in _gates:
        _gates[name] = mutation.Gate(name)
        _by_key[name] = {m.key: m for m in mutations.mutations(name)}
    return {"key": key, "checks": checks, **function(_gates[name], _by_key[name].get(key))}


def _original(gate, _):
    return {"fails": gate.original_fails()}


def _verdict(gate, mutant):
    return {k: v for k, v in asdict(gate.verdict(mutant)).items() if v}


def _alone(gate, mutant):
    return {"alone": gate.alone(mutant)}


def _read(row):
    return mutation.Verdict(row["status"], row.get("by", ""), row.get("check", ""),
                            row.get("code", ""))


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
    """The Record of a file; None where there is none. Raises EvidenceError for what is no record."""
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


def sample(count, names=mutation.SOURCES):
    """``count`` (source, Mutation): those whose keys, with the hashes of all sources, are least.

    So another change of any kernel brings another sample.
    """
    stem = "".join(evidence.digests(names).values())
    every = [(name, m) for name in names for m in mutation.chosen(name)]
    return sorted(every, key=lambda x: hashlib.sha256(f"{stem}{x[1].key}".encode()).digest()
                  )[:count]
