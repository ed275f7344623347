"""The table of mutants: what the base input lets through stands first."""

from lesson.measure.mutants import MUTANTS
from lesson.measure.records import Rejection
from lesson.problem.problem import of
from lesson.show import mutants


def rows(let_through, missed=()):
    """Made-up outcomes: the named mutants pass periodic; those in ``missed`` pass everything."""
    found = {}
    for m in MUTANTS:
        for case in (m.case, "periodic"):
            caught = m.name not in missed and (case != "periodic" or m.name not in let_through)
            found[m.name, case] = Rejection(m.name, case, of(320), caught, "")
    return list(found.values())


def test_a_grid_leads_and_what_periodic_lets_through_has_a_table_of_its_own():
    names = [m.name for m in MUTANTS if m.case != "periodic"][:2]
    shown, folded = mutants.draw(rows(names), "emulated", "a test").parts
    grid, first = shown.table.parts
    assert f"lets 2 of {len(MUTANTS)} through" in shown.summary == grid.caption
    assert [cells[0] for cells, _ in first.rows] == names
    assert f"let 2 of {len(MUTANTS)} through" in first.footer
    rest = folded.table
    assert [cells[0] for cells, _ in rest.rows] == [m.name for m in MUTANTS if m.name not in names]
    html = folded._repr_html_()
    assert html.startswith('<details><summary data-mark="emulated">The other ') and "<table" in html
    assert folded.text() == rest.text()


def test_a_mutant_that_its_own_input_misses_is_shouted():
    name = next(m.name for m in MUTANTS if m.case != "periodic")
    shown, _ = mutants.draw(rows([], [name]), "emulated", "a test").parts
    cells = shown.table.parts[1].rows[0][0]
    assert cells[0] == name and cells[2] == "LET THROUGH"
