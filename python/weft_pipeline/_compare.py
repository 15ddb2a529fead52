"""Every schedule for a shape, simulated and ranked."""

from __future__ import annotations

from functools import cmp_to_key
from html import escape
from typing import NamedTuple, Optional

from ._costs import Costs, CostsLike, costs_given
from ._errors import LimitError, UsageError
from ._graph import Graph, graph_pointer
from ._library import c, integer, lib, real
from ._program import Program, Table, schedules

_DOUBLINGS = (1, 2, 4)  # stages per rank that are tried


class Entry(NamedTuple):
    """A schedule of a comparison. `fits` is False where it needs more than the memory limit."""

    name: str
    stages_per_rank: float
    makespan: float
    span: float
    bubble: float
    peak_activation: float
    peak_memory: float
    fits: bool
    table: Program


SHARE = "a rank's share of the model"


class Comparison(NamedTuple):
    """Schedules, the best first, those that do not fit last; and why others were left out.

    `per_stage`: the costs were those of a stage, and not of a rank's share of the model.
    """

    entries: tuple[Entry, ...]
    left_out: tuple[tuple[str, int, str], ...]
    per_stage: bool

    @property
    def _scope(self) -> str:
        return f"times are of {'a stage' if self.per_stage else SHARE}"

    @property
    def best(self) -> Optional[Entry]:
        """The best that fits into the memory; None where none does."""
        return self.entries[0] if self.entries and self.entries[0].fits else None

    def __str__(self) -> str:
        """Give a table."""
        lines = [
            f"{'name':<24}{'v':>4}{'makespan':>12}{'span':>12}{'bubble':>10}{'memory':>12}  fits"
        ]
        lines += [
            f"{entry.name:<24}{entry.stages_per_rank:>4g}{entry.makespan:>12g}{entry.span:>12g}"
            f"{100 * entry.bubble:>8.2f} %{entry.peak_memory:>12g}  {'yes' if entry.fits else 'no'}"
            for entry in self.entries
        ]
        lines.append(self._scope)
        return "\n".join(lines)

    def __repr__(self) -> str:
        """Give the best."""
        best = self.best
        first = "none fits" if best is None else f"{best.name}, makespan {best.makespan:g}"
        return f"<weft_pipeline.Comparison: {len(self.entries)} schedules; {first}; {self._scope}>"

    def _repr_html_(self) -> str:
        """Show it in a notebook."""
        rows = "".join(
            f"<tr><td>{escape(entry.name)}</td><td>{entry.stages_per_rank:g}</td>"
            f"<td>{entry.makespan:g}</td><td>{entry.span:g}</td>"
            f"<td>{100 * entry.bubble:.2f} %</td><td>{entry.peak_memory:g}</td>"
            f"<td>{'yes' if entry.fits else 'no'}</td></tr>"
            for entry in self.entries
        )
        return (
            "<table><tr><th>name</th><th>v</th><th>makespan</th><th>span</th><th>bubble</th>"
            f"<th>memory</th><th>fits</th></tr>{rows}</table><p>{self._scope}</p>"
        )


def _entry(name: str, table: Program, costs: Costs, memory: Optional[float]) -> Entry:
    sim = table.simulate(costs)
    needed = sim.peak_memory
    return Entry(
        name,
        table.stages / table.ranks,
        sim.makespan,
        sim.span,
        sim.bubble,
        sim.peak_activation,
        needed,
        memory is None or needed <= memory * (1 + 1e-9),
        table,
    )


def _rank(a: tuple[int, Entry], b: tuple[int, Entry]) -> int:
    def order(x: float, y: float) -> int:
        tolerance = 1e-9 * max(abs(x), abs(y))
        return -1 if x < y - tolerance else 1 if x > y + tolerance else 0

    (first, left), (second, right) = a, b
    if left.fits != right.fits:
        return -1 if left.fits else 1
    return (
        order(left.makespan, right.makespan)
        or order(left.peak_memory, right.peak_memory)
        or order(left.stages_per_rank, right.stages_per_rank)
        or first - second
    )


def compare(
    *programs: Program,
    ranks: int = 0,
    microbatches: int = 0,
    stages_per_rank: int = 0,
    costs: Optional[CostsLike] = None,
    memory: Optional[float] = None,
    graph: Optional[Graph] = None,
) -> Comparison:
    """Simulate every named schedule for a shape, and the given tables or programs, and rank them.

    Without `ranks` and `microbatches` the shape is that of the first program. Costs with one entry
    are those of a rank's share of the model, unless they are Costs(..., of="stage"): with v stages
    on each rank, a stage has 1/v of them. `memory` is a limit per rank.

    With a `graph`, or programs that have one, which must be the same, the named schedules are
    those of the graph, and `ranks` may be left out: as many as stages.
    """
    costs = costs_given(costs)
    for program in programs:
        if not isinstance(program, Program):
            raise TypeError(f"a program must be a Program or Table, not {type(program).__name__}")
        program.verify().raise_if_bad()
    if memory is not None:
        memory = real(memory, "memory", 0, 1e300)
    graph_pointer(graph)
    if programs:
        if graph is None and not lib.weft_graph_is_chain(programs[0]._c.graph):
            graph = programs[0].graph
        ranks = ranks or programs[0].ranks
        microbatches = microbatches or programs[0].microbatches
    v = integer(stages_per_rank, "stages_per_rank", 0, c.WEFT_STAGES_MAX)
    if graph is not None:
        ranks = ranks or -(-graph.stages // max(v, 1))
    ranks = integer(ranks, "ranks", 1, c.WEFT_RANKS_MAX)
    microbatches = integer(microbatches, "microbatches", 1, c.WEFT_MICROBATCHES_MAX)
    for k, program in enumerate(programs):
        if (program.ranks, program.microbatches) != (ranks, microbatches):
            raise UsageError(
                f"program {k} has {program.ranks} ranks and {program.microbatches} microbatches, "
                f"not {ranks} and {microbatches}",
                "schedules are comparable when they do the same work on as many ranks",
            )
        if not lib.weft_graph_equal(program._c.graph, graph_pointer(graph)):
            raise UsageError(
                f"program {k} has other edges between stages: {program.graph}, not {graph}",
                "schedules are comparable when their stages form the same graph",
            )
    is_uneven = graph is not None and not v and graph.stages % ranks != 0
    if graph is not None and not is_uneven:
        v = v or graph.stages // ranks
    if graph is not None and not programs and graph.stages != ranks * v:
        raise UsageError(
            f"the graph has {graph.stages} stages, which is not {ranks} ranks with {v or 'v'} "
            f"stages each",
            "leave ranks and stages_per_rank out: then there are as many ranks as stages; "
            "plan(graph=...) takes any number of ranks",
        )
    if costs.stages != 1 and not is_uneven:
        if costs.stages % ranks or (v and costs.stages != ranks * v):
            raise UsageError(
                f"the costs have {costs.stages} entries in stages, which is not {ranks} ranks with "
                f"{v or 'v'} stages each",
                "give one entry that serves all stages, or one for each stage",
            )
        v = costs.stages // ranks
    entries = [_entry(f"program {k}", program, costs, memory) for k, program in enumerate(programs)]
    left_out = []
    for info in schedules():
        if is_uneven or not info.trains or info.fixed:
            continue
        for count in (v,) if v else _DOUBLINGS:
            most = info.stages_per_rank_max
            if not v and (count < info.stages_per_rank_min or (most and count > most)):
                continue
            try:
                table = Table.named(
                    info.name,
                    ranks=ranks,
                    stages_per_rank=count,
                    microbatches=microbatches,
                    graph=graph,
                )
            except (UsageError, LimitError) as error:
                left_out.append((info.name, count, error.message))
                continue
            entries.append(_entry(info.name, table, costs, memory))
    ranked = sorted(enumerate(entries), key=cmp_to_key(_rank))
    return Comparison(tuple(entry for _, entry in ranked), tuple(left_out), costs.of == "stage")
