"""Kernel facts: launch geometry, registers, shared and local bytes, resident blocks."""

from ..errors import ArgumentError, CompileError
from ..launch import paths
from ..machine import gpus, nvrtc
from ..measure import evidence, gates_and_times
from ..tables import Table
from ..text.edits import edited, note


def geometry():
    """Launch geometry of the kernels of both paths."""
    t = Table("Tile geometry", ["kernel", "grid", "block", "tile"])
    for name, kernel in paths.KERNELS.items():
        t.add("computed", name, kernel.grid, " x ".join(map(str, kernel.block)), kernel.tile)
    return t


def facts_table(arch="sm_75"):
    """Kernel facts and resident blocks for an architecture, compiled here or from a record."""
    name = gpus.by_arch()[arch].name
    rows, mark, by = _facts(arch)
    if not rows:
        return Table(f"Kernel facts, {name}", ["kernel"], footer=f"{by}.")
    t = Table(f"Kernel facts, {name} ({arch})",
              ["kernel", "registers", "shared B", "local B", "spilled B",
               "blocks per SM", "occupancy", "limit"],
              note="; ".join(filter(None, (by, f"{rows[0].threads} threads a block", note()))))
    for r in rows:
        t.add(mark, r.kernel, r.registers, f"{r.shared_bytes:,}", r.local_bytes,
              r.spill_bytes, r.blocks, f"{r.occupancy:.0%}", r.limit)
    return t


def _facts(arch):
    """(rows of Facts, mark, where they come from); without rows the last says why."""
    found, version = nvrtc.available()
    if found:
        try:
            return (gates_and_times.facts(arch), "computed",
                    f"compiled for {arch} by NVRTC {version}")
        except CompileError:
            # Older than the architecture, or the session's cells do not compile: then for no arch.
            gates_and_times.facts()
            return [], "computed", f"NVRTC {version} does not know {arch}"
    if not edited():  # a record belongs to the files, not to this session's cells
        for item in evidence.shown("facts"):
            if rows := [row for row in item.facts if row.arch == arch]:
                return rows, "recorded", f"by NVRTC {item.versions['nvrtc']}, {item.day}"
    return [], "computed", version


def facts_by_arch(archs):
    """Kernel facts of several architectures: what changes from one to the next."""
    t = Table("Kernel facts by architecture",
              ["kernel", "arch", "registers", "local B", "shared B", "blocks per SM", "occupancy",
               "limit"])
    found = {arch: _facts(arch) for arch in archs}
    for kernel in paths.KERNELS:
        for arch, (rows, mark, _) in found.items():
            for r in rows:
                if r.kernel == kernel:
                    t.add(mark, kernel, arch, r.registers, r.local_bytes, f"{r.shared_bytes:,}",
                          r.blocks, f"{r.occupancy:.0%}", r.limit)
    available, version = nvrtc.available()
    t.note = "; ".join(filter(None, (f"NVRTC {version}" if available else "", note())))
    t.footer = ". ".join(dict.fromkeys(by for rows, _, by in found.values() if not rows))
    return t


def facts(*what):
    """Kernel facts: registers, shared and local bytes, resident blocks per SM.

    what: an architecture, 'sm_75' (T4, where nothing is given), 'sm_90' (H200), ...; several, or
    'all', for one table by architecture; 'launch' for the kernels' grids and blocks.
    """
    known = gpus.by_arch()
    if what == ("launch",):
        return geometry()
    archs = tuple(known) if what == ("all",) else what or ("sm_75",)
    for arch in archs:
        if arch not in known:
            raise ArgumentError(f"arch {arch!r}: choose some of {', '.join(known)}, 'all', or "
                                "'launch'; 'sm_75' is a T4")
    return facts_table(*archs) if len(archs) == 1 else facts_by_arch(archs)
