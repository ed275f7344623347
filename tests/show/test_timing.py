"""Gated times as tables."""

from dataclasses import replace

from lesson.measure import evidence
from lesson.show import timing
from lesson.show.bytes import count_bytes
from support.evidence import sample


def test_recorded_times_are_shown_with_their_mark_and_stale_ones_are_not(monkeypatch, tmp_path):
    monkeypatch.setattr(evidence, "FOLDER", tmp_path)
    evidence.write(sample(), tmp_path / "test.json")
    table, breakdown, ratios = timing._tables_for(None, 256, lambda *_: None)[0]
    assert ("recorded", "2.0000 (1.5000–2.5000)") in [(m, c[3]) for c, m in table.rows]
    assert [c[0] for c, _ in breakdown.rows] == ["scoresQKt", "softmaxRows", "weightedV"]
    assert ratios.rows[0][0][3] == "1.00x"
    assert "measured: DRAM, Test" in count_bytes(256).text()
    old = replace(sample(), kernels={"materialised": "0", "online": "0"})
    evidence.write(old, tmp_path / "test.json")
    (table,) = timing._tables_for(None, 256, lambda *_: None)[0]
    assert all(mark != "recorded" for _, mark in table.rows)
    assert any(n.startswith("stale:") and "online.cu" in n for n in timing.stale_notice())
