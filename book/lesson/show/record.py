"""The verb ``record``: measure this GPU, keep the file, offer it."""

import base64
from dataclasses import dataclass
from html import escape
from pathlib import Path

from .. import colab
from ..measure import evidence
from ..measure.record import file_name
from ..measure.record import record as measured
from ..progress import Progress
from ..tables import mark_html


@dataclass(frozen=True)
class Kept:
    """A recorded run and the file that holds it. Shows itself as a link to download."""

    item: evidence.Evidence
    path: Path

    @property
    def words(self):
        passed = sum(gate.passed for gate in self.item.gates)
        return (f"{self.item.gpu}, {self.item.day}: {passed} gates passed, "
                f"{len(self.item.times)} times. Kept in {self.path}")

    def __repr__(self):
        return f"{self.words} [recorded]"

    def _repr_html_(self):
        data = base64.b64encode(self.path.read_bytes()).decode()
        return ('<div class="lesson-output" data-mark="recorded"><p class="lesson-note">'
                f'{escape(self.words)} {mark_html("recorded")} '
                f'<a download="{self.path.name}" href="data:application/json;base64,{data}">'
                f"Download {self.path.name}</a></p></div>")


def record(whole=False):
    """Record this GPU, write the evidence file and, in Colab, offer it for download.

    Gates on every case, times of both paths, kernel facts and the mutants; with ``whole`` also the
    ladder, the rungs on tensor cores and the long sequences. Returns a Kept. Raises ArgumentError
    without a GPU, GateError where a kernel is wrong: then nothing is written.
    """
    with Progress() as progress:
        item = measured(progress, whole, tools=False)
    kept = Kept(item, Path(evidence.write(item, file_name(item))))
    if colab.here():
        colab.download(kept.path)
    return kept
