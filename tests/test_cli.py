"""The command line as a reader types it: exit codes, messages, no tracebacks."""

import os
import subprocess
import sys

import pytest
from lesson import source
from lesson.__main__ import main

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
    assert code == 0 and out.count("pass at") == 11 and "all cases passed their gates" in out
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


def test_record_without_a_gpu_says_so(capsys, monkeypatch):
    from lesson import backend

    monkeypatch.setattr(backend, "probe", lambda: backend.Probe(False, "no driver", {}))
    assert main(["record"]) == 2
    assert "no live GPU: no driver" in capsys.readouterr().err


def test_report_prints_everything_in_its_order(emulated, capsys):
    code = main(["report", "--backend", "emulated"])
    out = capsys.readouterr().out
    assert code == 0 and "ms [emulated" not in out
    order = ["This machine", "Tile geometry", "Score matrix", "Kernel facts, T4",
             "gate for N = 256", "Bytes before time", "Gated timing, periodic, N = 256",
             "gate for N = 1024", "Gated timing, periodic, N = 4096",
             "all cases passed their gates"]
    places = [out.index(words) for words in order]
    assert places == sorted(places)


def test_report_with_a_wrong_kernel_is_exit_1(emulated, capsys, monkeypatch):
    from lesson import report, results

    wrong = results.Gate("online", "periodic", 256, False, 2.0, 1.0, 1e-5, 1e-6, "online is wrong")
    monkeypatch.setattr(report, "timing_tables", lambda ns, kind: ([[]], [wrong.message]))
    monkeypatch.setattr(results, "gate_cases", lambda *_, **__: [wrong])
    monkeypatch.setattr(report, "case_table", lambda *_: report.Table("cases", ["case"]))
    assert main(["report", "--backend", "emulated"]) == 1
    out = capsys.readouterr()
    assert "online is wrong" in out.err and "all cases passed" not in out.out
