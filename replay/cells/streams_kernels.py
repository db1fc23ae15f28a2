"""The compiled engine of execution `streams`: a longest path, swept in dependency order without a heap."""

from typing import Any

import numpy as np

from tracegen.proto.compiled import kernel

_SEND, _RECV, _JOIN = 2, 3, 4


@kernel
def sweep(
    node_ptr: Any,
    cell_of: Any,
    class_start: Any,
    act: Any,
    succ_ptr: Any,
    succ: Any,
    indegree: Any,
    before: Any,
    after: Any,
    asked: Any,
    mate: Any,
    instance: Any,
    member_ptr: Any,
    members: Any,
    needed: Any,
    span: Any,
    ready: Any,
    issue: Any,
    transfer: Any,
    end: Any,
    ahead: Any,
) -> None:
    """Fill the five last columns; a node that never runs keeps -1 where it never got.

    ``cell_of`` and ``mate``, ``instance``, ``span`` are per flat node; ``act`` .. ``after`` per node of a class, where
    cell c's begin at ``class_start[c]``; ``members`` lists the joins of each instance (-1 missing), ``needed`` how many
    must come; an instance whose members disagree on ``asked`` never ends. A node runs when its dependencies are done
    and the node before it in its stream has ended.
    """
    n = len(cell_of)
    left = np.empty(n, np.int32)
    held = np.zeros(n, np.uint8)
    stack = np.empty(n, np.int64)
    done = np.empty(n, np.int64)
    latest = np.full(len(needed), np.int64(-1))
    asking = np.full(len(needed), np.int64(-1))
    top = 0
    for v in range(n):
        c = cell_of[v]
        g = class_start[c] + v - node_ptr[c]
        left[v] = indegree[g]
        if before[g] >= 0:
            held[v] = 1
        if act[g] == _RECV:
            held[v] += 1
        if left[v] == 0:
            ready[v] = 0
            if held[v] == 0:
                stack[top] = v
                top += 1
    while top > 0:
        top -= 1
        v = stack[top]
        c = cell_of[v]
        first = node_ptr[c]
        g = class_start[c] + v - first
        at = ready[v]
        if before[g] >= 0:
            free = end[first + before[g]]
            if free > at:
                at = free
                ahead[v] = before[g]
        issue[v] = at
        done_count = 0
        if act[g] == _JOIN:
            i = instance[v]
            needed[i] -= 1
            latest[i] = max(latest[i], at)
            if asking[i] == -1:
                asking[i] = asked[g]
            elif asking[i] != asked[g]:
                asking[i] = -2
            if needed[i] == 0 and asking[i] != -2:
                for e in range(member_ptr[i], member_ptr[i + 1]):
                    w = members[e]
                    transfer[w] = latest[i]
                    end[w] = latest[i] + span[w]
                    done[done_count] = w
                    done_count += 1
        elif act[g] == _RECV:
            transfer[v] = issue[mate[v]]
            end[v] = max(at, end[mate[v]])
            done[0] = v
            done_count = 1
        else:
            transfer[v] = at
            end[v] = at + span[v]
            done[0] = v
            done_count = 1
        for k in range(done_count):
            w = done[k]
            d = cell_of[w]
            base = node_ptr[d]
            h = class_start[d] + w - base
            for e in range(succ_ptr[h], succ_ptr[h + 1]):
                x = base + succ[e]
                left[x] -= 1
                if ready[x] < end[w]:
                    ready[x] = end[w]
                if left[x] == 0 and held[x] == 0:
                    stack[top] = x
                    top += 1
            if after[h] >= 0:
                x = base + after[h]
                held[x] -= 1
                if left[x] == 0 and held[x] == 0:
                    stack[top] = x
                    top += 1
            if act[h] == _SEND and mate[w] >= 0:
                x = mate[w]
                held[x] -= 1
                if left[x] == 0 and held[x] == 0:
                    stack[top] = x
                    top += 1
    for v in range(n):
        if left[v] > 0:
            ready[v] = -1
        elif act[class_start[cell_of[v]] + v - node_ptr[cell_of[v]]] == _RECV:
            issue[v] = ready[v]  # a receive is posted as soon as it is ready, also one that nothing answers
