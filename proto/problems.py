"""What is wrong with traces, as a list: every problem has a rule's name, a place and a sentence. Finds none itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracegen.proto.errors import InputError


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a trace.

    Parameters
    ----------
    rule : short name of the rule broken, stable for machines.
    where : rank, file or group.
    message : what is wrong and what would be right, one line.
    """

    rule: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


class TraceErrors(InputError):  # noqa: N818
    """Traces are refused, with everything that is wrong in ``problems``; as text, the first and how many more."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
        super().__init__(f"{self.problems[0]}{more}")
