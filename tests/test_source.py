"""Kernel text: snippets, edits, signatures; and the sentences that Python and CUDA share."""

import re
import shutil
import subprocess
import sys

import pytest
from lesson import nvrtc, paths, source
from lesson.errors import ArgumentError, CompileError
from lesson.explain import line_of

needs_nvrtc = pytest.mark.skipif(not nvrtc.available()[0], reason=str(nvrtc.available()[1]))


def test_snippets_cover_each_kernel_completely():
    assert list(source.snippets("online")) == ["tiles", "state", "load", "score", "update", "write"]
    for name in ("online", "materialised"):
        text = source.load(name).text
        rest = re.sub(r"^// snippet: \w+\n.*?^// end snippet$", "", text, flags=re.M | re.S)
        assert all(line.startswith("//") or not line for line in rest.splitlines())


def test_signatures_are_the_public_ones():
    kernels = {**source.load("materialised").kernels, **source.load("online").kernels}
    assert {k: [p.name for p in kernel.params] for k, kernel in kernels.items()} == {
        "scoresQKt": ["q", "k", "s", "n", "scale"], "softmaxRows": ["s", "p", "rowSum", "n"],
        "weightedV": ["p", "v", "rowSum", "o", "n"],
        "attentionOnline": ["q", "k", "v", "o", "n", "scale"]}
    for kernel in kernels.values():
        types = {p.name: p.type for p in kernel.params}
        assert types["n"] == "size_t" and types.get("scale", "float") == "float"


def test_unedited_text_is_the_file():
    loaded = source.load("online", {"score": source.snippets("online")["score"]})
    assert loaded.text == source.path_of("online").read_text() and not loaded.edits


def test_an_edit_keeps_line_numbers_of_the_rest():
    new = "    // mine\n" + source.snippets("online")["score"]
    edited = source.load("online", {"score": (new, "cell online/score")})
    original = source.load("online")
    assert edited.edits and edited.digest != original.digest
    for number, line in enumerate(original.text.splitlines(), 1):
        if line.strip() and "snippet" not in line and line not in new:
            assert line_of(edited, "online.cu", number) == line.strip()
    assert line_of(edited, "cell online/score", 1) == "// mine"


@pytest.mark.parametrize("name, edits", [("onlin", None), ("online", {"scores": ""})])
def test_unknown_names_are_told_the_known_ones(name, edits):
    with pytest.raises(ArgumentError, match="online|score"):
        source.load(name, edits)


def test_preconditions_in_words_are_the_wrappers_words():
    assert paths.HEAD_WIDTH in source.load("online").text


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90"])
@pytest.mark.parametrize("name", ["online", "materialised"])
def test_kernels_compile_unedited_with_nvrtc(name, arch):
    assert set(nvrtc.facts(source.load(name), arch)) == set(source.load(name).kernels)


@needs_nvrtc
def test_t4_facts_of_the_online_kernel():
    facts = nvrtc.facts(source.load("online"), "sm_75")["attentionOnline"]
    assert facts.shared_bytes == 32896 and facts.local_bytes == 128 and facts.spill_bytes == 0
    from lesson.occupancy import occupancy

    assert occupancy(facts, 256).blocks == 1


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


def test_the_core_imports_with_numpy_alone():
    blocked = ("import sys\n"
               "for name in 'cupy matplotlib ipywidgets anywidget IPython torch'.split():\n"
               "    sys.modules[name] = None\n"
               "import lesson\n"
               "print(lesson.count_bytes(256).text())\n")
    run = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True,
                         cwd=source.KERNELS.parent / "book")
    assert run.returncode == 0 and "compulsory" in run.stdout, run.stderr
