"""GPU datasheets: what the lesson's arithmetic knows of a product or a compute capability.

Limits of an SM: CUDA C++ Programming Guide, table 'Technical Specifications per Compute
Capability'. Rates and memory: the products' datasheets.
"""

from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Gpu:
    """One product, or the limits of a compute capability where ``sms`` is None."""

    name: str
    arch: str  # 'sm_75'
    sms: int | None
    # Limits of an SM.
    shared_bytes: int
    registers: int = 65536
    threads: int = 1024
    blocks: int = 16
    lanes: int = 64  # FP32 lanes
    shared_clocks: int = 1  # of a pass through shared memory: 32 words of 4 bytes
    # Units of allocation.
    shared_unit: int = 256
    shared_reserved: int = 0  # for each block
    register_unit: int = 256
    partitions: int = 4
    # A product's rates and memory.
    flops: float | None = None  # FP32, FLOP/s, at the boost clock
    tensor_flops: float | None = None  # FP16 on tensor cores, sums in FP32; likewise
    bytes_per_s: float | None = None
    memory_bytes: float | None = None
    l2_bytes: int | None = None
    # What joins GPUs, bytes/s of each in one direction: in one machine, and between machines.
    link_bytes_per_s: float | None = None
    network_bytes_per_s: float | None = None
    source: str = "CUDA C++ Programming Guide"


_NEWER = {"shared_unit": 128, "shared_reserved": KIB}  # 8.0 and newer

# A T4's shared memory was measured at 3,662 GB/s, 58 bytes a clock and SM: Jia, Maggioni, Smith and
# Scarpazza 2019 (arXiv:1903.07486). So a pass of 128 bytes takes two clocks.
# Its link is PCIe 3.0, 16 lanes: 32 GB/s in both directions together.
T4 = Gpu("T4", "sm_75", 40, 64 * KIB, shared_clocks=2, flops=8.1e12, tensor_flops=65e12,
         bytes_per_s=320e9, memory_bytes=16e9, l2_bytes=4 * MIB, link_bytes_per_s=16e9,
         source="NVIDIA T4 datasheet")
# NVLink has 900 GB/s in both directions together; a DGX H200 (its datasheet) has a network port of
# 400 Gb/s for each of its eight GPUs.
H200 = Gpu("H200", "sm_90", 132, 228 * KIB, threads=2048, blocks=32, lanes=128, flops=67e12,
           tensor_flops=989e12, bytes_per_s=4.8e12, memory_bytes=141e9, l2_bytes=60 * MIB,
           link_bytes_per_s=450e9, network_bytes_per_s=50e9,
           source="NVIDIA H200 datasheet; L2 as its driver reports it", **_NEWER)

# Every GPU that a table may name, oldest architecture first. Colab also lends A100 (sm_80) and L4
# (sm_89).
GPUS = (
    T4,
    Gpu("compute capability 8.0", "sm_80", None, 164 * KIB, threads=2048, blocks=32, **_NEWER),
    Gpu("compute capability 8.6", "sm_86", None, 100 * KIB, threads=1536, lanes=128, **_NEWER),
    Gpu("compute capability 8.9", "sm_89", None, 100 * KIB, threads=1536, blocks=24, lanes=128,
        **_NEWER),
    H200,
    Gpu("compute capability 10.0", "sm_100", None, 228 * KIB, threads=2048, blocks=32, lanes=128,
        **_NEWER),
)


def by_arch():
    """``{arch: Gpu}``: the limits that stand for an architecture."""
    return {gpu.arch: gpu for gpu in reversed(GPUS)}


def products():
    """The products, which have SMs, rates and memory; the newest architecture first."""
    return tuple(gpu for gpu in reversed(GPUS) if gpu.sms)


def product(name):
    """The product that a driver's name means ('NVIDIA H200' is 'H200'), or None."""
    return next((gpu for gpu in products() if gpu.name in name.split()), None)


def of(backend):
    """(Gpu, SM count) that a backend stands for; emulated: an H200."""
    if backend.mark != "live":
        return H200, H200.sms
    number = int(backend.arch.removeprefix("sm_"))
    fits = [gpu for gpu in GPUS if int(gpu.arch.removeprefix("sm_")) <= number]
    return (fits or [T4])[-1], backend.versions()["sms"]
