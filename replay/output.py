"""Files that are written whole or not at all: a temporary sibling, renamed when done. Knows no content."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from tracegen.proto.errors import InputError


@contextmanager
def replacing(path: str | Path) -> Iterator[TextIO]:
    """A text file (UTF-8, newlines as written) that takes the place of ``path`` when the block ends without an error.

    Raises
    ------
    InputError
        The file cannot be written there.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            yield file
        temporary.replace(target)
    except OSError as why:
        raise InputError(f"{target}: cannot be written ({why.strerror})") from None
    finally:
        temporary.unlink(missing_ok=True)
