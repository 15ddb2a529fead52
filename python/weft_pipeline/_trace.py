"""Traces: what a profiler saw of a process, read into the actions that it ran.

PyTorch runs every action inside a range named PP:2F0, and so does Pipeline. The range is of the
host. The work of the action is the span of the kernels that were launched inside it, on any thread
(backwards launch from autograd's), without those of NCCL: the time of a SendRecv kernel contains
the waiting. In a trace without kernels it is the span of the operators inside the range, behind the
wait for its input. _kineto.py makes costs and timelines of the actions of all processes.

Ranges of others have no numbers: Megatron-LM's forward_step and backward_step are an F and a B, and
the k-th of a process is the k-th in its rank's row of the program. Traces are those of PyTorch's
profiler (Kineto), or of Nsight Systems, exported to SQLite (_nsight.py).
"""

from __future__ import annotations

import functools
import gzip
import io
import json
import os
import re
import reprlib
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional, Union

from ._errors import FormatError, LimitError, UsageError
from ._library import Path, path_name, read_file
from ._nsight import is_export, read_export

Trace = Union[Path, bytes, Mapping[str, Any]]
Event = Mapping[str, Any]

BYTES_MAX = 1 << 30  # of a trace, unpacked: Python's objects take about ten times as much
_TIME_MAX = 1 << 53  # microseconds; a double distinguishes no later ones
_DURATION_MAX = 10**12  # microseconds, 11 days; costs have the same limit
_ACTION = r"(?:\d{1,9}[FIWB]\d{1,9}|\(\d{1,9}F\d{1,9};\d{1,9}B\d{1,9}\)OVERLAP_F_B)"
_NAME = re.compile(rf"PP:{_ACTION}$")
_GIVEN = re.compile(rf"{_ACTION}$|[FIWB]$")  # by a caller's function of names
# Megatron-LM's: functions of Python in a Kineto trace with stacks, and ranges of that name.
_CALLED = re.compile(r".*pipeline_parallel/schedules\.py\(\d+\): (for|back)ward_step$")
_NAMED = re.compile(r"(?:.*\.)?(for|back)ward_step$")
_COMMUNICATION = re.compile(r"(?i)c10d|gloo:|nccl|record_param_comms|mpi:")
_LAUNCH = re.compile(r"Launch(?:Cooperative)?Kernel|GraphLaunch")
_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_FUNCTION = "python_function"
_RANGES = ("user_annotation", _FUNCTION)
_USED = (*_RANGES, "cpu_op", *_KERNELS, *_LAUNCHES)
Ranges = Callable[[str], Optional[str]]
# A kernel that begins so soon after its launch, in microseconds, waited for nothing else.
_PROMPT = 100


class Span(NamedTuple):
    """From when to when, in microseconds of the process's clock."""

    begin: float
    end: float


class Ran(NamedTuple):
    """An action that a process ran, in the order of the host.

    `work` is empty where the action launched nothing, as PyTorch's I of stage 0 does, and None
    where the profiler lost the kernels that it launched. `host` is how long the host was at it,
    with the communication that it then posted; `starved` is how long the device had nothing to do
    because the host had not launched the action yet. Both are 0 in a trace without kernels.
    """

    name: str
    step: int
    work: Optional[Span]
    host: float
    starved: float


class _Range(NamedTuple):
    begin: float
    end: float
    name: str  # "PP:2F0", or an op whose numbers the program has: "F"
    thread: Any


def _range_name(name: str, category: str, ranges: Optional[Ranges]) -> Optional[str]:
    """What a range of this name is to this module; None where it is nothing."""
    if ranges is not None:
        found = ranges(name)
        if found is not None and not (isinstance(found, str) and _GIVEN.match(found)):
            raise UsageError(
                f"ranges gives {found!r} for {name!r}; expected an action such as '2F0', or one "
                f"of F, I, W and B, or None"
            )
        return found if found is None or len(found) == 1 else f"PP:{found}"
    if name.startswith("PP:"):
        return name.split(",")[0]  # NVTX has more behind it: the sequence number of an operator
    step = (_CALLED if category == _FUNCTION else _NAMED).match(name.split(",")[0])
    return None if step is None else "F" if step[1] == "for" else "B"


# ---- From a file to events ----


def _unpacked(data: bytes, name: str) -> bytes:
    if data[:2] == b"\x1f\x8b":
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            data = file.read(BYTES_MAX + 1)
    if len(data) > BYTES_MAX:
        raise LimitError(
            f"{name} has more than {BYTES_MAX} bytes, which is the limit of a trace",
            "profile fewer steps, without shapes and stacks",
        )
    return data


def _checked(event: Event, place: str) -> None:
    """Refuse an event whose name or times are none."""
    for field, low, high in (("ts", -_TIME_MAX, _TIME_MAX), ("dur", 0, _DURATION_MAX)):
        value = event.get(field)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not low <= value <= high:  # type: ignore[operator]  # NaN too
            raise FormatError(
                f"{place}: {field} is {_shown(value)}; expected {low} to {high} microseconds",
                "the trace is damaged: export it again",
            )
    if not isinstance(event.get("name"), str):
        raise FormatError(
            f"{place}: name is {_shown(event.get('name'))}; expected text",
            "the trace is damaged: export it again",
        )


def _shown(value: object) -> str:
    if value is None:
        return "missing"
    try:
        return reprlib.repr(value)
    except ValueError:  # an integer of very many digits
        return "a number that is too long to print"


def _read(
    trace: Trace, number: int, ranges: Optional[Ranges]
) -> tuple[list[list[Event]], Optional[int], str]:
    """The events of each process of a trace, its rank where the trace has it, and its name.

    The trace is a path, the file's bytes, or its JSON.
    """
    name = f"trace {number}"
    document: Any = trace
    if isinstance(trace, (str, os.PathLike)):
        name = path_name(trace)
        if is_export(name):
            wanted = functools.partial(_range_name, category="", ranges=ranges)
            return read_export(name, lambda text: wanted(text) is not None), None, name
        document = read_file(trace)
    if isinstance(document, (bytes, bytearray)):
        try:
            document = json.loads(_unpacked(bytes(document), name))
        except LimitError:
            raise
        except (ValueError, OSError, EOFError, RecursionError, zlib.error) as error:
            raise FormatError(
                f"{name} is no Chrome trace: {error}",
                "give what torch.profiler's export_chrome_trace() writes, whole",
            ) from error
    rank: Any = None
    if isinstance(document, Mapping):
        job = document.get("distributedInfo")
        rank = job.get("rank") if isinstance(job, Mapping) else None
        document = document.get("traceEvents")
    if not isinstance(document, list):
        raise FormatError(
            f"{name} is no Chrome trace: it has no list traceEvents",
            "give what torch.profiler's export_chrome_trace() writes",
        )
    events = []
    for k, event in enumerate(document):
        if isinstance(event, Mapping) and event.get("ph") == "X" and event.get("cat") in _USED:
            called = event.get("name") if event["cat"] == _FUNCTION else None
            if isinstance(called, str) and _range_name(called, _FUNCTION, ranges) is None:
                continue  # a trace with stacks has very many
            _checked(event, f"{name}: traceEvents[{k}]")
            events.append(event)
    return [events], rank if type(rank) is int else None, name


# ---- From events to actions ----


def _correlation(event: Event) -> Optional[int]:
    arguments = event.get("args")
    number = arguments.get("correlation") if isinstance(arguments, Mapping) else None
    return number if isinstance(number, int) else None


class Process:
    """The ranges of a process, and the events beside them.

    `rank` is that of the job, where the trace has it, and `source` what errors call the trace.
    """

    def __init__(
        self, events: list[Event], ranges: list[_Range], rank: Optional[int], source: str
    ) -> None:
        """Take ranges, ordered by their begin."""
        self.events, self.ranges, self.rank, self.source = events, ranges, rank, source

    @property
    def has_numbers(self) -> bool:
        """Whether its ranges say of which stage and microbatch they are."""
        return all(len(entry.name) > 1 for entry in self.ranges)

    def number(self, row: Mapping[str, Sequence[str]], rank: int) -> None:
        """Give ranges without numbers those of a rank's row, which has the actions of each op."""
        seen: Counter[str] = Counter(entry.name for entry in self.ranges)
        both = next((name for name in seen if len(name) > 1), None)
        if both is not None:
            raise UsageError(f"{self.source} has ranges with numbers, {both}, and without")
        if len({entry.thread for entry in self.ranges}) > 1:
            raise UsageError(f"{self.source} has ranges without numbers of several threads")
        for op, count in seen.items():
            expected = len(row.get(op, ()))
            if expected == 0 or count % expected:
                raise UsageError(
                    f"{self.source} has {count} ranges of {op}; rank {rank} of the program has "
                    f"{expected} in a step",
                    "profile whole steps, and give the program that ran",
                )
        ran: Counter[str] = Counter()
        for k, entry in enumerate(self.ranges):
            actions = row[entry.name]
            steps, begun = divmod(ran["F"], len(row.get("F", "F")))
            if entry.name == "F" and begun == 0:
                early = [op for op in seen if op != "F" and ran[op] != steps * len(row[op])]
                if early:
                    raise UsageError(
                        f"{self.source} has {ran[early[0]]} ranges of {early[0]} before step "
                        f"{steps}; rank {rank} of the program has {len(row[early[0]])} in a step",
                        "give the program that ran, and traces of nothing but its steps",
                    )
            name = f"PP:{actions[ran[entry.name] % len(actions)]}"
            self.ranges[k] = entry._replace(name=name)
            ran[entry.name] += 1

    def actions(self) -> list[Ran]:
        """Find what every action did."""
        return _Work(self.events, self.ranges).actions()


class _Work:
    """The ranges of a process, with the work that is found for them."""

    def __init__(self, events: list[Event], ranges: list[_Range]) -> None:
        self.events = events
        self.ranges = ranges
        # By thread: ranges, and when they begin. Ranks may be threads of a process.
        self._own: dict[Any, tuple[list[int], list[float]]] = {}
        for k, entry in enumerate(self.ranges):
            numbers, begins = self._own.setdefault(entry.thread, ([], []))
            numbers.append(k)
            begins.append(entry.begin)
        self.steps: list[int] = []  # how often the range was there before
        seen: Counter[str] = Counter()
        for entry in self.ranges:
            self.steps.append(seen[entry.name])
            seen[entry.name] += 1
        self.work: dict[int, Span] = {}  # by range
        self.lost: set[int] = set()
        self.starved: dict[int, float] = {}
        kernels = [event for event in events if event.get("cat") in _KERNELS]
        self.has_kernels = bool(kernels)
        if kernels:
            self._take_kernels(sorted(kernels, key=lambda event: event["ts"]))
        else:
            self._take_operators()

    def _range_of(self, event: Event) -> Optional[int]:
        """The range that an event is in: one of its thread, or of the one that it works for."""
        time, found = event["ts"], None
        own = self._own.get(_thread(event))
        for numbers, begins in self._own.values() if own is None else (own,):
            k = bisect_right(begins, time) - 1
            if k >= 0 and time <= self.ranges[numbers[k]].end:
                found = max(numbers[k], -1 if found is None else found)
        return found

    def _add(self, k: int, event: Event) -> None:
        begin, end = event["ts"], event["ts"] + event["dur"]
        old = self.work.get(k, Span(begin, end))
        self.work[k] = Span(min(old.begin, begin), max(old.end, end))

    def _take_operators(self) -> None:
        for event in self.events:
            if event.get("cat") == "cpu_op" and not _COMMUNICATION.match(event["name"]):
                k = self._range_of(event)
                if k is not None:
                    self._add(k, event)

    def _take_kernels(self, kernels: list[Event]) -> None:
        launches: dict[int, tuple[int, float, bool]] = {}  # correlation: range, time, of a kernel
        for event in self.events:
            if event.get("cat") in _LAUNCHES:
                number, k = _correlation(event), self._range_of(event)
                if number is not None and k is not None:
                    launches[number] = (k, event["ts"], bool(_LAUNCH.search(event["name"])))
        arrived = set()
        step, free = -1, 0.0  # the device has worked in this step until then
        for event in kernels:
            number = _correlation(event)
            if number is None or number not in launches:
                continue
            arrived.add(number)
            if _COMMUNICATION.match(event["name"]):
                continue
            k, launched, _ = launches[number]
            if self.steps[k] == step and event["ts"] - launched <= _PROMPT:
                self.starved[k] = self.starved.get(k, 0.0) + max(launched - free, 0.0)
            end = event["ts"] + event["dur"]
            free = max(free, end) if self.steps[k] == step else end
            step = self.steps[k]
            self._add(k, event)
        self.lost = {k for n, (k, _, kernel) in launches.items() if kernel and n not in arrived}

    def _until(self, k: int, following: int) -> float:
        """When the host is done with an action: it begins the next one, or the step ends."""
        step = self.steps[k]
        if following < len(self.ranges) and self.steps[following] == step:
            return self.ranges[following].begin
        return max(self.ranges[n].end for n in range(k, following) if self.steps[n] == step)

    def actions(self) -> list[Ran]:
        result: list[Ran] = []
        actions = [k for k, entry in enumerate(self.ranges) if _NAME.match(entry.name)]
        reached: dict[Any, float] = {}  # when what a thread ran before has ended
        for k, following in zip(actions, [*actions[1:], len(self.ranges)]):
            begin, end, name, thread = self.ranges[k]
            work: Optional[Span] = None
            if k not in self.lost:
                at = max(end, reached.get(thread, end))
                work = self.work.get(k, Span(at, at))
                reached[thread] = max(at, work.end)
            host = self._until(k, following) - begin if self.has_kernels else 0.0
            result.append(Ran(name, self.steps[k], work, host, self.starved.get(k, 0.0)))
        return result


def _outermost(ranges: list[_Range]) -> list[_Range]:
    """Ranges without those inside others: Megatron's forward_step calls one of the model's."""
    if all(len(entry.name) > 1 for entry in ranges):
        return sorted(ranges, key=lambda entry: entry[:3])
    found: list[_Range] = []
    for entry in sorted(ranges, key=lambda entry: (entry.begin, -entry.end)):
        if not found or entry.begin >= found[-1].end:
            found.append(entry)
    return found


def processes_of(trace: Trace, number: int = 0, ranges: Optional[Ranges] = None) -> list[Process]:
    """Read what ran in the processes of a trace; errors call one without a name `number`."""
    everything, rank, source = _read(trace, number, ranges)
    found = []
    for events in everything:
        own: list[_Range] = []
        for event in events:
            if event["cat"] in _RANGES:
                name = _range_name(event["name"], event["cat"], ranges)
                if name is not None:
                    begin, end = event["ts"], event["ts"] + event["dur"]
                    own.append(_Range(begin, end, name, _thread(event)))
        if ranges is None and any(entry.name[:3] == "PP:" for entry in own):
            # A forward_step around them is somebody else's.
            own = [entry for entry in own if entry.name[:3] == "PP:"]
        if own:
            found.append(Process(events, _outermost(own), rank, source))
    return found


def _thread(event: Event) -> Any:
    thread = event.get("tid")
    return thread if isinstance(thread, (int, str)) else None
