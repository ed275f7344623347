"""Splits, rescales and the laws of the merge, as tables."""


import lesson
import numpy as np
from lesson.problem import merge


def test_a_late_rescale_keeps_its_bound_and_is_rare():
    rows = {cells[0]: cells[1:] for cells, _ in lesson.ladder("rescales", 512).rows}
    for steps, eager, lazy, largest in rows.values():
        assert int(steps) == 16 * 8 and float(largest) <= 8.0
        assert int(lazy[:-1]) <= int(eager[:-1])
    assert int(rows["periodic"][2][:-1]) == 12  # of 8 tiles the first alone
    rows = {cells[0]: cells[1:] for cells, _ in lesson.ladder("rescales").rows}  # as in the chapter
    assert rows["random"][1:3] == ("98%", "6%")  # of 16 tiles the first alone
    assert rows["ascending"][1:3] == ("100%", "50%")


def test_the_laws_of_the_merge_hold_and_the_check_can_fail(monkeypatch):
    def tried():
        """{law: (rows that differ, worst difference)}"""
        return {cells[0]: (int(cells[1].split(" of ")[0].replace(",", "")), float(cells[2]))
                for cells, _ in lesson.ladder("merge").rows}

    rows = tried()
    assert rows["commutative"] == rows["no keys change nothing"] == (0, 0)
    assert 0 < rows["associative"][0] and 0 < rows["associative"][1] < 100
    contracted = rows["commutative, contracted as in merge.cu"]
    assert 0 < contracted[0] < 12800 and contracted[1] <= 1  # the last bit, in some rows
    monkeypatch.setattr(merge, "merge", lambda a, b, contracted=False: (
        np.maximum(a[0], b[0]), a[1] + b[1], a[2] + b[2]))
    assert tried()["associative"][1] < 100  # sums alone are associative too: the gate sees that
    monkeypatch.setattr(merge, "merge", lambda a, b, contracted=False: a)
    assert tried()["commutative"][1] > 100
