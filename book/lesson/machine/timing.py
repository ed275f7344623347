"""What a time is: CUDA events around runs that follow warm-ups, with their spread."""

from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Timing:
    """Mean milliseconds per run of each round."""

    rounds_ms: tuple
    runs: int  # runs in a round
    warmups: int

    @property
    def median(self):
        return median(self.rounds_ms)

    @property
    def low(self):
        return min(self.rounds_ms)

    @property
    def high(self):
        return max(self.rounds_ms)
