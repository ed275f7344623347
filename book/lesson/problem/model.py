"""The two paths as NumPy models in float32, for machines with neither a GPU nor a C++ compiler.

A model shows the arithmetic, tile by tile. It is not the kernel: what a model passes says that the
method is right, not that the CUDA source is.
"""

import numpy as np

F32 = np.float32


def online(q, k, v, tile=32, rows=slice(None), trace=None):
    """Online softmax attention, tile by tile. q, k, v: (n, d) float32. Returns (rows, d) float32.

    ``trace``, a list, receives one dict per tile with m, l, o after the tile and the rescale
    factor, arrays over the query rows. Source: Milakov and Gimelshein 2018 (arXiv:1805.02867).
    """
    q = q[rows]
    scale = F32(1.0 / np.sqrt(q.shape[1]))
    m = np.full(len(q), -np.inf, dtype=F32)
    l = np.zeros(len(q), dtype=F32)
    o = np.zeros((len(q), v.shape[1]), dtype=F32)
    for key in range(0, len(k), tile):
        s = scale * (q @ k[key : key + tile].T)
        m_new = np.maximum(m, s.max(axis=1))
        rescale = np.exp(m - m_new)
        w = np.exp(s - m_new[:, None])
        l = l * rescale + w.sum(axis=1)
        o = o * rescale[:, None] + w @ v[key : key + tile]
        m = m_new
        if trace is not None:
            trace.append({"tile": key // tile, "m": m, "rescale": rescale, "l": l, "o": o})
    return o / l[:, None]


def materialised(q, k, v):
    """Attention through the N x N matrix. q, k, v: (n, d) float32. Returns (n, d) float32."""
    s = F32(1.0 / np.sqrt(q.shape[1])) * (q @ k.T)
    p = np.exp(s - s.max(axis=1, keepdims=True))
    return (p @ v) / p.sum(axis=1, keepdims=True)
