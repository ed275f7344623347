"""Recorded runs: read back, validated field by field, and never shown with other kernels."""

import json
from dataclasses import asdict, replace

import pytest
from lesson import evidence, report, results
from lesson.errors import EvidenceError
from lesson.record import parse_counters

VERSIONS = {"gpu": "NVIDIA Test", "driver": "1", "cuda": "12.9", "cupy": "14.0.1", "nvrtc": "12.9"}


def sample():
    """A small, valid Evidence whose digests fit the kernels as they are."""
    gate = results.Gate("online", "periodic", 256, True, 0.0625, 1e-7, 1e-5, 1e-6, "passed")
    other = replace(gate, path="materialised")
    pair = replace(gate, path=results.PAIR)
    times = [results.Time(what, 256, 2.0, 1.5, 2.5, 10, 5) for what in
             ("online", "materialised", "scoresQKt", "softmaxRows", "weightedV")]
    facts = results.Facts("attentionOnline", "sm_75", 256, 56, 32896, 128, 0, 1, "shared memory",
                          0.25)
    counters = [results.Counters(k, 256, 1 << 20, 1 << 20, 1 << 22) for k in
                ("scoresQKt", "softmaxRows", "weightedV", "attentionOnline")]
    return evidence.Evidence(
        1, "2026-11-29T12:00:00+00:00", VERSIONS, evidence.digests(("materialised", "online")),
        [other, gate, pair], times, [facts], {"online": 300.0}, counters=counters)


def test_a_record_reads_back_as_it_was_written(tmp_path):
    path = evidence.write(sample(), tmp_path / "made" / "test.json")
    assert evidence.read(path) == sample()
    data = json.loads(path.read_text())
    assert "bench" not in data and "sanitizer" not in data, "what was not measured is absent"


@pytest.mark.parametrize("change, field", [
    (lambda d: d.update(format=2), "format is 2"),
    (lambda d: d.pop("date"), "date is missing"),
    (lambda d: d.update(gates={}), "gates must be a list"),
    (lambda d: d["gates"][0].update(fraction="small"), r"gates\[0\].fraction must be float"),
    (lambda d: d["gates"][0].pop("case"), r"gates\[0\].case is missing"),
    (lambda d: d["times"][0].update(speed=1), r"times\[0\].speed is not a field"),
    (lambda d: d["times"][0].update(runs=True), r"times\[0\].runs must be int"),
    (lambda d: d["versions"].pop("driver"), "versions.driver is missing"),
])
def test_a_damaged_file_names_the_field(tmp_path, change, field):
    path = evidence.write(sample(), tmp_path / "test.json")
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(EvidenceError, match=f"test.json.*{field}"):
        evidence.read(path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', "\x00"])
def test_what_is_no_evidence_is_named_and_the_rest_is_read(tmp_path, text):
    evidence.write(sample(), tmp_path / "good.json")
    (tmp_path / "bad.json").write_text(text)
    found, problems = evidence.read_all(tmp_path)
    assert found == [sample()] and len(problems) == 1 and "bad.json" in problems[0]


def test_stale_when_a_kernel_changed():
    item = sample()
    assert item.stale() == []
    changed = replace(item, kernels={**item.kernels, "online": "0" * 64})
    assert changed.stale() == ["online"]
    assert item.stale(("materialised", "online")) == [] and replace(item, kernels={}).stale()


def test_recorded_times_are_shown_with_their_mark_and_stale_ones_are_not(monkeypatch, tmp_path):
    monkeypatch.setattr(evidence, "FOLDER", tmp_path)
    evidence.write(sample(), tmp_path / "test.json")
    table, breakdown, ratios = report._tables_for(None, 256, lambda *_: None)[0]
    assert ("recorded", "2.0000 (1.5000–2.5000)") in [(m, c[3]) for c, m in table.rows]
    assert [c[0] for c, _ in breakdown.rows] == ["scoresQKt", "softmaxRows", "weightedV"]
    assert ratios.rows[0][0][3] == "1.00x"
    assert "measured: DRAM, Test" in report.count_bytes(256).text()
    old = replace(sample(), kernels={"materialised": "0", "online": "0"})
    evidence.write(old, tmp_path / "test.json")
    (table,) = report._tables_for(None, 256, lambda *_: None)[0]
    assert all(mark != "recorded" for _, mark in table.rows)
    assert any(n.startswith("stale:") and "online.cu" in n for n in report.stale_notice())


def test_evidence_in_the_book_fits_the_kernels():
    found, problems = evidence.read_all()
    assert not problems
    for item in found:
        assert item.stale(tuple(item.kernels)) == [], f"record again: {item.gpu}, {item.day}"
        assert all(g.passed and g.fraction <= 0.35 for g in item.gates)
        assert all(o.rejected for o in item.mutants or []
                   if "barrier" not in o.mutant and o.case != "periodic")
        for f in item.facts:
            assert f.blocks_by_driver in (None, f.blocks), f"{f.kernel}: {f.blocks_by_driver}"
        assert all(s.passed for s in item.sanitizer or [])


def test_the_newest_run_of_a_gpu_is_shown(tmp_path):
    evidence.write(sample(), tmp_path / "a.json")
    newer = replace(sample(), date="2026-12-24T12:00:00+00:00")
    evidence.write(newer, tmp_path / "b.json")
    assert evidence.latest(tmp_path) == {"Test": newer}
    assert asdict(newer)["date"].startswith(newer.day)


NCU = '''==PROF== Connected to process 1
"ID","Process ID","Kernel Name","dram__bytes_read.sum","dram__bytes_write.sum","lts__t_bytes.sum"
"","","","Mbyte","byte","Kbyte"
"0","1","scoresQKt(const float *, size_t)","9.0","9","9"
"1","1","scoresQKt(const float *, size_t)","1.5","1,024","2"
"2","1","attentionOnline","0","0","3"
'''


def test_counters_of_the_last_launch_in_bytes():
    rows = parse_counters(NCU, 256)
    assert rows == [results.Counters("scoresQKt", 256, 1500000, 1024, 2000),
                    results.Counters("attentionOnline", 256, 0, 0, 3000)]


@pytest.mark.parametrize("text", ["", "==ERROR== ERR_NVGPUCTRPERM", NCU.replace("dram__", "x__")])
def test_no_counters_is_no_row(text):
    assert parse_counters(text, 256) == []
