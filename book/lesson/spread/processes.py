"""One process of many, as mpiexec started it: which it is, and that no end goes unsaid."""

import contextlib
import ctypes
import io
import os
import signal
import socket
import sys
import time

from ..errors import ArgumentError, GateError, LessonError

# What a launcher tells a process of its place, before MPI starts: MPICH (also Slurm), Open MPI.
_PLACES = (("PMI_RANK", "PMI_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"))
LAST_WORDS_S = 3.0  # for a rank that ended to say why, before one that misses it ends all
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


def place():
    """(rank, number of processes) that the launcher gave this process; (0, 1) without one."""
    for rank, size in _PLACES:
        if rank in os.environ:
            return int(os.environ[rank]), int(os.environ.get(size, 1))
    return 0, 1


def communicator():
    """MPI's communicator of all processes. Raises LessonError where mpi4py is not installed."""
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise LessonError(f"{place()[1]} processes need mpi4py ({error}): pip install -r "
                          "requirements-mpi.txt") from None
    return MPI.COMM_WORLD


def watched(work):
    """Run ``work()`` in a child process, and say so if something kills it. Returns the exit code.

    A process that is killed can say nothing, and mpiexec names only its number. So each rank has
    a parent that waits; when it ends, mpiexec ends the others. When the parent is killed, the
    child dies with it.
    """
    sys.stdout.flush()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        except (OSError, AttributeError):
            pass  # not Linux: mpiexec ends the process group
        if os.getppid() != parent:  # it died before
            os._exit(1)
        code = 1
        try:
            code = work()
        finally:
            if code:  # no farewell of MPI's: after an error that would wait for the others
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        return code  # the interpreter's usual end, which takes leave of the others
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the child's to answer
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        number, size = place()
        print(f"rank {number} of {size} ({socket.gethostname()}, process {child}) was killed by "
              f"{signal.Signals(-code).name}. If nobody did that, the machine ran out of memory: "
              f"{ADVICE}", file=sys.stderr, flush=True)
        return 1
    return code


@contextlib.contextmanager
def uninterrupted():
    """Answer Ctrl-C at the end, with its KeyboardInterrupt: for what calls Python from elsewhere.

    MPI calls the merge of parts. An exception in there would be MPI's fatal error, and the rows
    half merged.
    """
    held = []
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # as it is in the background
        signal.signal(signal.SIGINT, lambda *_: held.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if held:
        raise KeyboardInterrupt


ADVICE = ("choose a smaller --n, or deal the keys to more machines. Finished chunks are kept: the "
          "same command goes on from them")


def ended(error, comm=None):
    """Say how this rank ended, and end the others. Returns the exit code where it is alone."""
    number, size = (comm.rank, comm.size) if comm else (0, 1)
    code = 1 if isinstance(error, GateError) else 2
    mpi = sys.modules.get("mpi4py.MPI")
    if isinstance(error, LessonError):
        words = str(error)
    elif mpi and isinstance(error, mpi.Exception):  # most often because another rank is gone
        time.sleep(LAST_WORDS_S)
        words = f"another rank does not answer: {str(error).splitlines()[0]}"
    else:
        words = f"{type(error).__name__}: {error}"
        if isinstance(error, MemoryError):
            words = f"{words or 'MemoryError'}: {ADVICE}"
    if size > 1:
        words = f"rank {number} of {size} ({socket.gethostname()}, process {os.getpid()}): {words}"
    print(words, file=sys.stderr, flush=True)
    if comm:
        comm.Abort(code)
    return code


@contextlib.contextmanager
def said_once():
    """For what every rank finds wrong alike: the first one says it, the others end after it."""
    if place()[0] == 0:
        yield
        return
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    except (SystemExit, ArgumentError) as error:
        time.sleep(1)  # some launchers end all processes with the first that fails
        os._exit(error.code if isinstance(error, SystemExit) else 2)
