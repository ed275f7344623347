"""Chunks of the answer that are finished, on disk: a run that was stopped goes on from them."""

import json
import os
import shutil
from pathlib import Path

import numpy as np

from ..errors import ArgumentError, EvidenceError


class Kept:
    """A folder with one run's finished chunks. Only the root opens it.

    run: what the run computes, a dict; chunks of another run are refused with the difference.
    """

    def __init__(self, folder, run):
        self.folder = Path(folder)
        about = self.folder / "run.json"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not about.exists():
                about.write_text(json.dumps(run), encoding="utf-8")
            found = json.loads(about.read_text(encoding="utf-8"))
        except OSError as error:
            raise ArgumentError(f"cannot keep chunks in {folder}: {error.strerror}; name another "
                                "folder with --keep") from None
        except ValueError:
            raise EvidenceError(f"{about} is damaged: remove {folder}") from None
        wrong = [f"{name} is {found.get(name)!r} there and {value!r} here"
                 for name, value in run.items() if found.get(name) != value]
        if wrong:
            raise ArgumentError(f"{folder} keeps chunks of another run: {'; '.join(wrong)}. Remove "
                                "it, or name another folder with --keep")

    def _path(self, rows):
        return self.folder / f"rows-{rows.start:012}-{rows.stop:012}.npy"

    def finished(self, rows):
        return self._path(rows).exists()

    def read(self, rows):
        try:
            return np.load(self._path(rows))
        except (OSError, ValueError, EOFError):
            raise EvidenceError(f"{self._path(rows)} is damaged: remove it, and it is computed "
                                "again") from None

    def add(self, rows, answer):
        """Keep a chunk: under its name there is a whole one or none."""
        part = self.folder / "part"
        with open(part, "wb") as file:
            np.save(file, answer)
        os.replace(part, self._path(rows))

    def remove(self):
        shutil.rmtree(self.folder)
