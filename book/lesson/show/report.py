"""The report: what the chapters' tables show, in one text."""



from ..machine import backend as backends
from ..measure import gates_and_times, records
from ..problem.gate import formula
from ..progress import Progress
from .bytes import count_bytes, score_matrix
from .device import device
from .gates import case_table
from .kernel_facts import facts_table, geometry
from .marks import mark_of, where
from .timing import stale_notice, timing_tables


def report(kind=None):
    """Print the whole report. Returns the messages of failed gates, an empty list if none."""
    chosen = backends.choose(kind)
    print(device().text())
    print()
    for part in (geometry(), score_matrix(), facts_table("sm_75"), facts_table("sm_90")):
        print(part.text() + "\n")
    if chosen is not None and chosen.mark == "live":
        compiled = gates_and_times.compile_times(chosen)
        print("compile time, apart [live]: "
              + ", ".join(f"{name}.cu {t:.0f} ms" for name, t in compiled.items()) + "\n")
    for notice in stale_notice():
        print(notice + "\n")
    failures = []
    for n in records.TABLE_N:
        print(formula(n))
        print(count_bytes(n).text() + "\n")
        (tables,), failed = timing_tables((n,), kind)
        for t in tables:
            print(t.text() + "\n")
        failures += failed
    with Progress() as progress:
        rows = gates_and_times.gate_cases(chosen, progress=progress)
    print(case_table(rows, mark_of(chosen), where(chosen)).text() + "\n")
    failures += [r.message for r in rows if not r.passed]
    if not failures:
        print("all cases passed their gates")
    return failures
