"""The verb ``attention``: one call, the best kernel that this device has.

What a kernel cannot do yet (a mask, other lengths and widths) is refused by the kernels' Handles.
"""

import numpy as np

from ..errors import ArgumentError
from ..machine import backend as backends
from ..problem import model
from ..problem.problem import Problem
from . import ladder
from .check import check

PATIENCE_S = 60  # no emulated call may take longer than about this
EMULATED_RATE = 2e7  # multiplications and additions that an emulated kernel does in a second


def attention(q, k, v):
    """softmax(q k^T / 8) v in float32, by the fastest kernel that is inside the gate here.

    q, k, v: arrays (N, 64) or (heads, N, 64), float32, C-contiguous, all of NumPy or all of CuPy; N
    a multiple of 64. Returns an array of the same kind and shape; of CuPy's, on the same device and
    stream, without waiting. Inputs are not copied on their device.

    Which kernel, and into how many parts the keys go, is what ``lesson.choice`` estimates. Without
    a GPU kernels run emulated, which is slow: a problem that would take more than a minute is
    refused. Without a compiler too, it is the NumPy model of the online path.
    Raises ArgumentError for arrays that no kernel takes, naming the array and the remedy.
    """
    chosen = backends.choose()
    live = chosen is not None and chosen.mark == "live"
    numpy = all(isinstance(x, np.ndarray) for x in (q, k, v))
    if not live:
        return _on_the_host(chosen, q, k, v)
    arrays = [_put(chosen, x) for x in (q, k, v)] if numpy else (q, k, v)
    planned = ladder.plan(chosen, "fastest", *arrays)
    planned.enqueue()
    return chosen.get(planned.output) if numpy else planned.output


def _put(backend, x):
    """A NumPy array on the GPU, in its own order: what is no array of ours is refused later."""
    return backend.cupy.array(x, order="K") if x.dtype == np.float32 else x


class _Host:
    """What ``check`` asks of a backend, of arrays that are still the caller's."""

    array_name = "a NumPy array"
    owns = staticmethod(lambda x: isinstance(x, np.ndarray))


def _on_the_host(chosen, q, k, v):
    problem = check(_Host, q, k, v, ladder.HANDLES)
    if chosen is None:
        heads = zip(*(x.reshape(problem.heads, -1, x.shape[-1]) for x in (q, k, v)))
        return np.stack([model.online(*head) for head in heads]).reshape(q.shape)
    seconds = problem.operations / EMULATED_RATE
    if seconds > PATIENCE_S:
        fits = int((PATIENCE_S * EMULATED_RATE / Problem(64, 64).operations) ** 0.5) * 64
        raise ArgumentError(
            f"{problem}: without a GPU that takes about {seconds / 60:,.0f} minutes, emulated; "
            f"take N up to {fits:,} with one head, or a GPU ({backends.probe().reason})")
    return ladder.plan(chosen, "best", *(chosen.put(x) for x in (q, k, v))).run()
