"""Record a run on this GPU as evidence: gates, times, facts, counters, sanitizer."""

import csv
import io
import re
import shutil
import subprocess
import sys
from datetime import datetime, timezone

from . import backend as backends
from . import cases, evidence, paths, results, source, traffic
from .edits import edited
from .errors import ArgumentError, GateError
from .mutants import outcomes

LONG_CASES = ("periodic", "spike-late", "random")
SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")
METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum", "lts__t_bytes.sum")


def driver_version():
    """The NVIDIA driver's version, from nvidia-smi; 'unknown' where that does not run."""
    try:
        out = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                             capture_output=True, text=True, check=True, timeout=60)
        return out.stdout.splitlines()[0].strip()
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"


def record(progress, bench=True, long=True):
    """Run everything on the live GPU and return an Evidence. Raises GateError on a wrong kernel."""
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
    facts = results.facts("sm_75")
    if backend.arch == "sm_90":
        facts += results.facts("sm_90", programs)
    names = list(paths.PATHS)
    ladder_bench = ladder_long = None
    if bench or long:
        from . import bench as comparison
        from . import impossible

        names += [n for n in source.names() if n.startswith("ladder/")]
        ladder_bench = comparison.record(backend, progress) if bench else None
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
        counters=counters(progress),
        sanitizer=sanitize(progress),
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
    rows = []
    for name in SANITIZERS:
        progress(f"compute-sanitizer {name}", 0, 1)
        run = subprocess.run([tool, "--tool", name, "--error-exitcode", "9",
                              *_lesson("launch", "--n", str(n), "--plain-memory")],
                             capture_output=True, text=True, timeout=900)
        found = re.findall(r"========= (.*SUMMARY.*)", run.stdout + run.stderr)
        rows.append(evidence.Sanitizer(name, f"all kernels, periodic, N = {n}",
                                       run.returncode == 0 and bool(found),
                                       found[-1].strip() if found else "no summary"))
    failed = [row for row in rows if not row.passed]
    if failed:
        raise GateError("compute-sanitizer: " + "; ".join(f"{r.tool}: {r.summary}" for r in failed))
    return rows


def file_name(item):
    """Where a recorded run is kept: one file per GPU and day."""
    gpu = re.sub(r"[^a-z0-9]+", "-", item.gpu.lower()).strip("-")
    return evidence.FOLDER / f"{gpu}-{item.day}.json"


