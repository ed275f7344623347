// What a warp did, step by step, from the data of recording.py. No DOM: node runs this file too.
//
// Passes and sectors are worked out here from the lanes' addresses, to be drawn; the tests hold them
// to what the emulator has counted.

export const LANES = 32, BANKS = 32, SECTOR = 32;

const VERBS = { r: "read", w: "write", a: "change" };

// Step i as it was: {kind, line, inner, place, bytes, offsets (one a lane, null where it takes no part), cost,
// least}. The step after the last is the end.
export function stepAt(data, i) {
  if (i >= data.steps.length) return { kind: "end", line: data.failed ?? -1, inner: -1, place: -2, offsets: [] };
  const [number, second, lowest, cost, least] = data.steps[i];
  const [line, kind, place, bytes, inner] = data.sites[number];
  if (kind === "b") return { kind, line, inner, place, bytes, offsets: [], station: second };
  return { kind, line, inner, place, bytes, cost, least, offsets: spread(data.patterns[second], lowest) };
}

function spread([mask, ...form], lowest) {
  const offsets = Array(LANES).fill(null);
  let next = 0;
  for (let lane = 0; lane < LANES; lane++) {
    if (!((mask >>> lane) & 1)) continue;
    const [group, a, b] = form;
    offsets[lane] = lowest + (form.length === 3 ? a * (lane % group) + b * Math.floor(lane / group) : form[0][next++]);
  }
  return offsets;
}

export const lanesOf = ({ offsets }) => offsets.flatMap((x, lane) => (x === null ? [] : [lane]));
export const isAccess = ({ kind }) => kind in VERBS;
export const isShared = (data, { place }) => place >= 0 ? "start" in data.arrays[place] : place === -1;

// The name of what lies at an offset: k[3][5], rowSum[7], kTile word 56.
export function elementName(data, place, offset) {
  const array = data.arrays[place];
  if (!array) return place === -1 ? `shared word ${Math.floor(offset / 4)}` : "memory of no array";
  if ("start" in array) return `${array.name} word ${Math.floor((offset - array.start) / 4)}`;
  let index = Math.floor(offset / 4);
  const places = [];
  for (const size of array.shape.slice(1).reverse()) {
    places.unshift(((index % size) + size) % size);
    index = Math.floor(index / size);
  }
  return array.name + [index, ...places].map((i) => `[${i}]`).join("");
}

// The words that a step touches, in their order, and the lanes that touch each.
function wordsOf(s, lanes = lanesOf(s)) {
  const words = new Map();
  for (const lane of lanes) {
    const first = Math.floor(s.offsets[lane] / 4), last = Math.floor((s.offsets[lane] + Math.max(1, s.bytes) - 1) / 4);
    for (let word = first; word <= last; word++) words.set(word, [...(words.get(word) ?? []), lane]);
  }
  return [...words].sort(([a], [b]) => a - b);
}

// The passes of an access of shared memory: for each, {bank: [word, lanes]}. 8 and 16 bytes a lane
// are served by halves and quarters of the warp.
export function passes(s) {
  const lanes = lanesOf(s), width = Math.max(1, Math.floor(s.bytes / 4)), found = [];
  for (let first = 0; first < LANES; first += LANES / width) {
    const columns = new Map(); // of this part of the warp: bank -> its words
    for (const [word, who] of wordsOf(s, lanes.filter((lane) => lane >= first && lane < first + LANES / width))) {
      const bank = word % BANKS;
      columns.set(bank, [...(columns.get(bank) ?? []), [word, who]]);
    }
    const deepest = Math.max(0, ...[...columns.values()].map((words) => words.length));
    for (let pass = 0; pass < deepest; pass++)
      found.push(new Map([...columns].flatMap(([bank, words]) => (words[pass] ? [[bank, words[pass]]] : []))));
  }
  return found;
}

// The sectors of 32 bytes that an access of global memory needs, and the fewest for as many bytes.
export function sectors(s) {
  const bytes = new Set();
  for (const lane of lanesOf(s))
    for (let i = 0; i < Math.max(1, s.bytes); i++) bytes.add(s.offsets[lane] + i);
  return { needed: [...new Set([...bytes].map((b) => Math.floor(b / SECTOR)))].sort((a, b) => a - b), least: Math.ceil(bytes.size / SECTOR) };
}

export const cost = (data, s) => (isShared(data, s) ? passes(s).length : sectors(s).needed.length);

// Rows of words to draw: of shared memory a row a pass and a column a bank, of global memory a row for
// each `columns` words in a line. A cell: {column, word, lanes}.
export function rows(data, s, columns) {
  const found = [];
  if (isShared(data, s)) {
    passes(s).forEach((banks, pass) => {
      for (let first = 0; first < BANKS; first += columns) {
        const cells = [...banks].filter(([bank]) => bank >= first && bank < first + columns)
          .map(([bank, [word, lanes]]) => ({ column: bank - first, word, lanes }));
        if (cells.length || columns === BANKS) found.push({ label: `pass ${pass + 1}`, first, cells, boxes: [] });
      }
    });
    return found;
  }
  const lines = new Map();
  for (const [word, lanes] of wordsOf(s)) {
    const line = Math.floor(word / columns);
    if (!lines.has(line)) lines.set(line, { label: elementName(data, s.place, line * columns * 4), first: 0, cells: [], boxes: [] });
    lines.get(line).cells.push({ column: word - line * columns, word, lanes });
  }
  for (const sector of sectors(s).needed)
    lines.get(Math.floor((sector * 8) / columns))?.boxes.push((sector * 8) % columns);
  return [...lines.values()];
}

// ---- places in the run

export const length = (data) => data.steps.length + 1;

// Which step of the whole run this is, from 1 on: what is left out has been counted.
export function numbers(data) {
  const found = [];
  let at = 0;
  for (let i = 0; i < data.steps.length; i++) {
    found.push(++at);
    at += left(data, i).reduce((sum, [, steps]) => sum + steps, 0);
  }
  return [...found, at];
}

export const left = (data, i) => data.folds[i] ?? [];

function next(data, from, wanted) {
  const n = length(data);
  for (let i = 1; i <= n; i++) if (wanted(stepAt(data, (from + i) % n))) return (from + i) % n;
  return from;
}

export const nextBarrier = (data, from) => next(data, from, (s) => s.kind === "b");
export const nextAtLine = (data, from, line) => next(data, from, (s) => s.line === line);

// The access that takes most times its least number of passes or sectors; -1 where each takes that.
export function worst(data) {
  let found = -1, most = 1;
  data.steps.forEach(([, , , cost, least], i) => {
    if (cost / least > most) [found, most] = [i, cost / least];
  });
  return found;
}

// ---- words

const count = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : what.endsWith("s") ? "es" : "s"}`;

function who(lanes) {
  return lanes.length === LANES ? "All 32 lanes" : lanes.length === 1 ? `Lane ${lanes[0]}` : `${lanes.length} lanes`;
}

function shuffleWords(s) {
  const lanes = lanesOf(s), from = lanes.map((lane) => s.offsets[lane]);
  if (new Set(from).size === 1) return `${who(lanes)} take the value of lane ${from[0]}`;
  const bit = lanes[0] ^ from[0];
  if (lanes.every((lane, i) => (lane ^ from[i]) === bit)) return `${who(lanes)} exchange values with the lane whose number differs by ${bit}`;
  return `${who(lanes)} take values of other lanes`;
}

export const lineName = (data, line) => (data.lines[line] ? `Line ${data.lines[line][0]}` : "Elsewhere");

// Step i in words: shown under the source, and announced.
export function describe(data, i) {
  const s = stepAt(data, i), lanes = lanesOf(s);
  let words;
  if (s.kind === "end") return data.end.passed === false ? `The end of what can be watched. ${data.end.text.split("\n")[0]}` : `Warp ${data.warp} has done its work: ${count(data.count, "step")}. ${data.end.text}`.trim();
  if (s.kind === "b") words = `warp ${data.warp} arrives at a barrier and waits for ${Math.ceil(data.threads / LANES) === 1 ? "all its lanes" : "the other warps"}`;
  else if (s.kind === "s") words = shuffleWords(s);
  else if (s.kind === "v") words = `${who(lanes)} meet in a warp operation`;
  else {
    const shared = isShared(data, s), name = data.arrays[s.place]?.name ?? (shared ? "shared memory" : "memory of no array");
    const different = wordsOf(s).length, verb = VERBS[s.kind] + (lanes.length === 1 ? "s" : "");
    words = `${who(lanes)} ${verb} ${count(different, shared ? "word" : "number")} of ${name}: `;
    const unit = shared ? "pass" : "sector";
    words += s.cost > s.least ? `${count(s.cost, unit)}, where ${s.least} would do` : `${count(s.cost, unit)}, the fewest that will do`;
  }
  const more = left(data, i).map(([trips, steps]) => ` Then ${count(trips, "trip")} of this loop ${trips === 1 ? "is" : "are"} left out: ${count(steps, "step")}, alike in lines, lanes and cost.`);
  const inside = s.inner >= 0 ? `, in line ${data.lines[s.inner][0]}` : "";
  return `${lineName(data, s.line)}${inside}: ${words}.${more.join("")}`;
}

// What one lane does in a step.
export function follow(data, s, lane) {
  const offset = s.offsets[lane];
  if (s.kind === "b" || s.kind === "end") return "";
  if (offset == null) return `Lane ${lane} takes no part.`;
  if (s.kind === "s") return `Lane ${lane} takes the value of lane ${offset}.`;
  if (s.kind === "v") return `Lane ${lane} takes part.`;
  const last = s.bytes > 4 ? ` to ${elementName(data, s.place, offset + s.bytes - 4)}` : "";
  const bank = isShared(data, s) ? `, bank ${Math.floor(offset / 4) % BANKS}` : "";
  return `Lane ${lane} ${VERBS[s.kind]}s ${elementName(data, s.place, offset)}${last}${bank}.`;
}

// A station: what each warp did since the barrier before, warps that did the same together.
export function station(data, number) {
  const groups = new Map();
  for (const [warp, work] of data.stations[number]) groups.set(work, [...(groups.get(work) ?? []), warp]);
  return [...groups].map(([work, warps]) => ({ warps, work: data.works[work] }));
}
