"""What the kernels need on each architecture, and that a T4 has it."""

import importlib.util
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest
from conftest import missing
from lesson import ladder, nvrtc, paths, report, results, source, traffic
from lesson.occupancy import ARCHS, T4, KernelFacts, occupancy

KIB = 1024

if not nvrtc.available()[0] and os.environ.get("CI") != "true":
    pytest.skip(f"nothing to compile with: {nvrtc.available()[1]}", allow_module_level=True)


@cache
def facts(name):
    """``{arch: {kernel: KernelFacts}}`` of a source on every architecture."""
    text = source.load(name)
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(ARCHS, pool.map(lambda arch: nvrtc.facts(text, arch), ARCHS)))


@pytest.mark.parametrize("name", source.names())
def test_every_kernel_compiles_for_every_architecture(name):
    for found in facts(name).values():
        assert set(found) == set(source.load(name).kernels)
        for f in found.values():
            assert f.registers <= 255 and f.shared_bytes <= 48 * KIB


def launched():
    """(source, kernel, threads, dynamic shared bytes) of every kernel that a T4 is given.

    A rung of the ladder that needs more than a T4 has declares it, and is never launched there.
    """
    for name in paths.PATHS:
        for kernel in source.load(name).kernels:
            yield name, kernel, results.threads_of(kernel), 0
    for rung in ladder.RUNGS[1:]:
        if ladder.blocks_on(rung, T4):
            yield rung.name, "attentionOnline", rung.threads, rung.shared
    yield ladder.MERGE, "mergeSplits", ladder.MERGE_THREADS, 0


@pytest.mark.parametrize("name, kernel, threads, dynamic", list(launched()))
def test_a_t4_can_run_what_it_is_given(name, kernel, threads, dynamic):
    f = facts(name)[T4.arch][kernel]
    assert threads <= 1024
    assert f.shared_bytes + dynamic <= 64 * KIB
    assert occupancy(f, threads, T4, dynamic).blocks >= 1
    assert f.spill_bytes == 0


def test_the_rungs_a_t4_is_not_given_say_why():
    left_out = [r for r in ladder.RUNGS if not ladder.blocks_on(r, T4)]
    assert left_out and ladder.SMALL not in left_out
    assert all(r.asynchronous or r.shared > 64 * KIB for r in left_out)


def test_memory_at_the_largest_n_of_the_table():
    for needed in traffic.working_memory(max(results.TABLE_N)).values():
        assert needed < 0.2e9  # "well under 1 GB": the inputs, S and P are 132 MiB


def test_facts_by_architecture_is_one_table_of_all_kernels():
    table = report.facts_by_arch()
    cells = [cells for cells, _ in table.rows]
    assert [c[:2] for c in cells] == [(kernel, arch) for kernel in paths.BLOCK for arch in ARCHS]
    assert table.mark == "computed"
    row = next(c for c in cells if c[:2] == ("attentionOnline", "sm_75"))
    assert row[5:7] == ("1", "25%")


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
    asked = [(gpu, threads, registers, shared) for gpu in ARCHS.values()
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
