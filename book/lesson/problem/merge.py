"""Parts of a row's attention, (m, l, o), and how two of them become one."""

import numpy as np


def merge(one, other, contracted=False):
    """Merge two parts (m, l, o) of the same rows, NumPy arrays (rows,), (rows,), (rows, d).

    m natural (a weight is exp(score - m)). (-inf, 0, 0) is the part of no keys. Both products are
    rounded before they are added; ``contracted``: only the second, the first is part of a fused
    multiply-add, as a compiler makes it of merge.cu.
    """
    (m1, l1, o1), (m2, l2, o2) = one, other
    m = np.maximum(m1, m2)
    with np.errstate(invalid="ignore"):  # -inf - -inf: no keys on either side
        w1 = np.where(m1 == m, 1.0, np.exp(m1 - m)).astype(m.dtype)
        w2 = np.where(m2 == m, 1.0, np.exp(m2 - m)).astype(m.dtype)
    kept = np.float64 if contracted else m.dtype  # it holds a product of two float32 exactly
    l = (l1.astype(kept) * w1 + l2 * w2).astype(m.dtype)
    return m, l, (o1.astype(kept) * w1[:, None] + o2 * w2[:, None]).astype(m.dtype)
