"""What watches a launch from outside: hardware counters (ncu) and compute-sanitizer."""

import csv
import io
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from ..errors import GateError
from ..launch import paths, rungs
from ..problem.problem import of
from . import records
from .records import RungCounters

SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")
# What is launched, and by which options.
SANITIZED = (("all kernels",), ("the ladder", "--ladder"), ("tensor cores", "--tensor"),
             ("attention for any problem", "--use"))
METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum", "lts__t_bytes.sum")


def _lesson(*arguments):
    return [sys.executable, "-m", "lesson", *arguments]


def path_counters(progress, ns=records.TABLE_N):
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
                   "regex:" + "|".join(paths.KERNELS),
                   *_lesson("launch", "--n", str(n), "--repeats", "2")]
        run = subprocess.run(command, capture_output=True, text=True, timeout=600)
        seen = parse_counters(run.stdout, n)
        if not seen:
            return None
        rows += seen
    return rows


_UNITS = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}


def _launches(text, wanted):
    """ncu's raw CSV as (kernel, value) pairs, one a launch; value(metric) is a number or None.

    Empty where the text is no such CSV or lacks one of the ``wanted`` metrics.
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    if len(lines) < 3:
        return []
    head, units, *body = csv.reader(io.StringIO("\n".join(lines)))
    column = {name: i for i, name in enumerate(head)}
    if any(metric not in column for metric in wanted):
        return []

    def values(row):
        def value(metric):
            if metric not in column:
                return None
            i = column[metric]
            return float(row[i].replace(",", "")) * _UNITS.get(units[i], 1)
        return value

    return [(re.split(r"[(<]", row[column["Kernel Name"]])[0], values(row)) for row in body]


def parse_counters(text, n):
    """Counters from ncu's raw CSV; of several launches of a kernel the last one counts."""
    last = dict(_launches(text, METRICS))
    return [records.Counters(kernel, of(n), *(round(value(m)) for m in METRICS))
            for kernel, value in last.items()]


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
        return records.Sanitizer(name, f"{target}, periodic, N = {n}",
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


STALLS = ("short_scoreboard", "long_scoreboard", "lg_throttle", "mio_throttle", "barrier", "wait",
          "no_instruction", "dispatch_stall", "math_pipe_throttle", "branch_resolving")
_METRICS = {
    "dram_bytes": ("dram__bytes_read.sum", "dram__bytes_write.sum"),
    "l2_bytes": ("lts__t_bytes.sum",),
    "local_bytes": ("l1tex__t_bytes_pipe_lsu_mem_local_op_ld.sum",
                    "l1tex__t_bytes_pipe_lsu_mem_local_op_st.sum"),
    "instructions": ("smsp__inst_executed.sum",),
    "shared_wavefronts": ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",),
    "busy": ("sm__cycles_active.avg", "sm__cycles_elapsed.max"),
    "issued": ("smsp__issue_active.avg.pct_of_peak_sustained_active",),
}
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
# Share of the cycles with work in which tensor cores were busy: its name depends on the GPU.
_TENSOR = tuple(f"sm__pipe_{name}_cycles_active.avg.pct_of_peak_sustained_active"
                for name in ("tensor", "tensor_op_hmma"))


def rung_counters(which, n=4096, launched="--ladder"):
    """RungCounters of the rungs by ncu, or None where it is not installed or may not count.

    ``launched``: the option of ``launch`` that launches these rungs in their order.
    """
    metrics = [m for names in _METRICS.values() for m in names] + [_STALL.format(s) for s in STALLS]
    return parse_rung_counters(_ncu(metrics, n, launched), n, which)


def tensor_counters(which, n=4096):
    """RungCounters of rungs on tensor cores, with the share of time that those were busy."""
    found = rung_counters(which, n, "--tensor")
    for metric in _TENSOR if found else ():
        busy = _launches(_ncu([metric], n, "--tensor"), [metric])
        if len(busy) == len(found):
            return [replace(c, tensor=value(metric) / 100) for c, (_, value) in zip(found, busy)]
    return found


def _ncu(metrics, n, launched):
    """What ncu writes of these metrics, one launch of each rung; empty without ncu."""
    ncu = shutil.which("ncu")
    if ncu is None:
        return ""
    return subprocess.run(
        [ncu, "--csv", "--page", "raw", "--metrics", ",".join(metrics), "--cache-control", "none",
         "--clock-control", "none", "--kernel-name", "attentionOnline", sys.executable, "-m",
         "lesson", "launch", launched, "--n", str(n)],
        capture_output=True, text=True, timeout=600).stdout


def parse_rung_counters(text, n, which=rungs.RUNGS):
    """RungCounters from ncu's raw CSV, one launch a rung in their order; None if it has others."""
    launches = _launches(text, [m for names in _METRICS.values() for m in names])
    if len(launches) != len(which):
        return None
    found = []
    for r, (_, value) in zip(which, launches):
        numbers = {field: round(sum(value(m) for m in names))
                   for field, names in _METRICS.items() if field not in ("busy", "issued")}
        active, elapsed = (value(m) for m in _METRICS["busy"])
        stalls = {s: value(_STALL.format(s)) for s in STALLS
                  if value(_STALL.format(s)) is not None}
        found.append(RungCounters(r.number, of(n), busy=active / elapsed,
                                  issued=value(_METRICS["issued"][0]) / 100, stalls=stalls,
                                  **numbers))
    return found
