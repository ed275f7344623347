"""The ladder, emulated: every rung on every case, splits, heads, the merge; its launch rules."""

import csv
import io
import re
from dataclasses import asdict, replace

import numpy as np
import pytest
from lesson import backend as backends
from lesson import bench, cases, evidence, host, impossible, ladder, nvrtc, source
from lesson.errors import ArgumentError, LaunchError, RaceError
from lesson.gate import judge
from lesson.occupancy import ARCHS, H200, T4
from lesson.reference import attention

N = 192  # a multiple of 64 but not of the 128 rows of a block
MOST = 0.5  # of the gate
FILES = [r for r in ladder.RUNGS if r.number > 1]
SPLIT = [r for r in ladder.RUNGS if r.splits]
each_rung = pytest.mark.parametrize("rung", ladder.RUNGS, ids=lambda r: r.name.split("/")[-1])
needs_gpu = pytest.mark.skipif(not backends.probe().gpu, reason=backends.probe().reason)


@pytest.fixture(scope="module")
def one_order(emulated):
    """One order of threads, where races are not the question."""
    return host.HostBackend(orders=("ascending",))


@pytest.fixture(scope="module")
def references():
    """attention() of a case, once."""
    kept = {}

    def get(case):
        key = case.name, case.n
        if key not in kept:
            kept[key] = attention(case.q, case.k, case.v)
        return kept[key]
    return get


def verdict_of(output, case, ref):
    return judge(output, ref.o, case.n, ref.max_abs_score)


@pytest.mark.parametrize("name", cases.NAMES)
@each_rung
def test_every_rung_passes_every_case(one_order, references, rung, name):
    case = cases.make(name, N)
    output, planned = ladder.run(one_order, rung, case, 2 if rung.splits else None)
    verdict = verdict_of(output, case, references(case))
    assert verdict.passed and verdict.fraction <= MOST, verdict.explain(rung.name, name, N)
    for what, array in planned.inputs.items():
        assert np.array_equal(array, getattr(case, what)), f"{rung.name} changed {what}"


@each_rung
def test_no_rung_depends_on_the_order_of_threads(emulated, references, rung):
    case = cases.make("spike-late", 128)
    output, _ = ladder.run(emulated, rung, case, 2 if rung.splits else None)
    assert verdict_of(output, case, references(case)).passed


@pytest.mark.parametrize("rung", (ladder.BEST, ladder.SMALL), ids=("best", "small"))
@pytest.mark.parametrize("name", ("ascending", "large"))
def test_the_final_kernels_at_1024_as_the_rule_splits_them(one_order, references, rung, name):
    case = cases.make(name, 1024)
    output, planned = ladder.run(one_order, rung, case)
    assert planned.splits > 1
    verdict = verdict_of(output, case, references(case))
    assert verdict.passed and verdict.fraction <= MOST


@pytest.mark.parametrize("rung", SPLIT, ids=lambda r: r.name.split("/")[-1])
def test_splits_of_unequal_length(one_order, references, rung):
    case = cases.make("ascending", 320)
    for splits in (1, 3, 320 // rung.bn):
        output, _ = ladder.run(one_order, rung, case, splits)
        assert verdict_of(output, case, references(case)).passed, splits


@pytest.mark.parametrize("rung", [r for r in ladder.RUNGS if r.heads],
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
    return cases.Case(f"climbing by {step}", n, q, k, v, "")


def one_row(n=256):
    """Only query row 5, and no other of its warp, has scores that rise."""
    case = climbing(n, 60.0)
    case.q[np.arange(n) != 5, 0] = 0.0
    return replace(case, name="one row")


@pytest.mark.parametrize("step", (5.5, 5.6, -5.6, 0.9, 40.0))
def test_a_late_rescale_is_as_good(one_order, step):
    """8 in powers of 2 is 5.545: steps just below and above, and ones far from it."""
    case = climbing(256, step)
    ref = attention(case.q, case.k, case.v)
    for rung in (r for r in ladder.RUNGS if r.number >= 7):
        verdict = verdict_of(ladder.run(one_order, rung, case, 1)[0], case, ref)
        assert verdict.passed and verdict.fraction <= MOST, (rung.name, verdict)


@pytest.mark.parametrize("old, new, case, error", [
    ("SLACK = 8.0f", "SLACK = 1e30f", "large", None),  # never: weights overflow
    ("acc[i][j] *= rescale;", ";", "spike-late", None),
    ("l[i] *= rescale;", ";", "spike-late", None),
    ("m[i] = mNew;", ";", "spike-late", None),
    ("rise |= top[i] > m[i] + SLACK;", "rise |= i == 0 && top[i] > m[i] + SLACK;", "one row", None),
    ("__syncthreads();   // K is complete", "// K is complete", "random", RaceError),
    ("__syncthreads();   // V is complete", "// V is complete", "random", RaceError),
])
def test_a_broken_rung_is_caught(emulated, references, old, new, case, error):
    text = source.read(ladder.BEST.name)
    assert text.count(old) == 1
    program = emulated.compile(source.from_text(text.replace(old, new), "broken.cu"))
    inputs = one_row() if case == "one row" else cases.make(case, 256)
    q, k, v = (emulated.put(x) for x in (inputs.q, inputs.k, inputs.v))
    o = emulated.full((256, 64), np.nan)

    def launch():
        program.launch("attentionOnline", (2, 1, 1), (128,), (q, k, v, o, 256, 0.125),
                       ladder.BEST.shared)
    if error:
        with pytest.raises(error):
            launch()
    else:
        launch()
        assert not verdict_of(emulated.get(o), inputs, references(inputs)).passed


# --- the merge ----------------------------------------------------------------------------------

def part(seed, rows=8, level=0.0):
    rng = np.random.default_rng(seed)
    m = (level + 20 * rng.standard_normal(rows)).astype(np.float32)
    return m, rng.uniform(1, 300, rows).astype(np.float32), \
        (100 * rng.standard_normal((rows, 64))).astype(np.float32)


def close(one, other):
    (m1, l1, o1), (m2, l2, o2) = one, other
    return np.array_equal(m1, m2) and np.allclose(l1, l2, rtol=3e-6) and np.allclose(
        o1, o2, rtol=3e-6, atol=3e-6 * np.abs(o1).max())


@pytest.mark.parametrize("level", (0.0, -1e4, 1e4))
def test_merging_is_commutative_and_associative_up_to_rounding(level):
    a, b, c = (part(seed, level=level) for seed in (1, 2, 3))
    assert all(np.array_equal(x, y) for x, y in zip(ladder.merge(a, b), ladder.merge(b, a)))
    assert close(ladder.merge(ladder.merge(a, b), c), ladder.merge(a, ladder.merge(b, c)))


def test_no_keys_change_nothing():
    a = part(4)
    none = np.full(8, -np.inf, np.float32), np.zeros(8, np.float32), np.zeros((8, 64), np.float32)
    for merged in (ladder.merge(a, none), ladder.merge(none, a)):
        assert all(np.array_equal(x, y) for x, y in zip(merged, a))
    empty = ladder.merge(none, none)
    assert np.all(np.isneginf(empty[0])) and not empty[1].any() and not empty[2].any()


def test_parts_of_one_key_are_the_online_recurrence():
    case = cases.make("random", 64)
    scores = (case.q @ case.k.T / np.float32(8)).astype(np.float32)
    found = None
    for j in range(64):
        key = scores[:, j], np.ones(64, np.float32), np.tile(case.v[j], (64, 1))
        found = key if found is None else ladder.merge(found, key)
    ref = attention(case.q, case.k, case.v)
    assert verdict_of(found[2] / found[1][:, None], case, ref).passed


@pytest.mark.parametrize("unit", (1.0, ladder.LOG2E))
@pytest.mark.parametrize("splits", (1, 2, 7))
def test_the_merge_kernel_does_the_algebra(emulated, splits, unit):
    heads, n = 2, 64
    parts = [part(10 * s, heads * n) for s in range(splits)]
    whole = parts[0]
    for other in parts[1:]:
        natural = [(p[0] * np.float32(unit / ladder.LOG2E), p[1], p[2]) for p in (whole, other)]
        m, l, o = ladder.merge(*natural)
        whole = m * np.float32(ladder.LOG2E / unit), l, o
    workspace = np.empty(heads * splits * n * 66, np.float32)
    o = workspace[: heads * splits * n * 64].reshape(heads, splits, n, 64)
    ml = workspace[heads * splits * n * 64:].reshape(heads, splits, n, 2)
    for s, (m, l, out) in enumerate(parts):
        o[:, s], ml[:, s, :, 0], ml[:, s, :, 1] = (
            out.reshape(heads, n, 64), m.reshape(heads, n), l.reshape(heads, n))
    result = emulated.full((heads, n, 64), np.nan)
    emulated.compile(source.load(ladder.MERGE)).launch(
        "mergeSplits", (n // ladder.MERGE_ROWS, heads), (ladder.MERGE_THREADS,),
        (emulated.put(workspace), result, n, splits, unit))
    want = (whole[2] / whole[1][:, None]).reshape(heads, n, 64)
    assert np.allclose(emulated.get(result), want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


# --- launch geometry, splits, the choice --------------------------------------------------------

@pytest.mark.parametrize("rung", [r for r in ladder.RUNGS if r.shared],
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
    with pytest.raises(ArgumentError, match="rung 2 does not split"):
        ladder.plan(one_order, 2, q, k, v, splits=2)
    with pytest.raises(ArgumentError, match="splits = 3: N = 128 has 2 tiles of 64"):
        ladder.plan(one_order, 11, q, k, v, splits=3)
    with pytest.raises(ArgumentError, match="rung 1 takes one head, q has 2"):
        ladder.plan(one_order, 1, *(one_order.put(np.stack([x, x])) for x in (q, k, v)))
    with pytest.raises(ArgumentError, match="there are 1 to 13: online, 02_registers"):
        ladder.plan(one_order, "fast", q, k, v)
    with pytest.raises(ArgumentError, match="v has shape"):
        three = [one_order.put(np.stack([x, x])) for x in (q, k)]
        ladder.plan(one_order, 11, *three, one_order.put(case.v[None]))
    with pytest.raises(ArgumentError, match="float64, needs float32"):
        ladder.plan(one_order, 11, one_order.put(case.q.astype(float)), k, v)


def test_the_rungs_are_the_files():
    names = [n for n in source.names() if n.startswith("ladder/") and n != ladder.MERGE]
    assert names == [r.name for r in FILES]
    assert [int(n[7:9]) for n in names] == [r.number for r in FILES]
    for r in ladder.RUNGS:
        kernels = source.load(r.name).kernels
        assert list(kernels) == ["attentionOnline"]
        assert [(p.type, p.name) for p in kernels["attentionOnline"].params] == [
            ("const float*", "q"), ("const float*", "k"), ("const float*", "v"), ("float*", "o"),
            ("size_t", "n"), ("float", "scale")]


@pytest.mark.parametrize("rung", FILES, ids=lambda r: r.name.split("/")[-1])
def test_constants_in_python_are_the_kernels(rung):
    text = source.read(rung.name)
    constants = dict(re.findall(r"^constexpr int (\w+) = (\d+);", text, re.M))
    assert (int(constants["BM"]), int(constants["BN"])) == (rung.bm, rung.bn)
    assert int(constants.get("THREADS", 256)) == rung.threads
    assert rung.asynchronous == ("cp.async" in text.split("constexpr", 1)[1])
    assert rung.splits == ("splits" in text) and rung.heads == ("heads" in text)
    assert (rung.unit == 1.0) == ("LOG2E" in text) or not rung.splits


def test_a_split_fills_the_gpu_and_stays_within_its_tiles():
    for r in SPLIT:
        for n in (64, 192, 256, 1024, 4096, 16384, 131072):
            for heads in (1, 16):
                found = ladder.split(r, n, heads)
                assert 1 <= found.splits <= n // r.bn
                assert found.blocks == -(-n // r.bm) * heads * found.splits
    assert ladder.split(ladder.BEST, 4096).splits == 8  # 32 query tiles, 264 places: 256 blocks
    assert ladder.split(ladder.BEST, 256).splits == 4  # every tile a block of its own
    assert ladder.split(ladder.BEST, 1048576).splits == 1  # more blocks than places already
    assert ladder.split(ladder.BEST, 4096, sms=40, resident=1).splits == 5  # 160 blocks, 4 rounds
    assert ladder.split(ladder.rung(3), 4096).splits == 1
    more_warps = ladder.rung(12)
    assert ladder.blocks_on(more_warps, H200) == 3
    assert ladder.split(more_warps, 4096, resident=3).splits == 12  # 384 blocks for 396 places


def test_the_choice_is_what_the_device_allows():
    assert ladder.choose(4096, gpu=T4).rung is ladder.SMALL
    assert "rungs 11 and 12 do not run on sm_75" in ladder.choose(4096, gpu=T4).why
    assert ladder.choose(4096, gpu=H200).rung is ladder.BEST
    assert ladder.choose(4096, 16, H200).rung is ladder.BEST
    for n in (256, 16384):  # tiles of 32 keys: more blocks where there are few; many tiles
        assert ladder.choose(n, gpu=H200).rung is ladder.rung(12)
    for gpu in ARCHS.values():
        for n in (64, 4096):
            assert ladder.blocks_on(ladder.choose(n, gpu=gpu).rung, gpu) >= 1


def test_the_small_kernel_needs_nothing_that_a_t4_lacks():
    text = source.read(ladder.SMALL.name)
    assert "asm volatile" not in text and ladder.SMALL.shared == 0
    arrays = re.findall(r"__shared__ __align__\(16\) float \w+\[(\w+) \* (\w+)\]", text)
    sizes = {"D": 64, "BM": 128, "BN": 32}
    assert sum(4 * sizes[a] * sizes[b] for a, b in arrays) == 48 * 1024


@pytest.mark.skipif(not nvrtc.available()[0], reason=str(nvrtc.available()[1]))
def test_compiled_facts_of_the_ladder():
    for r in FILES:
        for arch in ("sm_75", "sm_90"):
            if r.shared and arch == "sm_75":
                continue
            facts = nvrtc.facts(source.load(r.name), arch)["attentionOnline"]
            assert facts.local_bytes == 0 and facts.spill_bytes == 0, (r.name, arch)
            assert ladder.blocks_on(r, ARCHS[arch], facts) >= 1
    for r, blocks in ((ladder.BEST, 2), (ladder.rung(12), 3), (ladder.SMALL, 2)):
        facts = nvrtc.facts(source.load(r.name), "sm_90")["attentionOnline"]
        assert ladder.blocks_on(r, H200, facts) == blocks
    assert [f.kernel for f in bench.t4_facts()] == ["online", "ladder/02_registers",
                                                    "ladder/13_small"]


def test_headers_say_what_changes_and_what_was_predicted():
    for r in FILES:
        text = source.read(r.name)
        head = text[: text.index("constexpr")]
        assert head.startswith(f"// Rung {r.number}: ")
        for words in ("What changes: ", "What it buys: ", "What it costs: ", "Prediction: "):
            assert head.count(f"// {words}") == 1, (r.name, words)
        assert re.search(r"\d", ladder.prediction(r)), "a prediction has a number"
        lines = ladder.difference(r)
        assert any(x.startswith("+") for x in lines) and any(x.startswith("-") for x in lines)
        assert not any("snippet" in x or "Prediction" in x for x in lines)
    with pytest.raises(ArgumentError, match="none before it"):
        ladder.difference(1)


# --- what is recorded ---------------------------------------------------------------------------

def a_bench():
    rows = [bench.Row(r.label, r.number, n, 1, 1, 0.1, 1.0 / r.number, 0.9 / r.number,
                      1.1 / r.number, 10, 5) for r in ladder.RUNGS for n in (256, 4096)]
    top = bench.Ceiling(8192, 50.0, 1.0, 1.0, 1.0, 5)
    return bench.Bench({"cupy": "14"}, top, [], rows, [], [])


def test_the_share_of_the_ceiling_is_the_rate():
    row = replace(a_bench().rows[0], n=4096, median_ms=0.1)
    assert bench.share(row, bench.Ceiling(8192, 50.0, 1, 1, 1, 5)) == pytest.approx(
        4 * 4096**2 * 64 / 0.1e-3 / 50e12)


def test_a_bench_reads_back_and_its_tables_hold_every_row():
    found = a_bench()
    assert evidence._check(bench.Bench, asdict(found), "bench") == found
    text = bench.show(found).text()
    for r in ladder.RUNGS:
        assert r.label in text
    assert "50.0 TFLOP/s" in text


def ncu_csv(rungs):
    names = [m for ms in bench._METRICS.values() for m in ms]
    names += [bench._STALL.format(s) for s in bench.STALLS]
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL)
    writer.writerow(["ID", "Kernel Name", *names])
    writer.writerow(["", "", *("Mbyte" if "bytes" in n else "" for n in names)])
    for i in range(rungs):
        writer.writerow([i, "attentionOnline", *(f"{i + 1}.5" for _ in names)])
    return "==PROF== noise\n" + out.getvalue()


def test_counters_are_one_launch_a_rung():
    found = bench.parse_counters(ncu_csv(13), 4096)
    assert [c.rung for c in found] == [r.number for r in ladder.RUNGS]
    assert found[0].dram_bytes == 3_000_000 and found[2].l2_bytes == 3_500_000
    assert found[0].busy == 1.0 and found[0].issued == 0.015
    assert bench.parse_counters(ncu_csv(12), 4096) is None, "a launch is missing"
    assert bench.parse_counters("==ERROR== no permission", 4096) is None


class Clock:
    """A stand-in for a GPU with ``free`` bytes."""

    def __init__(self, free):
        self.free = free

    def free_bytes(self):
        return self.free


def test_the_offered_size_fits_time_and_memory():
    unit = 1.0 / 65536**2  # one second for 65,536 keys
    assert impossible.offer(Clock(1 << 40), unit) == 131072  # 4 s; 262,144 would take 16
    assert impossible.offer(Clock(64 << 20), unit) == 65536  # 64 MiB
    assert impossible.estimate(Clock(1 << 40), 131072, unit).seconds == pytest.approx(4)


@needs_gpu
def test_every_rung_on_this_gpu():
    backend = backends.choose("live")
    gates = bench.gate_rungs(backend, lambda *_: None, gated=bench.GATED[:2])
    assert all(g.passed and g.fraction <= MOST for g in gates), [
        g.message for g in gates if not g.fraction <= MOST]


@needs_gpu
def test_a_long_sequence_on_this_gpu():
    backend = backends.choose("live")
    found = impossible.run(backend, 16384, lambda *_: None, impossible.calibrate(backend))
    assert found.fraction <= MOST and found.sampled_rows >= 256
