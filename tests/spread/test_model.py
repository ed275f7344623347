"""Bytes and time on paper."""

import pytest
from lesson.machine.gpus import H200
from lesson.spread import model


def test_a_ring_moves_twice_what_merging_does():
    for ranks in (1, 2, 8):
        merge, ring = (model.moved_bytes(1024, ranks, way) for way in ("merge", "ring"))
        assert (merge, ring) == (268 * 1024 * (ranks - 1), 512 * 1024 * (ranks - 1))
    assert model.moved_bytes(1024, 2, "merge", maximum_back=False) == 264 * 1024


def test_time_halves_until_the_links_are_full():
    unit, n = 5e-12, 1 << 20
    times = {p: model.seconds(n, p, "merge", unit, 50e9) for p in (1, 2, 4, 256, 4096, 8192)}
    assert times[1] == pytest.approx(unit * n * n)
    assert times[1] / times[4] == pytest.approx(4) and times[1] / times[256] == pytest.approx(256)
    assert times[4096] == pytest.approx(times[8192], rel=1e-3) == pytest.approx(268 * n / 50e9,
                                                                               rel=1e-3)
    useful = model.useful_ranks(n, "merge", unit, 50e9)
    assert unit * n * n / useful == pytest.approx(268 * n / 50e9)  # computing and sending alike
    assert model.useful_ranks(2 * n, "merge", unit, 50e9) == pytest.approx(2 * useful)


def test_the_largest_share_decides():
    assert model.seconds(192, 2, "merge", 1.0, 1e30) == 192 * 128


def test_beyond_a_machine_the_network_carries():
    assert model.rate(H200, 8) == 450e9 and model.rate(H200, 9) == 50e9
