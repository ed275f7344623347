"""The ladder's comparison: shares, tables, and every rung on a real GPU."""

from dataclasses import replace

import pytest
from lesson.launch import rungs
from lesson.machine import backend as backends
from lesson.measure import bench, evidence, records
from lesson.problem.problem import of
from lesson.show.comparison import bench_tables
from support.evidence import sample
from support.gpus import StandInT4

MOST = 0.5  # of the gate
ON_A_T4 = ["online", *(f"ladder/{name}" for name in (
    "02_registers", "03_steps", "04_heads", "05_weights", "21_small"))]
needs_gpu = pytest.mark.skipif(not backends.probe().gpu, reason=backends.probe().reason)


def a_bench():
    rows = [records.Row(r.label, r.number, of(n), 1, 0.1, 1.0 / r.number, 0.9 / r.number,
                        1.1 / r.number, 10, 5) for r in rungs.RUNGS for n in (256, 4096)]
    top = records.Ceiling(8192, 50.0, 1.0, 1.0, 1.0, 5)
    return records.Bench({"cupy": "14"}, top, [], rows, [], [])


def test_the_share_of_the_ceiling_is_the_rate():
    row = replace(a_bench().rows[0], problem=of(4096), median_ms=0.1)
    assert bench.share(row, records.Ceiling(8192, 50.0, 1, 1, 1, 5)) == pytest.approx(
        4 * 4096**2 * 64 / 0.1e-3 / 50e12)


def test_a_bench_reads_back_and_its_tables_hold_every_row(tmp_path):
    found = a_bench()
    path = evidence.write(replace(sample(), bench=found), tmp_path / "test.json")
    assert evidence.read(path).bench == found
    text = bench_tables(found).text()
    for r in rungs.RUNGS:
        assert r.label in text
    assert "50.0 TFLOP/s" in text


@needs_gpu
def test_every_rung_on_this_gpu():
    backend = backends.choose("live")
    gates = bench.gate_rungs(backend, lambda *_: None, gated=bench.GATED[:2])
    assert all(g.passed and g.fraction <= MOST for g in gates), [
        g.message for g in gates if not g.fraction <= MOST]


def test_a_t4_is_given_the_rungs_it_can_run():
    gpu = StandInT4()
    gates = bench.gate_rungs(gpu, lambda *_: None, gated=((256, ("random", "spike-late")),))
    assert {g.path for g in gates} == set(ON_A_T4)
    assert all(g.passed for g in gates)
