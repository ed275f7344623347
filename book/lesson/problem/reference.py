"""The answer to compare with: softmax attention in float64. Shares no code with the kernels."""

from dataclasses import dataclass

import numpy as np

from .problem import Problem


@dataclass(frozen=True)
class Reference:
    """Float64 attention for some query rows.

    ``o`` has Q's shape, with as many rows as ``rows``, the query rows that it holds of every head;
    ``max_abs_score`` is the largest absolute score that a query sees, which the gate needs.
    ``lse`` has the natural log-sum-exp of each row's scores, -inf where it sees no key: (batch,
    heads, rows).
    """

    o: np.ndarray
    rows: np.ndarray
    max_abs_score: float
    lse: np.ndarray


def attention(q, k, v, rows=None, block=256, problem=None):
    """Softmax attention softmax(scale q k^T) v in float64, with the maximum subtracted.

    q, k, v: arrays of a Problem's shapes, by default one head of (queries, d) and (keys, d). rows:
    the query rows wanted, all by default. ``block`` query rows are held at a time, so that no
    score matrix exists (block x keys float64 is the most). A query that sees no key gives zeros.
    """
    p = problem or Problem(len(q), len(k), d=q.shape[-1])
    rows = np.arange(p.queries) if rows is None else np.asarray(rows)
    q, k, v = (np.asarray(x, dtype=np.float64) for x in (q, k, v))
    seen, largest = p.seen(), 0.0
    o, lse = np.empty((p.batch, p.heads, len(rows), p.d)), np.empty((p.batch, p.heads, len(rows)))
    q = q.reshape(p.batch, p.heads, p.queries, p.d)
    k, v = (x.reshape(p.batch, p.kv_heads, p.keys, p.d) for x in (k, v))
    for entry, head in np.ndindex(p.batch, p.heads):
        of_kv = head // (p.heads // p.kv_heads)
        o[entry, head], lse[entry, head], top = _one_head(
            q[entry, head], k[entry, of_kv], v[entry, of_kv], p.scale, rows, seen[entry], block)
        largest = max(largest, top)
    return Reference(o.reshape(*p.q_shape[:-2], len(rows), p.d), rows, largest, lse)


def _one_head(q, k, v, scale, rows, seen, block):
    """(float64 attention (len(rows), d), log-sum-exp, largest absolute score) of one head."""
    o, lse, largest = np.zeros((len(rows), v.shape[1])), np.full(len(rows), -np.inf), 0.0
    block = max(1, min(block, (1 << 28) // (8 * len(k))))  # at most 256 MiB of scores
    for start in range(0, len(rows), block):
        part = rows[start : start + block]
        end = int(seen[part].max())  # nothing beyond is read, whatever stands there
        if end == 0:
            continue
        p, total, top, most = weights(q[part], k[:end], scale, seen[part])
        largest = max(largest, most)
        o[start : start + block] = (p @ v[:end]) / total
        lse[start : start + block] = (top + np.log(total))[:, 0]
    return o, lse, largest


def weights(q, k, scale, seen):
    """exp(score - its row's maximum) of float64 rows of one head, and what they are made of.

    q, k: (rows, d), (keys, d); row i sees its first ``seen[i]`` keys. Returns the weights (rows,
    keys), their sums (rows, 1), the maxima (rows, 1) and the largest absolute score seen. A row
    that sees no key has weights 0, sum 1 and maximum -inf.
    """
    s = scale * (q @ k.T)
    visible = np.arange(len(k)) < seen[:, None]
    largest = float(np.abs(s).max(where=visible, initial=0.0))
    s[~visible] = -np.inf
    top = s.max(axis=1, keepdims=True)
    s -= np.where(np.isneginf(top), 0.0, top)  # a row that sees no key: weights 0, not NaN
    p = np.exp(s, out=s)
    total = p.sum(axis=1, keepdims=True)
    return p, np.where(total == 0, 1.0, total), top, largest
