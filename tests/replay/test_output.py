"""Where a run's files go: nothing that stands there is destroyed, and what cannot be written is refused early."""

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tracegen.proto.errors import InputError, RunError
from tracegen.replay.output import refuse_same, refuse_unwritable, replacing


def write(path, text="new\n"):
    with replacing(path) as file:
        file.write(text)


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def test_a_file_appears_whole_and_alone(tmp_path):
    write(tmp_path / "n.csv")
    assert (tmp_path / "n.csv").read_text() == "new\n"
    assert names(tmp_path) == ["n.csv"]


def test_a_file_that_is_replaced_keeps_its_rights(tmp_path):
    (tmp_path / "n.csv").write_text("old")
    (tmp_path / "n.csv").chmod(0o600)
    write(tmp_path / "n.csv")
    assert (tmp_path / "n.csv").read_text() == "new\n"
    assert stat.S_IMODE((tmp_path / "n.csv").stat().st_mode) == 0o600


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_what_it_names_is_replaced(tmp_path, there):
    (tmp_path / "far").mkdir()
    if there:
        (tmp_path / "far" / "n.csv").write_text("old")
    (tmp_path / "link").symlink_to("far/n.csv")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "far" / "n.csv").read_text() == "new\n"
    assert names(tmp_path / "far") == ["n.csv"]


def test_a_pipe_is_written_to_and_stays(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    got = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe").read_text()))
    reader.start()
    write(tmp_path / "pipe", "new\n" * 1000)
    reader.join()
    assert got == ["new\n" * 1000]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_pipe_whose_reader_has_had_enough_is_no_error(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = threading.Thread(target=lambda: os.close(os.open(tmp_path / "pipe", os.O_RDONLY)))
    reader.start()
    with replacing(tmp_path / "pipe") as file:
        reader.join()
        file.write("x" * 1_000_000)


@pytest.mark.parametrize("device", ["/dev/null", "/dev/full"])
def test_a_device_is_written_to_and_stays(tmp_path, device):
    """Through a link, so that a defect costs the link and not the machine's device (root may do both)."""
    (tmp_path / "device").symlink_to(device)
    if device == "/dev/full":
        with pytest.raises(RunError, match=r"device: writing failed .No space left on device"):
            write(tmp_path / "device")
    else:
        write(tmp_path / "device")
    assert (tmp_path / "device").is_symlink()
    assert stat.S_ISCHR(os.stat(device).st_mode)
    assert names(tmp_path) == ["device"]


PRINT = """
from tracegen.replay.output import replacing
print("first")
with replacing("/dev/fd/1") as file:
    file.write("second\\n")
print("third")
"""


@pytest.mark.parametrize("to", ["file", "pipe"])
def test_standard_output_goes_on_in_order(tmp_path, to):
    """Also redirected into a file, which must be neither replaced nor begun again."""
    with (tmp_path / "out").open("w") as file:
        target = file if to == "file" else subprocess.PIPE
        done = subprocess.run([sys.executable, "-c", PRINT], stdout=target, text=True, check=True)
    assert (done.stdout if to == "pipe" else (tmp_path / "out").read_text()) == "first\nsecond\nthird\n"


def test_a_disk_that_fills_up_leaves_the_old_file(tmp_path):
    (tmp_path / "n.csv").write_text("old")
    with pytest.raises(RunError, match=r"writing failed .No space left on device"), replacing(tmp_path / "n.csv"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert (tmp_path / "n.csv").read_text() == "old"
    assert names(tmp_path) == ["n.csv"]


def test_an_error_while_writing_leaves_the_old_file(tmp_path):
    (tmp_path / "n.csv").write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "n.csv"):
        raise KeyboardInterrupt
    assert (tmp_path / "n.csv").read_text() == "old"
    assert names(tmp_path) == ["n.csv"]


def unwritable(tmp_path, monkeypatch, case):
    """A path that cannot be written, and what is said of it. Root may write everywhere: rights are denied by hand."""
    (tmp_path / "file").write_text("mine")
    os.mkfifo(tmp_path / "pipe")
    if case in ("read-only file", "read-only pipe"):
        monkeypatch.setattr(os, "access", lambda *_, **__: False)
    if case == "read-only folder":

        def denied(*_, **__):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        monkeypatch.setattr(Path, "open", denied)
        monkeypatch.setattr(Path, "read_text", lambda path: "mine")
    return {
        "no folder": (tmp_path / "no" / "n.csv", f"there is no folder {tmp_path / 'no'}"),
        "file as folder": (tmp_path / "file" / "n.csv", "there is no folder"),
        "a folder": (tmp_path, "is a folder"),
        "nothing": (Path(), "is a folder"),
        "read-only folder": (tmp_path / "n.csv", "Permission denied"),
        "read-only file": (tmp_path / "file", "Permission denied"),
        "read-only pipe": (tmp_path / "pipe", "Permission denied"),
        "long name": (tmp_path / ("x" * 300), "File name too long"),
    }[case]


CASES = ["no folder", "file as folder", "a folder", "nothing", "read-only folder", "read-only file", "long name"]


@pytest.mark.parametrize("case", [*CASES, "read-only pipe"])
def test_what_cannot_be_written_is_refused_before_the_run(tmp_path, monkeypatch, case):
    path, line = unwritable(tmp_path, monkeypatch, case)
    with pytest.raises(InputError, match=rf"^--nodes: .*{line}"):
        refuse_unwritable({"--links": None, "--nodes": path})
    assert names(tmp_path) == ["file", "pipe"]
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("case", CASES)
def test_and_at_its_end_in_the_same_way(tmp_path, monkeypatch, case):
    path, _ = unwritable(tmp_path, monkeypatch, case)
    with pytest.raises(InputError, match="cannot be written"):
        write(path)
    assert names(tmp_path) == ["file", "pipe"]


def test_asking_changes_nothing(tmp_path):
    """Neither files, nor a pipe: nobody has to read it yet."""
    (tmp_path / "old").write_text("old")
    os.mkfifo(tmp_path / "pipe")
    refuse_unwritable({name: tmp_path / name for name in ("old", "pipe", "new")} | {"null": Path("/dev/null")})
    assert names(tmp_path) == ["old", "pipe"]
    assert (tmp_path / "old").read_text() == "old"


def test_two_outputs_that_are_one_file(tmp_path):
    (tmp_path / "link").symlink_to("n.csv")
    for other in (tmp_path / "n.csv", tmp_path / "x" / ".." / "n.csv", tmp_path / "link"):
        with pytest.raises(InputError, match=r"--links: .* is the file of --nodes too"):
            refuse_same({"--nodes": tmp_path / "n.csv", "--timeline": None, "--links": other}, [])
    refuse_same({"--nodes": tmp_path / "n.csv", "--links": tmp_path / "l.csv"}, [])
    refuse_same({"--nodes": Path("/dev/null"), "--links": Path("/dev/null")}, [])


@pytest.fixture
def folder(tmp_path):
    """A folder of traces, as emit writes it."""
    (tmp_path / "out").mkdir()
    for name in ("tiny.0.et", "tiny.1.et", "manifest.json", "network.yml"):
        (tmp_path / "out" / name).touch()
    (tmp_path / "spec.yaml").touch()
    return tmp_path / "out"


@pytest.mark.parametrize(
    ("output", "given"),
    [
        ("spec.yaml", "spec.yaml"),
        ("out/tiny.1.et", "out"),
        ("out/tiny.7.et.gz", "out"),
        ("out/manifest.json", "out"),
        ("out/job.yaml", "out"),
        ("out/tiny.1.et", "out/tiny"),
        ("out/network.yml", "out/network.yml"),
    ],
)
def test_an_output_that_is_an_input(folder, output, given):
    """Also a file that does not exist yet, but that the next run would read as part of the traces."""
    top = folder.parent
    with pytest.raises(InputError, match=r"--nodes: .* is read too, as"):
        refuse_same({"--nodes": top / output}, [top / given])
    (top / "link").symlink_to(top / output)
    with pytest.raises(InputError, match=r"--nodes: .*link is read too"):
        refuse_same({"--nodes": top / "link"}, [top / given])


@pytest.mark.parametrize(("output", "given"), [("out/nodes.csv", "out"), ("out/other.1.et", "out/tiny"), ("n", "none")])
def test_beside_the_inputs_is_no_harm(folder, output, given):
    refuse_same({"--nodes": folder.parent / output}, [folder.parent / given])
