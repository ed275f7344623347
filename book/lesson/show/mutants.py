"""Which case catches which broken kernel."""

from ..machine import backend as backends
from ..measure import evidence
from ..measure.mutants import MUTANTS, RACE, UNDEFINED, rejections
from ..measure.records import GATE_N
from ..progress import Progress
from ..tables import Folded, Table, Tables
from . import bars

BY_WORDS = {RACE: "thread order", UNDEFINED: "a value that nobody wrote"}


def mutants(n=GATE_N):
    """The table of mutants: run here, or recorded."""
    chosen = backends.choose()
    if chosen is not None:
        if chosen.mark == "emulated":  # races are seen in any order, and rejection needs but one
            chosen = type(chosen)(orders=chosen.orders[:1])
        with Progress() as progress:
            rows = rejections(chosen, n, progress=progress)
        return draw(rows, chosen.mark, chosen.describe())
    for item in evidence.shown("mutants"):
        return draw(item.mutants, "recorded", f"{item.gpu}, {item.day}")
    return Table("Mutants", ["mutant"],
                 footer="broken kernels must run to be caught: this needs a GPU or a C++ compiler")


def draw(rows, mark, note):
    """Outcomes as a grid, and as tables: what the base input lets through, and the rest."""
    found = {(r.mutant, r.case): r for r in rows}
    ran = [m for m in MUTANTS if (m.name, m.case) in found]  # a record may be older than some
    columns = ["broken kernel", "must be caught by", "verdict there"]
    through = Table(f"Let through by periodic alone, N = {rows[0].n}", columns, note=note)
    caught = Table(f"Caught by periodic as well, N = {rows[0].n}",
                   [*columns, "the same as the original"], note=note)
    same = {}  # why no gate could reject them elsewhere
    for mutant in ran:
        there, alone = found[mutant.name, mutant.case], found[mutant.name, "periodic"]
        cells = (mutant.name, BY_WORDS.get(mutant.caught_by, mutant.caught_by),
                 "rejected" if there.rejected else "LET THROUGH")
        if alone.rejected:
            caught.add(mark, *cells, mutant.equivalent or "never")
        else:
            through.add(mark, *cells)
            same.setdefault(mutant.equivalent or "never", []).append(mutant.name)
    words = [why.removeprefix("the same ") + f" ({', '.join(names)})" if len(same) > 1 else
             why.removeprefix("the same ") for why, names in same.items()]
    through.footer = (f"periodic alone would have let {len(through.rows)} of {len(ran)} "
                      f"through. The same as the original: {'; '.join(words)}.")
    grid = bars.grid(rows, mark, note)
    return Tables([Folded(grid.caption, Tables([grid, through])),
                   Folded(f"The other {len(caught.rows)}", caught)])
