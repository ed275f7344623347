// The widget's arithmetic by itself: `node --test tests/online_max/core.test.mjs`.
import assert from "node:assert/strict";
import { test } from "node:test";
import { CASES, FAULTS, caseScores, explain, format, held, judge, keyValues, threePass, tileWidths, walk } from "../../book/lesson/online_max/core.mjs";

// Any gate will do here: the lesson's constants are compared with gate.py's in test_recurrence.py.
const GATE = { floor: 1e-5, sum: 0, score: 1e-6 };
const outcome = (scores, tile, fault) => {
  const values = keyValues(scores.length);
  const state = walk(scores, values, tile, fault);
  return { state, verdict: judge(state.answer, threePass(scores, values), scores, GATE) };
};

test("numbers are written short, and inf and NaN by name", () => {
  assert.equal(format(0), "0");
  assert.equal(format(12), "12");
  assert.equal(format(-1.25), "−1.25");
  assert.equal(format(2.754e-5), "2.75e−5");
  assert.equal(format(162754.79), "1.63e5");
  assert.equal(format(Infinity), "inf");
  assert.equal(format(-Infinity), "−inf");
  assert.equal(format(NaN), "NaN");
});

test("tile widths are the divisors", () => {
  assert.deepEqual(tileWidths(32), [1, 2, 4, 8, 16, 32]);
  assert.deepEqual(tileWidths(6), [1, 2, 3, 6]);
});

test("every value is a float32", () => {
  for (const fault of Object.keys(FAULTS)) {
    const { m, l, o, w, rescale, total, answer } = outcome(caseScores("random", 3), 4, fault).state;
    for (const x of [m, l, o, w, rescale, total, answer].flat(2)) assert.ok(Object.is(x, Math.fround(x)));
  }
});

test("what l and o hold of the keys adds up to l and o", () => {
  for (const name of CASES) {
    for (const fault of ["none", "forget-o", "forget-l", "forget-both"]) {
      const { state } = outcome(caseScores(name, 1), 4, fault);
      for (let t = 0; t <= state.tiles; t++) {
        const { inL, inO } = held(state, t);
        const l = inL.reduce((a, b) => a + b, 0);
        assert.ok(Math.abs(l - state.l[t]) <= 1e-5 * state.l[t], `${name} ${fault} ${t}`);
        const o = inO.reduce((a, x, j) => a + x * state.values[j][0], 0);
        const size = inO.reduce((a, b) => a + b, 0);
        assert.ok(Math.abs(o - state.o[t][0]) <= 1e-5 * size, `${name} ${fault} ${t}`);
      }
    }
  }
});

test("a gate lets neither NaN nor inf through", () => {
  const scores = [0, 0], ref = [1, 2, 3];
  assert.equal(judge([1, 2, 3], ref, scores, GATE).passed, true);
  assert.equal(judge([1, NaN, 3], ref, scores, GATE).passed, false);
  assert.equal(judge([1, Infinity, 3], ref, scores, GATE).passed, false);
});

// The sentence is computed from the state: each claim in it must hold in that state.
test("the reason agrees with the verdict and with the scores", () => {
  const rows = CASES.flatMap((name) => [0, 1, 2].map((seed) => caseScores(name, seed)));
  rows.push(Array.from({ length: 32 }, (_, j) => -101 - (j % 3))); // weights survive as a few bits
  rows.push(Array.from({ length: 32 }, (_, j) => 88 + (j % 3) / 8)); // the sum overflows, no weight does
  rows.push(Array.from({ length: 32 }, (_, j) => (j === 31 ? 1 + 2 ** -20 : 1))); // a move that hardly shows
  rows.push(Array.from({ length: 32 }, (_, j) => -20 - (j % 5))); // below 0, far from underflow
  const seen = new Set();
  for (const scores of rows) {
    for (const tile of tileWidths(32)) {
      for (const fault of Object.keys(FAULTS)) {
        const { state, verdict } = outcome(scores, tile, fault);
        const reason = explain(state, verdict);
        const { m, l, o, w, rescale, tileMax, tiles } = state;
        const top = Math.max(...scores);
        const says = (words) => reason.includes(words) && seen.add(words) && true;
        const where = `${fault}, tile ${tile}: ${reason}`;
        assert.ok(!/undefined|\[object/.test(reason), where);
        if (fault !== "none") assert.equal(reason.startsWith("Caught: "), !verdict.passed, where);
        if (says("never moves after the first tile")) assert.ok(m.slice(2).every((x) => x === m[1]), where);
        if (says("should shrink there")) assert.ok(rescale.slice(1).some((r) => r < 1), where);
        if (says("too much changes the answer")) assert.ok(verdict.passed && rescale.slice(1).some((r) => r < 1), where);
        if (says("m ends where it should")) assert.ok(m[tiles] === top, where);
        if (says("every score is below 0")) assert.ok(top < 0, where);
        if (says("underflows to 0")) assert.ok(w.every((x) => x === 0) && l[tiles] === 0, where);
        if (says("below −103.9")) assert.ok(top < -103.9, where);
        if (says("few bits left")) assert.ok(l[tiles] > 0 && l[tiles] < 1.2e-38 * 2 ** 24, where);
        if (says("only past 88.7")) assert.ok(top <= 88.73 && [...w, l[tiles]].every(Number.isFinite), where);
        if (says("passes at 88.7")) assert.ok(w.some((x) => x === Infinity) && top > 88.7, where);
        if (says("but their sum")) assert.ok(w.every(Number.isFinite) && ![l[tiles], ...o[tiles]].every(Number.isFinite), where);
        if (says("is the running maximum")) assert.ok(tileMax.every((x, t) => x === Math.max(...tileMax.slice(0, t + 1))), where);
        if (says("makes l and o grow")) assert.ok(rescale.some((r) => r > 1 && Number.isFinite(r)), where);
        if (says("is inf in float32")) assert.ok(rescale.includes(Infinity), where);
      }
    }
  }
  for (const words of ["never moves after the first tile", "should shrink there", "too much changes the answer", "m ends where it should",
    "underflows to 0", "few bits left", "only past 88.7", "passes at 88.7", "but their sum", "is the running maximum", "makes l and o grow",
    "is inf in float32", "every score is below 0"]) assert.ok(seen.has(words), `no case reaches "${words}"`);
});
