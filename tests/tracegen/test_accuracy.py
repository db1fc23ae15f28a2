"""The page on accuracy says what the program finds, and explains what lies outside the bounds."""

import subprocess
import sys
from pathlib import Path

import pytest
from shared import SHARED, needs_shared

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.verify
@needs_shared
def test_the_page_on_accuracy_is_up_to_date():
    """Every row of `make validate` has the page's figures, and those outside 0.75 to 1.33 a reason."""
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "validate.py", "--data", SHARED / "data"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n| ") == 56  # 16 published and 40 nanotron rows, after the head


@pytest.mark.verify
def test_published_runs_are_predicted():
    """Steps and layers of Megatron and 1F1B steps of Zero Bubble within 10 %: the worst of them is 6 % off."""
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "validate.py", "--data", "/nowhere"],
        capture_output=True,
        text=True,
        check=False,
    )
    ratios = [float(line.split("|")[4]) for line in done.stdout.splitlines()[1:] if line.startswith("|")]
    assert len(ratios) == 16
    assert all(0.9 < ratio < 1.1 for ratio in ratios)
