"""Bytes before time, as tables: bank conflicts, bounds, and sentences on times."""


import lesson
from lesson.measure import evidence
from lesson.text.edits import replace
from lesson.text.source import snippets


def numbers(table, line):
    """The cells of a table's row that begins with ``line``, as whole numbers."""
    (cells,) = [c for c, _ in table.rows if c[0].startswith(line)]
    return [int(c.replace(",", "")) for c in cells[1:]]


def test_the_pad_is_what_the_chapter_says(emulated):
    """With it no line of the score loop conflicts; without it a read of K takes 32 passes."""
    line = "s += qTile"
    passes, least = numbers(lesson.bank_conflicts("attentionOnline"), line)
    assert passes == least
    padded = snippets("online")["state"]
    replace("online/state", padded.replace("kTile[BN][D + 1]", "kTile[BN][D]"))
    try:
        unpadded, _ = numbers(lesson.bank_conflicts("attentionOnline"), line)
    finally:
        lesson.reset()
    assert unpadded == least // 2 + 32 * least // 2  # one of its two reads is of Q


def test_the_bounds_follow_from_the_datasheet():
    rows = {cells[0]: cells[1:] for cells, _ in lesson.limits(4096).rows}
    operations, bytes_ = 4 * 4096**2 * 64, 16 * 4096 * 64 + 20 * 4096**2
    assert rows["multiplications and additions at 67 TFLOP/s, ms"][0] == f"{operations / 67e9:.4f}"
    assert rows["compulsory bytes at 4.8 TB/s, ms"][0] == f"{bytes_ / 4.8e9:.4f}"
    assert rows["SMs of 132 that get a block"] == ("132", "64")


def test_a_sentence_on_times_comes_from_a_record(monkeypatch, tmp_path):
    assert "recorded" in lesson.summary(4096).text()
    monkeypatch.setattr(evidence, "FOLDER", tmp_path)
    assert "no recorded run" in lesson.summary(4096).text()
    assert "no recorded run" in lesson.limits(4096).text()
