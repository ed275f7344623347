// The view: draws a step of the model, and writes the reader's changes back to it.
import {
  BANKS, LANES, describe, follow, isAccess, isShared, lanesOf, length, nextAtLine, nextBarrier, numbers, rows,
  sectors, station, stepAt, worst,
} from "./core.mjs";

const PLAY_MS = 900; // one step of "play"
const SVG = "http://www.w3.org/2000/svg";
const MAP = 76; // pixels that a map of an array is tall

// Jupyter's shortcuts see a key before the element that has the focus: it must say that it keeps it.
const KEEPS_KEYS = "data-lm-suppress-shortcuts";

function element(tag, attributes = {}, ...children) {
  const node = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) node.setAttribute(name, value === true ? "" : value);
  }
  if (["button", "input", "select"].includes(tag) || "tabindex" in attributes) node.setAttribute(KEEPS_KEYS, "true");
  node.append(...children);
  return node;
}

const svg = (tag, attributes, ...children) => element("svg:" + tag, attributes, ...children);
const rect = (x, y, width, height, className, more) => svg("rect", { x, y, width, height, class: className, ...more });
const text = (x, y, words, className, anchor = "middle") => svg("text", { x, y, class: className, "text-anchor": anchor }, words);

function labelled(words, control, className = "") {
  control.setAttribute("aria-label", words);
  return element("label", { class: `st-field ${className}` }, element("span", {}, words), control);
}

// A sentence whose part on too many passes or sectors stands out.
function sentence(words) {
  const found = words.match(/^(.*?: )(.*?)(: )([\d,]+ (?:passes|sectors), where \d+ would do)(.*)$/);
  if (!found) return [words];
  return [found[1] + found[2] + found[3], element("span", { class: "st-over" }, found[4]), found[5]];
}

function ranges(warps) {
  const found = [];
  for (const warp of warps) {
    const last = found.at(-1);
    if (last && last[1] === warp - 1) last[1] = warp;
    else found.push([warp, warp]);
  }
  return (warps.length === 1 ? "warp " : "warps ") + found.map(([a, b]) => (a === b ? a : `${a} to ${b}`)).join(", ");
}

function render({ model, el }) {
  const data = model.get("data"), last = length(data) - 1, number = numbers(data);
  let timer = null, width = 0, step, lane, s;

  function save(changes) {
    for (const [name, value] of Object.entries(changes)) model.set(name, value);
    model.save_changes();
  }

  function go(to) {
    pause();
    save({ step: Math.min(last, Math.max(0, to)) });
  }

  function play() {
    if (step >= last) save({ step: 0 });
    timer = setInterval(() => {
      if (step < last) save({ step: step + 1 });
      if (step >= last) pause();
    }, PLAY_MS);
    playButton.textContent = "⏸ Pause";
  }

  function pause() {
    clearInterval(timer);
    timer = null;
    playButton.textContent = "▶ Play";
  }

  // ---- controls
  const button = (words, onclick) => element("button", { type: "button", onclick }, words);
  const back = button("‹ Back", () => go(step - 1)), forth = button("Step ›", () => go(step + 1));
  const playButton = button("▶ Play", () => (timer ? pause() : play()));
  const barriers = data.sites.some((site) => site[1] === "b");
  const barrier = button("Next barrier", () => go(nextBarrier(data, step)));
  const costliest = worst(data);
  const worstButton = button("Worst access", () => go(costliest));
  const range = element("input", { type: "range", min: 0, max: last, step: 1, oninput: () => go(Number(range.value)) });
  const executed = [...new Set(data.sites.map((site) => site[0]))].filter((line) => line >= 0).sort((a, b) => a - b);
  const lineBox = element("select", { onchange: () => {
    if (lineBox.value !== "") go(nextAtLine(data, step, Number(lineBox.value)));
  } }, element("option", { value: "" }, "choose"), ...executed.map((line) => element("option", { value: line }, String(data.lines[line][0]))));
  const laneBox = element("select", { onchange: () => save({ lane: Number(laneBox.value) }) },
    element("option", { value: -1 }, "none"), ...Array.from({ length: LANES }, (_, i) => element("option", { value: i }, String(i))));
  const controls = element("div", { class: "st-controls" }, back, playButton, forth, labelled("Step", range, "st-range"),
    ...(barriers ? [barrier] : []), ...(costliest >= 0 ? [worstButton] : []),
    labelled("Go to line", lineBox), labelled("Follow lane", laneBox));

  // ---- the source
  const source = element("div", { class: "st-source", tabindex: 0, role: "group", "aria-label": "Source of the kernel. Left and right step, B goes to the next barrier, W to the worst access." });
  const sourceLines = data.lines.map(([place, words], i) => {
    const total = data.totals[i], over = [];
    if (total && total[1] > total[2]) over.push(`${total[1].toLocaleString("en")} passes, least ${total[2].toLocaleString("en")}`);
    if (total && total[4] > total[5]) over.push(`${total[4].toLocaleString("en")} sectors, least ${total[5].toLocaleString("en")}`);
    const runs = executed.includes(i);
    const line = element("div", { class: runs ? "st-line st-runs" : "st-line", onclick: runs ? () => go(nextAtLine(data, step, i)) : null },
      element("i", {}, String(place)), words, ...(over.length ? [element("b", {}, over.join("; "))] : []));
    return line;
  });
  for (const [i, line] of sourceLines.entries()) {
    const file = data.files.find(([first]) => first === i);
    if (file) source.append(element("div", { class: "st-file" }, file[1]));
    source.append(line);
  }
  source.addEventListener("keydown", (event) => {
    const to = { ArrowRight: step + 1, ArrowLeft: step - 1, Home: 0, End: last, b: barriers ? nextBarrier(data, step) : step, w: costliest < 0 ? step : costliest }[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    go(to);
  });

  // ---- maps of the arrays
  const maps = data.arrays.map((array, place) => {
    const shared = "start" in array;
    const shift = shared ? Math.floor(array.start / 4) % BANKS : 0;
    const columns = shared ? BANKS : array.shape.length > 1 ? array.shape.at(-1) : 1;
    const tall = shared ? Math.ceil((shift + array.bytes / 4) / BANKS) : Math.max(1, array.shape.reduce((a, b) => a * b, 1) / columns);
    const high = Math.min(shared ? 6 : 4, MAP / tall);
    const wide = shared ? 2.6 : columns === 1 ? 8 : 66 / columns;
    const ink = svg("g", {});
    const picture = svg("svg", { width: columns * wide + 2, height: tall * high + 2, viewBox: `-1 -1 ${columns * wide + 2} ${tall * high + 2}`, "aria-hidden": "true" },
      rect(0, 0, columns * wide, tall * high, "st-box"), ink);
    const words = shared ? `${array.name}, ${array.bytes.toLocaleString("en")} B` : `${array.name} ${array.shape.join(" x ")}`;
    const figure = element("figure", { class: "st-map" }, picture, element("figcaption", {}, words));
    return { figure, ink, columns, wide, high, place, shared, start: shared ? array.start - 4 * shift : 0 };
  });

  function drawMap(map) {
    const used = isAccess(s) && s.place === map.place, parts = [];
    map.figure.setAttribute("class", used ? "st-map st-used" : "st-map");
    if (used) {
      const { wide, high, columns } = map;
      const mark = (from, words, className) => { // from a word on, within its row
        const at = from - map.start / 4, x = (at % columns) * wide, y = Math.floor(at / columns) * high;
        const w = Math.max(2, words * wide), h = Math.max(2, high);
        return `<rect class="${className}" x="${x}" y="${y}" width="${w}" height="${h}"/>`;
      };
      if (!map.shared) for (const sector of sectors(s).needed) parts.push(mark(sector * 8, Math.min(8, columns), "st-need"));
      for (const i of lanesOf(s)) parts.push(mark(Math.floor(s.offsets[i] / 4), Math.max(1, s.bytes / 4), `st-${s.kind}`));
      if (s.offsets[lane] != null) parts.push(mark(Math.floor(s.offsets[lane] / 4), Math.max(1, s.bytes / 4), "st-mine"));
    }
    map.ink.innerHTML = parts.join("");
  }

  // ---- the picture of one step
  const picture = element("div", { class: "st-picture" });
  picture.addEventListener("click", (event) => {
    const chosen = event.target.closest("[data-lane]");
    if (chosen) save({ lane: Number(chosen.dataset.lane) === lane ? -1 : Number(chosen.dataset.lane) });
  });

  function drawAccess() {
    const shared = isShared(data, s), columns = width < 520 ? 16 : 32, found = rows(data, s, columns);
    const label = width < 520 ? 62 : 84, cell = (width - label - 2) / columns;
    const high = Math.max(7, Math.min(20, 250 / found.length)), top = shared ? 14 : 4;
    const parts = [];
    if (shared && columns === BANKS)
      for (let bank = 0; bank < BANKS; bank += cell < 16 ? 4 : 1) parts.push(text(label + (bank + 0.5) * cell, 9, String(bank), "st-tick"));
    const every = Math.ceil(11 / high);
    found.forEach((row, r) => {
      const y = top + r * high;
      if (r % every === 0) {
        const banks = `${row.first}–${row.first + columns - 1}`;
        const words = !shared || columns === BANKS ? row.label : row.first ? banks : `${row.label}, ${banks}`;
        parts.push(text(label - 6, y + high / 2 + 4, words, "st-tick", "end"));
      }
      parts.push(rect(label, y + 1, columns * cell, high - 2, "st-empty"));
      const late = shared && r >= s.least * (BANKS / columns);
      for (const { column, lanes } of row.cells) {
        const x = label + column * cell;
        parts.push(rect(x + 1, y + 2, cell - 2, high - 4, late ? "st-late" : `st-${s.kind}`, { "data-lane": lanes[0] }));
        if (high >= 11 && cell >= 13) parts.push(text(x + cell / 2, y + high / 2 + 4, lanes.length > 1 ? `${lanes.length}×` : String(lanes[0]), "st-on"));
        if (lanes.includes(lane)) parts.push(rect(x + 1, y + 2, cell - 2, high - 4, "st-lane"));
      }
      for (const at of row.boxes) parts.push(rect(label + at * cell, y + 1, 8 * cell, high - 2, "st-sector"));
    });
    const words = shared
      ? "A column is one of the 32 banks, a row one pass. The number is that of the lane; 16× is one word for 16 lanes, in one pass."
      : "A frame is a sector of 32 bytes, 8 numbers, that has to travel. The number is that of the lane; 16× is one number for 16 lanes.";
    return [element("p", { class: "st-caption" }, words),
      svg("svg", { width, height: top + found.length * high + 2, role: "img", "aria-label": describe(data, step) }, ...parts)];
  }

  function drawShuffle() {
    const gap = width / LANES, high = 90, parts = [], r = Math.min(9, gap / 2 - 0.5);
    for (const i of lanesOf(s)) {
      if (s.kind !== "s" || i === lane) continue;
      parts.push(svg("path", { class: "st-wire", d: `M${(s.offsets[i] + 0.5) * gap} 12L${(i + 0.5) * gap} ${high}` }));
    }
    if (s.kind === "s" && s.offsets[lane] != null) parts.push(svg("path", { class: "st-wire st-wire-lane", d: `M${(s.offsets[lane] + 0.5) * gap} 12L${(lane + 0.5) * gap} ${high}` }));
    for (let i = 0; i < LANES; i++) {
      for (const y of s.kind === "s" ? [12, high] : [12]) {
        parts.push(svg("circle", { cx: (i + 0.5) * gap, cy: y, r, class: "st-node", "data-lane": i, "fill-opacity": s.offsets[i] == null ? 0.3 : 1 }));
        if (r >= 7) parts.push(text((i + 0.5) * gap, y + 4, String(i), "st-tick"));
      }
    }
    return [element("p", { class: "st-caption" }, s.kind === "s" ? "Above, the lanes that give a value; below, those that take it. Nothing goes through memory." : "The lanes that take part."),
      svg("svg", { width, height: high + 14, role: "img", "aria-label": describe(data, step) }, ...parts)];
  }

  function drawStation(place, words) {
    const line = element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "who"), element("th", { scope: "col" }, "has passed since the barrier before")));
    const body = station(data, place).map(({ warps, work }) => element("tr", {},
      element("th", { scope: "row" }, ranges(warps)),
      element("td", {}, work.length ? work.map(([i, times]) => `line ${data.lines[i]?.[0] ?? "?"} ×${times.toLocaleString("en")}`).join(", ") : "nothing that uses memory")));
    return [element("div", { class: "st-scroll", tabindex: 0, role: "group", "aria-label": words },
      element("table", { class: "st-stations" }, element("caption", {}, words), line, element("tbody", {}, ...body)))];
  }

  function drawEnd() {
    const { passed, text: words } = data.end;
    return [...(words && passed === false ? [element("pre", { class: "st-error" }, words)] : words ? [element("p", { class: "st-passed" }, words)] : []),
      ...(data.stations[data.rest]?.length ? drawStation(data.rest, "What each warp did after the last barrier") : [])];
  }

  // ---- the whole
  const stepText = element("strong", {}), story = element("span", {}), mine = element("span", {});
  const live = element("p", { class: "st-live", "aria-live": "polite" });
  const root = element("div", { class: "stepper", role: "group", "aria-label": `${data.title}, one warp, step by step` },
    element("p", { class: "st-title" }, element("strong", {}, data.title), element("span", { class: "st-soft" },
      ` · block ${data.block.length > 1 ? `(${data.block.join(", ")})` : data.block[0]} · warp ${data.warp} of ${Math.ceil(data.threads / LANES)} · ${data.case}, N = ${data.n}`)),
    controls,
    element("div", { class: "st-body" }, source, element("div", { class: "st-maps" }, ...maps.map((map) => map.figure))),
    element("p", { class: "st-story" }, stepText, story, " ", mine),
    picture,
    element("p", { class: "st-note" }, element("span", { class: "mark mark-emulated" }, "emulated"), ` ${data.note}`), live);
  el.replaceChildren(root);

  let spoken = false, announcing = null;
  function announce(words) {
    if (!spoken) return (spoken = true); // the first step is read with the page
    clearTimeout(announcing);
    announcing = setTimeout(() => (live.textContent = words), 150);
  }

  function draw() {
    if (!width) return;
    step = Math.min(last, Math.max(0, model.get("step")));
    lane = model.get("lane");
    s = stepAt(data, step);
    range.value = step;
    range.setAttribute("aria-valuetext", `step ${number[step].toLocaleString("en")} of ${data.count.toLocaleString("en")}`);
    back.disabled = step === 0;
    forth.disabled = step === last;
    laneBox.value = lane;
    for (const line of sourceLines) line.classList.remove("st-now", "st-w", "st-inner");
    const marked = sourceLines[s.line] ?? null;
    if (marked) {
      marked.classList.add("st-now");
      if (s.kind === "w" || s.kind === "a") marked.classList.add("st-w");
      const middle = marked.offsetTop - source.clientHeight / 2;
      sourceLines[s.inner]?.classList.add("st-inner");
      if (marked.offsetTop < source.scrollTop + 20 || marked.offsetTop > source.scrollTop + source.clientHeight - 40) source.scrollTop = middle;
    }
    const words = describe(data, step), own = lane >= 0 ? follow(data, s, lane) : "";
    stepText.textContent = s.kind === "end" ? "" : `${number[step].toLocaleString("en")} of ${data.count.toLocaleString("en")}. `;
    story.replaceChildren(...sentence(words));
    mine.textContent = own;
    maps.forEach(drawMap);
    picture.replaceChildren(...(isAccess(s) ? drawAccess() : s.kind === "b" ? drawStation(s.station, "A station: all warps of the block meet here")
      : s.kind === "end" ? drawEnd() : drawShuffle()));
    announce(`${words} ${own}`);
  }

  const resize = new ResizeObserver(() => {
    const now = Math.max(240, Math.floor(picture.clientWidth));
    if (now === width) return;
    width = now;
    draw();
  });
  resize.observe(picture);
  for (const name of ["step", "lane"]) model.on(`change:${name}`, draw);

  return () => {
    pause();
    clearTimeout(announcing);
    resize.disconnect();
    for (const name of ["step", "lane"]) model.off(`change:${name}`, draw);
  };
}

export default { render };

// ---- the static page: no Python, so the state lives here
function staticModel(state) {
  const listeners = {};
  return {
    get: (name) => state[name],
    set(name, value) {
      state[name] = value;
      for (const listener of listeners[`change:${name}`] ?? []) listener();
    },
    save_changes() {},
    on: (event, listener) => (listeners[event] ??= new Set()).add(listener),
    off: (event, listener) => listeners[event]?.delete(listener),
  };
}

// Starts every static form on the page that has not started yet: one module serves them all.
export function startStatic() {
  for (const host of document.querySelectorAll(".stepper-static:not([data-started])")) {
    const state = host.querySelector("script[type='application/json']");
    if (!state) continue;
    host.setAttribute("data-started", "");
    render({ model: staticModel(JSON.parse(state.textContent)), el: host.querySelector(".stepper-root") });
  }
}
