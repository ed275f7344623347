"""The rungs on tensor cores, emulated: files, gates, bad input, and what their halves are."""

import re

import numpy as np
import pytest
from lesson.launch import ladder, rungs
from lesson.machine.gpus import H200, T4
from lesson.measure.gates_and_times import judged
from lesson.problem import cases
from lesson.text import source

RIGHT = [r for r in rungs.TENSOR if not r.fails]
MOST = 0.35  # of the gate
each_right = pytest.mark.parametrize("rung", RIGHT, ids=lambda r: r.name.split("/")[-1])


@pytest.mark.parametrize("rung", rungs.TENSOR, ids=lambda r: r.name.split("/")[-1])
def test_the_rungs_are_their_files(one_order, rung):
    text = source.read(rung.name)
    kernel = one_order.compile(source.load(rung.name)).kernels["attentionOnline"]
    kv = (("const unsigned*", "tiles"), ("const float*", "scales")) if rung.halves else \
        (("const float*", "k"), ("const float*", "v"))
    assert [(p.type, p.name) for p in kernel.params] == [
        ("const float*", "q"), *kv, ("float*", "o"), ("size_t", "n"), ("float", "scale")]
    constants = dict(re.findall(r"^constexpr int (\w+) = (\d+);", text, re.M))
    assert (int(constants["BM"]), int(constants["BN"])) == (rung.bm, rung.bn)
    assert 32 * int(constants["WARPS"]) == rung.threads
    assert rung.asynchronous == ("cp.async" in text.split("constexpr", 1)[1])
    assert rungs.blocks_on(rung, H200) and bool(rungs.blocks_on(rung, T4)) != rung.asynchronous


def test_the_split_is_the_same_text_in_every_file():
    files = [rungs.HALVES, *(r.name for r in rungs.TENSOR if r.halves)]
    for name in ("split", "scale"):
        assert len({source.snippets(file)[name] for file in files}) == 1


@each_right
@pytest.mark.parametrize("name", ("random", "spike-late", "peaks", "very-negative"))
def test_every_case_is_far_inside_the_gate(one_order, rung, name):
    case = cases.make(name, 128)
    verdict = judged(case, ladder.run(one_order, rung, case, 2)[0])
    assert verdict.passed and verdict.fraction <= MOST, verdict.explain(rung.name, name, 128)


def test_one_tf32_product_fails_as_it_says(one_order):
    (rung,) = (r for r in rungs.TENSOR if r.fails)
    case = cases.make("random", 64)
    assert judged(case, ladder.run(one_order, rung, case, 1)[0]).fraction > 10


@each_right
def test_no_result_depends_on_the_order_of_threads(emulated, rung):
    case = cases.make("spike-late", 64)
    assert judged(case, ladder.run(emulated, rung, case, 1)[0]).passed


@pytest.mark.parametrize("q, k, v", ((2.0**60, 2.0**-60, 1e30), (2.0**-60, 2.0**60, 1e-30)))
@each_right
def test_inputs_far_up_and_down(one_order, rung, q, k, v):
    case = cases.make("random", 64)
    case = cases.Case("random, scaled", 64, case.q * np.float32(q), case.k * np.float32(k),
                      case.v * np.float32(v), "")
    verdict = judged(case, ladder.run(one_order, rung, case, 1)[0])
    assert verdict.passed and verdict.fraction <= MOST


@each_right
@pytest.mark.parametrize("bad", (np.nan, np.inf))
def test_what_is_not_finite_stays_so(one_order, rung, bad):
    case = cases.make("random", 64)
    clean = ladder.run(one_order, rung, case, 1)[0]
    q, v = case.q.copy(), case.v.copy()
    q[5, 3] = v[7, 9] = bad
    in_q = ladder.run(one_order, rung, cases.Case("", 64, q, case.k, case.v, ""), 1)[0]
    in_v = ladder.run(one_order, rung, cases.Case("", 64, case.q, case.k, v, ""), 1)[0]
    assert not np.isfinite(in_q[5]).any() and not np.isfinite(in_v[:, 9]).any()
    assert np.array_equal(np.delete(in_q, 5, 0), np.delete(clean, 5, 0))  # other rows: untouched
    assert np.array_equal(np.delete(in_v, 9, 1), np.delete(clean, 9, 1))  # other columns, too
