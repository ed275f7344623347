"""What a compiler made of a kernel, kept for the next process of the same user.

Entries lie in the user's cache folder (``$XDG_CACHE_HOME``, else ``~/.cache``), one folder each,
named by a hash of everything that they were made from. A process copies what it uses, so that
an entry may be removed at any time. Where the folder cannot be had, nothing is kept.
"""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

NAME = "attention-two-ways"
LIMIT_BYTES = 200 * 2**20  # of all entries; beyond it the ones used longest ago go
_PRUNE_EVERY = 64  # entries kept by this process: counting all of them takes time

_kept = 0


def key(*parts):
    """The name of an entry made from ``parts``, strings or bytes, in this order."""
    total = hashlib.sha256()
    for part in parts:
        part = part.encode() if isinstance(part, str) else part
        total.update(len(part).to_bytes(8, "little") + part)
    return total.hexdigest()


def folder():
    """The cache folder of this user, made where it is missing; None if there can be none."""
    try:
        top = os.environ.get("XDG_CACHE_HOME")
        if not top and not Path.home().is_dir():
            return None
        path = Path(top or Path.home() / ".cache", NAME)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
        # Programs are run from here: nobody else may have put them there.
        private = status.st_uid == os.getuid() and not status.st_mode & 0o022
        return path if private and os.access(path, os.W_OK | os.X_OK) else None
    except (OSError, RuntimeError):  # no home, or one that may not be written to
        return None


def fetch(name, to):
    """Copy the files of an entry into the folder ``to``. Returns whether there was one."""
    top = folder()
    if top is None:
        return False
    entry = top / name
    try:
        sums = dict(line.split(" ", 1)[::-1] for line in
                    (entry / "SHA256").read_text(encoding="utf-8").splitlines())
        for file, digest in sums.items():
            data = (entry / file).read_bytes()
            if hashlib.sha256(data).hexdigest() != digest:  # written only in part
                shutil.rmtree(entry, ignore_errors=True)
                return False
            path = Path(to, file)
            path.write_bytes(data)
            path.chmod(0o700)
        os.utime(entry)
        return True
    except (OSError, ValueError):
        return False


def keep(name, files):
    """Keep copies of ``files`` (paths) as one entry. Does nothing where that fails."""
    global _kept
    top = folder()
    if top is None:
        return
    made = None
    try:
        made = Path(tempfile.mkdtemp(dir=top, prefix="new-"))
        sums = []
        for file in map(Path, files):
            data = file.read_bytes()
            (made / file.name).write_bytes(data)
            sums.append(f"{hashlib.sha256(data).hexdigest()} {file.name}\n")
        (made / "SHA256").write_text("".join(sums), encoding="utf-8")
        os.rename(made, top / name)  # whole, or, where another process was first, not at all
        if _kept % _PRUNE_EVERY == 0:
            prune(top)
        _kept += 1
    except OSError:
        if made:
            shutil.rmtree(made, ignore_errors=True)


def prune(top, limit=LIMIT_BYTES):
    """Remove the entries of the folder ``top`` that were used longest ago, down to ``limit``."""
    entries = []
    for entry in os.scandir(top):
        try:
            size = sum(file.stat().st_size for file in os.scandir(entry.path))
            entries.append((entry.stat().st_mtime, size, entry.path))
        except OSError:
            continue  # another process has just removed it
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= limit:
            break
        shutil.rmtree(path, ignore_errors=True)
        total -= size
