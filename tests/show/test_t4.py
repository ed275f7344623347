"""What a T4 would take, computed."""


import lesson
from lesson.launch import rungs
from lesson.machine.gpus import T4
from lesson.measure import bench
from lesson.show.rungs import title
from lesson.show.stories import row_of

# --- what is computed ---------------------------------------------------------------------------

def test_predictions_cover_what_a_t4_runs_and_follow_the_rules(record):
    rows = {tuple(cells[:2]): cells for cells, _ in lesson.ladder("T4").rows}
    runs = [r for r in rungs.RUNGS if rungs.blocks_on(r, T4)]
    assert [r.number for r in runs] == [1, 2, 3, 4, 5, 21]
    assert set(rows) == {(title(r), f"{n:,}") for r in runs for n in bench.BENCH_N}
    for r in runs:
        for n in bench.BENCH_N:
            least = 1e3 * 4 * n * n * 64 / 8.1e12
            assert rows[title(r), f"{n:,}"][3] == f"{least:.3f}"
    # Rung 1 by hand. A block that is alone on its SM counts 1.2 times its keys and 32 more. The
    # sample's 3e7 passes of 64 blocks outweigh 64 rows x 128 / 128 lanes; a T4's take two clocks.
    first, passes = rungs.RUNGS[0], 3e7 / 64 / 4096
    assert passes > 64
    h200, t4 = 67e9 / (2 * 128 * 132), 8.1e9 / (2 * 64 * 40)  # clocks a millisecond
    x = [blocks * 1.2 * (n + 32) * passes / h200 for n, blocks in ((256, 1), (16384, 2))]
    y = [row_of(record.bench, first, n).median_ms for n in (256, 16384)]
    slope = (y[1] - y[0]) / (x[1] - x[0])
    on_t4 = 2 * 1.2 * (4096 + 32) * 2 * passes / t4  # 64 blocks on 40 SMs: 2 on one
    assert rows[title(first), "4,096"][4] == f"{y[0] + slope * (on_t4 - x[0]):.3f}"


def test_without_a_record_a_t4_has_a_bound_alone(no_record):
    rows = lesson.ladder("T4").rows
    assert rows and all(cells[-1] == "–" for cells, _ in rows)
