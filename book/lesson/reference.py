"""The answer to compare with: softmax attention in float64. Shares no code with the kernels."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Reference:
    """Float64 attention for some query rows.

    ``o`` has shape (len(rows), d); ``rows`` are the query rows it belongs to;
    ``max_abs_score`` is the largest absolute score met, which the gate needs.
    """

    o: np.ndarray
    rows: np.ndarray
    max_abs_score: float


def attention(q, k, v, rows=None, block=256):
    """Softmax attention softmax(q k^T / sqrt(d)) v in float64, with the maximum subtracted.

    q, k, v: arrays of shape (n, d). rows: the query rows wanted, all by default. ``block`` query
    rows are held at a time, so that no n x n array exists (block x n float64 is the most).
    """
    q, k, v = (np.asarray(x, dtype=np.float64) for x in (q, k, v))
    rows = np.arange(len(q)) if rows is None else np.asarray(rows)
    block = max(1, min(block, (1 << 28) // (8 * len(k))))  # at most 256 MiB of scores
    o = np.empty((len(rows), v.shape[1]))
    largest = 0.0
    for start in range(0, len(rows), block):
        part = slice(start, start + block)
        s = q[rows[part]] @ k.T / np.sqrt(q.shape[1])
        largest = max(largest, float(np.abs(s).max()))
        s -= s.max(axis=1, keepdims=True)
        p = np.exp(s)
        o[part] = (p @ v) / p.sum(axis=1, keepdims=True)
    return Reference(o, rows, largest)
