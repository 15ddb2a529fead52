"""Every schedule for a shape, simulated and ranked."""

from __future__ import annotations

import ctypes
import math
from html import escape
from typing import Any, NamedTuple, Optional

from ._costs import CostsLike, costs_given
from ._data import dataframe, fields
from ._graph import Graph, graph_pointer
from ._library import Handle, c, call, in_python, integer, lib, real
from ._program import Program, Table


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

    `per_stage`: the costs were those of a stage, and not of a rank's share of the model. `why` says
    why the first one wins.
    """

    entries: tuple[Entry, ...]
    left_out: tuple[tuple[str, int, str], ...]
    per_stage: bool
    why: str

    @property
    def _scope(self) -> str:
        return f"times are of {'a stage' if self.per_stage else SHARE}"

    def to_dict(self) -> dict[str, Any]:
        """Give all of it as JSON has it, but for the tables."""
        left_out = [dict(zip(("name", "stages_per_rank", "why"), row)) for row in self.left_out]
        entries = [fields(entry, ("table",)) for entry in self.entries]
        return {**fields(self, ("entries", "left_out")), "entries": entries, "left_out": left_out}

    def to_dataframe(self) -> Any:
        """Give a pandas DataFrame with a row for each schedule, the best first."""
        return dataframe(Entry._fields[:-1], (entry[:-1] for entry in self.entries))

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

    Without `ranks` and `microbatches` the shape is that of the first program. Without
    `stages_per_rank` schedules with any number of them are tried with 1, 2, 4 and those of the
    programs. Costs with one entry are those of a rank's share of the model, unless they are
    Costs(..., of="stage"): with v stages on each rank, a stage has 1/v of them. `memory` is a limit
    per rank.

    With a `graph`, or programs that have one, which must be the same, the named schedules are
    those of the graph, and `ranks` may be left out: as many as stages.
    """
    costs = costs_given(costs)
    for program in programs:
        if not isinstance(program, Program):
            raise TypeError(f"a program must be a Program or Table, not {type(program).__name__}")
        program.verify().raise_if_bad()
    request = lib.weft_compare_request_default()
    request.ranks = integer(ranks, "ranks", 0, c.WEFT_RANKS_MAX)
    request.microbatches = integer(microbatches, "microbatches", 0, c.WEFT_MICROBATCHES_MAX)
    request.stages_per_rank = integer(stages_per_rank, "stages_per_rank", 0, c.WEFT_STAGES_MAX)
    request.graph = graph_pointer(graph)
    pointers = [program._handle.pointer for program in programs]
    request.programs = (ctypes.POINTER(c.weft_program) * len(programs))(*pointers)
    request.program_count = len(programs)
    request.costs = costs._handle.pointer
    if memory is not None and memory != math.inf:
        request.memory_limit = real(memory, "memory", 0, 1e300)
    request.keep_tables = True
    out = ctypes.POINTER(c.weft_comparison)()
    call(lib.weft_compare, None, ctypes.byref(request), ctypes.byref(out))
    handle = Handle(out, lib.weft_comparison_destroy)
    found = handle.pointer[0]
    entries = (found.entries[k] for k in range(found.entry_count))
    left_out = (found.omissions[k] for k in range(found.omission_count))
    return Comparison(
        tuple(
            Entry(
                entry.name.decode(),
                entry.stages_per_rank,
                entry.makespan,
                entry.span,
                entry.bubble_ratio,
                entry.peak_activation,
                entry.peak_memory,
                entry.fits,
                Table._adopt(entry.table, handle) if entry.info else programs[entry.program],
            )
            for entry in entries
        ),
        tuple(
            (omission.info[0].name.decode(), omission.stages_per_rank, in_python(omission.why))
            for omission in left_out
        ),
        costs.of == "stage",
        found.why.decode(),
    )
