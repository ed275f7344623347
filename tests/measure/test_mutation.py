"""Mutation testing: verdicts, the checks that closed a hole, and a sample of all mutants."""

import os
from dataclasses import replace

import numpy as np
import pytest
from lesson.errors import CompileError, EvidenceError, LessonError
from lesson.launch import ladder, paths, rungs
from lesson.machine.emulator import HostBackend
from lesson.machine.emulator.variants import VariantBackend
from lesson.measure import evidence, late_copies, mutation, mutation_run, survivors
from lesson.measure.mutation import NONE, REJECTED, SAME, SURVIVED, Check, Gate, Verdict
from lesson.problem import cases
from lesson.text import mutations, source

LIMIT_S = 60  # of processor time


@pytest.fixture(scope="module")
def gates(emulated):
    """``name -> Gate``, each made once."""
    made = {}

    def gate(name):
        if name not in made:
            made[name] = Gate(name)
        return made[name]

    return gate


def change(name, line, changed):
    """The Mutation of a source that makes ``changed`` of a ``line``."""
    return next(m for m in mutations.mutations(name) if (m.code, m.changed) == (line, changed))


S, WAIT = "s += qTile[row][e] * kTile[lane][e];", "__syncthreads();"


@pytest.mark.parametrize("name, line, changed, status, by", [
    ("online", S, "s += qTile[row][e] * kTile[e][lane];", REJECTED, "address"),
    ("online", S, "s -= qTile[row][e] * kTile[lane][e];", REJECTED, "periodic"),
    ("online", WAIT, "__syncwarp();", REJECTED, "race"),
    ("online", WAIT, "if (threadIdx.x < 32) __syncthreads();", REJECTED, "barrier"),
    ("online", "kTile[i / D][i % D] = k[key0 * D + i];", ";", REJECTED, "undefined value"),
    ("online", "constexpr int BN = 32;", "constexpr int BN = 33;", NONE, ""),
    ("materialised", "constexpr int ROW_WARPS = ROW_THREADS / 32;",
     "constexpr int ROW_WARPS = ROW_THREADS / 31;", SAME, ""),
    pytest.param("online", "float s = 0.0f;", "float s = 1.0f;", SURVIVED, "",
                 marks=pytest.mark.slow),  # every check, three times
])
def test_a_verdict_is_the_same_in_three_runs(gates, name, line, changed, status, by):
    mutant = change(name, line, changed)
    (verdict,) = {gates(name).verdict(mutant) for _ in range(3)}
    assert (verdict.status, verdict.by) == (status, by)
    assert bool(verdict.check) == (status == REJECTED)


# ---- holes that were found on the way --------------------------------------------------------

@pytest.mark.slow  # a source of its own each
@pytest.mark.parametrize("hole", survivors.CLOSED, ids=lambda hole: hole.words)
def test_a_hole_is_closed_by_its_check_and_was_open_without(gates, hole):
    gate, mutant = gates(hole.name), change(hole.name, hole.line, hole.changed)
    text = source.from_text(mutant.text, f"mutant of {hole.name}.cu")
    first, rest = mutation.battery(hole.name)
    (closing,) = [check for check in rest if str(check) == hole.check]
    before = [*first, Check("random", 192, 2, 2)] if closing.splits > 1 else first
    assert gate.rejected(text, closing)
    assert not any(gate.rejected(text, check) for check in before)


def test_copies_that_arrive_late_change_nothing_of_a_right_kernel(one_order):
    for r in (r for r in rungs.RUNGS if r.asynchronous):
        text = late_copies.late(source.read(r.name))
        assert text.count("copyLate(to, from") == text.count("cp.async.c")
        assert text.count("makeCopies();") == text.count("cp.async.wait_all")
    with pytest.raises(LessonError, match="no asynchronous copies"):
        late_copies.late(source.read("online"))


# ---- a variant's program ---------------------------------------------------------------------

def test_a_variant_computes_what_its_source_does(emulated):
    case, text = cases.make("random", 64), source.read("online")
    variant = source.from_text(text.replace("BN = 32;", "BN = 32 ;"), "mutant of online.cu")
    backend = VariantBackend({variant.label: source.load("online")}, orders=("ascending",))
    got = paths.run(backend, "online", case, variant)[0]
    want = paths.run(HostBackend(orders=("ascending",)), "online", case, source.load("online"))[0]
    assert np.array_equal(got, want)
    other = replace(variant, text=text.replace("expf(s - mNew)", "exp2f(s - mNew)"))
    codes = [backend.compile(x)._built.code for x in (variant, other, variant)]
    assert codes[0] == codes[2] != codes[1]  # a call of another name is other code
    for broken in ("BM = 64;", "BM = 1000;"), ("float s = 0.0f;", "float s = ;"):
        with pytest.raises(CompileError):
            backend.compile(replace(variant, text=text.replace(*broken)))


def test_a_variable_without_a_value_is_not_lost_in_a_maximum(emulated):
    text = source.read("materialised").replace("float m = __int_as_float(0xff800000);", "float m;")
    variant, case = source.from_text(text, "mutant of materialised.cu"), cases.make("periodic", 64)
    results = []
    for large in (False, True):
        backend = VariantBackend({variant.label: source.load("materialised")}, large,
                                 orders=("ascending",))
        results.append(paths.run(backend, "materialised", case, variant)[0])
    assert np.isfinite(results[0]).all() and not np.isfinite(results[1]).any()


# ---- the run and its record ------------------------------------------------------------------

NAMES = ("ladder/merge",)


def test_a_run_goes_on_after_an_interruption_and_runs_only_what_is_new(tmp_path, emulated,
                                                                       monkeypatch):
    path, said = tmp_path / "state.jsonl", []

    def stop(what, done, total, left):
        said.append((what, done, total))
        if what == "mutants" and done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mutation_run.run(NAMES, 5, 1, path, stop)
    path.write_text(path.read_text() + '{"key": "cut')  # a line that was not written to its end
    path.write_text(path.read_text() + "\n")
    again = []
    record = mutation_run.run(NAMES, 5, 1, path, lambda *x: again.append(x))
    assert again[-1][:3] == ("mutants", 3, 3)
    assert mutation_run.run(NAMES, 5, 1, path, lambda *x: again.append(x)).sources == \
        record.sources and again[-1][:3] == ("mutants", 3, 3)
    more = mutation_run.run(NAMES, 6, 1, path, lambda *x: again.append(x))
    assert again[-1][2] == 1 and set(record.sources[NAMES[0]]["verdicts"]) < set(
        more.sources[NAMES[0]]["verdicts"])

    file = mutation_run.write(more, tmp_path / "record.json")
    assert mutation_run.read(file) == more and more.stale() == []
    mutation_run.run(NAMES, 6, 1, tmp_path / "none.jsonl", pytest.fail, more)  # all is known
    monkeypatch.setattr(source, "read", lambda name: "// nothing")
    assert more.stale() == list(NAMES)


def test_a_kept_verdict_falls_with_the_check_that_gave_it(monkeypatch):
    check = str(mutation.battery("online")[0][0])
    digest = mutation.digest((mutation.battery("online")[0][0],))
    rejected = {"kind": "verdict", "status": REJECTED, "check": check, "checks": digest}
    survived = {"kind": "verdict", "status": SURVIVED, "checks": mutation_run._digest("online")}
    assert mutation_run.valid("online", rejected) and mutation_run.valid("online", survived)
    more = (mutation.battery("online")[0], (*mutation.battery("online")[1], Check("flat", 64)))
    monkeypatch.setattr(mutation, "battery", lambda name: more)
    assert mutation_run.valid("online", rejected) and not mutation_run.valid("online", survived)
    assert not mutation_run.valid("online", {**rejected, "checks": "another"})
    assert not mutation_run.valid("online", {**rejected, "check": "flat, N = 7"})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "date": ""}'])
def test_what_is_no_record_is_named(tmp_path, text):
    assert mutation_run.read(tmp_path / "none.json") is None
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(EvidenceError, match="bad.json"):
        mutation_run.read(tmp_path / "bad.json")


@pytest.fixture(scope="module")
def record():
    found = mutation_run.read()
    assert found is not None, "no run is recorded: make mutants"
    return found


def by_key(name):
    return {m.key: m for m in mutations.mutations(name)}


def test_the_record_is_of_these_sources_and_checks(record):
    assert record.stale() == [] and set(record.sources) == set(mutation.SOURCES)
    for name, found in record.sources.items():
        assert set(found["verdicts"]) == {m.key for m in mutation.chosen(name)}


def test_there_is_no_hole_and_few_pass(record):
    count, passing, used = 0, 0, set()
    for name, found in record.sources.items():
        known = by_key(name)
        for key, verdict in found["verdicts"].items():
            count += verdict.status != NONE
            passing += verdict.status in (SAME, SURVIVED)
            if verdict.status == SURVIVED:
                why = survivors.reason(known[key])
                assert why, f"a hole: {known[key].diff()}"
                used.add(why.name)
    assert count >= 2500 and passing <= count / 7
    assert used == {r.name for r in survivors.REASONS}, "a reason that no mutant needs"


@pytest.mark.slow  # 25 mutants, and the originals of five sources
def test_a_sample_comes_out_as_recorded(record, gates):
    """Another sample after each change of a kernel; a survivor without a reason fails."""
    start, wrong = sum(os.times()[:4]), []
    for name, mutant in mutation_run.sample():
        found = gates(name).verdict(mutant)
        recorded = record.sources[name]["verdicts"].get(mutant.key, Verdict(""))
        passes = {SAME, SURVIVED}  # NVRTC does not always write the same PTX of one large kernel
        if passes >= {found.status, recorded.status}:
            continue
        if found.status == SURVIVED and survivors.reason(mutant) is None:
            wrong.append(f"passes every check: {mutant.diff()}")
        elif not record.stale() and (found.status, found.by) != (recorded.status, recorded.by):
            wrong.append(f"{found} and not {recorded}: {mutant.diff()}")
    assert not wrong, "\n".join(wrong)
    assert sum(os.times()[:4]) - start < LIMIT_S


def test_another_kernel_brings_another_sample(monkeypatch):
    before = mutation_run.sample(10, 1)
    digests = evidence.digests
    monkeypatch.setattr(evidence, "digests", lambda names: {**digests(names), "online": "0" * 64})
    after = mutation_run.sample(10, 1)
    assert len({m.key for _, m in before} & {m.key for _, m in after}) < 10


def test_more_mutants_of_a_rung_contain_the_fewer_and_its_own_lines_come_first():
    r = rungs.rung(12)
    few, more = ({m.key for m in mutation.chosen(r.name, each)} for each in (20, 40))
    assert len(few) == 20 and few < more
    own = {m.key for m in mutations.own(r.name, rungs.before(r).name)}
    assert more <= own or own <= more


# ---- what is outside the domain --------------------------------------------------------------

def test_what_is_outside_the_domain_differs_on_the_input_that_is_named(emulated):
    """Each reason outside the domain: its input tells the mutant from the original."""
    shown = {r.name for r in survivors.REASONS if r.shows}
    assert shown == set(OUTSIDE)
    for name in shown:
        assert OUTSIDE[name](), name


def _differ(name, line, changed, case):
    """Whether a mutant's output on a case is not that of the original."""
    outputs = []
    with np.errstate(all="ignore"):
        for text in (source.load(name), change(name, line, changed).source):
            backend = HostBackend(orders=("ascending",))
            outputs.append(paths.run(backend, name, case, text)[0])
    return not np.array_equal(*outputs, equal_nan=True)


def _first_tile_of_minus_infinity():
    case = cases.make("random", 64)
    q, k = np.full_like(case.q, 1e20), case.k.copy()
    k[:32] = -1e20
    k[32:] *= 1e-20
    return _differ("online", "m[r] = __int_as_float(0xff800000);", "m[r] = -3e38f;",
                   replace(case, q=q, k=k))


def _scores_that_no_int_holds():
    case = cases.make("random", 64)
    return _differ("materialised", "float m = __int_as_float(0xff800000);",
                   "int m = __int_as_float(0xff800000);", replace(case, q=case.q * 1e10))


def _index_that_no_int_holds():
    return 2**31 - 1 < 2_147_483_648 == (2**31 // paths.BM) * paths.BM


def _tiles_that_8_bits_do_not_count():
    return 16_448 // ladder.HALVES_BN - 1 > 255


OUTSIDE = {"no minus infinity": _first_tile_of_minus_infinity,
           "whole maximum": _scores_that_no_int_holds, "int": _index_that_no_int_holds,
           "many tiles": _tiles_that_8_bits_do_not_count}
