"""The verb ``plot``: the lesson's figures and pictures by name."""

from ..errors import ArgumentError
from ..measure import evidence
from ..tables import Sentence, Tables
from . import hopper, pictures
from .marks import NO_BENCH, NO_LONG, origin

PICTURES = {
    "memory levels": pictures.memory_levels,
    "threads": pictures.threads,
    "one tile": pictures.one_tile,
    "8 x 8": pictures.thread_tile,
    "merge": pictures.merge_tree,
    "masks": pictures.mask_shapes,
    "mask tiles": pictures.mask_tiles,
    "pipeline": hopper.pipeline,
}
PLOTS = ("score matrix", "rungs", "times", "roofline", "ranks", "fragments", *PICTURES)


def plot(what):
    """A figure: 'score matrix' (MiB against N), 'ranks' (time against GPUs, on paper), or of a
    recorded ladder 'rungs' (share of the SGEMM rate), 'times' (against N) or 'roofline'. A picture:
    'memory levels' of a GPU and what passes between them, 'threads' of attentionOnline and what
    each computes, 'one tile' of a row's state, '8 x 8' scores of a thread, 'merge', parts as a
    tree, 'masks', the keys that a query sees, 'mask tiles', what is skipped of them, 'pipeline',
    who waits for whom on a Hopper GPU, or 'fragments', who holds which number of a product on
    tensor cores."""
    if what not in PLOTS:
        raise ArgumentError(f"what = {what!r}: choose one of {', '.join(PLOTS)}")
    if what in PICTURES:
        return PICTURES[what]()
    if what == "score matrix":
        from .figures import score_matrix

        return score_matrix()
    if what == "ranks":
        from . import several_gpus

        if (one := several_gpus.one_gpu()) is None:
            return Sentence(f"no plot: {NO_LONG}", "computed")
        return several_gpus.scale(*one)
    if what == "fragments":
        from .tensor import fragments_picture

        return fragments_picture()
    if not (found := evidence.shown("bench")):
        return Sentence(f"no plot: {NO_BENCH}", "computed")
    from . import ladder_figures

    parts = []
    for item in found:
        parts.append(getattr(ladder_figures, what)(item, origin(item)))
        if what == "roofline":
            parts += ladder_figures.from_memory(item, origin(item))
    return Tables(parts)
