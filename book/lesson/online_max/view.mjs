// The view: draws a model's state, and writes the reader's changes back to it.
import {
  CASES, FAULTS, N, SCORE_LIMIT, agreement, apart, caseScores, explain, format,
  held, judge, keyValues, threePass, tileWidths, walk,
} from "./core.mjs";

const PLAY_MS = 1100; // one step of "play"
const TWEEN_MS = 350; // weights shrink before the reader's eyes
const SVG = "http://www.w3.org/2000/svg";

// Jupyter's shortcuts see a key before the element that has the focus. That element itself must say
// that it keeps its keys: Jupyter tries the focused element first and only then asks its parents.
const KEEPS_KEYS = "data-lm-suppress-shortcuts";

function element(tag, attributes = {}, ...children) {
  const node = tag.startsWith("svg:")
    ? document.createElementNS(SVG, tag.slice(4))
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) node.setAttribute(name, value === true ? "" : value);
  }
  if (["button", "input", "select", "summary"].includes(tag) || "tabindex" in attributes || attributes.role === "slider")
    node.setAttribute(KEEPS_KEYS, "true");
  node.append(...children);
  return node;
}

const svg = (tag, attributes, ...children) => element("svg:" + tag, attributes, ...children);

// A number as text, with the exact value for machines.
function value(x, digits, className) {
  return element("data", { value: String(x), class: className }, format(x, digits));
}

function option(name, label = name) {
  return element("option", { value: name }, label);
}

function labelled(text, control, className = "") {
  control.setAttribute("aria-label", text); // a label around a list of options would read them all
  return element("label", { class: "om-field " + className }, element("span", {}, text), control);
}

// Round steps for an axis: about `count` of them between lo and hi.
function ticks(lo, hi, count) {
  const rough = (hi - lo) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((f) => f * power >= rough);
  const first = Math.ceil(lo / step);
  return Array.from({ length: Math.floor(hi / step) - first + 1 }, (_, i) => (first + i) * step);
}

// A thin bar under a number: from the left edge, or from the middle where signs differ.
function bar(x, peak, fromLeft) {
  const share = Number.isFinite(x) && peak > 0 ? Math.min(1, Math.abs(x) / peak) : 1;
  const length = 100 * share * (fromLeft ? 1 : 0.5);
  const left = fromLeft ? 0 : x < 0 ? 50 - length : 50;
  return element("i", { class: `om-bar ${fromLeft ? "" : "om-signed"}` },
    element("i", { class: Number.isFinite(x) ? "" : "om-burst", style: `left:${left}%;width:${length}%` }));
}

function peak(xs) {
  return xs.reduce((a, x) => (Number.isFinite(x) ? Math.max(a, Math.abs(x)) : a), 0);
}

function keySpan(first, last) {
  return first === last ? `key ${first}` : `keys ${first}–${last}`;
}

// What the step did, in one sentence: shown under the picture and announced.
function narrate(state, t) {
  const { m, l, rescale, tileMax, tile, tiles, forgetL, forgetO } = state;
  if (t === 0) return "Nothing has been read: m is " + format(m[0]) + ", l and o are 0.";
  const r = rescale[t - 1];
  const before = t > 1 ? keySpan(1, (t - 1) * tile) : "";
  const max = `Tile ${t} of ${tiles}: its maximum is ${format(tileMax[t - 1])}. `;
  const move = m[t] === m[t - 1]
    ? `Then m stays at ${format(m[t])}`
    : `Then m moves from ${format(m[t - 1])} to ${format(m[t])}`;
  let effect = "";
  if (t > 1) {
    if (r === 1) effect = `, the factor is 1, and ${before} keep their weights`;
    else if (forgetL && forgetO) effect = `, but ${before} keep their weights: the factor ${format(r)} is forgotten`;
    else if (forgetL || forgetO) {
      effect = `; in ${forgetL ? "o" : "l"}, ${before} ${r < 1 ? "shrink" : "grow"} to ${format(r)} of what they were, but in ${forgetL ? "l" : "o"} they keep their weights`;
    } else effect = `, so ${before} ${r < 1 ? "shrink" : "grow"} to ${format(r)} of what they were`;
  }
  return `${max}${move}${effect}. l is ${format(l[t], 5)}.`;
}

function verdictText({ passed, fraction }) {
  if (Number.isNaN(fraction)) return "Gate: failed, not finite";
  return `Gate: ${passed ? "passed" : "failed"} at ${format(fraction, 2)}`;
}

function render({ model, el }) {
  const get = (name) => model.get(name);
  const captured = get("captured");
  const names = ["scores", "tile", "step", "case", "fault", "seed"];
  const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
  let scores, values, state, answer, verdict, distance, reference, steps, step; // of the last draw
  let key = null; // the selected key, counted from 0
  let range = null; // the score axis, held still during a drag
  let dragging = false;
  let width = 0;
  let timer = null;
  let frame = null;
  let shown = null; // the weights on the screen: where the next tween starts

  function save(changes) {
    for (const [name, x] of Object.entries(changes)) model.set(name, x);
    model.save_changes();
  }

  // ---- controls
  const caseBox = element("select", { onchange: () => chooseCase(caseBox.value, get("seed")) },
    ...CASES.map((name) => option(name)));
  const seedBox = element("input", {
    type: "number", min: 0, max: 9999, step: 1,
    onchange: () => chooseCase("random", Math.min(9999, Math.max(0, Math.round(Number(seedBox.value) || 0)))),
  });
  const tileBox = element("select", { onchange: () => {
    const tile = Number(tileBox.value); // the reader who watches the end goes on watching the end
    save({ step: step === steps ? scores.length / tile : Math.min(step, scores.length / tile), tile });
  } });
  const faultBox = element("select", { onchange: () => save({ fault: faultBox.value }) },
    ...Object.entries(FAULTS).map(([name, label]) => option(name, label)));
  const resetButton = element("button", { type: "button", onclick: () => chooseCase(get("case"), get("seed")) }, "Reset scores");
  const seedField = labelled("Seed", seedBox);
  const controls = captured
    ? element("p", { class: "om-source" }, captured.label)
    : element("div", { class: "om-controls" }, labelled("Case", caseBox), seedField, labelled("Tile width", tileBox),
      labelled("Break it", faultBox), resetButton);

  function chooseCase(name, seed) {
    save({ case: name, seed, scores: caseScores(name, seed) });
  }

  const badge = element("strong", { class: "om-badge" });
  const reason = element("span", { class: "om-reason" });
  const verdictLine = element("p", { class: "om-verdict" }, badge, " ", reason);

  // ---- picture
  const canvas = svg("svg", { role: "img" });
  const sliders = element("div", { class: "om-sliders", role: "group", "aria-label": "Scores, one slider per key. Left and right choose a key, up and down change its score." });
  const plot = element("div", { class: "om-plot" }, canvas, sliders);
  const keyBox = element("input", { type: "number", min: 1, step: 1, onchange: () => {
    key = Math.min(scores.length, Math.max(1, Math.round(Number(keyBox.value) || 1))) - 1;
    draw();
  } });
  const scoreBox = element("input", { type: "number", min: -SCORE_LIMIT, max: SCORE_LIMIT, step: "any", onchange: () => {
    if (scoreBox.value !== "") setScore(key, Number(scoreBox.value));
    draw();
  } });
  const editRow = element("div", { class: "om-edit" }, element("span", { class: "om-hint" }, "Drag a bar, or set"),
    labelled("key", keyBox), labelled("to score", scoreBox));

  // ---- steps
  const previousButton = element("button", { type: "button", onclick: () => go(step - 1) }, "‹ Previous");
  const playButton = element("button", { type: "button", onclick: () => (timer ? pause() : play()) }, "▶ Play");
  const nextButton = element("button", { type: "button", onclick: () => go(step + 1) }, "Next ›");
  const stepBox = element("input", { type: "range", min: 0, step: 1, oninput: () => go(Number(stepBox.value)) });
  const stepText = element("output", { class: "om-steptext" });
  const stepRow = element("div", { class: "om-steps" }, previousButton, playButton, nextButton,
    labelled("Tile", stepBox, "om-range"), stepText);
  const story = element("p", { class: "om-story" });

  function go(to) {
    pause();
    save({ step: Math.min(steps, Math.max(0, to)) });
  }

  function play() {
    if (step >= steps) save({ step: 0 });
    timer = setInterval(() => {
      if (step < steps) save({ step: step + 1 });
      if (step >= steps) pause();
    }, PLAY_MS);
    playButton.textContent = "⏸ Pause";
  }

  function pause() {
    clearInterval(timer);
    timer = null;
    playButton.textContent = "▶ Play";
  }

  // ---- numbers
  const rules = element("div", { class: "om-rules" });
  const table = element("table", { class: "om-state om-bars" });
  const final = element("div", { class: "om-final" });
  const numbers = element("div", { class: "om-numbers" }, rules, element("div", {}, table, final));
  const log = element("div", { class: "om-scroll", tabindex: 0, role: "group", "aria-label": "All tiles" });
  const details = element("details", { ontoggle: () => drawLog() }, element("summary", {}, "All tiles as a table"), log);
  const mark = captured ? captured.mark : "computed";
  const source = element("p", { class: "om-note" }, element("span", { class: `mark mark-${mark}` }, mark), " ",
    captured ? captured.note : "in float32, by this picture; no kernel ran");
  const live = element("p", { class: "om-live", "aria-live": "polite" });

  const root = element("div", { class: "online-max", role: "group", "aria-label": "The online maximum, tile by tile" },
    controls, verdictLine, plot, ...(captured ? [] : [editRow]), stepRow, story, numbers, details, source, live);
  el.replaceChildren(root);

  // ---- geometry
  let place; // of the last draw: x of a key, y of a score, sizes
  function layout() {
    const n = scores.length, tile = get("tile"), tiles = n / tile;
    const narrow = width < 520;
    const left = narrow ? 34 : 44, right = 8;
    const gap = tiles === 1 ? 0 : Math.min(narrow ? 4 : 8, (width - left - right) / tiles / 4);
    const column = (width - left - right - gap * tiles) / n;
    const top = 24, scoreHeight = narrow ? 150 : 190, strip = 26, title = 20, half = narrow ? 46 : 58;
    const axis = top + scoreHeight + strip + title + half; // the line between "in o" and "in l"
    if (!range) {
      const lo = scores.reduce((a, b) => Math.min(a, b), 0), hi = scores.reduce((a, b) => Math.max(a, b), 0);
      const pad = Math.max(1, (hi - lo) * 0.12);
      range = [lo < 0 ? lo - pad : 0, hi > 0 ? hi + pad : 0];
    }
    const [lo, hi] = range;
    place = {
      n, tile, tiles, left, right, column, gap, top, scoreHeight, axis, half, strip, title,
      bottom: top + scoreHeight,
      height: axis + half + title + 4,
      tileX: (t) => left + gap / 2 + t * (tile * column + gap),
      tileWidth: tile * column,
      barX: (j) => left + gap / 2 + j * column + Math.floor(j / tile) * gap,
      y: (s) => top + ((hi - s) / (hi - lo)) * scoreHeight,
      s: (y) => hi - ((y - top) / scoreHeight) * (hi - lo),
      grain: hi - lo < 40 ? 0.25 : 1,
    };
  }

  // Rectangles from y0 to y1 of keys, as one path: thousands of bars are one element.
  function bars(keys, y0, y1, inset = 0.14) {
    const pad = place.column * inset, w = place.column - 2 * pad;
    let d = "";
    for (const j of keys) {
      const a = y0(j), b = y1(j);
      if (a !== b) d += `M${(place.barX(j) + pad).toFixed(2)} ${a.toFixed(2)}h${w.toFixed(2)}V${b.toFixed(2)}h${(-w).toFixed(2)}z`;
    }
    return d;
  }

  function ruleAcross(y, className) {
    return svg("line", { x1: place.left, x2: width - place.right, y1: y, y2: y, class: className });
  }

  function text(x, y, className, content, anchor = "start") {
    return svg("text", { x, y, class: className, "text-anchor": anchor }, content);
  }

  function span(from, to) {
    return Array.from({ length: Math.max(0, to - from) }, (_, i) => from + i);
  }

  // ---- drawing
  function drawScores() {
    const p = place, now = span((step - 1) * p.tile, step * p.tile).filter((j) => j >= 0);
    const zero = p.y(0), parts = [];
    if (step > 0) {
      parts.push(svg("rect", { x: p.tileX(step - 1) - 3, y: p.top - 6, width: p.tileWidth + 6, height: p.height - p.top + 4, rx: 5, class: "om-now" }));
    }
    for (const s of ticks(...range, 4)) {
      parts.push(ruleAcross(p.y(s), s === 0 ? "om-zero" : "om-grid"), text(p.left - 6, p.y(s) + 4, "om-tick", format(s), "end"));
    }
    const heights = (keys) => bars(keys, () => zero, (j) => p.y(scores[j]));
    parts.push(
      svg("path", { class: "om-score-past", d: heights(span(0, (step - 1) * p.tile)) }),
      svg("path", { class: "om-score-now", d: heights(now) }),
      svg("path", { class: p.column < 5 ? "om-score-next om-fine" : "om-score-next", d: heights(span(step * p.tile, p.n)) }),
      text(p.left, 12, "om-title", "score of each key"),
    );
    // The running maximum: a staircase up to this step.
    let d = "";
    for (let t = 1; t <= step; t++) {
      if (!Number.isFinite(state.m[t])) continue;
      d += `${d ? "L" : "M"}${p.tileX(t - 1) - p.gap / 2} ${p.y(state.m[t])}h${p.tileWidth + p.gap}`;
    }
    const m = state.m[step], before = state.m[step - 1];
    if (d) {
      parts.push(svg("path", { class: "om-max", d }));
      const x = p.tileX(step - 1), late = step > p.tiles / 2;
      const label = (y, className, words) =>
        parts.push(text(late ? x - 8 : x + p.tileWidth + 8, y + 4, className, words, late ? "end" : "start"));
      const moved = step > 1 && before !== m && Number.isFinite(before);
      label(p.y(m) - (moved && Math.abs(p.y(m) - p.y(before)) > 14 ? 0 : 10), "om-max-label", `m′ = ${format(m)}`);
      if (moved) {
        const y = p.y(before);
        parts.push(svg("path", { class: "om-max-before", d: `M${x} ${y}h${p.tileWidth}` }),
          svg("path", { class: "om-arrow", d: arrow(x + p.tileWidth / 2, y, p.y(m)) }));
      }
    }
    // The tiles' numbers, between the two pictures.
    const every = Math.ceil(18 / (p.tileWidth + 1));
    parts.push(text(p.left - 6, p.bottom + 18, "om-tick", "tile", "end"));
    for (let t = 0; t < p.tiles; t++) {
      if (t + 1 !== step && (t % every || Math.abs(t + 1 - step) < every)) continue;
      parts.push(text(p.tileX(t) + p.tileWidth / 2, p.bottom + 18, t + 1 === step ? "om-tile om-tile-now" : "om-tile", String(t + 1), "middle"));
    }
    return parts;
  }

  function arrow(x, from, to) {
    const size = Math.sign(to - from) * Math.min(6, Math.abs(to - from));
    return `M${x} ${from}V${to - size}M${x - 4} ${to - size}L${x} ${to}L${x + 4} ${to - size}`;
  }

  // Weights: what o holds of each key upwards, what l holds downwards. A right walk is symmetric.
  const weights = { past: svg("path", { class: "om-held-past" }), now: svg("path", { class: "om-held-now" }), bad: svg("path", { class: "om-held-bad" }) };
  function drawHeld(inO, inL, unit) {
    const p = place, read = step * p.tile, first = read - p.tile;
    const size = (x) => (Number.isFinite(x) ? (x / unit) * p.half : p.half);
    const both = (keys) => bars(keys, (j) => p.axis - size(inO[j]), () => p.axis - 0.5) + bars(keys, () => p.axis + 0.5, (j) => p.axis + size(inL[j]));
    weights.past.setAttribute("d", both(span(0, first).filter((j) => Number.isFinite(inO[j]) && Number.isFinite(inL[j]))));
    weights.now.setAttribute("d", both(span(Math.max(0, first), read).filter((j) => Number.isFinite(inO[j]) && Number.isFinite(inL[j]))));
    weights.bad.setAttribute("d", both(span(0, read).filter((j) => !(Number.isFinite(inO[j]) && Number.isFinite(inL[j])))));
  }

  function drawWeights() {
    const p = place, t = step, parts = [];
    const { inO, inL, due } = held(state, t);
    const old = held(state, Math.max(0, t - 1));
    const most = peak([...inO, ...inL]);
    const unit = most > 1 || (most > 0 && most < 1e-3) ? most : 1;
    const size = (x) => Math.min(p.half, (x / unit) * p.half);
    parts.push(ruleAcross(p.axis, "om-zero"), text(p.left - 6, p.axis - p.half + 8, "om-tick", format(unit, 2), "end"),
      text(p.left - 6, p.axis + 4, "om-tick", "0", "end"), text(p.left - 6, p.axis + p.half, "om-tick", format(unit, 2), "end"));
    const past = span(0, (t - 1) * p.tile);
    const shrunk = (was, is) => past.filter((j) => Math.abs(size(was[j]) - size(is[j])) > 1);
    parts.push(svg("path", { class: p.column < 5 ? "om-ghost om-fine" : "om-ghost", d:
      bars(shrunk(old.inO, inO), (j) => p.axis - size(old.inO[j]), (j) => p.axis - size(inO[j])) +
      bars(shrunk(old.inL, inL), (j) => p.axis + size(inL[j]), (j) => p.axis + size(old.inL[j])) }));
    parts.push(weights.past, weights.now, weights.bad);
    // Where a fault keeps too much, a mark shows what should be left.
    const wrong = (is) => past.filter((j) => Math.abs(is[j] - due[j]) > 1e-3 * unit && Number.isFinite(is[j]));
    if (state.forgetO || state.forgetL) {
      parts.push(svg("path", { class: "om-due", d:
        bars(wrong(inO), (j) => p.axis - size(due[j]) - 1, (j) => p.axis - size(due[j]) + 1, 0) +
        bars(wrong(inL), (j) => p.axis + size(due[j]) - 1, (j) => p.axis + size(due[j]) + 1, 0) }));
    }
    const lost = span(0, t * p.tile).find((j) => !Number.isFinite(inO[j]) || !Number.isFinite(inL[j]));
    if (lost !== undefined) {
      const x = Math.min(width - p.right - 14, Math.max(p.left + 14, p.barX(lost) + p.column / 2));
      parts.push(text(x, p.axis - p.half / 2, "om-lost", format(inO[lost]), "middle"), text(x, p.axis + p.half / 2 + 8, "om-lost", format(inL[lost]), "middle"));
    }
    const note = (name, forgotten, y) => {
      const title = text(p.left, y, "om-title", width < 520 ? `weight in ${name}` : `weight of each key in ${name}`);
      parts.push(title);
      if (t < 2) return;
      const r = state.rescale[t - 1], wrong = forgotten && r !== 1;
      title.append(svg("tspan", { class: wrong ? "om-wrong" : "om-factor", dx: 10 },
        `earlier keys × ${format(r)}${wrong ? ": forgotten" : ""}`));
    };
    note("o", state.forgetO, p.axis - p.half - 8);
    note("l", state.forgetL, p.axis + p.half + 16);
    return { parts, inO, inL, unit };
  }

  function drawPicture() {
    layout();
    canvas.setAttribute("width", width);
    canvas.setAttribute("height", place.height);
    canvas.setAttribute("viewBox", `0 0 ${width} ${place.height}`);
    canvas.setAttribute("aria-label", `Scores in ${place.tiles} tiles, the running maximum, and the weight that o and l hold of each key. ${narrate(state, step)}`);
    const { parts, inO, inL, unit } = drawWeights();
    canvas.replaceChildren(...drawScores(), ...parts);
    tween(inO, inL, unit);
    drawSliders();
  }

  // From the weights on the screen to the new ones; numbers never wait for it.
  function tween(inO, inL, unit) {
    cancelAnimationFrame(frame);
    const from = shown, target = { inO, inL, unit };
    shown = target;
    if (!from || dragging || reducedMotion.matches) return drawHeld(inO, inL, unit);
    const start = performance.now();
    const mix = (a, b, f) => b.map((x, j) => (Number.isFinite(a[j]) && Number.isFinite(x) ? a[j] + (x - a[j]) * f : x));
    const tick = (now) => {
      const f = Math.min(1, Math.max(0, (now - start) / TWEEN_MS)), ease = 1 - (1 - f) ** 3;
      drawHeld(mix(from.inO, inO, ease), mix(from.inL, inL, ease), unit);
      if (f < 1) frame = requestAnimationFrame(tick);
    };
    tick(start);
  }

  // ---- the bars as sliders: one focusable element per key, over the picture
  let drawn = []; // what the sliders show: a step changes none of it
  function drawSliders() {
    const p = place, now = [scores, p.tile, width, key, ...range];
    if (captured || now.every((x, i) => x === drawn[i])) return;
    drawn = now;
    if (sliders.childElementCount !== p.n) {
      sliders.replaceChildren(...span(0, p.n).map((j) => element("div", {
        role: "slider", "aria-orientation": "vertical", "aria-valuemin": -SCORE_LIMIT, "aria-valuemax": SCORE_LIMIT,
        onkeydown: (event) => press(event, j), onfocus: () => choose(j), onpointerdown: (event) => grab(event, j),
      }, element("div", { class: "om-handle" }))));
    }
    sliders.style.height = `${p.bottom + 6}px`;
    for (let j = 0; j < p.n; j++) {
      const node = sliders.children[j];
      node.setAttribute("aria-label", `Score of key ${j + 1}, tile ${Math.floor(j / p.tile) + 1}`);
      node.setAttribute("aria-valuenow", scores[j]);
      node.setAttribute("tabindex", j === key ? 0 : -1);
      node.style.left = `${p.barX(j)}px`;
      node.style.width = `${p.column}px`;
      node.firstChild.style.top = `${p.y(scores[j])}px`;
    }
  }

  function choose(j) {
    if (key === j) return;
    key = j;
    drawSliders();
    drawKey();
  }

  function setScore(j, score) {
    if (!Number.isFinite(score)) return;
    const bounded = Math.fround(Math.min(SCORE_LIMIT, Math.max(-SCORE_LIMIT, score)));
    if (bounded === scores[j]) return;
    const next = [...scores];
    next[j] = bounded;
    save({ scores: next });
  }

  function press(event, j) {
    const by = { ArrowUp: 1, ArrowDown: -1, PageUp: 8, PageDown: -8 }[event.key];
    const to = { ArrowLeft: j - 1, ArrowRight: j + 1, Home: 0, End: scores.length - 1 }[event.key];
    if (by === undefined && to === undefined) return;
    event.preventDefault();
    if (by !== undefined) setScore(j, scores[j] + by * place.grain);
    else sliders.children[Math.min(scores.length - 1, Math.max(0, to))].focus();
  }

  function grab(event, j) {
    // A finger must take a bar by its end: elsewhere it scrolls the page.
    if (event.button !== 0 || (event.pointerType !== "mouse" && event.target === event.currentTarget)) return;
    const node = event.currentTarget;
    const move = (e) => {
      const y = e.clientY - plot.getBoundingClientRect().top;
      const s = Math.min(range[1], Math.max(range[0], place.s(y)));
      setScore(j, Math.round(s / place.grain) * place.grain);
    };
    const drop = () => {
      dragging = false;
      range = null;
      node.removeEventListener("pointermove", move);
      node.removeEventListener("pointerup", drop);
      node.removeEventListener("pointercancel", drop);
      draw();
    };
    event.preventDefault();
    node.setPointerCapture(event.pointerId);
    node.focus({ preventScroll: true });
    dragging = true;
    node.addEventListener("pointermove", move);
    node.addEventListener("pointerup", drop);
    node.addEventListener("pointercancel", drop);
    move(event);
  }

  function drawKey() {
    keyBox.max = scores.length;
    keyBox.value = key + 1;
    scoreBox.value = scores[key];
  }

  // ---- numbers of the step
  function drawNumbers() {
    const s = state, t = step, forgot = (is) => (is ? "om-wrong" : "");
    const columns = get("columns");
    numbers.classList.toggle("om-long", s.tile > 8);
    const recurrence = (name, sum, old, added, now, forgotten, r) =>
      rule(`${name}′ = ${name} · r + ${sum}`, value(old), " ",
        element("span", { class: forgotten ? "om-struck" : "" }, "· ", value(r)), " + ", value(added), " = ", value(now, 5, "om-key"));
    const rule = (name, ...content) => element("div", { class: "om-rule" }, element("span", { class: "om-lhs" }, name), element("span", { class: "om-rhs" }, ...content));
    if (t === 0) {
      rules.replaceChildren(rule("m", value(s.m[0])), rule("l", value(0)), rule("o", value(0), ", ", value(0), ", ", value(0)));
    } else {
      const r = s.rescale[t - 1];
      const tileScores = s.scores.slice((t - 1) * s.tile, t * s.tile);
      const tileWeights = s.w.slice((t - 1) * s.tile, t * s.tile);
      const listed = (xs) => xs.flatMap((x, i) => (i ? [", ", value(x, 3)] : [value(x, 3)]));
      const maximum = "m′ = max(m, tile maximum)";
      const broken = { "no-maximum": ["0: no maximum is taken"], "tile-maximum": ["the tile maximum alone = ", value(s.m[t], 4, "om-key")] }[s.fault];
      rules.replaceChildren(
        rule("tile maximum", "max(", ...listed(tileScores), ") = ", value(s.tileMax[t - 1], 4, "om-key")),
        rule(broken ? element("span", { class: "om-struck" }, maximum) : maximum, ...(broken ?? ["max(", value(s.m[t - 1]), ", ", value(s.tileMax[t - 1]), ") = ", value(s.m[t], 4, "om-key")])),
        rule("r = exp(m − m′)", "exp(", value(s.m[t - 1]), s.m[t] < 0 ? " + " : " − ", value(Math.abs(s.m[t])), ") = ", value(r, 4, "om-key")),
        rule("w = exp(s − m′), each key", ...listed(tileWeights)),
        rule("Σ w", value(s.total[t - 1], 5, "om-key")),
        recurrence("l", "Σ w", s.l[t - 1], s.total[t - 1], s.l[t], s.forgetL, r),
        recurrence(`o[${columns[0]}]`, "Σ w v", s.o[t - 1][0], s.added[t - 1][0], s.o[t][0], s.forgetO, r),
      );
    }
    const head = (...words) => element("thead", {}, element("tr", {}, ...words.map((w) => (w ? element("th", { scope: "col" }, w) : element("td")))));
    const cell = (x, digits, bar, className) => element("td", { class: className }, x === null ? "" : value(x, digits), x === null || !bar ? "" : bar(x));
    const line = (name, before, kept, added, after, wrong, bar) => element("tr", {},
      element("th", { scope: "row" }, name), cell(before, 4, bar, "om-before"), cell(kept, 4, bar, forgot(wrong)), cell(added, 4, bar),
      cell(after, name === "l" ? 5 : 4, bar, "om-after"));
    const comparison = (name, before, after, kernel, fraction, bar) => element("tr", {},
      element("th", { scope: "row" }, name), cell(before, 4, bar, "om-before"), cell(after, 5, bar, "om-after"), cell(kernel, 5, bar),
      cell(t ? fraction : 0, 2, null, forgot(t && !(fraction <= 1))));
    const b = Math.max(0, t - 1), r = t ? s.rescale[t - 1] : 1;
    const kept = (x, is) => (t === 0 ? null : is ? x : Math.fround(x * r));
    const barL = (x) => bar(x, peakL, true), barO = (x) => bar(x, peakO, false);
    const peakL = peak(s.l), peakO = peak(s.o.flat());
    table.replaceChildren(
      element("caption", {}, t ? `State before and after tile ${t}` : "State before the first tile"),
      captured ? head("", "before", "trace", "kernel", "of the gate") : head("", "before", "× r", "+ tile", "after"),
      element("tbody", {}, ...(captured
        ? [comparison("m", s.m[b], s.m[t], Number(captured.m[t]), distance[0][t - 1], null),
          comparison("l", s.l[b], s.l[t], Number(captured.l[t]), distance[1][t - 1], barL),
          ...columns.map((name, c) => comparison(`o[${name}]`, s.o[b][c], s.o[t][c], Number(captured.o[t][c]), distance[2 + c][t - 1], barO))]
        : [line("m", s.m[b], null, null, s.m[t]),
          line("l", s.l[b], kept(s.l[b], s.forgetL), t ? s.total[b] : null, s.l[t], s.forgetL && r !== 1 && t > 1, barL),
          ...columns.map((name, c) => line(`o[${name}]`, s.o[b][c], kept(s.o[b][c], s.forgetO), t ? s.added[b][c] : null, s.o[t][c],
            s.forgetO && r !== 1 && t > 1, barO))])));
    if (t < steps) {
      final.replaceChildren(element("p", { class: "om-pending" }, "After the last tile: o / l, beside the three-pass answer."));
      return;
    }
    final.replaceChildren(element("table", { class: "om-state" },
      element("caption", {}, "The answer, o / l"),
      head("", captured ? "kernel" : "o / l", "three passes", "of the gate"),
      element("tbody", {}, ...columns.map((name, c) => element("tr", {}, element("th", { scope: "row" }, `o[${name}]`),
        element("td", { class: "om-after" }, value(answer[c], 6)), element("td", {}, value(reference[c], 6)),
        element("td", { class: forgot(!(verdict.fractions[c] <= 1)) }, value(verdict.fractions[c], 3)))))));
  }

  function drawLog() {
    if (!details.open) return log.replaceChildren();
    const s = state, cell = (x) => element("td", {}, value(x, 5)), columns = get("columns");
    log.replaceChildren(element("table", { class: "om-state" },
      element("thead", {}, element("tr", {}, ...["tile", "tile max", "m", "r", "Σ w", "l", ...columns.map((c) => `o[${c}]`)].map((x) => element("th", { scope: "col" }, x)))),
      element("tbody", {}, ...span(0, steps + 1).map((t) => element("tr", { class: t === step ? "om-row-now" : "" },
        element("th", { scope: "row" }, String(t)), ...(t ? [cell(s.tileMax[t - 1])] : [element("td", {}, "")]), cell(s.m[t]),
        ...(t ? [cell(s.rescale[t - 1]), cell(s.total[t - 1])] : [element("td", {}, ""), element("td", {}, "")]),
        cell(s.l[t]), ...s.o[t].map(cell))))));
  }

  let announcing = null;
  let spoken = false; // the first picture is read with the page, not announced
  function announce(words) {
    if (!spoken) return (spoken = true);
    clearTimeout(announcing); // a drag makes many changes: only the last is spoken
    announcing = setTimeout(() => (live.textContent = words), 150);
  }

  function draw() {
    if (!width) return;
    scores = get("scores");
    values = get("values") ?? keyValues(scores.length);
    const tile = get("tile");
    if (scores.length % tile) return; // Python is about to send the other half of a change
    steps = scores.length / tile;
    step = Math.min(get("step"), steps);
    key = Math.min(key ?? scores.length - 1, scores.length - 1);
    state = walk(scores, values, tile, get("fault"));
    reference = threePass(scores, values);
    answer = captured ? captured.answer.map(Number) : state.answer;
    verdict = judge(answer, reference, scores, get("gate"));
    distance = captured && apart(state, captured, verdict.rtol);

    caseBox.value = get("case");
    seedBox.value = get("seed");
    seedField.hidden = get("case") !== "random";
    if (tileBox.dataset.keys !== String(scores.length)) {
      tileBox.dataset.keys = scores.length;
      tileBox.replaceChildren(...tileWidths(scores.length).map((w) => option(w)));
    }
    tileBox.value = tile;
    faultBox.value = get("fault");
    const original = scores.length === N ? caseScores(get("case"), get("seed")) : [];
    resetButton.disabled = scores.every((x, j) => x === original[j]);
    stepBox.max = steps;
    stepBox.value = step;
    stepBox.setAttribute("aria-valuetext", `tile ${step} of ${steps}`);
    stepText.textContent = `${step} of ${steps}`;
    previousButton.disabled = step === 0;
    nextButton.disabled = step === steps;

    if (!dragging) range = null;
    drawPicture();
    drawKey();
    drawNumbers();
    drawLog();
    badge.textContent = verdictText(verdict);
    const missed = verdict.passed && state.fault !== "none";
    badge.className = `om-badge ${verdict.passed ? (missed ? "om-missed" : "om-pass") : "om-fail"}`;
    reason.textContent = captured ? agreement(state, distance) : explain(state, verdict);
    story.textContent = narrate(state, step);
    announce(`${narrate(state, step)} ${verdictText(verdict)}.`);
  }

  const resize = new ResizeObserver(() => {
    const next = Math.max(240, Math.floor(plot.clientWidth));
    if (next === width) return;
    width = next;
    shown = null;
    draw();
  });
  resize.observe(plot);
  for (const name of names) model.on(`change:${name}`, draw);

  return () => {
    pause();
    clearTimeout(announcing);
    cancelAnimationFrame(frame);
    resize.disconnect();
    for (const name of names) model.off(`change:${name}`, draw);
  };
}

export default { render };

// ---- the static page: no Python, so the state lives here
function staticModel(state) {
  const listeners = {};
  return {
    get: (name) => state[name],
    set(name, x) {
      state[name] = x;
      for (const listener of listeners[`change:${name}`] ?? []) listener();
    },
    save_changes() {},
    on: (event, listener) => (listeners[event] ??= new Set()).add(listener),
    off: (event, listener) => listeners[event]?.delete(listener),
  };
}

// Starts every static form on the page that has not started yet: each brings this module, and the
// first one to run serves them all.
export function startStatic() {
  for (const host of document.querySelectorAll(".online-max-static:not([data-started])")) {
    const data = host.querySelector("script[type='application/json']");
    if (!data) continue;
    host.setAttribute("data-started", "");
    render({ model: staticModel(JSON.parse(data.textContent)), el: host.querySelector(".online-max-root") });
  }
}
