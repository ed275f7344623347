"""The ladder, emulated: every rung on every case, splits, heads, broken rungs."""

from dataclasses import replace

import numpy as np
import pytest
from lesson.errors import ArgumentError, LaunchError, RaceError
from lesson.launch import ladder, rungs
from lesson.problem import cases
from lesson.problem.gate import judge
from lesson.problem.problem import of
from lesson.problem.reference import attention
from lesson.text import source

N = 192  # a multiple of 64 but not of the 128 rows of a block
MOST = 0.5  # of the gate
LAZY = rungs.rung("12_lazy").number  # it and what follows rescale when it matters
SPLIT = [r for r in rungs.RUNGS if r.splits]
each_rung = pytest.mark.parametrize("rung", rungs.RUNGS, ids=lambda r: r.name.split("/")[-1])


@pytest.fixture(scope="module")
def judged():
    """The Verdict on an output for a Case, whose reference is computed once."""
    references = {}

    def judged(case, output):
        key = case.name, case.n
        if key not in references:
            references[key] = attention(case.q, case.k, case.v)
        ref = references[key]
        return judge(output, ref.o, case.n, ref.max_abs_score)
    return judged


@pytest.mark.parametrize("name", cases.NAMES)
@each_rung
def test_every_rung_passes_every_case(one_order, judged, rung, name):
    case = cases.make(name, N)
    output, planned = ladder.run(one_order, rung, case, 2 if rung.splits else None)
    verdict = judged(case, output)
    assert verdict.passed and verdict.fraction <= MOST, verdict.explain(rung.name, name, N)
    for what, array in planned.inputs.items():
        assert np.array_equal(array, getattr(case, what)), f"{rung.name} changed {what}"


@each_rung
def test_no_rung_depends_on_the_order_of_threads(emulated, judged, rung):
    case = cases.make("spike-late", 128)
    output, _ = ladder.run(emulated, rung, case, 2 if rung.splits else None)
    assert judged(case, output).passed


@pytest.mark.parametrize("rung", (rungs.BEST, rungs.SMALL), ids=("best", "small"))
@pytest.mark.parametrize("name", ("ascending", "large"))
def test_the_final_kernels_as_the_rule_splits_them(one_order, judged, rung, name):
    case = cases.make(name, 320)
    output, planned = ladder.run(one_order, rung, case)
    assert planned.splits > 1
    verdict = judged(case, output)
    assert verdict.passed and verdict.fraction <= MOST


@pytest.mark.parametrize("rung", SPLIT, ids=lambda r: r.name.split("/")[-1])
def test_splits_of_unequal_length(one_order, judged, rung):
    case = cases.make("ascending", 320)
    for splits in (1, 3, 320 // rung.bn):
        output, _ = ladder.run(one_order, rung, case, splits)
        assert judged(case, output).passed, splits


@pytest.mark.parametrize("rung", [r for r in rungs.RUNGS if r.heads],
                         ids=lambda r: r.name.split("/")[-1])
def test_heads_are_independent(one_order, rung):
    several = [cases.make(name, 128) for name in ("random", "spike-late", "ascending")]
    q, k, v = (one_order.put(np.stack([getattr(c, x) for c in several])) for x in "qkv")
    splits = 2 if rung.splits else None
    together = ladder.plan(one_order, rung, q, k, v, splits).run()
    for case, output in zip(several, together, strict=True):
        assert np.array_equal(output, ladder.run(one_order, rung, case, splits)[0])


# --- the lazy rescale ---------------------------------------------------------------------------

def climbing(n, step):
    """Scores that rise by ``step`` (natural) from one tile of 32 keys to the next."""
    q, k = np.zeros((n, 64), np.float32), np.zeros((n, 64), np.float32)
    q[:, 0], k[:, 0] = 8.0, step * (np.arange(n) // 32)
    k[:, 1] = np.linspace(-1, 1, n)  # a spread inside a tile
    q[:, 1] = np.linspace(0, 8, n)
    v = np.random.default_rng(5).standard_normal((n, 64)).astype(np.float32) + 0.5
    return cases.Case(f"climbing by {step}", of(n), q, k, v, "")


def one_row(n=256):
    """Only query row 5, and no other of its warp, has scores that rise."""
    case = climbing(n, 60.0)
    case.q[np.arange(n) != 5, 0] = 0.0
    return replace(case, name="one row")


@pytest.mark.parametrize("step", (5.5, 5.6, -5.6, 0.9, 40.0))
def test_a_late_rescale_is_as_good(one_order, judged, step):
    """8 in powers of 2 is 5.545: steps just below and above, and ones far from it."""
    case = climbing(256, step)
    for rung in (r for r in rungs.RUNGS if r.number >= LAZY):
        verdict = judged(case, ladder.run(one_order, rung, case, 1)[0])
        assert verdict.passed and verdict.fraction <= MOST, (rung.name, verdict)


@pytest.mark.parametrize("old, new, case, error", [
    ("SLACK = 8.0f", "SLACK = 1e30f", "large", None),  # never: weights overflow
    ("acc[i][j] *= factor;", ";", "spike-late", None),
    ("l[i] *= factor;", ";", "spike-late", None),
    ("m[i] = mNew;", ";", "spike-late", None),
    ("rise |= top[i] > m[i] + SLACK;", "rise |= i == 0 && top[i] > m[i] + SLACK;", "one row", None),
    ("__syncthreads();   // K is complete", "// K is complete", "random", RaceError),
    ("__syncthreads();   // V is complete", "// V is complete", "random", RaceError),
])
def test_a_broken_rung_is_caught(emulated, judged, old, new, case, error):
    text = source.read(rungs.BEST.name)
    assert text.count(old) == 1
    program = emulated.compile(source.from_text(text.replace(old, new), "broken.cu"))
    inputs = one_row() if case == "one row" else cases.make(case, 256)
    q, k, v = (emulated.put(x) for x in (inputs.q, inputs.k, inputs.v))
    o = emulated.full((256, 64), np.nan)

    def launch():
        program.launch("attentionOnline", (2, 1, 1), (128,), (q, k, v, o, 256, 0.125),
                       rungs.BEST.shared)
    if error:
        with pytest.raises(error):
            launch()
    else:
        launch()
        assert not judged(inputs, emulated.get(o)).passed


# --- launch geometry, splits, the choice --------------------------------------------------------

@pytest.mark.parametrize("rung", [r for r in rungs.RUNGS if r.shared],
                         ids=lambda r: r.name.split("/")[-1])
def test_shared_bytes_are_what_the_kernel_uses_and_no_more(one_order, rung):
    case = cases.make("random", 128)
    planned = ladder.plan(one_order, rung, *(one_order.put(getattr(case, x)) for x in "qkv"),
                          splits=1)
    planned.run()
    planned.steps = [(*planned.steps[0][:-1], rung.shared - 32)]  # 16 may be the pad of a last line
    with pytest.raises(LaunchError, match="shared"):
        planned.run()


def test_a_plan_refuses_what_a_rung_cannot_do(one_order):
    case = cases.make("random", 128)
    q, k, v = (one_order.put(x) for x in (case.q, case.k, case.v))
    with pytest.raises(ArgumentError, match="rung 2 does not split keys; rungs 10 and later do"):
        ladder.plan(one_order, 2, q, k, v, splits=2)
    with pytest.raises(ArgumentError, match="splits = 3: N = 128 has 2 tiles of 64"):
        ladder.plan(one_order, rungs.BEST, q, k, v, splits=3)
    with pytest.raises(ArgumentError, match="heads = 2: rung 1 takes one head; use rung 4"):
        ladder.plan(one_order, 1, *(one_order.put(np.stack([x, x])) for x in (q, k, v)))
    with pytest.raises(ArgumentError, match="there are 1 to 31: online, 02_registers"):
        ladder.plan(one_order, "fast", q, k, v)
    with pytest.raises(ArgumentError, match="v has shape"):
        three = [one_order.put(np.stack([x, x])) for x in (q, k)]
        ladder.plan(one_order, rungs.BEST, *three, one_order.put(case.v[None]))
    with pytest.raises(ArgumentError, match="float64, needs float32"):
        ladder.plan(one_order, 11, one_order.put(case.q.astype(float)), k, v)
