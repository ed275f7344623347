"""The stepper on a static page, in Chromium, with no network but this machine."""

import statistics
import threading

import pytest
from support.emulated import needs_compiler
from support.kernels import edit
from support.online_max import axe_source, opened
from support.webserver import serve

pytestmark = needs_compiler

PAGE = """<!doctype html>
<html lang="en" data-theme="{theme}"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>A warp</title>
<link rel="icon" href="data:,"></head><body style="margin: 0"><main><h1>Page</h1>{body}</main>
</body></html>
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """(address, recording) of pages with one stepper, in light and in dark, and with two.

    Others, in both themes: a kernel edited so that its banks collide, and one that fails its gate.
    """
    import lesson

    folder = tmp_path_factory.mktemp("site")
    one, two = lesson.watch("scoresQKt", (1, 0), 1, n=64), lesson.watch("softmaxRows", n=64)
    for name, theme, body in (("light", "light", one.html()), ("dark", "dark", one.html()),
                              ("two", "light", one.html() + two.html())):
        (folder / f"{name}.html").write_text(PAGE.format(theme=theme, body=body), encoding="utf-8")
    edit("materialised/scores", "[BLK][BLK + 1]", "[BLK][BLK]")
    edited = lesson.watch(n=64)
    edit("online/update", "o0[r] * rescale, a1 = o1[r] * rescale", "o0[r], a1 = o1[r]")
    failing = lesson.watch("attentionOnline", case="spike-late", n=64)
    lesson.reset()
    for name, widget in (("edited", edited), ("failing", failing)):
        for theme in ("light", "dark"):
            (folder / f"{name}-{theme}.html").write_text(
                PAGE.format(theme=theme, body=widget.html()), encoding="utf-8")
    httpd = serve(folder)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_port}", one.data
    httpd.shutdown()
    httpd.server_close()


STEPS = """() => {
  const root = document.querySelector(".stepper"), range = root.querySelector("input[type=range]");
  const seen = [], times = [];
  for (let i = 0; i <= Number(range.max); i++) {
    const start = performance.now();
    range.value = i;
    range.dispatchEvent(new Event("input"));
    root.getBoundingClientRect();
    times.push(performance.now() - start);
    seen.push({
      line: root.querySelector(".st-now i")?.textContent ?? null,
      rows: root.querySelectorAll(".st-picture .st-empty").length,
      frames: root.querySelectorAll(".st-picture .st-sector").length,
      late: root.querySelectorAll(".st-picture .st-late").length,
      used: root.querySelector(".st-used figcaption")?.textContent.split(/[ ,]/)[0] ?? null,
    });
  }
  return { seen, times };
}"""


def test_every_step_is_drawn_as_it_was_counted(browser, site):
    address, data = site
    with opened(browser, f"{address}/light.html", viewport={"width": 1280, "height": 900}) as page:
        found = page.evaluate(STEPS)
    assert len(found["seen"]) == len(data["steps"]) + 1
    for shown, step in zip(found["seen"], data["steps"], strict=False):
        line, kind, place, *_ = data["sites"][step[0]]
        assert shown["line"] == str(data["lines"][line][0])
        if kind not in "rwa":
            continue
        array, (cost, least) = data["arrays"][place], step[3:]
        assert shown["used"] == array["name"]
        if "start" in array:
            assert shown["rows"] == cost and (shown["late"] > 0) == (cost > least)
        else:
            assert shown["frames"] == cost
    print(f"a step is drawn in {statistics.median(found['times']):.2f} ms (median)")
    assert statistics.median(found["times"]) < 16


def test_the_first_step_is_there_in_half_a_second(browser, site):
    context = browser.new_context()
    page = context.new_page()
    client = context.new_cdp_session(page)
    client.send("Emulation.setCPUThrottlingRate", {"rate": 4})
    page.add_init_script("""new MutationObserver(() => {
      if (!window.drawn && document.querySelector(".st-picture svg"))
        window.drawn = performance.now();
    }).observe(document, { childList: true, subtree: true });""")
    page.goto(f"{site[0]}/two.html", wait_until="load")
    page.wait_for_function("window.drawn")
    late = page.evaluate("window.drawn - performance.timing.loadEventEnd"
                         " + performance.timing.navigationStart")
    context.close()
    print(f"the first step stands {late:.0f} ms after the load")
    assert late < 500


def test_controls_and_keys(browser, site):
    from playwright.sync_api import expect

    with opened(browser, site[0] + "/two.html") as page:
        first, second = page.locator(".stepper").all()
        story = first.locator(".st-story")
        expect(story).to_contain_text("1 of 153")
        first.get_by_role("button", name="Next barrier").click()
        expect(story).to_contain_text("arrives at a barrier")
        expect(first.locator(".st-stations tbody tr")).to_have_count(1)
        first.get_by_role("button", name="Worst access").click()
        expect(story).to_contain_text("2 passes, where 1 would do")
        expect(first.locator(".st-live")).to_contain_text("2 passes, where 1 would do")
        first.get_by_label("Follow lane").select_option("5")
        expect(story).to_contain_text("Lane 5 writes kTile word")
        first.locator(".st-source").press("ArrowRight")
        expect(story).to_contain_text("5 of 153")
        first.locator(".st-source").press("End")
        expect(story).to_contain_text("has done its work")
        expect(second.locator(".st-story")).to_contain_text("1 of ")  # two on a page


@pytest.mark.parametrize("width", [320, 360, 1280])
def test_nothing_is_wider_than_the_screen(browser, site, width):
    with opened(browser, site[0] + "/dark.html", viewport={"width": width, "height": 900}) as page:
        for _ in range(6):
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            page.get_by_role("button", name="Step ›").click()


def test_first_table_without_javascript(browser, site):
    with opened(browser, site[0] + "/light.html", java_script_enabled=False) as page:
        assert page.locator("tbody tr").count() == 4
        assert page.locator(".st-line").count() == 0


def test_a_missing_pad_turns_the_banks_red(browser, site):
    from playwright.sync_api import expect

    seen = {}
    for name in ("light", "edited-light"):
        with opened(browser, f"{site[0]}/{name}.html") as page:
            seen[name] = page.evaluate(STEPS)["seen"]
            page.get_by_role("button", name="Worst access").click()
            if name != "light":
                expect(page.locator(".st-story")).to_contain_text("8 passes, where 1 would do")
                expect(page.locator(".st-note")).to_contain_text("edited: materialised/scores")
    late = {name: max(step["late"] for step in steps) for name, steps in seen.items()}
    assert late["edited-light"] == 4 * 7 > late["light"]  # 4 banks, and all passes but one


def test_a_kernel_that_fails_its_gate_is_watched_up_to_there(browser, site):
    from playwright.sync_api import expect

    with opened(browser, site[0] + "/failing-light.html") as page:
        assert page.locator(".st-error").count() == 0  # it comes last
        page.locator(".st-source").press("End")
        expect(page.locator(".st-error")).to_contain_text("fails its gate. o[0, 0] is ")
        expect(page.get_by_role("button", name="Step ›")).to_be_disabled()


def test_play_takes_a_step_at_a_time_and_stops_at_the_end(browser, site):
    context = browser.new_context(reduced_motion="reduce")  # a press of Play asks for motion
    page = context.new_page()
    page.clock.install()
    page.goto(site[0] + "/light.html")
    story = page.locator(".st-story")
    page.wait_for_selector(".st-picture svg")
    first = story.inner_text()
    page.clock.run_for(5000)
    assert story.inner_text() == first  # nothing moves by itself
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(3 * 900 + 100)
    assert story.inner_text().startswith("4 of 153")
    page.get_by_role("button", name="Pause").click()
    page.clock.run_for(5000)
    assert story.inner_text().startswith("4 of 153")
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(160 * 900)
    assert page.get_by_role("button", name="Play").is_visible()  # it stopped by itself
    assert page.get_by_role("button", name="Step ›").is_disabled()
    context.close()


KINDS = """() => {
  const root = document.querySelector(".stepper"), range = root.querySelector("input[type=range]");
  const first = {};  // of each kind of picture: the step that shows it first
  for (let i = 0; i <= Number(range.max); i++) {
    range.value = i;
    range.dispatchEvent(new Event("input"));
    const late = root.querySelector(".st-picture .st-late") ? " late" : "";
    const has = [".st-node", ".st-stations", ".st-error", ".st-sector", ".st-w", ".st-r", ".st-a"]
      .filter((name) => root.querySelector(".st-picture " + name)).join("") + late;
    first[has] ??= i;
  }
  return Object.values(first);
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
def test_axe_finds_no_violation_in_any_kind_of_step(browser, site, theme, width):
    axe, kinds = axe_source(), 0
    for name in (theme, f"edited-{theme}", f"failing-{theme}"):
        with opened(browser, f"{site[0]}/{name}.html", reduced_motion="reduce",
                    viewport={"width": width, "height": 900}) as page:
            page.evaluate(axe)
            for step in page.evaluate(KINDS):
                kinds += 1
                page.evaluate("""(step) => {
                  const range = document.querySelector("input[type=range]");
                  range.value = step;
                  range.dispatchEvent(new Event("input"));
                }""", step)
                page.get_by_label("Follow lane").select_option("3")
                result = page.evaluate(
                    "async () => await axe.run(document, {resultTypes: ['violations']})")
                assert len(result["passes"]) > 10
                bad = [(v["id"], [n["html"][:90] for n in v["nodes"]])
                       for v in result["violations"]]
                assert not bad, (name, step, bad)
    assert kinds > 10
