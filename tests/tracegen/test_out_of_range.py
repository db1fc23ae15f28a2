"""Times and sums that 64-bit integers cannot hold are refused in one line, with the operator and the figure."""

import numpy as np
import pytest

from tracegen.blocks import merge_blocks
from tracegen.build import build
from tracegen.layers import Step
from tracegen.operators import Operator
from tracegen.patterns import pattern
from tracegen.proto.errors import InputError
from tracegen.proto.graph import Phase
from tracegen.spec import load_job
from tracegen.timing import LONGEST_NS

SPEC = """
name: tiny
model: {name: tiny, layers: 4, hidden: 64, ffn: 128, heads: 4, kv_heads: 4, vocab: 128}
device: {base: h100-sxm5-80gb}
network: {dimensions: [{name: link, topology: switch, size: 8, bandwidth: 100 GB/s, latency: 1 us}]}
parallelism: {tp: 2, pp: 2, dp: 2}
workload: {sequence_length: 32, global_batch: 4}
"""


@pytest.fixture
def job(tmp_path):
    """``job("key=value", ..., peak=, bandwidth=)``: the spec above with overrides, and device figures of any size."""
    (tmp_path / "spec.yaml").write_text(SPEC)

    def make(*overrides, **figures):
        return slowed(load_job(str(tmp_path / "spec.yaml"), overrides), **figures)

    return make


def slowed(job, peak=1e15, bandwidth=3e12):
    """The job on a device of these FLOP/s and bytes/s, whatever a spec may say."""
    device = job.device.model_copy(update={"peak_flops": {"bf16": peak}, "memory_bandwidth": bandwidth})
    return job.model_copy(update={"device": device})


def refused(job):
    try:
        build(job)
    except InputError:
        return True
    return False


@pytest.mark.parametrize(
    ("key", "figures"),
    [
        ("device.peak_flops.bf16", {"peak": 1e-5}),
        ("device.peak_flops.bf16", {"peak": 1e-300}),
        ("device.memory_bandwidth", {"bandwidth": 1e-9}),
        ("device.memory_bandwidth", {"bandwidth": 5e-324}),
    ],
)
def test_an_operator_that_never_ends_is_refused_by_name(job, key, figures):
    """2^62 ns are 146 years; where even a float cannot hold the time it is infinite."""
    with pytest.raises(InputError, match=rf"[a-z_]+ takes \S+ s, a trace holds at most 4.61e\+09 s; raise {key}"):
        build(job(**figures))


@pytest.mark.parametrize("spec", ["llama3-70b", "llama3-405b"])
def test_one_flop_per_second(spec):
    """The tester's trial: int64 overflowed while the columns were made."""
    with pytest.raises(InputError, match=r"4.61e\+09 s.*raise device.peak_flops.bf16"):
        build(slowed(load_job(spec), peak=1.0))


@pytest.mark.parametrize("granularity", ["operator", "block"])
def test_a_step_is_held_to_the_end_of_its_sums(job, granularity):
    """A peak ever lower by halves: the last job let through has sums below 2^62, none negative; the next is refused.

    Each of its operators fits: what does not is the sum over nodes and ranks, which a timeline prints.
    """
    more = [f"workload.granularity={granularity}", "workload.global_batch=400"]
    peaks = [2.0 ** (20 - k) for k in range(30)]
    first = next(i for i, peak in enumerate(peaks) if refused(job(*more, peak=peak)))
    with pytest.raises(InputError, match=r"a step computes \S+ s on its 8 ranks together, at most .*; \w+ alone takes"):
        build(job(*more, peak=peaks[first]))
    traces = build(job(*more, peak=peaks[first - 1])).traces
    graphs = [traces.graph(rank) for rank in range(traces.ranks)]
    total = sum(int(np.maximum(graph.duration_ns, 0).astype(object).sum()) for graph in graphs)
    assert LONGEST_NS / 2.1 < total <= LONGEST_NS
    for graph in graphs:
        assert (graph.duration_us >= 0).all()
        assert abs(int(graph.duration_us.sum()) * 1000 - int(np.maximum(graph.duration_ns, 0).sum())) <= 1000


def test_a_block_that_is_too_large_is_refused():
    """Two operators of 2^62 FLOPs: each fits, the block of both does not."""
    work = Operator("huge", "matrix", (1,), 2**62, 1)
    steps = [Step(work, Phase.F), Step(work, Phase.F)]
    whole = pattern(steps, {"huge": 0}, {}, lambda work: 1)
    with pytest.raises(InputError, match=r"a block has 9.22e\+18 of flops"):
        merge_blocks(whole, ["huge"])
