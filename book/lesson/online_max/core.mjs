// One query row of online softmax, tile by tile, in float32. No DOM: node runs this file too.
//
// recurrence.py computes the same with NumPy; the tests compare the two value by value. Both round
// to float32 after every operation, in the order written here. Math.exp works in float64 and the
// result is rounded once, so that it is the same float32 as NumPy's, but for a rare rounding edge.

const f32 = Math.fround;
const exp32 = (x) => f32(Math.exp(x));

export const N = 32; // keys of a named case
export const SCORE_LIMIT = 200; // how far a bar can be set

export const FAULTS = {
  "none": "nothing (correct)",
  "forget-o": "o is not rescaled",
  "forget-l": "l is not rescaled",
  "forget-both": "neither is rescaled",
  "start-at-0": "m starts at 0",
  "no-maximum": "no maximum at all",
  "tile-maximum": "tile maximum as m",
};

const wave = (j) => (((11 * j + 3) % 13) - 6) / 4;
const spike = (key) => (j) => (j === key ? 12 : wave(j));

const SCORES = {
  "spike-late": spike(N - 1),
  "spike-early": spike(0),
  "spike-middle": spike(N / 2 + 1),
  "ascending": (j) => (j - 16) / 2,
  "descending": (j) => (15 - j) / 2,
  "flat": () => 2,
  "all-negative": (j) => 4 * wave(j) - 112,
  "large": (j) => 4 * wave(j) + (Math.floor(j / 8) % 2 === 0 ? -110 : 110),
  "random": null, // seeded
};

export const CASES = Object.keys(SCORES);

// 32 scores near a normal distribution: sums of four bytes of a linear congruence.
function randomScores(seed) {
  let state = seed >>> 0;
  return Array.from({ length: N }, () => {
    let total = 0;
    for (let i = 0; i < 4; i++) {
      state = (Math.imul(1664525, state) + 1013904223) >>> 0;
      total += state >>> 24;
    }
    return (total - 510) / 64;
  });
}

export function caseScores(name, seed) {
  return name === "random" ? randomScores(seed) : Array.from({ length: N }, (_, j) => SCORES[name](j));
}

// The value vectors of n keys. Their mean is not 0: around 0 the answer would cancel.
export function keyValues(n) {
  return Array.from({ length: n }, (_, j) => [0, 1, 2].map((c) => (((13 * j + 5 * c) % 17) - 4) / 8));
}

export function tileWidths(n) {
  return Array.from({ length: n }, (_, i) => i + 1).filter((width) => n % width === 0);
}

// State before the first tile (index 0) and after each of T tiles: m, l, o have T + 1 entries;
// tileMax, rescale, total, added have T; w has one weight per key.
export function walk(scores, values, tile, fault) {
  const tiles = scores.length / tile;
  const start = fault === "start-at-0" || fault === "no-maximum" ? 0 : -Infinity;
  const forgetL = fault === "forget-l" || fault === "forget-both";
  const forgetO = fault === "forget-o" || fault === "forget-both";
  const m = [start], l = [0], o = [values[0].map(() => 0)];
  const tileMax = [], rescale = [], total = [], added = [], w = [];
  for (let t = 0; t < tiles; t++) {
    const first = t * tile, last = first + tile;
    let top = -Infinity;
    for (let j = first; j < last; j++) top = Math.max(top, scores[j]);
    const mNew = fault === "no-maximum" ? 0 : fault === "tile-maximum" ? top : Math.max(m[t], top);
    const r = exp32(f32(m[t] - mNew));
    let sum = 0;
    const add = values[0].map(() => 0);
    for (let j = first; j < last; j++) {
      w[j] = exp32(f32(scores[j] - mNew));
      sum = f32(sum + w[j]);
      for (let c = 0; c < add.length; c++) add[c] = f32(add[c] + f32(w[j] * values[j][c]));
    }
    tileMax.push(top);
    rescale.push(r);
    total.push(sum);
    added.push(add);
    m.push(mNew);
    l.push(f32((forgetL ? l[t] : f32(l[t] * r)) + sum));
    o.push(add.map((a, c) => f32((forgetO ? o[t][c] : f32(o[t][c] * r)) + a)));
  }
  const answer = o[tiles].map((x) => f32(x / l[tiles]));
  return { scores, values, tile, tiles, fault, forgetL, forgetO, m, l, o, tileMax, rescale, total, added, w, answer };
}

// The three-pass answer in float64: maximum, then total, then the weighted sum.
export function threePass(scores, values) {
  const top = scores.reduce((a, b) => Math.max(a, b));
  const w = scores.map((s) => Math.exp(s - top));
  const total = w.reduce((a, b) => a + b);
  return values[0].map((_, c) => w.reduce((sum, wj, j) => sum + wj * values[j][c], 0) / total);
}

// The lesson's gate: |got - ref| <= atol + rtol |ref|. `terms` are the constants of gate.py.
export function judge(got, ref, scores, terms) {
  const maxAbs = scores.reduce((a, b) => Math.max(a, Math.abs(b)), 0);
  const rtol = Math.max(terms.floor, terms.sum * Math.sqrt(scores.length), terms.score * maxAbs);
  const atol = rtol * ref.reduce((a, b) => Math.max(a, Math.abs(b)), 0);
  const fractions = got.map((x, c) => Math.abs(x - ref[c]) / (atol + rtol * Math.abs(ref[c])));
  const finite = got.every(Number.isFinite);
  const fraction = finite ? Math.max(...fractions) : NaN;
  return { passed: fraction <= 1, fraction, fractions, rtol, atol }; // NaN is not <= 1
}

// How far a kernel's m, l and o (`captured`) lie from the walk's after each tile, by the gate:
// rows of fractions, one for m, one for l, one for each column of o. NaN where not finite.
export function apart(state, captured, rtol) {
  const after = (rows) => rows.slice(1).map((x) => [x].flat().map(Number)); // "NaN" is text in JSON
  return ["m", "l", "o"].flatMap((name) => {
    const want = after(state[name]), got = after(captured[name]);
    const atol = rtol * want.flat().reduce((a, x) => Math.max(a, Math.abs(x)), 0);
    return want[0].map((_, c) => want.map((row, t) => Math.abs(got[t][c] - row[c]) / (atol + rtol * Math.abs(row[c]))));
  });
}

// Whether they agree, in one sentence.
export function agreement(state, fractions) {
  const names = ["m", "l", ...fractions.slice(2).map(() => "o")];
  for (let t = 0; t < state.tiles; t++) {
    const bad = fractions.findIndex((row) => !(row[t] <= 1)); // NaN is not <= 1
    if (bad >= 0) return `The kernel's ${names[bad]} leaves the trace in tile ${t + 1}.`;
  }
  return `The kernel's m, l and o agree with the trace after every tile, to ${format(Math.max(...fractions.flat()), 2)} of the gate.`;
}

// What l and o hold of each key's weight after t tiles, and what they ought to hold.
export function held(state, t) {
  const { scores, tile, w, rescale, forgetL, forgetO, m } = state;
  const inL = [], inO = [], due = [];
  for (let j = 0; j < t * tile; j++) {
    let kept = w[j]; // 0 stays 0: what has vanished from a sum is not brought back by an inf
    for (let u = Math.floor(j / tile) + 1; u < t && kept !== 0; u++) kept *= rescale[u];
    inL[j] = forgetL ? w[j] : kept;
    inO[j] = forgetO ? w[j] : kept;
    due[j] = Math.exp(scores[j] - m[t]);
  }
  return { inL, inO, due };
}

// A number as the widget writes it: four digits, inf and NaN by their names.
export function format(x, digits = 4) {
  if (Number.isNaN(x)) return "NaN";
  if (!Number.isFinite(x)) return x > 0 ? "inf" : "−inf";
  const size = Math.abs(x);
  let text;
  if (x === 0) text = "0";
  else if (size >= 1e5 || size < 1e-3) text = x.toExponential(digits - 2).replace("e+", "e");
  else text = String(Number(x.toPrecision(digits)));
  return text.replaceAll("-", "−");
}

// Why this case does or does not show this fault: one sentence, from the state alone.
export function explain(state, verdict) {
  const { fault, scores, m, l, o, rescale, w, tileMax, tiles } = state;
  const failed = !verdict.passed;
  const head = fault === "none" ? "" : failed ? "Caught: " : "Not caught: ";
  const top = scores.reduce((a, b) => Math.max(a, b));
  const infKey = w.findIndex((x) => x === Infinity);
  const empty = l[tiles] === 0;
  const few = `the weights are so small (l = ${format(l[tiles])}) that float32 has few bits left for them`;

  if (fault === "none") {
    return failed
      ? "Nothing is broken, yet rounding alone leaves the gate: these scores are out of its reach."
      : `Nothing is broken: one pass and three passes differ by ${format(verdict.fraction, 2)} of the gate.`;
  }
  if (fault.startsWith("forget")) {
    const what = { "forget-o": "o", "forget-l": "l", "forget-both": "l and o" }[fault];
    const [it, keep] = fault === "forget-both" ? ["they were", "keep"] : ["it was", "keeps"];
    let step = 0; // the tile whose forgotten factor is the smallest, after the first tile
    let moves = 0;
    for (let t = 1; t < tiles; t++) {
      if (rescale[t] === 1) continue;
      moves += 1;
      if (!step || rescale[t] < rescale[step]) step = t;
    }
    if (!moves) {
      return `${head}the maximum never moves after the first tile, so every later rescale factor is 1: forgetting it changes nothing.`;
    }
    const move = `the maximum moves from ${format(m[step])} to ${format(m[step + 1])} in tile ${step + 1}`;
    return failed
      ? `${head}${move}; ${what} should shrink there to ${format(rescale[step])} of what ${it}, but ${keep} all of it.`
      : `${head}${move}, but what ${what} ${keep} too much changes the answer by only ${format(verdict.fraction, 2)} of the gate.`;
  }
  if (fault === "start-at-0") {
    if (!failed) {
      return top >= 0
        ? `${head}the largest score is ${format(top)}, not below the 0 that m starts from, so m ends where it should.`
        : `${head}every score is below 0 and m stays at 0, but that cancels in o / l while exp(s) is not too small for float32 (here l = ${format(l[tiles])}).`;
    }
    return empty
      ? `${head}every score is below −103.9, m stays at 0, so every weight exp(s − 0) underflows to 0, and 0 / 0 is NaN.`
      : `${head}every score is below 0, m stays at 0, and ${few}.`;
  }
  if (fault === "no-maximum") {
    if (!failed) {
      return `${head}the largest score is ${format(top)}; exp overflows float32 only past 88.7, and until then the missing maximum cancels in o / l.`;
    }
    if (infKey >= 0) {
      return `${head}exp(${format(scores[infKey])}) is inf: float32 ends at 3.4e38, which exp passes at 88.7. Then inf / inf is NaN.`;
    }
    if (empty) return `${head}every weight exp(s) underflows to 0, and 0 / 0 is NaN.`;
    if (!Number.isFinite(l[tiles])) return `${head}no single weight overflows, but their sum l does: inf.`;
    if (!o[tiles].every(Number.isFinite)) return `${head}no single weight overflows, but their sum in o does: inf.`;
    return `${head}nothing is subtracted, and ${few}.`;
  }
  // tile-maximum
  const fall = rescale.findIndex((r) => r > 1);
  if (!failed) {
    return fall < 0
      ? `${head}no tile has a smaller maximum than the tile before it, so the tile maximum is the running maximum.`
      : `${head}m falls in tile ${fall + 1}, and there exp(m − m′) = ${format(rescale[fall])} makes l and o grow. That cancels in o / l until a factor overflows.`;
  }
  const burst = rescale.findIndex((r) => r === Infinity);
  if (burst >= 0) {
    return `${head}m falls from ${format(m[burst])} to ${format(tileMax[burst])} in tile ${burst + 1}; the factor exp(${format(m[burst] - tileMax[burst])}) is inf in float32, and inf / inf is NaN.`;
  }
  return `${head}m falls in tile ${fall + 1}, and the growing factors carry l or o past what float32 holds (l = ${format(l[tiles])}).`;
}
