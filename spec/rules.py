"""Rules that join several keys of a spec: both numbers and the nearest legal value of each. Owns no type or bound."""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm, prod

from tracegen.spec.device import Device
from tracegen.spec.model import Model
from tracegen.spec.parallelism import AXES, Parallelism
from tracegen.spec.workload import COMPUTE_TYPES, Workload

Problem = tuple[str, str]
"""A key and what is wrong with it."""


def model_problems(model: Model) -> Iterator[Problem]:
    """Rules within the model (keys below ``model``)."""
    if model.attention == "mha" and model.kv_heads != model.heads:
        yield "kv_heads", f"attention mha needs kv_heads = heads {model.heads}, not {model.kv_heads}; or attention gqa"
    if not model.is_mla and model.heads % model.kv_heads:
        fix = near(model.heads, model.kv_heads)
        yield "kv_heads", f"heads {model.heads} do not divide by kv_heads {model.kv_heads}; {fix}"
    if model.is_mla:
        for key in ("kv_lora_rank", "nope_head_dim", "rope_head_dim", "v_head_dim"):
            if not getattr(model, key):
                needs = "attention mla needs kv_lora_rank, nope_head_dim, rope_head_dim and v_head_dim"
                yield key, f"{_absent(model, key)}: {needs}, each 1 or more"
    if model.positions == "learned" and not model.max_positions:
        why = "learned positions need the length of their table, 1 or more"
        yield "max_positions", f"{_absent(model, 'max_positions')}: {why}"
    if model.is_moe:
        yield from _expert_problems(model)
    else:
        for key in ("top_k", "shared_experts", "expert_ffn", "first_dense_layers"):
            if getattr(model, key):
                yield key, f"{getattr(model, key)} but experts is 0; give experts, or leave it out"
    if not model.ffn and model.moe_layers < model.layers:
        dense = f"{model.layers - model.moe_layers} of {model.layers} layers have a dense MLP"
        wide = f"give its width, often 4 · hidden = {4 * model.hidden}"
        yield "ffn", f"{_absent(model, 'ffn')}: {dense}; {wide}"


def _absent(model: Model, key: str) -> str:
    """That a key is missing, or that it says 0 where more is needed."""
    return "0 is too small" if key in model.model_fields_set else "is missing"


def _expert_problems(model: Model) -> Iterator[Problem]:
    if not 1 <= model.top_k <= model.experts:
        yield "top_k", f"{model.top_k} of experts {model.experts}; legal: 1 to {model.experts}"
    if not model.expert_ffn:
        yield "expert_ffn", f"{_absent(model, 'expert_ffn')}: the width of one of the {model.experts} experts"
    if not model.moe_layers:
        why = f"and moe_every {model.moe_every} leave none of {model.layers} layers with experts"
        yield "first_dense_layers", f"{model.first_dense_layers} {why}"


def split_problems(model: Model, parallelism: Parallelism, world: int) -> Iterator[Problem]:
    """Rules that join the model and the split (full keys)."""
    tp, p = parallelism.tp, parallelism
    if model.heads % tp:
        yield "parallelism.tp", f"heads {model.heads} do not divide by tp {tp}; {near(model.heads, tp)}"
    elif not model.is_mla and model.kv_heads % tp and tp % model.kv_heads:
        legal = [d for d in divisors(model.heads) if not (model.kv_heads % d and d % model.kv_heads)]
        why = "neither divides the other (heads are shared out, or copied where tp is a multiple)"
        yield "parallelism.tp", f"kv_heads {model.kv_heads} and tp {tp}: {why}; {_closest(legal, tp)}"
    for key, width in (("ffn", model.ffn), ("shared experts' width", model.shared_experts * model.expert_ffn)):
        if width % tp:
            yield "parallelism.tp", f"{key} {width} does not divide by tp {tp}; {near(width, tp)}"
    yield from _stage_problems(model, p)
    yield from _order_problems(model, p)
    yield from _expert_split_problems(model, p, world)


def _stage_problems(model: Model, p: Parallelism) -> Iterator[Problem]:
    layers, chunks = model.layers, p.pp * p.vpp
    if isinstance(p.stages, tuple):
        if len(p.stages) != p.pp:
            yield "parallelism.stages", f"lists {len(p.stages)} stages, pp is {p.pp}; list {p.pp}"
        elif sum(p.stages) != layers:
            last = p.stages[-1] + layers - sum(p.stages)
            fix = f"; nearest: last stage {last}" if last > 0 else ""
            listed = "+".join(map(str, p.stages))
            yield "parallelism.stages", f"{listed} = {sum(p.stages)} layers, the model has {layers}{fix}"
    elif p.pp > layers:
        yield "parallelism.pp", f"{p.pp} stages for {layers} layers; at most {layers}"
    if p.vpp > 1 and layers % chunks:
        low = layers // chunks * chunks
        legal = [v for v in range(1, layers // p.pp + 1) if layers % (p.pp * v) == 0] or [1]
        vpp = min(legal, key=lambda v: (abs(v - p.vpp), v))
        nearest = " or ".join(str(n) for n in (low, low + chunks) if n)
        fix = f"nearest vpp {vpp}, or layers {nearest}"
        yield "parallelism.vpp", f"layers {layers} do not divide by pp {p.pp} · vpp {p.vpp} = {chunks}; {fix}"


def _order_problems(model: Model, p: Parallelism) -> Iterator[Problem]:
    if sorted(p.order) != sorted(AXES):
        yield "parallelism.order", f"names {', '.join(p.order)}; name each of {', '.join(AXES)} once"
        return
    if p.pp == 1 or not (model.is_moe or p.ep > 1):
        return
    inside = p.order[: p.order.index("pp")]
    dense = prod({"tp": p.tp, "cp": p.cp, "dp": p.dp}.get(axis, 1) for axis in inside)
    expert_dp = p.tp * p.cp * p.dp // (p.etp * p.ep)
    expert = prod({"tp": p.etp, "ep": p.ep, "dp": expert_dp}.get(axis, 1) for axis in inside)
    if dense != expert:
        why = f"puts stages every {dense} ranks for dense layers and every {expert} for experts; put pp last"
        yield "parallelism.order", f"{', '.join(p.order)} {why}"


def _expert_split_problems(model: Model, p: Parallelism, world: int) -> Iterator[Problem]:
    if p.ep > 1 and not model.is_moe:
        yield "parallelism.ep", f"ep {p.ep}, but the model has no experts; ep 1"
        return
    if model.experts % p.ep:
        yield "parallelism.ep", f"experts {model.experts} do not divide by ep {p.ep}; {near(model.experts, p.ep)}"
    elif world % (p.ep * p.etp * p.pp):
        ranks = world // p.pp
        legal = [d for d in divisors(ranks) if ranks % (d * p.etp) == 0 and model.experts % d == 0] or [1]
        product = f"etp {p.etp} · ep {p.ep} · pp {p.pp} = {p.etp * p.ep * p.pp}"
        yield "parallelism.ep", f"{product} does not divide the world {world}; {_closest(legal, p.ep)}"
    if model.expert_ffn % p.etp:
        fix = near(model.expert_ffn, p.etp)
        yield "parallelism.etp", f"expert_ffn {model.expert_ffn} does not divide by etp {p.etp}; {fix}"


def batch_problems(model: Model, p: Parallelism, w: Workload) -> Iterator[Problem]:
    """Rules that join the workload with the split and the model (full keys)."""
    per_microbatch = w.micro_batch * p.dp
    microbatches = w.global_batch // per_microbatch
    if w.global_batch % per_microbatch:
        yield (
            "workload.global_batch",
            (
                f"{w.global_batch} does not divide by micro_batch {w.micro_batch} · dp {p.dp} = {per_microbatch}; "
                f"{multiples(w.global_batch, per_microbatch)}"
            ),
        )
    elif w.schedule == "interleaved" and microbatches % p.pp:
        yield (
            "workload.global_batch",
            (
                f"gives {_microbatches(microbatches)}; interleaved needs a multiple of pp {p.pp}; "
                f"{multiples(w.global_batch, per_microbatch * p.pp)}"
            ),
        )
    unit, why = 1, ""
    if p.cp > 1:
        unit = p.cp * (lcm(2, p.tp) if p.sp else 2)
        why = f"cp {p.cp} · {f'lcm(2, tp {p.tp})' if p.sp else '2'} = {unit}"
    elif p.sp:
        unit, why = p.tp, f"tp {p.tp} (sp shards the sequence)"
    if w.sequence_length % unit:
        fix = multiples(w.sequence_length, unit)
        yield "workload.sequence_length", f"{w.sequence_length} does not divide by {why}; {fix}"
    if model.positions == "learned" and w.sequence_length > (most := model.max_positions) > 0:
        yield "workload.sequence_length", f"{w.sequence_length} is over the {most} learned positions; at most {most}"
    if p.vpp > 1 and w.schedule in ("gpipe", "1f1b"):
        yield "parallelism.vpp", f"vpp {p.vpp} does nothing under schedule {w.schedule}; nearest vpp 1"
    if w.schedule == "interleaved" and p.vpp == 1:
        yield "workload.schedule", "interleaved needs vpp of 2 or more, vpp is 1; nearest schedule 1f1b"


def device_problems(device: Device, w: Workload) -> Iterator[Problem]:
    """Rules that join the workload and the device (full keys)."""
    compute = w.precision.compute
    if compute not in list(device.peak_flops):
        known = ", ".join(known for known in device.peak_flops if known in COMPUTE_TYPES)
        yield "workload.precision.compute", f"device {device.name} has no {compute} peak; it has {known or 'none'}"


def notes(model: Model, device: Device, p: Parallelism, w: Workload) -> Iterator[str]:
    """What is legal and worth saying."""
    own = device.efficiency
    if own.assumed:
        shares = f"efficiencies {own.compute} (compute) and {own.memory} (memory)"
        yield f"device {device.name}: {shares} are assumed: {own.source}"
    padded = model.padded_vocab(p.tp)
    if padded != model.vocab:
        unit = "tp" if model.vocab_pad_to == "tp" else f"{model.vocab_pad_to}·tp"
        yield f"vocab {model.vocab} padded to {padded} (a multiple of {unit}, tp {p.tp})"
    if not model.is_mla and model.kv_copies(p.tp) > 1:
        yield f"kv_heads {model.kv_heads} under tp {p.tp}: each rank holds 1, {model.kv_copies(p.tp)} copies of each"
    microbatches = w.global_batch // (w.micro_batch * p.dp)
    if microbatches < p.pp:
        counted = _microbatches(microbatches)
        yield f"{counted} for {p.pp} stages: some stages always idle; raise global_batch or lower pp"
    if model.positions == "rotary" and model.max_positions and w.sequence_length > model.max_positions:
        yield f"sequence_length {w.sequence_length} is over the {model.max_positions} positions the model was made for"


def _microbatches(count: int) -> str:
    return "1 microbatch" if count == 1 else f"{count} microbatches"


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def near(number: int, wanted: int) -> str:
    """The divisors of ``number`` nearest to ``wanted``, as words."""
    return _closest(divisors(number), wanted)


def multiples(number: int, unit: int) -> str:
    """The multiples of ``unit`` around ``number``, as words."""
    low = number // unit * unit
    return f"nearest {' or '.join(str(n) for n in (low, low + unit) if n)}"


def _closest(legal: list[int], wanted: int) -> str:
    below = [value for value in legal if value < wanted][-1:]
    above = [value for value in legal if value > wanted][:1]
    listed = ", ".join(str(value) for value in legal[:12]) + (", ..." if len(legal) > 12 else "")
    return f"nearest {' or '.join(str(value) for value in below + above)} (legal: {listed})"
