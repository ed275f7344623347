"""One way to draw rows of numbers: text for a terminal, HTML for a page, each with its mark."""

import re
from dataclasses import dataclass, field
from html import escape

MARKS = {
    "live": "measured on this GPU, now",
    "emulated": "these kernels, run on the host, now",
    "recorded": "a recorded run",
    "computed": "arithmetic or the compiler, no run",
    "stale": "recorded with other kernels than these",
}
# Characters of what stays on one line. A row's heading has fewer, so that a phone shows cells too.
NAME, HEADING = 30, 16


def mark_html(mark, note=""):
    """The visible word for a mark, and what it refers to."""
    word = f'<span class="mark mark-{mark}" title="{MARKS[mark]}">{mark}</span>'
    return f"{word} {_note(note)}" if note else word


def _note(text):
    # Plain weight beside a caption's bold one, also where no stylesheet of ours exists. A date is
    # not cut at its hyphens.
    whole = r'<span style="white-space:nowrap">\g<0></span>'
    text = re.sub(r"\d{4}-\d\d-\d\d", whole, escape(text))
    return f'<span style="font-weight:normal">{text}</span>'


@dataclass
class Table:
    """Rows under headings. The first cell of a row is its heading.

    ``rows`` are (cells, mark) pairs; a cell is a string or a number already formatted.
    ``mark`` is the table's own, or 'mixed' where rows differ.
    """

    title: str
    columns: list
    rows: list = field(default_factory=list)
    note: str = ""  # what the marks refer to: 'H200, 2026-..'
    footer: str = ""

    def add(self, mark, *cells):
        self.rows.append((tuple(str(c) for c in cells), mark))
        return self

    @property
    def mark(self):
        marks = {mark for _, mark in self.rows} or {"computed"}
        return marks.pop() if len(marks) == 1 else "mixed"

    def text(self):
        """The table for a terminal."""
        if not self.rows:
            return f"{self.title}: {self.footer}"
        head = [*self.columns, *(["mark"] if self.mark == "mixed" else [])]
        body = [[*cells, *([mark] if self.mark == "mixed" else [])] for cells, mark in self.rows]
        widths = [max(len(r[i]) for r in [head, *body]) for i in range(len(head))]
        numeric = [all(_is_number(r[i]) for r in body) for i in range(len(head))]

        def line(cells):
            return "  ".join(c.rjust(w) if num else c.ljust(w)
                             for c, w, num in zip(cells, widths, numeric)).rstrip()

        about = ", ".join(x for x in (self.mark if self.mark != "mixed" else "", self.note) if x)
        out = [f"{self.title} [{about}]" if about else self.title, line(head),
               line(["-" * w for w in widths])]
        out += [line(r) for r in body]
        if self.footer:
            out.append(self.footer)
        return "\n".join(out)

    def __repr__(self):
        return self.text()

    def _repr_html_(self):
        if not self.rows:
            return Sentence(f"{self.title}: {self.footer}", "computed")._repr_html_()
        mixed = self.mark == "mixed"
        numeric = [all(_is_number(cells[i]) for cells, _ in self.rows)
                   for i in range(len(self.columns))]
        about = mark_html(self.mark, self.note) if not mixed else _note(f"({self.note})")
        caption = f"{escape(self.title)} {about if self.note or not mixed else ''}".strip()
        head = "".join(f'<th scope="col"{_num(num)}>{escape(c)}</th>'
                       for c, num in zip(self.columns, numeric))
        body = []
        for cells, mark in self.rows:
            first, style = cells[0], _num(numeric[0]) + _whole(cells[0], HEADING)
            tds = [f'<th scope="row"{style}>{escape(first)}</th>']
            tds += [f"<td{_class(c, num)}{_whole(c, NAME)}>{escape(c)}</td>"
                    for c, num in zip(cells[1:], numeric[1:])]
            if mixed:
                tds.append(f'<td style="white-space:nowrap">{mark_html(mark)}</td>')
            body.append(f'<tr data-mark="{mark}">{"".join(tds)}</tr>')
        if mixed:
            head += '<th scope="col">mark</th>'
        footer = ('<p class="lesson-note" style="white-space:pre-line">'
                  f"{escape(self.footer)}</p>" if self.footer else "")
        return (
            f'<div class="lesson-output" data-mark="{self.mark}">'
            f'<div class="lesson-scroll" role="region" tabindex="0" '
            f'aria-label="{escape(self.title)}" style="overflow-x:auto">'
            '<table class="lesson-table">'
            f"<caption>{caption}</caption><thead><tr>{head}</tr></thead>"
            f"<tbody>{''.join(body)}</tbody></table></div>{footer}</div>"
        )


@dataclass
class Sentence:
    """A sentence computed from results, so that its numbers carry their mark."""

    words: str
    mark: str
    note: str = ""

    def text(self):
        """The sentence for a terminal."""
        return f"{self.words} [{self.mark}{', ' + self.note if self.note else ''}]"

    __repr__ = text

    def _repr_html_(self):
        return (f'<div class="lesson-output" data-mark="{self.mark}"><p class="lesson-note">'
                f"{escape(self.words)} {mark_html(self.mark, self.note)}</p></div>")


@dataclass
class Tables:
    """Several tables and sentences shown as one output."""

    parts: list

    @property
    def mark(self):
        return self.parts[0].mark

    def text(self):
        return "\n\n".join(p if isinstance(p, str) else p.text() for p in self.parts)

    __repr__ = text

    def _repr_html_(self):
        return "".join(
            f'<p class="lesson-note" data-mark="computed">{escape(p)}</p>' if isinstance(p, str)
            else p._repr_html_() for p in self.parts)


@dataclass
class Folded:
    """A table, a picture or several that a page shows when it is asked for; a terminal at once."""

    summary: str
    table: object

    def text(self):
        return self.table.text()

    def _repr_html_(self):
        mark = self.table.mark if self.table.mark in MARKS else "computed"
        return (f'<details><summary data-mark="{mark}">{escape(self.summary)}</summary>'
                f"{self.table._repr_html_()}</details>")


def _is_number(cell):
    """A number, perhaps with its unit or its range; a sentence may begin with one."""
    begins = cell[:1].isdigit() or cell[:1] in "-+–—"
    return begins and len(cell) <= NAME or cell in ("", "nan", "inf")


def _whole(cell, longest):
    """A number, a date or a name stays on one line; a sentence may wrap."""
    short = len(cell) <= (NAME if cell[:1].isdigit() else longest)
    return ' style="white-space:nowrap"' if short else ""


def _num(numeric):
    return ' class="num"' if numeric else ""


def _class(cell, numeric):
    if cell in ("pass", "passed"):
        return ' class="pass"'
    if cell in ("fail", "failed"):
        return ' class="fail"'
    return _num(numeric)


def mib(n_bytes):
    """Bytes as MiB with as many digits as help: '0.25', '4,194,304'."""
    value = n_bytes / (1 << 20)
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def ms(time):
    """A Time as 'median (low–high)' in milliseconds."""
    return f"{time.median_ms:.4f} ({time.low_ms:.4f}–{time.high_ms:.4f})"
