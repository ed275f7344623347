"""Pictures in front of tables that are read by comparing: bars, and the grid of mutants."""

import textwrap

from ..measure.mutants import MUTANTS, RACE, UNDEFINED
from .drawing import BIG, LETTER, SMALL, WIDTH, Panel, Picture
from .stories import share

CELL = 16  # px of a cell of the grid
MISSED = "let through by its own input"
SIGNS = {True: "✓", False: "○", RACE: "T", UNDEFINED: "V", MISSED: "!"}
NEAR = 2.2  # times the least time: what is slower has a panel of its own


def grid(rows, mark, note):
    """Mutants by cases, from Rejections: which case caught which broken kernel.

    First those for which there is another case than the base input, then the others.
    """
    found = {(r.mutant, r.case): r.rejected for r in rows}
    ran = [m for m in MUTANTS if (m.name, m.case) in found]
    apart = [m for m in ran if m.case != "periodic" or not found[m.name, "periodic"]]
    apart.sort(key=lambda m: found[m.name, "periodic"])
    alone = [m for m in ran if m not in apart]
    panels = [_cells(found, part, head) for part, head in (
        (apart, "Another input is there for them"), (alone, "periodic is enough for them")) if part]
    through = sum(not found[m.name, "periodic"] for m in ran)
    return Picture(panels, f"Which input catches which broken kernel, N = {rows[0].n}: periodic "
                   f"alone lets {through} of {len(ran)} through", mark, note)


def _seen(mutant, name, caught):
    """A key of SIGNS: how a mutant came out on a case."""
    chance = mutant.caught_by in (RACE, UNDEFINED)  # on a GPU it may come out right by luck
    if caught:
        return mutant.caught_by if chance else True
    return False if chance or name != mutant.case else MISSED


def _cells(found, mutants, title):
    names = list(dict.fromkeys(["periodic", *(m.case for m in mutants)]))
    left = WIDTH - CELL * len(names) - 2
    lines = [textwrap.wrap(m.name, int(left / (LETTER * SMALL))) for m in mutants]
    head = 30 + LETTER * SMALL * max(map(len, names)) if len(names) > 1 else 38
    said = [f"{name} catches {sum(found.get((m.name, name), 0) for m in mutants)} of "
            f"{sum((m.name, name) in found for m in mutants)}" for name in names]
    height = head + sum(max(CELL, 14 * len(x) + 2) for x in lines)
    p = Panel(f"{title}: {len(mutants)} broken kernels. {', '.join(said)} that ran on it.",
              height + 44)
    p.text(0, 14, title, BIG, bold=True)
    for i, name in enumerate(names):
        if len(names) > 1:
            p.text(left + CELL * i + 12, head - 5, name, turn=-90)
        else:
            p.text(WIDTH - 2, head - 6, name, anchor="end")
    y, used = head, set()
    for mutant, words in zip(mutants, lines):
        tall = max(CELL, 14 * len(words) + 2)
        for i, line in enumerate(words):
            p.text(0, y + 12 + 14 * i, line)
        for i, name in enumerate(names):
            caught, x = found.get((mutant.name, name)), left + CELL * i
            if caught is None:
                continue
            seen = _seen(mutant, name, caught)
            used.add(seen)
            p.box(x + 0.5, y + 0.5, CELL - 1, tall - 1, "pass" if caught else "fail",
                  of=f"{mutant.name} on {name}: {'caught' if caught else 'let through'}")
            p.text(x + CELL / 2, y + tall / 2 + 4, SIGNS[seen], anchor="middle", bold=True)
        y += tall
    p.text(0, y + 20, "✓ caught · ○ let through · blank: not tried")
    p.text(0, y + 36, " · ".join(f"{SIGNS[kind]} {words}" for kind, words in (
        (RACE, "thread order"), (UNDEFINED, "a value that nobody wrote"), (MISSED, MISSED))
        if kind in used))
    return p


COLUMNS = (("instruc-", "tions, M", lambda c: c.instructions / 1e6, "{:.1f}"),
           ("shared", "passes, M", lambda c: c.shared_wavefronts / 1e6, "{:.1f}"),
           ("L2,", "MiB", lambda c: c.l2_bytes / (1 << 20), "{:.0f}"),
           ("SMs with", "work, %", lambda c: 100 * c.busy, "{:.0f}"))
# Where a warp's time goes: a letter and a colour for the bar, and words.
ISSUES, REST = "issues", "rest"
WHY = {
    ISSUES: ("I", "ink", "it issues an instruction"),
    "short_scoreboard": ("S", "2", "waits for shared memory's answer"),
    "long_scoreboard": ("G", "1", "for global memory's answer"),
    "wait": ("F", "4", "for its last instruction's fixed time"),
    "dispatch_stall": ("D", "3", "for the dispatcher"),
    "mio_throttle": ("Q", "fail", "for the queue to shared memory"),
    "lg_throttle": ("L", "pass", "for the queue to global memory"),
    "barrier": ("B", "muted", "for others at a barrier"),
    "no_instruction": ("N", "pass", "for its next instruction"),
    "math_pipe_throttle": ("A", "muted", "for an arithmetic unit"),
    "branch_resolving": ("J", "pass", "for a branch to be decided"),
    REST: ("R", "line", "the rest"),
}
SHOWN = 0.08  # a reason that takes less of a warp's time in every bar is one of the rest


def counts(counters, caption, note):
    """RungCounters as bars: what a rung issued and moved, and what its warps waited for."""
    return Picture([_moved(counters), _waits(counters)], caption, "recorded", note)


def _moved(counters):
    p = Panel("Counted: " + "; ".join(
        f"rung {c.rung}: " + ", ".join(f"{a} {b}: {form.format(value(c))}".replace("- ", "")
                                       .replace("-", "") for a, b, value, form in COLUMNS)
        for c in counters) + ".", 46 + 20 * len(counters))
    for i, (above, below, value, form) in enumerate(COLUMNS):
        x, most = 58 + 69 * i, max(value(c) for c in counters)
        p.text(x, 14, above)
        p.text(x, 29, below)
        for k, c in enumerate(counters):
            amount = value(c)
            p.bar(x, 38 + 20 * k, 26 * amount / most if most else 0, 14, "1", form.format(amount),
                  of=f"rung {c.rung} {above} {below}")
    for k, c in enumerate(counters):
        p.text(0, 50 + 20 * k, f"rung {c.rung}", bold=len(counters) == 2 and k == 1)
    return p


def _waits(counters):
    parts = {c.rung: time_of_a_warp(c) for c in counters}
    shown = [kind for kind in WHY if kind in (ISSUES, REST) or any(
        found[kind] >= SHOWN for found in parts.values())]
    said = []
    p = Panel("", 32 + 20 * len(counters) + 16 * len(shown))
    p.text(58, 14, "where a warp's time goes", bold=True)
    for k, (number, found) in enumerate(parts.items()):
        found = {kind: found[kind] for kind in shown[:-1]}
        found[REST] = max(1 - sum(found.values()), 0.0)
        said.append(f"rung {number}: " + ", ".join(
            f"{WHY[kind][2]} {part:.0%}" for kind, part in found.items()))
        x, y = 58, 22 + 20 * k
        p.text(0, y + 12, f"rung {number}", bold=len(parts) == 2 and k == 1)
        for kind, part in found.items():
            letter, colour, _ = WHY[kind]
            p.box(x, y, 268 * part, 14, colour, of=f"rung {number} {kind}")
            if 268 * part >= 11:
                p.text(x + 134 * part, y + 11, letter, size=11, anchor="middle")
            x += 268 * part
    for i, kind in enumerate(shown):
        p.text(58, 38 + 20 * len(counters) + 16 * i, f"{WHY[kind][0]} {WHY[kind][2]}")
    p.alt = f"Where a warp's time goes: {'; '.join(said)}."
    return p


def time_of_a_warp(c):
    """{kind of WHY: its part of a warp's time}, from RungCounters."""
    waits = {kind: share(c, kind) for kind in WHY if kind not in (ISSUES, REST)}
    return {ISSUES: 1 / (1 + sum(c.stalls.values())), **waits}


def times(rows, caption, mark, note, refused=()):
    """Rows of a Bench as bars, the slowest first, callers among the rungs.

    What is far from the fastest has a panel of its own. refused: sentences on what has no time,
    since its gate failed.
    """
    rows = sorted(rows, key=lambda row: -row.median_ms)
    least = rows[-1].median_ms
    far = [row for row in rows if row.median_ms > NEAR * least]
    near = [row for row in rows if row not in far]
    panels = [_times(part, words, refused if part is near else ())
              for part, words in ((far, f"above {NEAR * least:.3g} ms"),
                                  (near, f"up to {NEAR * least:.3g} ms, longer bars")) if part]
    return Picture(panels, caption, mark, note)


def _times(rows, words, refused):
    most = max(row.median_ms for row in rows)
    p = Panel(f"Times {words}: " + "; ".join(
        f"{row.what} {row.median_ms:.4f} ms" for row in rows) + "".join(
            f"; no time: {line}" for line in refused) + ".",
        52 + 20 * len(rows) + 16 * len(refused))
    p.text(0, 14, f"Time in ms, {words}", BIG, bold=True)
    for i, row in enumerate(rows):
        y, passed = 24 + 20 * i, row.fraction <= 1
        p.text(0, y + 12, _short(row), bold=not row.rung)
        length = 84 * row.median_ms / most
        colour = "fail" if not passed else "1" if row.rung else "2"
        p.box(192, y, length, 14, colour, solid=passed, dash=not passed, of=row.what)
        p.text(192 + length + 4, y + 12, f"{row.median_ms:.4f}" if passed else "gate failed")
    y = 40 + 20 * len(rows)
    p.text(0, y, "bold: a library's; each passed its gate" if all(row.fraction <= 1 for row in rows)
           else "bold: a library's; dashed: its gate failed", muted=True)
    for i, line in enumerate(refused):
        p.text(0, y + 16 + 16 * i, f"no time: {line}"[:48])
    return p


def _short(row):
    """A Row's name in the 190 px before its bar."""
    return row.what.replace("PyTorch: matmul, softmax, matmul", "PyTorch, three calls").replace(
        "cuBLAS, CuPy softmax, cuBLAS", "CuPy, three calls").replace(
        "PyTorch SDPA, memory-efficient", "SDPA, memory-efficient").replace("PyTorch SDPA", "SDPA")
