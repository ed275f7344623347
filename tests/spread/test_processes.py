"""Ranks as processes, under a real mpiexec: answers, bytes, and what a fault ends in."""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import types
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from lesson.problem import cases
from lesson.problem.gate import judge
from lesson.spread import model, run
from support import BOOK, TESTS, missing

WITHIN_S = 30  # of a fault, a run has ended
N = 317  # no multiple of a tile, and of no number of ranks here
RUNNER = TESTS / "support/mpi_run.py"


def mpiexec():
    """The mpiexec of mpich's wheel, which lies beside Python, or another one."""
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None or importlib.util.find_spec("mpi4py") is None:
        missing("mpiexec and mpi4py: pip install -r requirements-mpi.txt")
    return found


def start(processes, *command, **environment):
    """Start python under mpiexec, one thread a process, in a group of its own."""
    one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        [mpiexec(), "-n", str(processes), sys.executable, *map(str, command)], cwd=BOOK, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(BOOK), **one, **environment})


def ended(process, within_s=WITHIN_S):
    """(exit code, stdout, stderr), and a failure where it takes longer."""
    try:
        out, err = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, out, err


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """``answers(p)``: what p processes found; each number of processes runs once."""
    folder = tmp_path_factory.mktemp("answers")

    @cache
    def of(processes):
        file = folder / f"{processes}.npz"
        code, _, err = ended(start(processes, RUNNER, file, N))
        assert code == 0, err
        return dict(np.load(file))

    return of


@pytest.mark.parametrize("processes", (1, 2, 3, 4, 8))
def test_any_number_of_processes_gives_the_same_answer(answers, processes):
    found, alone = answers(processes), answers(1)
    for name in ("spike-late", "random"):
        ref = run.sample(cases.make(name, N))
        for way in run.WAYS:
            key = f"{name} {way}"
            assert judge(found[key][ref.rows], ref.o, N, ref.max_abs_score).fraction < 0.35
            assert abs(found[key] - alone[key]).max() < 2e-6 * abs(alone[key]).max()
            assert found[f"{key} moved"] == model.moved_bytes(N, processes, way, maximum_back=False)


def test_the_answer_does_not_hang_on_the_order_of_merging(answers):
    found = answers(4)["random merge"]
    for order in ((0, 1, 2, 3), (3, 1, 0, 2), (2, 3, 1, 0)):
        party = run.in_this_process(4, order=order)
        with party:
            other = run.run(party, cases.make("random", N), rows=128).output
        assert abs(found - other).max() < 2e-6 * abs(found).max()


@pytest.mark.parametrize("fault, words", (
    ("memory", r"rank 1 of 3 \(\S+, process \d+\): .*Unable to allocate.*choose a smaller --n"),
    ("wrong", r"3 ranks, query rows 0 to 127, spike-late, N = 300: .* times the gate")))
def test_a_fault_of_one_rank_ends_all_of_them_in_words(tmp_path, fault, words):
    code, _, err = ended(start(3, RUNNER, tmp_path / "x.npz", 300, fault))
    assert code != 0 and re.search(words, err, re.S), err
    assert "Traceback" not in err and not (tmp_path / "x.npz").exists()


def test_a_refused_argument_is_said_once():
    for arguments, words in (("--n 0", "N must be a whole number"), ("--way round", "invalid"),
                             ("--chunk 200", "choose a multiple of 128")):
        code, _, err = ended(start(2, "-m", "lesson", "ranks", *arguments.split()))
        assert code == 2 and err.count(words) == 1 and "Traceback" not in err, err


def ranks_of(mark):
    """``{rank: processes}`` that were started with ``mark`` in their environment."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"MARK={mark}".encode() in environment:
            rank = next((e[9:] for e in environment if e.startswith(b"PMI_RANK=")), b"-1")
            found.setdefault(int(rank), []).append(int(folder.name))
    return found


def is_gone(mark, within_s=5.0):
    until = time.monotonic() + within_s
    while ranks_of(mark) and time.monotonic() < until:
        time.sleep(0.05)
    return not ranks_of(mark)


LONG = ("-m", "lesson", "ranks", "--n", "10240", "--chunk", "128", "--backend", "numpy", "--keep")


def started(processes, keep, mark):
    """A run of 80 chunks, two of which are finished."""
    process = start(processes, *LONG, keep, MARK=mark)
    until = time.monotonic() + WITHIN_S
    while len(list(Path(keep).glob("rows-*"))) < 2:
        assert process.poll() is None and time.monotonic() < until, process.communicate()
        time.sleep(0.02)
    return process


@pytest.mark.slow  # N above 320
def test_a_killed_rank_ends_the_run_and_what_was_finished_is_kept(tmp_path):
    keep = tmp_path / "chunks"
    process = started(3, keep, str(keep))
    os.kill(max(ranks_of(keep)[1]), signal.SIGKILL)  # the later of parent and child
    code, _, err = ended(process)
    assert code != 0
    assert re.search(r"rank 1 of 3 \(\S+, process \d+\) was killed by SIGKILL", err), err
    assert "the same command goes on from them" in err and is_gone(str(keep))
    kept = len(list(keep.glob("rows-*")))
    assert 2 <= kept < 80 and json.loads((keep / "run.json").read_text())["n"] == 10240
    code, out, err = ended(start(2, *LONG, keep))  # with fewer ranks
    assert code == 0 and re.search(rf"rows found on disk +{kept * 128:,}", out), out + err
    assert "passed at" in out and not keep.exists()


def test_a_rank_that_misses_another_lets_it_speak_first(monkeypatch, capsys):
    from lesson.spread import processes

    class Failed(Exception):
        pass

    order = []
    comm = types.SimpleNamespace(rank=0, size=2, Abort=lambda code: order.append(code))
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", types.SimpleNamespace(Exception=Failed))
    monkeypatch.setattr(processes.time, "sleep", order.append)
    processes.ended(Failed("Other MPI error, error stack:\nlong"), comm)
    assert order == [processes.LAST_WORDS_S, 2]
    said = capsys.readouterr().err
    assert "another rank does not answer: Other MPI error" in said and "long" not in said
    processes.ended(MemoryError(), comm)
    assert order[2:] == [2]  # it has something to say itself


def test_an_interrupt_waits_for_what_may_not_be_interrupted():
    from lesson.spread.processes import uninterrupted

    def tried():
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("all of it")
        done.append("and the rest")

    before, done = signal.getsignal(signal.SIGINT), []
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with pytest.raises(KeyboardInterrupt):
            tried()
        assert done == ["all of it"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in the background
        tried()
        assert done[1:] == ["all of it", "and the rest"]
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.parametrize("how", (signal.SIGINT, signal.SIGKILL))
def test_an_interrupted_run_leaves_no_process(tmp_path, how):
    keep = tmp_path / "chunks"
    process = started(2, keep, str(keep))
    process.send_signal(how)
    code, _, err = ended(process)
    assert code != 0 and "Traceback" not in err, err
    assert is_gone(str(keep))


def test_without_mpi4py_many_processes_are_told_what_they_need(tmp_path, monkeypatch, capsys):
    from lesson import __main__ as command
    from lesson.spread import processes

    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setattr(processes, "watched", lambda work: work())
    assert command.main(["ranks", "--n", "64", "--backend", "numpy"]) == 2
    assert "pip install -r requirements-mpi.txt" in capsys.readouterr().err
    for name in ("PMI_RANK", "PMI_SIZE"):
        monkeypatch.delenv(name)  # one process needs none
    assert command.main(["ranks", "--n", "64", "--backend", "numpy", "--ranks", "3"]) == 0
    assert "passed at" in capsys.readouterr().out
