"""The gate is tested too: every broken kernel is rejected, the correct ones pass everything."""

import pytest
from lesson import cases, host, paths, results, traffic
from lesson.mutants import MUTANTS, RACE, outcome


@pytest.mark.parametrize("n, names, orders", [
    (256, cases.NAMES, host.ORDERS),
    # The same kernels, so one order of threads: as the report and the chapters do at this size.
    (1024, ("periodic", "spike-late", "random"), ("ascending",))])
def test_correct_paths_pass_well_inside_the_gate(emulated, n, names, orders):
    for row in results.gate_cases(host.HostBackend(orders), names, n):
        assert row.passed and row.fraction <= 0.35, row.message


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_mutant_is_rejected_by_the_case_named(emulated, mutant):
    name = "periodic" if mutant.caught_by == RACE else mutant.caught_by
    found = outcome(emulated, mutant, name)
    assert found.rejected, f"{mutant.name} passed on {name}"
    if mutant.caught_by == RACE:
        assert "race" in found.message.lower() or "order" in found.message.lower()


def test_periodic_alone_lets_mutants_through(emulated):
    weak = [m for m in MUTANTS if m.name in ("no maximum, online", "m starts at 0")]
    assert not any(outcome(emulated, m, "periodic").rejected for m in weak)


def test_equivalent_where_it_says_so(emulated):
    by_name = {m.name: m for m in MUTANTS}
    for name, case in (("no rescale at all", "descending"), ("mean of V", "flat"),
                       ("tile maximum, not running", "periodic"),
                       ("a step missing in warpMax", "flat")):
        assert by_name[name].equivalent and not outcome(emulated, by_name[name], case).rejected


@pytest.mark.parametrize("n", [128, 256])
def test_requested_bytes_counted_equal_the_formulas(emulated, n):
    counted = {}
    for path in paths.PATHS:
        _, planned = paths.run(emulated, path, cases.make("random", n))
        counted.update(planned.counts)
    assert {k: (c.loads_bytes, c.stores_bytes) for k, c in counted.items()} == traffic.requested(n)


