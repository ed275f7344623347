"""The recorded runs over several GPUs: what is measured, written after each, and read back."""

from dataclasses import replace

import pytest
from lesson.errors import ArgumentError
from lesson.machine import backend as backends
from lesson.machine import gpu
from lesson.measure import evidence, long_sequences, several_gpus
from lesson.measure.records import Long
from lesson.problem import cases
from lesson.show.several_gpus import recorded_table
from lesson.spread import model
from support import cupy_on_the_host
from support.emulated import needs_compiler
from support.evidence import sample


def test_numbers_of_gpus():
    assert [several_gpus.counts(seen) for seen in (1, 2, 3, 4, 8)] == [
        [1], [1, 2], [1, 2, 3], [1, 2, 4], [1, 2, 4, 8]]


@pytest.fixture
def two_gpus(monkeypatch):
    """A machine with two GPUs, and a recorded run of one of them."""
    cupy_on_the_host.install(monkeypatch, 2)
    live = gpu.GpuBackend()
    monkeypatch.setattr(backends, "choose", lambda kind=None: live)
    monkeypatch.setattr(long_sequences, "calibrate", lambda backend: 1e-9)
    monkeypatch.setattr(long_sequences, "run", lambda backend, n, progress, unit: Long(
        cases.make("random", n).problem, "random", 20, 1, 1.0, 1.0, 1, 1, 256, 0.1, 1e-7))
    monkeypatch.setattr(several_gpus, "STEP", 64)
    item = replace(sample(), kernels=evidence.digests((*sample().kernels, *evidence.LADDER)))
    monkeypatch.setattr(evidence, "latest", lambda: {"Stand-in": item})


@needs_compiler
def test_a_record_of_two_gpus(two_gpus, tmp_path):
    seen = []
    item, path = several_gpus.record(lambda *how: None, tmp_path / "test.json", n=192,
                                     limit_s=2.0, rounds=1, say=seen.append)
    assert evidence.read(path) == item
    assert item.several.rows == seen
    found = [(row.n, row.ranks, row.way) for row in seen]
    assert found[:4] == [(192, 1, "plain"), (192, 1, "merge"), (192, 2, "merge"), (192, 2, "ring")]
    for row in seen[1:]:
        assert row.moved_bytes == model.moved_bytes(row.n, row.ranks, row.way)
        assert row.fraction < 0.35
    assert item.several.versions["gpus"] == 2 and item.several.versions["nccl"] == "2.28.3"
    assert len(recorded_table(item).rows) == len(seen)


@needs_compiler
def test_a_file_that_is_there_is_what_it_is_added_to(two_gpus, monkeypatch, tmp_path):
    path, how = tmp_path / "test.json", {"n": 192, "limit_s": 0.0, "rounds": 1}
    item = evidence.latest()["Stand-in"]
    evidence.write(replace(item, date="2026-01-02T03:04:05+00:00",
                           versions={**item.versions, "gpu": "NVIDIA Stand-in"}), path)
    monkeypatch.setattr(evidence, "latest", lambda: {})
    again, _ = several_gpus.record(lambda *how: None, path, **how)
    assert again.date == "2026-01-02T03:04:05+00:00" and again.several is not None
    evidence.write(sample(), path)
    with pytest.raises(ArgumentError, match="holds a run of Test, and this is Stand-in"):
        several_gpus.record(lambda *how: None, path, **how)


def test_it_is_added_to_a_run_of_the_same_gpu(two_gpus, monkeypatch):
    monkeypatch.setattr(evidence, "latest", lambda: {})
    with pytest.raises(ArgumentError, match="Stand-in fits these kernels.*record first"):
        several_gpus.record(lambda *how: None)
