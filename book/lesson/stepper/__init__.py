"""The stepper: one warp of one block of a kernel, step by step. ``widget.py`` needs anywidget."""
