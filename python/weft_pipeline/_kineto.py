"""Costs from Kineto traces: what the profiler of PyTorch saw of a pipeline.

PyTorch runs every action inside a range named PP:2F0. The range is of the host. What the action
cost is the span of the kernels that were launched inside it, on any thread (backwards launch from
autograd's), without those of NCCL: the time of a SendRecv kernel contains the waiting. In a trace
without kernels it is the span of the operators inside the range, behind the wait for its input.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple, Optional, Union

from ._costs import Costs
from ._errors import FormatError, UsageError
from ._library import Path, integer, path_name, read_file, string
from ._program import Program, Table
from ._simulation import Simulation, measured

Trace = Union[Path, bytes, Mapping[str, Any]]
_OPS = ("F", "I", "W", "B")
_COMPUTE = (*_OPS, "OVERLAP_F_B")
_RANGE = re.compile(r"PP:(\d+)([FIWB])(\d+)$")
_OVERLAP = re.compile(r"PP:\((\d+)F(\d+);(\d+)B(\d+)\)OVERLAP_F_B$")
_PER_UNIT = {"us": 1.0, "ms": 1e3, "s": 1e6}  # a trace has microseconds


class _Span(NamedTuple):
    begin: float
    end: float


class _Range(NamedTuple):
    begin: float
    end: float
    name: str


def _read(trace: Trace, number: int) -> list[Mapping[str, Any]]:
    """The events of a trace: a path, the file's bytes, or its JSON."""
    name = f"trace {number}"
    document: Any = trace
    if isinstance(trace, (str, os.PathLike)):
        name = path_name(trace)
        document = read_file(trace)
    if isinstance(document, (bytes, bytearray)):
        try:
            if document[:2] == b"\x1f\x8b":
                document = gzip.decompress(document)
            document = json.loads(document)
        except (ValueError, OSError, EOFError, RecursionError) as error:
            raise FormatError(f"{name} is no Chrome trace: {error}") from error
    if isinstance(document, Mapping):
        document = document.get("traceEvents")
    if not isinstance(document, list):
        raise FormatError(
            f"{name} is no Chrome trace: it has no list traceEvents",
            "give what torch.profiler's export_chrome_trace() writes",
        )
    return [event for event in document if _is_span(event)]


def _is_span(event: object) -> bool:
    return (
        isinstance(event, Mapping)
        and event.get("ph") == "X"
        and isinstance(event.get("name"), str)
        and isinstance(event.get("ts"), (int, float))
        and isinstance(event.get("dur"), (int, float))
    )


def _correlation(event: Mapping[str, Any]) -> Optional[int]:
    arguments = event.get("args")
    number = arguments.get("correlation") if isinstance(arguments, Mapping) else None
    return number if isinstance(number, int) else None


def _is_communication(name: str) -> bool:
    return bool(re.match(r"(?i)c10d|gloo:|nccl|record_param_comms|mpi:", name))


def _spans(events: list[Mapping[str, Any]]) -> list[tuple[str, _Span]]:
    """Every range of a trace with the span of its work, in the order of time."""
    ranges = sorted(
        _Range(event["ts"], event["ts"] + event["dur"], event["name"])
        for event in events
        if event.get("cat") == "user_annotation" and event["name"].startswith("PP:")
    )
    begins = [entry.begin for entry in ranges]

    def range_at(time: float) -> Optional[int]:
        k = bisect_right(begins, time) - 1
        return k if k >= 0 and time <= ranges[k].end else None

    kernels = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy")]
    launched: dict[int, int] = {}  # correlation: range
    for event in events:
        if kernels and event.get("cat") in ("cuda_runtime", "cuda_driver"):
            number, k = _correlation(event), range_at(event["ts"])
            if number is not None and k is not None:
                launched[number] = k
    found: dict[int, _Span] = {}
    for event in kernels or [event for event in events if event.get("cat") == "cpu_op"]:
        if _is_communication(event["name"]):
            continue
        where = launched.get(_correlation(event) or -1) if kernels else range_at(event["ts"])
        if where is not None:
            end = event["ts"] + event["dur"]
            old = found.get(where, _Span(event["ts"], end))
            found[where] = _Span(min(old.begin, event["ts"]), max(old.end, end))
    return [(ranges[k].name, found[k]) for k in sorted(found)]


Samples = dict[tuple[int, str], list[float]]  # (stage, op): durations


class _Actions(NamedTuple):
    """When each action ran, by (stage, op, microbatch): a span for every step."""

    spans: dict[tuple[int, str, int], list[_Span]]
    samples: Samples


Ranges = list[tuple[str, _Span]]  # what one process did


def ranges_of(trace: Trace, number: int = 0) -> Ranges:
    """Read the actions of a trace, with the spans of their work."""
    return _spans(_read(trace, number))


def collect(processes: Iterable[Ranges]) -> _Actions:
    """Put the actions of all processes together."""
    result = _Actions({}, {})
    for process in processes:
        here: dict[tuple[int, str, int], list[_Span]] = {}
        for name, span in process:
            duration = span.end - span.begin
            plain, overlap = _RANGE.match(name), _OVERLAP.match(name)
            if plain:
                stage, op, microbatch = int(plain[1]), plain[2], int(plain[3])
                here.setdefault((stage, op, microbatch), []).append(span)
                result.samples.setdefault((stage, op), []).append(duration)
            elif overlap:
                result.samples.setdefault((int(overlap[1]), "overlap"), []).append(duration)
                forward, k, backward, n = map(int, overlap.groups())
                here.setdefault((forward, "F", k), []).append(span)
                here.setdefault((backward, "B", n), []).append(span)
        for key, spans in here.items():
            result.spans.setdefault(key, spans)  # the first replica's
    return result


def _gap(actions: _Actions, producer: tuple[int, str], consumer: tuple[int, str]) -> float:
    """The smallest time from the end of what makes a message to the start of what takes it."""
    smallest = float("inf")
    for (stage, op, microbatch), made in actions.spans.items():
        if (stage, op) == producer:
            taken = actions.spans.get((*consumer, microbatch), [])
            for before, after in zip(made, taken):
                smallest = min(smallest, after.begin - before.end)
    return smallest


def _hop(actions: _Actions, program: Program) -> float:
    """The time of a transfer: of the boundary that shows the least.

    The gap of activations and that of gradients over a boundary have the difference of the two
    clocks with opposite signs, so their mean has none of it.
    """
    owners = program.rank_of_stage
    hops = []
    for stage in range(program.stages - 1):
        if owners[stage] == owners[stage + 1]:
            continue
        there = _gap(actions, (stage, "F"), (stage + 1, "F"))
        back = min(_gap(actions, (stage + 1, op), (stage, other)) for op in "BI" for other in "BI")
        if max(there, back) < float("inf"):
            hops.append(max((there + back) / 2, 0.0))
        elif there < float("inf"):
            hops.append(max(there, 0.0))
    return min(hops, default=0.0)


def costs_from_kineto(
    traces: Union[Trace, Iterable[Trace]],
    program: Program,
    *,
    unit: str = "ms",
    activation: Optional[float] = None,
) -> Costs:
    """Read F, I, W, B and the time of a transfer off Kineto traces of a run of `program`.

    `traces` is a folder with the traces of all ranks (.json or .json.gz), or the traces: paths,
    bytes, or parsed JSON. A time is the median over microbatches and steps of the device's span.
    Where a program has only B, I and W are half of it each; where it has only I and W, B is their
    sum. Memory is not in the traces: `activation` is that of a stage and a microbatch.
    """
    if not isinstance(program, Program):
        raise TypeError(f"program must be a Program or Table, not {type(program).__name__}")
    string(unit, "unit")
    if unit not in _PER_UNIT:
        raise UsageError(f"unit is {unit!r}; expected 'us', 'ms' or 's'")
    return costs_of(_collect(_list(traces)), program, unit, [activation] * program.stages)


def _collect(traces: list[Trace]) -> _Actions:
    return collect(ranges_of(trace, number) for number, trace in enumerate(traces))


def costs_of(
    actions: _Actions, program: Program, unit: str, activations: Sequence[Optional[float]]
) -> Costs:
    """Make costs of what the processes of a run did."""
    samples = actions.samples
    if not samples:
        raise UsageError(
            "the traces have no range of an action (PP:0F0)",
            "profile a schedule of torch.distributed.pipelining with several stages on a rank, or "
            "what weft_pipeline.torch.runtime() makes; GPipe and 1F1B write no such ranges",
        )
    scale = _PER_UNIT[unit]

    def time(stage: int, op: str) -> Optional[float]:
        durations = samples.get((stage, op))
        return round(median(durations) / scale, 9) if durations else None

    stages = []
    for stage in range(program.stages):
        entry = {op.lower(): time(stage, op) for op in _OPS}
        if entry["f"] is None:
            raise UsageError(
                f"the traces have no F of stage {stage}", "give the traces of all ranks"
            )
        whole = entry["b"]
        if whole is not None and entry["i"] is None and entry["w"] is None:
            entry["i"] = entry["w"] = whole / 2
        entry["overlap_f_b"] = time(stage, "overlap")
        entry["activation"] = activations[stage]
        stages.append({key: value for key, value in entry.items() if value is not None})
    document = {
        "schema": "weft-costs/1",
        "unit": unit,
        "stages": stages,
        "hop": {"latency": round(_hop(actions, program) / scale, 9)},
    }
    return Costs.from_dict(document)


def timeline_from_kineto(
    traces: Union[Trace, Iterable[Trace]],
    program: Program,
    costs: Optional[Costs] = None,
    *,
    step: int = -1,
) -> Simulation:
    """Make the measured timeline of a step of a run, with idle time by cause.

    It has the compute actions of `program` at the times of the traces, so it can be drawn and
    compared with a prediction: timeline.makespan and program.simulate(costs).makespan. `step`
    counts the steps in the traces; -1 is the last. `costs` are those of costs_from_kineto().
    """
    listed = _list(traces)
    if costs is None:
        costs = costs_from_kineto(listed, program)
    if not isinstance(costs, Costs):
        raise TypeError(f"costs must be Costs, not {type(costs).__name__}")
    if not isinstance(program, Program):
        raise TypeError(f"program must be a Program or Table, not {type(program).__name__}")
    if costs.unit not in _PER_UNIT:
        raise UsageError(f"the costs are in {costs.unit!r}; expected 'us', 'ms' or 's'")
    integer(step, "step", -(2**31), 2**31)
    actions = _collect(listed)
    compute = Table.from_rows(
        [action for action in row if action is not None and action.op in _COMPUTE]
        for row in program
    )
    times = []
    for event in compute.simulate(costs):
        action = event.action
        assert action is not None
        first = action.parts[0] if action.parts else action
        spans = actions.spans.get((first.stage or 0, first.op, first.microbatch or 0), [])
        try:
            span = spans[step]
        except IndexError:
            raise UsageError(
                f"the traces have no {action} of step {step}", "give the traces of all ranks"
            ) from None
        times.append((round(1000 * span.begin), round(1000 * span.end)))
    return measured(compute, costs, times, 1000 * _PER_UNIT[costs.unit])


def _list(traces: Union[Trace, Iterable[Trace]]) -> list[Trace]:
    if isinstance(traces, (str, os.PathLike)):
        folder = path_name(traces)
        if not os.path.isdir(folder):
            return [traces]
        names = sorted(name for name in os.listdir(folder) if name.endswith((".json", ".json.gz")))
        if not names:
            raise UsageError(f"{folder} has no .json or .json.gz", "give the folder of the traces")
        return [os.path.join(folder, name) for name in names]
    if isinstance(traces, (bytes, bytearray, Mapping)):
        return [traces]
    if not hasattr(traces, "__iter__"):
        raise TypeError(f"traces must be a folder or traces, not {type(traces).__name__}")
    return list(traces)
