"""Numbers that stand in sentences of the pages: computed again, or compared with the record."""

import inspect
import json
import math
import re

import lesson
import numpy as np
import pytest
from lesson.launch import ladder, paths, rungs, splits
from lesson.machine.emulator import HostBackend
from lesson.machine.gpu import GpuBackend
from lesson.machine.gpus import H200, T4, by_arch
from lesson.measure import bench, evidence
from lesson.problem import cases, gate, traffic
from lesson.problem.problem import of
from lesson.problem.reference import attention
from lesson.show import hopper, way
from lesson.show.headline import headline
from lesson.show.hopper import Tile
from lesson.show.rungs import header
from lesson.text import source
from support import ROOT
from support.kernels import facts, needs_nvrtc

EPS = 2.0**-23


def page(name):
    """The text of a chapter's Markdown cells, or of a Markdown page."""
    (path,) = (ROOT / "book").glob(f"{name}.[im]*")  # a notebook, or Markdown
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    return "\n\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"]
                       if cell["cell_type"] == "markdown")


def says(name, *words):
    """Each of ``words`` stands once on a page."""
    text = page(name)
    for word in words:
        assert text.count(word) == 1, f"{name}: {word!r} stands there {text.count(word)} times"


def of_chapter(name, *firsts):
    """The names that a chapter's code cells define, those cells run that hold one of ``firsts``."""
    text = (ROOT / "book" / f"{name}.ipynb").read_text(encoding="utf-8")
    found = {"lesson": lesson, "np": np}
    for cell in json.loads(text)["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "code" and any(first in text for first in firsts):
            exec(text, found)
    return found


@pytest.fixture(scope="module")
def h200():
    """The recorded run of an H200."""
    return evidence.latest()["H200"]


# --- the gate -------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def fraction():
    return of_chapter("the-tolerance", "def fraction")["fraction"]


def equal_addends(n):
    zeros, v = np.zeros((n, 64), np.float32), np.full((n, 64), 0.1, np.float32)
    return cases.Case("equal addends", of(n), zeros, zeros, v, "")


def test_the_sum_of_equal_addends_leaves_the_gate_as_the_chapter_says(fraction):
    says("the-tolerance", "Beyond N = 4096 this right kernel is outside of the gate.",
         "From N = 1024 on, four times the keys bring twice the fraction",
         "that much can be proven. *Assume* that their signs vary")
    assert fraction(4096) < 1 < fraction(16384)
    for n in (1024, 4096, 16384):
        assert fraction(4 * n) == pytest.approx(2 * fraction(n), rel=0.01)
        for parts in (4, 16):
            assert fraction(4 * n, parts) == pytest.approx(fraction(4 * n) / parts, rel=0.1)
    assert (f"is at {fraction(4096):.2f} of the gate for N = 4096 and outside of it for N = 16384"
            in " ".join(gate.__doc__.split()))


@pytest.mark.slow  # N = 1024, emulated
@pytest.mark.slow  # N above 320
def test_the_kernels_err_as_the_cell_says_and_less_with_their_keys_split(emulated, fraction):
    backend = HostBackend(orders=("ascending",))
    for n in (256, 1024):
        case = equal_addends(n)
        ref = attention(case.q, case.k, case.v).o
        for path in paths.PATHS:
            found = gate.judge(paths.run(backend, path, case)[0], ref, n).fraction
            assert found == pytest.approx(fraction(n), rel=1e-5), (path, n)
    split = {parts: gate.judge(ladder.run(backend, rungs.BEST, case, parts)[0], ref, n).fraction
             for parts in (1, 4)}
    assert split[4] < 0.4 * split[1] and split[1] == pytest.approx(fraction(n), rel=1e-5)


def test_one_constant_stays_in_the_gate_to_the_largest_n_of_the_table():
    says("the-tolerance", "it holds up to about N = 4096, the largest N of the lesson's tables")
    constants = (1 + np.random.default_rng(0).random(20000)).astype(np.float32)
    total = np.zeros_like(constants)
    for _ in range(4096):
        total = total + constants
    off = np.abs(total.astype(float) / 4096 - constants) / (2 * gate.tolerance(4096) * constants)
    assert 0.95 < off.max() < 1.01


def test_the_terms_are_what_the_text_makes_of_them():
    says("the-tolerance", "which is 8 times as much", "Below $10^{-5}$, which is $84 \\epsilon$")
    assert gate.SUM_FACTOR * EPS / (EPS / 2) == 8
    assert round(gate.RTOL_FLOOR / EPS) == 84
    assert gate.SCORE_FACTOR * EPS == 2 * math.sqrt(64) * EPS / 2


def test_the_error_of_a_score_is_measured_as_the_chapter_says():
    errors = of_chapter("the-tolerance", "def score_errors")["score_errors"]
    says("the-tolerance",
         "`ascending`, `descending`, `all-negative` and `very-negative` go beyond it, the last to "
         "1.5",
         "`ascending` reaches 1.7", "by thousands of times as much")
    worst = {}
    for name in cases.NAMES:
        error, size = errors(name)
        worst[name] = error.max() / size.max()
    assert {name for name, found in worst.items() if found > 1} == {
        "ascending", "descending", "all-negative", "very-negative"}
    assert f"{worst['very-negative']:.1f}" == "1.5" == f"{max(worst.values()):.1f}"
    error, size = errors("ascending", 1024)
    assert f"{error.max() / size.max():.1f}" == "1.7"
    error, size = errors("random")
    assert 1000 < (error / size).max() < 10000


def test_weights_vanish_where_the_pages_say():
    says("the-online-kernel", "every score lies near -110",
         "from about -103.97 down (at -100 it is still 3.8e-44)")
    x = np.float32(-103)
    while np.exp(x) > 0:
        x = np.nextafter(x, np.float32(-200))
    assert f"{x:.2f}" == "-103.97" and f"{np.exp(np.float32(-100)):.1e}" == "3.8e-44"
    for n in (256, 4096):
        case = cases.make("all-negative", n)
        scores = case.q.astype(float) @ case.k.T.astype(float) / 8
        assert -111 < scores.min() and scores.max() < -109
    assert "near -110 every exp(score) is 0" in cases.make("all-negative", 64).catches


# --- bytes ----------------------------------------------------------------------------------------

def test_compulsory_bytes_are_no_bound_and_the_record_shows_it(h200):
    says("the-score-matrix", "It is not a lower bound", "hardly left its L2 cache",
         "At N = 4096 it lies between the first and the second",
         "its L2 cache of much less than any formula promised")
    say = of_chapter("the-score-matrix", "for passes in (5, 4, 0)")
    assert [(say["matrices"] + k * 4 * 4096**2) / say["matrices"] for k in (5, 4, 0)] == [81, 65, 1]

    def counted(n, value):
        return {path: sum(value(c) for c in h200.counters
                          if c.n == n and c.kernel in paths.kernels_of(path))
                for path in paths.PATHS}

    def dram(c):
        return c.dram_read_bytes + c.dram_write_bytes

    for n in (256, 1024):
        assert counted(n, dram)["materialised"] < 0.01 * traffic.compulsory(n)["materialised"]
    moved = counted(4096, dram)
    matrices = of(4096).tensor_bytes
    assert matrices + 16 * 4096**2 < moved["materialised"] < matrices + 20 * 4096**2
    assert moved["online"] < 0.01 * moved["materialised"]
    (softmax,) = (c for c in h200.counters if (c.kernel, c.n) == ("softmaxRows", 4096))
    assert softmax.dram_read_bytes < 1.1 * of(4096).score_matrix_bytes  # one of its two reads
    l2 = counted(4096, lambda c: c.l2_bytes)
    requested = paths.requested_by_path(4096)
    assert 1 < l2["materialised"] / l2["online"] < 0.3 * (requested["materialised"]
                                                         / requested["online"])


def test_no_page_takes_the_compulsory_bytes_for_a_bound():
    texts = {name: page(name) for name in ("the-score-matrix", "the-materialised-path",
                                           "the-gated-table", "glossary", "index")}
    texts["README"] = (ROOT / "README.md").read_text(encoding="utf-8")
    texts["limits"] = lesson.limits(4096).text()
    texts["summary"] = lesson.summary(4096).text()
    for name, text in texts.items():
        for wrong in ("must move", "move at least once", "lower bounds on", "explain at most",
                      "cannot avoid"):
            assert wrong not in text.lower(), f"{name}: {wrong}"


def test_limits_shows_what_the_text_reads_from_it(h200):
    says("the-gated-table", "The materialised path's smallest grid has 1,024 blocks at this N",
         "at N = 256 it has 64, which are too few as well",
         "The multiplications and additions of the two products are the same")
    rows = {n: {cells[0]: cells[1:] for cells, _ in lesson.limits(n).rows} for n in (256, 4096)}
    blocks = "blocks of the smallest matmul grid"
    assert rows[4096][blocks] == ("1,024", "64") and rows[256][blocks] == ("64", "4")
    assert 64 < H200.sms < 1024
    assert "measured: bytes of device memory, MiB" in rows[4096]


def test_the_memory_plot_takes_what_the_record_says(h200):
    found = lesson.plot("score matrix").alt
    recorded = h200.versions["memory_bytes"]
    n = math.sqrt(recorded / 4)
    assert f"H200's memory, {recorded / 1e9:.1f} GB recorded at N = {n:,.0f}" in found
    assert "T4's memory, 16 GB at N = 63,246" in found  # none is recorded: the datasheet


# --- CUDA -----------------------------------------------------------------------------------------

def test_two_padded_blocks_are_512_bytes_too_large_for_a_t4():
    says("the-online-kernel", "Two padded ones are 512 bytes too large")
    says("exercises", "in units of 256 bytes, and they need two units too many")
    block = 4 * (64 * 64 + 32 * 65 + 32 * 64)
    taken = -(-block // T4.shared_unit) * T4.shared_unit
    assert 2 * taken - T4.shared_bytes == 512 == 2 * T4.shared_unit
    assert 2 * (block - 4 * 32) == T4.shared_bytes


def test_the_pad_of_the_scores_buys_the_stores():
    says("the-materialised-path", "2 passes a warp in place of 8")
    found = of_chapter("the-materialised-path", "def conflict", "thread = np.arange(32)")
    conflict, x, y = (found[name] for name in ("conflict", "x", "y"))
    assert (conflict(16 * x + y), conflict(17 * x + y)) == (8, 2)
    for e in range(16):  # the inner loop: with the pad and without
        assert conflict(17 * e + x) == conflict(16 * e + x) == conflict(16 * y + e) == 1


def test_a_t4s_shared_memory_as_it_was_measured():
    for name in ("the-gated-table", "references"):
        says(name, "3,662 GB/s", "58 bytes a clock")
    assert round(3662e9 / (T4.sms * 1.59e9)) == 58
    assert f"{T4.flops / (2 * T4.lanes * T4.sms) / 1e9:.2f}" == "1.58"  # the boost clock
    assert T4.shared_clocks == 2 and H200.shared_clocks == 1


def test_the_h200_makes_more_than_one_pass_in_two_clocks(h200):
    """Or the two clocks of a T4 would be nothing special. Rung 2 waits for shared memory."""
    (counted,) = (c for c in h200.bench.counters if c.rung == 2)
    (row,) = (r for r in h200.bench.rows if (r.rung, r.n, r.heads) == (2, counted.n, 1))
    clocks = row.median_ms * 1e-3 * H200.flops / (2 * H200.lanes * H200.sms)
    assert counted.shared_wavefronts / (counted.n / 64) > 0.6 * clocks  # a block an SM


def test_how_times_are_taken(h200):
    says("the-gated-table",
         "After 3 warm-ups there are 5 rounds. A round has at least 10 runs, and up to 200")
    defaults = inspect.signature(GpuBackend.time).parameters
    assert [defaults[name].default for name in ("warmups", "runs", "rounds")] == [3, 10, 5]
    assert min(t.runs for t in h200.times) == 10 and max(t.runs for t in h200.times) == 200
    assert {t.rounds for t in h200.times} == {5}


# --- the ladder -----------------------------------------------------------------------------------

def test_a_t4_is_proven_no_less_than_the_operations_at_its_rate():
    rows = [cells for cells, _ in lesson.ladder("T4").rows]
    assert "boost clock" in lesson.ladder("T4").footer
    for _, n, _, proven, _ in rows:
        assert proven == f"{1e3 * 4 * int(n.replace(',', ''))**2 * 64 / 8.1e12:.3f}"
    says("the-comparison", "alone, a block of rung 21 is slower by 18 %")
    alone, two = rungs.SMALL.together
    assert round(100 * (alone / (two / 2) - 1)) == 18


def test_bytes_in_the_headers_of_the_rungs():
    """What they cost of shared memory, from the launch geometry."""
    for number, words in ((7, "101 KiB"), (6, "64.25 KiB"), (20, "65 KiB a block"),
                          (21, "exactly 48 KiB")):
        r = rungs.rung(number)
        said = " ".join(header(number).parts.values())
        assert words in said
        kib = float(words.split(" KiB")[0].split()[-1])
        assert kib * 1024 == (r.shared or 48 * 1024)
    two = 2 * (rungs.BEST.shared + 1024)
    assert two == 196 * 1024 and "two blocks now take 196 KiB" in header(19).parts["What it buys"]
    pad = rungs.rung(18).shared - rungs.BEST.shared
    assert pad == 4096 and "And 4 KiB" in header(19).parts["What it buys"]
    assert rungs.rung(6).shared > T4.shared_bytes == 64 * 1024
    assert ladder.PART_BYTES == 264 and "264 bytes" in header(10).parts["What it costs"]


def passes(address):
    """Passes through shared memory of 32 lanes that store 16 bytes each, at floats address(lane).

    Eight lanes are served together; a pass takes one word of each of the 32 banks.
    """
    total = 0
    for first in range(0, 32, 8):
        words = {address(lane) + i for lane in range(first, first + 8) for i in range(4)}
        banks = [word % 32 for word in words]
        total += max(banks.count(bank) for bank in set(banks))
    return total


def test_how_many_passes_a_store_of_p_takes():
    """The headers of rungs 15, 16 and 19: lanes meet in pairs, or do not."""
    def row(lane):
        return lane % 2 + lane // 16 * 2

    def col(lane):
        return lane // 2 % 8

    assert passes(lambda lane: row(lane) * 68 + col(lane) * 4) == 8           # rungs 13 and 14
    assert passes(lambda lane: 4 * row(lane) * 68 + col(lane) * 4) == 4       # rung 15
    assert passes(lambda lane: 4 * col(lane) * 36 + 4 * row(lane)) == 8       # rungs 16 to 18
    assert passes(lambda lane: 4 * col(lane) * 32 + (4 * row(lane) ^ col(lane) % 2 * 8)
                  + col(lane) // 2 % 2 * 16) == 4                             # from rung 19 on
    assert "4 passes in place of 8" in header(15).parts["What it buys"]
    assert "8 passes for a store that needs 4" in header(16).parts["What it costs"]
    assert "4 passes, where rungs 16 to 18 need 8" in header(19).parts["What it buys"]


def test_the_cells_of_the_ladder_compute_what_the_headers_say():
    page = of_chapter("the-ladder", "state = 4", "stores, reads", "clocks = 2", "longest = ")
    moved = 2 * page["state"] * page["threads"] * page["of_32"] // 2**20
    assert f"{moved} MiB at N = 4096" in header(2).parts["What it buys"]
    assert f"{page['rows'] * page['keys']} shuffles a warp and tile fall away" in header(5).parts[
        "What it buys"]
    assert (page["stores"], page["reads"]) == (8, 64)  # "for 8 stores and 64 reads of 16 bytes"
    share = (page["clocks"] + 1000) / page["clocks"]  # "one trip .. of about a thousand"
    assert f"{share:.1f} to 1.2 times faster" in header(9).parts["Prediction"]
    assert rungs.rung(10).predicted[0] == (4096, page["tiles"] / page["longest"], 4)


def test_the_cells_of_the_upper_ladder_compute_what_the_headers_say():
    page = of_chapter("the-upper-ladder", "saves = ", "import numpy", "def passes", "place = ",
                      "counting = ", "def shared", "by_memory = ")
    assert page["saves"][12] == 112 and page["saves"][13] == 64 * (82 - 70)
    assert "112 instructions of about 2,200" in header(12).parts["What it buys"]
    assert "82 instructions for 64 multiply-adds and will have about 70" in header(13).parts[
        "Prediction"]
    assert abs(page["base2"] - page["exact"]).max() < 2 * EPS
    row, col, line = (page[name] for name in ("row", "col", "line"))
    stores = [row * line + 4 * col, 4 * row * line + 4 * col, 4 * col * 36 + 4 * row,
              4 * col * 32 + page["place"]]  # rungs 14, 15, 16 to 18, 19; counted below as well
    assert [page["passes"](address) for address in stores] == [8, 4, 8, 4]
    assert min(page["passes"](4 * col * (32 + pad) + 4 * row) for pad in range(0, 64, 4)) == 8
    steps = {4: "560", 16: "2,200"}  # header 17's, rounded
    assert all(abs(2 * n * 68 - int(said.replace(",", ""))) < 30 and said in header(17).parts[
        "What it costs"] for n, said in steps.items())
    assert (page["shared"](page["rows"]), page["shared"](page["snake"])) == (56, 63)
    assert "one product in eight without a shared operand" in header(18).parts["Prediction"]
    assert page["tiles"] == rungs.WARPS.shared and page["registers"] == rungs.WARPS.registers
    assert page["by_registers"] == page["by_memory"] == 3


def test_the_rate_of_the_three_calls_is_estimated_as_the_text_says(h200):
    says("the-comparison", "At large N the passes add two thirds to the products' time")
    page = of_chapter("the-comparison", "operations = 4", "bandwidth = ")
    assert page["bandwidth"] == H200.bytes_per_s
    assert page["passes"] / page["products"] == pytest.approx(2 / 3, abs=0.02)
    slower = [row.median_ms for row in h200.bench.rows
              if row.what.startswith("PyTorch: matmul") and (row.n, row.heads) == (16384, 1)]
    assert [1e3 * (page["products"] + page["passes"]) < ms for ms in slower] == [True]


@needs_nvrtc
def test_registers_in_the_headers_of_the_rungs():
    said = header(2).parts["What it costs"]
    for arch, gpu in (("sm_90", "on an H200"), ("sm_75", "on a T4")):
        registers = int(re.search(rf"(\d+) {gpu}", said)[1])
        online = facts("online", arch)["attentionOnline"]
        assert abs(online.registers - registers) <= 8  # by NVRTC's version
        assert facts("ladder/02_registers", arch)["attentionOnline"].registers > 200
    assert facts("ladder/20_warps", "sm_90")["attentionOnline"].registers < 168


def test_counts_in_the_headers_of_the_rungs(h200):
    """A record of the rungs as they are; another one says nothing about these headers."""
    assert not h200.stale(evidence.LADDER)
    counted = {c.rung: c for c in h200.bench.counters}
    n = 4096
    scores = n * n / 32  # of a warp's lanes
    saved = (counted[10].instructions - counted[11].instructions) / scores
    assert abs(saved - 8) < 0.5 and "about 8 instructions" in header(11).parts["What it buys"]
    tiles = (n // 32) * (n // 64)  # of a warp
    saved = (counted[11].instructions - counted[12].instructions) / tiles
    assert abs(saved - (8 * (3 + 3) + 64)) < 10
    others = counted[11].instructions / tiles - 2 * 64 * 64
    assert "112 instructions of about 2,200" in header(12).parts["What it buys"]
    assert abs(others - 2200) < 150
    more = (counted[15].shared_wavefronts - counted[14].shared_wavefronts) / tiles
    stores = 16 * (8 - 4)  # of P, that met in pairs before
    assert abs(more + stores - 150) < 20 and "about 150 passes more" in header(15).parts[
        "What it costs"]
    assert "as at N = 256" in header(17).parts["What it costs"]
    small = {row.rung: row.median_ms for row in h200.bench.rows if (row.n, row.heads) == (256, 1)}
    assert small[17] > 1.02 * small[16]


def test_the_merge_in_float32():
    rows = {cells[0]: cells[1:] for cells, _ in lesson.ladder("merge").rows}
    assert rows["commutative"][0].startswith("0 of ")
    differ, worst = rows["commutative, contracted as in merge.cu"]
    assert int(differ.split(" of ")[0].replace(",", "")) > 1000 and float(worst) == 1.0
    says("the-merge", "The compiled `merge.cu` does not stay commutative.",
         "The last bit can differ.")


def test_what_the_triangles_of_the_roofline_stand_for(h200):
    says("the-comparison", "Where such a triangle lies says what the cache still had",
         "The materialised path's lies near the edge of the roof and far below it")
    held = of(4096).tensor_bytes
    assert all(c.dram_bytes < held for c in h200.bench.counters)
    assert "4 MiB. Device memory moved" in lesson.plot("roofline").text()
    moved = sum(c.dram_read_bytes + c.dram_write_bytes for c in h200.counters
                if c.n == 4096 and c.kernel in paths.kernels_of("materialised"))
    intensity, edge = of(4096).operations / moved, H200.flops / H200.bytes_per_s
    assert 0.7 < intensity / edge < 1.4
    (time,) = (t for t in h200.times if (t.what, t.n) == ("materialised", 4096))
    reached = of(4096).operations / (1e-3 * time.median_ms)
    assert reached < 0.2 * min(H200.flops, intensity * H200.bytes_per_s)


def test_which_score_matrices_a_gpu_could_hold(h200):
    says("the-merge",
         "At N = 32768 one score matrix has 4 GiB and at 131072 it has 64 GiB: an H200 could hold "
         "them, a T4 only the first. At 1048576 it has 4 TiB, which no GPU holds.")
    sizes = [of(n).score_matrix_bytes for n in (32768, 131072, 1048576)]
    assert [size / 2**30 for size in sizes] == [4, 64, 4096]
    assert sizes[1] < h200.versions["memory_bytes"] < sizes[2]
    assert sizes[0] < T4.memory_bytes < sizes[1]


def test_only_one_input_rescales_at_every_tile():
    says("the-online-maximum",
         "on thirteen inputs. One of them, `ascending`, rescales at every tile.")
    assert len(cases.NAMES) == 13

    def everywhere(name):
        case = cases.make(name, 256)
        scores = case.q.astype(float) @ case.k.T.astype(float)
        tops = np.maximum.accumulate(scores.reshape(256, -1, cases.BN).max(axis=2), axis=1)
        return (np.diff(tops, axis=1) > 0).all()

    assert [name for name in cases.NAMES if everywhere(name)] == ["ascending"]


def test_how_often_a_maximum_rises():
    says("the-online-maximum", "About three.", "less than one more rise")
    rises = of_chapter("the-online-maximum", "rises = ")["rises"]
    expected = sum(1 / t for t in range(2, 33))
    assert rises.shape == (1024, 31) and rises.sum(axis=1).mean() == pytest.approx(3, abs=0.2)
    assert rises.sum(axis=1).mean() == pytest.approx(expected, abs=0.2)
    assert 0.5 < sum(1 / t for t in range(33, 65)) < 1


# --- the hook -------------------------------------------------------------------------------------

def test_the_lesson_begins_with_the_matrix_that_it_does_without():
    says("the-score-matrix",
         "At 131,072 tokens the score matrix of one attention head takes 64 GiB")
    assert of(131072).score_matrix_bytes == 64 * 2**30
    assert of_chapter("the-score-matrix", "n = 131072")["n"] == 131072


def test_the_requested_bytes_of_the_chapter_are_the_kernel_s():
    says("the-score-matrix", "almost sixteen times the bytes")
    asked = [paths.requested_by_path(n)["online"] for n in (1024, 4096)]
    assert [(8 * n * 64 + 8 * n * 64 * (n // 64)) for n in (1024, 4096)] == asked
    assert 15 < asked[1] / asked[0] < 16


# --- wrong maxima ---------------------------------------------------------------------------------

NEW = ("very-negative", "peaks")  # what the lesson did not have for a long time


def another_row(s):
    return np.roll(s.max(axis=1, keepdims=True), 1, axis=0)


def test_only_the_new_inputs_see_these_maxima():
    """In NumPy, as the chapter does it; the real kernels are among the mutants."""
    says("the-gated-table", "For a long time this lesson had eleven inputs",
         "Each of the two new inputs is the only one to catch its mistakes.")
    page = of_chapter("the-gated-table", "def in_float64", "def gate_fraction", "def with_maximum",
                      "maxima = {")
    fails, maxima = page["with_maximum"], page["maxima"]
    assert len(cases.NAMES) - len(NEW) == 11

    def caught(maximum, n=320):
        return [name for name in cases.NAMES if not fails(maximum, cases.make(name, n)) <= 1]

    def floored(s):
        return np.maximum(s.max(axis=1, keepdims=True), np.float32(-10_000))

    for maximum in (maxima["one key in 32"], maxima["first 256 keys"], another_row):
        assert caught(maximum) == ["peaks"]
    for maximum in (maxima["floor at -100"], floored):
        assert caught(maximum) == ["very-negative"]
    assert caught(maxima["first 256 keys"], 256) == []  # softmaxRows' block has 256 threads
    assert caught(lambda s: s.max(axis=1, keepdims=True)) == []


def test_the_comparison_on_the_page_is_the_gate():
    page = of_chapter("the-gated-table", "def in_float64", "def gate_fraction")
    for name in ("periodic", "large"):
        run = lesson.output("online", name)
        ref = attention(run.case.q, run.case.k, run.case.v)
        found = gate.judge(run.o, ref.o, run.case.problem, ref.max_abs_score).fraction
        assert page["gate_fraction"](run.o, run.case) == pytest.approx(found, rel=1e-6)


def test_how_often_periodic_rescales_in_the_last_tile():
    says("the-gated-table",
         "at N = 4096 28 % of the rows are rescaled in the last tile, at N = 320 29 %")
    rows = {n: lesson.cases(n, ("periodic",)).rows[0][0] for n in (320, 4096)}
    assert (rows[320][3], rows[4096][3]) == ("29%", "28%")


def test_the_times_are_the_surprise_that_the_chapter_tells(h200):
    says("the-gated-table", "and the online path is far behind", "The online path falls less far "
         "behind as N grows")
    ms = {(t.what, t.n): t.median_ms for t in h200.times}
    ratios = [ms["materialised", n] / ms["online", n] for n in (256, 1024, 4096)]
    assert ratios == sorted(ratios) and ratios[0] < 0.25 and ratios[-1] < 1


def test_what_the_first_page_says_of_its_table(h200):
    says("index", "Fewer bytes did not mean less time.",
         "Compare the first two rows with each other, and then the third with PyTorch")
    rows = [(cells[0], float(cells[1])) for cells, _ in headline().parts[0].rows]
    (_, materialised), (_, online), (third, ours), (fourth, hopper), *torch = rows
    assert ours < materialised < online and third.startswith("the end of the ladder")
    says("index", "the fourth needs a Hopper GPU")
    assert hopper < ours and "for a Hopper GPU: rung 31" in fourth
    assert len(torch) == 3 and all("PyTorch" in what and ours < ms for what, ms in torch)


# --- tensor cores ---------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def narrow():
    """What the cells of the chapter on tensor cores define."""
    return of_chapter("tensor-cores", "import numpy", "def product", "def fraction",
                      "def first_bits", "def scaled", "def cut", "kept, fresh", "off = ",
                      "eps, split")


def test_three_narrow_products_pass_where_one_and_two_fail(narrow):
    says("tensor-cores", "BF16 has too few for two of them", "Does the fourth pay? Hardly.")
    fraction, product = narrow["fraction"], narrow["product"]
    tf32, bf16 = (narrow["first_bits"](mask) for mask in (0xFFFFE000, 0xFFFF0000))
    assert 10 < fraction(product(2)) < fraction(product(1))
    three, four = fraction(product(3)), fraction(product(4))
    assert three < 0.1 and three - four < 0.02
    assert fraction(product(3, tf32)) < 0.1 < 10 < fraction(product(2, tf32))
    assert fraction(product(3, bf16)) > 1
    x = np.float32(1.2345678)
    assert tf32(x) == np.floor(float(x) * 2**10) / 2**10


def test_powers_of_two_bring_numbers_into_range(narrow):
    case, fraction = narrow["case"], narrow["fraction"]

    def moved(times, e):
        with np.errstate(all="ignore"):
            return fraction(times, case.q * np.float32(2.0**e), case.k * np.float32(2.0**-e))

    assert not moved(narrow["product"](3), 16) <= 1
    assert moved(narrow["scaled"], 100) == moved(narrow["scaled"], 0) < 0.1


def test_a_sum_that_stays_in_the_tensor_core_takes_more_and_more_of_the_gate(narrow):
    says("tensor-cores", "its share of the gate grows with $N$")
    _, exact = narrow["steps_of"](16384)
    share = {name: np.abs(narrow[name] / exact - 1).max() / narrow["gate"]
             for name in ("kept", "fresh")}
    assert share["kept"] > 0.4 and share["fresh"] < 0.03
    assert narrow["cut"](1 + 2.0**-23 - 2.0**-40) == 1 == narrow["cut"](1 + 2.0**-24)
    assert narrow["cut"](-1 - 2.0**-24) == -1


def test_the_budget_is_as_the_table_says(narrow):
    q, k = narrow["q"], narrow["k"]
    most = (narrow["off"] / (np.abs(q) @ np.abs(k.T))).max() * 2.0**22
    assert 0.1 < most < 1  # "how little of the 3 comes true"
    says("tensor-cores", "more than twice the gate's $8\\, eps$")
    assert narrow["split"] + narrow["sums"] > 2 * 8 * EPS
    assert (narrow["split"] + narrow["sums"]) / 1e-5 < 0.25


def test_rung_25_came_out_ahead_of_its_prediction_for_the_reason_given(h200):
    says("past-float32", "an H200 loses far less than half",
         "came out ahead of its prediction")
    half, full = ({rate.rung: rate.tflops for rate in h200.tensor.rates}[r] for r in (25, 24))
    assert 0.75 < half / full < 1
    (ms,) = (row.median_ms for row in h200.tensor.rows
             if (row.rung, row.heads, row.n) == (25, 1, 16384))
    assert ms < 0.8 * dict(rungs.rung(25).expected)[16384]


def test_what_is_said_of_a_t4_s_tensor_cores():
    says("past-float32", "by its datasheet eight times the rate")
    assert T4.tensor_flops / T4.flops == pytest.approx(8, abs=0.1)


# --- a Hopper GPU --------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def on_tensor_cores(h200):
    """{(heads, N): {what: ms}} of the comparison on tensor cores; a rung under its number."""
    found = {}
    for row in (*h200.tensor.rows, *h200.tensor.failing):
        found.setdefault((row.heads, row.n), {})[row.rung or row.what] = row.median_ms
    return found


def test_what_mma_reaches_alone(h200):
    """Of the datasheet's rate; header 26 rounds it."""
    alone = {rate.rung: 1e12 * rate.tflops for rate in h200.tensor.rates}[24]
    assert 0.55 < alone / H200.tensor_flops < 0.65
    assert "six tenths of the datasheet's rate" in header(26).parts["What it buys"]
    says("hopper", "And rung 24 does not even reach that", "left tensor cores idle for much of the "
         "time")
    assert {c.rung: c.tensor for c in h200.tensor.counters}[24] < 0.75


def test_rung_29_gained_less_than_predicted_for_the_reason_given(h200, on_tensor_cores):
    says("hopper", "Less than predicted.", "the weights take longer there than in rung 28")
    assert on_tensor_cores[1, 16384][29] > 1.05 * dict(rungs.rung(29).expected)[16384]
    assert "three quarters" in header(29).parts["Prediction"]
    tiles = {r.number: Tile.of(r, c) for r, c in hopper.counted(h200).items()}
    own = {r.number: tiles[r.number].own(awaited) for r, awaited in hopper.AWAITED.items()}
    assert tiles[29].busy < 0.73 and own[29] > 1.03 * own[28]
    at_work = {number: own[number] / tiles[number].clocks for number in own}
    assert at_work[29] > 1.1 * at_work[28]  # "at once for more of the time"


def test_the_cell_on_the_lengths_is_what_the_picture_is_drawn_with(h200):
    page = of_chapter("hopper", "import H200", "which = 29")
    r = rungs.rung(page["which"])
    assert page["clocks"] == pytest.approx(Tile.of(r, hopper.counted(h200)[r]).clocks)


def test_what_float32_accuracy_costs_beside_fp16(on_tensor_cores):
    says("hopper", "for one head it is hardly ahead", "takes about half the time of rung 31",
         "a factor of about two there, not three")
    for n in (4096, 16384):
        ours, half = (on_tensor_cores[1, n][what] for what in (31, "FlashAttention-2, FP16"))
        assert 1 <= ours / half < 1.25
    longest = on_tensor_cores[1, 16384]
    assert longest[31] / longest["cuDNN, FP16"] == pytest.approx(2, abs=0.3)
    for name in ("hopper", "references"):
        assert "https://arxiv.org/abs/2407.08608" in page(name)


def test_what_the_last_rung_must_reach(h200, on_tensor_cores):
    """Of the SGEMM rate, of PyTorch in float32, and of the best rung on float32 units."""
    assert not h200.stale(evidence.TENSOR)
    rate = {(row.heads, row.n): bench.share(row, h200.tensor.ceiling) for row in h200.tensor.rows
            if row.rung == 31}
    assert rate[1, 4096] >= 3.0 and rate[1, 16384] >= 4.3 and rate[16, 4096] >= 3.8
    for size, least in (((1, 4096), 6), ((16, 4096), 5.5)):
        times = on_tensor_cores[size]
        torch = min(ms for what, ms in times.items() if str(what).startswith("PyTorch"))
        assert torch / times[31] >= least
    small = on_tensor_cores[1, 1024]
    assert min(small[r.number] for r in rungs.FINAL) / small[31] >= 1.5


def test_the_answers_on_a_hopper_gpu():
    found = splits.choose(1024, among=rungs.FASTEST)
    assert (found.rung.number, found.split.splits) == (31, 8)
    says("hopper", "There are 8 query tiles for 132 SMs, so 16 parts would give nearly every SM",
         "The estimate takes 8 parts of two tiles.", "lies in 32 registers of each thread")
    assert 1024 // found.rung.bm == 8 and 1024 // found.rung.bn // 8 == 2
    steps = source.constants("ladder/31_chained")["STEPS"]
    assert 2 * steps * 4 == 32  # words of pHi and pLo
    for arch, gpu in by_arch().items():
        picked = splits.choose(16384, gpu, sms=100, among=rungs.FASTEST).rung
        assert (picked.number == 31) == (arch == "sm_90")


def test_what_the_whole_way_shows(on_tensor_cores, h200):
    says("the-comparison", "No rung on float32 units passes the line; each rung of three narrow "
         "products does.", "the lines of code grow more than sixfold",
         "run on one compute capability alone")
    ladder_, calls, outside = way.steps(h200)
    assert all((s.share > 1) == (s.rung not in rungs.RUNGS) for s in ladder_)
    assert all(s.share < 0.5 for s in calls) and all(s.row.fraction > 1 for s in outside)
    lines = [way.lines(s.rung, s.row.splits) for s in ladder_]
    assert 6 < lines[-1] / lines[0] < 7
    assert {way.capabilities(r) for r in rungs.HOPPER} == {"9.0"}


# --- sources --------------------------------------------------------------------------------------

def test_sources_have_their_links():
    flash_decoding = "https://crfm.stanford.edu/2023/10/12/flashdecoding.html"
    for name in ("the-online-maximum", "the-merge", "references"):
        says(name, flash_decoding)
    for name in ("the-merge", "references"):
        assert "https://arxiv.org/abs/2603.05451" in page(name)
    for name in ("tensor-cores", "references"):
        assert "https://arxiv.org/abs/2203.03341" in page(name)
    says("references", "Ted Zadouri, Markus Hoehnerbach, Jay Shah, Timmy Liu, Vijay Thakkar and ")
    says("record-your-gpu", "it guarantees none")
