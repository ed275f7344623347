"""Edited kernels beside the files."""

import re
import time

import lesson
import pytest
from lesson.errors import LessonError
from lesson.machine import backend, emulator, nvrtc
from lesson.machine.timing import Timing
from lesson.problem import cases
from lesson.text import source
from lesson.text.edits import current, replace
from support.emulated import spent_s
from support.kernels import edit

pytestmark = pytest.mark.usefixtures("no_gpu")


def rows_of(table):
    return {cells[0]: dict(zip(table.columns, cells, strict=True)) for cells, _ in table.rows}


def test_compare_shows_a_failure_and_its_cost(emulated):
    edit("online/update", "float a0 = o0[r] * rescale, a1 = o1[r] * rescale;",
         "float a0 = o0[r], a1 = o1[r] * (rescale * 1.1);")
    gates, costs, *warnings = lesson.compare(64).parts
    found = rows_of(gates)
    assert list(found) == list(cases.NAMES)
    late = found["spike-late"]
    assert late["verdict"] == "fail"
    wrong = re.fullmatch(r"query row 0, column 0: yours (\S+), expected (\S+)",
                         late["first wrong element"])
    assert float(wrong[1]) != float(wrong[2])
    assert late["the case catches"] == cases.make("spike-late", 64).catches
    assert "edited: online/update" in gates.note and gates.mark == "emulated"
    assert gates.footer == "every case: outside the gate"
    cost = rows_of(costs)
    assert cost["attentionOnline: bytes its loads ask for, N = 64"]["edited"] == "49,152"
    if nvrtc.available()[0]:
        assert {"registers a thread", "shared bytes a block", "local bytes a thread",
                "occupancy, T4"} <= {what.removeprefix("attentionOnline: ") for what in cost}
    assert not [what for what in cost if "time" in what]  # emulated: never a time
    warning, = warnings
    assert "cell online/update, line 7 computes in double" in warning and "0.5f" in warning


def test_compare_with_a_race_an_overrun_and_nothing(emulated):
    assert "Nothing is edited" in repr(lesson.compare())
    edit("online/update", "        __syncthreads();", "        ")
    gates, costs, *_ = lesson.compare(128).parts
    assert {row["fraction, edited"] for row in rows_of(gates).values()} == {"race"}
    assert "every case: attentionOnline has a race on" in gates.footer
    assert "written by" in gates.footer and "read by" in gates.footer
    replace("online/update", source.snippets("online")["update"])
    edit("online/load", "k[key0 * D + i]", "k[key0 * D + i + 99999]")
    with pytest.raises(LessonError, match="reads k\\[99999\\], past its end"):
        lesson.compare(64)
    replace("online/load", source.snippets("online")["load"])
    edit("materialised/values", "weightedV(", "weightedW(")
    with pytest.raises(LessonError, match="no kernel 'weightedV'; it defines: .*weightedW"):
        lesson.compare(64)


def test_compare_says_what_it_leaves_out(emulated):
    name = next((n for n in source.names() if n.startswith("ladder/")), None)
    if name is None:
        pytest.skip("there is no ladder")
    replace(name, source.read(name) + "// mine\n")
    assert repr(lesson.compare()).startswith(f"{name}: edited, but compare() runs")
    edit("online/score", "s *= scale;", "s = s * scale;")
    said, gates, *_ = lesson.compare(64).parts
    assert said.startswith(f"{name}: edited") and gates.footer == "all cases passed their gates"
    assert len(gates.columns) == 4  # nothing is wrong: nothing to explain


class Pretend(emulator.HostBackend):
    """A live backend for a test: the emulator's results, and a clock that counts its uses."""

    mark = "live"
    timed = 0

    def time(self, enqueue, what, spoil):
        self.timed += 1
        enqueue.__self__.run()  # an emulated program has no launch that does not wait
        return Timing((float(self.timed),), 1, 0)


def test_compare_times_both_on_a_gpu_and_never_a_wrong_kernel(emulated, monkeypatch):
    pretend = Pretend()
    monkeypatch.setattr(backend, "choose", lambda kind=None: pretend)
    edit("online/score", "s *= scale;", "s = s * scale;")
    gates, costs = lesson.compare(64).parts
    row = rows_of(costs)["time, ms (min–max), N = 64"]
    assert gates.mark == "live" and pretend.timed == 2
    assert row["file"].startswith("1.0000 ") and row["edited"].startswith("2.0000 ")
    assert ("live" in {mark for cells, mark in costs.rows if "time" in cells[0]})
    edit("online/update", "l[r] * rescale + warpSum(w)", "l[r] + warpSum(w)")
    _, costs = lesson.compare(64).parts
    assert rows_of(costs)["time, ms (min–max), N = 64"]["edited"] == "no time: a gate failed"
    assert pretend.timed == 3  # the file's alone


def test_compare_on_a_gpu_tells_of_a_race_that_the_emulator_sees(emulated, monkeypatch):
    pretend = Pretend()
    monkeypatch.setattr(backend, "choose", lambda kind=None: pretend)
    edit("online/update", "        __syncthreads();", "        ")
    whole = current("online").text
    # What the GPU runs passes its gates here: only the counting run beside it sees the race.
    monkeypatch.setattr(Pretend, "compile", lambda self, text: emulator.HostBackend.compile(
        self, source.load("online") if text.text == whole else text))
    gates, costs = lesson.compare(128).parts
    assert gates.footer == "all cases passed their gates"
    assert costs.footer.startswith("Emulated beside it: attentionOnline has a race on")


def test_compare_is_ready_in_ten_seconds(emulated):
    """All cases at N = 256. In seconds of processor, since other tests may run: 20 on 2 cores."""
    edit("online/score", "s *= scale;", "s = s * scale;")
    before = spent_s()
    lesson.compare(256)
    assert spent_s() - before < 20


def test_compare_is_ready_in_two_seconds_on_a_gpu(monkeypatch):
    """All cases at N = 256 and both times, after the first compilation."""
    found = backend.probe()
    if not found.gpu:
        pytest.skip(f"no GPU here: {found.reason}")
    monkeypatch.undo()  # the GPU is what is looked at here
    edit("online/score", "s *= scale;", "s = s * scale;")
    lesson.compare(256)
    lesson.reset()
    edit("online/score", "s *= scale;", "s = scale * s;")
    start = time.perf_counter()
    gates, costs = lesson.compare(256).parts
    assert time.perf_counter() - start < 2
    assert gates.mark == "live" and gates.footer == "all cases passed their gates"
    assert "time, ms (min–max), N = 256" in rows_of(costs)


def test_recorded_results_do_not_pass_for_an_edited_kernels(monkeypatch):
    edit("online/score", "s *= scale;", "s = s * scale;")
    # What is folded is a table too.
    parts = [getattr(p, "table", p) for p in lesson.table(256).parts if not isinstance(p, str)]
    recorded = [cells for t in parts for cells, mark in t.rows if mark == "recorded"]
    assert recorded and all("unedited kernels" in " ".join(cells) for cells in recorded)
    assert all("edited: online/score" in t.note for t in parts if "Gated" in t.title)
    assert "unedited kernels" in lesson.count_bytes(256).note
    monkeypatch.setattr(nvrtc, "available", lambda: (False, "no NVRTC here"))
    assert not lesson.facts("sm_75").rows
    lesson.reset()
    assert lesson.facts("sm_75").mark == "recorded"
