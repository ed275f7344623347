"""Pictures: shapes and words as lean SVG, in the page's colours, as wide as a phone.

A Picture is one Panel or several. They stand beside each other where there is room, else below.
"""

from html import escape

from ..tables import Tables, mark_html
from .figures import Figure, fallback

WIDTH = 328  # of a panel, px: the text column of a screen of 360
BIG, SMALL = 13, 12  # sizes of text, px
LETTER = 0.6  # of its size is a letter wide, on average, in a wide sans-serif
_NAMED = {"ink": "currentColor", "muted": "currentColor", "line": "#8886", "paper": "Canvas"}
_PAGE = {**{name: f"var(--lesson-{name},{colour})" for name, colour in _NAMED.items()},
         **{name: f"var(--lesson-{name},{fallback(name)})"
            for name in ("1", "2", "3", "4", "pass", "fail")}}


def _number(x):
    return f"{x:.2f}".rstrip("0").rstrip(".")


class Panel:
    """A canvas of ``width`` x ``height`` px; x to the right, y downwards. The methods draw.

    ``alt`` is what it says to who does not see it. Colours are names of colours.css without their
    'lesson-'. A colour never says a thing alone: a word, a sign or a place says it too.
    """

    def __init__(self, alt, height, width=WIDTH):
        self.alt, self.height, self.width, self.parts, self.used = alt, height, width, [], {"ink"}

    def _colour(self, name):
        self.used.add(name)
        return f"var(--{name})"

    def box(self, x, y, width, height, colour="line", solid=False, dash=False, of=""):
        """A rectangle: a tint with an edge, on which text can stand, or ``solid``, which has none.

        ``of``: what it stands for, kept as data-of.
        """
        fill = self._colour(colour)
        look = f'fill="{fill}"' if solid else f'fill="{fill}" fill-opacity=".2" stroke="{fill}"'
        dashed = ' stroke-dasharray="3 2"' if dash else ""
        said = f' data-of="{escape(str(of))}"' if of != "" else ""
        x, y, width, height = map(_number, (x, y, width, height))
        self.parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" {look}{dashed}'
                          f"{said}/>")

    def lattice(self, x, y, columns, rows, width, height):
        """A grid of ``columns`` x ``rows`` cells, each ``width`` x ``height`` px."""
        right, below = columns * width, rows * height
        path = "".join("M{} {}h{}".format(*map(_number, (x, y + i * height, right)))
                       for i in range(rows + 1))
        path += "".join("M{} {}v{}".format(*map(_number, (x + i * width, y, below)))
                        for i in range(columns + 1))
        self.parts.append(f'<path d="{path}" fill="none" stroke="{self._colour("line")}"/>')

    def text(self, x, y, words, size=SMALL, anchor="start", bold=False, muted=False, turn=0):
        """Words whose baseline is y; ``anchor``: 'start', 'middle' or 'end'; ``turn``: degrees."""
        more = "" if anchor == "start" else f' text-anchor="{anchor}"'
        more += f' font-size="{size}"' if size != SMALL else ""
        more += ' font-weight="650"' if bold else ""
        more += f' fill="{self._colour("muted")}"' if muted else ""
        x, y = map(_number, (x, y))
        more += f' transform="rotate({turn} {x} {y})"' if turn else ""
        self.parts.append(f'<text x="{x}" y="{y}"{more}>{escape(str(words))}</text>')

    def line(self, x1, y1, x2, y2, colour="ink", arrow=False, dash=False, width=1):
        """A straight line; ``arrow``: with a head at its end, which must lie right below or right
        beside its start."""
        ink = self._colour(colour)
        dashed = ' stroke-dasharray="3 2"' if dash else ""
        path = "M{} {}L{} {}".format(*map(_number, (x1, y1, x2, y2)))
        if arrow:
            dx, dy = ((x2 > x1) - (x2 < x1)) * 5, ((y2 > y1) - (y2 < y1)) * 5
            wing = (3 * bool(dy), 3 * bool(dx))
            path += "M{} {}L{} {}L{} {}".format(*map(_number, (
                x2 - dx - wing[0], y2 - dy - wing[1], x2, y2, x2 - dx + wing[0],
                y2 - dy + wing[1])))
        thick = f' stroke-width="{_number(width)}"' if width != 1 else ""
        self.parts.append(f'<path d="{path}" fill="none" stroke="{ink}"{thick}{dashed}/>')

    def bar(self, x, y, length, height, colour, words="", of=""):
        """A solid bar from x on, ``length`` px long, and its value behind it."""
        self.box(x, y, length, height, colour, solid=True, of=of)
        if words:
            self.text(x + length + 4, y + height - 2 if height < 16 else y + height / 2 + 4, words)

    @property
    def svg(self):
        """The panel as SVG, up to a quarter larger than drawn where there is room."""
        colours = "".join(f"--{name}:{_PAGE[name]};" for name in sorted(self.used))
        return (f'<svg role="img" aria-label="{escape(self.alt)}" viewBox="0 0 {self.width} '
                f'{_number(self.height)}" width="{self.width}" font-size="{SMALL}" '
                f'fill="var(--ink)" style="{colours}flex:1 1 {self.width * 7 // 8}px;min-width:0;'
                f'max-width:min(100%,{self.width * 5 // 4}px);height:auto">'
                f'{"".join(self.parts)}</svg>')


class Picture(Figure):
    """Panels with one caption and one mark."""

    def __init__(self, panels, caption, mark, note=""):
        self.panels = panels
        super().__init__("", "".join(panel.svg for panel in panels),
                         "\n".join(panel.alt for panel in panels), caption, mark, note)

    def _repr_html_(self):
        return (f'<div class="lesson-output" data-mark="{self.mark}"><figure>'
                '<div style="display:flex;flex-wrap:wrap;gap:1rem 2rem;align-items:start">'
                f"{self.svg}</div><figcaption>{escape(self.caption)} "
                f"{mark_html(self.mark, self.note)}</figcaption></figure></div>")


class Beside(Tables):
    """Pictures with marks of their own, beside each other where there is room."""

    def _repr_html_(self):
        parts = "".join(f'<div style="flex:1 1 18rem;min-width:0">{part._repr_html_()}</div>'
                        for part in self.parts)
        return f'<div style="display:flex;flex-wrap:wrap;gap:0 2rem">{parts}</div>'
