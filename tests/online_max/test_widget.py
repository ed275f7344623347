"""The widget's traits and its static page, without a browser."""

import gzip
import html.parser
import subprocess

import numpy as np
import pytest
from lesson import ArgumentError
from lesson.online_max import case_scores, walk
from support.online_max import node

# ---- the widget's Python side


@pytest.fixture
def widget():
    import lesson

    return lesson.OnlineMax


def test_traits_and_trace(widget):
    w = widget()
    assert (w.case, w.tile, w.step, w.fault) == ("spike-late", 4, 8, "none")
    table = w.trace()
    assert table.dtype.names == ("tile", "tile_max", "m_before", "m", "rescale", "total",
                                 "l_before", "l", "o_before", "o")
    assert table.shape == (8,) and table["o"].shape == (8, 3)
    np.testing.assert_array_equal(table["l"], walk(case_scores("spike-late")).l[1:])
    assert w.verdict.passed
    w.fault = "forget-o"
    assert not w.verdict.passed


def test_traits_follow_each_other(widget):
    w = widget(step=5)
    w.tile = 16
    assert w.step == 2
    w.case = "flat"
    assert w.scores == [2.0] * 32
    w.case = "random"
    before = w.scores
    w.seed = 4
    assert w.scores == case_scores("random", 4).tolist() != before
    own = widget(scores=range(12), tile=3)
    assert (own.step, own.tile, own.scores) == (4, 3, [float(s) for s in range(12)])
    own.case = "ascending"  # 32 scores again, which 3 does not divide
    assert (own.tile, len(own.scores)) == (4, 32)


def test_traits_refuse_what_cannot_be(widget):
    w = widget()
    for name, bad in (("tile", 5), ("step", 9), ("step", -1), ("case", "spike"), ("fault", "all"),
                      ("scores", [1.0] * 31), ("scores", [float("nan")] * 32)):
        with pytest.raises(ArgumentError):
            setattr(w, name, bad)
    with pytest.raises(ArgumentError):
        widget(case="spike")
    with pytest.raises(ArgumentError):
        widget(scores=[1, 2, 3])


def test_trait_updates_from_the_browser(widget):
    """One message holds what belongs together: new scores, case and step."""
    w = widget()
    w.set_state({"case": "flat", "seed": 0, "scores": [2.0] * 32})
    assert w.scores == [2.0] * 32
    w.set_state({"tile": 8, "step": 4})
    assert (w.tile, w.step) == (8, 4)


class _Reader(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.attributes = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs


def test_mime_bundle_holds_the_view_and_a_page(widget):
    bundle, _ = widget()._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    page = _Reader()
    page.feed(bundle["text/html"])
    assert page.tags.count("script") == 2  # the data and the module: nothing else
    assert page.tags.count("svg") == 1 and page.tags.count("tr") == 1 + 8
    names = {name for name, _ in page.attributes}
    assert not names & {"src", "href", "id"}  # nothing fetched, nothing two widgets could share


def test_the_page_is_the_same_at_every_build(widget):
    assert widget().html() == widget().html()


def test_module_and_style_are_small(widget):
    from lesson.online_max.widget import module, style

    weight = len(gzip.compress((module() + style()).encode(), mtime=0))
    assert weight <= 40 * 1024, weight


def test_joined_module_is_valid(widget, tmp_path):
    from lesson.online_max.widget import module

    file = tmp_path / "online_max.mjs"
    file.write_text(module(), encoding="utf-8")
    assert "</script" not in module() and "<!--" not in module()  # it stands inside a page
    done = subprocess.run([node(), "--check", str(file)], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
