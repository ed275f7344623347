"""The online maximum, walked: one query row, its keys in tiles, and m, l, o after each.

``walk`` is the recurrence in NumPy; ``OnlineMax`` is the picture of it, an anywidget. Only the
picture needs more than NumPy, so it is imported when it is asked for.
"""

from .recurrence import CASES, FAULTS, Walk, case_scores, key_values, walk

__all__ = ["CASES", "FAULTS", "OnlineMax", "Walk", "case_scores", "key_values", "walk"]


def __getattr__(name):
    if name == "OnlineMax":
        from .widget import OnlineMax

        return OnlineMax
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
