"""Long sequences: estimates, the size that is offered, and a run on a real GPU."""


import pytest
from lesson.machine import backend as backends
from lesson.measure import long_sequences

MOST = 0.5  # of the gate
needs_gpu = pytest.mark.skipif(not backends.probe().gpu, reason=backends.probe().reason)


class Clock:
    """A stand-in for a GPU with ``free`` bytes."""

    def __init__(self, free):
        self.free = free

    def free_bytes(self):
        return self.free


def test_the_offered_size_fits_time_and_memory():
    unit = 1.0 / 65536**2  # one second for 65,536 keys
    assert long_sequences.offer(Clock(1 << 40), unit) == 131072  # 4 s; 262,144 would take 16
    assert long_sequences.offer(Clock(64 << 20), unit) == 65536  # 64 MiB
    assert long_sequences.estimate(Clock(1 << 40), 131072, unit).seconds == pytest.approx(4)


@needs_gpu
def test_a_long_sequence_on_this_gpu():
    backend = backends.choose("live")
    found = long_sequences.run(backend, 16384, lambda *_: None, long_sequences.calibrate(backend))
    assert found.fraction <= MOST and found.sampled_rows >= 256
