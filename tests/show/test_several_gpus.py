"""The verb ``ranks`` and its plot: what they say, and of which runs."""

from dataclasses import replace

import lesson
import pytest
from lesson.errors import ArgumentError, LessonError
from lesson.machine import backend as backends
from lesson.machine import gpu
from lesson.machine.gpus import H200
from lesson.measure import evidence
from lesson.measure.records import Several, Shared
from lesson.problem.problem import of
from lesson.show import several_gpus
from lesson.spread import links, model
from support import cupy_on_the_host
from support.emulated import needs_compiler


def shared(ranks, way, seconds, n=1 << 20):
    return Shared(of(n), "random", way, ranks, seconds, seconds, seconds, 2,
                  model.moved_bytes(n, ranks, way), 1 << 15, 256, 0.05, 1e-7)


@pytest.fixture
def recorded(monkeypatch):
    """A recorded run on two GPUs, with times that nobody measured."""
    rows = [shared(1, "plain", 6.1), shared(1, "merge", 6.0), shared(2, "merge", 3.125),
            shared(2, "ring", 3.0), shared(2, "merge", 9.5, 1 << 21)]
    item = replace(evidence.shown("long")[0],
                   several=Several("2026-12-24T00:00:00+00:00", {}, 9.0, rows))
    shown = evidence.shown
    monkeypatch.setattr(evidence, "shown",
                        lambda part: [item] if part == "several" else shown(part))
    return item


def test_efficiency_is_of_one_rank(recorded):
    rows = [cells for cells, mark in lesson.ranks().parts[0].rows if mark == "recorded"]
    assert [row[4] for row in rows] == ["98.4%", "100.0%", "96.0%", "100.0%", "–"]
    assert rows[2][5] == f"{268 * 2**20 / 1e6:,.0f}" and rows[3][5] == f"{512 * 2**20 / 1e6:,.0f}"


def test_recorded_runs_are_points_of_the_plot(recorded, monkeypatch):
    figure = lesson.plot("ranks")
    assert figure.mark == "computed" and "recorded, merged and by ring" in figure.caption
    assert figure.alt.count("recorded: ") == 4 and "by ring on 2 in 3 s" in figure.alt
    assert "N = 16,777,216 by merge" in figure.alt and "on 1,024" in figure.alt
    monkeypatch.setattr(evidence, "shown", lambda part, of=evidence.shown: (
        [] if part == "several" else of(part)))
    assert "recorded" not in lesson.plot("ranks").caption


def test_without_a_record_it_says_what_is_needed(monkeypatch):
    monkeypatch.setattr(evidence, "shown", lambda part: [])
    assert "--record" in lesson.ranks().text()
    for answer in (lesson.ranks("bytes"), lesson.plot("ranks")):
        assert "no recorded run of the long sequences" in answer.text()


def test_bytes_beside_the_arithmetic():
    n = 1 << 20
    table, sentence = lesson.ranks("bytes", n).parts
    rows = {int(cells[0]): cells[1:] for cells, _ in table.rows}
    _, unit = several_gpus.one_gpu()
    assert float(rows[2][0].replace(",", "")) == pytest.approx(1e3 * unit * n * n / 2, abs=0.01)
    assert float(rows[8][2]) == pytest.approx(268e3 * n * 7 / 8 / H200.link_bytes_per_s, abs=0.01)
    assert float(rows[16][4]) == pytest.approx(512e3 * n * 15 / 16 / 50e9, abs=0.01)
    assert f"{unit * n * 50e9 / 268:,.0f} by merge" in sentence.text()


@pytest.mark.parametrize("how, words", (
    (("race",), "choose one of bytes, recorded, run"), (("run", 64, 0), "choose 1 to 1,024"),
    (("run", 64, 2, "round"), "choose one of merge, ring"), (("bytes", 0), "whole number")))
def test_what_it_does_not_know_is_refused(how, words):
    with pytest.raises(ArgumentError, match=words):
        lesson.ranks(*how)


def test_ranks_of_numpy_say_so(no_gpu):
    text = lesson.ranks("run", 200, 3, "ring").text()
    assert "ranks 0, 1, 2          NumPy" in text and f"{512 * 200 * 2:,}" in text
    assert "computed" in text and "time" not in text  # an arithmetic that is no GPU's has no time


@needs_compiler
def test_gpus_are_used_where_there_are_enough(monkeypatch):
    cupy_on_the_host.install(monkeypatch, 2)
    live = gpu.GpuBackend()
    monkeypatch.setattr(backends, "choose", lambda kind=None: live)
    text = lesson.ranks("run", 192).text()
    assert "rank 1" in text and "NVIDIA Stand-in, device 1" in text and "time, s" in text
    text = lesson.ranks("run", 192, 3).text()
    assert "NumPy" in text and "this process sees 2 GPUs" in text

    def none(ranks):
        raise LessonError("CuPy finds no NCCL")

    monkeypatch.setattr(links, "nccl_here", none)
    assert "CuPy finds no NCCL" in (text := lesson.ranks("run", 192).text()) and "NumPy" in text
