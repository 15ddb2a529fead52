"""Costs and timelines from Kineto traces. The traces are made here, so the truth is known."""

import gzip
import json

import pytest
import weft_pipeline as weft
import weft_pipeline.torch as weft_torch

STEPS = 3


def trace_of(sim, rank, skew, device):
    """What the profiler would write of a rank, in microseconds; its clock is off by `skew`."""
    events, number = [], 0

    def add(cat, name, begin, end, **arguments):
        events.append(
            {"ph": "X", "cat": cat, "name": name, "ts": 1000 * begin + skew, "args": arguments}
        )
        events[-1]["dur"] = 1000 * (end - begin)

    for step in range(STEPS):
        start = step * 2 * sim.makespan
        host = start  # a GPU's host runs ahead; a CPU computes inside the range
        parts = 0
        for event in sim:
            if event.rank != rank or parts > 0:
                parts -= event.rank == rank
                continue
            parts = len(event.action.parts)
            begin, end = start + event.begin, start + event.end
            name = str(event.action)
            number += 1
            if event.action.op.startswith(("SEND", "RECV")):
                add("user_annotation", f"PP:{name}", host, host)
                add("cpu_op", "c10d::send", host, host)
                add("cuda_runtime", "cudaLaunchKernel", host, host, correlation=number)
                add("kernel", "ncclDevKernel_SendRecv", begin - 9, end, correlation=number)
                host += 1e-3 if device else 0
                continue
            last = host + 1e-3 if device else end
            add("user_annotation", f"PP:{name}", host, last)
            add("cpu_op", "gloo:recv", host, begin)
            add("cuda_runtime", "cudaLaunchKernel", host, host, correlation=number)
            middle = (begin + end) / 2
            for first, until in ((begin, middle), (middle, end)):
                add("cpu_op", "aten::mm", first, until)
                add("kernel", "gemm", first, until, correlation=number)
            host = last + 1e-4 if device else end
    if not device:
        events = [event for event in events if event["cat"] in ("user_annotation", "cpu_op")]
    events.append({"ph": "i", "name": "PP:0F0"})
    return {"traceEvents": events}


def traces_of(table, costs, device=True):
    sim = table.lower(unshard=False, reduce_grad=False).simulate(costs)
    return [trace_of(sim, rank, 10**6 * rank, device) for rank in range(table.ranks)]


@pytest.mark.parametrize("device", [True, False])
def test_costs(device):
    table = weft.Table.named("1F1B", ranks=2, microbatches=6)
    costs = weft.Costs(f=[2, 3], b=[5, 4], hop=0.5)
    found = weft_torch.costs_from_kineto(traces_of(table, costs, device), table).to_dict()
    assert found["unit"] == "ms"
    assert [stage["f"] for stage in found["stages"]] == pytest.approx([2, 3])
    assert [stage["b"] for stage in found["stages"]] == pytest.approx([5, 4])
    assert [stage["i"] for stage in found["stages"]] == pytest.approx([2.5, 2])
    assert found["hop"]["latency"] == pytest.approx(0.5)


def test_split_backwards():
    table = weft.Table.named("ZBVZeroBubble", ranks=2, microbatches=4)
    costs = weft.Costs(f=[1, 2, 3, 4], i=[2, 1, 2, 3], w=[1, 3, 1, 2], hop=0.25)
    found = weft_torch.costs_from_kineto(traces_of(table, costs), table, unit="us").to_dict()
    assert [stage["f"] for stage in found["stages"]] == pytest.approx([1e3, 2e3, 3e3, 4e3])
    assert [stage["i"] for stage in found["stages"]] == pytest.approx([2e3, 1e3, 2e3, 3e3])
    assert [stage["w"] for stage in found["stages"]] == pytest.approx([1e3, 3e3, 1e3, 2e3])


def test_files(tmp_path):
    table = weft.Table.named("1F1B", ranks=2, microbatches=2)
    for rank, trace in enumerate(traces_of(table, weft.Costs())):
        data = json.dumps(trace).encode()
        name = "rank0.json" if rank == 0 else "rank1.json.gz"
        (tmp_path / name).write_bytes(data if rank == 0 else gzip.compress(data))
    assert weft_torch.costs_from_kineto(tmp_path, table).to_dict()["stages"][1]["f"] == 1


def test_timeline():
    table = weft.Table.named("1F1B", ranks=1, microbatches=4)
    costs = weft.Costs(f=2, b=3)
    traces = traces_of(table, costs)
    timeline = weft_torch.timeline_from_kineto(traces, table)
    assert timeline.is_measured and not table.simulate().is_measured
    assert timeline.makespan == pytest.approx(table.simulate(costs).makespan)
    assert timeline.ranks[0].busy == pytest.approx(4 * 5)
    assert timeline._repr_svg_().startswith("<svg")
    overlap = weft.Table.named("DualPipeV", ranks=2, microbatches=4)
    sim = weft_torch.timeline_from_kineto(
        [trace_of(overlap.simulate(costs), rank, 0, True) for rank in range(2)], overlap
    )
    assert sim.makespan == pytest.approx(overlap.simulate(costs).makespan)


def test_wrong_traces(tmp_path):
    table = weft.Table.named("1F1B", ranks=2, microbatches=2)
    good = traces_of(table, weft.Costs())
    for wrong, kind in (
        ([b"no json"], weft.FormatError),
        ([b"\x1f\x8bno gzip"], weft.FormatError),
        ([{}], weft.FormatError),
        ([b"[" * 100000], weft.FormatError),
        ([{"traceEvents": []}], weft.UsageError),
        ([{"traceEvents": [None, 3, {"ph": "X", "name": 3}]}], weft.UsageError),
        (good[:1], weft.UsageError),
        (tmp_path, weft.UsageError),
        (tmp_path / "none.json", weft.MissingError),
        (3, TypeError),
    ):
        with pytest.raises(kind):
            weft_torch.costs_from_kineto(wrong, table)
    with pytest.raises(TypeError):
        weft_torch.costs_from_kineto(good, "table")
    with pytest.raises(weft.UsageError):
        weft_torch.costs_from_kineto(good, table, unit="h")
    with pytest.raises(weft.UsageError):
        weft_torch.timeline_from_kineto(good, table, step=STEPS)
