"""Bytes and time on paper: what N keys over p ranks move, and how long that takes at least."""

from ..problem.problem import D
from .deal import deal

HOST_GPUS = 8  # of one machine, joined by their own links; beyond, by a network


def moved_bytes(n, ranks, way, d=D, maximum_back=True):
    """Bytes that all ranks send, float32: N queries and N keys of one head.

    merge: every rank but one gives m, l and o of every query row, 4 (d + 2) bytes; by a maximum
    and sums (``maximum_back``, as NCCL does it) it also gets the row's maximum back, 4 more.
    ring: K and V of every key pass every rank but the one that has them, 8 d bytes.
    """
    each = 4 * (d + 2) + 4 * maximum_back if way == "merge" else 8 * d
    return each * n * (ranks - 1)


def seconds(n, ranks, way, unit, bytes_per_s):
    """Seconds of one head of N over GPUs that compute and send at once, at least.

    unit: seconds of one GPU for one query and one key. bytes_per_s: that a GPU sends, in one
    direction. The largest share of the keys decides; what starts a transfer is left out.
    """
    most = max(share.stop - share.start for share in deal(n, ranks))
    return max(unit * n * most, moved_bytes(n, ranks, way) / ranks / bytes_per_s)


def useful_ranks(n, way, unit, bytes_per_s):
    """How many GPUs compute as long as they send: more of them save no time. For many ranks."""
    return unit * n * n / (moved_bytes(n, 2, way) / bytes_per_s)


def rate(gpu, ranks):
    """Bytes a second that each of ``ranks`` GPUs (a Gpu with links) sends: its slowest link's."""
    return gpu.link_bytes_per_s if ranks <= HOST_GPUS else gpu.network_bytes_per_s
