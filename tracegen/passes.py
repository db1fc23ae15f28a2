"""A stage's trace from pieces: prologue, layers and epilogue make a pass, passes follow the schedule, a step ends.

Owns what feeds a pass, where gradient buckets go, and how the step ends. Does not know sizes or durations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracegen.layers import Layers, Message, Step
from tracegen.patterns import BEFORE, Edges, Pattern, at_layer, at_microbatch, insert, join, with_edges
from tracegen.proto.graph import Phase
from tracegen.schedule import Order
from tracegen.update import Update

F, B = Phase.F, Phase.B


@dataclass(frozen=True)
class Pieces:
    """The pieces of every pass, each a pattern of one microbatch."""

    forward: Pattern
    backward: Pattern
    embedding: Pattern
    embedding_backward: Pattern
    head: Pattern
    head_backward: Pattern
    messages: dict[str, Pattern]

    @classmethod
    def of(cls, layers: Layers, make: Callable[..., Pattern], stages: int) -> Pieces:
        """Patterns of all steps; ``make(steps, layer=..., once=...)`` gives the pattern of a list."""
        return cls(
            forward=make(layers.forward, layer=True),
            backward=make(layers.backward, layer=True),
            embedding=make(layers.embedding),
            embedding_backward=make(layers.embedding_backward),
            head=make(layers.head),
            head_backward=make(layers.head_backward),
            messages={step.work.name: make([step]) for step in messages(layers) if stages > 1},
        )


def messages(layers: Layers) -> list[Step]:
    """The four messages between stages."""
    size = layers.message_bytes
    return [
        Step(Message("send_activation", "next", True, size), F),
        Step(Message("receive_activation", "previous", False, size), F),
        Step(Message("send_gradient", "previous", True, size), B),
        Step(Message("receive_gradient", "next", False, size), B),
    ]


@dataclass(frozen=True)
class Stage:
    """One pipeline position: its number, how many there are, and its layers."""

    number: int
    stages: int
    layers: range

    @property
    def is_first(self) -> bool:
        """Whether it has the embedding."""
        return self.number == 0

    @property
    def is_last(self) -> bool:
        """Whether it has the head and the loss."""
        return self.number == self.stages - 1


def stage_trace(pieces: Pieces, stage: Stage, order: Order, update: Update, make: Callable[..., Pattern]) -> Pattern:
    """All nodes of a rank of a stage, in the order of its schedule."""
    forward, backward = forward_pass(pieces, stage), backward_pass(pieces, stage)
    last = with_update(backward, update, make)
    final = len(order) - 1
    return join(
        [
            at_microbatch(forward if direction == "F" else last if i == final else backward, microbatch)
            for i, (direction, microbatch) in enumerate(order)
        ]
    )


def forward_pass(pieces: Pieces, stage: Stage) -> Pattern:
    """Embedding or receive, layers, head or send."""
    prologue = pieces.embedding if stage.is_first else pieces.messages["receive_activation"]
    layers = [at_layer(pieces.forward, layer) for layer in stage.layers]
    epilogue = pieces.head if stage.is_last else pieces.messages["send_activation"]
    return fed_by(prologue, [*layers, epilogue])


def backward_pass(pieces: Pieces, stage: Stage) -> Pattern:
    """Head or receive, layers from the last, embedding or send."""
    prologue = pieces.head_backward if stage.is_last else pieces.messages["receive_gradient"]
    layers = [at_layer(pieces.backward, layer) for layer in reversed(stage.layers)]
    epilogue = pieces.embedding_backward if stage.is_first else pieces.messages["send_gradient"]
    return fed_by(prologue, [*layers, epilogue])


def fed_by(prologue: Pattern, body: Sequence[Pattern]) -> Pattern:
    """The prologue, then the body; where a communication ends the prologue, its result goes where the body takes input.

    The first node of the body waits for it in any case: recompute begins once the gradient has come, as in Megatron.
    """
    if prologue.compute[-1]:
        return join([prologue, *body])
    first, entry = body[0], len(prologue) - 1
    edges = first.edges
    external = edges.source == BEFORE
    takes = edges.to[external & ~edges.order]
    # What took its input from the compute node before now only comes after it, and later nodes do so by the chain.
    needed = ~external | (edges.to <= int(np.argmax(first.compute)))
    first = replace(first, edges=replace(edges, order=edges.order | external).only(needed))
    start = len(prologue)
    feeds = [(int(to) + start, entry, False) for to in takes]
    if 0 not in takes:
        feeds.append((start, entry, True))
    return with_edges(join([prologue, first, *body[1:]]), Edges.of(feeds))


def with_update(backward: Pattern, update: Update, make: Callable[..., Pattern]) -> Pattern:
    """The last backward pass of a step, with gradient buckets in it and the end of the step behind it.

    A bucket stands behind the node that completes it. Those that the pass's last gradient completes stand behind the
    whole pass, so that with one communication slot they do not hold up the stage's last message.
    """
    after = make(update.after, once=True)
    if not update.reductions:
        return join([backward, after])
    complete = np.cumsum(backward.parameters)
    producer = np.searchsorted(complete, np.array(update.ends))
    final = int(np.flatnonzero(backward.parameters)[-1])
    behind = np.where(producer == final, len(backward) - 1, producer)
    whole, reductions = insert(backward, make(update.reductions, once=True), behind)
    moved = np.flatnonzero(np.isin(np.arange(len(whole)), reductions, invert=True))
    edges = [(int(to), int(moved[p]), False) for to, p in zip(reductions, producer, strict=True)]
    start = len(whole)
    takers = {start, start + update.sums}  # the first sum, if any, and the optimizer
    edges += [(taker, int(source), False) for taker in takers for source in reductions]
    edges += [(start + i, start + i - 1, True) for i in range(1, update.sums)]
    return with_edges(join([whole, after]), Edges.of(edges))
