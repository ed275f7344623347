"""Bytes before time: the passes of the two paths, and what they must hold. Arithmetic only.

Each takes a Problem, or the N keys and queries of one head; float32 (4 bytes). What kernels ask for
is counted beside their launches (launch/paths.py).
"""

from .problem import of

LARGE_N = (8192, 32768, 131072, 1048576)
MIB = 1 << 20


def score_matrix_bytes(problem):
    """Bytes of the score matrix of every head, float32."""
    return of(problem).score_matrix_bytes


def compulsory(problem):
    """Bytes of one transfer for each pass over each matrix: ``{'materialised': .., 'online': ..}``.

    Both read Q, K, V and write O: 16 N d. The materialised path also passes over the N x N matrix
    five times (S written, S read twice, P written, P read): 20 N^2. A count of passes, no lower
    bound: a cache that holds a matrix from one pass to the next saves a transfer.
    """
    p = of(problem)
    return {"materialised": p.tensor_bytes + 5 * p.score_matrix_bytes, "online": p.tensor_bytes}


def working_memory(problem):
    """Bytes of device memory each path needs at once, inputs and output included."""
    p = of(problem)
    row_sums = 4 * p.batch * p.heads * p.queries
    return {"materialised": p.tensor_bytes + 2 * p.score_matrix_bytes + row_sums,
            "online": p.tensor_bytes}
