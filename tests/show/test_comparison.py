"""The ladder beside what a reader would call."""


import pytest
from lesson.launch import ladder, rungs
from lesson.problem import cases
from lesson.show.comparison import requested


@pytest.mark.parametrize("number, splits",
                         [(1, 1), (2, 1), (3, 1), (4, 1), (6, 1), (8, 1), (10, 2), (14, 2),
                          (19, 1), (19, 4), (21, 3)])
def test_requested_bytes_are_what_the_emulator_counts(one_order, number, splits):
    r, n = rungs.rung(number), 256
    _, planned = ladder.run(one_order, r, cases.make("periodic", n), splits if r.splits else None)
    counted = sum(c.loads_bytes + c.stores_bytes for c in planned.counts.values())
    assert counted == requested(r, n, splits)
