"""Pictures read back: what the shapes of an SVG say."""

import re
import xml.etree.ElementTree as ET

from lesson.show.drawing import SMALL


def images(shown):
    """The SVG elements of what a verb shows."""
    return [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", shown._repr_html_(), re.S)]


def boxes(shown):
    """``{what a box stands for: the box's numbers and look}``; nothing is drawn twice."""
    found = {}
    for image in images(shown):
        for box in image.iter("rect"):
            if (of := box.get("data-of")) is not None:
                assert of not in found, of
                found[of] = {name: float(box.get(name)) for name in ("x", "y", "width", "height")}
                found[of]["solid"] = box.get("fill-opacity") is None
    return found


def words(shown):
    """All texts of the pictures, in their order."""
    return [text.text for image in images(shown) for text in image.iter("text")]


def outside(image):
    """Texts and shapes that leave their picture. A wide sans-serif is taken, as the pages show."""
    _, _, width, height = map(float, image.get("viewBox").split())
    found = []
    for text in image.iter("text"):
        bold = text.get("font-weight")
        long = len(text.text) * float(text.get("font-size", SMALL)) * (0.62 if bold else 0.56)
        x, y = float(text.get("x")), float(text.get("y"))
        turned = text.get("transform")
        begins = {"middle": long / 2, "end": long}.get(text.get("text-anchor"), 0)
        if turned and (y - long < 0 or y > height) or y > height or not turned and (
                x - begins < -1 or x - begins + long > width + 1):
            found.append(text.text)
    for box in image.iter("rect"):
        x, y, w, h = (float(box.get(name)) for name in ("x", "y", "width", "height"))
        if min(x, y) < 0 or x + w > width or y + h > height or min(w, h) < 0:
            found.append(box.get("data-of") or str(box.attrib))
    return found
