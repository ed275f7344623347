"""The online-maximum widget on a static page, in Chromium, with no network but this machine."""

import json
import statistics
import threading
from pathlib import Path

import numpy as np
import pytest
from lesson.online_max import CASES, FAULTS, case_scores, walk
from support.online_max import as_float32, axe_source, opened, ulps
from support.webserver import serve

PAGE = """<!doctype html>
<html lang="en" data-theme="{theme}">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>The online maximum</title><link rel="icon" href="data:,"></head>
<body style="margin: 0; background: {background}; color: {text}">
<main><h1 style="font-size: 1rem">Page</h1>{body}</main></body></html>
"""


@pytest.fixture(scope="module")
def kernel():
    """What a kernel did, as the NumPy model of it stands in for one."""
    from lesson.online_max import OnlineMax, capture

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capture, "choose", lambda: None)
        return OnlineMax.from_kernel(row=9, case="ascending", n=256)


@pytest.fixture(scope="module")
def site(tmp_path_factory, kernel):
    """A folder with the widget's static form: in light, in dark, three times, of a kernel."""
    from lesson.online_max import OnlineMax

    folder = tmp_path_factory.mktemp("site")
    one = OnlineMax()._repr_mimebundle_()[0]["text/html"]
    two = OnlineMax(case="flat", tile=8)._repr_mimebundle_()[0]["text/html"]
    for name, theme, body in (("light", "light", one), ("dark", "dark", one),
                              ("three", "light", one + two + one),
                              ("kernel", "light", kernel.html())):
        background, text = ("#14181e", "#eee") if theme == "dark" else ("#fff", "#111")
        (folder / f"{name}.html").write_text(
            PAGE.format(theme=theme, background=background, text=text, body=body),
            encoding="utf-8")
    httpd = serve(folder)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield folder, f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    httpd.server_close()


@pytest.fixture
def page(browser, site):
    with opened(browser, site[1] + "/light.html") as page:
        yield page


def choose(page, label, value):
    page.get_by_label(label, exact=True).select_option(value)


def step_of(page):
    return page.locator(".om-steptext").inner_text()


# Goes through all cases, faults and steps with the page's own controls, and reads the numbers that
# the page shows: a <data> element carries the exact value of what is written short.
EVERYTHING = """() => {
  const root = document.querySelector(".online-max");
  const [caseBox, , faultBox] = root.querySelectorAll("select");
  const range = root.querySelector("input[type=range]");
  const set = (box, value, kind) => { box.value = value; box.dispatchEvent(new Event(kind)); };
  const rows = (table) => [...table.tBodies[0].rows].map((row) =>
    [...row.cells].slice(1).map((cell) => cell.querySelector("data")?.value ?? ""));
  const seen = [], times = [];
  for (const c of [...caseBox.options].map((o) => o.value)) {
    set(caseBox, c, "change");
    for (const f of [...faultBox.options].map((o) => o.value)) {
      set(faultBox, f, "change");
      for (let t = 0; t <= Number(range.max); t++) {
        const start = performance.now();
        set(range, t, "input");
        root.getBoundingClientRect();  // style and layout are part of the drawing
        times.push(performance.now() - start);
        const [state, final] = root.querySelectorAll("table.om-state");
        seen.push({
          case: c, fault: f, step: t, state: rows(state), final: final ? rows(final) : null,
          verdict: root.querySelector(".om-badge").className.split(" ")[1],
          reason: root.querySelector(".om-reason").textContent,
        });
      }
    }
  }
  return { seen, times };
}"""


def test_every_case_fault_and_step_shows_the_numpy_trace(page, capsys):
    found = page.evaluate(EVERYTHING)
    seen = found["seen"]
    assert len(seen) == len(CASES) * len(FAULTS) * 9
    for shown in seen:
        state = walk(case_scores(shown["case"]), fault=shown["fault"])
        t, where = shown["step"], (shown["case"], shown["fault"], shown["step"])
        m, l, *o = shown["state"]
        assert as_float32(m[3]) == state.m[t], where  # a maximum is compared, never computed
        after = as_float32([l[3], *(row[3] for row in o)])
        assert ulps(after, np.array([state.l[t], *state.o[t]])).max() <= 2, where
        if t:
            before = as_float32([l[0], *(row[0] for row in o)])
            assert ulps(before, np.array([state.l[t - 1], *state.o[t - 1]])).max() <= 2, where
            assert as_float32(m[0]) == state.m[t - 1], where
        passed = state.verdict.passed
        assert shown["verdict"] == ("om-fail" if not passed else
                                    "om-pass" if shown["fault"] == "none" else "om-missed"), where
        assert (shown["final"] is not None) == (t == 8), where
        if t == 8:
            answer, three, fraction = zip(*shown["final"], strict=True)
            assert ulps(as_float32(answer), state.answer).max() <= 2, where
            np.testing.assert_allclose(np.array(three, float), state.reference, rtol=1e-12)
            assert passed == all(float(x) <= 1 for x in fraction), where
    median = statistics.median(found["times"])
    with capsys.disabled():
        print(f"\n  a step is drawn in {median:.2f} ms (median), {max(found['times']):.1f} at most")
    assert median < 16


def test_first_picture_without_javascript(browser, site):
    with opened(browser, site[1] + "/light.html", java_script_enabled=False) as page:
        assert page.locator("svg rect").count() == 32
        assert page.locator("svg").is_visible()
        assert page.locator("tbody tr").count() == 8
        assert "passed" in page.locator(".online-max").inner_text()


def test_opens_from_a_file(browser, site):
    address = (Path(site[0]) / "light.html").as_uri()
    with opened(browser, address) as page:
        assert step_of(page) == "8 of 8"
        page.get_by_role("button", name="Previous").click()
        assert step_of(page) == "7 of 8"


def test_keyboard_alone(page):
    """Tab visits every control once, the bars as one; what each does, the keyboard does."""
    stops = []
    for _ in range(30):
        page.keyboard.press("Tab")
        stop = page.evaluate("""() => {
          const a = document.activeElement;
          return a === document.body ? null : a.getAttribute("aria-label") ?? a.innerText;
        }""")
        if stop is None:
            break
        stops.append(stop.split("\n")[0])
    assert stops == ["Case", "Tile width", "Break it", "Score of key 32, tile 8", "key", "to score",
                     "‹ Previous", "▶ Play", "Tile", "All tiles as a table"]

    bar = page.get_by_role("slider", name="Score of key 32, tile 8")
    bar.focus()
    page.keyboard.press("ArrowUp")
    assert bar.get_attribute("aria-valuenow") == "12.25"
    page.keyboard.press("PageDown")
    assert bar.get_attribute("aria-valuenow") == "10.25"
    page.keyboard.press("ArrowLeft")
    focused = "document.activeElement.getAttribute('aria-label')"
    assert page.evaluate(focused) == "Score of key 31, tile 8"
    page.keyboard.press("Home")
    assert page.evaluate(focused) == "Score of key 1, tile 1"
    assert page.get_by_label("key", exact=True).input_value() == "1"
    page.keyboard.press("Tab")  # leaves the bars at once
    page.keyboard.press("Tab")
    page.keyboard.press("Control+A")
    page.keyboard.type("3.5")
    page.keyboard.press("Enter")
    assert page.get_by_role("slider", name="Score of key 1, tile 1").get_attribute(
        "aria-valuenow") == "3.5"
    page.get_by_role("button", name="Reset scores").focus()
    page.keyboard.press("Enter")
    assert page.get_by_role("slider", name="Score of key 1, tile 1").get_attribute(
        "aria-valuenow") == "-0.75"

    page.get_by_label("Tile", exact=True).focus()
    page.keyboard.press("ArrowLeft")
    assert step_of(page) == "7 of 8"
    page.get_by_label("Break it").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator(".om-badge").inner_text().startswith("Gate: failed")
    page.get_by_label("Tile width").focus()
    page.keyboard.press("ArrowDown")
    assert step_of(page).endswith("of 4")


def test_changes_are_announced(page):
    from playwright.sync_api import expect

    live = page.locator("[aria-live=polite]")

    page.wait_for_timeout(300)
    assert live.inner_text() == ""  # the first picture is read with the page
    page.get_by_role("button", name="Previous").click()
    expect(live).to_contain_text("Tile 7 of 8")
    choose(page, "Break it", "forget-l")
    expect(live).to_contain_text("Gate: failed")


def test_play_and_pause(page):
    page.clock.install()
    page.get_by_role("button", name="Play").click()
    assert step_of(page) == "0 of 8"
    page.clock.run_for(3500)
    assert step_of(page) == "3 of 8"
    page.get_by_role("button", name="Pause").click()
    page.clock.run_for(5000)
    assert step_of(page) == "3 of 8"
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(20000)
    assert step_of(page) == "8 of 8"
    assert page.get_by_role("button", name="Play").is_visible()  # it stopped by itself


HELD = "() => document.querySelector('.om-held-past').getAttribute('d')"


def test_weights_move_unless_motion_is_unwanted(browser, site):
    for motion in ("reduce", "no-preference"):
        with opened(browser, site[1] + "/light.html", reduced_motion=motion) as page:
            page.get_by_role("button", name="Previous").click()
            page.wait_for_timeout(600)
            first = page.evaluate("""() => {
              const buttons = [...document.querySelectorAll("button")];
              buttons.find((b) => b.textContent.startsWith("Next")).click();
              return document.querySelector(".om-held-past").getAttribute("d");
            }""")
            if motion == "reduce":
                page.wait_for_timeout(600)
                assert first == page.evaluate(HELD)
            else:
                page.wait_for_function(f"first => first != ({HELD})()", arg=first)


@pytest.mark.parametrize("width", [320, 360, 1280])
def test_nothing_is_wider_than_the_screen(browser, site, width):
    with opened(browser, site[1] + "/light.html", viewport={"width": width, "height": 900}) as page:
        for case, tile in (("spike-late", "4"), ("large", "32"), ("random", "1")):
            choose(page, "Case", case)
            choose(page, "Tile width", tile)
            page.locator("details").evaluate("(d) => (d.open = true)")
            page.wait_for_timeout(50)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            cut = page.evaluate("""() => [...document.querySelectorAll(".om-numbers :is(td, th)")]
              .filter((c) => c.scrollWidth > c.clientWidth + 1).map((c) => c.textContent)""")
            assert not cut, cut  # no number runs into its neighbour


@pytest.mark.parametrize("width", [320, 1280])
def test_controls_are_large_enough(browser, site, width):
    """24 px both ways. The bars are excepted: each has the fields `key` and `to score` as its
    equivalent, which WCAG 2.2, criterion 2.5.8, provides for."""
    with opened(browser, site[1] + "/light.html", viewport={"width": width, "height": 900}) as page:
        choose(page, "Case", "random")  # shows the seed
        small = page.evaluate("""() => [...document.querySelectorAll(
            ".online-max :is(button, input, select, summary)")]
          .map((e) => [e.outerHTML.slice(0, 60), e.getBoundingClientRect()])
          .filter(([, r]) => r.width < 24 || r.height < 24)
          .map(([html, r]) => `${html} ${r.width} x ${r.height}`)""")
        assert not small, small


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
def test_axe_finds_no_violation(browser, site, theme, width):
    axe = axe_source()
    with opened(browser, f"{site[1]}/{theme}.html", viewport={"width": width, "height": 900},
                reduced_motion="reduce") as page:
        page.evaluate(axe)
        page.locator("details").evaluate("(d) => (d.open = true)")
        for case, fault, steps in (("spike-late", "none", 0), ("spike-late", "forget-both", 0),
                                   ("large", "no-maximum", 1), ("flat", "tile-maximum", 3)):
            choose(page, "Case", case)
            choose(page, "Break it", fault)
            for _ in range(steps):
                page.get_by_role("button", name="Previous").click()
            result = page.evaluate(
                "async () => await axe.run(document, {resultTypes: ['violations']})")
            assert len(result["passes"]) > 10
            bad = [(v["id"], [n["html"][:90] for n in v["nodes"]]) for v in result["violations"]]
            assert not bad, (case, fault, bad)


CONTRASTS = """() => {
  const parse = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const light = (rgb) => {
    const [r, g, b] = rgb.map((x) => (x / 255 <= 0.03928 ? x / 255 / 12.92 : ((x / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [x, y] = [light(parse(a)), light(parse(b))].sort((p, q) => q - p);
    return (x + 0.05) / (y + 0.05);
  };
  const root = document.querySelector(".online-max");
  const grounds = [getComputedStyle(root).backgroundColor, getComputedStyle(root.querySelector(".om-now")).fill];
  const words = [...root.querySelectorAll("svg text, svg tspan")].map((t) => {
    const style = getComputedStyle(t);
    const lost = t.classList.contains("om-lost");  // white on a stroke of its own
    return [t.textContent, Math.min(...(lost ? [style.stroke] : grounds).map((g) => contrast(style.fill, g)))];
  });
  const marks = ["om-score-now", "om-score-past", "om-max", "om-held-past", "om-due", "om-ghost"]
    .filter((name) => root.querySelector("." + name)).map((name) => {
    const style = getComputedStyle(root.querySelector("." + name));
    const ink = style.fill === "none" ? style.stroke : style.fill;
    return [name, Math.min(...grounds.map((g) => contrast(ink, g)))];
  });
  return { words, marks };
}"""  # noqa: E501 - JavaScript


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast_inside_the_picture(browser, site, theme):
    """axe does not judge text in SVG: 4.5 : 1 for words, 3 : 1 for marks (WCAG 1.4.3, 1.4.11)."""
    with opened(browser, f"{site[1]}/{theme}.html") as page:
        for case, fault in (("spike-late", "forget-o"), ("large", "no-maximum")):
            choose(page, "Case", case)
            choose(page, "Break it", fault)
            found = page.evaluate(CONTRASTS)
            assert len(found["words"]) > 10
            assert not [x for x in found["words"] if x[1] < 4.5]
            assert not [x for x in found["marks"] if x[1] < 3]


def test_colours_follow_the_theme_at_once(page):
    background = "getComputedStyle(document.querySelector('.online-max')).backgroundColor"
    light = page.evaluate(background)
    for mark in ("html.dataset.theme = 'dark'",
                 "delete html.dataset.theme; html.setAttribute('theme', 'dark')",
                 "html.removeAttribute('theme'); body.className = 'vscode-dark'",
                 "body.className = ''; body.dataset.jpThemeLight = 'false'"):
        dark = page.evaluate(f"""(() => {{
          const html = document.documentElement, body = document.body;
          {mark};
          return {background};
        }})()""")
        assert dark != light, mark
    page.evaluate("document.body.dataset.jpThemeLight = 'true'")
    assert page.evaluate(background) == light
    page.evaluate("delete document.body.dataset.jpThemeLight")
    page.emulate_media(color_scheme="dark")  # no theme at all: the reader's system decides
    assert page.evaluate(background) != light


def test_widgets_on_one_page_do_not_disturb_each_other(browser, site):
    with opened(browser, site[1] + "/three.html") as page:
        widgets = page.locator(".online-max")
        assert widgets.count() == 3
        first, second, third = (widgets.nth(i) for i in range(3))
        assert second.locator(".om-steptext").inner_text() == "4 of 4"
        first.get_by_role("button", name="Previous").click()
        first.get_by_label("Break it").select_option("forget-o")
        assert first.locator(".om-steptext").inner_text() == "7 of 8"
        assert second.locator(".om-steptext").inner_text() == "4 of 4"
        assert third.locator(".om-steptext").inner_text() == "8 of 8"
        assert third.locator(".om-badge").inner_text().startswith("Gate: passed")


def test_a_cell_run_again_starts_again(page):
    """The output of a cell is put into a living page, then replaced by another like it."""
    from lesson.online_max import OnlineMax

    for _ in range(2):
        page.evaluate("""(html) => {
          const fresh = document.createElement("div");
          fresh.innerHTML = html;
          const host = fresh.firstChild;
          for (const script of host.querySelectorAll("script")) {  // as a notebook does: run them
            const copy = document.createElement("script");
            copy.type = script.type;
            copy.textContent = script.textContent;
            script.replaceWith(copy);
          }
          document.querySelector(".online-max-static").replaceWith(host);
        }""", OnlineMax().html())
        page.wait_for_selector(".online-max-static[data-started] .om-steptext")
        page.get_by_role("button", name="Previous").click()
        assert step_of(page) == "7 of 8"
        assert page.locator(".online-max").count() == 1


KERNEL = """() => {
  const root = document.querySelector(".online-max"), range = root.querySelector("input[type=range]");
  const shown = [];
  for (let t = 1; t <= Number(range.max); t++) {
    range.value = t;
    range.dispatchEvent(new Event("input"));
    shown.push([...root.querySelector("table.om-bars").tBodies[0].rows].map((row) =>
      [...row.querySelectorAll("data")].map((d) => Number(d.value))));
  }
  return shown;
}"""  # noqa: E501 - JavaScript


def test_a_kernel_s_state_beside_the_trace(browser, site, kernel):
    """The page's comparison is the one that `agreement()` makes in Python."""
    with opened(browser, site[1] + "/kernel.html", viewport={"width": 320, "height": 900}) as page:
        shown = np.array(page.evaluate(KERNEL))  # (tiles, m l o o o, before trace kernel fraction)
        state = kernel.walk()
        assert shown.shape == (8, 5, 4)
        np.testing.assert_array_equal(shown[:, 0, 2], kernel.captured["m"][1:])
        np.testing.assert_array_equal(shown[:, 1, 2], kernel.captured["l"][1:])
        np.testing.assert_array_equal(shown[:, 2:, 2], kernel.captured["o"][1:])
        np.testing.assert_allclose(shown[:, 1, 1], state.l[1:], rtol=3e-7)
        words = kernel.agreement().words
        assert float(words.rsplit("is ", 1)[1].split(" of")[0]) == pytest.approx(
            shown[:, :, 3].max(), rel=0.06)  # two digits are written
        assert "agree with the trace after every tile" in page.locator(".om-reason").inner_text()
        assert page.get_by_role("slider").count() == 1  # the step alone: nothing can be dragged
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
        assert page.locator(".mark").inner_text() == "computed"


def test_a_broken_kernel_s_state(browser, tmp_path, kernel):
    """inf and NaN pass through the page's data, and the sentence names where the kernel left."""
    state = json.loads(json.dumps(kernel.captured))
    state["l"][3:] = ["Infinity"] * 6
    state["o"][4:] = [["NaN"] * 3] * 5
    state["answer"] = ["NaN"] * 3
    broken = type(kernel)(kernel.scores, tile=32, values=kernel.values, captured=state)
    assert not broken.verdict.passed
    assert "first after tile 3: l is inf" in broken.agreement().words
    (tmp_path / "broken.html").write_text(PAGE.format(
        theme="light", background="#fff", text="#111", body=broken.html()), encoding="utf-8")
    with opened(browser, (tmp_path / "broken.html").as_uri()) as page:
        reason = page.locator(".om-reason").inner_text()
        assert reason == "The kernel's l leaves the trace in tile 3."
        assert page.locator(".om-badge").inner_text() == "Gate: failed, not finite"


def middle(page, key, score):
    """Where on the screen a score of a key stands, read from two bars' handles."""
    return page.evaluate("""([key, score]) => {
      const bars = [...document.querySelectorAll("[role=slider]")];
      const at = (j) => {
        const r = bars[j].firstChild.getBoundingClientRect();
        return [Number(bars[j].ariaValueNow), r.top + r.height / 2, r.left + r.width / 2];
      };
      const [s0, y0] = at(0), [s1, y1] = at(31), x = at(key)[2];
      return [x, y0 + (score - s0) * (y1 - y0) / (s1 - s0)];
    }""", [key, score])


def test_drag_with_the_mouse(page):
    bar = page.locator("[role=slider]").nth(5)
    page.mouse.move(*middle(page, 5, float(bar.get_attribute("aria-valuenow"))))
    page.mouse.down()
    page.mouse.move(*middle(page, 5, 8))
    assert bar.get_attribute("aria-valuenow") == "8"  # already while it moves
    page.mouse.move(*middle(page, 5, 9))
    page.mouse.up()
    assert bar.get_attribute("aria-valuenow") == "9"
    page.mouse.move(*middle(page, 5, 2))
    assert bar.get_attribute("aria-valuenow") == "9"  # let go
    page.get_by_text("All tiles as a table").click()
    state = case_scores("spike-late")
    state[5] = 9
    shown = page.locator(".om-scroll tbody tr").nth(2).locator("data").nth(1)
    assert float(shown.get_attribute("value")) == walk(state).m[2] == 9


def test_drag_with_a_finger(browser, site):
    with opened(browser, site[1] + "/light.html", has_touch=True, is_mobile=True,
                viewport={"width": 360, "height": 800}) as page:
        send = page.context.new_cdp_session(page).send
        bar = page.locator("[role=slider]").nth(31)

        def touch(kind, *point):
            points = [{"x": point[0], "y": point[1]}] if point else []
            send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

        x, y = middle(page, 31, 12)
        low = middle(page, 31, 4)[1]
        touch("touchStart", x, y)
        for part in (0.2, 0.4, 0.6, 0.8, 1.0):
            touch("touchMove", x, y + part * (low - y))
        touch("touchEnd")
        assert abs(float(bar.get_attribute("aria-valuenow")) - 4) <= 0.25
        assert page.evaluate("scrollY") == 0

        # A finger that starts elsewhere scrolls the page and changes no score.
        before = bar.get_attribute("aria-valuenow")
        x, y = middle(page, 31, -1)
        touch("touchStart", x, y + 30)
        for i in range(1, 6):
            touch("touchMove", x, y + 30 - 20 * i)
        touch("touchEnd")
        assert bar.get_attribute("aria-valuenow") == before
        page.wait_for_function("scrollY > 0")
