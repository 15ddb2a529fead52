"""Costs and timelines from traces: what the profiler of PyTorch, or another, saw of a pipeline.

_trace.py reads the actions of a process. Here those of all processes become costs, a median for
each stage and op, or the timeline of a step; and it is noticed when the host, not the work, decides
how long a step takes.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple, Optional, Union

from ._costs import Costs, CostsLike, MeasuredStep, costs_given
from ._errors import HostLimitWarning, UsageError
from ._library import choice, integer, path_name
from ._program import Action, Program, Table
from ._simulation import Simulation, measured
from ._trace import Process, Ran, Ranges, Span, Trace, processes_of

_OPS = ("F", "I", "W", "B")
_COMPUTE = (*_OPS, "OVERLAP_F_B")
_RANGE = re.compile(r"PP:(\d+)([FIWB])(\d+)$")
_OVERLAP = re.compile(r"PP:\((\d+)F(\d+);(\d+)B(\d+)\)OVERLAP_F_B$")
_PER_UNIT = {"us": 1.0, "ms": 1e3, "s": 1e6}  # a trace has microseconds
_TIMES = ("device", "host")
_SUFFIXES = (".json", ".json.gz", ".sqlite")
_NUMBER = re.compile(r"([0-9]+)")
_CLOCKS_MAX = 1e15  # microseconds; a timeline counts nanoseconds in 62 bits
# The host limits a step that takes so many times what is simulated, if a device that has nothing
# to do for want of launches explains at least half of the difference.
_FAR = 1.25


class _Times(NamedTuple):
    """Durations of an action, in microseconds."""

    device: float
    host: float


class _Step(NamedTuple):
    """A step of a process, in microseconds."""

    span: float
    starved: float


Place = tuple[int, str, int]  # stage, op, microbatch


class _Actions(NamedTuple):
    """What all processes did: spans by (stage, op, microbatch), None where a trace lost them."""

    spans: dict[Place, list[Optional[Span]]]  # for every step
    samples: dict[tuple[int, str], list[_Times]]  # by stage and op
    steps: dict[int, list[_Step]]  # of every process


def _places(name: str) -> tuple[tuple[int, str], list[Place]]:
    """What a range counts as, and the actions in it."""
    plain = _RANGE.match(name)
    if plain:
        stage, op = int(plain[1]), plain[2]
        return (stage, op), [(stage, op, int(plain[3]))]
    overlap = _OVERLAP.match(name)
    assert overlap
    forward, k, backward, n = map(int, overlap.groups())
    return (forward, "overlap"), [(forward, "F", k), (backward, "B", n)]


def collect(processes: Iterable[Sequence[Ran]]) -> _Actions:
    """Put the actions of all processes together."""
    result = _Actions({}, {}, {})
    for process in processes:
        here: dict[Place, list[Optional[Span]]] = {}
        steps: dict[int, tuple[Span, float]] = {}
        for name, step, work, host, starved in process:
            kind, places = _places(name)
            samples = result.samples.setdefault(kind, [])
            for place in places:
                here.setdefault(place, []).append(work)
            if work is not None:
                duration = work.end - work.begin
                samples.append(_Times(duration, max(duration, host)))
                whole, waited = steps.get(step, (work, 0.0))
                whole = Span(min(whole.begin, work.begin), max(whole.end, work.end))
                steps[step] = whole, waited + starved
        for key, spans in here.items():
            result.spans.setdefault(key, spans)  # the first replica's
        for step, (whole, waited) in steps.items():
            result.steps.setdefault(step, []).append(_Step(whole.end - whole.begin, waited))
    return result


def _gap(actions: _Actions, producer: tuple[int, str], consumer: tuple[int, str]) -> float:
    """The smallest time from the end of what makes a message to the start of what takes it."""
    smallest = float("inf")
    for (stage, op, microbatch), made in actions.spans.items():
        if (stage, op) == producer:
            taken = actions.spans.get((*consumer, microbatch), [])
            for before, after in zip(made, taken):
                if before and after and before.end > before.begin and after.end > after.begin:
                    smallest = min(smallest, after.begin - before.end)
    return smallest


def _hop(actions: _Actions, program: Program) -> float:
    """The time of a transfer: of the boundary that shows the least.

    The gap of activations and that of gradients over a boundary have the difference of the two
    clocks with opposite signs, so their mean has none of it. Where I does nothing, W is the first
    to use the gradient.
    """
    owners = program.rank_of_stage
    hops = []
    for stage in range(program.stages - 1):
        if owners[stage] == owners[stage + 1]:
            continue
        there = _gap(actions, (stage, "F"), (stage + 1, "F"))
        back = min(_gap(actions, (stage + 1, op), (stage, other)) for op in "BI" for other in "BIW")
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
    times: str = "device",
    ranges: Optional[Ranges] = None,
) -> Costs:
    """Read F, I, W, B and the time of a transfer off Kineto traces of a run of `program`.

    `traces` is a folder with the traces of all ranks (.json, .json.gz, or .sqlite of Nsight
    Systems), or the traces: paths, bytes, or parsed JSON. A time is the median over microbatches
    and steps of the device's span; an action that launched nothing takes 0. Where a stage has only
    B, I and W are half of it each, but on stage 0, where PyTorch's I does nothing, W is all of it;
    where it has only I and W, B is their sum. An action of `program` that the traces do not have is
    an error.

    `measured` of the costs says how long a step took, and whether the host limits it: then there
    is a HostLimitWarning too. With times="host" an action takes what its host takes to launch it
    and to post its communication, where that is longer than its kernels.

    Ranges are PyTorch's (PP:2F0) or Megatron-LM's (forward_step and backward_step, also as
    functions of Python in a trace with stacks). `ranges` says what others are: it takes a name and
    gives "2F0", say, or the op alone, or None. Where only the op is known, the k-th of a rank is
    the k-th in its row of `program`: give one trace for each rank of one pipeline, in order.

    Memory is not in the traces: `activation` is that of a stage and a microbatch.
    """
    if not isinstance(program, Program):
        raise TypeError(f"program must be a Program or Table, not {type(program).__name__}")
    choice(unit, "unit", tuple(_PER_UNIT))
    by_host = choice(times, "times", _TIMES) == 1
    actions = _collect(_list(traces), program, ranges)
    costs = costs_of(actions, program, unit, [activation] * program.stages)
    if by_host:
        slower = _costs(actions, program, unit, [activation] * program.stages, "host")
        return slower.with_measured(costs.measured)
    warn_of_host(costs, program, 3)
    return costs


def _collect(traces: list[Trace], program: Program, ranges: Optional[Ranges]) -> _Actions:
    if ranges is not None and not callable(ranges):
        raise TypeError(f"ranges must be a function, not {type(ranges).__name__}")
    ran: list[list[Ran]] = []
    without: list[Process] = []
    for number, trace in enumerate(traces):
        for process in processes_of(trace, number, ranges):
            if process.has_numbers:
                ran.append(process.actions())
            else:
                without.append(process)
    if without:
        _number(without, program, bool(ran))
        ran += [process.actions() for process in without]
    return collect(ran)


def _number(processes: list[Process], program: Program, is_mixed: bool) -> None:
    """Give ranges that only tell their op the stages and microbatches of the ranks' rows."""
    sources = {process.source for process in processes}
    if is_mixed or len(sources) != len(processes) or len(processes) != program.ranks:
        raise UsageError(
            f"ranges like {processes[0].ranges[0].name} have no numbers, so which rank has them "
            f"must be known: {len(processes)} processes have such ranges, in {len(sources)} "
            f"traces, and the program has {program.ranks} ranks",
            "give the traces of one pipeline, one for each of its ranks, in order",
        )
    if all(process.rank is not None for process in processes):  # of the job, in ascending order
        processes.sort(key=lambda process: process.rank or 0)
    for rank, process in enumerate(processes):
        row: dict[str, list[str]] = {}
        for cell in program[rank]:
            for action in () if cell is None else cell.parts or (cell,):
                row.setdefault(action.op, []).append(str(action))
        process.number(row, rank)


def costs_of(
    actions: _Actions, program: Program, unit: str, activations: Sequence[Optional[float]]
) -> Costs:
    """Make costs of what the processes of a run did, with what was measured of their steps."""
    costs = _costs(actions, program, unit, activations, "device")
    scale = _PER_UNIT[unit]
    steps = actions.steps.values()
    time = round(median(max(step.span for step in ranks) for ranks in steps), 3) / scale
    starved = round(median(max(step.starved for step in ranks) for ranks in steps), 3) / scale
    expected = program.simulate(costs).span
    limited = time > _FAR * expected and 2 * starved >= time - expected
    return costs.with_measured(MeasuredStep(time, starved, limited))


def warn_of_host(costs: Costs, program: Program, level: int) -> None:
    """Warn where the host limits the steps that costs are from; at the caller so many levels up."""
    if costs.measured is None or not costs.measured.host_limited:
        return
    unit, step = costs.unit, costs.measured
    warnings.warn(
        f"the host limits these steps: one takes {step.time:.4g} {unit}, and its kernels would "
        f"take {program.simulate(costs).span:.4g} {unit}; for {step.starved:.4g} {unit} a device "
        f"has nothing to do, because its host has launched nothing. Another order of the actions "
        f"does not change that; larger microbatches, torch.compile or CUDA graphs do. "
        f"costs_from_kineto(times='host') gives costs with the host's times",
        HostLimitWarning,
        stacklevel=level,
    )


def _costs(
    actions: _Actions,
    program: Program,
    unit: str,
    activations: Sequence[Optional[float]],
    times: str,
) -> Costs:
    samples = actions.samples
    if not samples:
        raise UsageError(
            "the traces have no range of an action (PP:0F0)",
            "profile a schedule of torch.distributed.pipelining with several stages on a rank, or "
            "what weft_pipeline.torch.runtime() makes; GPipe and 1F1B write no such ranges; or "
            "give ranges=, which says what your own ranges are",
        )
    beyond = max(stage for stage, _ in samples)
    if beyond >= program.stages:
        raise UsageError(
            f"the traces have a stage {beyond}, but the program has {program.stages} stages",
            "give the program that ran",
        )
    scale = _PER_UNIT[unit]
    wanted = _wanted(program)

    def time(stage: int, op: str) -> Optional[float]:
        """A median, in whole nanoseconds, so that all units say the same."""
        durations = [getattr(sample, times) for sample in samples.get((stage, op), ())]
        return round(round(median(durations), 3) / scale, 12) if durations else None

    stages = []
    for stage in range(program.stages):
        entry = {op.lower(): time(stage, op) for op in _OPS}
        entry["overlap_f_b"] = time(stage, "overlap")
        _derive(entry, stage)
        for op in (*_OPS, "overlap_f_b"):
            if entry[op.lower()] is None and (stage, op) in wanted:
                raise _missing(actions, stage, op)
        for op in "iwb":  # the program has no such action, and so no time for it
            entry[op] = entry[op] or 0.0
        entry["activation"] = activations[stage]
        stages.append({key: value for key, value in entry.items() if value is not None})
    document = {
        "schema": "weft-costs/1",
        "unit": unit,
        "stages": stages,
        "hop": {"latency": round(round(_hop(actions, program), 3) / scale, 12)},
    }
    return Costs.from_dict(document)


def _wanted(program: Program) -> set[tuple[int, str]]:
    """The stages and ops that a program needs times of."""
    wanted = {(stage, "F") for stage in range(program.stages)}
    for row in program:
        for action in row:
            if action is not None and action.op in _COMPUTE:
                first = action.parts[0] if action.parts else action
                op = "overlap_f_b" if action.parts else first.op
                wanted.add((first.stage or 0, op))
    return wanted


def _derive(entry: dict[str, Optional[float]], stage: int) -> None:
    """Give a backward that was seen whole its halves, and one in halves its whole."""
    i, w, b = entry["i"], entry["w"], entry["b"]
    if b is None:
        entry["b"] = i + w if i is not None and w is not None else None
    elif i is None and w is None:
        i = 0.0 if stage == 0 else b / 2
        entry["i"], entry["w"] = i, b - i
    elif i is None:
        entry["i"] = max(b - (w or 0.0), 0.0)
    elif w is None:
        entry["w"] = max(b - i, 0.0)


def _missing(actions: _Actions, stage: int, op: str) -> UsageError:
    if (stage, "overlap" if op == "overlap_f_b" else op) in actions.samples:
        return UsageError(
            f"the traces have launches of {op} of stage {stage}, but not their kernels",
            "the profiler lost them: profile fewer steps",
        )
    return UsageError(
        f"the traces have no {op} of stage {stage}",
        "give the traces of all ranks, and the program that ran",
    )


def timeline_from_kineto(
    traces: Union[Trace, Iterable[Trace]],
    program: Program,
    costs: Optional[CostsLike] = None,
    *,
    step: int = -1,
    ranges: Optional[Ranges] = None,
) -> Simulation:
    """Make the measured timeline of a step of a run, with idle time by cause.

    It has the compute actions of `program` at the times of the traces, so it can be drawn and
    compared with a prediction: timeline.makespan and program.simulate(costs).makespan. `step`
    counts the steps in the traces; -1 is the last. `costs` are those of costs_from_kineto(), as
    are `traces` and `ranges`.
    """
    if not isinstance(program, Program):
        raise TypeError(f"program must be a Program or Table, not {type(program).__name__}")
    if costs is not None:
        costs = costs_given(costs)
    integer(step, "step", -(2**31), 2**31)
    actions = _collect(_list(traces), program, ranges)
    if costs is None:
        costs = _costs(actions, program, "ms", [None] * program.stages, "device")
    if costs.unit not in _PER_UNIT:
        raise UsageError(f"the costs are in {costs.unit!r}; expected 'us', 'ms' or 's'")
    compute = Table.from_rows(
        [action for action in row if action is not None and action.op in _COMPUTE]
        for row in program
    )
    spans = []
    for event in compute.simulate(costs):
        assert event.action is not None
        spans.append(_span_of(actions, event.action, step))
    origin = min(span.begin for span in spans)
    last = max(span.end for span in spans)
    if last - origin > _CLOCKS_MAX:
        raise UsageError(
            f"the traces begin {(last - origin) / 86400e6:.0f} days apart",
            "give the traces of one run",
        )
    times = [(round(1000 * (begin - origin)), round(1000 * (end - origin))) for begin, end in spans]
    return measured(compute, costs, times, 1000 * _PER_UNIT[costs.unit])


def _span_of(actions: _Actions, action: Action, step: int) -> Span:
    first = action.parts[0] if action.parts else action
    spans = actions.spans.get((first.stage or 0, first.op, first.microbatch or 0), [])
    if not spans:
        raise UsageError(
            f"the traces have no {action}", "give the traces of all ranks, and the program that ran"
        )
    if not -len(spans) <= step < len(spans):
        raise UsageError(
            f"the traces have no step {step} of {action}; they have {len(spans)} steps of it",
            "step=-1 is the last one",
        )
    span = spans[step]
    if span is None:
        raise UsageError(
            f"the traces have launches of {action}, but not their kernels, in step {step}",
            "the profiler lost them: take another step, or profile fewer",
        )
    return span


def _list(traces: Union[Trace, Iterable[Trace]]) -> list[Trace]:
    if isinstance(traces, (str, os.PathLike)):
        folder = path_name(traces)
        if not os.path.isdir(folder):
            return [traces]
        names = [name for name in os.listdir(folder) if name.endswith(_SUFFIXES)]
        if not names:
            raise UsageError(
                f"{folder} has no .json, .json.gz or .sqlite", "give the folder of the traces"
            )
        names.sort(
            key=lambda name: [int(part) if part.isdigit() else part for part in _NUMBER.split(name)]
        )
        return [os.path.join(folder, name) for name in names]
    if isinstance(traces, (bytes, bytearray, Mapping)):
        return [traces]
    if not hasattr(traces, "__iter__"):
        raise TypeError(f"traces must be a folder or traces, not {type(traces).__name__}")
    return list(traces)
