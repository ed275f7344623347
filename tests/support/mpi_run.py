"""What test_processes.py starts under mpiexec: runs by both ways, and the root's answers in a file.

    mpiexec -n 3 python mpi_run.py FILE.npz N [FAULT]

FAULT: 'memory' (rank 1 has none), 'wrong' (rank 1's part is wrong).
"""

import sys

import numpy as np
from lesson.problem import cases
from lesson.spread import parts, processes, rank, run


def main(file, n, fault=""):
    comm = processes.communicator()
    if fault and comm.rank == 1:
        rank.by_arrays = {"memory": no_memory, "wrong": wrong}[fault]
    try:
        found = {}
        with run.of_processes(comm, "numpy") as party:
            for name in ("spike-late", "random"):
                for way in run.WAYS:
                    result = run.run(party, cases.make(name, int(n)), way, 128)
                    if comm.rank == 0:
                        found[f"{name} {way}"] = result.output
                        found[f"{name} {way} moved"] = result.moved
                        found[f"{name} {way} fraction"] = result.verdict.fraction
        if comm.rank == 0:
            np.savez(file, **found)
        return 0
    except Exception as error:
        return processes.ended(error, comm)


def no_memory(q, k, v):
    return np.empty(1 << 50)


def wrong(q, k, v):
    m, l, o = parts.by_arrays(q, k, v)
    return m, 2 * l, o


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
