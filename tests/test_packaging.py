"""The wheel holds every file of the four rooms under `tracegen`, and nothing that could shadow another package."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = {"tracegen": "tracegen", "proto": "tracegen/proto", "spec": "tracegen/spec", "replay": "tracegen/replay"}
SHIPPED = {".py", ".yaml", ".proto", ".desc", ".typed"}


@pytest.fixture(scope="module")
def wheel_files(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    out = tmp_path_factory.mktemp("wheel")
    # From a copy: a build folder left in the checkout would lend the wheel files that are no longer there.
    tree = out / "tree"
    for room in ROOMS:
        shutil.copytree(ROOT / room, tree / room, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, tree / file)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), str(tree)],
        check=True,
        capture_output=True,
    )
    (wheel,) = out.glob("*.whl")
    assert wheel.name.startswith("chakra_tracegen-")
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_holds_what_the_tree_holds(wheel_files: set[str]) -> None:
    # setuptools lists no package by itself under package-dir, so a new folder is easily forgotten.
    expected = {
        f"{inside}/{file.relative_to(ROOT / room)}"
        for room, inside in ROOMS.items()
        for file in (ROOT / room).rglob("*")
        if file.suffix in SHIPPED and "__pycache__" not in file.parts
    }
    assert {name for name in wheel_files if ".dist-info/" not in name} == expected


def test_nothing_lands_at_the_top_of_site_packages_but_tracegen(wheel_files: set[str]) -> None:
    assert {name.split("/")[0] for name in wheel_files if ".dist-info/" not in name} == {"tracegen"}


def test_the_schema_and_a_spec_are_package_data(wheel_files: set[str]) -> None:
    assert "tracegen/proto/et_def.desc" in wheel_files
    assert "tracegen/spec/catalogue/specs/llama3-70b.yaml" in wheel_files
