"""The built pages: marks, links, and in a browser requests, errors, access, widths and weights."""

import gzip
import re
from html.parser import HTMLParser
from importlib import resources
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import pages
import pytest
from support import BOOK, ROOT
from support.chapters import cells, words

FIRST, WARM = 250_000, 60_000  # bytes a page may cost: first visit, and again with a warm cache
SITTING = 12_000  # pixels that a chapter may be tall
LCP, CLS = 1.5, 0.05  # seconds to the largest paint at a quarter of the speed; layout shift
THEMES = ("light", "dark")
WIDTHS = (1280, 360, 320)
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr"}


def names():
    """The pages of the book, by their place in the built folder (known before it is built)."""
    sources = [*(ROOT / "book").glob("*.ipynb"), *(ROOT / "book").glob("*.md")]
    found = sorted(f"book/{path.stem}.html" for path in sources)
    return [*found, "search.html", "404.html"]


def moved():
    """Pages that only lead on: those that once stood at another address, and the root."""
    return ["index.html", *(f"{old}.html" for old in pages.RENAMED)]


each_page = pytest.mark.parametrize("name", names())
each_chapter = pytest.mark.parametrize("name", [
    name for name in names() if (ROOT / name).with_suffix(".ipynb").exists()])


class Element:
    """One element of a page: its tag, attributes, text and ancestors."""

    def __init__(self, tag, attributes, parent):
        self.tag, self.attributes, self.parent = tag, attributes, parent
        self.text, self.children = "", []

    def __getitem__(self, attribute):
        return self.attributes.get(attribute) or ""

    def __iter__(self):
        yield self
        for child in self.children:
            yield from child

    def all_text(self):
        return self.text + "".join(child.all_text() for child in self.children)

    def line(self):
        """This element and its ancestors, innermost first."""
        element = self
        while element is not None:
            yield element
            element = element.parent

    def classes(self):
        return self["class"].split()


class Tree(HTMLParser):
    """A page as a tree of elements; an element closed in the wrong order is a failure."""

    def __init__(self, text):
        super().__init__()
        self.root = self.open = Element("", {}, None)
        self.feed(text)
        self.close()
        assert self.open is self.root, f"<{self.open.tag}> is never closed"

    def handle_starttag(self, tag, attrs):
        element = Element(tag, dict(attrs), self.open)
        self.open.children.append(element)
        if tag not in VOID:
            self.open = element

    def handle_startendtag(self, tag, attrs):
        self.open.children.append(Element(tag, dict(attrs), self.open))

    def handle_endtag(self, tag):
        assert tag == self.open.tag, f"</{tag}> closes <{self.open.tag}>"
        self.open = self.open.parent

    def handle_data(self, data):
        if self.open.tag not in ("script", "style"):
            self.open.text += data


@pytest.fixture(scope="session")
def trees(site):
    """{name: tree} of every built page."""
    return {
        path.relative_to(site).as_posix(): Tree(path.read_text(encoding="utf8")).root
        for path in sorted(site.rglob("*.html"))
    }


def test_the_pages_are_those_of_the_book(trees):
    assert sorted(trees) == sorted([*names(), *moved()])


def test_an_old_address_leads_to_the_page(site, trees):
    """The page, its notebook and its one file; without a script."""
    for old, new in pages.RENAMED.items():
        (url,) = [e["content"] for e in trees[f"{old}.html"] if e["http-equiv"] == "refresh"]
        assert url == f"0; url={new.removeprefix('book/')}.html"
        (link,) = [e["href"] for e in trees[f"{old}.html"] if e.tag == "a"]
        assert (site / "book" / link).is_file()
        for folder in ("book", "one-file"):
            was, now = (site / folder / f"{name.removeprefix('book/')}.ipynb"
                        for name in (old, new))
            assert was.read_bytes() == now.read_bytes()


# What a page says


def raw_markup(tree):
    """Paragraphs in which Markdown was not understood: a definition, a fence, a directive."""
    return [p.text[:80] for p in tree if p.tag == "p"
            and re.search(r"\n\s*: |(^|\n)\s*(```|:::|\{\w+\}`)", p.text)]


def test_no_markdown_is_left_in_a_paragraph(trees):
    assert raw_markup(Tree("<p>A term,\nin 2 lines.\n: Its meaning.</p>").root)
    assert {name: found for name, tree in trees.items() if (found := raw_markup(tree))} == {}


def unmarked(tree):
    """Outputs that hold a digit and lie under no mark."""
    found = []
    for output in tree:
        if "cell_output" not in output.classes():
            continue
        if any(c.startswith("tag_mark-") for e in output.line() for c in e.classes()):
            continue
        for element in output:
            if not re.search(r"\d", element.text) or element.tag in ("script", "style"):
                continue
            if any(e.tag in ("caption", "thead") for e in element.line()):
                continue  # it names the sizes that the rows are about
            marks = [e["data-mark"] for e in element.line() if e["data-mark"]]
            if not marks or marks[0] == "mixed":
                found.append(" ".join(element.text.split())[:80])
    return found


MARKED = """<div class="cell tag_mark-live"><div class="cell_output">7</div></div>
<div class="cell_output"><div data-mark="computed"><table><tr><td>7</td></tr></table></div></div>
<div class="cell_output"><div data-mark="mixed"><p data-mark="live">7</p><p>x</p></div></div>"""


def test_the_check_for_marks_finds_what_has_none():
    assert unmarked(Tree(MARKED).root) == []
    assert unmarked(Tree('<div class="cell_output"><pre>7 ms</pre></div>').root) == ["7 ms"]
    mixed = MARKED.replace('<p data-mark="live">', "<p>")
    assert unmarked(Tree(mixed).root) == ["7"]


@each_page
def test_every_number_carries_its_mark(trees, name):
    assert unmarked(trees[name]) == []


@each_page
def test_marks_are_the_four_words(trees, name):
    words = {"live", "emulated", "recorded", "computed", "stale"}
    for element in trees[name]:
        if element["data-mark"]:
            assert element["data-mark"] in words | {"mixed"}
            if element.tag == "div" and element["data-mark"] != "mixed":
                shown = [e for e in element if "mark" in e.classes()]
                assert any(e.all_text().strip() in words for e in shown), element.all_text()[:80]


@each_page
def test_a_page_has_what_a_reader_and_a_search_engine_need(trees, name):
    elements = list(trees[name])
    assert [e["lang"] for e in elements if e.tag == "html"] == ["en"]
    title = next(e for e in elements if e.tag == "title").all_text()
    assert "Attention, two ways" in title
    assert sum(e.tag == "h1" for e in elements) == 1
    levels = [int(e.tag[1]) for e in elements if re.fullmatch("h[1-6]", e.tag)]
    assert all(b <= a + 1 for a, b in zip(levels, levels[1:])), levels
    assert sum(e.tag == "main" for e in elements) == 1
    assert [e for e in elements if e.tag == "link" and e["rel"] == "icon"]
    meta = {e["name"] or e["property"]: e["content"] for e in elements if e.tag == "meta"}
    assert 20 <= len(meta["description"]) <= 202
    assert meta["og:title"] and meta["og:image"] and meta["og:image:alt"]


def test_titles_and_descriptions_are_unique(trees):
    own = [tree for name, tree in trees.items() if name not in moved()]
    titles = [next(e for e in tree if e.tag == "title").all_text() for tree in own]
    assert len(set(titles)) == len(titles)
    described = [e["content"] for tree in own for e in tree if e["name"] == "description"]
    assert len(set(described)) == len(described)


@each_page
def test_pictures_say_what_they_show(trees, name):
    for element in trees[name]:
        if element.tag == "img":
            assert len(element["alt"]) > 15 and not re.search(r"\.(png|svg)", element["alt"])
        if element.tag == "svg" and element["aria-hidden"] != "true":
            label = element["aria-label"]
            assert element["role"] in ("img", "group", "application", "graphics-document")
            assert len(label) > 15, label


@each_page
def test_tables_have_header_cells_and_a_name(trees, name):
    for table in (e for e in trees[name] if e.tag == "table"):
        assert any(e.tag == "th" for e in table)
        named = any(e.tag == "caption" and e.all_text().strip() for e in table)
        assert named or any(e["aria-label"] or e["aria-labelledby"] for e in table.line())
        assert any("scroll" in e["class"] or "overflow" in e["style"] for e in table.line())


@each_page
def test_link_texts_make_sense_alone(trees, name):
    for link in (e for e in trees[name] if e.tag == "a" and e["href"]):
        text = (link["aria-label"] or link.all_text()).strip().lower()
        assert text not in ("", "#", "here", "this", "link", "click here", "more", "read more"), (
            link["href"]
        )


@each_page
def test_ids_are_unique(trees, name):
    ids = [e["id"] for e in trees[name] if e["id"]]
    assert [i for i in set(ids) if ids.count(i) > 1] == []


# Links


def test_internal_links_and_anchors_resolve(site, trees):
    anchors = {name: {e["id"] for e in tree} | {""} for name, tree in trees.items()}
    broken = []
    for name, tree in trees.items():
        for element in tree:
            for attribute in ("href", "src"):
                address = element[attribute]
                if not address or urlsplit(address).scheme or address.startswith("data:"):
                    continue
                path, anchor = urldefrag(urljoin(f"/{name}", address))
                path = unquote(urlsplit(path).path).lstrip("/")
                if not (site / path).is_file():
                    broken.append(f"{name}: {address}")
                elif path in anchors and unquote(anchor) not in anchors[path]:
                    broken.append(f"{name}: {address} (no such anchor)")
    assert broken == []


def test_external_links_are_listed_in_one_file(site, trees):
    lines = (site / "external-links.txt").read_text().splitlines()
    listed = {line.split("  ")[0] for line in lines}
    found = {
        element["href"]
        for tree in trees.values()
        for element in tree
        if element.tag == "a" and element["href"].startswith("http")
    }
    assert listed == found
    assert lines == sorted(lines)
    assert all(link.startswith("https://") for link in listed)


def test_nothing_is_loaded_from_elsewhere(site, trees):
    for name, tree in trees.items():
        for element in tree:
            loads = element["src"] or (element["href"] if element.tag == "link" else "")
            if element["rel"] != "canonical":
                assert not re.match(r"(https?:)?//", loads), f"{name}: {loads}"
    for path in (site / "_static").rglob("*.css"):
        assert not re.search(r"url\(\s*[\"']?(https?:)?//|@import", path.read_text()), path.name


def test_every_asset_is_used(site):
    text = "".join(p.read_text(encoding="utf8") for p in site.rglob("*.html"))
    text += "".join(p.read_text(encoding="utf8") for p in (site / "_static").glob("*.css"))
    unused = [p.name for p in (site / "_static").rglob("*") if p.is_file() and p.name not in text]
    assert unused == []


# In a browser


class Visit:
    """A page opened in the browser, with all that it asked for and complained about."""

    def __init__(self, page, server):
        self.page, self.server = page, server
        self.complaints, self.elsewhere = [], []
        self.listeners = {
            "request": self._asked,
            "console": self._said,
            "pageerror": lambda error: self.complaints.append(str(error)),
            "requestfailed": lambda request: self.complaints.append(f"failed: {request.url}")}
        for event, listener in self.listeners.items():
            page.on(event, listener)

    def open(self, address):
        self.page.goto(address, wait_until="load")
        self.page.wait_for_timeout(150)

    def _asked(self, request):
        if not request.url.startswith((self.server, "data:", "blob:", "file:")):
            self.elsewhere.append(request.url)

    def _said(self, message):
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def leave(self):
        for event, listener in self.listeners.items():
            self.page.remove_listener(event, listener)
        self.page.goto("about:blank")


@pytest.fixture(scope="session")
def windows(browser):
    """windows(javascript) -> pages that no test looks at now; a new one costs half a second."""
    kept = {}

    def get(javascript):
        if javascript not in kept:
            kept[javascript] = browser.new_context(java_script_enabled=javascript), []
        context, free = kept[javascript]
        if not free:
            free.append(context.new_page())
        return free
    return get


@pytest.fixture
def visit(browser, windows, server):
    """visit(name, theme=, width=, ...) opens a page, whose focus and scroll are new.

    What a site stores stays with its context: ``alone`` is a new one, and so are ``permissions``.
    """
    back, own = [], []

    def open_page(name, theme="light", width=1280, address=None, javascript=True, alone=False,
                  permissions=None):
        if alone or permissions:
            own.append(browser.new_context(permissions=permissions))
            page = own[-1].new_page()
        else:
            free = windows(javascript)
            page = free.pop()
            back.append((free, page))
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=theme)
        seen = Visit(page, server)
        opened.append(seen)
        seen.open(address or f"{server}/{name}")
        return seen

    opened = []
    yield open_page
    for seen in opened:
        seen.leave()
    for free, page in back:
        free.append(page)
    for context in own:
        context.close()


@pytest.fixture(scope="session")
def axe():
    """The text of axe-core."""
    package = pytest.importorskip("axe_playwright_python", reason="axe-core is not installed")
    return resources.files(package).joinpath("axe.min.js").read_text(encoding="utf8")


AXE = """async ([exclude, options]) => {
  const found = await axe.run({include: [["html"]], exclude},
                              {resultTypes: ["violations"], ...options});
  return found.violations.map(v => v.id + ": " + v.nodes.map(n => n.target.join(" ") + " "
      + n.any.map(a => a.message).join("; ")).slice(0, 3).join(" | "));
}"""
DRAWN = """() => new Promise(done =>
    requestAnimationFrame(() => requestAnimationFrame(() => done())))"""
CONTRAST = [[["[data-seen]"]], {"runOnly": ["color-contrast"]}]
REST = {"light": [[], {"rules": {"color-contrast": {"enabled": False}}}],
        "dark": [[], {"runOnly": ["link-in-text-block"]}]}  # what asks no colour is the same again
# Contrast takes most of axe-core's time, and most of a page's elements are words of code and cells
# of tables: of those with the same ink, paper and size, it looks at one.
SEEN = """() => {
  const seen = new Set(), few = "pre, pre *, td, td *, th, th *, math *";
  for (const e of [...document.querySelectorAll(few)].reverse()) {  // the inner ones first
    let behind = e, paper = "rgba(0, 0, 0, 0)";
    for (; behind && paper == "rgba(0, 0, 0, 0)"; behind = behind.parentElement)
      paper = getComputedStyle(behind).backgroundColor;
    const style = getComputedStyle(e);
    const key = [style.color, paper, style.fontSize, style.fontWeight, style.opacity,
        style.backgroundImage].join();
    e.toggleAttribute("data-seen", seen.has(key) && !e.matches("a, button") &&
        [...e.children].every(child => child.hasAttribute("data-seen")));
    seen.add(key);
  }
}"""


# axe-core leaves text in SVG alone, so its contrast is measured here.
SVG_TEXT = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgb = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (c) => c.slice(0, 3).map(x => x / 255)
      .map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)
      .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
  const low = [];
  for (const text of document.querySelectorAll("svg text")) {
    if (!text.textContent.trim() || !text.checkVisibility()) continue;
    const ink = rgb(getComputedStyle(text).fill);
    let behind = text, paper = [0, 0, 0, 0];
    while (behind && paper[3] < 255) {
      paper = rgb(getComputedStyle(behind).backgroundColor);
      behind = behind.parentElement;
    }
    const [a, b] = [light(ink), light(paper)];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ink[3] < 255 || contrast < 4.5) low.push(text.textContent.trim() + " " + contrast);
  }
  return low;
}"""


@each_page
def test_a_page_has_no_faults(visit, axe, name):
    """Looked at from all sides; every fault is named, not only the first."""
    seen, faults = visit(name), {}
    page = seen.page
    for theme in THEMES:
        if theme != "light":
            page.emulate_media(color_scheme=theme)
            page.reload()
        page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
        page.evaluate(axe)
        faults[f"contrast in figures, {theme}"] = page.evaluate(SVG_TEXT)
        for width in WIDTHS:
            place = f"at {width} px, {theme}"
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_timeout(100)
            page.evaluate(DRAWN)  # the page's script has seen the new sizes
            wide = page.evaluate("Math.max(document.documentElement.scrollWidth,"
                                 " document.body.scrollWidth)")
            faults[f"scrolls sideways {place}"] = wide if wide > width else []
            if width == 320 or (theme == "dark" and width != 1280):
                continue  # no colour hangs on a width: see the next test
            page.evaluate(SEEN)
            faults[f"contrast {place}"] = page.evaluate(AXE, CONTRAST)
            faults[f"axe-core {place}"] = page.evaluate(AXE, REST[theme])
    faults["asks elsewhere"] = seen.elsewhere
    faults["complains"] = seen.complaints
    assert {what: found for what, found in faults.items() if found} == {}


COLOUR = re.compile(r"(?<![\w-])(color|background|background-color|opacity|fill)\s*:")


def of_widths(style):
    """The rules of a style sheet that hold at some widths only."""
    for found in re.finditer(r"@media[^{]*width[^{]*\{", style):
        end, depth = found.end(), 1
        while depth:
            depth += {"{": 1, "}": -1}.get(style[end], 0)
            end += 1
        yield style[found.end():end - 1]


def test_no_colour_hangs_on_a_width():
    for red, count in (("color: red", 1), ("border-color: red", 0), ("fill:red", 1)):
        rules = of_widths(f"p {{ color: red }} @media (max-width: 9rem) {{ a {{ {red} }} }} p {{}}")
        assert sum(bool(COLOUR.search(rule)) for rule in rules) == count
    sheets = [*(BOOK / "_ext").rglob("*.css"), *(BOOK / "lesson").rglob("*.css")]
    assert len(sheets) > 2
    for sheet in sheets:
        for rule in of_widths(sheet.read_text(encoding="utf-8")):
            assert not COLOUR.search(rule), (sheet.name, rule)


def test_the_contrast_of_text_in_figures_is_measured(visit):
    page = visit("book/index.html").page
    svg = "<svg><text y='9' fill='{}'>x</text></svg>"
    for colour, count in (("#767676", 0), ("#777777", 1), ("var(--lesson-ink)", 0)):
        page.set_content(f"<body style='background: #fff'>{svg.format(colour)}</body>")
        page.add_style_tag(content=":root { --lesson-ink: #000 }")
        assert len(page.evaluate(SVG_TEXT)) == count


FOCUSED = """() => {
  const e = document.activeElement;
  if (!e || e === document.body) return null;
  const box = e.getBoundingClientRect(), style = getComputedStyle(e);
  if (!e.dataset.stop) e.dataset.stop = String(document.querySelectorAll("[data-stop]").length);
  let scrolled = scrollY;  // the contents scroll on their own
  for (let p = e.parentElement; p !== document.documentElement; p = p.parentElement)
    scrolled += p.scrollTop;
  return {stop: e.dataset.stop, tag: e.tagName,
    place: [...document.querySelectorAll("*")].indexOf(e),
    part: e.closest("header, nav, aside, main, footer")?.tagName,
    top: box.top + scrolled, bottom: box.bottom + scrolled, text: (e.getAttribute("aria-label")
      || e.innerText || e.value || e.name || "").trim().slice(0, 60),
    visible: box.width > 0 && box.height > 0 && box.bottom > 0 && box.top < innerHeight
      && style.visibility === "visible",
    outline: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2};
}"""


@pytest.mark.parametrize("width", (1280, 360))
@each_page
def test_the_keyboard_reaches_and_leaves_everything(visit, name, width):
    page = visit(name, width=width).page
    expected = page.evaluate("""() => [...document.querySelectorAll(
      'a[href], button, input, select, textarea, summary, [tabindex="0"]')].filter(
      e => e.checkVisibility() && !e.disabled && e.type !== 'hidden'
        && !(e.type === 'radio' && !e.checked)).length""")
    stops = []
    for _ in range(3 * expected + 10):
        page.keyboard.press("Tab")
        stop = page.evaluate(FOCUSED)
        if stop is None or (stops and stop["stop"] == stops[0]["stop"]):
            break  # round to the beginning: everything was left again
        stops.append(stop)
    else:
        pytest.fail(f"the keyboard never comes round: {stops[-3:]}")
    assert len({s["stop"] for s in stops}) >= expected
    assert [s for s in stops if not (s["text"] and s["visible"] and s["outline"])] == []
    if name != "404.html":
        assert stops[0]["text"].startswith("Skip")
    # In the order of the text, which is the order on the screen: never back up within a part.
    pairs = list(zip(stops, stops[1:], strict=False))
    assert [(a, b) for a, b in pairs if b["place"] <= a["place"]] == []
    assert [(a, b) for a, b in pairs if a["part"] == b["part"] and b["bottom"] <= a["top"]] == []
    for _ in stops[1:]:
        page.keyboard.press("Shift+Tab")
    # Between the last and the first, the document and the browser may each take a press.
    assert page.evaluate(FOCUSED)["stop"] in {s["stop"] for s in stops[:3]}


def test_the_skip_link_leads_to_the_text(visit):
    page = visit("book/glossary.html").page
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_the_theme_can_be_switched_and_stays(visit, server):
    seen = visit("book/index.html", "light", alone=True)
    paper = "getComputedStyle(document.body).backgroundColor"
    before = seen.page.evaluate(paper)
    button = seen.page.get_by_role("button", name="Dark theme")
    button.click()
    dark = seen.page.evaluate(paper)
    assert dark != before and button.get_attribute("aria-pressed") == "true"
    seen.page.goto(f"{server}/book/glossary.html")
    assert seen.page.evaluate(paper) == dark
    seen.page.get_by_role("button", name="Dark theme").click()
    assert seen.page.evaluate(paper) == before
    system = visit("book/index.html", "dark", alone=True).page  # the system's choice
    assert system.evaluate(paper) == dark


def test_the_menu_of_a_phone(visit):
    page = visit("book/glossary.html", width=360).page
    chapters = page.get_by_role("navigation", name="Chapters")
    button = page.get_by_role("button", name="Chapters")
    assert not chapters.is_visible()
    button.focus()
    page.keyboard.press("Enter")
    assert chapters.is_visible() and button.get_attribute("aria-expanded") == "true"
    page.keyboard.press("Escape")
    assert not chapters.is_visible() and button.get_attribute("aria-expanded") == "false"


@each_chapter
def test_a_chapter_is_one_sitting(visit, name):
    """With its folds closed, at the width of a laptop."""
    height = visit(name).page.evaluate("document.documentElement.scrollHeight")
    print(f"{name}: {height} px")
    assert height < SITTING


@each_chapter
def test_a_chapter_says_how_long_it_takes(trees, name):
    (said,) = [e.text for e in trees[name] if e.tag == "span" and "min to read" in e.text]
    minutes, count = map(int, re.findall(r"\d+", said))
    chapter = name.removeprefix("book/").replace(".html", ".ipynb")
    length = len(words("\n\n".join(cells(chapter, "markdown"))))
    chapter_code = "\n".join(cells(chapter, "code"))
    if "lesson.rung(" in chapter_code:  # its header and its story are read as well
        length += 210 * chapter_code.count("lesson.rung(")
    assert minutes == pytest.approx(length / pages.WORDS_A_MINUTE, abs=2.5)
    assert count == len(cells(chapter, "code"))


# The width that 100 columns of code take, with the padding of their box.
HUNDRED = """() => {
  const pre = document.querySelector(".highlight > pre"), one = document.createElement("span");
  const style = getComputedStyle(pre);
  one.textContent = "x".repeat(100);
  pre.append(one);
  const width = one.getBoundingClientRect().width;
  one.remove();
  return width + parseFloat(style.paddingLeft) + parseFloat(style.paddingRight);
}"""


def test_a_page_shows_its_own_contents(visit):
    """Beside the text where there is room, else folded above it; the part being read is marked."""
    wide = visit("book/the-score-matrix.html").page
    contents = wide.get_by_role("complementary", name="On this page")
    assert contents.is_visible() and not wide.locator("details.contents").is_visible()
    room = "document.querySelector('.cell:not(.tag_hide-input) pre').clientWidth"
    assert wide.evaluate(room) >= wide.evaluate(HUNDRED)
    current = "document.querySelector('.on-page [aria-current]')?.textContent"
    for part in ("Bytes before time", "What is known"):
        wide.get_by_role("heading", name=part).scroll_into_view_if_needed()
        wide.evaluate("part => [...document.querySelectorAll('h2')].find(h => h.innerText == part)"
                      ".scrollIntoView()", part)
        wide.wait_for_function(f"{current} === '{part}'")
    narrow = visit("book/the-score-matrix.html", width=360).page
    fold = narrow.locator("details.contents")
    assert fold.is_visible() and not fold.get_by_role("link", name="What is known").is_visible()
    fold.locator("summary").click()
    fold.get_by_role("link", name="What is known").click()
    assert narrow.evaluate("location.hash") == "#what-is-known"


def test_code_is_copied_with_one_press(visit, server):
    allowed = ["clipboard-read", "clipboard-write"]
    page = visit("book/the-score-matrix.html", permissions=allowed).page
    cell = page.locator(".cell", has_text="131072").first
    cell.hover()
    cell.get_by_role("button", name="Copy").first.click()
    cell.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()").startswith("n = 131072")


def test_the_landing_page_begins_with_the_working_widget(visit):
    seen = visit("book/index.html")
    widget = seen.page.locator(".online-max-static")
    table = seen.page.locator(".lesson-table").first
    assert widget.bounding_box()["y"] < 500 < table.bounding_box()["y"]
    state = widget.locator(".om-steptext").inner_text()
    widget.get_by_role("button", name="Previous").click()
    seen.page.wait_for_function(
        "state => document.querySelector('.om-steptext').innerText != state", arg=state)
    assert seen.complaints == []
    rows = [row.split("\t")[0] for row in table.inner_text().splitlines() if "\t" in row]
    for what in ("materialised path", "online path", "end of the ladder", "PyTorch"):
        assert any(what in row for row in rows), what
    text = seen.page.locator("main").inner_text()
    assert "you may stop there" in text


def test_a_box_that_scrolls_says_so(visit):
    page = visit("book/the-gated-table.html", width=360).page
    page.wait_for_function("document.querySelector('.more')")
    state = """() => [...document.querySelectorAll('.lesson-scroll')].filter(
      box => box.checkVisibility()).map(box => ({
      left: Math.round(box.scrollWidth - box.clientWidth - box.scrollLeft),
      more: box.classList.contains('more'),
      caption: box.querySelector('caption')?.getBoundingClientRect().right ?? 0}))"""
    boxes = page.evaluate(state)
    assert [box for box in boxes if box["more"] != (box["left"] > 1)] == []
    assert len([box for box in boxes if box["more"]]) > 5
    assert [box for box in boxes if box["caption"] > 360] == []  # read without a scroll
    page.evaluate("document.querySelectorAll('.lesson-scroll').forEach(b => b.scrollTo(9999, 0))")
    page.wait_for_function("!document.querySelector('.lesson-scroll.more')")


@each_page
def test_a_page_reads_without_javascript(visit, name):
    page = visit(name, javascript=False).page
    for theme in THEMES:
        page.emulate_media(color_scheme=theme)
        assert page.locator("main h1").is_visible()
        if name != "404.html":
            assert page.get_by_role("navigation", name="Chapters").is_visible()
        assert not page.get_by_role("button", name="Dark theme").count()


@each_page
def test_a_page_opens_from_disk(visit, site, name):
    seen = visit(name, address=(site / name).as_uri())
    assert seen.complaints == []
    assert seen.page.locator("main h1").is_visible()
    fonts = seen.page.evaluate("getComputedStyle(document.querySelector('h1')).fontFamily")
    assert "system-ui" in fonts  # the style sheet was found


@pytest.mark.parametrize("word", ("rescale", "occupancy", "-inf"))
def test_search_finds(visit, word):
    seen = visit("book/index.html")
    field = seen.page.get_by_role("searchbox", name="Search the lesson")
    field.fill(word)
    field.press("Enter")
    results = seen.page.locator("ul.search li")
    results.first.wait_for(timeout=60_000)
    # Each result shows a piece of its page, which comes a moment later.
    seen.page.wait_for_function(
        "word => document.querySelector('ul.search').innerText.toLowerCase().includes(word)",
        arg=word.lstrip("-"),
        timeout=60_000,
    )
    texts = " ".join(results.all_inner_texts())
    assert "Glossary" in texts
    assert seen.complaints == []


def test_the_root_leads_to_the_landing_page(visit, trees, server):
    page = visit("").page
    page.wait_for_url(f"{server}/book/index.html")
    links = [e["href"] for e in trees["index.html"] if e.tag == "a"]
    assert links == ["book/index.html"]  # for a browser that does not follow by itself


def test_a_wrong_address_shows_the_404_page(visit, server):
    seen = visit("book/no-such-page.html")
    assert "no page at this address" in seen.page.locator("main").inner_text()


# Weights and times


def weigh(page):
    """Start to count what comes over the wire to a reader who has not been here before; the
    returned function gives the bytes so far."""
    client, total = page.context.new_cdp_session(page), [0]
    client.send("Network.enable")
    client.send("Network.clearBrowserCache")
    client.on("Network.loadingFinished", lambda e: total.__setitem__(
        0, total[0] + int(e["encodedDataLength"])))
    return lambda: total[0]


@each_page
def test_a_page_is_small(visit, server, name):
    page = visit("404.html").page
    bytes_so_far = weigh(page)
    page.goto(f"{server}/{name}", wait_until="networkidle")
    first = bytes_so_far()
    page.reload(wait_until="networkidle")  # asks again for the page itself, not for its files
    warm = bytes_so_far() - first
    print(f"{name}: {first} bytes first, {warm} warm")
    assert 500 < first < FIRST
    assert warm < WARM


TIMES = """() => new Promise(done => {
  let paint = 0, shift = 0;
  new PerformanceObserver(list => list.getEntries().forEach(e => { paint = e.startTime }))
      .observe({type: "largest-contentful-paint", buffered: true});
  new PerformanceObserver(list => list.getEntries().forEach(e => { shift += e.value }))
      .observe({type: "layout-shift", buffered: true});
  setTimeout(() => done([paint / 1000, shift]), 300);
})"""


@each_page
def test_nothing_shifts_while_a_page_loads(visit, server, name):
    page = visit("404.html").page
    client = page.context.new_cdp_session(page)
    for width in (1280, 360):
        page.set_viewport_size({"width": width, "height": 900})
        client.send("Network.clearBrowserCache")
        client.send("Emulation.setCPUThrottlingRate", {"rate": 4})
        page.goto(f"{server}/{name}", wait_until="load")
        client.send("Emulation.setCPUThrottlingRate", {"rate": 1})  # it is slow by being busy
        paint, shift = page.evaluate(TIMES)
        slow = "" if paint < LCP else f" (over {LCP} s)"
        print(f"{name} at {width} px: largest paint {paint:.2f} s{slow}, shift {shift:.3f}")
        assert shift < CLS
    client.detach()


def test_a_page_s_files_are_small_without_a_browser(site, trees):
    """The same sum from the files alone: it needs no browser."""
    for name, tree in trees.items():
        total = len(gzip.compress((site / name).read_bytes(), 6))
        for element in tree:
            address = element["src"] or (element["href"] if element.tag == "link" else "")
            if element["rel"] in ("next", "prev", "canonical") or not address:
                continue
            path = (site / name).parent / urlsplit(address).path
            if path.is_file():
                data = path.read_bytes()
                total += len(data if path.suffix in (".woff2", ".png") else gzip.compress(data, 6))
        assert total < FIRST, name
