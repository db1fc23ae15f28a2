"""Process groups that a trace itself describes, in METADATA nodes as PyTorch's converter writes them.

Such a node's ``inputs.values`` is the text ``['[{"pg_name":"3","ranks":[0,2]}, ...]']``; an empty list of ranks means
all (astra_sim_semantics 2.5). Reads these and nothing else of a node.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from tracegen.proto.graph import Kind, RankGraph
from tracegen.proto.problems import Problem
from tracegen.proto.schema import Node

_RULE = "group-file"


class GroupsInTraces:
    """The groups of comm_group.json and those that METADATA nodes add, rank by rank.

    Parameters
    ----------
    given : the content of comm_group.json, None where there is none.
    ranks : how many ranks the job has, for groups of all.
    """

    def __init__(self, given: Mapping[int, Sequence[int]] | None, ranks: int) -> None:
        self._given, self._ranks = given, ranks
        self._found: dict[int, tuple[list[int], int]] = {}  # members, and the rank that says so
        self._texts: dict[str, list[dict[str, Any]]] = {}

    @property
    def groups(self) -> Mapping[int, Sequence[int]] | None:
        """All of them by number; None where nothing defines any."""
        if not self._found:
            return self._given
        return {**{number: members for number, (members, _) in self._found.items()}, **(self._given or {})}

    def add(self, graph: RankGraph, rank: int) -> list[Problem]:
        """Take in the groups of one rank's trace; returns what is wrong with them."""
        if graph.extra_ptr is None:
            return []
        problems = []
        for node in np.flatnonzero(graph.kind == Kind.METADATA).tolist():
            kept = graph.extra[graph.extra_ptr[node] : graph.extra_ptr[node + 1]].tobytes()
            where = f"rank {rank} node {int(graph.id[node])}"
            try:
                text = Node.FromString(kept).inputs.values
            except DecodeError:
                continue
            if "pg_name" not in text:
                continue
            try:
                entries = self._entries(text)
            except ValueError as why:
                problems.append(Problem(_RULE, where, f"its process groups are no list of objects: {why}"))
                continue
            problems += [Problem(_RULE, where, said) for entry in entries if (said := self._take(entry, rank))]
        return problems

    def _entries(self, text: str) -> list[dict[str, Any]]:
        if text not in self._texts:
            entries = json.loads(text[2:-2])
            if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
                raise ValueError(f"{text[:60]!r}")
            self._texts[text] = entries
        return self._texts[text]

    def _take(self, entry: dict[str, Any], rank: int) -> str:
        """Note one group; what is wrong with it, or ""."""
        name, listed = str(entry.get("pg_name", "")), entry.get("ranks", [])
        if not (name.isdecimal() and name.isascii()) or int(name) >= 2**31:
            return ""  # nodes cannot name it: pg_name is a number in them
        if not isinstance(listed, list) or any(type(one) is not int for one in listed):
            return f'group "{name}" lists what is no rank'
        members = listed or list(range(self._ranks))
        size = entry.get("group_size", len(members))
        if size != len(members):
            said = f"lists {len(listed)} ranks" if listed else f"lists none, which means all {self._ranks}"
            return f'group "{name}" has group_size {size}, but {said}'
        number = int(name)
        if number == 0:
            return (
                "" if len(members) == self._ranks else 'group "0" lists some ranks, but 0 means all: number it from 1'
            )
        if len(set(members)) < len(members):
            return f'group "{name}" lists a rank twice'
        if self._given is not None and number in self._given and list(self._given[number]) != members:
            return f'group "{name}" has other ranks than in comm_group.json'
        known, first = self._found.setdefault(number, (members, rank))
        return "" if known == members else f'group "{name}" has other ranks here than in the trace of rank {first}'
