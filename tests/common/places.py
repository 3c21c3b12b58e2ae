"""Where the tests find the project and each other."""

from pathlib import Path

COMMON = Path(__file__).resolve().parent
TESTS = COMMON.parent
ROOT = TESTS.parent
