"""What tests share: no tests here, and nothing that only one test file needs."""

import os
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
BOOK = ROOT / "book"

# jsonschema looks for it when nbformat is imported. Making its grammar of IRIs, which no notebook
# has, takes a second of every process.
SLOW_IMPORT = "rfc3987_syntax"
sys.modules.setdefault(SLOW_IMPORT, None)


def missing(what):
    """Skip a test for want of `what`; on CI, where everything is installed, fail instead."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what}: on CI this must be there")
    pytest.skip(what)
