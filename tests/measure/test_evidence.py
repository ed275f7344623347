"""Recorded runs: read back, validated field by field, and never shown with other kernels."""

import hashlib
import json
import re
from dataclasses import asdict, replace

import pytest
from lesson.errors import EvidenceError
from lesson.measure import evidence
from lesson.text import source
from support.evidence import sample


def test_a_record_reads_back_as_it_was_written(tmp_path):
    path = evidence.write(sample(), tmp_path / "made" / "test.json")
    assert evidence.read(path) == sample()
    data = json.loads(path.read_text())
    assert "bench" not in data and "sanitizer" not in data, "what was not measured is absent"


@pytest.mark.parametrize("change, field", [
    (lambda d: d.update(format=3), "format is 3"),
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


def test_what_changes_in_comments_alone_keeps_its_evidence(monkeypatch):
    item, text = sample(), source.read("online")
    commented = re.sub(r"//(?! (end )?snippet)[^\n]*", "// set right", text)
    commented = commented.replace("\n\n", "\n\n/* more\n   words */   \n\n")
    assert commented != text and "set right" in commented
    monkeypatch.setattr(source, "read", lambda name: commented)
    assert item.stale(("online",)) == []
    for old, new in (("expf(s - mNew)", "expf(s)"), ('"d must be 64', '"// d must be 64')):
        assert old in text
        monkeypatch.setattr(source, "read", lambda name, old=old, new=new: text.replace(old, new))
        assert item.stale(("online",)) == ["online"]


def test_format_1_is_read_whose_hashes_were_of_whole_files(tmp_path):
    path = evidence.write(sample(), tmp_path / "test.json")
    data = json.loads(path.read_text())
    data["format"] = 1
    for row in (*data["gates"], *data["times"], *data["counters"]):
        row["n"] = row.pop("problem")["keys"]
    whole = {name: hashlib.sha256(source.path_of(name).read_bytes()).hexdigest()
             for name in data["kernels"]}
    for kernels, changed in ((whole, []), ({**whole, "online": "0" * 64}, ["online"])):
        path.write_text(json.dumps({**data, "kernels": kernels}))
        assert evidence.read(path).stale() == changed
    assert replace(evidence.read(path), kernels=sample().kernels) == sample()


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
