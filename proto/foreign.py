"""Says what a file is that is no Chakra trace, by its first bytes. Decodes nothing."""

from __future__ import annotations

NEEDED = "a Chakra execution trace (.et: length-delimited protobuf messages, one file per rank) is needed"
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"%PDF-", "a PDF document"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive: unpack it"),
    (b"\xfd7zXZ\x00", "an xz archive: unpack it"),
    (b"SQLite format 3\x00", "an SQLite database (Nsight Systems exports these)"),
    (b"\x7fELF", "a program"),
    (b"\x93NUMPY", "a numpy array"),
)
_CONVERT = "chakra_trace_link and chakra_converter make one from it"
_SAMPLE = 1 << 16  # bytes looked at


def _is_text(sample: bytes) -> bool:
    """Whether there is no control byte but white space in it: a trace has one in each of its fields' tags."""
    try:
        sample[:4096].decode()
    except UnicodeDecodeError as why:
        if why.start < len(sample[:4096]) - 4:
            return False
    return not any(byte < 32 and byte not in b"\t\n\r" for byte in sample[:4096])


def what_instead(data: bytes) -> str | None:
    """What the file is and what is needed, in one line; None where it may be a trace.

    Parameters
    ----------
    data : its first 64 KiB, unpacked.
    """
    if not data:
        return f"an empty file; {NEEDED}"
    for magic, name in _MAGIC:
        if data.startswith(magic):
            return f"{name}; {NEEDED}"
    sample = data[:_SAMPLE]
    if not _is_text(sample):
        return None
    if not sample.lstrip().startswith((b"{", b"[")):
        return f"a text file; {NEEDED}"
    if b'"traceEvents"' in sample:
        return f"a Chrome trace of PyTorch's profiler (Kineto); {NEEDED}; {_CONVERT} and the host's execution trace"
    if b'"nodes"' in sample or b'"schema"' in sample:
        return f"a PyTorch host execution trace (JSON); {NEEDED}; {_CONVERT}"
    return f"a JSON file; {NEEDED}"
