"""Launch geometry of the two paths: memory first, inputs untouched."""
import pytest
from lesson.errors import ArgumentError, InputError, LaunchError
from lesson.launch import paths
from lesson.problem import cases
from lesson.problem.problem import of
from lesson.text import source
from support.gpus import HereBackend


def test_memory_is_computed_before_anything_is_allocated():
    with pytest.raises(ArgumentError, match=r"32,832 MiB.*1,024 MiB are free.*online"):
        paths.check_memory(HereBackend(), "materialised", of(65536))
    paths.check_memory(HereBackend(), "online", of(65536))


def test_a_kernel_that_changes_its_input_is_named(emulated):
    text = source.load("online").text.replace(
        "const float* q, const float* k, const float* v", "float* q, const float* k, const float* v"
    ).replace("    float m[R]", "    q[row0 * D] = 0.0f;\n    float m[R]")
    with pytest.raises((InputError, LaunchError), match="q"):
        paths.run(emulated, "online", cases.make("random", 64), source.from_text(text))


@pytest.mark.parametrize("n", [128, 256])
def test_requested_bytes_counted_equal_the_formulas(emulated, n):
    counted = {}
    for path in paths.PATHS:
        _, planned = paths.run(emulated, path, cases.make("random", n))
        counted.update(planned.counts)
    assert {k: (c.loads_bytes, c.stores_bytes) for k, c in counted.items()} == paths.requested(n)
