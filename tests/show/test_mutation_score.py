"""The score of the gate: counts, the grid, and what is folded."""

import re
from dataclasses import replace

import pytest
from lesson.__main__ import main
from lesson.measure import evidence, mutation, mutation_run, survivors
from lesson.measure.mutation import NONE, REJECTED, SAME, SURVIVED, Verdict
from lesson.show import mutation_score
from lesson.text import mutations
from support.pictures import boxes, images, outside, words


def made():
    """A Record of made-up verdicts on the first mutants of two sources."""
    sources, alone = {}, {}
    for name in ("online", "ladder/merge"):
        ms = mutations.mutations(name)
        shift = next((m for m in ms if m.changed == "float s = 1.0f;"), ms[50])
        verdicts = {m.key: Verdict(REJECTED, "periodic", "periodic, N = 64") for m in ms[:6]}
        verdicts |= {m.key: Verdict(REJECTED, "race", "periodic, N = 128") for m in ms[6:9]}
        verdicts |= {ms[9].key: Verdict(SAME), ms[10].key: Verdict(NONE),
                     shift.key: Verdict(SURVIVED)}
        if name == "online":
            for i, m in enumerate(ms[:6]):
                bits = ["1"] * len(mutation.ALONE)
                bits[: 2 * i] = "0" * (2 * i)
                alone[m.key] = "".join(bits)
        sources[name] = {"code": evidence.digests([name])[name],
                         "checks": mutation_run._digest(name), "verdicts": verdicts}
    return mutation_run.Record("2026-12-01T00:00:00+00:00", {"compiler": "g++ 12"}, sources, alone)


@pytest.fixture
def drawn():
    record = made()
    return mutation_score.draw(record, mutation_score.outcomes(record))


def test_the_score_counts_what_compiles(drawn):
    assert drawn.parts[0].caption.startswith(
        "22 mutants of 2 files: 18 rejected, 18 of them on periodic, which runs first; 3 equal or "
        "outside the domain (13.6%); 1 hole. 6 of the two paths, chosen by hash, ran on every "
        "case: small random numbers alone would let 0 through, ")


def test_the_pictures_are_the_numbers(drawn):
    picture = drawn.parts[0]
    found = boxes(picture)
    assert {"online: 6 rejected by a case", "online: 3 rejected by the emulator",
            "online: 1 the same machine code", "online: 1 equal", "merge: 1 hole"} <= set(found)
    assert found["online: 6 rejected by a case"]["width"] == pytest.approx(
        2 * found["online: 3 rejected by the emulator"]["width"], rel=0.01)
    # periodic lets 5 of the 6 through, spike-late 5, spike-early and -middle 4, ..
    assert "periodic: 5" in found and "small random: 0" not in found
    assert [x for image in images(picture) for x in outside(image)] == []
    said = words(picture)
    assert "Let through by one case alone, of 6" in said and "small random" in said


def test_what_passes_is_listed_with_its_reason_and_a_hole_is_shouted(drawn):
    by_check, reasons, closed, by_source = drawn.parts[1].table.parts
    assert len(closed.rows) == len(survivors.CLOSED) and all(row[0][2] for row in closed.rows)
    assert [cells[:2] for cells, _ in by_source.rows] == [("online", "11"), ("merge", "11")]
    assert by_check.rows[0][0] == ("periodic", "periodic, N = 64", "12", "66.7%")
    listed = {cells[0]: cells[1:3] for cells, _ in reasons.rows}
    assert listed["The GPU's compiler makes the same of both."] == ("2", "equal")
    shift = next(r for r in survivors.REASONS if r.name == "shift")
    assert listed[shift.why] == ("1", "equal")
    assert listed["No reason is known."] == ("1", "hole")
    assert survivors.DOMAIN in reasons.footer


def test_a_mutant_opens_as_a_diff(drawn):
    changes = drawn.parts[2].table.parts
    assert changes and all(re.search(r"^\+[^+]", c.mutant.diff(), re.M) for c in changes)
    assert "lesson-diff" in drawn._repr_html_()
    html = changes[0]._repr_html_()
    assert html.startswith('<div class="lesson-output" data-mark="computed"><details>')
    assert 'class="removed"' in html
    assert changes[0].text().startswith("Caught by ")


def test_a_source_that_has_changed_is_named_and_not_counted():
    record = made()
    record.sources["online"]["code"] = "0" * 64
    found = mutation_score.outcomes(record)
    assert {o.mutant.name for o in found} == {"ladder/merge"}
    stale = mutation_score.draw(record, found).parts[0]
    assert stale.mark == "stale" and "online" in stale.words


def test_without_a_record_the_page_says_what_makes_one(monkeypatch):
    monkeypatch.setattr(mutation_run, "read", lambda: None)
    assert "make mutants" in mutation_score.mutation_score().text()


def test_names_and_numbers_of_the_grid_are_those_of_the_checks():
    assert mutation_score.names_alone()[-1] == mutation_score.SMALL
    alone = {"a": "0" * len(mutation.ALONE), "b": "1" * len(mutation.ALONE)}
    assert set(mutation_score.let_through(alone).values()) == {1}
    assert replace(made(), alone=alone).alone == alone


def test_the_command_writes_the_record_and_fails_on_a_hole(monkeypatch, tmp_path, capsys):
    found, written = made(), []
    monkeypatch.setattr(mutation_run, "run", lambda workers, say, record: found)
    monkeypatch.setattr(mutation_run, "write", lambda r: written.append(r) or tmp_path / "r.json")
    assert main(["mutants", "--workers", "1"]) == 1 and written == [found]
    said = capsys.readouterr()
    assert "22 mutants of 2 files: 18 rejected, " in said.out and "a hole: --- " in said.err
    verdicts = found.sources["ladder/merge"]["verdicts"]
    hole = next(key for key, verdict in verdicts.items() if verdict.status == SURVIVED)
    verdicts[hole] = Verdict(REJECTED, "periodic", "periodic, N = 64")
    assert main(["mutants"]) == 0 and "a hole" not in capsys.readouterr().err
