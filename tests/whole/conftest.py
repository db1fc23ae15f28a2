"""Makes `jobs` importable from the tests of this folder under --import-mode=importlib."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
