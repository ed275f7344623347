"""The command line as a reader types it: exit codes, messages, no tracebacks."""

import os
import subprocess
import sys
from functools import partial

import pytest
from lesson.__main__ import main
from lesson.machine import nvrtc
from lesson.measure import gates_and_times, records
from lesson.problem import cases
from lesson.tables import Table
from lesson.text import source
from support.kernels import needs_nvrtc

BOOK = source.KERNELS.parent / "book"


def lesson(*arguments, **environment):
    return subprocess.run([sys.executable, "-m", "lesson", *arguments], cwd=BOOK, text=True,
                          capture_output=True, timeout=300, env={**os.environ, **environment})


@pytest.mark.parametrize("command", [[], ["report"], ["record"], ["check"], ["launch"]])
def test_help(command):
    run = lesson(*command, "--help")
    assert run.returncode == 0 and "usage: python -m lesson" in run.stdout


@pytest.mark.parametrize("arguments", [["repot"], ["check"], ["report", "--backend", "cpu"], []])
def test_wrong_use_is_exit_2(arguments):
    run = lesson(*arguments)
    assert run.returncode == 2 and "usage" in run.stderr and "Traceback" not in run.stderr


def check(tmp_path, text, *arguments, capsys):
    path = tmp_path / "mine.cu"
    path.write_text(text)
    code = main(["check", str(path), *arguments, "--backend", "emulated"])
    out = capsys.readouterr()
    assert "Traceback" not in out.out + out.err
    return code, out.out, out.err


ONLINE = source.path_of("online").read_text()


def test_check_passes_the_lessons_own_kernels(emulated, tmp_path, capsys):
    code, out, _ = check(tmp_path, ONLINE, "--n", "128", capsys=capsys)
    assert code == 0 and out.count("pass at") == len(cases.NAMES)
    assert "all cases passed their gates" in out
    text = source.path_of("materialised").read_text()
    code, out, _ = check(tmp_path, text, "--path", "materialised", "--case", "random", "--n", "64",
                         capsys=capsys)
    assert code == 0 and "random" in out


@pytest.mark.parametrize("old, new, code, words", [
    ("o0[r] * rescale, a1 = o1[r] * rescale", "o0[r], a1 = o1[r]", 1, "query row 0, column 0"),
    ("__syncthreads();   // the tiles", "// the tiles", 1, "attentionOnline"),
    ("attentionOnline(const", "attentionOffline(const", 2, "attentionOffline"),
    ("s *= scale;", "s *= scale", 2, "mine.cu, line"),
    ("o[row * D + lane] = o0", "o[(row + 64 * n) * D + lane] = o0", 2, "attentionOnline"),
    ("__syncthreads();   // the tiles", "if (warp) __syncthreads();   // the tiles", 2, "barrier"),
    ("for (int r = 0; r < R; ++r) {\n            const", "while (n) { int r = 0; const", 2,
     "does a loop never end"),
])
def test_check_says_what_is_wrong(emulated, tmp_path, capsys, monkeypatch, old, new, code, words):
    assert old in ONLINE
    monkeypatch.setattr(emulated, "limit_s", 4.0)
    got, out, err = check(tmp_path, ONLINE.replace(old, new, 1), "--case", "spike-late", "--n",
                          "128", capsys=capsys)
    assert got == code, out + err
    assert words.lower() in (out + err).lower()


def test_check_of_a_file_that_is_not_there(capsys):
    assert main(["check", "nowhere.cu"]) == 2
    assert "cannot read nowhere.cu" in capsys.readouterr().err


def test_check_refuses_an_n_between_tiles(emulated, tmp_path, capsys):
    code, _, err = check(tmp_path, ONLINE, "--n", "100", capsys=capsys)
    assert code == 2 and "multiple of 64" in err


WRONG_LINE = ONLINE.replace("s *= scale;", "s *= scal;")
OUTSIDE = ONLINE.replace("o[row * D + lane] = o0", "o[row * D + lane + 9999999] = o0")
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": ""}


RUNS = [(ONLINE, 0, "all cases passed"), (WRONG_LINE, 2, "'scal'"), (OUTSIDE, 2, "past its end")]


@pytest.mark.parametrize("environment, name, runs", [
    (C_LOCALE, "\u00fcmlaut \u03bb.cu", RUNS), ({}, "\u00fcmlaut \u03bb.cu", RUNS[2:]),
    ({}, 'quo"te.cu', RUNS[1:]), ({}, "back\\slash.cu", RUNS[1:2]), ({}, "a:1: b.cu", RUNS[1:2]),
    ({}, "mine (2).cu", RUNS[1:2])])
def test_check_takes_a_file_by_any_name(emulated, tmp_path, environment, name, runs):
    path = os.fsencode(tmp_path / name)
    for text, code, words in runs:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        done = subprocess.run([sys.executable.encode(), b"-m", b"lesson", b"check", path, b"--n",
                               b"64", b"--case", b"random", b"--backend", b"emulated"], cwd=BOOK,
                              capture_output=True, timeout=300, env={**os.environ, **environment})
        said = (done.stdout + done.stderr).decode(errors="replace")
        assert done.returncode == code and words in said and "Traceback" not in said, said
        if code:  # the line's number and its text
            line = next(i for i, new in enumerate(text.splitlines(), 1)
                        if new not in ONLINE.splitlines())
            assert f"line {line}: " in said and text.splitlines()[line - 1].strip() in said


def test_check_names_an_encoding_that_is_not_utf_8(tmp_path, capsys):
    path = tmp_path / "mine.cu"
    path.write_bytes(ONLINE.encode("utf-16"))
    assert main(["check", str(path)]) == 2
    assert "save it as UTF-8" in capsys.readouterr().err


def test_check_names_scalars_in_the_wrong_order(emulated, tmp_path, capsys):
    text = ONLINE.replace("size_t n, float scale", "float scale, int n")
    code, _, err = check(tmp_path, text, "--n", "64", capsys=capsys)
    assert code == 2 and "the lesson passes q, k, v, o, n, scale, in this order" in err


@needs_nvrtc
def test_check_refuses_what_only_a_gpu_s_compiler_refuses(emulated, tmp_path, capsys):
    text = ONLINE.replace("__device__ float warpMax", "float warpMax")
    code, out, err = check(tmp_path, text, "--n", "64", capsys=capsys)
    assert code == 2 and "pass" not in out and "mine.cu does not compile for a GPU" in err


def test_check_says_where_there_is_no_nvrtc(emulated, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(nvrtc, "available", lambda: (False, "CuPy is not installed"))
    code, out, _ = check(tmp_path, ONLINE, "--n", "64", "--case", "random", capsys=capsys)
    assert code == 0
    assert "what only a GPU's compiler refuses was not looked for: CuPy is not installed" in out


@pytest.mark.parametrize("environment", [
    {"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "cp932"}, {"PYTHONIOENCODING": "cp1252"},
    C_LOCALE], ids=["ascii", "cp932", "cp1252", "C"])
def test_verbs_print_on_any_terminal(environment):
    code = ("import lesson; print(lesson.count_bytes(256)); print(lesson.rung(3)); "
            "print(lesson.device()); print(chr(0x2013), chr(0x2212), chr(0x11f))")
    done = subprocess.run([sys.executable, "-c", code], cwd=BOOK, capture_output=True, timeout=300,
                          env={**os.environ, **environment})
    assert done.returncode == 0 and done.stderr == b"", done.stderr.decode(errors="replace")
    assert len(done.stdout) > 1000 and b"?" in done.stdout.splitlines()[-1]


def test_record_without_a_gpu_says_so(capsys, monkeypatch):
    from lesson.machine import backend

    monkeypatch.setattr(backend, "probe", lambda: backend.Probe(False, "no driver", {}))
    assert main(["record"]) == 2
    assert "no live GPU: no driver" in capsys.readouterr().err


def test_report_prints_everything_in_its_order(emulated, capsys, monkeypatch):
    monkeypatch.setattr(records, "TABLE_N", (64, 128, 4096))
    monkeypatch.setattr(records, "EMULATED_N", (64, 128))  # less to emulate, the same order
    gate_cases = partial(gates_and_times.gate_cases, problem=64)
    monkeypatch.setattr(gates_and_times, "gate_cases", gate_cases)
    code = main(["report", "--backend", "emulated"])
    out = capsys.readouterr().out
    assert code == 0 and "ms [emulated" not in out
    order = ["This machine", "Tile geometry", "Score matrix", "Kernel facts, T4",
             "gate for N = 64", "Bytes before time", "Gated timing, periodic, N = 64",
             "gate for N = 128", "Gated timing, periodic, N = 4096",
             "all cases passed their gates"]
    places = [out.index(words) for words in order]
    assert places == sorted(places)


def test_report_with_a_wrong_kernel_is_exit_1(emulated, capsys, monkeypatch):
    from lesson.show import report

    wrong = records.Gate("online", "periodic", 256, False, 2.0, 1.0, 1e-5, 1e-6, "online is wrong")
    monkeypatch.setattr(report, "timing_tables", lambda ns, kind: ([[]], [wrong.message]))
    monkeypatch.setattr(gates_and_times, "gate_cases", lambda *_, **__: [wrong])
    monkeypatch.setattr(report, "case_table", lambda *_: Table("cases", ["case"]))
    assert main(["report", "--backend", "emulated"]) == 1
    out = capsys.readouterr()
    assert "online is wrong" in out.err and "all cases passed" not in out.out
