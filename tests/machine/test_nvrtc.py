"""NVRTC without a GPU: every kernel on every architecture, and an error in a cell's own lines."""

import os
import shutil
import subprocess
import sys

import pytest
from lesson.errors import CompileError, LessonError
from lesson.machine import nvrtc
from lesson.machine.gpus import by_arch
from lesson.machine.occupancy import occupancy
from lesson.text import source
from lesson.text.source import from_text
from support import BOOK
from support.kernels import HOPPER, facts, needs_nvrtc


@needs_nvrtc
@pytest.mark.parametrize("name", source.names())
def test_every_kernel_compiles_for_every_architecture(name):
    """To PTX."""
    there = set(nvrtc.kernels(source.load(name)))
    for arch in by_arch():
        assert set(nvrtc.kernels(source.load(name), arch)) == there


@pytest.mark.slow  # twenty times as long as to PTX
@needs_nvrtc
@pytest.mark.parametrize("name", source.names())
def test_every_kernel_compiles_to_machine_code(name):
    """For the oldest architecture, for the oldest with the newer instructions, and for the one of
    the records; what is for a Hopper GPU, for that alone."""
    there = set(nvrtc.kernels(source.load(name)))
    for arch in ("sm_90",) if name in HOPPER else ("sm_75", "sm_80", "sm_90"):
        found = facts(name, arch)
        assert set(found) == there
        for f in found.values():
            assert f.registers <= 255 and f.shared_bytes <= 48 * 1024


@needs_nvrtc
def test_t4_facts_of_the_online_kernel():
    found = facts("online", "sm_75")["attentionOnline"]
    assert found.shared_bytes == 32896 and found.local_bytes == 128 and found.spill_bytes == 0
    assert occupancy(found, 256).blocks == 1


@needs_nvrtc
def test_a_typo_is_reported_in_the_cells_own_lines():
    text = source.snippets("online")["score"].replace("s *= scale;", "s *= scal;")
    edited = source.load("online", {"score": (text, "cell online/score")})
    with pytest.raises(CompileError) as error:
        nvrtc.compile_cubin(edited, "sm_75")
    line = 1 + [i for i, t in enumerate(text.splitlines()) if "scal;" in t][0]
    assert f"cell online/score, line {line}:" in str(error.value)
    assert "s *= scal;" in str(error.value) and "/tmp" not in str(error.value)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("name", ["online", "materialised"])
def test_kernels_compile_unedited_with_nvcc(name, tmp_path):
    run = subprocess.run(["nvcc", "-arch=sm_75", "-cubin", "-o", tmp_path / "x.cubin",
                          source.path_of(name)], capture_output=True, text=True)
    assert run.returncode == 0 and not run.stderr, run.stderr


@needs_nvrtc
@pytest.mark.parametrize("cache", ["/proc/x", "/dev/null/x", "there is a file"])
def test_where_cupy_may_not_write_it_writes_elsewhere(tmp_path, cache):
    if cache == "there is a file":
        (tmp_path / "file").write_text("")
        cache = str(tmp_path / "file")
    done = subprocess.run(
        [sys.executable, "-c", "import lesson; print(lesson.facts('sm_75'))"], cwd=BOOK, text=True,
        capture_output=True, timeout=120,
        env={**os.environ, "CUPY_CACHE_DIR": cache, "TMPDIR": str(tmp_path)})
    assert done.returncode == 0 and "attentionOnline" in done.stdout, done.stderr
    assert not list(tmp_path.glob("lesson-cupy-*"))  # gone with the process


@needs_nvrtc
def test_a_source_for_a_newer_gpu_is_taken():
    text = from_text('extern "C" __global__ void k(unsigned* x) {\n'
                     "    x[0] = __reduce_add_sync(0xffffffffu, x[threadIdx.x]);\n}\n", "mine.cu")
    with pytest.raises(CompileError, match="mine.cu, line 2: .*__reduce_add_sync"):
        nvrtc.kernels(text)
    assert list(nvrtc.taken(text)) == ["k"]


def test_without_nvrtc_nothing_is_said_of_a_source(monkeypatch):
    monkeypatch.setattr(nvrtc, "available", lambda: (False, "no NVRTC in this test"))
    assert nvrtc.taken(from_text("this is no CUDA")) is None
    with pytest.raises(LessonError, match="no NVRTC in this test"):
        nvrtc.kernels(from_text(""))


@needs_nvrtc
def test_what_was_compiled_is_kept_by_all_that_it_was_made_from(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calls, compile_ = [], nvrtc._compile
    monkeypatch.setattr(nvrtc, "_compile", lambda *a: calls.append(a[1]) or compile_(*a))
    text = 'extern "C" __global__ void f(float* x) { *x = SIZE; }'
    mine = source.from_text(text, "mine.cu")

    def compiles(*arguments, **options):
        before = len(calls)
        return nvrtc.compile_cubin(*arguments, **options), len(calls) - before

    first, made = compiles(mine, "sm_75", {"SIZE": "1"})
    assert made and "ptxas info" in first[1]
    assert compiles(mine, "sm_75", {"SIZE": "1"}) == (first, 0)
    longer = source.from_text(text + "\n", "mine.cu")
    for arguments in ((mine, "sm_90", {"SIZE": "1"}), (mine, "sm_75", {"SIZE": "2"}),
                      (longer, "sm_75", {"SIZE": "1"})):
        assert compiles(*arguments)[1] == 1
    assert compiles(mine, "sm_75", {"SIZE": "1"}, anew=True)[1] == 1
    with pytest.raises(CompileError):
        compiles(mine, "sm_75")  # SIZE is not defined: errors are not kept
    assert nvrtc.kernels(mine, defines={"SIZE": "1"}) == nvrtc.kernels(mine, defines={"SIZE": "1"})
