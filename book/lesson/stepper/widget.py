"""``Stepper``: an anywidget that also works on a page without Python."""

import json
import re
from functools import cache
from html import escape
from pathlib import Path

import anywidget
import traitlets

from ..errors import ArgumentError

HERE = Path(__file__).parent
COLOURS = HERE.parent / "show" / "colours.css"


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
    """style.css, and the book's colours for where its pages are not."""
    colours = COLOURS.read_text(encoding="utf-8")
    return colours.replace(":root", ".stepper") + (HERE / "style.css").read_text(encoding="utf-8")


class Stepper(anywidget.AnyWidget):
    """One warp of a kernel, step by step: what ``lesson.watch()`` returns.

    data: what ``recording.record`` made of a run; it does not change. step: the step that is shown,
    counted from 0 among those that are kept; the last is the end. lane: the lane to follow, or -1.
    """

    _esm = module()
    _css = style()

    data = traitlets.Dict().tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)
    lane = traitlets.Int(-1).tag(sync=True)

    def __init__(self, data, **traits):
        super().__init__(data=json.loads(json.dumps(data)), **traits)

    @traitlets.validate("step")
    def _check_step(self, proposal):
        return self._within("step", proposal["value"], 0, len(self.data["steps"]))

    @traitlets.validate("lane")
    def _check_lane(self, proposal):
        return self._within("lane", proposal["value"], -1, 31)

    def _within(self, name, value, low, high):
        if not low <= value <= high:
            raise ArgumentError(f"{name} = {value}: must be from {low} to {high}")
        return value

    def _repr_mimebundle_(self, **kwargs):
        """The live view, and beside it a page that needs no Python. A front end takes one."""
        bundle = super()._repr_mimebundle_(**kwargs)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        data["text/html"] = self.html()
        return bundle

    def html(self):
        """The widget as HTML that needs no Python and no network, only itself.

        Without JavaScript it is a table of the lines that ran.
        """
        state = json.dumps({"data": self.data, "step": self.step, "lane": self.lane},
                           allow_nan=False, separators=(",", ":"))
        return "\n".join([
            '<div class="stepper-static" data-mark="emulated">',
            f"<style>{style()}</style>",
            f'<div class="stepper-root"><div class="stepper">{_fallback(self.data)}</div></div>',
            '<script type="application/json">' + state.replace("</", "<\\/") + "</script>",
            f'<script type="module">\n{module()}\nstartStatic();\n</script>',
            "</div>",
        ])


_HEAD = ("line", "source", "passes", "least", "sectors", "least", "bytes")


def _fallback(data):
    """What each line cost the warp, as a table: what a page without JavaScript shows."""
    where = ", ".join(map(str, data["block"]))
    rows = []
    for line, (_, passes, few, _, sectors, fewest, size) in sorted(
            (int(line), total) for line, total in data["totals"].items()):
        number, text = data["lines"][line] if line >= 0 else ("", "elsewhere")
        cells = "".join(f'<td class="st-number">{n:,}</td>' for n in
                        (passes, few, sectors, fewest, size))
        code = escape(text.partition("//")[0].strip())
        rows.append(f'<tr><th scope="row">{number}</th><td><code>{code}</code></td>{cells}</tr>')
    end = data["end"]
    failure = ("" if end["passed"] is not False else
               f'<pre class="st-error">{escape(end["text"])}</pre>')
    return (
        f'<p class="st-title"><strong>{escape(data["title"])}</strong>, block {where}, warp '
        f'{data["warp"]}, {data["case"]}, N = {data["n"]}: {data["count"]:,} steps.</p>'
        '<div class="st-scroll" tabindex="0" role="group" aria-label="What each line took">'
        '<table class="st-stations"><caption>What each line took of this warp: passes through '
        "shared memory, sectors of global memory</caption><thead><tr>"
        + "".join(f'<th scope="col">{head}</th>' for head in _HEAD)
        + f'</tr></thead><tbody>{"".join(rows)}</tbody></table></div>{failure}'
        '<p class="st-note"><span class="mark mark-emulated">emulated</span> '
        f'{escape(data["note"])}</p>')
