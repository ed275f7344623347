"""Record a run on this GPU as evidence: gates, times, facts, counters, sanitizer."""

import base64
import csv
import io
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from html import escape
from pathlib import Path

from . import backend as backends
from . import cases, colab, evidence, paths, results, source, traffic
from .edits import edited
from .errors import ArgumentError, GateError
from .mutants import outcomes
from .occupancy import ARCHS
from .progress import Progress
from .table import mark_html

LONG_CASES = ("periodic", "spike-late", "random")
SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")
SANITIZED = (("all kernels",), ("the ladder", "--ladder"))  # what is launched, and by which options
METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum", "lts__t_bytes.sum")


def driver_version():
    """The NVIDIA driver's version, from nvidia-smi; 'unknown' where that does not run."""
    try:
        out = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                             capture_output=True, text=True, check=True, timeout=60)
        return out.stdout.splitlines()[0].strip()
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"


def record(progress, bench=True, long=True, tools=True):
    """Run everything on the live GPU and return an Evidence. Raises GateError on a wrong kernel.

    ``bench``, ``long``: also the ladder, and the sequences whose score matrix cannot exist;
    ``tools``: also hardware counters and compute-sanitizer, where they are installed.
    """
    if edited():
        raise ArgumentError(f"{', '.join(edited())} is edited in this session, and a record is of "
                            "the files: lesson.reset() first")
    backend = backends.choose("live")
    versions = {**backend.versions(), "driver": driver_version()}
    gates = []
    for n in results.TABLE_N:
        gates += results.gate_cases(backend, cases.NAMES, n, progress)
    results.ensure_passed(gates)
    times = []
    for n in results.TABLE_N:
        for path in paths.PATHS:
            times += results.time_path(backend, path, n, progress=progress)[1]
    programs = {name: backend.compile(source.load(name)) for name in paths.PATHS}
    facts = [] if backend.arch == "sm_75" else results.facts("sm_75")
    if backend.arch in ARCHS:
        facts += results.facts(backend.arch, programs)
    names = list(paths.PATHS)
    ladder_bench = ladder_long = None
    if bench or long:
        from . import bench as comparison
        from . import impossible

        names += [n for n in source.names() if n.startswith("ladder/")]
        ladder_bench = comparison.record(backend, progress, tools) if bench else None
        ladder_long = impossible.record(backend, progress) if long else None
    return evidence.Evidence(
        format=evidence.FORMAT,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        versions=versions,
        kernels=evidence.digests(names),
        gates=gates,
        times=times,
        facts=facts,
        compile_ms=results.compile_times(backend),
        mutants=outcomes(backend, progress=progress),
        counters=counters(progress) if tools else None,
        sanitizer=sanitize(progress) if tools else None,
        bench=ladder_bench,
        long=ladder_long,
    )


def _lesson(*arguments):
    return [sys.executable, "-m", "lesson", *arguments]


def counters(progress, ns=results.TABLE_N):
    """DRAM and L2 bytes per kernel from the hardware counters (ncu), or None where there are none.

    Each kernel is counted at its second launch, in the order of its path and with the caches as
    the launches before left them: that is what a reader's run sees.
    """
    ncu = shutil.which("ncu")
    if ncu is None:
        return None
    rows = []
    for n in ns:
        progress(f"hardware counters, N = {n}", 0, 1)
        command = [ncu, "--csv", "--page", "raw", "--metrics", ",".join(METRICS), "--cache-control",
                   "none", "--clock-control", "none", "--kernel-name",
                   "regex:" + "|".join(k for ks in traffic.PATH_KERNELS.values() for k in ks),
                   *_lesson("launch", "--n", str(n), "--repeats", "2")]
        run = subprocess.run(command, capture_output=True, text=True, timeout=600)
        seen = parse_counters(run.stdout, n)
        if not seen:
            return None
        rows += seen
    return rows


_UNITS = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}


def parse_counters(text, n):
    """Counters from ncu's raw CSV; of several launches of a kernel the last one counts."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    if len(lines) < 3:
        return []
    head, units, *body = csv.reader(io.StringIO("\n".join(lines)))
    if any(metric not in head for metric in METRICS):
        return []
    column = {name: i for i, name in enumerate(head)}
    last = {}
    for row in body:
        kernel = re.split(r"[(<]", row[column["Kernel Name"]])[0]
        last[kernel] = [
            round(float(row[column[m]].replace(",", "")) * _UNITS[units[column[m]]])
            for m in METRICS
        ]
    return [results.Counters(kernel, n, *values) for kernel, values in last.items()]


def sanitize(progress, n=128):
    """Every kernel under compute-sanitizer's four tools, or None where it is not installed."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        return None

    def one(name, target, *options):
        run = subprocess.run([tool, "--tool", name, "--error-exitcode", "9",
                              *_lesson("launch", "--n", str(n), "--plain-memory", *options)],
                             capture_output=True, text=True, timeout=900)
        found = re.findall(r"========= (.*SUMMARY.*)", run.stdout + run.stderr)
        return evidence.Sanitizer(name, f"{target}, periodic, N = {n}",
                                  run.returncode == 0 and bool(found),
                                  found[-1].strip() if found else "no summary")

    progress("compute-sanitizer", 0, 1)
    with ThreadPoolExecutor(len(SANITIZERS)) as pool:  # they wait for compilers, not for the GPU
        jobs = [pool.submit(one, name, *target) for target in SANITIZED for name in SANITIZERS]
        rows = [job.result() for job in jobs]
    failed = [row for row in rows if not row.passed]
    if failed:
        raise GateError("compute-sanitizer: " + "; ".join(f"{r.tool}: {r.summary}" for r in failed))
    return rows


def file_name(item):
    """Where a recorded run is kept: one file per GPU and day."""
    gpu = re.sub(r"[^a-z0-9]+", "-", item.gpu.lower()).strip("-")
    return evidence.FOLDER / f"{gpu}-{item.day}.json"


@dataclass(frozen=True)
class Kept:
    """A recorded run and the file that holds it. Shows itself as a link to download."""

    item: evidence.Evidence
    path: Path

    @property
    def words(self):
        passed = sum(gate.passed for gate in self.item.gates)
        return (f"{self.item.gpu}, {self.item.day}: {passed} gates passed, "
                f"{len(self.item.times)} times. Kept in {self.path}")

    def __repr__(self):
        return f"{self.words} [recorded]"

    def _repr_html_(self):
        data = base64.b64encode(self.path.read_bytes()).decode()
        return ('<div class="lesson-output" data-mark="recorded"><p class="lesson-note">'
                f'{escape(self.words)} {mark_html("recorded")} '
                f'<a download="{self.path.name}" href="data:application/json;base64,{data}">'
                f"Download {self.path.name}</a></p></div>")


def keep(whole=False):
    """Record this GPU, write the evidence file and, in Colab, offer it for download.

    Gates on every case, times of both paths, kernel facts and the mutants; with ``whole`` also the
    ladder and the long sequences. Returns a Kept. Raises ArgumentError without a GPU, GateError
    where a kernel is wrong: then nothing is written.
    """
    with Progress() as progress:
        item = record(progress, bench=whole, long=whole, tools=False)
    kept = Kept(item, Path(evidence.write(item, file_name(item))))
    if colab.here():
        colab.download(kept.path)
    return kept
