"""Fragments: what is given to a tensor core, and what the host form makes of it."""

import numpy as np
import pytest
from lesson.launch import rungs
from lesson.measure import fragments


def matrix(which, name, x):
    """The matrices 'a' (.., 16, K), 'b' (.., K, 8) or 'c' (.., 16, 8) of fragments, in float64."""
    rows, columns = fragments.places(which)[name]
    x = (x.view(np.float16) if x.dtype == np.uint32 else x).reshape(-1, *rows.shape)
    full = np.full((len(x), rows.max() + 1, columns.max() + 1), np.nan)
    full[:, rows, columns] = x
    assert not np.isnan(full).any(), "every number of the matrix has a place in some lane"
    return full


@pytest.mark.parametrize("rung", rungs.TENSOR, ids=lambda r: r.name.split("/")[-1])
def test_the_host_form_is_a_product_cut_off_towards_zero(one_order, rung):
    a, b, c = fragments.fragments(rung, "no sum yet", 4)
    if not rung.halves:  # what TF32 keeps
        a, b = ((x.view(np.uint32) & 0xFFFFE000).view(np.float32) for x in (a, b))
    got = matrix(rung, "c", fragments.products(one_order, rung, a, b, c))
    left, right = matrix(rung, "a", a), matrix(rung, "b", b)
    exact = left @ right
    largest = (np.abs(left)[..., None] * np.abs(right)[:, None]).max(2)
    assert (np.abs(got - exact) <= 17 * 2.0**-23 * largest).all()
    assert (got != exact).any()  # float64 keeps more


def test_two_backends_that_are_one_agree_in_every_bit(one_order):
    found = fragments.agreements(one_order, one_order, "24_fp16", 2)
    assert [a.kind for a in found] == list(fragments.KINDS)
    assert all(a.results == 256 and a.different == 0 for a in found)


def test_a_wrong_sum_is_seen(one_order, monkeypatch):
    read = fragments.source.read
    inputs = fragments.fragments("24_fp16", "alike", 4)
    right = fragments.products(one_order, "24_fp16", *inputs)
    monkeypatch.setattr(fragments.source, "read",
                        lambda name: read(name).replace("BITS = 25", "BITS = 24"))
    assert (fragments.products(one_order, "24_fp16", *inputs) != right).any()
