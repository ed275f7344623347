"""Attention for any problem, as recorded: a table that can be checked by hand."""

import lesson
from lesson.measure import use


def test_each_problem_stands_beside_the_best_of_pytorch_and_a_copy(record):
    text = lesson.ladder("any problem").text()
    rows = [line for line in text.splitlines() if "memory-efficient" in line]
    assert len(rows) == len(use.TIMED)
    assert all("0.5000" in line and "1.0000, memory-efficient" in line and " 2.00 " in line
               for line in rows)
    (query,) = (line for line in rows if "1 queries, 131072 keys, 16 heads" in line)
    assert "2,148" in query and "107%" in query  # of 1 GiB in 0.5 ms; of 2,000 GB/s
    assert "Gated: 352 problems" in text
    assert "at most 0.148 of the gate (N = 4096, 16 heads, d = 128)" in text


def test_without_a_record_it_says_so(no_record):
    text = lesson.ladder("any problem").text()
    assert "no recorded run of the kernels for any problem" in text and " ms" not in text
