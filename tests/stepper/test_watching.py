"""The verb and the widget's Python side, without a browser."""

import gzip
import html.parser
import json
import subprocess
import sys
import time

import lesson
import pytest
from lesson import ArgumentError, CompileError, LaunchError
from support import BOOK
from support.emulated import needs_compiler, spent_s
from support.kernels import edit
from support.online_max import node


@pytest.fixture(scope="module")
def stepper():
    return lesson.watch("scoresQKt", (1, 0), 2, n=64)


@needs_compiler
@pytest.mark.parametrize("wrong, says", [
    ({"kernel": "scores"}, "no kernel is called 'scores'; there are: scoresQKt, softmaxRows"),
    ({"kernel": None}, "no kernel is called None"), ({"kernel": 99}, "the rungs 1 to"),
    ({"block": 16}, "block = 16: scoresQKt has the blocks 0 to 15"),
    ({"block": (4, 0)}, r"block = \(4, 0\): scoresQKt has a grid of \(4, 4\) blocks"),
    ({"block": "first"}, "block = 'first'"), ({"block": True}, "block = True"),
    ({"warp": 8}, "warp = 8: scoresQKt has the warps 0 to 7"),
    ({"warp": "a"}, "warp = 'a'"), ({"case": "spiky"}, "no case is called 'spiky'"),
    ({"n": 100}, "N must be a positive multiple of 64")])
def test_bad_input_names_the_argument(wrong, says):
    with pytest.raises(ArgumentError, match=says):
        lesson.watch(**{"n": 64, **wrong})


@needs_compiler
def test_any_kernel_block_and_warp(stepper):
    data = stepper.data
    assert (data["kernel"], data["block"], data["warp"], data["threads"]) == ("scoresQKt", [1, 0],
                                                                            2, 256)
    assert data["count"] == 4 * (2 * 2 + 2 * 16 + 2) + 1
    assert data["end"] == {"passed": None, "text": ""}
    same = lesson.watch(block=1, warp=2, n=64).data
    assert same == data
    for kernel, name, title in ((5, "attentionOnline", "rung 5, "),
                                ("19_swizzle", "attentionOnline", "rung 19, swizzle"),
                                ("weightedV", "weightedV", "weightedV")):
        found = lesson.watch(kernel, n=64).data
        assert found["kernel"] == name and found["title"].startswith(title)
        assert found["end"]["passed"] and "passes its gate" in found["end"]["text"]


@needs_compiler
def test_a_wrong_result_is_the_end():
    edit("online/update", "o0[r] * rescale, a1 = o1[r] * rescale", "o0[r], a1 = o1[r]")
    data = lesson.watch("attentionOnline", case="spike-late", n=64).data
    assert data["end"]["passed"] is False
    assert "fails its gate. o[0, 0] is " in data["end"]["text"]
    assert "edited: online/update" in data["note"]


@needs_compiler
def test_an_edit_is_watched_within_five_seconds():
    """Compiled afresh, two cores or one: the text is new in every run."""
    edit("materialised/scores", "[BLK][BLK + 1]", f"[BLK][BLK]; // {time.time_ns()}\n")
    start = spent_s()
    data = lesson.watch(n=128).data
    assert spent_s() - start < 5  # of a processor: other tests may run
    assert [8, 4] not in [total[1:3] for total in data["totals"].values()]
    assert [32, 4] in [total[1:3] for total in data["totals"].values()]
    assert data["files"][0][1] == "cell materialised/scores"


@needs_compiler
def test_what_cannot_run_is_told_as_the_gate_tells_it():
    edit("materialised/scores", "float sum = 0.0f;", "float sum = 0.0f")
    with pytest.raises(CompileError, match="cell materialised/scores, line"):
        lesson.watch(n=64)
    lesson.reset()
    edit("materialised/scores", "        __syncthreads();   // a tile is read", "        //")
    with pytest.raises(LaunchError, match="scoresQKt has a race"):  # it makes what is watched then
        lesson.watch("softmaxRows", n=64)


def test_without_a_compiler_a_sentence_says_so(monkeypatch):
    monkeypatch.setenv("CXX", "none")
    said = lesson.watch(n=64)
    assert "no kernel ran here, CXX is 'none'" in said.text()
    with pytest.raises(ArgumentError):  # what is wrong is wrong there too
        lesson.watch("scores")


def test_the_verb_needs_numpy_alone_to_be_there():
    program = "import sys, lesson; lesson.watch; print('anywidget' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=BOOK, text=True,
                          capture_output=True, check=True)
    assert done.stdout.split()[-1] == "False"


# ---- the widget


@needs_compiler
def test_traits_refuse_what_cannot_be(stepper):
    last = len(stepper.data["steps"])
    for name, bad in (("step", last + 1), ("step", -1), ("lane", 32), ("lane", -2)):
        with pytest.raises(ArgumentError, match=f"{name} = {bad}: must be from"):
            setattr(stepper, name, bad)
    stepper.set_state({"step": last, "lane": 31})  # from the browser
    assert (stepper.step, stepper.lane) == (last, 31)
    stepper.set_state({"step": 0, "lane": -1})


class Reader(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.texts = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.texts.append((self.tags[-1], data))


@needs_compiler
def test_mime_bundle_holds_the_view_and_a_page(stepper):
    bundle, _ = stepper._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    page = Reader()
    page.feed(bundle["text/html"])
    assert page.tags.count("script") == 2 and page.tags.count("table") == 1
    assert not {name for name, _ in page.attributes} & {"src", "href", "id"}
    state, = (text for tag, text in page.texts if tag == "script" and text.startswith("{"))
    assert json.loads(state) == {"data": stepper.data, "step": 0, "lane": -1}
    rows = page.tags.count("tr") - 1
    assert rows == len(stepper.data["totals"])
    assert stepper.html() == lesson.watch("scoresQKt", (1, 0), 2, n=64).html()


@needs_compiler
def test_module_and_data_are_small():
    from lesson.stepper.widget import module, style

    weight = len(gzip.compress((module() + style()).encode(), mtime=0))
    assert weight <= 14 * 1024, weight
    for kernel in ("scoresQKt", "attentionOnline", 6, 19):  # three on a page, and the module
        data = json.dumps(lesson.watch(kernel).data, separators=(",", ":"))
        assert len(gzip.compress(data.encode(), mtime=0)) <= 8 * 1024, kernel


def test_joined_module_is_valid(tmp_path):
    from lesson.stepper.widget import module

    file = tmp_path / "stepper.mjs"
    file.write_text(module(), encoding="utf-8")
    assert "</script" not in module() and "<!--" not in module()  # it stands inside a page
    done = subprocess.run([node(), "--check", str(file)], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
