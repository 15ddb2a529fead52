"""The planner: the best schedule for given costs and memory, with a lower bound."""

from __future__ import annotations

import contextlib
import ctypes
import math
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Callable, NamedTuple, Optional

from ._costs import Costs, CostsLike, costs_given
from ._data import dataframe, fields
from ._errors import UsageError
from ._graph import Graph, graph_pointer
from ._library import (
    Handle,
    Path,
    boolean,
    c,
    call,
    choice,
    integer,
    lib,
    numbers,
    path_name,
    real,
)
from ._program import PLACEMENTS, Table, placement_number
from ._simulation import PICTURES, Simulation

_OBJECTIVES = ("makespan", "span")


class Progress(NamedTuple):
    """State of a running search: the best objective so far (inf: none yet) and its bound."""

    value: float
    bound: float
    done: float
    evaluated: int


class Plan(NamedTuple):
    """The best schedule that a search found, already proven and simulated.

    `placement` says how the stages were placed, and table.rank_of_stage on which ranks.
    `bound` is a lower bound for this placement and partition, `open_bound` for everything that
    the request allowed; `optimal` says that the objective equals the bound. `costs` has an entry
    for each stage of `table`, as its rank executes it. `stopped` says that the search ended
    early: by Ctrl-C, `cancel` or the time limit.
    """

    table: Table
    makespan: float
    span: float
    bound: float
    open_bound: float
    optimal: bool
    stopped: bool
    objective: str
    schedule: str
    placement: str
    stages_per_rank: int
    costs: Costs
    stage_parts: Optional[tuple[int, ...]]
    peak_memory: float
    all_reduce: float
    evaluated: int

    @property
    def value(self) -> float:
        """The objective that was minimised, the all-reduce of replicas included."""
        return (self.span if self.objective == "span" else self.makespan) + self.all_reduce

    def simulate(self) -> Simulation:
        """Simulate the table with the plan's costs."""
        return self.table.simulate(self.costs)

    def to_dict(self) -> dict[str, Any]:
        """Give all of it as JSON has it, with the table and the costs."""
        return {**fields(self), "value": self.value}

    def to_dataframe(self) -> Any:
        """Give a pandas DataFrame with a row for each event of its timeline."""
        return self.simulate().to_dataframe()

    def save(self, path: Path) -> None:
        """Write the table to a CSV file, or the timeline to .svg, .html, .png or .pdf."""
        (self.simulate() if path_name(path).endswith(PICTURES) else self.table).save(path)

    def _repr_svg_(self) -> Optional[str]:
        """Draw its timeline in a notebook."""
        return self.simulate()._repr_svg_()

    def __repr__(self) -> str:
        """Give the main numbers."""
        end = "optimal" if self.optimal else f"bound {self.bound:g}"
        each = f" with {self.stages_per_rank} stages each"
        if self.table.graph is not None:
            each = f", {self.table.stages} stages of a graph"
        return (
            f"<weft_pipeline.Plan: {self.schedule}, {self.table.ranks} ranks"
            f"{each} (placement {self.placement}), "
            f"{self.objective} {self.value:g}, {end}; .costs has the times of each stage>"
        )


class Candidate(NamedTuple):
    """A way to use all ranks: pipelines of `ranks` ranks, `replicas` times.

    `plan` is None where the bound exceeds another candidate's value, nothing fits into the
    memory, or time was up.
    """

    ranks: int
    replicas: int
    microbatches: int
    stages_per_rank: int
    placement: str
    bound: float
    value: float
    plan: Optional[Plan]


class Choice(NamedTuple):
    """Candidates, the best first, and a bound for all of them."""

    candidates: tuple[Candidate, ...]
    bound: float
    optimal: bool
    stopped: bool
    evaluated: int

    def to_dict(self) -> dict[str, Any]:
        """Give all of it as JSON has it, with the plans."""
        return fields(self)

    def to_dataframe(self) -> Any:
        """Give a pandas DataFrame with a row for each candidate, the best first."""
        return dataframe(Candidate._fields[:-1], (entry[:-1] for entry in self.candidates))


@contextlib.contextmanager
def _interrupt_sets(stop: threading.Event) -> Iterator[None]:
    """Let Ctrl-C set an event instead of raising, where nobody else handles it."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    signal.signal(signal.SIGINT, lambda _number, _frame: stop.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class _Watch:
    """The callbacks of a search. Exceptions of the caller's functions end it and come out."""

    def __init__(
        self,
        progress: Optional[Callable[[Progress], object]],
        cancel: Optional[threading.Event],
    ) -> None:
        if progress is not None and not callable(progress):
            raise TypeError(f"progress must be a function, not {type(progress).__name__}")
        if cancel is not None and not isinstance(cancel, threading.Event):
            raise TypeError(f"cancel must be a threading.Event, not {type(cancel).__name__}")
        self.progress = progress
        self.cancel = cancel
        self.interrupt = threading.Event()
        self.error: Optional[BaseException] = None

    def stop(self, _context: object) -> bool:
        try:
            return (
                self.error is not None
                or self.interrupt.is_set()
                or (self.cancel is not None and self.cancel.is_set())
            )
        except BaseException as error:  # of a signal handler
            self.error = error
            return True

    def report(self, _context: object, progress: Any) -> None:
        try:
            if self.progress is not None and self.error is None:
                state = progress[0]
                self.progress(Progress(state.value, state.bound, state.done, state.evaluated))
        except BaseException as error:
            self.error = error

    def attach(self, request: Any) -> None:
        kinds: dict[str, Any] = {field[0]: field[1] for field in c.weft_search_request._fields_}
        request.stop = kinds["stop"](self.stop)
        if self.progress is not None:
            request.report = kinds["report"](self.report)

    def run(self, function: Any, request: Any, out: Any) -> None:
        """Call the search. Ctrl-C ends it with the best so far."""
        with _interrupt_sets(self.interrupt):
            call(function, None, ctypes.byref(request), ctypes.byref(out))


def _request(
    ranks: int,
    costs: Optional[CostsLike],
    memory: Optional[float],
    stages_per_rank: int,
    placement: Optional[str],
    objective: str,
    whole_backward: bool,
    uniform_backward: bool,
    rank_factors: Optional[Sequence[float]],
    effort: Optional[float],
    time_limit: Optional[float],
    threads: int,
    seed: Optional[int],
) -> tuple[Any, Costs]:
    costs = costs_given(costs)
    request = lib.weft_search_request_default()
    request.ranks = integer(ranks, "ranks", 1, c.WEFT_RANKS_MAX)
    request.costs = costs._handle.pointer
    if memory is not None and memory != math.inf:
        request.memory_limit = real(memory, "memory", 0, 1e300)
    request.stages_per_rank = integer(stages_per_rank, "stages_per_rank", 0, c.WEFT_STAGES_MAX)
    if placement is not None:
        request.placement = placement_number(placement)
        request.any_placement = False
    request.objective = choice(objective, "objective", _OBJECTIVES)
    request.whole_backward = boolean(whole_backward, "whole_backward")
    request.uniform_backward = boolean(uniform_backward, "uniform_backward")
    factors = costs.rank_factors if rank_factors is None else rank_factors
    if factors is not None:
        request.rank_factors = numbers(factors, "rank_factors", request.ranks, 1e-6, 1e6)
    if time_limit is not None:
        request.time_limit = real(time_limit, "time_limit", 1e-3, 1e6)
        request.effort = c.WEFT_EFFORT_OF_LIMIT * request.time_limit
        request.use_time = effort is None
    if effort is not None:
        request.effort = real(effort, "effort", 0, 1e6)
    request.threads = integer(threads, "threads", 0, 1024)
    if seed is not None:
        request.seed = integer(seed, "seed", 0, 2**64 - 1)
    return request, costs


def _set_graph(request: Any, graph: Optional[Graph], stage_ranks: object) -> None:
    request.graph = graph_pointer(graph)
    if graph is not None and request.stages_per_rank > 0:
        raise UsageError(
            "stages_per_rank makes the stages of a chain, and the graph has its own",
            "leave it out: the graph has the stages, and ranks says on how many ranks they are",
        )
    if stage_ranks is None:
        return
    if graph is None:
        raise UsageError("stage_ranks are given without a graph", "give graph=Graph(...) too")
    if not request.any_placement:
        raise UsageError("placement and stage_ranks both place the stages", "leave one of them out")
    if isinstance(stage_ranks, (str, bytes)) or not isinstance(stage_ranks, Sequence):
        raise TypeError(f"stage_ranks must be a sequence, not {type(stage_ranks).__name__}")
    if len(stage_ranks) != graph.stages:
        raise UsageError(
            f"stage_ranks has {len(stage_ranks)} ranks; the graph has {graph.stages} stages",
            "give the rank of each stage, in order",
        )
    last = request.ranks - 1
    ranks = [integer(rank, f"stage_ranks[{k}]", 0, last) for k, rank in enumerate(stage_ranks)]
    request.rank_of = (ctypes.c_uint32 * graph.stages)(*ranks)


def _plan_of(answer: Any, handle: Handle) -> Plan:
    table = Table._adopt(answer.table, handle)
    parts = answer.stage_parts
    return Plan(
        table,
        answer.makespan,
        answer.span,
        answer.bound,
        answer.open_bound,
        answer.optimal,
        answer.stopped,
        _OBJECTIVES[answer.objective],
        answer.schedule.decode(),
        answer.placement_name.decode() if answer.placement_name else PLACEMENTS[answer.placement],
        answer.stages_per_rank,
        Costs._adopt(Handle(answer.costs, None, handle)),
        tuple(parts[: table.stages]) if parts else None,
        answer.peak_memory,
        answer.all_reduce,
        answer.evaluated,
    )


def plan(
    *,
    ranks: int,
    microbatches: int,
    costs: Optional[CostsLike] = None,
    memory: Optional[float] = None,
    stages_per_rank: int = 0,
    placement: Optional[str] = None,
    replicas: int = 1,
    objective: str = "makespan",
    whole_backward: bool = False,
    uniform_backward: bool = False,
    keep_partition: bool = False,
    graph: Optional[Graph] = None,
    stage_ranks: Optional[Sequence[int]] = None,
    rank_factors: Optional[Sequence[float]] = None,
    effort: Optional[float] = None,
    time_limit: Optional[float] = None,
    threads: int = 0,
    seed: Optional[int] = None,
    progress: Optional[Callable[[Progress], object]] = None,
    cancel: Optional[threading.Event] = None,
) -> Plan:
    """Search for the best schedule for these costs within `memory` per rank.

    What is left out, the search chooses: the stages per rank, the placement ("loop" or "v"), and
    how to partition the parts of the model where the costs have them. Costs with one entry are
    those of a rank's share of the model, unless they are Costs(..., of="stage").
    `effort` is work in seconds of a typical core per thread (0.5); with `time_limit`, in seconds,
    the search uses the time. `threads` 0 takes all cores.

    With a `graph`, the stages are its own. `stage_ranks` has the
    rank of each; without it they are placed as `placement` says, or as the search chooses.

    Other Python threads run meanwhile. Ctrl-C in the main thread ends the search with the best so
    far (`stopped` is then True), and so does setting the event `cancel` from anywhere. `progress`
    is called now and then with a Progress.
    """
    watch = _Watch(progress, cancel)
    request, costs = _request(
        ranks,
        costs,
        memory,
        stages_per_rank,
        placement,
        objective,
        whole_backward,
        uniform_backward,
        rank_factors,
        effort,
        time_limit,
        threads,
        seed,
    )
    request.microbatches = integer(microbatches, "microbatches", 1, c.WEFT_MICROBATCHES_MAX)
    request.replicas = integer(replicas, "replicas", 1, c.WEFT_RANKS_MAX)
    request.keep_partition = boolean(keep_partition, "keep_partition")
    _set_graph(request, graph, stage_ranks)
    watch.attach(request)
    out = ctypes.POINTER(c.weft_search_answer)()
    watch.run(lib.weft_search, request, out)
    handle = Handle(out, lib.weft_search_answer_destroy)
    if watch.error is not None:
        raise watch.error
    return _plan_of(handle.pointer[0], handle)


def choose(
    *,
    ranks: int,
    global_batch: int,
    costs: CostsLike,
    memory: Optional[float] = None,
    stages_per_rank: int = 0,
    placement: Optional[str] = None,
    objective: str = "makespan",
    whole_backward: bool = False,
    uniform_backward: bool = False,
    graph: Optional[Graph] = None,
    rank_factors: Optional[Sequence[float]] = None,
    effort: Optional[float] = None,
    time_limit: Optional[float] = None,
    threads: int = 0,
    seed: Optional[int] = None,
    progress: Optional[Callable[[Progress], object]] = None,
    cancel: Optional[threading.Event] = None,
) -> Choice:
    """Choose how `ranks` ranks train a global batch: ranks of a pipeline, replicas, microbatches.

    `costs` have the parts of the model, or one entry that is the whole model; with a `graph`, they
    are those of its stages. The other arguments are those of plan(); the effort (2) is for all
    candidates together.
    """
    watch = _Watch(progress, cancel)
    request = c.weft_choice_request()
    request.search, costs = _request(
        ranks,
        costs,
        memory,
        stages_per_rank,
        placement,
        objective,
        whole_backward,
        uniform_backward,
        rank_factors,
        effort,
        time_limit,
        threads,
        seed,
    )
    if effort is None and time_limit is None:
        request.search.effort = c.WEFT_CHOICE_EFFORT
    request.global_batch = integer(global_batch, "global_batch", 1, 2**63)
    _set_graph(request.search, graph, None)
    watch.attach(request.search)
    out = ctypes.POINTER(c.weft_choice)()
    watch.run(lib.weft_choose, request, out)
    handle = Handle(out, lib.weft_choice_destroy)
    if watch.error is not None:
        raise watch.error
    found = handle.pointer[0]
    candidates = tuple(
        Candidate(
            item.ranks,
            item.replicas,
            item.microbatches,
            item.stages_per_rank,
            PLACEMENTS[item.placement],
            item.bound,
            item.value,
            _plan_of(item.answer[0], handle) if item.answer else None,
        )
        for item in (found.candidates[k] for k in range(found.count))
    )
    return Choice(candidates, found.bound, found.optimal, found.stopped, found.evaluated)
