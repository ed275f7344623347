"""What a reader records: written, offered for download, described, and shown beside the H200's."""

import base64
import dataclasses
import re
import shutil
import types

import lesson
import pytest
from conftest import ROOT
from lesson import backend as backends
from lesson import bench, colab, evidence, impossible, notebooks, nvrtc, report, results, run_all
from lesson.errors import ArgumentError, GateError

needs_nvrtc = pytest.mark.skipif(not nvrtc.available()[0], reason="no NVRTC: nothing to record")


class T4(run_all.StandIn):
    """A T4 whose results are right and whose times are estimates: for the tests alone."""

    def versions(self):
        return {**super().versions(), "gpu": "Tesla T4"}


@pytest.fixture
def t4(monkeypatch, tmp_path):
    """A stand-in T4 in place of the GPU, and a folder of evidence that holds the book's."""
    gpu = T4(run_all.kernel_ms(run_all.recorded()))
    for path in evidence.FOLDER.glob("*.json"):
        shutil.copy(path, tmp_path)
    monkeypatch.setattr(evidence, "FOLDER", tmp_path)
    monkeypatch.setattr(backends, "choose", lambda kind=None: gpu)
    monkeypatch.setattr(results, "TABLE_N", (256,))
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
    timing, breakdown, ratios = report._tables_for(None, 256, lambda *_: None)[0]
    for table in (timing, breakdown, ratios):
        where = " ".join(cells[-1] for cells, mark in table.rows if mark == "recorded")
        assert "Tesla T4" in where and "H200" in where


def test_a_t4_is_given_the_rungs_it_can_run():
    gpu = T4(run_all.kernel_ms(run_all.recorded()))
    gates = bench.gate_rungs(gpu, lambda *_: None, gated=((256, ("random", "spike-late")),))
    assert {g.path for g in gates} == {"online", "ladder/02_registers", "ladder/13_small"}
    assert all(g.passed for g in gates)


@needs_nvrtc
def test_a_wrong_kernel_leaves_no_file(t4, monkeypatch):
    monkeypatch.setattr(run_all.model, "online", lambda q, k, v: 0 * v)
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


def test_no_verb_is_hidden_by_a_module_of_its_name():
    import lesson.compare
    import lesson.gate
    import lesson.mutants
    import lesson.record

    verbs = [name for name in lesson.__all__ if name in
             {path.stem for path in (ROOT / "book/lesson").glob("*.py")}]
    assert {"compare", "edits", "gate", "mutants", "record", "table"} <= set(verbs)
    for name in verbs:
        assert not isinstance(getattr(lesson, name), types.ModuleType), name


# The description of the format

def described():
    """``{section: {field: its type}}`` of the tables in evidence/README.md."""
    text = (ROOT / "book/evidence/README.md").read_text(encoding="utf-8")
    found = {}
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, re.M)
        found[section.split("\n", 1)[0]] = dict(rows)
    return found


KINDS = {"Evidence": evidence.Evidence, "Gate": results.Gate, "Time": results.Time,
         "Facts": results.Facts, "Outcome": results.Outcome, "Counters": results.Counters,
         "Sanitizer": evidence.Sanitizer, "Bench": bench.Bench, "Ceiling": bench.Ceiling,
         "Row": bench.Row, "RungCounters": bench.RungCounters, "Long": impossible.Long}


def in_words(kind):
    """A field's type as the description writes it."""
    if isinstance(kind, types.UnionType):
        return f"{in_words(kind.__args__[0])}, optional"
    if isinstance(kind, types.GenericAlias):
        return f"list of {kind.__args__[0].__name__}"
    return kind.__name__


def test_the_format_is_described_field_by_field():
    assert described() == {
        section: {field.name: in_words(field.type) for field in dataclasses.fields(kind)}
        for section, kind in KINDS.items()}


# How long Run all takes on a T4

@needs_nvrtc
def test_every_chapter_runs_on_a_t4_in_three_minutes():
    """Also a run of every chapter's live branch, on the stand-in."""
    counts = run_all.count_all()
    said = run_all.in_page()
    assert list(said) == list(counts), "record-your-gpu.md: make estimate writes a row a chapter"
    assert list(counts) == [path.stem for path in notebooks.chapters()]
    for name, c in counts.items():
        seconds = run_all.total_s(c)
        assert seconds < 180, name
        assert said[name] == pytest.approx(seconds, abs=5, rel=0.2), f"{name}: run make estimate"
    assert any(c["launches"] for c in counts.values())
