"""Pictures say what they are drawn from: constants of kernels, datasheets, records and runs."""

import re
from dataclasses import replace

import lesson
import numpy as np
import pytest
from lesson.launch import paths, rungs
from lesson.machine import gpus
from lesson.machine.gpus import H200, T4
from lesson.measure import evidence, records
from lesson.problem import cases, traffic
from lesson.problem.problem import D, of
from lesson.show import pictures
from lesson.show.plots import PICTURES
from lesson.text import source
from support.pictures import boxes, images, outside, words


@pytest.fixture(scope="module")
def drawn():
    """drawn(name): the picture, drawn once."""
    kept = {}
    return lambda name: kept.setdefault(name, lesson.plot(name))


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_has_words_and_keeps_within_its_frame(drawn, name):
    for image in images(drawn(name)):
        assert image.get("role") == "img" and len(image.get("aria-label")) > 60
        assert outside(image) == []
        assert all(float(t.get("font-size", 12)) >= 11 for t in image.iter("text"))


def counters(n, l2, dram):
    """Counters of both paths that come to these bytes."""
    return [records.Counters(kernel, of(n), dram[path] // len(paths.kernels_of(path)), 0,
                             l2[path] // len(paths.kernels_of(path)))
            for path in paths.PATHS for kernel in paths.kernels_of(path)]


def test_memory_levels_are_those_of_the_datasheets_and_bars_of_what_was_counted(record, tmp_path):
    l2 = {"materialised": 900 << 20, "online": 300 << 20}
    dram = {"materialised": 600 << 20, "online": 3 << 20}
    evidence.write(replace(record, counters=counters(4096, l2, dram)), tmp_path / "sample.json")
    first, second = lesson.plot("memory levels").parts
    assert (first.mark, second.mark) == ("recorded", "computed")
    assert "H200 Sample, 2026-11-29" in first.note and "no T4 was recorded" in second.note
    for picture, gpu in ((first, H200), (second, T4)):
        said = words(picture)
        for size in (f"registers {4 * gpu.registers >> 10} KiB",
                     f"shared memory {gpu.shared_bytes >> 10} KiB", f"L2 {gpu.l2_bytes >> 20} MiB",
                     f"device memory {gpu.memory_bytes / 1e9:g} GB", f"{gpu.sms} SMs, each with its"
                     " own", "a matrix of 64 MiB does not fit"):
            assert size in said
    for picture, of_l2, of_memory in ((first, l2, dram), (
            second, paths.requested_by_path(4096), traffic.compulsory(4096))):
        found = [box for name, box in boxes(picture).items() if ", " in name]
        wanted = [of_l2[path] for path in paths.PATHS] + [of_memory[path] for path in paths.PATHS]
        assert [box["width"] for box in found] == pytest.approx(
            [150 * x / max(wanted) for x in wanted], abs=0.01)
        assert f"{wanted[0] / (1 << 20):,.0f}" in words(picture)


def test_a_matrix_that_fits_is_said_to_fit():
    said = words(pictures.memory_levels(1024))
    assert said.count("a matrix of 4 MiB fits") == len(gpus.products())


def test_threads_are_those_of_the_kernel(drawn):
    c, found = source.constants("online"), boxes(drawn("threads"))
    assert (c["BM"], c["THREADS"]) == (paths.BM, paths.THREADS) and c["D"] == D
    assert len([x for x in found if x.startswith("block ")]) == 256 // paths.BM
    assert len([x for x in found if x.startswith("warp ")]) == c["WARPS"]
    lane = pictures.LANE
    assert {x for x in found if x.startswith("score ")} == {f"score {lane}"}
    assert found[f"score {lane}"]["width"] == pytest.approx(288 / c["BN"], abs=0.01)
    said = words(drawn("threads"))
    assert "warp 2: rows 80–87" in said and "block 3" in said and "rows 192–255" in said
    assert f"{c['BN']} keys: lane j scores key j, lane {lane} key {lane}" in said


def test_the_output_columns_are_those_that_the_kernel_writes(drawn, one_order):
    """Each thread writes its lane and its warp in place of the answer."""
    text = source.load("online").text
    for which in ("0", "1"):
        text = text.replace(f"o{which}[r] / l[r]", "threadIdx.x")
    program = one_order.compile(source.from_text(text, "who.cu"))
    case = cases.make("flat", 128)
    plan = paths.online(program, *(one_order.put(x) for x in (case.q, case.k, case.v)))
    lanes, warps = plan.run() % 32, plan.output // 32
    own = sorted(set(np.argwhere(lanes == pictures.LANE)[:, 1]))
    found = boxes(drawn("threads"))
    assert [f"output {x}" for x in own] == [x for x in found if x.startswith("output ")]
    rows = np.argwhere(warps == pictures.WARP)[:, 0]
    of_block = sorted(set(rows[rows >= paths.BM]))  # the second block is the one that is drawn
    assert f"warp {pictures.WARP}: rows {of_block[0]}–{of_block[-1]}" in words(drawn("threads"))


def test_the_key_of_a_lane_is_the_one_that_the_kernel_weighs(drawn, one_order):
    """Only one lane's weight counts: the answer is the mean of the values of its keys."""
    text = source.load("online").text
    weight = "const float w = expf(s - mNew);"
    assert text.count(weight) == 1
    text = text.replace(weight, f"const float w = lane == {pictures.LANE};")
    program = one_order.compile(source.from_text(text, "whose.cu"))
    case = cases.make("flat", 128)
    plan = paths.online(program, *(one_order.put(x) for x in (case.q, case.k, case.v)))
    (key,) = [int(x.removeprefix("score ")) for x in boxes(drawn("threads")) if "score" in x]
    assert plan.run() == pytest.approx(
        np.tile(case.v[key::cases.BN].mean(axis=0), (128, 1)), abs=1e-5)


def test_a_tile_s_numbers_are_the_trace_s(drawn):
    for panel, tile in zip(drawn("one tile").parts[0].panels, (2, 8)):
        picture = pictures.Picture([panel], "", "computed")
        case = cases.make("spike-late", 256)
        s = case.q[0].astype(float) @ case.k.T.astype(float) / 8
        before, after = s[: 32 * (tile - 1)], s[: 32 * tile]
        r = np.exp(before.max() - after.max())
        w = np.exp(after - after.max())
        l = [np.exp(before - before.max()).sum(), w[: len(before)].sum(), w[len(before):].sum(),
             w.sum()]
        o = [np.exp(before - before.max()) @ case.v[: len(before), 0],
             w[: len(before)] @ case.v[: len(before), 0],
             w[len(before):] @ case.v[len(before): len(after), 0], w @ case.v[: len(after), 0]]
        found, said = boxes(picture), words(picture)
        for name, values in (("l", l), ("o", o)):
            for i, value in enumerate(values):
                assert found[f"{name} {i}"]["width"] == pytest.approx(
                    54 * abs(value) / max(map(abs, values)), abs=0.02)
        assert f"m {before.max():.4g}" in said
        assert f"m' = max(m, largest) = {after.max():.4g}" in said
        assert f"r = exp(m − m') = {r:.3g}:" in said
        heights = np.array([found[f"score {j}"]["height"] for j in range(32)])
        tile_scores = np.abs(s[32 * (tile - 1): 32 * tile])
        scale = heights.max() / tile_scores.max()
        assert heights == pytest.approx(np.maximum(scale * tile_scores, 0.5), abs=0.05)


def test_all_tiles_stand_in_a_table_below_the_two(drawn):
    folded = drawn("one tile").parts[1]
    assert folded.table.text() == lesson.trace("spike-late").text()


def test_a_thread_s_scores_are_where_the_kernel_has_them(drawn):
    r = rungs.rung(7)
    text, c = source.read(r.name), source.constants(r.name)
    (down,), (across,) = (re.findall(rf"int {name}\(int \w\) {{ return (\d+) \* \w; }}", text)
                          for name in ("rowOf", "colOf"))
    place = re.search(r"threadRow = (.+?), threadCol = (.+?);", text).groups()
    row, col = (eval(x.replace("/", "//"), {"lane": 13}) for x in place)
    rows = [row + int(down) * i for i in range(c["TM"])]
    keys = [col + int(across) * j for j in range(c["TN"])]
    found = boxes(drawn("8 x 8"))
    assert [x for x in found if x.startswith("row ")] == [f"row {i}" for i in rows]
    assert [x for x in found if x.startswith("key ")] == [f"key {j}" for j in keys]
    assert [x for x in found if x.startswith("score ")] == [
        f"score {i} {j}" for i in rows for j in keys]
    assert max(rows) < c["R"] and max(keys) < c["BN"]


def test_the_words_that_a_step_reads_are_counted_in_the_picture(drawn):
    found = list(boxes(drawn("8 x 8")))
    for number, tm, tn in ((1, 1, 1), *((k, *(source.constants(rungs.rung(k).name)[x]
                                              for x in ("TM", "TN"))) for k in (6, 7))):
        for what, count in (("Q", tm), ("K", tn), ("score", tm * tn)):
            assert len([x for x in found if x.startswith(f"{number} {what} ")]) == count
        assert f"{(tm + tn) / (tm * tn):.3g} each" in words(drawn("8 x 8"))


def test_parts_merge_to_the_answer_and_count_by_their_weights(drawn):
    case = cases.make("random", 1024)
    s = case.q[0].astype(float) @ case.k.T.astype(float) / 8
    w = np.exp(s - s.max())
    picture = drawn("merge")
    said = words(picture)
    assert f"o / l = {w @ case.v[:, 0] / w.sum():.4g}" in said
    bars = boxes(pictures.Picture(picture.panels[1:], "", "computed"))
    for first in range(0, 1024, 256):
        keys = slice(first, first + 256)
        assert bars[f"keys {first}–{first + 255}"]["width"] == pytest.approx(
            190 * w[keys].sum() / w.sum(), abs=0.02)
        assert f"m {s[keys].max():.4g}" in said and f"{w[keys].sum():.4g}" in said
    weights = [float(x.removeprefix("× ")) for x in said if re.match(r"× [\d.]+$", x)]
    tops = s.reshape(4, 256).max(axis=1)
    pairs = tops.reshape(2, 2).max(axis=1)
    assert weights == pytest.approx([*np.exp(tops - pairs.repeat(2)), *np.exp(pairs - s.max())],
                                    rel=0.01)
