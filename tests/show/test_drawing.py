"""Pictures: what their SVG holds, whatever they show."""

import xml.etree.ElementTree as ET

from lesson.show import drawing


def panel():
    drawn = drawing.Panel("a bar of 7 & an arrow", 40)
    drawn.bar(10, 4, 70, 12, "1", "7 <ms>", of="rung 7")
    drawn.line(10, 20, 10, 36, "muted", arrow=True)
    drawn.box(30, 20, 20, 15.25, dash=True)
    return drawn


def test_a_panel_is_an_image_with_words_for_it():
    root = ET.fromstring(panel().svg)
    assert root.get("role") == "img" and root.get("aria-label") == "a bar of 7 & an arrow"
    assert root.get("viewBox") == f"0 0 {drawing.WIDTH} 40"
    (text,) = root.iter("text")
    assert text.text == "7 <ms>"


def test_a_bar_is_as_long_as_it_is_drawn_and_says_what_it_stands_for():
    bar, box = ET.fromstring(panel().svg).iter("rect")
    assert (bar.get("width"), bar.get("data-of"), bar.get("fill")) == ("70", "rung 7", "var(--1)")
    assert box.get("data-of") is None and box.get("height") == "15.25"
    assert box.get("fill-opacity") and box.get("stroke-dasharray")


def test_colours_are_the_pages_and_only_those_that_are_used():
    style = ET.fromstring(panel().svg).get("style")
    assert {part.split(":")[0] for part in style.split(";") if part.startswith("--")} == {
        "--ink", "--1", "--muted", "--line"}
    assert all(f"var(--lesson-{name}," in style for name in ("ink", "1", "muted", "line"))


def test_an_arrow_ends_where_it_is_sent():
    (path,) = ET.fromstring(panel().svg).iter("path")
    assert path.get("d") == "M10 20L10 36M7 31L10 36L13 31"


def test_a_picture_has_one_mark_and_the_words_of_all_panels():
    picture = drawing.Picture([panel(), panel()], "Two bars", "recorded", "H200")
    html = picture._repr_html_()
    assert html.count("<svg") == 2 and html.count("mark-recorded") == 1
    assert 'data-mark="recorded"' in html
    assert picture.text() == "Two bars [recorded]\n" + "\n".join(2 * ["a bar of 7 & an arrow"])
