"""Two ways to share the work: merge the parts, or pass the keys round a ring.

Both take the ranks of this process, loaded, and the link that joins them to all.
"""

import numpy as np

from ..problem.merge import merge
from .deal import chunks, deal


def by_merge(ranks, link, todo):
    """Yield (slice, answer) of every slice of query rows in ``todo``: merged from all ranks' parts.

    An answer is a NumPy array where the root is, elsewhere None. While one chunk is merged, the
    GPUs already compute the parts of the next.
    """
    under_way = None
    for i, rows in enumerate(todo):
        parts = [rank.part(rows, i) for rank in ranks]
        if under_way is not None:
            yield under_way[0], under_way[1]()
        under_way = rows, link.merge(parts)
    if under_way is not None:
        yield under_way[0], under_way[1]()


def by_ring(ranks, link, case, rows):
    """The whole answer where the root is, elsewhere None: keys pass round all ranks.

    Ring attention (Liu, Zaharia and Abbeel 2023, arXiv:2310.01889). Each rank has some of the
    queries; in step s it meets the keys that were dealt to the rank s before it, and passes them
    on meanwhile. ``rows``: of a chunk.
    """
    size, d = link.size, case.q.shape[1]
    own = deal(case.problem.queries, size)
    keys = [share.stop - share.start for share in deal(case.problem.keys, size)]
    room = [2 * d * many for many in keys]  # floats of a block: K, then V
    now, then, mine = [], [], []
    for rank in ranks:
        with rank.talking():
            flat = [x.reshape(-1) for x in (rank.k, rank.v)]
            both = rank.put(np.zeros(max(room), np.float32))
            both[: len(flat[0])], both[len(flat[0]) : 2 * len(flat[0])] = flat
            now.append(both)
            then.append(rank.put(np.zeros(max(room), np.float32)))
        rank.wait()
        share = own[rank.number]
        mine.append([slice(share.start + c.start, share.start + c.stop)
                     for c in chunks(share.stop - share.start, rows)] if share.stop > share.start
                    else [])
    state = [[None] * len(slices) for slices in mine]
    for step in range(size):
        if step + 1 < size:
            link.shift([now[i][: room[(rank.number - step) % size]]
                        for i, rank in enumerate(ranks)],
                       [then[i][: room[(rank.number - 1 - step) % size]]
                        for i, rank in enumerate(ranks)])
        for c in range(max(map(len, mine))):  # chunk after chunk, so that no GPU's queue fills
            for i, rank in enumerate(ranks):
                if c < len(mine[i]):
                    many = keys[(rank.number - step) % size]
                    k, v = (now[i][a : a + many * d].reshape(many, d) for a in (0, many * d))
                    part = rank.part(mine[i][c], c, k, v)
                    with rank.computing(c):
                        state[i][c] = part if step == 0 else merge(state[i][c], part)
        for rank in ranks:
            rank.finish()
        now, then = then, now
    answers = []
    for i, rank in enumerate(ranks):
        with rank.talking():
            found = [rank.get(o / l[:, None]) for _, l, o in state[i]]
        answers.append(np.concatenate([*found, np.zeros((0, d), np.float32)]))
    return link.gather(answers)
