"""Figures as SVG with real text, which takes its colours from the page (light or dark)."""

import io
import re
from functools import cache
from html import escape
from pathlib import Path

import numpy as np

from ..machine import gpus
from ..machine.gpus import H200, T4
from ..measure import evidence
from ..problem import traffic
from ..problem.problem import D
from ..tables import mark_html

# Matplotlib cannot write CSS variables: it draws these colours, and the SVG text gets the others.
INK, GRID, MUTED, PAPER = "#010101", "#020202", "#070707", "#080808"
SERIES = ("#030303", "#040404", "#050505", "#060606")
COLOURS = Path(__file__).with_name("colours.css")


def fallback(name):
    """For a page without our stylesheet: halfway between light and dark, as '#rrggbb'."""
    pair = re.search(rf"--lesson-{name}: light-dark\(#(\w{{6}}), #(\w{{6}})\)",
                     COLOURS.read_text(encoding="utf-8"))
    light, dark = (bytes.fromhex(x) for x in pair.groups())
    return "#" + bytes((x + y) // 2 for x, y in zip(light, dark)).hex()


@cache
def _page():
    """What the SVG says in place of each drawn colour."""
    return {
        INK: "var(--lesson-ink, currentColor)",
        GRID: "var(--lesson-grid, #8884)",
        MUTED: "var(--lesson-muted, currentColor)",
        PAPER: "var(--lesson-paper, Canvas)",
        **{drawn: f"var(--lesson-{i}, {fallback(i)})" for i, drawn in enumerate(SERIES, 1)},
    }


class Figure:
    """A drawn figure: SVG for a page, its alt text for a terminal."""

    def __init__(self, name, svg, alt, caption, mark, note=""):
        self.svg, self.alt, self.caption, self.mark, self.note = svg, alt, caption, mark, note
        self.name = name

    def text(self):
        """The figure for a terminal."""
        return f"{self.caption} [{self.mark}]\n{self.alt}"

    __repr__ = text

    def _repr_html_(self):
        return (
            f'<div class="lesson-output" data-mark="{self.mark}"><figure class="lesson-figure">'
            '<div class="lesson-scroll" role="region" tabindex="0" style="overflow-x:auto" '
            f'aria-label="Plot: {escape(self.caption)}">{self.svg}</div>'
            f"<figcaption>{escape(self.caption)} {mark_html(self.mark, self.note)}</figcaption>"
            "</figure></div>"
        )


def start(width=6.4, height=4.0):
    """A matplotlib figure and axes in the lesson's style."""
    import matplotlib

    style = {
        "svg.fonttype": "none", "svg.hashsalt": "lesson", "font.family": "sans-serif",
        "font.size": 11, "text.color": INK, "axes.edgecolor": INK, "axes.labelcolor": INK,
        "xtick.color": INK, "ytick.color": INK, "grid.color": GRID, "axes.grid": True,
        "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False,
    }
    with matplotlib.rc_context(style):
        from matplotlib.figure import Figure as Canvas

        figure = Canvas(figsize=(width, height), layout="constrained")
        return figure, figure.subplots()


def finish(figure, name, alt, caption, mark, note=""):
    """The SVG of a matplotlib figure, cleaned for a page, as a Figure."""
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    used = set(re.findall(r"url\(#([^)]+)\)", svg)) | set(re.findall(r'href="#([^"]+)"', svg))
    svg = re.sub(r' id="([^"]+)"',
                 lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    for drawn, page in _page().items():
        svg = svg.replace(drawn, page)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{escape(alt)}"', 1)
    return Figure(name, svg, alt, caption, mark, note)


def thousands(x, _=None):
    """Axis label: 0.25, 256, 1,024."""
    return f"{x:,.0f}" if x >= 1 else f"{x:g}"


def capacities():
    """(label, MiB) of what the score matrix outgrows: a T4's L2, a T4's memory and an H200's.

    Memory as the driver of a recorded GPU reports it, which is what a program gets; else by the
    datasheet. GB are 10^9 bytes.
    """
    seen = {gpus.product(name): item.versions.get("memory_bytes")
            for name, item in evidence.latest().items()}

    def memory(gpu):
        size, source = (seen[gpu], " recorded") if seen.get(gpu) else (gpu.memory_bytes, "")
        return f"{gpu.name}'s memory, {size / 1e9:.4g} GB{source}", size / traffic.MIB

    l2 = T4.l2_bytes / traffic.MIB
    return (f"T4's L2, {l2:g} MiB", l2), memory(T4), memory(H200)


def crossing(mib):
    """The N whose score matrix has ``mib`` MiB."""
    return float(np.sqrt(mib * traffic.MIB / 4.0))


def score_matrix():
    """Score-matrix MiB against N, log-log, with the online path's memory and the capacities."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    figure, axes = start(6.4, 4.4)
    lines = capacities()
    ns = 2.0 ** np.arange(8, 20.5, 0.5)
    axes.loglog(ns, 4 * ns**2 / traffic.MIB, color=SERIES[0], lw=2)
    axes.loglog(ns, 4 * 4 * ns * D / traffic.MIB, color=SERIES[1], lw=2, ls="--")
    axes.text(2**13.6, 2.0**10.4, "one N x N matrix", color=INK, ha="right")
    axes.text(2**19.9, 2.0**7.2, "Q, K, V and O:\nall of the online path", color=INK, ha="right",
              va="top")
    for label, mib in lines:
        n = crossing(mib)
        axes.axhline(mib, color=MUTED, lw=1, ls=":")
        axes.plot([n], [mib], "o", color=SERIES[0], ms=6)
        left = n > 1 << 14  # text stands where the lines leave room
        axes.annotate(f"{label}: N = {n:,.0f}", (256 if left else 1 << 20, mib), xytext=(0, 4),
                      textcoords="offset points", ha="left" if left else "right", color=INK,
                      fontsize=10)
    axes.xaxis.set_major_locator(FixedLocator([2.0**i for i in range(8, 21, 2)]))
    axes.yaxis.set_major_locator(FixedLocator([0.25, 4, 64, 1024, 2.0**14, 2.0**18, 2.0**22]))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(thousands))
    axes.tick_params(axis="x", labelsize=9)
    axes.tick_params(axis="y", labelsize=9)
    axes.set_xlabel("N, keys and queries")
    axes.set_ylabel("MiB, float32, one head")
    points = "; ".join(f"{label} at N = {crossing(mib):,.0f}" for label, mib in lines)
    alt = ("Memory against N on log-log axes. The score matrix grows as N squared, from 0.25 MiB "
           "at N = 256 to 4,194,304 MiB at N = 1,048,576. The online path grows as N, from 0.25 "
           f"MiB to 1,024 MiB. The matrix outgrows {points}.")
    return finish(figure, "score-matrix", alt, "Memory of one N x N score matrix against N",
                  "computed")
