"""`make compat`: the schema beside another copy of it under protobuf 4.25, 5, 6 and 7, an environment for each.

Environments lie in build/compat and are kept; only numpy, numba and protobuf are installed in them. The product is
installed once, without dependencies, in a folder that all of them look in.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "compat"
RUNTIMES = ("4.25", "5", "6", "7")
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def install_product() -> Path:
    """An installed copy of the checkout as it is now."""
    target = BUILD / "installed"
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run([*PIP, "install", "--no-deps", "--target", str(target), str(ROOT)], check=True)
    return target


def environment(runtime: str) -> Path:
    """The Python of an environment with this protobuf, made on first use."""
    folder = BUILD / f"protobuf-{runtime}"
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    ready = folder / ".ready"
    if not ready.exists():
        venv.create(folder, clear=True, with_pip=False)
        wanted = ["numpy", "numba", f"protobuf=={runtime}.*"]
        subprocess.run([*PIP, "--python", str(python), "install", *wanted], check=True)
        ready.touch()
    return python


def main() -> int:
    """Run the check in every environment, in both orders of import; returns how many failed."""
    installed = install_product()
    failed = 0
    for runtime in RUNTIMES:
        python = environment(runtime)
        settings = os.environ | {"PYTHONPATH": str(installed), "TRACEGEN_CACHE": str(BUILD / "cache")}
        for order in ("first", "last"):
            command = [str(python), str(Path(__file__).with_name("check.py")), order]
            done = subprocess.run(command, env=settings, cwd=BUILD)
            if done.returncode:
                print(f"protobuf {runtime}, et_def_pb2 imported {order}: failed", file=sys.stderr)
                failed += 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
