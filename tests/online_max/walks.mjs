// Walks the rows given on standard input with the widget's module, and prints what it computed.
import { readFileSync } from "node:fs";
import { CASES, FAULTS, caseScores, explain, judge, keyValues, threePass, walk } from "../../book/lesson/online_max/core.mjs";

const words = (key, x) => (typeof x === "number" && !Number.isFinite(x) ? String(x) : x); // JSON has no NaN
const { gate, seeds, rows } = JSON.parse(readFileSync(0, "utf8"));
const walks = rows.map(({ scores, tile, fault }) => {
  const values = keyValues(scores.length);
  const state = walk(scores, values, tile, fault);
  const reference = threePass(scores, values);
  const verdict = judge(state.answer, reference, scores, gate);
  return { ...state, reference, verdict, reason: explain(state, verdict) };
});
const cases = Object.fromEntries(CASES.flatMap((name) => seeds.map((seed) => [`${name} ${seed}`, caseScores(name, seed)])));
console.log(JSON.stringify({ cases, faults: Object.keys(FAULTS), values: keyValues(64), walks }, words));
