"""Record a run on this GPU as evidence: gates, times, facts, counters, sanitizer."""

import re
import subprocess
from dataclasses import replace
from datetime import datetime, timezone

from ..errors import ArgumentError
from ..launch import paths
from ..machine import backend as backends
from ..machine import gpus
from ..problem import cases
from ..text import source
from ..text.edits import edited
from . import bench as comparison
from . import counters, evidence, gates_and_times, long_sequences, records, tensor, use
from .mutants import rejections


def driver_version():
    """The NVIDIA driver's version, from nvidia-smi; 'unknown' where that does not run."""
    try:
        out = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                             capture_output=True, text=True, check=True, timeout=60)
        return out.stdout.splitlines()[0].strip()
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"


def record(progress, whole=True, tools=True, keep=lambda item: None):
    """Run everything on the live GPU and return an Evidence. Raises GateError on a wrong kernel.

    ``whole``: also the rungs on tensor cores, the ladder and the long sequences;
    ``tools``: also hardware counters and compute-sanitizer, where they are installed.
    ``keep``: called with what there is after each part, so that a run which is stopped keeps it.
    """
    if edited():
        raise ArgumentError(f"{', '.join(edited())} is edited in this session, and a record is of "
                            "the files: lesson.reset() first")
    backend = backends.choose("live")
    versions = {**backend.versions(), "driver": driver_version()}
    gates = []
    for n in (records.GATE_N, *records.TABLE_N):
        gates += gates_and_times.gate_cases(backend, cases.NAMES, n, progress)
    records.ensure_passed(gates)
    times = []
    for n in records.TABLE_N:
        for path in paths.PATHS:
            times += gates_and_times.time_path(backend, path, n, progress=progress)[1]
    programs = {name: backend.compile(source.load(name)) for name in paths.PATHS}
    facts = [] if backend.arch == "sm_75" else gates_and_times.facts("sm_75")
    if backend.arch in gpus.by_arch():
        facts += gates_and_times.facts(backend.arch, programs)
    names = dict.fromkeys((*paths.PATHS, *(evidence.LADDER + evidence.TENSOR + evidence.USE
                                             if whole else ())))
    found = evidence.Evidence(
        format=evidence.FORMAT,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        versions=versions,
        kernels=evidence.digests(names),
        gates=gates,
        times=times,
        facts=facts,
        compile_ms=gates_and_times.compile_times(backend),
    )
    parts = {"mutants": lambda: rejections(backend, progress=progress)}
    if whole:
        parts = {"tensor": lambda: tensor.record(backend, progress, tools),
                 "use": lambda: use.record(backend, progress),
                 "bench": lambda: comparison.record(backend, progress, tools),
                 "long": lambda: long_sequences.record(backend, progress), **parts}
    if tools:
        parts["counters"] = lambda: counters.path_counters(progress)
        parts["sanitizer"] = lambda: counters.sanitize(progress)
    for name, measured in parts.items():
        found = replace(found, **{name: measured()})
        keep(found)
    return found


def file_name(item):
    """Where a recorded run is kept: one file per GPU and day."""
    gpu = re.sub(r"[^a-z0-9]+", "-", item.gpu.lower()).strip("-")
    return evidence.FOLDER / f"{gpu}-{item.day}.json"
