"""The picture of the walk: ``OnlineMax``, an anywidget that also works on a page without Python."""

import html
import json
import re
from functools import cache
from pathlib import Path

import anywidget
import numpy as np
import traitlets

from ..errors import ArgumentError
from ..problem.cases import BN, D, make
from ..problem.gate import EPS, RTOL_FLOOR, SCORE_FACTOR, SUM_FACTOR, judge
from ..tables import Sentence
from . import recurrence as rec

HERE = Path(__file__).parent

# The gate's constants, so that the JavaScript types none of them again.
GATE = {"floor": RTOL_FLOOR, "sum": SUM_FACTOR * EPS, "score": SCORE_FACTOR * EPS}


@cache
def module():
    """core.mjs and view.mjs as the one ES module that a notebook and a static page load."""
    core = (HERE / "core.mjs").read_text(encoding="utf-8")
    view = (HERE / "view.mjs").read_text(encoding="utf-8")
    view, imports = re.subn(r'^import [^;]*? from "\./core\.mjs";\n', "", view, flags=re.M)
    assert imports == 1, "view.mjs must import core.mjs in one statement: joining drops it"
    return core + "\n" + view


@cache
def style():
    """style.css."""
    return (HERE / "style.css").read_text(encoding="utf-8")


class OnlineMax(anywidget.AnyWidget):
    """Online softmax on one query row: its scores in tiles, m, l and o after each, and the gate.

    scores: one number per key, by default the 32 of ``case``; ``tile``: keys per tile, a divisor
    of their number; ``step``: tiles read so far, by default all; ``fault``: what to break, one of
    ``lesson.online_max.FAULTS``; ``seed``: of the case 'random'. All are traits: set them and the
    picture follows; what the reader does in the picture sets them. A bad value raises
    ArgumentError.
    """

    _esm = module()
    _css = style()

    scores = traitlets.List(trait=traitlets.Float()).tag(sync=True)
    tile = traitlets.Int(4).tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)
    case = traitlets.Unicode("spike-late").tag(sync=True)
    fault = traitlets.Unicode("none").tag(sync=True)
    seed = traitlets.Int(0).tag(sync=True)
    values = traitlets.List(allow_none=True, default_value=None).tag(sync=True)
    columns = traitlets.List(list(range(rec.COLUMNS))).tag(sync=True)
    gate = traitlets.Dict(GATE).tag(sync=True)
    captured = traitlets.Dict(allow_none=True, default_value=None).tag(sync=True)

    def __init__(self, scores=None, *, case="spike-late", seed=0, tile=4, step=None, fault="none",
                 **traits):
        scores = rec.case_scores(case, seed) if scores is None else rec.check_scores(scores)
        rec.check_tile(tile, len(scores))
        steps = len(scores) // tile
        super().__init__(scores=[float(s) for s in scores], case=case, seed=seed, tile=tile,
                         step=steps if step is None else step, fault=fault, **traits)
        self._fixed = self.captured is not None
        # Only now: the scores given above need not be those of the case.
        self.observe(self._follow_case, ["case", "seed"])
        self.observe(self._follow_tile, ["tile", "scores"])

    _fixed = False  # shows what a kernel did: its inputs do not change afterwards

    @classmethod
    def from_kernel(cls, row=0, case="spike-late", n=256, columns=(0, 1, 2)):
        """What attentionOnline itself did on one query row: m, l and o captured at every tile.

        The kernel runs on the GPU or emulated, with this session's edits (``capture.py`` says
        how its state is read). The walk beside it has the same scores, from float64, and the
        kernel's tiles of 32. ``columns``: the three of the 64 output columns to show.
        """
        from .capture import capture

        inputs = make(case, n)
        for name, wanted, top in (("row", [row], n), ("columns", columns, D)):
            if not all(isinstance(x, (int, np.integer)) and 0 <= x < top for x in wanted):
                raise ArgumentError(f"{name} = {wanted if name == 'columns' else row}: "
                                    f"must be from 0 to {top - 1}")
        if len(columns) != rec.COLUMNS:
            raise ArgumentError(f"columns = {columns}: the picture shows {rec.COLUMNS}")
        columns = [int(c) for c in columns]
        got = capture(inputs, row)
        scores = inputs.k.astype(np.float64) @ inputs.q[row] * D**-0.5
        return cls(scores, case=case, tile=BN, columns=columns,
                   values=inputs.v[:, columns].tolist(),
                   captured={"label": f"attentionOnline on query row {row} of {case}, N = {n}",
                             "mark": got.mark, "note": got.note, "m": _portable(got.m),
                             "l": _portable(got.l), "o": _portable(got.o[:, columns]),
                             "answer": _portable(got.answer[columns])})

    @traitlets.validate("case", "seed", "values", "columns", "captured")
    def _check_inputs(self, proposal):
        self._refuse_if_fixed(proposal["trait"].name)
        if proposal["trait"].name == "case" and self.captured is None:
            rec.case_scores(proposal["value"])
        return proposal["value"]

    def _refuse_if_fixed(self, name):
        if self._fixed:
            raise ArgumentError(f"{name} cannot change: this widget shows what the kernel did; "
                                "call OnlineMax.from_kernel() again, or OnlineMax() for a walk")

    @traitlets.validate("scores")
    def _check_scores(self, proposal):
        self._refuse_if_fixed("scores")
        scores = rec.check_scores(proposal["value"])
        if len(scores) % self.tile:
            raise ArgumentError(
                f"scores: {len(scores)} numbers, which the tile width {self.tile} does not divide; "
                "set both in one `with widget.hold_trait_notifications():`"
            )
        return [float(s) for s in scores]

    @traitlets.validate("tile")
    def _check_tile(self, proposal):
        self._refuse_if_fixed("tile")
        rec.check_tile(proposal["value"], len(self.scores))
        return proposal["value"]

    @traitlets.validate("step")
    def _check_step(self, proposal):
        steps = len(self.scores) // self.tile
        if not 0 <= proposal["value"] <= steps:
            raise ArgumentError(f"step = {proposal['value']}: must be 0 to {steps}, the tiles read")
        return proposal["value"]

    @traitlets.validate("fault")
    def _check_fault(self, proposal):
        rec.check_fault(proposal["value"])
        return proposal["value"]

    def _follow_case(self, change):
        scores = [float(s) for s in rec.case_scores(self.case, self.seed)]
        with self.hold_trait_notifications():
            if len(scores) % self.tile:
                self.tile = 4
            self.scores = scores

    def _follow_tile(self, change):
        self.step = min(self.step, len(self.scores) // self.tile)

    def walk(self):
        """The Walk of the present scores, tile and fault, in NumPy."""
        return rec.walk(self.scores, self.values, self.tile, self.fault)

    def trace(self):
        """What every tile did, as a NumPy structured array of one record per tile.

        Fields: tile, tile_max, m_before, m, rescale, total, l_before, l, o_before (3,), o (3,).
        """
        return self.walk().table

    @property
    def verdict(self):
        """The gate's Verdict of o / l, or of the kernel's answer, against the three-pass answer."""
        walk = self.walk()
        if self.captured is None:
            return walk.verdict
        answer = np.array(self.captured["answer"], dtype=object).astype(float)
        return judge(answer[None], walk.reference[None], len(self.scores), rec.max_abs(self.scores))

    def agreement(self):
        """Whether the kernel's m, l and o agree with the NumPy trace, as a sentence.

        Compared after every tile, each by the lesson's gate. Raises ArgumentError where nothing
        was captured: see ``from_kernel``.
        """
        if self.captured is None:
            raise ArgumentError("this widget holds no kernel's state: use OnlineMax.from_kernel()")
        walk, n, top = self.walk(), len(self.scores), rec.max_abs(self.scores)
        tiles, worst, bad = len(walk.tile_max), 0.0, []
        for name in ("m", "l", "o"):
            got = np.array(self.captured[name], dtype=object).astype(float).reshape(tiles + 1, -1)
            want = getattr(walk, name).astype(np.float64).reshape(tiles + 1, -1)
            verdict = judge(got[1:], want[1:], n, top)
            worst = max(worst, verdict.fraction)
            if not verdict.passed:
                bad.append((verdict.row, name, verdict))
        mark, note = self.captured["mark"], self.captured["note"]
        who = f"{self.captured['label']}: m, l and o"
        if not bad:
            return Sentence(f"{who} agree with the NumPy trace after each of the {tiles} tiles; "
                            f"the largest difference is {worst:.2g} of the gate.", mark, note)
        row, name, verdict = min(bad, key=lambda b: b[0])
        return Sentence(f"{who} differ from the NumPy trace, first after tile {row + 1}: {name} is "
                        f"{verdict.got:.6g} in the kernel and {verdict.want:.6g} in the trace.",
                        mark, note)

    def _repr_mimebundle_(self, **kwargs):
        """The live view, and beside it a page that needs no Python. A front end takes one.

        JupyterLab, Notebook, VS Code and Colab prefer the view; the book prefers ``text/html``.
        """
        bundle = super()._repr_mimebundle_(**kwargs)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        data["text/html"] = self.html()
        return bundle

    def mark(self):
        """'computed' for a walk; where the kernel ran, 'live' or 'emulated'."""
        return self.captured["mark"] if self.captured else "computed"

    def html(self):
        """The widget as HTML that needs no Python and no network, only itself.

        Without JavaScript it is a drawing of the last step and a table.
        """
        names = ("scores", "tile", "step", "case", "fault", "seed", "values", "columns", "gate",
                 "captured")
        state = json.dumps({name: getattr(self, name) for name in names}, allow_nan=False)
        return "\n".join([
            f'<div class="online-max-static" data-mark="{self.mark()}">',
            f"<style>{style()}</style>",
            f'<div class="online-max-root"><div class="online-max">{_fallback(self)}</div></div>',
            '<script type="application/json">' + state.replace("</", "<\\/") + "</script>",
            f'<script type="module">\n{module()}\nstartStatic();\n</script>',
            "</div>",
        ])


def _portable(x):
    """Nested lists of numbers for JSON, which has no word for inf or NaN: they travel as text."""
    if np.ndim(x):
        return [_portable(y) for y in x]
    if np.isfinite(x):
        return float(x)
    return "NaN" if np.isnan(x) else "Infinity" if x > 0 else "-Infinity"


def _fallback(widget):
    """The last step as an SVG and every tile as a table: what a page without JavaScript shows."""
    walk = widget.walk()
    verdict = walk.verdict
    outcome = f"passed at {verdict.fraction:.2g}" if verdict.passed else f"failed: {verdict.reason}"
    head = ["tile", "tile max", "m", "r", "&Sigma; w", "l"] + [f"o[{c}]" for c in widget.columns]
    rows = "".join(
        f'<tr><th scope="row">{r["tile"]}</th>'
        + "".join(f"<td>{_number(x)}</td>" for x in
                  (r["tile_max"], r["m"], r["rescale"], r["total"], r["l"], *r["o"]))
        + "</tr>"
        for r in walk.table
    )
    answer = ", ".join(_number(x) for x in walk.answer)
    wanted = ", ".join(_number(x) for x in walk.reference)
    what, note = f"case {widget.case}", "in float32, by this picture; no kernel ran"
    if widget.captured:
        what, note = widget.captured["label"], widget.captured["note"]
    mark = widget.mark()
    return (
        f"<p>The online maximum, {html.escape(what)}, after the last tile.</p>"
        + _svg(walk)
        + '<div class="om-scroll" tabindex="0" role="group" aria-label="All tiles">'
        '<table class="om-state"><caption>All tiles</caption><thead><tr>'
        + "".join(f'<th scope="col">{h}</th>' for h in head)
        + f"</tr></thead><tbody>{rows}</tbody></table></div>"
        f"<p>o / l = {answer}; in three passes {wanted}. Gate: {outcome}.</p>"
        f'<p><span class="mark mark-{mark}">{mark}</span> {html.escape(note)}</p>'
    )


def _number(x):
    return "inf" if x == np.inf else "-inf" if x == -np.inf else f"{x:.4g}"


def _svg(walk):
    """Scores in tiles and the running maximum. Colours are the light ones where no style rules."""
    n, tile, tiles = len(walk.scores), walk.tile, len(walk.tile_max)
    left, width, top, height = 44, 720, 24, 190
    gap = 8 if 1 < tiles <= 32 else 0
    column = (width - left - 8 - gap * tiles) / n
    low, high = min(0.0, walk.scores.min()), max(0.0, walk.scores.max())
    pad = max(1.0, 0.12 * (high - low))
    low, high = low - pad * (low < 0), high + pad * (high > 0)

    def y(score):
        return top + (high - score) / (high - low) * height

    def x(j):
        return left + gap / 2 + j * column + j // tile * gap

    parts = [f'<line class="om-zero" stroke="#73809a" x1="{left}" x2="{width - 8}" '
             f'y1="{y(0):.1f}" y2="{y(0):.1f}"/>']
    for j, score in enumerate(walk.scores):
        a, b = sorted((y(0), y(score)))
        kind, fill = (("now", "#1a63d8") if j >= n - tile else ("past", "#6d84a3"))
        parts.append(
            f'<rect class="om-score-{kind}" fill="{fill}" x="{x(j) + 0.14 * column:.1f}" '
            f'y="{a:.1f}" width="{0.72 * column:.1f}" height="{b - a:.1f}"/>'
        )
    stairs = "".join(
        f"{'L' if t else 'M'}{x(t * tile):.1f} {y(walk.m[t + 1]):.1f}h{tile * column:.1f}"
        for t in range(tiles)
    )
    parts.append('<path class="om-max" fill="none" stroke="#b3470b" stroke-width="2.5" '
                 f'd="{stairs}"/>')
    every = -(-18 // (tile * column + gap))
    parts += [
        f'<text class="om-tile" font-size="11" text-anchor="middle" '
        f'x="{x(t * tile) + tile * column / 2:.1f}" y="{top + height + 18}">{t + 1}</text>'
        for t in range(tiles) if t % every == 0
    ]
    parts += [
        f'<text class="om-title" font-size="12" x="{left}" y="12">score of each key, in tiles; '
        f'the line is the running maximum, m = {_number(walk.m[-1])}</text>',
        *(f'<text class="om-tick" font-size="11" text-anchor="end" x="{left - 6}" '
          f'y="{y(s) + 4:.1f}">{_number(s)}</text>' for s in {0.0, walk.scores.min(),
                                                             walk.scores.max()}),
    ]
    words = (f"{n} scores in {tiles} tiles of {tile}; the running maximum ends at "
             f"{_number(walk.m[-1])}, l at {_number(walk.l[-1])}.")
    return (f'<svg role="img" aria-label="{words}" viewBox="0 0 {width} {top + height + 26}" '
            f'width="{width}" height="{top + height + 26}">{"".join(parts)}</svg>')
