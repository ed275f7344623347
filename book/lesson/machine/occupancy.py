"""How many blocks an SM holds at once: arithmetic from a kernel's facts and a GPU's limits.

Rules of allocation: the toolkit's header cuda_occupancy.h, which a test compares with.
Each warp's registers are given out in units of 256, from one of the SM's 4 partitions, and shared
memory comes in units of 256 bytes (7.5) or 128 bytes (8.0 and newer, which also reserve
1 KiB for each block).
"""

from dataclasses import dataclass

from .gpus import T4


@dataclass(frozen=True)
class KernelFacts:
    """What the compiler says of one kernel; bytes are per block (shared) and per thread (local)."""

    kernel: str
    registers: int
    shared_bytes: int
    local_bytes: int
    spill_bytes: int | None  # None: the driver does not tell spills from other local memory


@dataclass(frozen=True)
class Occupancy:
    """Resident blocks of one kernel on one SM, and which limit sets the number."""

    blocks: int
    fraction: float  # resident threads / most threads
    limit: str  # 'shared memory', 'registers', 'threads', 'blocks'; 'x and y' where they tie


def _up(x, unit):
    return -(-x // unit) * unit


def occupancy(facts, threads, gpu=T4, dynamic_shared=0):
    """Resident blocks per SM for blocks of ``threads`` threads. Returns an Occupancy."""
    warps = _up(threads, 32) // 32
    per_warp = _up(facts.registers * 32, gpu.register_unit)
    warps_by_registers = gpu.registers // gpu.partitions // per_warp * gpu.partitions
    shared = _up(facts.shared_bytes + dynamic_shared + gpu.shared_reserved, gpu.shared_unit)
    limits = {
        "blocks": gpu.blocks,
        "threads": gpu.threads // _up(threads, 32),
        "registers": warps_by_registers // warps,
    }
    if shared:
        limits["shared memory"] = gpu.shared_bytes // shared
    blocks = min(limits.values())
    limit = " and ".join(name for name, most in limits.items() if most == blocks)
    return Occupancy(blocks, blocks * threads / gpu.threads, limit)
