// The stepper's arithmetic by itself: `node --test tests/stepper/core.test.mjs`.
import assert from "node:assert/strict";
import { test } from "node:test";
import {
  cost, describe, elementName, follow, isShared, left, length, nextAtLine, nextBarrier, numbers, passes, rows,
  sectors, station, stepAt, worst,
} from "../../book/lesson/stepper/core.mjs";

const ALL = 0xffffffff;
const data = {
  title: "f", warp: 1, threads: 64, block: [0], case: "flat", n: 64, count: 105, end: { passed: true, text: "Passed." },
  lines: [[7, "a"], [8, "b"], [9, "c"], [10, "d"]], files: [[0, "f.cu"]],
  arrays: [{ name: "q", shape: [64, 64] }, { name: "sums", shape: [64] }, { name: "tile", start: 128, bytes: 4096 }],
  sites: [[0, "r", 0, 4, -1], [1, "w", 2, 4, -1], [2, "b", -2, 0, -1], [3, "r", 2, 16, 0], [0, "s", -2, 0, -1], [1, "w", 1, 4, -1]],
  patterns: [[ALL, 32, 4, 0], [ALL, 16, 256, 4], [ALL, 32, 0, 0], [ALL, 32, 16, 0], [0b101, [8, 0]], [ALL, 32, 128, 0], [1, 32, 0, 0]],
  steps: [[0, 0, 256, 4, 4], [1, 5, 128, 32, 1], [2, 0], [3, 3, 128, 4, 4], [4, 2, 5, 0, 0], [0, 4, 0, 1, 1], [5, 6, 12, 1, 1]],
  folds: { 1: [[5, 90], [2, 8]] }, stations: [[[0, 0], [1, 0]]], works: [[[0, 1], [1, 12]]], rest: 0, failed: null, totals: {},
};
const at = (i) => stepAt(data, i);

test("offsets come from a stride, from two, or from a list", () => {
  assert.deepEqual(at(0).offsets.slice(0, 3), [256, 260, 264]);
  assert.deepEqual(stepAt({ ...data, steps: [[0, 1, 0, 1, 1]] }, 0).offsets.slice(14, 18), [3584, 3840, 4, 260]);
  assert.deepEqual(at(5).offsets.slice(0, 4), [8, null, 0, null]);
});

test("an element has the name that the source would give it", () => {
  assert.equal(elementName(data, 0, 256 + 20), "q[1][5]");
  assert.equal(elementName(data, 1, 20), "sums[5]");
  assert.equal(elementName(data, 2, 128 + 20), "tile word 5");
  assert.equal(elementName(data, -1, 20), "shared word 5");
});

test("a bank serves one word a pass", () => {
  assert.equal(passes(at(1)).length, 32);
  assert.equal(cost(data, at(1)), 32);
  assert.deepEqual([...passes(at(1))[3].keys()], [0]);
  assert.equal(passes(at(3)).length, 4); // 16 bytes a lane: a quarter of the warp a pass
  assert.deepEqual([...passes(at(3))[1].values()].flatMap(([, lanes]) => lanes).filter((x, i, all) => all.indexOf(x) === i), [8, 9, 10, 11, 12, 13, 14, 15]);
});

test("a sector is 32 bytes", () => {
  assert.deepEqual(sectors(at(0)), { needed: [8, 9, 10, 11], least: 4 });
  assert.deepEqual(sectors(at(5)), { needed: [0], least: 1 });
  assert.equal(isShared(data, at(0)), false);
});

test("rows hold each lane once, in wide and in narrow pictures", () => {
  for (const i of [0, 1, 5]) {
    for (const columns of [32, 16]) {
      const lanes = rows(data, at(i), columns).flatMap((row) => row.cells.flatMap((cell) => cell.lanes));
      assert.deepEqual(lanes.sort((a, b) => a - b), at(i).offsets.flatMap((x, lane) => (x === null ? [] : [lane])));
    }
  }
  assert.deepEqual(rows(data, at(0), 16).map((row) => [row.label, row.boxes]), [["q[1][0]", [0, 8]], ["q[1][16]", [0, 8]]]);
});

test("places in the run count what is left out", () => {
  assert.deepEqual(numbers(data), [1, 2, 101, 102, 103, 104, 105, 105]);
  assert.deepEqual(left(data, 1), [[5, 90], [2, 8]]);
  assert.equal(length(data), 8);
  assert.equal(nextBarrier(data, 0), 2);
  assert.equal(nextBarrier(data, 2), 2);
  assert.equal(nextAtLine(data, 0, 0), 4);
  assert.equal(nextAtLine(data, 5, 0), 0);
  assert.equal(worst(data), 1);
  assert.equal(worst({ ...data, steps: [[0, 0, 256, 4, 4]] }), -1);
});

test("a step is told in words", () => {
  assert.equal(describe(data, 0), "Line 7: All 32 lanes read 32 numbers of q: 4 sectors, the fewest that will do.");
  assert.equal(describe(data, 1), "Line 8: All 32 lanes write 32 words of tile: 32 passes, where 1 would do. "
    + "Then 5 trips of this loop are left out: 90 steps, alike in lines, lanes and cost. "
    + "Then 2 trips of this loop are left out: 8 steps, alike in lines, lanes and cost.");
  assert.match(describe(data, 2), /^Line 9: warp 1 arrives at a barrier and waits for the other warps/);
  assert.match(describe(data, 3), /^Line 10, in line 7: /);
  assert.equal(describe(data, 4), "Line 7: All 32 lanes take the value of lane 5.");
  assert.equal(describe(data, 6), "Line 8: Lane 0 writes 1 number of sums: 1 sector, the fewest that will do.");
  assert.equal(describe(data, 7), "Warp 1 has done its work: 105 steps. Passed.");
  assert.equal(follow(data, at(1), 3), "Lane 3 writes tile word 96, bank 0.");
  assert.equal(follow(data, at(3), 1), "Lane 1 reads tile word 4 to tile word 7, bank 4.");
  assert.equal(follow(data, at(5), 1), "Lane 1 takes no part.");
  assert.equal(follow(data, at(4), 1), "Lane 1 takes the value of lane 5.");
  assert.deepEqual(station(data, 0), [{ warps: [0, 1], work: [[0, 1], [1, 12]] }]);
});

test("a failure is told in words", () => {
  const failed = { ...data, end: { passed: false, text: "f has a race\n  more" }, failed: 2 };
  assert.equal(describe(failed, 7), "The end of what can be watched. f has a race");
  assert.equal(stepAt(failed, 7).line, 2);
});
