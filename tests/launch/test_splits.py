"""Into how many parts keys go, and which kernel is chosen."""

from lesson.launch import rungs, splits
from lesson.machine.gpus import H200, T4, by_arch
from lesson.measure import evidence
from lesson.problem.problem import Problem

SPLIT = [r for r in rungs.RUNGS if r.splits]


def test_a_split_fills_the_gpu_and_stays_within_its_tiles():
    for r in SPLIT:
        for n in (64, 192, 256, 1024, 4096, 16384, 131072):
            for heads in (1, 16):
                found = splits.split(r, Problem(n, n, heads=heads))
                assert 1 <= found.splits <= n // r.bn
                assert found.blocks == -(-n // r.bm) * heads * found.splits
    assert splits.split(rungs.BEST, 4096).splits == 8  # 32 query tiles, 264 places: 256 blocks
    assert splits.split(rungs.BEST, 256).splits == 4  # every tile a block of its own
    assert splits.split(rungs.BEST, 1048576).splits == 1  # more blocks than places already
    assert splits.split(rungs.BEST, 4096, sms=40, resident=1).splits == 5  # 160 blocks, 4 rounds
    assert splits.split(rungs.rung("08_vec4"), 4096).splits == 1
    more_warps = rungs.WARPS
    assert rungs.blocks_on(more_warps, H200) == 3
    assert splits.split(more_warps, 4096, resident=3).splits == 12  # 384 blocks for 396 places


def test_the_choice_is_what_the_device_allows():
    assert splits.choose(4096, gpu=T4).rung is rungs.SMALL
    assert "rungs 19 and 20 do not run on sm_75" in splits.choose(4096, gpu=T4).why
    assert splits.choose(4096, gpu=H200).rung is rungs.BEST
    assert splits.choose(Problem(4096, 4096, heads=16), H200).rung is rungs.BEST
    for n in (256, 16384):  # tiles of 32 keys: more blocks where there are few; many tiles
        assert splits.choose(n, gpu=H200).rung is rungs.WARPS
    for gpu in by_arch().values():
        for n in (64, 4096):
            assert rungs.blocks_on(splits.choose(n, gpu=gpu).rung, gpu) >= 1


def test_among_all_final_kernels_the_choice_is_the_fastest_or_near_it():
    for item in evidence.shown("tensor"):
        for problem in {row.problem for row in item.tensor.rows}:
            times = {row.rung: row.median_ms for row in item.tensor.rows if row.problem == problem}
            chosen = splits.choose(problem, H200, among=rungs.FASTEST).rung.number
            finals = {r.number: times[r.number] for r in rungs.FASTEST}
            assert times[chosen] <= min(times[r.number] for r in rungs.FINAL), problem
            assert times[chosen] <= 1.02 * min(finals.values()), problem


def test_where_there_is_no_hopper_gpu_the_choice_goes_on():
    for arch, want in (("sm_75", 25), ("sm_80", 24), ("sm_89", 24), ("sm_90", 31)):
        gpu = by_arch()[arch]
        found = splits.choose(16384, gpu, sms=100, among=rungs.FASTEST)
        assert found.rung.number == want, found.why
