"""Costs and timelines from Kineto traces. The traces are made here, so the truth is known.

Those in host_limited/ are of a step of PyTorch 2.11 on a GPU that four ranks share, without the
events that nobody reads.
"""

import gzip
import json
import pickle
import random
import re
import sqlite3
import warnings
from pathlib import Path

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
            if end > begin:  # PyTorch's I of stage 0 launches nothing
                add("cuda_runtime", "cudaLaunchKernel", host, host, correlation=number)
            middle = (begin + end) / 2
            for first, until in ((begin, middle), (middle, end)) if end > begin else ():
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
    assert [stage["i"] for stage in found["stages"]] == pytest.approx([0, 2])  # PyTorch's
    assert [stage["w"] for stage in found["stages"]] == pytest.approx([5, 2])
    assert found["hop"]["latency"] == pytest.approx(0.5)


def test_split_backwards():
    table = weft.Table.named("ZBVZeroBubble", ranks=2, microbatches=4)
    costs = weft.Costs(f=[1, 2, 3, 4], i=[2, 1, 2, 3], w=[1, 3, 1, 2], hop=0.25)
    found = weft_torch.costs_from_kineto(traces_of(table, costs), table, unit="us").to_dict()
    assert [stage["f"] for stage in found["stages"]] == pytest.approx([1e3, 2e3, 3e3, 4e3])
    assert [stage["i"] for stage in found["stages"]] == pytest.approx([2e3, 1e3, 2e3, 3e3])
    assert [stage["w"] for stage in found["stages"]] == pytest.approx([1e3, 3e3, 1e3, 2e3])


@pytest.mark.parametrize("device", [True, False])
@pytest.mark.parametrize("unit", ["us", "ms", "s"])
def test_action_without_work(device, unit):
    table = weft.Table.named("ZBVZeroBubble", ranks=2, microbatches=4)
    costs = weft.Costs(f=[1, 2, 3, 4], i=[0, 1, 2, 3], w=[1, 3, 1, 2], hop=0.25)
    traces = traces_of(table, costs, device)
    found = weft_torch.costs_from_kineto(traces, table, unit=unit)
    stages, per_ms = found.to_dict()["stages"], {"us": 1e3, "ms": 1, "s": 1e-3}[unit]
    assert stages[0]["i"] == 0
    for op, expected in (("i", [0, 1, 2, 3]), ("w", [1, 3, 1, 2]), ("b", [1, 4, 3, 5])):
        assert [stage[op] / per_ms for stage in stages] == pytest.approx(expected)
    assert found.to_dict()["hop"]["latency"] / per_ms == pytest.approx(0.25)
    makespan = table.simulate(found).makespan
    assert makespan / per_ms == pytest.approx(table.simulate(costs).makespan)
    one_clock = [
        trace_of(table.lower(unshard=False, reduce_grad=False).simulate(costs), rank, 0, device)
        for rank in range(2)
    ]
    timeline = weft_torch.timeline_from_kineto(one_clock, table, found)
    assert timeline.makespan == pytest.approx(makespan)
    assert sum(rank.busy for rank in timeline.ranks) / per_ms == pytest.approx(4 * 23)


def test_action_that_is_not_there():
    table = weft.Table.named("ZBH1", ranks=2, microbatches=4)
    traces = traces_of(table, weft.Costs())

    def without(text, cat):
        return [
            {
                "traceEvents": [
                    event
                    for event in trace["traceEvents"]
                    if event.get("cat") != cat or text not in event["name"]
                ]
            }
            for trace in traces
        ]

    with pytest.raises(weft.UsageError, match="no W of stage 1"):
        weft_torch.costs_from_kineto(without(":1W", "user_annotation"), table)
    with pytest.raises(weft.UsageError, match="no F of stage 1"):
        weft_torch.costs_from_kineto(traces[:1], table)
    with pytest.raises(weft.UsageError, match="no 1F0"):
        weft_torch.timeline_from_kineto(traces[:1], table, weft.Costs(unit="ms"))
    with pytest.raises(weft.UsageError, match="stage 1, but the program has 1"):
        weft_torch.costs_from_kineto(traces, weft.Table.named("1F1B", ranks=1, microbatches=4))
    # The whole backward gives its halves, and the other half is what is left of it.
    whole = weft.Table.named("1F1B", ranks=2, microbatches=4)
    found = weft_torch.costs_from_kineto(traces_of(whole, weft.Costs(b=4)), table).to_dict()
    assert [(stage["i"], stage["w"]) for stage in found["stages"]] == [(0, 4), (2, 2)]
    # Forward only: what the program does not have takes no time.
    forward = weft.Table.from_rows([["0F0", "0F1"], ["1F0", "1F1"]])
    found = weft_torch.costs_from_kineto(traces_of(forward, weft.Costs()), forward).to_dict()
    assert [stage["b"] for stage in found["stages"]] == [0, 0]


def test_lost_kernels():
    table = weft.Table.named("1F1B", ranks=1, microbatches=2)
    (trace,) = traces_of(table, weft.Costs())
    kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    first = kernels[0]["args"]["correlation"]  # 0F0 of the first step
    trace["traceEvents"] = [
        event
        for event in trace["traceEvents"]
        if event.get("cat") != "kernel" or event["args"]["correlation"] != first
    ]
    found = weft_torch.costs_from_kineto(trace, table).to_dict()
    assert found["stages"][0]["f"] == 1
    assert weft_torch.timeline_from_kineto(trace, table, step=1).makespan == pytest.approx(6)
    with pytest.raises(weft.UsageError, match="launches of 0F0, but not their kernels"):
        weft_torch.timeline_from_kineto(trace, table, step=0)
    forwards = {
        event["args"]["correlation"]
        for event in trace["traceEvents"]
        if event.get("cat") == "kernel" and event["dur"] < 600
    }
    trace["traceEvents"] = [
        event
        for event in trace["traceEvents"]
        if event.get("cat") != "kernel" or event["args"]["correlation"] not in forwards
    ]
    with pytest.raises(weft.UsageError, match="launches of F of stage 0, but not their kernels"):
        weft_torch.costs_from_kineto(trace, table)


def test_host_limited():
    folder = Path(__file__).parent / "host_limited"
    program = weft.Table.named(
        "Interleaved1F1B", ranks=4, stages_per_rank=2, microbatches=8
    ).lower()
    with pytest.warns(weft.HostLimitWarning, match="a step|these steps") as warned:
        costs = weft_torch.costs_from_kineto(folder, program)
    assert warned[0].filename == __file__
    step = costs.measured
    assert step.host_limited and step.time == pytest.approx(39.8, abs=0.1)
    assert 0.5 * step.time < step.starved < step.time
    assert program.simulate(costs).makespan < step.time / 3
    assert pickle.loads(pickle.dumps(costs)).measured == step
    assert weft.Costs.from_dict(costs.to_dict()).measured is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        timeline = weft_torch.timeline_from_kineto(folder, program)
        by_host = weft_torch.costs_from_kineto(folder, program, times="host")
    assert timeline.makespan == pytest.approx(step.time, rel=0.02)
    assert by_host.measured == step
    assert program.simulate(by_host).makespan == pytest.approx(step.time, rel=0.1)


@pytest.mark.parametrize("device", [True, False])
def test_not_host_limited(device):
    table = weft.Table.named("Interleaved1F1B", ranks=2, stages_per_rank=2, microbatches=4)
    traces = traces_of(table, weft.Costs(f=[2, 3, 2, 1], b=4, hop=0.5), device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        costs = weft_torch.costs_from_kineto(traces, table)
    assert not costs.measured.host_limited
    assert costs.measured.time == pytest.approx(table.lower().simulate(costs).span)
    if not device:
        assert weft_torch.costs_from_kineto(traces, table, times="host") == costs


def of_megatron(trace, rank=None):
    """The same as Megatron-LM's: functions of Python without numbers, and none for transfers."""
    where = "megatron/core/pipeline_parallel/schedules.py"
    events = []
    for event in trace["traceEvents"]:
        if event.get("cat") == "user_annotation":
            if not re.match(r"PP:\d+[FB]\d", event["name"]):
                continue
            kind = "forward_step" if "F" in event["name"] else "backward_step"
            events.append({**event, "cat": "python_function", "name": f"{where}(403): {kind}"})
            if kind == "forward_step":  # it calls the model's function of the same name
                events.append({**event, "cat": "python_function", "name": f"gpt.py(7): {kind}"})
        else:
            events.append(event)
    info = {} if rank is None else {"distributedInfo": {"backend": "nccl", "rank": rank}}
    return {"traceEvents": events, **info}


def in_nsight(traces, path):
    """An export of Nsight Systems with these traces, each a process."""
    path.unlink(missing_ok=True)
    base = sqlite3.connect(path)
    base.executescript(
        """
        CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
        CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT);
        INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1790000000123456789, '2026');
        CREATE TABLE NVTX_EVENTS (start INT NOT NULL, end INT, eventType INT NOT NULL, text TEXT,
            globalTid INT, textId INT);
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT NOT NULL, end INT NOT NULL,
            globalTid INT, correlationId INT, nameId INT NOT NULL);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT NOT NULL, end INT NOT NULL,
            globalPid INT, correlationId INT, shortName INT NOT NULL);
        """
    )
    texts = {}
    for process, trace in enumerate(traces):
        for event in trace["traceEvents"]:
            if event.get("ph") != "X" or event["cat"] == "cpu_op":
                continue
            begin, end = (round(1000 * t) for t in (event["ts"], event["ts"] + event["dur"]))
            number = texts.setdefault(event["name"], len(texts))
            pid = (3 << 48) + ((4000 + process) << 24)
            correlation = event["args"].get("correlation")
            if event["cat"] == "user_annotation":
                kind = "emit_nvtx() adds", f"{event['name']}, op_id = {number}"
                row = (begin, end, 59, None, pid + 17, number)
                if number % 2:
                    row = (begin, end, 59, kind[1], pid + 17, None)
                base.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?)", row)
            else:
                table = "KERNEL" if event["cat"] == "kernel" else "RUNTIME"
                row = (begin, end, pid + (18 if table == "RUNTIME" else 0), correlation, number)
                base.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_{table} VALUES (?, ?, ?, ?, ?)", row)
    row = (5, None, 59, "PP:0F0", (3 << 48) + 5, None)  # one that has not ended
    base.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?)", row)
    base.executemany("INSERT INTO StringIds VALUES (?, ?)", ((k, t) for t, k in texts.items()))
    base.commit()
    base.close()
    return path


WHOLE = weft.Table.named("Interleaved1F1B", ranks=2, stages_per_rank=2, microbatches=4)
UNEVEN = weft.Costs(f=[2, 3, 1, 4], b=[5, 4, 6, 3], hop=0.5)


def test_ranges_of_megatron():
    traces = traces_of(WHOLE, UNEVEN)
    wanted = weft_torch.costs_from_kineto(traces, WHOLE)
    for order in ((0, 1), (1, 0)):  # ranks of the job, say 2 and 6, are in ascending order
        found = [of_megatron(traces[rank], 4 * rank + 2) for rank in order]
        assert weft_torch.costs_from_kineto(found, WHOLE) == wanted
    in_order = [of_megatron(trace) for trace in traces]
    assert weft_torch.costs_from_kineto(in_order, WHOLE) == wanted
    timeline = weft_torch.timeline_from_kineto(in_order, WHOLE, step=0)
    assert timeline.ranks[0].busy == pytest.approx(4 * (2 + 1 + 5 + 6))
    for wrong, words in (
        (in_order[:1], "1 processes have such ranges, in 1 traces, and the program has 2 ranks"),
        ([in_order[0], traces[1]], "no numbers"),
        ([in_order[0], of_megatron({"traceEvents": traces[1]["traceEvents"][:150]})], "in a step"),
    ):
        with pytest.raises(weft.UsageError, match=words) as caught:
            weft_torch.costs_from_kineto(wrong, WHOLE)
        assert caught.value.hint
    other = weft.Table.named("Interleaved1F1B", ranks=2, stages_per_rank=2, microbatches=6)
    with pytest.raises(
        weft.UsageError, match="8 ranges of B before step 1; rank 0 of the program has 12"
    ):
        weft_torch.costs_from_kineto(in_order, other)
    split = weft.Table.named("InterleavedZeroBubble", ranks=2, stages_per_rank=2, microbatches=4)
    with pytest.raises(weft.UsageError, match="ranges of B"):
        weft_torch.costs_from_kineto(in_order, split)


def test_ranges_of_ones_own():
    traces = traces_of(WHOLE, UNEVEN)
    wanted = weft_torch.costs_from_kineto(traces, WHOLE)

    def renamed(change):
        return [
            {"traceEvents": [{**e, "name": change(e["name"])} for e in trace["traceEvents"]]}
            for trace in traces
        ]

    mine = renamed(lambda name: re.sub(r"^PP:(\d+)([FB])(\d+)$", r"stage \1 \2 of \3", name))
    with pytest.raises(weft.UsageError, match="no range of an action") as caught:
        weft_torch.costs_from_kineto(mine, WHOLE)
    assert "ranges=" in caught.value.hint

    def action(name):
        found = re.match(r"stage (\d+) ([FB]) of (\d+)$", name)
        return found and "".join(found.groups())

    assert weft_torch.costs_from_kineto(mine, WHOLE, ranges=action) == wanted
    ops = renamed(lambda name: re.sub(r"^PP:\d+([FB])\d+$", r"\1", name))
    names = {"F": "F", "B": "B"}
    assert weft_torch.costs_from_kineto(ops, WHOLE, ranges=names.get) == wanted
    assert weft_torch.timeline_from_kineto(ops, WHOLE, ranges=names.get).makespan > 0
    for wrong in ("forward", "2X0", 3, ""):
        with pytest.raises(weft.UsageError, match="ranges gives"):
            weft_torch.costs_from_kineto(ops, WHOLE, ranges=lambda _, wrong=wrong: wrong)
    with pytest.raises(TypeError):
        weft_torch.costs_from_kineto(ops, WHOLE, ranges=names)
    with pytest.raises(ZeroDivisionError):
        weft_torch.costs_from_kineto(ops, WHOLE, ranges=lambda _: 1 / 0)


def test_nsight(tmp_path):
    traces = traces_of(WHOLE, UNEVEN)
    wanted = weft_torch.costs_from_kineto(traces, WHOLE)
    together = in_nsight(traces, tmp_path / "job.sqlite")  # nsys profile torchrun ...
    apart = [
        in_nsight([trace], tmp_path / f"rank{rank}.sqlite") for rank, trace in enumerate(traces)
    ]
    for given in (together, apart):
        found = weft_torch.costs_from_kineto(given, WHOLE)
        assert found == wanted and found.measured == wanted.measured
    together.unlink()
    assert weft_torch.costs_from_kineto(tmp_path, WHOLE) == wanted
    same_clock = [trace_of(WHOLE.lower().simulate(UNEVEN), rank, 0, True) for rank in range(2)]
    job = in_nsight(same_clock, tmp_path / "job.sqlite")
    timeline = weft_torch.timeline_from_kineto(job, WHOLE)
    assert timeline.makespan == pytest.approx(WHOLE.simulate(UNEVEN).makespan, abs=1e-3)

    def steps(trace):  # a function of Megatron's that nvtx_decorator() makes a range
        return {
            "traceEvents": [
                {**e, "cat": "user_annotation", "name": e["name"].replace("(403): ", ".")}
                if e.get("cat") == "python_function"
                else e
                for e in of_megatron(trace)["traceEvents"]
            ]
        }

    apart = [
        in_nsight([steps(trace)], tmp_path / f"rank{rank}.sqlite")
        for rank, trace in enumerate(traces)
    ]
    assert weft_torch.costs_from_kineto(apart, WHOLE) == wanted
    with pytest.raises(weft.UsageError, match="2 processes have such ranges, in 1 traces"):
        weft_torch.costs_from_kineto(in_nsight(map(steps, traces), together), WHOLE)


def test_damaged_nsight(tmp_path):
    path = tmp_path / "one.sqlite"
    table = weft.Table.named("1F1B", ranks=1, microbatches=1)
    in_nsight(traces_of(table, weft.Costs()), path)
    plain = path.read_bytes()
    for statement, words in (
        ("DROP TABLE NVTX_EVENTS", "no table NVTX_EVENTS"),
        ("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL", "no kernels"),
        ("ALTER TABLE NVTX_EVENTS RENAME COLUMN globalTid TO thread", "can be read"),
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon'", "lasts from 'soon'"),
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 1", "lasts from"),
    ):
        path.write_bytes(plain)
        base = sqlite3.connect(path)
        base.execute(statement)
        base.commit()
        base.close()
        with pytest.raises(weft.FormatError, match=words) as caught:
            weft_torch.costs_from_kineto(path, table)
        assert caught.value.hint
    chance = random.Random(37)
    refused = 0
    for _ in range(300):
        data = bytearray(plain)
        for _ in range(chance.randint(1, 40)):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        try:
            weft_torch.costs_from_kineto(path, table)
        except weft.Error:
            refused += 1
    assert 0 < refused < 300


def test_ranks_that_are_threads():
    """Pipeline's ranks, as profile_all_threads shows them: the threads of one process."""
    traces = [
        trace_of(WHOLE.lower(unshard=False, reduce_grad=False).simulate(UNEVEN), rank, 0, False)
        for rank in range(2)
    ]
    wanted = weft_torch.costs_from_kineto(traces, WHOLE)
    events = [
        {**event, "tid": 100 + rank}
        for rank, trace in enumerate(traces)
        for event in trace["traceEvents"]
    ]
    assert weft_torch.costs_from_kineto({"traceEvents": events}, WHOLE) == wanted


def test_order_of_files(tmp_path):
    many = weft.Table.named("1F1B", ranks=11, microbatches=11)
    costs = weft.Costs(f=range(1, 12), b=3)
    for rank, trace in enumerate(traces_of(many, costs)):
        (tmp_path / f"rank-{rank}.json").write_text(json.dumps(of_megatron(trace)))
    found = weft_torch.costs_from_kineto(tmp_path, many).to_dict()["stages"]
    assert [stage["f"] for stage in found] == pytest.approx(list(range(1, 12)))


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
        ([b"9" * 5000], weft.FormatError),
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
    with pytest.raises(weft.UsageError):
        weft_torch.costs_from_kineto(good, table, times="wall")
    with pytest.raises(weft.UsageError, match="days apart"):
        weft_torch.timeline_from_kineto(
            [good[0], trace_of(table.simulate(), 1, 4e15, True)], table, weft.Costs(unit="ms")
        )


def test_damaged_event(tmp_path):
    table = weft.Table.named("1F1B", ranks=1, microbatches=2)
    for field, value in (
        ("ts", float("inf")),
        ("ts", float("nan")),
        ("ts", 10**400),
        ("ts", -(10**5000)),
        ("ts", "7"),
        ("dur", 10**400),
        ("dur", -1),
        ("dur", None),
        ("name", 3),
    ):
        (trace,) = traces_of(table, weft.Costs())
        trace["traceEvents"][3][field] = value
        for read in (weft_torch.costs_from_kineto, weft_torch.timeline_from_kineto):
            place = rf"^trace 0: traceEvents\[3\]: {field}"
            with pytest.raises(weft.FormatError, match=place) as e:
                read(trace, table)
            assert "damaged" in e.value.hint and len(str(e.value)) < 300
        if value != -(10**5000):  # Python prints no such number
            (tmp_path / "one.json").write_text(json.dumps(trace))
            with pytest.raises(weft.FormatError, match=r"one\.json: traceEvents"):
                weft_torch.costs_from_kineto(tmp_path, table)


def test_names_of_other_things():
    table = weft.Table.named("1F1B", ranks=1, microbatches=2)
    (trace,) = traces_of(table, weft.Costs())
    trace["traceEvents"].append(
        {"ph": "X", "cat": "user_annotation", "name": f"PP:{'9' * 5000}F0", "ts": 0, "dur": 1}
    )
    assert weft_torch.costs_from_kineto(trace, table).to_dict()["stages"][0]["f"] == 1


def test_limit_of_gzip(monkeypatch, tmp_path):
    table = weft.Table.named("1F1B", ranks=1, microbatches=2)
    monkeypatch.setattr("weft_pipeline._trace.BYTES_MAX", 10**6)
    (tmp_path / "large.json.gz").write_bytes(gzip.compress(b" " * (10**6 + 1)))
    with pytest.raises(weft.LimitError, match=r"large\.json\.gz has more than 1000000 bytes"):
        weft_torch.costs_from_kineto(tmp_path, table)


def test_mutants():
    """Flipped bits, cut and doubled pieces: costs, or an error of Weft's."""
    table = weft.Table.named("1F1B", ranks=1, microbatches=1)
    (trace,) = traces_of(table, weft.Costs())
    plain = json.dumps(trace).encode()
    chance = random.Random(31)
    refused = 0
    for number in range(1200):
        data = bytearray(gzip.compress(plain, 1, mtime=0) if number % 3 else plain)
        for _ in range(chance.randint(1, 3)):
            at, kind = chance.randrange(len(data)), chance.randrange(4)
            if kind < 2:
                data[at] ^= 1 << chance.randrange(8)
            elif kind == 2:
                data[at:at] = data[at : at + chance.randint(1, 400)]
            else:
                del data[at : at + chance.randint(1, 40)]
        for read in (weft_torch.costs_from_kineto, weft_torch.timeline_from_kineto):
            try:
                read(bytes(data), table)
            except weft.Error:
                refused += 1
    assert 0 < refused < 2400
