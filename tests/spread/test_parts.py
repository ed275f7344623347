"""The part that some keys are of some query rows: by arrays, and by the kernels that split keys."""

import numpy as np
import pytest
from lesson.launch import rungs
from lesson.machine.emulator import HostBackend
from lesson.problem import cases
from lesson.problem.gate import judge
from lesson.problem.merge import merge
from lesson.problem.reference import attention
from lesson.spread import parts
from support.emulated import needs_compiler


def gated(case, part, rows):
    ref = attention(case.q, case.k, case.v, rows=np.arange(rows))
    _, l, o = part
    return judge(np.asarray(o / l[:, None]), ref.o, case.problem, ref.max_abs_score).fraction


@pytest.mark.parametrize("name", ("spike-late", "very-negative", "large", "random"))
def test_parts_by_arrays_merge_to_attention_wherever_keys_are_cut(name, monkeypatch):
    case = cases.make(name, 300)
    monkeypatch.setattr(parts, "KEYS_AT_ONCE", 50)
    cuts = [0, 1, 65, 193, 300]
    found = [parts.by_arrays(case.q, case.k[a:b], case.v[a:b]) for a, b in zip(cuts, cuts[1:])]
    found.insert(2, parts.none(300))
    whole = found[0]
    for other in found[1:]:
        whole = merge(whole, other)
    assert gated(case, whole, 300) < 0.35


@pytest.fixture(scope="module")
def backend():
    return HostBackend(orders=("ascending",))


@needs_compiler
@pytest.mark.parametrize("name", ("spike-late", "very-negative", "random"))
def test_a_kernel_leaves_the_same_part_and_its_odd_keys_join_it(backend, name, monkeypatch):
    launched = []
    case = cases.make(name, 300)
    q, k, v = (backend.put(x) for x in (case.q[:128], case.k, case.v))
    part = parts.ByKernel(backend, 300, 128)
    launch = part._launch
    monkeypatch.setattr(part, "_launch", lambda *a: (launched.append(a), launch(*a)))
    found = part(q, k, v)
    ((_, grid, _, args, _),) = launched  # the 256 keys of whole tiles; 44 go by arrays
    assert grid == (1, 8, 1) and args[4] == 256
    assert gated(case, found, 128) < 0.35
    assert np.allclose(found[0], (case.q[:128] @ case.k.T / 8).max(axis=1), atol=8 / rungs.LOG2E)


@needs_compiler
def test_many_keys_take_several_launches_and_blocks_that_end_soon(backend, monkeypatch):
    monkeypatch.setattr(parts, "KEYS_A_LAUNCH", 160)
    monkeypatch.setattr(parts, "KEYS_A_BLOCK", 64)
    case = cases.make("spike-late", 320)
    part = parts.ByKernel(backend, 320, 128)
    monkeypatch.setattr(part, "places", 1)
    grids, launch = [], part._launch
    monkeypatch.setattr(part, "_launch", lambda *a: (grids.append(a[1]), launch(*a)))
    found = part(*(backend.put(x) for x in (case.q[:128], case.k, case.v)))
    assert grids == [(1, 2, 1), (1, 3, 1)]  # 128 keys and 192, a block for each 64
    assert gated(case, found, 128) < 0.35


@needs_compiler
def test_what_is_too_small_for_a_block_goes_by_arrays(backend, monkeypatch):
    case = cases.make("random", 100)
    part = parts.ByKernel(backend, 100, 100)
    monkeypatch.setattr(part, "_launch", None)
    assert gated(case, part(*(backend.put(x) for x in (case.q, case.k, case.v))), 100) < 0.35


def test_folding_loses_nothing_of_large_scores():
    """m is rounded where powers of 2 become natural: the weights must be taken against that."""
    rows, splits = 4, 3
    rng = np.random.default_rng(3)
    m = (16000 + 3 * rng.random((splits, rows))).astype(np.float32)
    l = rng.uniform(1, 9, (splits, rows)).astype(np.float32)
    o = rng.standard_normal((splits, rows, 64)).astype(np.float32)
    space = np.concatenate([o.ravel(), np.stack([m, l], axis=-1).ravel()])
    found, total, out = parts.fold(space, splits, rows, rows, 1.0)
    against = found.astype(float) * rungs.LOG2E
    w = np.exp2(m.astype(float) - against)
    assert np.allclose(total, (w * l).sum(axis=0), rtol=5e-7)
    assert np.allclose(out, (w[..., None] * o).sum(axis=0), rtol=1e-6, atol=1e-6)
