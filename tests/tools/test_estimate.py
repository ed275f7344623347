"""How long Run all takes on a T4."""

import re

import pytest
from support.kernels import needs_nvrtc
from tools import estimate, notebooks


@pytest.mark.slow  # executes every chapter
@needs_nvrtc
def test_every_chapter_runs_on_a_t4_in_three_minutes():
    """Also a run of every chapter's live branch, on the stand-in."""
    counts = estimate.count_all()
    text = estimate.PAGE.read_text(encoding="utf-8")
    rows = text[text.index(estimate.BEGIN):text.index(estimate.END)]
    said = {name: int(s) for name, s in re.findall(r"^\| (\S+) \|.* (\d+) \|$", rows, re.M)}
    assert list(said) == list(counts), "record-your-gpu.md: make estimate writes a row a chapter"
    assert list(counts) == [path.stem for path in notebooks.chapters()]
    for name, c in counts.items():
        seconds = estimate.total_s(c)
        assert seconds < 180, name
        assert said[name] == pytest.approx(seconds, abs=5, rel=0.2), f"{name}: run make estimate"
    assert any(c["launches"] for c in counts.values())
