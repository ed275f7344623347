"""The verb ``ladder``: what there is to see of all rungs together, by name."""

from ..errors import ArgumentError
from . import hopper
from .comparison import callers
from .rungs import counters_of_rungs, times_of_rungs
from .splits import merge_table, rescales, split_table
from .t4 import t4_times
from .tensor import agreement, beside, broken, counted, on_a_t4
from .use import in_use
from .way import way

SEEN = {
    "times": times_of_rungs,
    "counters": counters_of_rungs,
    "splits": split_table,
    "rescales": rescales,
    "merge": merge_table,
    "callers": callers,
    "T4": t4_times,
    "tensor cores": beside,
    "tensor counters": counted,
    "tensor T4": on_a_t4,
    "fragments": agreement,
    "broken products": broken,
    "Hopper": hopper.times,
    "Hopper counters": hopper.counters,
    "Hopper checks": hopper.checks,
    "way": way,
    "any problem": in_use,
}


def ladder(what="times", *arguments, **options):
    """All rungs together, seen from one side.

    what: 'times' (n=4096, live=True), 'counters', 'splits' (ns, rung), 'rescales' (n), 'merge'
    (its laws), 'callers' (beside what a reader would call) or 'T4' (computed). Of the rungs on
    tensor cores: 'tensor cores' (beside float32 and FP16), 'tensor counters', 'tensor T4'
    (computed), 'fragments' (the GPU's products beside the host form's), 'broken products'. Of
    those for a Hopper GPU: 'Hopper' (times), 'Hopper counters', 'Hopper checks' (both compilers,
    runs again). 'way' (n, heads): all rungs and callers, and what each costs. Of the kernels for
    masks, lengths and widths: 'any problem'. Other arguments go to what is chosen.
    """
    if what not in SEEN:
        raise ArgumentError(f"what = {what!r}: choose one of {', '.join(SEEN)}")
    return SEEN[what](*arguments, **options)
