"""What a reader records: written, offered for download, described, and shown beside the H200's."""

import base64
import re
import shutil

import lesson
import pytest
from lesson import colab
from lesson.errors import ArgumentError, GateError
from lesson.machine import backend as backends
from lesson.measure import evidence, records
from lesson.show import timing
from support.gpus import StandInT4
from support.kernels import edit, needs_nvrtc
from tools import estimate


@pytest.fixture
def t4(monkeypatch, tmp_path):
    """A stand-in T4 in place of the GPU, and a folder of evidence that holds the book's."""
    gpu = StandInT4()
    for path in evidence.FOLDER.glob("*.json"):
        shutil.copy(path, tmp_path)
    monkeypatch.setattr(evidence, "FOLDER", tmp_path)
    monkeypatch.setattr(backends, "choose", lambda kind=None: gpu)
    monkeypatch.setattr(records, "TABLE_N", (256,))
    return tmp_path


@needs_nvrtc
def test_a_t4_owner_records_and_the_tables_show_it(t4, monkeypatch):
    offered = []
    monkeypatch.setattr(colab, "here", lambda: True)
    monkeypatch.setattr(colab, "download", offered.append)
    kept = lesson.record()
    assert offered == [kept.path] and kept.path.parent == t4
    assert re.fullmatch(r"tesla-t4-\d{4}-\d\d-\d\d\.json", kept.path.name)
    item = evidence.read(kept.path)
    assert item.stale() == [] and all(gate.passed for gate in item.gates)
    assert [f.blocks_by_driver for f in item.facts] == [f.blocks for f in item.facts]
    assert {f.arch for f in item.facts} == {"sm_75"}

    html = kept._repr_html_()
    data = re.search(r'href="data:application/json;base64,([^"]+)"', html)[1]
    assert base64.b64decode(data) == kept.path.read_bytes()
    assert 'data-mark="recorded"' in html and f'download="{kept.path.name}"' in html

    # No code changes: the tables have a row for every recorded GPU.
    monkeypatch.setattr(backends, "choose", lambda kind=None: None)
    tables = timing._tables_for(None, 256, lambda *_: None)[0]
    assert len(tables) == 3
    for table in tables:
        where = " ".join(cells[-1] for cells, mark in table.rows if mark == "recorded")
        assert "Tesla T4" in where and "H200" in where


@needs_nvrtc
def test_a_wrong_kernel_leaves_no_file(t4, monkeypatch):
    monkeypatch.setattr(estimate.model, "online", lambda q, k, v: 0 * v)
    before = sorted(t4.iterdir())
    with pytest.raises(GateError, match="query row 0"):
        lesson.record()
    assert sorted(t4.iterdir()) == before


def test_without_a_gpu_nothing_is_recorded(monkeypatch, tmp_path):
    monkeypatch.setattr(evidence, "FOLDER", tmp_path)
    monkeypatch.setattr(backends, "probe", lambda: backends.Probe(False, "no driver", {}))
    with pytest.raises(ArgumentError, match="no live GPU: no driver"):
        lesson.record()
    assert not any(tmp_path.iterdir())


def test_a_record_is_of_the_files():
    from lesson.measure.record import record

    edit("online/score", "s *= scale;", "s = s * scale;")
    with pytest.raises(ArgumentError, match=r"online/score is edited.*lesson.reset\(\) first"):
        record(None)
