"""Kernel text: files, snippets, a reader's edits. Knows no compiler."""
