// What the widget's module makes of every step of the recordings on standard input.
import { readFileSync } from "node:fs";
import * as core from "../../book/lesson/stepper/core.mjs";

const recordings = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(recordings.map((data) => ({
  numbers: core.numbers(data),
  worst: core.worst(data),
  steps: Array.from({ length: core.length(data) }, (_, i) => {
    const s = core.stepAt(data, i), access = core.isAccess(s);
    return {
      ...s,
      words: core.describe(data, i),
      follow: core.follow(data, s, 5),
      left: core.left(data, i),
      station: s.kind === "b" ? core.station(data, s.station) : null,
      counted: access ? core.cost(data, s) : null,
      fewest: access && !core.isShared(data, s) ? core.sectors(s).least : null,
      wide: access ? core.rows(data, s, 32) : null,
      narrow: access ? core.rows(data, s, 16) : null,
    };
  }),
}))));
