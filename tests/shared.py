"""Where measured data and simulators' results lie, beside the checkout; tests that need them skip without them."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the folder `shared` is not beside the checkout")
