"""Who gets what: keys are dealt to ranks, queries go through in chunks."""

TILE = 64  # keys: a kernel walks whole tiles
BLOCK = 128  # query rows of a kernel's block


def deal(count, ranks, unit=TILE):
    """``count`` keys dealt to ``ranks``: a slice for each, in order, none empty unless keys lack.

    Each gets whole units of 64, the last one also the rest, so that shares differ by less than two
    units. Where there are fewer units than ranks, shares differ by one key.
    """
    if count < unit * ranks:
        unit = 1
    ends = [count * r // ranks // unit * unit for r in range(ranks)] + [count]
    return [slice(a, b) for a, b in zip(ends, ends[1:])]


def chunks(queries, rows):
    """``queries`` in slices of at most ``rows``, even ones, in whole blocks of 128 where they fit.

    ``rows`` is a multiple of 128, or below it.
    """
    size = -(-queries // -(-queries // rows))
    if rows >= BLOCK:
        size = -(-size // BLOCK) * BLOCK
    return [slice(a, min(queries, a + size)) for a in range(0, queries, size)]
