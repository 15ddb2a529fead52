"""The prediction of a program's times and memory."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Optional

from ._costs import Costs, CostsLike, costs_given
from ._data import ACTION, action_columns, dataframe, plain
from ._errors import UsageError
from ._library import (
    Handle,
    Immutable,
    Path,
    array_of,
    boolean,
    c,
    call,
    choice,
    default_of,
    integer,
    lib,
    numbers,
    path_name,
    real,
    records,
    set_once,
    string,
    text_of,
    write_file,
)
from ._plot import plot, save_svg
from ._program import Action, Program, Table, action_at
from ._report import CHANNEL_MODELS

_ProgramPointer = ctypes.POINTER(c.weft_program)
_SimulationPointer = ctypes.POINTER(c.weft_simulation)
_default = default_of(lib.weft_sim_options_default)
_COLOURS = ("op", "stage")
_EVENT = struct.Struct("=IIqq")  # struct weft_event
_SVG_EVENTS_MAX = 20000  # in a notebook
_FACTOR_MAX = 1e6
_CAUSES = "idle_by_cause"
PICTURES = (".svg", ".html", ".png", ".pdf")  # of a timeline, and nothing else


class Event(NamedTuple):
    """When an action ran, in the unit of the costs."""

    rank: int
    action: Optional[Action]
    begin: float
    end: float


class RankTimes(NamedTuple):
    """What a rank did: times in the unit of the costs, sizes in theirs."""

    busy: float
    idle: float
    first_start: float
    last_end: float
    span: float
    idle_by_cause: dict[str, float]
    peak_activation: float
    peak_memory: float
    peak_at: float
    peak_parameters: float
    peak_gradients: float
    receive_buffers: int
    message_bytes: float  # of a simulated graph whose edges have sizes; else 0


class Simulation(Immutable):
    """Predicted times, idle times and memory of a program. A notebook shows it as a timeline."""

    __slots__ = ("_handle", "costs", "program")
    _handle: Handle
    program: Program
    costs: Costs

    @property
    def is_measured(self) -> bool:
        """Whether its times are those of a run, and not predicted."""
        return len(self._handle.keep) > 3

    def __init__(self) -> None:
        """Refuse: Program.simulate() makes it."""
        raise TypeError("use Program.simulate() or Table.simulate()")

    @property
    def _c(self) -> Any:
        return self._handle.pointer[0]

    @property
    def makespan(self) -> float:
        """From the first start on any rank to the last end on any rank."""
        return float(self._c.makespan)

    @property
    def span(self) -> float:
        """The largest over ranks of the time from first start to last end."""
        return float(self._c.span)

    @property
    def bubble(self) -> float:
        """The idle share of ranks x makespan, 0 to 1."""
        return float(self._c.bubble_ratio)

    @property
    def span_bubble(self) -> float:
        """The idle share of the span of the rank with the largest."""
        return float(self._c.span_bubble_ratio)

    @property
    def peak_activation(self) -> float:
        """The most activation memory that a rank holds."""
        return float(self._c.peak_activation)

    @property
    def peak_memory(self) -> float:
        """The most memory that a rank holds: activations, parameters and gradients."""
        return max(rank.peak_memory for rank in self.ranks)

    @property
    def ticks_per_unit(self) -> float:
        """Ticks of `events` in a unit of the costs."""
        return float(self._c.ticks_per_unit)

    @property
    def ranks(self) -> tuple[RankTimes, ...]:
        """What each rank did."""
        causes = [lib.weft_idle_cause_name(k).decode() for k in range(c.WEFT_IDLE_CAUSES)]
        times = self._c.ranks
        return tuple(
            RankTimes(
                rank.busy,
                rank.idle,
                rank.first_start,
                rank.last_end,
                rank.span,
                dict(zip(causes, rank.idle_by_cause)),
                rank.peak_activation,
                rank.peak_memory,
                rank.peak_at,
                rank.peak_parameters,
                rank.peak_gradients,
                rank.receive_buffers_peak,
                rank.message_bytes_peak,
            )
            for rank in (times[k] for k in range(self.program.ranks))
        )

    @property
    def events(self) -> Any:
        """All events, rank after rank, without a copy and read-only.

        With NumPy a structured array with the fields rank, record (into program.actions), begin
        and end (ticks); without it a memoryview of 24 bytes for each (struct format "IIqq").
        """
        return array_of(self._records(), c.weft_event)

    def _records(self) -> memoryview:
        simulation = self._c
        return records(simulation.events, c.weft_event, simulation.event_count, self._handle)

    def __len__(self) -> int:
        """Count the events."""
        return int(self._c.event_count)

    def __iter__(self) -> Iterator[Event]:
        """Go through the events, in the unit of the costs."""
        return (self._event(k) for k in range(len(self)))

    def _event(self, index: int) -> Event:
        rank, record, begin, end = _EVENT.unpack_from(self._records(), _EVENT.size * index)
        address = ctypes.addressof(self.program._c.actions[record])
        action = action_at(ctypes.cast(address, ctypes.POINTER(c.weft_action)))
        return Event(rank, action, begin / self.ticks_per_unit, end / self.ticks_per_unit)

    def critical_path(self) -> tuple[Event, ...]:
        """Give the chain of actions that decides the makespan, first to last."""
        count = ctypes.c_uint64()
        room = len(self)
        found = (ctypes.c_uint64 * max(room, 1))()
        call(lib.weft_critical_path, None, self._handle.pointer, found, room, ctypes.byref(count))
        return tuple(self._event(k) for k in found[: min(room, count.value)])

    def period(self) -> float:
        """Give the time per step when steps follow each other without a barrier."""
        period = ctypes.c_double()
        options = self._handle.keep[2]
        call(
            lib.weft_period,
            None,
            self.program._handle.pointer,
            self.costs._handle.pointer,
            ctypes.byref(options),
            ctypes.byref(period),
        )
        return period.value

    def memory(self, rank: int) -> tuple[tuple[float, float], ...]:
        """Give a rank's activation memory over time: (time, size) from that time on."""
        rank = integer(rank, "rank", 0, self.program.ranks - 1)
        count = ctypes.c_uint64()
        arguments = (self._handle.pointer, self.costs._handle.pointer, rank)
        lib.weft_memory_curve(*arguments, None, 0, ctypes.byref(count))
        points = (c.weft_memory_point * max(count.value, 1))()
        lib.weft_memory_curve(*arguments, points, count.value, ctypes.byref(count))
        return tuple((point.at, point.size) for point in points[: count.value])

    @property
    def note(self) -> str:
        """What the times are of: a rank's share of the model, or a stage; "" of measured times."""
        if self.is_measured:
            return ""
        buffer = ctypes.create_string_buffer(96)
        program = self.program
        shape = program.ranks, program.stages
        lib.weft_costs_describe(self.costs._handle.pointer, *shape, buffer, len(buffer))
        return buffer.value.decode()

    def to_dict(self) -> dict[str, Any]:
        """Give all of it as JSON has it: figures, ranks and events, actions as text."""
        names = ("makespan", "span", "bubble", "span_bubble", "peak_activation", "peak_memory")
        return {
            **{name: plain(getattr(self, name)) for name in (*names, "is_measured", "note")},
            "unit": self.costs.unit,
            "ranks": plain(self.ranks),
            "events": [plain(event) for event in self],
        }

    def to_dataframe(self, of: str = "events") -> Any:
        """Give a pandas DataFrame with a row for each event, or `of` "ranks", for each rank.

        Times are in the unit of the costs; `idle_gradient` is the idle time of that cause.
        """
        if choice(of, "of", ("events", "ranks")) == 0:
            return dataframe(
                ("rank", *ACTION, "begin", "end"),
                ((e.rank, *action_columns(e.action), e.begin, e.end) for e in self),
            )
        rows = [
            {
                "rank": rank,
                **{name: value for name, value in times._asdict().items() if name != _CAUSES},
                **{f"idle_{cause}": value for cause, value in times.idle_by_cause.items()},
            }
            for rank, times in enumerate(self.ranks)
        ]
        return dataframe(tuple(rows[0]), (tuple(row.values()) for row in rows))

    # ---- Pictures ----

    def _render(self, function: Any, name: str, options: Any) -> str:
        picture = c.weft_picture()
        picture.name = string(name, "name") or None
        picture.simulation = self._handle.pointer
        picture.costs = self.costs._handle.pointer
        picture.note = b"" if self.is_measured else None
        count = (1,) if function is lib.weft_render_html else ()
        return text_of(function, ctypes.byref(picture), *count, ctypes.byref(options))

    def to_svg(
        self,
        *,
        name: str = "",
        width: int = 1200,
        dark: bool = False,
        colour_by: str = "op",
        bare: bool = False,
    ) -> str:
        """Draw an SVG document. `colour_by` is "op" or "stage"; `bare` leaves out the title and the
        numbers above the rows."""
        options = lib.weft_render_options_default()
        options.width = integer(width, "width", 100, 100000)
        options.dark = boolean(dark, "dark")
        options.bare = boolean(bare, "bare")
        options.colour_by = choice(colour_by, "colour_by", _COLOURS)
        return self._render(lib.weft_render_svg, name, options)

    def to_html(self, *, name: str = "", colour_by: str = "op") -> str:
        """Make a self-contained page with an interactive timeline."""
        options = lib.weft_render_options_default()
        options.colour_by = choice(colour_by, "colour_by", _COLOURS)
        return self._render(lib.weft_render_html, name, options)

    def to_trace(self, *, name: str = "") -> str:
        """Make a Chrome trace (JSON), for Perfetto or chrome://tracing."""
        return self._render(lib.weft_render_trace, name, lib.weft_render_options_default())

    def to_text(self, *, name: str = "", width: int = 80, all_ranks: bool = False) -> str:
        """Draw a timeline for a terminal. Of more than 32 ranks about 16 are shown, unless
        `all_ranks` is set."""
        options = lib.weft_render_options_default()
        options.width = integer(width, "width", 20, 10000)
        options.all_ranks = boolean(all_ranks, "all_ranks")
        return self._render(lib.weft_render_text, name, options)

    def plot(self, ax: Any = None, *, name: str = "") -> Any:
        """Draw the timeline on an axis of matplotlib, or on the current one; return the axis."""
        return plot(self, ax, name)

    def save(self, path: Path) -> None:
        """Write a picture to a file: .svg, .html, .json (Chrome trace) or .txt.

        With matplotlib also .png and .pdf: the SVG as such a file.
        """
        name = path_name(path)
        for kind in ("png", "pdf"):
            if name.endswith(f".{kind}"):
                save_svg(self.to_svg(), name, kind)
                return
        for suffix, write in (
            (".svg", self.to_svg),
            (".html", self.to_html),
            (".json", self.to_trace),
            (".txt", self.to_text),
        ):
            if name.endswith(suffix):
                write_file(path, write())
                return
        raise UsageError(
            f"{name} is no .svg, .html, .json, .txt, .png or .pdf", "the suffix says which"
        )

    def _repr_svg_(self) -> Optional[str]:
        """Draw the timeline in a notebook; not where it has very many actions."""
        return self.to_svg(width=1000) if len(self) <= _SVG_EVENTS_MAX else None

    def __str__(self) -> str:
        """Draw the timeline as text."""
        return self.to_text()

    def __repr__(self) -> str:
        """Give the main numbers."""
        return (
            f"<weft_pipeline.Simulation: makespan {self.makespan:g}, "
            f"bubble {100 * self.bubble:.2f} %, peak activation {self.peak_activation:g}"
            f"{'; ' if self.note else ''}{self.note}>"
        )

    def __reduce__(self) -> Any:
        """Pickle as what it was made of: its times, or those of a run."""
        if self.is_measured:
            times = [(begin, end) for _, _, begin, end in _EVENT.iter_unpack(self._records())]
            return measured, (self.program, self.costs, times, self.ticks_per_unit)
        options = self._handle.keep[2]
        factors = options.rank_factors
        return simulate, (
            self.program,
            self.costs,
            CHANNEL_MODELS[options.channel],
            list(factors[: self.program.ranks]) if factors else None,
            options.jitter,
            options.seed,
        )


def measured(
    program: Program, costs: Costs, times: Sequence[tuple[int, int]], ticks_per_unit: float
) -> Simulation:
    """Make the timeline of a run: (begin, end) in ticks of what simulate() has events of."""
    template = simulate(program, costs, "edge", None, 0, 1)
    if len(times) != len(template):
        raise UsageError(f"there are {len(times)} times; expected {len(template)}")
    events = (c.weft_event * max(len(times), 1))()
    places = _EVENT.iter_unpack(template._records())
    for event, (begin, end), (rank, record, _, _) in zip(events, times, places):
        event.rank, event.record = rank, record
        event.begin = integer(begin, "begin", -(2**61), 2**61)
        event.end = integer(end, "end", begin, 2**61)
    out = _SimulationPointer()
    call(
        lib.weft_simulation_measured,
        None,
        program._handle.pointer,
        costs._handle.pointer,
        events,
        len(times),
        real(ticks_per_unit, "ticks_per_unit", 1e-12, 1e12),
        ctypes.byref(out),
    )
    keep = (program._handle, costs._handle, _default(), True)
    self = Simulation.__new__(Simulation)
    set_once(
        self,
        _handle=Handle(out, lib.weft_simulation_destroy, keep),
        program=program,
        costs=costs,
    )
    return self


def simulate(
    program: Program,
    costs: Optional[CostsLike],
    channel: str,
    rank_factors: Optional[Sequence[float]],
    jitter: float,
    seed: int,
) -> Simulation:
    """Simulate a program (Program.simulate())."""
    costs = costs_given(costs)
    options = _default()
    options.channel = choice(channel, "channel", CHANNEL_MODELS)
    options.jitter = real(jitter, "jitter", 0, 10)
    options.seed = integer(seed, "seed", 0, 2**64 - 1)
    if options.channel != c.WEFT_CHANNEL_EDGE and isinstance(program, Table):
        lowered = _ProgramPointer()  # shared channels are about the order of SEND and RECV
        call(lib.weft_lower_transfers, None, program._handle.pointer, ctypes.byref(lowered))
        program = Program._adopt(lowered)
    factors = costs.rank_factors if rank_factors is None else rank_factors
    if factors is not None:
        options.rank_factors = numbers(
            factors, "rank_factors", program.ranks, 1 / _FACTOR_MAX, _FACTOR_MAX
        )
    out = _SimulationPointer()
    call(
        lib.weft_simulate,
        None,
        program._handle.pointer,
        costs._handle.pointer,
        ctypes.byref(options),
        ctypes.byref(out),
    )
    keep = (program._handle, costs._handle, options)
    self = Simulation.__new__(Simulation)
    set_once(
        self,
        _handle=Handle(out, lib.weft_simulation_destroy, keep),
        program=program,
        costs=costs,
    )
    return self
