"""The compiled engine of execution `astra`: events in time order, slots per rank, lowest ready id first.

Node lanes: 0 receives (no slot), 1 compute, 2 CPU, 3 communication.
"""

from typing import Any

import numpy as np

from tracegen.proto.compiled import kernel
from tracegen.replay.cells.heap_kernels import drop_first, push, ready_pop, ready_push

_INSTANT, _TIMED, _SEND, _RECV, _JOIN = 0, 1, 2, 3, 4
_LANES = 4
_NO_CLOSED_FORM = -2
_STEPWISE, _ONE_SHOT = 1, 2
_RING = 0


@kernel
def delay(src: Any, dst: Any, nbytes: Any, sizes: Any, topology: Any, latency: Any, bandwidth: Any) -> Any:
    """floor(h latency + m / B) of the lowest dimension in which the ends differ.

    ``topology`` is 0 for a ring, else the links that a crossing takes.
    """
    a, b = src, dst
    for d in range(len(sizes)):
        n = sizes[d]
        x, y = a % n, b % n
        if x != y:
            if topology[d] == _RING:
                ahead = (y - x) % n
                hops = min(ahead, n - ahead)
            else:
                hops = topology[d]
            return np.int64(np.floor(hops * latency[d] + nbytes / bandwidth[d]))
        a //= n
        b //= n
    return np.int64(0)


@kernel
def collective_finish(
    ranks: Any,
    enter: Any,
    rule: Any,
    rules: Any,
    steps: Any,
    sizes: Any,
    topology: Any,
    latency: Any,
    bandwidth: Any,
    inject: Any,
    out: Any,
) -> bool:
    """When each member ends, in ``out``; False where only the last entry plus the closed form is known.

    ``rules`` i64[rules, 7]: span, lag, form, endpoint delay, rounds, first and last step; ``steps`` i64[steps, 4]:
    count, bytes, reduction, partner (0 the previous member, else XOR of positions). Stepwise, with X the way from the
    partner p: inj_i(1) = enter_i + e, proc_i(k) = max(inj_p(k) + X, inj_i(k)) + e + P_k, inj_i(k + 1) = proc_i(k).
    """
    n = len(ranks)
    span, form, e, rounds = rules[rule, 0], rules[rule, 2], rules[rule, 3], rules[rule, 4]
    last = enter[0]
    together = True
    for i in range(1, n):
        if enter[i] != enter[0]:
            together = False
        last = max(last, enter[i])
    if span >= 0 and (together or (form != _STEPWISE and form != _ONE_SHOT)):
        for i in range(n):
            out[i] = last + span
        return together
    for i in range(n):
        out[i] = enter[i]
    for _ in range(rounds):
        for i in range(n):
            inject[i] = out[i] + e
        if form == _ONE_SHOT:
            message, reduction = steps[rules[rule, 5], 1], steps[rules[rule, 5], 2]
            for i in range(n):
                latest = inject[i]
                for j in range(n):
                    if j != i:
                        latest = max(
                            latest, inject[j] + delay(ranks[j], ranks[i], message, sizes, topology, latency, bandwidth)
                        )
                out[i] = latest + e + reduction
            continue
        for s in range(rules[rule, 5], rules[rule, 6]):
            message, reduction, partner = steps[s, 1], steps[s, 2], steps[s, 3]
            for _k in range(steps[s, 0]):
                for i in range(n):
                    p = i ^ partner if partner > 0 else (i - 1 if i > 0 else n - 1)
                    came = inject[p] + delay(ranks[p], ranks[i], message, sizes, topology, latency, bandwidth)
                    out[i] = max(came, inject[i]) + e + reduction
                for i in range(n):
                    inject[i] = out[i]
    return True


@kernel
def _pair(v: Any, side: Any, channel: Any, first_of: Any, last_of: Any, next_of: Any, mate: Any) -> None:
    """Pair a send just issued (side 0) or a receive just posted (1) with the oldest of the other side, or queue it."""
    w = first_of[1 - side, channel]
    if w >= 0:
        first_of[1 - side, channel] = next_of[w]
        mate[v] = w
        mate[w] = v
        return
    if first_of[side, channel] < 0:
        first_of[side, channel] = v
    else:
        next_of[last_of[side, channel]] = v
    last_of[side, channel] = v


@kernel
def _open_tie(tie: Any, c: Any, now: Any, registered: Any, pushed: Any, by: Any, went_on: Any) -> bool:
    """Enter an event in its cell's run of tied events; whether the tie is open (see `play`)."""
    same = tie[c, 0] == now and tie[c, 1] == registered and tie[c, 2] == pushed
    if same and tie[c, 3] != by:
        tie[c, 4] = 1
    if not same:
        tie[c, 0], tie[c, 1], tie[c, 2], tie[c, 3] = now, registered, pushed, by
        tie[c, 4], tie[c, 5] = 0, 0
    if not went_on:
        return False
    open_ = bool(tie[c, 4] == 1 and tie[c, 5] == 1)
    tie[c, 5] = 1
    return open_


@kernel
def play(
    node_ptr: Any,
    cell_of: Any,
    class_start: Any,
    act: Any,
    succ_ptr: Any,
    succ: Any,
    indegree: Any,
    lane: Any,
    lane_ptr: Any,
    channel: Any,
    channels: Any,
    mate: Any,
    instance: Any,
    member_ptr: Any,
    members: Any,
    needed: Any,
    slot: Any,
    first_instance: Any,
    seat: Any,
    pool_of_instance: Any,
    position_ptr: Any,
    position: Any,
    position_rank: Any,
    rule_of: Any,
    rules: Any,
    steps: Any,
    sizes: Any,
    topology: Any,
    latency: Any,
    bandwidth: Any,
    span: Any,
    ready: Any,
    issue: Any,
    transfer: Any,
    end: Any,
    ahead: Any,
) -> Any:
    """Fill the five last columns; returns how many collectives were approximated, and how many ties were open.

    ``lane_ptr`` i64[cells, 4]: where each cell's heap of ready nodes of a lane begins. The k-th send issued of a
    channel feeds the k-th receive posted on it: ``mate`` is completed. Collectives meet in the order of their issue
    too: the k-th that a cell issues on a slot is the k-th instance from ``first_instance[cell, slot]`` and sits at
    ``seat`` there; ``instance`` and ``members`` are filled. One whose members disagree (``rule_of``) never ends.
    ``position``: per member of each pool's group, in ring order, its pair; ``position_rank`` its rank.

    A tie is open where two events of one cell fall on one tick, were set on one tick by different passes over ready
    nodes, and both let the cell go on: which comes first then depends on the order of ranks, which ranks of one cell
    need not share.
    """
    n, cells = len(cell_of), len(class_start)
    left = np.empty(n, np.int32)
    store = np.empty(n, np.int32)
    counts = np.zeros((cells, _LANES), np.int64)
    holder = np.full((cells, _LANES), -1, np.int64)
    held_last = np.full((cells, _LANES), np.int32(-1), np.int32)
    later = np.full(n, np.int64(-1))  # nodes freed inside an issue loop, looked at in the next one
    later_head = np.full(cells, np.int64(-1))
    # Messages of shared keys, as chains of sends not yet paired (side 0) and of receives (side 1).
    first_of = np.full((2, channels), np.int64(-1))
    last_of = np.full((2, channels), np.int64(-1))
    next_of = np.full(n if channels > 0 else 0, np.int64(-1))
    heap = np.empty((1024, 4), np.int64)
    events = 0
    sequence = np.int64(0)
    widest = 1
    for q in range(len(position_ptr) - 1):
        widest = max(widest, position_ptr[q + 1] - position_ptr[q])
    enter, inject, leave = np.empty(widest, np.int64), np.empty(widest, np.int64), np.empty(widest, np.int64)
    approximate = 0
    done = np.empty(2, np.int64)
    joined = np.zeros(first_instance.shape, np.int32)
    rule_in = np.full(len(needed), np.int64(-1))
    set_at = np.zeros(n, np.int64)  # when a node's event was put on the heap, and by which pass
    set_by = np.zeros(n, np.int64)
    passes = np.int64(0)
    # Per cell the last run of tied events: tick, registration, when and by which pass set; several passes; went on.
    tie = np.full((cells, 6), np.int64(-1))
    open_ties = 0

    for v in range(n):
        c = cell_of[v]
        g = class_start[c] + v - node_ptr[c]
        left[v] = indegree[g]
        if left[v] == 0:
            ready[v] = 0
            ready_push(store, lane_ptr[c, lane[g]], counts[c], lane[g], np.int32(v - node_ptr[c]))

    now, registered, cause = np.int64(0), np.int64(0), np.int64(0)
    starting = 0
    while True:
        # At 0 every rank looks for work in order; afterwards the ranks whose nodes have just ended do.
        done_count = 0
        if starting < cells:
            done[0] = -1
            done_count = 1
        elif events == 0:
            break
        else:
            now = heap[0, 0]
            registered = heap[0, 1]
            v = heap[0, 3]
            cause = v
            drop_first(heap, events)
            events -= 1
            done[0] = v
            done_count = 1
            c = cell_of[v]
            if act[class_start[c] + v - node_ptr[c]] == _SEND and mate[v] >= 0:
                transfer[mate[v]] = issue[v]
                if issue[mate[v]] >= 0:
                    done[1] = mate[v]
                    done_count = 2
        for k in range(done_count):
            passes += 1
            went_on = False
            if done[k] < 0:
                c = starting
                starting += 1
            else:
                v = done[k]
                c = cell_of[v]
                base = node_ptr[c]
                g = class_start[c] + v - base
                end[v] = now
                if lane[g] > 0:
                    holder[c, lane[g]] = -1
                for e in range(succ_ptr[g], succ_ptr[g + 1]):
                    x = base + succ[e]
                    left[x] -= 1
                    if left[x] == 0:
                        ready[x] = now
                        h = class_start[c] + succ[e]
                        went_on = went_on or lane[h] > 0
                        ready_push(store, lane_ptr[c, lane[h]], counts[c], lane[h], succ[e])
            base = node_ptr[c]
            x = later_head[c]
            later_head[c] = -1
            while x >= 0:
                h = class_start[c] + x - base
                ready_push(store, lane_ptr[c, lane[h]], counts[c], lane[h], np.int32(x - base))
                x = later[x]
            while True:
                best, best_lane = np.int32(2147483647), -1
                for one in range(_LANES):
                    if counts[c, one] > 0 and (one == 0 or holder[c, one] < 0):
                        top = store[lane_ptr[c, one]]
                        if top < best:
                            best, best_lane = top, one
                if best_lane < 0:
                    break
                ready_pop(store, lane_ptr[c, best_lane], counts[c], best_lane)
                v = base + best
                g = class_start[c] + best
                issue[v] = now
                if now > ready[v]:
                    ahead[v] = held_last[c, best_lane]
                if act[g] == _INSTANT or (act[g] == _TIMED and span[v] == 0):
                    transfer[v] = now
                    end[v] = now
                    for e in range(succ_ptr[g], succ_ptr[g + 1]):
                        x = base + succ[e]
                        left[x] -= 1
                        if left[x] == 0:
                            ready[x] = now
                            later[x] = later_head[c]
                            later_head[c] = x
                    continue
                if best_lane > 0:
                    went_on = True
                    holder[c, best_lane] = v
                    held_last[c, best_lane] = best
                if channel[v] >= 0:
                    _pair(v, 1 if act[g] == _RECV else 0, channel[v], first_of, last_of, next_of, mate)
                if act[g] == _RECV:
                    if mate[v] >= 0 and end[mate[v]] >= 0:
                        transfer[v] = issue[mate[v]]
                        set_at[v], set_by[v] = now, passes
                        heap = push(heap, events, now, now, sequence, v)
                        events += 1
                        sequence += 1
                elif act[g] == _JOIN:
                    j = slot[g]
                    i = first_instance[c, j] + joined[c, j]
                    joined[c, j] += 1
                    instance[v] = i
                    members[member_ptr[i] + seat[c, j]] = v
                    needed[i] -= 1
                    if rule_in[i] == -1:
                        rule_in[i] = rule_of[v]
                    elif rule_in[i] != rule_of[v]:
                        rule_in[i] = -2
                    if needed[i] > 0 or rule_in[i] == -2 or rules[rule_in[i], 0] == -1:
                        continue
                    pool = pool_of_instance[i]
                    first, stop = position_ptr[pool], position_ptr[pool + 1]
                    m0 = member_ptr[i]
                    for p in range(stop - first):
                        enter[p] = issue[members[m0 + position[first + p]]]
                    exact = collective_finish(
                        position_rank[first:stop],
                        enter[: stop - first],
                        rule_in[i],
                        rules,
                        steps,
                        sizes,
                        topology,
                        latency,
                        bandwidth,
                        inject,
                        leave,
                    )
                    if not exact:
                        approximate += 1
                    for p in range(stop - first):
                        w = members[m0 + position[first + p]]
                        if transfer[w] < 0:
                            transfer[w] = now
                            span[w] = leave[p] - now
                            lag = rules[rule_in[i], 1]
                            set_at[w], set_by[w] = now, passes
                            heap = push(heap, events, leave[p], leave[p] - lag, sequence, w)
                            events += 1
                            sequence += 1
                else:
                    transfer[v] = now
                    if span[v] >= 0:
                        set_at[v], set_by[v] = now, passes
                        heap = push(heap, events, now + span[v], now, sequence, v)
                        events += 1
                        sequence += 1
            if done[k] >= 0:
                # What another rank set off is told apart even where that rank is played by this very cell.
                by = set_by[cause] if k == 0 and instance[cause] < 0 else -2 - done[k]
                if _open_tie(tie, c, now, registered, set_at[cause], by, went_on):
                    open_ties += 1
    return approximate, open_ties
