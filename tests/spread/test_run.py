"""Runs over ranks of one process: on the host, and on a stand-in for GPUs and NCCL."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from lesson.errors import ArgumentError, EvidenceError, GateError
from lesson.machine import backend as backends
from lesson.problem import cases
from lesson.spread import links, model, parts, run
from lesson.spread.kept import Kept
from support import cupy_on_the_host
from support.emulated import needs_compiler


@pytest.mark.parametrize("way", run.WAYS)
@pytest.mark.parametrize("ranks, n", ((1, 65), (3, 200), (8, 5), (5, 311)))
def test_ranks_of_one_process(ranks, n, way):
    with run.in_this_process(ranks) as party:
        found = run.run(party, cases.make("spike-late", n), way, 128)
    assert found.verdict.fraction < 0.35 and found.mark == "computed"
    assert found.moved == model.moved_bytes(n, ranks, way)


@needs_compiler
@pytest.mark.parametrize("devices, n, way", (
    (1, 320, "merge"), (2, 317, "merge"), (3, 310, "merge"), (2, 317, "ring"), (3, 310, "ring")))
def test_gpus_of_one_process(monkeypatch, devices, n, way):
    seen = cupy_on_the_host.install(monkeypatch, devices)
    with run.gpus_here() as party:
        found = run.run(party, cases.make("spike-late", n), way, 128)
    assert found.verdict.fraction < 0.35 and found.mark == "live"
    assert found.ranks == tuple(f"NVIDIA Stand-in, device {i}" for i in range(devices))
    assert found.moved == model.moved_bytes(n, devices, way)
    assert seen.priorities == [None, None, -1] * devices  # what is said goes first
    assert not seen.streams and seen.current == 0


def one_process(per_machine=1):
    """A communicator of mpi4py's with one process, on a machine with so many."""
    here = SimpleNamespace(rank=0, size=per_machine)
    return SimpleNamespace(rank=0, size=1, Split_type=lambda kind: here, allgather=lambda x: [x],
                           gather=lambda x, root: [x], bcast=lambda x, root: x)


@needs_compiler
@pytest.mark.parametrize("way", run.WAYS)
def test_a_process_with_a_gpu_of_its_own_joins_by_the_id_that_mpi_passes(monkeypatch, way):
    seen = cupy_on_the_host.install(monkeypatch, 1)
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(
        MPI=SimpleNamespace(COMM_TYPE_SHARED=1)))
    monkeypatch.setattr(backends, "choose", lambda kind=None: None)
    passed = []
    comm = one_process()
    comm.bcast = lambda x, root: passed.append(x) or x

    def gatherv(own, into, root):
        into[0][...] = own

    comm.Gatherv = gatherv
    with run.of_processes(comm, "live") as party:
        assert isinstance(party.link, links.NcclProcesses)
        found = run.run(party, cases.make("random", 200), way, 128)
    assert passed == [seen.name] and found.verdict.fraction < 0.35


@needs_compiler
def test_processes_that_share_a_gpu_are_joined_by_mpi(monkeypatch):
    cupy_on_the_host.install(monkeypatch, 1)
    made = []
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=SimpleNamespace(
        COMM_TYPE_SHARED=1, Op=SimpleNamespace(Create=lambda f, commute: made.append(commute)))))
    monkeypatch.setattr(backends, "choose", lambda kind=None: None)
    party = run.of_processes(one_process(per_machine=2), "live")
    assert isinstance(party.link, links.OwnOperation) and made == [True]


@needs_compiler
def test_a_merge_waits_for_its_own_parts_and_not_for_the_next(monkeypatch):
    seen = cupy_on_the_host.install(monkeypatch, 1)
    with run.gpus_here() as party:
        rank = party.ranks[0]
        run.run(party, cases.make("random", 320), rows=128)
    seen.calls.clear()
    with party:
        for _ in run.by_merge(party.ranks, party.link, [slice(0, 128), slice(128, 256),
                                                        slice(256, 320)]):
            pass
    said = [(kind, "line" if stream is rank.line else "lane") for kind, stream, _ in seen.calls]
    part, wait, answer = ("record", "lane"), ("wait", "line"), ("synchronize", "line")
    # The second part is under way before the first answer is fetched, and the line does not yet
    # wait for it.
    assert said == [part, wait, part, answer, wait, part, answer, wait, answer]
    recorded = [event for kind, _, event in seen.calls if kind == "record"]
    assert recorded == [event for kind, _, event in seen.calls if kind == "wait"]
    assert len({event.stream for event in recorded}) == 2  # lanes take turns


def test_more_gpus_than_there_are(monkeypatch):
    cupy_on_the_host.install(monkeypatch, 2)
    with pytest.raises(ArgumentError, match="ranks = 3: this process sees 2 GPUs"):
        run.gpus_here(3)


@pytest.mark.parametrize("n, way, rows, words", (
    (0, "merge", None, "whole number"), (64, "round", None, "choose one of merge, ring"),
    (64, "merge", 0, "multiple of 128"), (640, "merge", 200, "multiple of 128")))
def test_what_is_no_run_is_refused(n, way, rows, words):
    with pytest.raises(ArgumentError, match=words):
        run.check(n, way, rows)


def test_a_wrong_part_is_caught_before_its_chunk_counts_as_finished(monkeypatch, tmp_path):
    party = run.in_this_process(3)
    right = party.ranks[1].load

    def load(*how):
        right(*how)
        party.ranks[1].part_of = lambda q, k, v: parts.by_arrays(q, k, -v)

    monkeypatch.setattr(party.ranks[1], "load", load)
    with pytest.raises(GateError, match="3 ranks, query rows 0 to 127, random, N = 300"):
        run.run(party, cases.make("random", 300), rows=128, keep=tmp_path / "kept")
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["run.json"]


def test_a_rank_that_passes_on_wrong_keys_is_caught(monkeypatch):
    monkeypatch.setattr(links.HostCalls, "shift",
                        lambda self, sent, received: [into.fill(0) for into in received])
    with pytest.raises(GateError, match="2 ranks by ring"):
        run.run(run.in_this_process(2), cases.make("random", 128), "ring")


def test_a_run_goes_on_from_finished_chunks(monkeypatch, tmp_path):
    case, keep = cases.make("random", 310), tmp_path / "kept"
    whole = run.run(run.in_this_process(2), case, rows=128).output
    party, count = run.in_this_process(2), []

    def stop(what, done, total):
        count.append((done, total))
        if done == 2 and total == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.run(party, case, rows=128, keep=keep, progress=stop)
    found = run.run(party, case, rows=128, keep=keep, progress=stop)
    assert found.resumed == 256 and count[-1] == (1, 1) and not keep.exists()
    assert np.array_equal(found.output, whole)


def test_chunks_of_another_run_and_damaged_ones_are_refused(tmp_path):
    about = {"case": "random", "n": 310, "chunk": 128}
    kept = Kept(tmp_path / "kept", about)
    kept.add(slice(0, 128), np.zeros((128, 64), np.float32))
    with pytest.raises(ArgumentError, match="n is 310 there and 501 here.*--keep"):
        Kept(tmp_path / "kept", about | {"n": 501})
    (path,) = (tmp_path / "kept").glob("rows-*")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(EvidenceError, match="damaged: remove it"):
        Kept(tmp_path / "kept", about).read(slice(0, 128))
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="name another folder with --keep"):
        Kept(tmp_path / "file" / "kept", about)
