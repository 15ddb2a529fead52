"""A Kineto trace: what the profiler of PyTorch saw of a process, read into the actions that it ran.

PyTorch runs every action inside a range named PP:2F0. The range is of the host. The work of the
action is the span of the kernels that were launched inside it, on any thread (backwards launch
from autograd's), without those of NCCL: the time of a SendRecv kernel contains the waiting. In a
trace without kernels it is the span of the operators inside the range, behind the wait for its
input. _kineto.py makes costs and timelines of the actions of all processes.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import reprlib
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional, Union

from ._errors import FormatError, LimitError
from ._library import Path, path_name, read_file

Trace = Union[Path, bytes, Mapping[str, Any]]
Event = Mapping[str, Any]

BYTES_MAX = 1 << 30  # of a trace, unpacked: Python's objects take about ten times as much
_TIME_MAX = 1 << 53  # microseconds; a double distinguishes no later ones
_DURATION_MAX = 10**12  # microseconds, 11 days; costs have the same limit
_NAME = re.compile(r"PP:(?:\d{1,9}[FIWB]\d{1,9}|\(\d{1,9}F\d{1,9};\d{1,9}B\d{1,9}\)OVERLAP_F_B)$")
_COMMUNICATION = re.compile(r"(?i)c10d|gloo:|nccl|record_param_comms|mpi:")
_LAUNCH = re.compile(r"Launch(?:Cooperative)?Kernel|GraphLaunch")
_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_USED = ("user_annotation", "cpu_op", *_KERNELS, *_LAUNCHES)
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
    name: str


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


def _read(trace: Trace, number: int) -> list[Event]:
    """The events of a trace that matter: of a path, the file's bytes, or its JSON."""
    name = f"trace {number}"
    document: Any = trace
    if isinstance(trace, (str, os.PathLike)):
        name = path_name(trace)
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
    if isinstance(document, Mapping):
        document = document.get("traceEvents")
    if not isinstance(document, list):
        raise FormatError(
            f"{name} is no Chrome trace: it has no list traceEvents",
            "give what torch.profiler's export_chrome_trace() writes",
        )
    events = []
    for k, event in enumerate(document):
        if isinstance(event, Mapping) and event.get("ph") == "X" and event.get("cat") in _USED:
            _checked(event, f"{name}: traceEvents[{k}]")
            events.append(event)
    return events


# ---- From events to actions ----


def _correlation(event: Event) -> Optional[int]:
    arguments = event.get("args")
    number = arguments.get("correlation") if isinstance(arguments, Mapping) else None
    return number if isinstance(number, int) else None


class _Process:
    """The ranges of a process, with the work that is found for them."""

    def __init__(self, events: list[Event]) -> None:
        self.events = events
        self.ranges = sorted(
            _Range(event["ts"], event["ts"] + event["dur"], event["name"])
            for event in events
            if event.get("cat") == "user_annotation" and event["name"].startswith("PP:")
        )
        self._begins = [entry.begin for entry in self.ranges]
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

    def _range_at(self, time: float) -> Optional[int]:
        k = bisect_right(self._begins, time) - 1
        return k if k >= 0 and time <= self.ranges[k].end else None

    def _add(self, k: int, event: Event) -> None:
        begin, end = event["ts"], event["ts"] + event["dur"]
        old = self.work.get(k, Span(begin, end))
        self.work[k] = Span(min(old.begin, begin), max(old.end, end))

    def _take_operators(self) -> None:
        for event in self.events:
            if event.get("cat") == "cpu_op" and not _COMMUNICATION.match(event["name"]):
                k = self._range_at(event["ts"])
                if k is not None:
                    self._add(k, event)

    def _take_kernels(self, kernels: list[Event]) -> None:
        launches: dict[int, tuple[int, float, bool]] = {}  # correlation: range, time, of a kernel
        for event in self.events:
            if event.get("cat") in _LAUNCHES:
                number, k = _correlation(event), self._range_at(event["ts"])
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
        reached = float("-inf")  # what ran before has ended
        for k, following in zip(actions, [*actions[1:], len(self.ranges)]):
            begin, end, name = self.ranges[k]
            work: Optional[Span] = None
            if k not in self.lost:
                at = max(end, reached)
                work = self.work.get(k, Span(at, at))
                reached = max(reached, work.end)
            host = self._until(k, following) - begin if self.has_kernels else 0.0
            result.append(Ran(name, self.steps[k], work, host, self.starved.get(k, 0.0)))
        return result


def actions_of(trace: Trace, number: int = 0) -> list[Ran]:
    """Read the actions that a process ran; errors call a trace without a name `number`."""
    return _Process(_read(trace, number)).actions()
