"""Gates and times of the two paths: no number without a pass."""


import numpy as np
import pytest
from lesson.errors import GateError
from lesson.machine import emulator
from lesson.measure import gates_and_times
from lesson.measure.records import GATE_N
from lesson.problem import cases
from support.gpus import FakeGpu


@pytest.mark.parametrize("n, names, orders", [
    # Whether the order of threads matters is a question to the kernel: few tiles ask it.
    (192, cases.NAMES, emulator.ORDERS),
    (GATE_N, cases.NAMES, ("ascending",)),
    pytest.param(1024, ("random",), ("ascending",), marks=pytest.mark.slow)])
def test_correct_paths_pass_well_inside_the_gate(emulated, n, names, orders):
    for row in gates_and_times.gate_cases(emulator.HostBackend(orders), names, n):
        assert row.passed and row.fraction <= 0.35, row.message


def test_a_wrong_kernel_is_never_given_a_time():
    backend = FakeGpu(lambda q, k, v: 0.0)
    with pytest.raises(GateError, match="no time, before timing.*online, periodic, N = 64"):
        gates_and_times.time_path(backend, "online", 64)
    assert backend.timed == 0


def test_a_kernel_that_goes_wrong_while_timed_gets_no_time():
    from lesson.problem import model

    calls = []

    def answer(q, k, v):
        calls.append(1)
        return model.online(q, k, v) if len(calls) == 1 else np.nan

    with pytest.raises(GateError, match="no time, after timing.*not finite"):
        gates_and_times.time_path(FakeGpu(answer), "online", 64)


def test_a_kernel_that_works_only_in_its_first_launch_gets_no_time():
    from lesson.problem import model

    launches = []

    def answer(q, k, v):
        launches.append(1)
        return model.online(q, k, v) if len(launches) == 1 else None  # None: writes nothing

    with pytest.raises(GateError, match="no time, after timing.*never written"):
        gates_and_times.time_path(FakeGpu(answer), "online", 64)


def test_times_come_with_their_spread():
    from lesson.problem import model

    gate, (time,) = gates_and_times.time_path(FakeGpu(model.online), "online", 64)
    assert gate.passed and (time.median_ms, time.low_ms, time.high_ms) == (2.0, 1.0, 4.0)
