"""The Python, in modules and chapters, is as pyproject.toml says."""

import subprocess
import sys

import pytest
from support import ROOT


def test_ruff_finds_nothing():
    pytest.importorskip("ruff", reason="ruff is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=concise", "."],
        cwd=ROOT, capture_output=True, text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
