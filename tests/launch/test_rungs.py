"""The rungs: their files, their constants, and which device holds them."""

import re

import pytest
from lesson.launch import rungs
from lesson.machine.gpus import H200, T4, by_arch
from lesson.text import source
from support.kernels import facts, needs_nvrtc
from support.ladder import LETTERS

FILES = [r for r in rungs.RUNGS if r.number > 1]
IN_STEPS = FILES[1:]  # from rung 3 on the steps of a tile have functions
UNSAID = {"WARPS", "THREADS", "FULL", "LOG2E"}  # their names say it
KERNEL_LINES = 80


def test_the_rungs_a_t4_is_not_given_say_why():
    left_out = [r for r in rungs.RUNGS if not rungs.blocks_on(r, T4)]
    assert left_out and rungs.SMALL not in left_out
    assert all(r.asynchronous or r.shared > T4.shared_bytes for r in left_out)


def test_the_rungs_are_the_files(emulated):
    others = {rungs.MERGE, rungs.HALVES, rungs.IMAGES,
              *(r.name for r in (*rungs.TENSOR, *rungs.HOPPER))}
    names = [n for n in source.names() if n.startswith("ladder/") and n not in others]
    assert names == [r.name for r in FILES]
    assert [int(n[7:9]) for n in names] == [r.number for r in FILES]
    for r in rungs.RUNGS:
        kernels = emulated.compile(source.load(r.name)).kernels
        assert list(kernels) == ["attentionOnline"]
        assert [(p.type, p.name) for p in kernels["attentionOnline"].params] == [
            ("const float*", "q"), ("const float*", "k"), ("const float*", "v"), ("float*", "o"),
            ("size_t", "n"), ("float", "scale")]


@pytest.mark.parametrize("rung", FILES, ids=lambda r: r.name.split("/")[-1])
def test_constants_in_python_are_the_kernels(rung):
    text = source.read(rung.name)
    values = source.constants(rung.name)
    assert (values["BM"], values["BN"], values["THREADS"]) == (rung.bm, rung.bn, rung.threads)
    body = source.bare(text)
    assert rung.asynchronous == ("cp.async" in body)
    assert rung.splits == ("gridDim.y" in body) and rung.heads == ("blockIdx.z" in body)
    assert (rung.unit == 1.0) == ("LOG2E" in text) or not rung.splits


def test_the_small_kernel_needs_nothing_that_a_t4_lacks():
    text = source.read(rungs.SMALL.name)
    assert "asm volatile" not in text and rungs.SMALL.shared == 0
    arrays = re.findall(r"__shared__ __align__\(16\) float \w+\[(\w+) \* (\w+)\]", text)
    sizes = {"D": 64, "BM": 128, "BN": 32}
    assert sum(4 * sizes[a] * sizes[b] for a, b in arrays) == 48 * 1024


@pytest.mark.slow  # machine code of every rung
@needs_nvrtc
def test_compiled_facts_of_the_ladder():
    for r in FILES:
        for arch in ("sm_75", "sm_90"):
            if r.shared and arch == "sm_75":
                continue
            found = facts(r.name, arch)["attentionOnline"]
            assert found.local_bytes == 0 and found.spill_bytes == 0, (r.name, arch)
            assert rungs.blocks_on(r, by_arch()[arch], found) >= 1
    for r, blocks in ((rungs.BEST, 2), (rungs.WARPS, 3), (rungs.SMALL, 2)):
        found = facts(r.name, "sm_90")["attentionOnline"]
        assert rungs.blocks_on(r, H200, found) == blocks


# --- the files, one beside the other ------------------------------------------------------------

@pytest.mark.parametrize("name", ["online", *(r.name for r in FILES)])
def test_the_same_letters_mean_the_same_in_all_files(name):
    found = re.findall(r"^constexpr \w+ (\w+) = [^;]+;(?: *// (.*))?$", source.read(name), re.M)
    assert found and {letter for letter, _ in found} <= LETTERS.keys() | UNSAID
    for letter, said in found:
        if said or letter not in UNSAID:
            assert said == LETTERS[letter], letter


def test_a_letter_that_a_file_uses_is_its_own_or_none():
    """A name of the list above is never a parameter or a variable with another meaning."""
    for r in FILES:
        body = source.bare(source.read(r.name))
        for letter in LETTERS:
            assert not re.search(rf"\b(int|float|size_t)[ *&]+{letter}\b(?! *=)", body), r.name


@pytest.mark.parametrize("rung", IN_STEPS, ids=lambda r: r.name.split("/")[-1])
def test_steps_have_the_same_names_and_the_kernel_reads_in_one_look(rung):
    text = source.code(source.read(rung.name))
    helpers = re.findall(r"^__device__ \S+ (\w+)\(", text, re.M)
    kernel = text[text.index("attentionOnline("):].splitlines()
    assert len(kernel) <= KERNEL_LINES
    for step in ("loadQ", "loadK", "loadV", "score", "rescale", "accumulate", "write"):
        assert step in helpers and any(f"{step}(" in line for line in kernel), step
    # What a step does stands in its function: the kernel has no arithmetic on scores or outputs.
    assert not any(re.search(r"\b(expf|exp2Fast|fmaxf)\(|acc\[.*[-+*/]=", line) for line in kernel)


def test_a_branch_says_what_it_leaves():
    branches = [r for r in rungs.RUNGS if r.leaves]
    assert branches == [rungs.SMALL]
    for r in rungs.RUNGS[1:]:
        want = r.leaves or r.number - 1
        assert rungs.before(r).number == want
    first = source.read(rungs.SMALL.name).splitlines()[0]
    assert f"a branch that leaves rung {rungs.SMALL.leaves}:" in first


@pytest.mark.parametrize("rung", rungs.HOPPER, ids=lambda r: r.name.split("/")[-1])
def test_the_rungs_of_a_hopper_gpu_are_their_files(rung):
    text = source.read(rung.name)
    constants = dict(re.findall(r"^constexpr int (\w+) = ([^;]+);", text, re.M))
    assert int(constants["BN"]) == rung.bn and 64 * int(constants["GROUPS"]) == rung.bm
    threads = eval(constants["THREADS"], {"GROUPS": int(constants["GROUPS"])})
    assert threads == rung.threads
    barriers = 16 * ("initBarrier" in text)
    assert int(constants["STAGES"]) * (4 * 2 * 64 * 64 + barriers) == rung.shared
    assert rung.chained == ("griddepcontrol.wait" in text)
    assert [gpu.arch for gpu in by_arch().values() if rungs.blocks_on(rung, gpu)] == ["sm_90"]
    before = "24" if rung is rungs.HOPPER[0] else str(rung.number - 1)
    assert str(rungs.before(rung).number) == before


@needs_nvrtc
@pytest.mark.parametrize("rung", (rungs.HOPPER[0], rungs.HOPPER[-1]), ids=("first", "last"))
def test_nvrtc_compiles_the_rungs_of_a_hopper_gpu_without_a_spill(rung):
    found = facts(rung.name, "sm_90")["attentionOnline"]
    assert found.spill_bytes == 0 and found.registers <= rung.registers
    assert rungs.blocks_on(rung, H200, found) == 1


@pytest.mark.parametrize("file", (rungs.IMAGES, *(r.name for r in rungs.HOPPER)))
def test_what_the_files_of_a_hopper_gpu_share_is_the_same_text(file):
    reference = source.snippets(rungs.HOPPER[-1].name)
    mine = source.snippets(file)
    assert {"split", "scale"} <= mine.keys()
    for name, text in mine.items():
        if name in reference:
            assert text.replace("a tile's scale", "a row's scale") == reference[name]


def test_what_a_backend_lacks_is_said(emulated):
    class Live:
        mark, arch = "live", "sm_80"

        def versions(self):
            return {"sms": 108}

    last = rungs.HOPPER[-1]
    for backend in (None, emulated, Live()):
        assert "needs a Hopper GPU" in rungs.missing(last, backend)
    Live.arch = "sm_90"
    assert rungs.missing(last, Live()) == "" and last in rungs.runnable(Live(), rungs.ALL)
    Live.arch = "sm_75"
    assert "does not hold a block of rung 19" in rungs.missing(rungs.BEST, Live())
