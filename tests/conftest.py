"""Makes `shared` importable from every test folder under --import-mode=importlib."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
