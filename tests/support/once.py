"""What several workers of a run need, made once: by the first that asks."""

import fcntl
import json
import os
from contextlib import contextmanager
from pathlib import Path


def shared(tmp_path_factory):
    """A folder of this run, the same one in all of its workers."""
    top = tmp_path_factory.getbasetemp()
    top = top.parent if "PYTEST_XDIST_WORKER" in os.environ else top
    folder = top / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def locked(path):
    """One process at a time, of those that name the same ``path``."""
    with Path(path).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def once(folder, name, make):
    """What ``make()`` returned, something for JSON; whoever comes meanwhile waits for it.

    Where it raised, the next one tries again.
    """
    kept = Path(folder, f"{name}.json")
    with locked(Path(folder, f"{name}.lock")):
        if not kept.exists():
            kept.write_text(json.dumps(make()), encoding="utf-8")
    return json.loads(kept.read_text(encoding="utf-8"))
