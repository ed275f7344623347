"""How many blocks an SM holds at once."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest
from lesson.launch import ladder, paths, rungs
from lesson.machine.gpus import H200, T4, by_arch
from lesson.machine.occupancy import KernelFacts, occupancy
from support import missing
from support.kernels import facts, needs_nvrtc


@pytest.mark.parametrize("registers, shared, threads, gpu, blocks, limit", [
    (61, 32896, 256, T4, 1, "shared memory"),  # a T4 gives each 33,024: two are 512 too many
    (61, 32768, 256, T4, 2, "shared memory"),
    (64, 0, 256, T4, 4, "threads and registers"),
    (65, 0, 256, T4, 3, "registers"),  # 65 registers round up to 2,304 a warp
    (32, 0, 32, T4, 16, "blocks"),
    (32, 0, 1024, T4, 1, "threads"),
    (40, 32896, 256, H200, 6, "registers and shared memory"),
])
def test_occupancy_rules(registers, shared, threads, gpu, blocks, limit):
    found = occupancy(KernelFacts("k", registers, shared, 0, 0), threads, gpu)
    assert (found.blocks, found.limit) == (blocks, limit)
    assert found.fraction == blocks * threads / gpu.threads


def launched():
    """(source, kernel, threads, dynamic shared bytes) of every kernel that a T4 is given.

    A rung of the ladder that needs more than a T4 has declares it, and is never launched there.
    """
    for name in paths.PATHS:
        for kernel in paths.kernels_of(name):
            yield name, kernel, paths.KERNELS[kernel].threads, 0
    for rung in rungs.RUNGS[1:]:
        if rungs.blocks_on(rung, T4):
            yield rung.name, "attentionOnline", rung.threads, rung.shared
    yield rungs.MERGE, "mergeSplits", ladder.MERGE_THREADS, 0


@needs_nvrtc
@pytest.mark.parametrize("name, kernel, threads, dynamic", list(launched()))
def test_a_t4_can_run_what_it_is_given(name, kernel, threads, dynamic):
    f = facts(name, T4.arch)[kernel]
    assert threads <= 1024
    assert f.shared_bytes + dynamic <= T4.shared_bytes
    assert occupancy(f, threads, T4, dynamic).blocks >= 1
    assert f.spill_bytes == 0


HEADER_PROGRAM = r"""
#include <climits>
#include <cstdio>
#include "cuda_occupancy.h"

int main()
{
    int major, minor, threads, registers, most, perBlock;
    size_t shared, perSm, reserved;
    while (scanf("%d %d %d %d %zu %d %zu %zu", &major, &minor, &threads, &registers, &shared, &most,
                 &perSm, &reserved) == 8) {
        cudaOccDeviceProp p;
        p.computeMajor = major; p.computeMinor = minor;
        p.maxThreadsPerBlock = 1024; p.maxThreadsPerMultiprocessor = most;
        p.regsPerBlock = p.regsPerMultiprocessor = 65536; p.warpSize = 32;
        p.sharedMemPerBlock = 48 * 1024; p.sharedMemPerMultiprocessor = perSm; p.numSms = 40;
        p.sharedMemPerBlockOptin = perSm - reserved; p.reservedSharedMemPerBlock = reserved;
        cudaOccFuncAttributes a;
        a.maxThreadsPerBlock = 1024; a.numRegs = registers; a.sharedSizeBytes = shared;
        a.partitionedGCConfig = PARTITIONED_GC_OFF; a.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        a.maxDynamicSharedSizeBytes = 0;
        cudaOccDeviceState s;
        cudaOccResult r;
        if (cudaOccMaxActiveBlocksPerMultiprocessor(&r, &p, &a, &s, threads, 0)) return 1;
        printf("%d\n", r.activeBlocksPerMultiprocessor);
    }
    return 0;
}
"""


def test_occupancy_is_what_the_toolkits_header_computes(tmp_path):
    package = importlib.util.find_spec("nvidia.cuda_runtime")
    compiler = next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)
    if package is None or compiler is None:
        missing("cuda_occupancy.h (nvidia-cuda-runtime-cu12) and a C++ compiler")
    include = Path(package.submodule_search_locations[0], "include")
    (tmp_path / "occupancy.cpp").write_text(HEADER_PROGRAM)
    subprocess.run([compiler, "-w", "-I", include, "-o", tmp_path / "occupancy",
                    tmp_path / "occupancy.cpp"], check=True)
    asked = [(gpu, threads, registers, shared) for gpu in by_arch().values()
             for threads in (32, 96, 128, 256, 512, 1024)
             for registers in (16, 40, 61, 64, 65, 128, 168, 255)
             for shared in (0, 32, 2112, 8192, 32768, 32896, 49152, 65536)
             # What a launch refuses is no question of occupancy.
             if registers * threads <= 65536 and shared <= gpu.shared_bytes - gpu.shared_reserved]
    lines = [f"{gpu.arch[3:-1]} {gpu.arch[-1]} {threads} {registers} {shared} {gpu.threads} "
             f"{gpu.shared_bytes} {gpu.shared_reserved}"
             for gpu, threads, registers, shared in asked]
    done = subprocess.run([tmp_path / "occupancy"], input="\n".join(lines), text=True, check=True,
                          capture_output=True)
    wanted = [int(line) for line in done.stdout.split()]
    assert len(wanted) == len(asked) > 1000
    for (gpu, threads, registers, shared), blocks in zip(asked, wanted, strict=True):
        found = occupancy(KernelFacts("k", registers, shared, 0, 0), threads, gpu)
        assert found.blocks == blocks, (gpu.arch, threads, registers, shared)
