"""Makes `jobs` importable from the tests of this folder under --import-mode=importlib."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
