"""Bytes before time: what must move, and what must be there."""

from lesson.problem import traffic


def test_compulsory_bytes_and_the_ratio():
    found = traffic.compulsory(4096)
    assert found["online"] == 16 * 4096 * 64
    assert found["materialised"] == 16 * 4096 * 64 + 20 * 4096**2
    assert found["materialised"] / found["online"] == 81


def test_score_matrix_mib():
    sizes = {256: 0.25, 1024: 1 * 4, 4096: 64, 8192: 256, 32768: 4096, 131072: 65536,
             1048576: 4194304}
    assert {n: traffic.score_matrix_bytes(n) / traffic.MIB for n in sizes} == sizes


def test_the_chapters_fit_a_small_gpu():
    for needed in traffic.working_memory(4096).values():
        assert needed < 0.2e9  # "well under 1 GB": the inputs, S and P are 132 MiB
