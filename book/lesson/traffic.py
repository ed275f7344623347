"""Bytes before time: what the two paths must move, and what their kernels ask for. Arithmetic only.

N keys and queries, d = 64, float32 (4 bytes), T = N/64 query tiles.
"""

D = 64
BM = 64  # query rows per block of the online kernel
LARGE_N = (8192, 32768, 131072, 1048576)
MIB = 1 << 20


def score_matrix_bytes(n):
    """Bytes of one N x N float32 matrix."""
    return 4 * n * n


def score_matrix_mib(n):
    """MiB of one N x N float32 matrix."""
    return score_matrix_bytes(n) / MIB


def compulsory(n):
    """Bytes each path cannot avoid moving once: ``{'materialised': .., 'online': ..}``.

    Both read Q, K, V and write O: 16 N d. The materialised path also passes over the N x N matrix
    five times (S written, S read twice, P written, P read): 20 N^2.
    """
    inputs_and_output = 4 * 4 * n * D
    return {"materialised": inputs_and_output + 5 * score_matrix_bytes(n),
            "online": inputs_and_output}


def requested(n):
    """Bytes the loads and stores of each kernel ask for: ``{kernel: (loaded, stored)}``.

    Re-reads count each time, whether a cache answers them or not.
    """
    tiles = n // BM
    return {
        "scoresQKt": (32 * n * n, 4 * n * n),
        "softmaxRows": (8 * n * n, 4 * n * n + 4 * n),
        # each of the N d threads reads its row's sum: 4 N d bytes
        "weightedV": (32 * n * n + 4 * n * D, 4 * n * D),
        "attentionOnline": (4 * n * D + 8 * n * D * tiles, 4 * n * D),
    }


PATH_KERNELS = {
    "materialised": ("scoresQKt", "softmaxRows", "weightedV"),
    "online": ("attentionOnline",),
}


def requested_by_path(n):
    """Requested bytes, loads and stores together: ``{'materialised': .., 'online': ..}``."""
    per_kernel = requested(n)
    return {path: sum(sum(per_kernel[kernel]) for kernel in kernels)
            for path, kernels in PATH_KERNELS.items()}


def working_memory(n):
    """Bytes of device memory each path needs at once, inputs and output included."""
    inputs_and_output = 4 * 4 * n * D
    return {"materialised": inputs_and_output + 2 * score_matrix_bytes(n) + 4 * n,
            "online": inputs_and_output}
