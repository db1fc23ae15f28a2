"""What a command answered, as a shell would see it."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """Exit code and both outputs."""

    code: int
    out: str
    err: str


Command = Callable[..., Answer]
