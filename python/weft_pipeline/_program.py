"""Tables and programs: what each rank does, in order."""

from __future__ import annotations

import ctypes
import operator
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, TypeVar, Union, overload

from ._data import ACTION, action_columns, dataframe, fields, plain
from ._errors import InvalidError, UsageError
from ._graph import Graph, chain_edges, graph_pointer
from ._library import (
    Handle,
    Immutable,
    Path,
    array_of,
    boolean,
    c,
    call,
    content,
    integer,
    lib,
    path_name,
    read_file,
    records,
    string,
    text_of,
    write_file,
)

if TYPE_CHECKING:
    from ._costs import CostsLike
    from ._report import Report
    from ._simulation import Simulation

_ProgramPointer = ctypes.POINTER(c.weft_program)
_RECORD = struct.Struct("=BBHI")  # struct weft_action


class _Op(NamedTuple):
    text: str
    kind: int
    has_microbatch: bool


def _op_table() -> list[_Op]:
    rows = [lib.weft_op_info(op).contents for op in range(c.WEFT_OP_COUNT)]
    return [_Op(row.text.decode(), row.kind, row.has_microbatch) for row in rows]


_OPS = _op_table()
_OP_NUMBERS = {op.text: number for number, op in enumerate(_OPS)}
PLACEMENTS = ("loop", "v", "inferred")
_Self = TypeVar("_Self", bound="Program")


class Action(NamedTuple):
    """One action of a rank: what it does (`op`), for which stage and microbatch.

    `microbatch` is None where the op has none. An OVERLAP_F_B has no stage (None) and runs its
    `parts` together. `peer` is the stage at the other end of a SEND or RECV that skips stages.
    The text form is PyTorch's: str(Action("F", 2, 0)) is "2F0".
    """

    op: str
    stage: Optional[int]
    microbatch: Optional[int] = None
    parts: tuple[Action, ...] = ()
    peer: Optional[int] = None

    def __str__(self) -> str:
        """Give the text form."""
        if self.parts:
            return f"({';'.join(map(str, self.parts))}){self.op}"
        text = f"{self.stage}{self.op}{'' if self.microbatch is None else self.microbatch}"
        if self.peer is None:
            return text
        return f"{text}{'>' if self.op.startswith('SEND') else '<'}{self.peer}"

    def _plain(self) -> str:
        return str(self)


Cell = Union[Action, str, None]
ScheduleName = Union[str, type]  # PyTorch's class of that name


_UP = (c.WEFT_OP_SEND_F, c.WEFT_OP_RECV_B)  # their other end is a higher stage


def _action(op: int, skip: int, stage: int, microbatch: int) -> Action:
    info = _OPS[op]
    peer = (stage + 1 + skip if op in _UP else stage - 1 - skip) if skip else None
    return Action(info.text, stage, microbatch if info.has_microbatch else None, (), peer)


def _cells(view: memoryview) -> Iterator[Optional[Action]]:
    """Read the cells of a row's records; None is a bubble."""
    rows = _RECORD.iter_unpack(view)
    for op, parts, stage, microbatch in rows:
        if op == c.WEFT_OP_IDLE:
            yield None
        elif op == c.WEFT_OP_OVERLAP_F_B:
            inside = []
            for _ in range(parts):
                inside.append(_action(*next(rows)))
            yield Action(_OPS[op].text, None, None, tuple(inside))
        else:
            yield _action(op, parts, stage, microbatch)


def action_at(pointer: Any) -> Optional[Action]:
    """Read the cell whose first record a pointer of the library names; None where it is NULL."""
    if not pointer:
        return None
    first = pointer[0]
    count = 1 + (first.parts if first.op == c.WEFT_OP_OVERLAP_F_B else 0)
    return next(_cells(records(pointer, c.weft_action, count, None)))


class Difference(NamedTuple):
    """Where two programs differ: a cell of each; None where that side has none."""

    rank: int
    step_a: Optional[int]
    step_b: Optional[int]
    a: Optional[Action]
    b: Optional[Action]

    def __str__(self) -> str:
        """Give the place and both cells."""
        sides = [
            "nothing" if step is None else f"{action or 'a bubble'} (step {step})"
            for step, action in ((self.step_a, self.a), (self.step_b, self.b))
        ]
        return f"rank {self.rank}: {sides[0]} -> {sides[1]}"


_LINKS = {None: "none", False: "without gradient", True: "with gradient"}


class EdgeDifference(NamedTuple):
    """An edge between stages that two programs do not share.

    `a` and `b` say whether it has a gradient there; None where there is no such edge.
    """

    from_stage: int
    to_stage: int
    a: Optional[bool]
    b: Optional[bool]

    def __str__(self) -> str:
        """Give the edge and what it is on both sides."""
        return f"edge {self.from_stage}>{self.to_stage}: {_LINKS[self.a]} -> {_LINKS[self.b]}"


class Diff(NamedTuple):
    """All differences of two programs, and how many were left out. False when there is none."""

    differences: tuple[Difference, ...]
    left_out: int
    edges: tuple[EdgeDifference, ...] = ()

    def __bool__(self) -> bool:
        """Tell whether the programs differ."""
        return bool(self.edges) or bool(self.differences) or self.left_out > 0

    def __str__(self) -> str:
        """Give a line for each difference."""
        lines = [str(difference) for difference in (*self.edges, *self.differences)]
        if self.left_out:
            lines.append(f"and {self.left_out} more")
        return "\n".join(lines) or "no difference"

    def to_dict(self) -> dict[str, Any]:
        """Give all of it as JSON has it, actions as text."""
        return fields(self)

    def to_dataframe(self) -> Any:
        """Give a pandas DataFrame with a row for each difference of cells."""
        return dataframe(Difference._fields, (plain(d).values() for d in self.differences))


class Reference(NamedTuple):
    """Another instruction of the same program."""

    rank: int
    number: int
    action: Optional[Action]


class Instruction(NamedTuple):
    """One instruction and what it is linked to.

    `number` counts the records of the rank, `step` its cells. `peer` is the other end of a SEND
    or RECV, `needs` what the instruction waits for on top of that.
    """

    rank: int
    number: int
    step: int
    action: Optional[Action]
    peer: Optional[Reference]
    needs: tuple[Reference, ...]


class Explanation(Sequence[Instruction]):
    """Every instruction of a program, or of one rank. print() shows it as a table."""

    def __init__(self, instructions: Iterable[Instruction]) -> None:
        """Make an explanation of instructions."""
        self._instructions = tuple(instructions)

    @overload
    def __getitem__(self, index: int) -> Instruction: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Instruction]: ...

    def __getitem__(self, index: Union[int, slice]) -> Union[Instruction, Sequence[Instruction]]:
        """Give the instructions at an index."""
        return self._instructions[index]

    def __len__(self) -> int:
        """Count the instructions."""
        return len(self._instructions)

    def to_dict(self) -> dict[str, Any]:
        """Give the instructions as JSON has them, actions as text."""
        return {"instructions": plain(self._instructions)}

    def to_dataframe(self) -> Any:
        """Give a pandas DataFrame with a row for each instruction; bubbles have no action.

        `peer_rank` and `peer_number` name the instruction at the other end.
        """
        bubble = (None,) * len(ACTION)
        return dataframe(
            ("rank", "number", "step", *ACTION, "peer_rank", "peer_number"),
            (
                (
                    *entry[:3],
                    *(bubble if entry.action is None else action_columns(entry.action)),
                    *((None, None) if entry.peer is None else entry.peer[:2]),
                )
                for entry in self._instructions
            ),
        )

    def __str__(self) -> str:
        """Give a line for each instruction."""
        lines = [f"{'rank':>5}{'#':>6}{'step':>7}  {'action':<18}peer, waits for"]
        for entry in self._instructions:

            def words(reference: Reference, here: int = entry.rank) -> str:
                where = "" if reference.rank == here else f"rank {reference.rank} "
                return f"{where}#{reference.number} {reference.action}"

            ties = [f"with {words(entry.peer)}"] if entry.peer else []
            if entry.needs:
                ties.append("after " + ", ".join(map(words, entry.needs)))
            action = "(bubble)" if entry.action is None else str(entry.action)
            lines.append(
                f"{entry.rank:>5}{entry.number:>6}{entry.step:>7}  {action:<18}"
                f"{'; '.join(ties) or '-'}"
            )
        return "\n".join(lines)


class Program(Immutable):
    """What every rank does in one training step, communication included.

    Make one with Table.lower(), Program.parse(), Program.load() or Program.from_rows(). A program
    is a sequence of rows, one for each rank, and a row is a tuple of Action, with None for a
    bubble. It does not change, and threads may share it.
    """

    __slots__ = ("_handle",)
    _handle: Handle

    def __init__(self) -> None:
        """Refuse: there are constructors with names."""
        kind = type(self).__name__
        raise TypeError(f"use {kind}.parse(), {kind}.load() or {kind}.from_rows()")

    @classmethod
    def _adopt(cls: type[_Self], pointer: Any, keep: Any = None) -> _Self:
        """Make an object that owns a struct weft_program, or borrows it from `keep`."""
        destroy = lib.weft_program_destroy if keep is None else None
        self = cls.__new__(cls)
        object.__setattr__(self, "_handle", Handle(pointer, destroy, keep))
        return self

    @classmethod
    def parse(
        cls: type[_Self],
        text: Union[str, bytes],
        name: str = "input",
        graph: Optional[Graph] = None,
    ) -> _Self:
        """Read the CSV form: a row for each rank, a cell for each step. Errors call it `name`.

        `graph` has the edges between stages, for a text without a row `#graph` or with the same.
        """
        data = content(text, "text")
        out = _ProgramPointer()
        call(lib.weft_program_parse, None, data, len(data), string(name, "name"), ctypes.byref(out))
        self = cls._adopt(out)
        if cls is not Program:
            self._check_level(name)
        if graph is not None:
            self._take_graph(graph, name)
        return self

    def _take_graph(self, graph: Graph, name: str) -> None:
        """Give a program that has just been made its graph."""
        pointer, own = graph_pointer(graph), self._c.graph
        if own and not lib.weft_graph_equal(own, pointer):
            raise UsageError(
                f"the row #graph of {name} is {self.graph}, and the graph {graph}",
                "leave graph out, or give the one that the table was made for",
            )
        call(lib.weft_program_set_graph, self._handle.pointer, pointer)

    def _check_level(self, name: str) -> None:
        """Refuse communication in a table."""

    @classmethod
    def load(cls: type[_Self], path: Path, graph: Optional[Graph] = None) -> _Self:
        """Read a CSV file; `graph` as in parse()."""
        return cls.parse(read_file(path), path_name(path).replace("\0", ""), graph)

    @classmethod
    def from_rows(
        cls: type[_Self], rows: Iterable[Iterable[Cell]], graph: Optional[Graph] = None
    ) -> _Self:
        """Make one of rows, one for each rank, of cells: Action, text, or None (a bubble).

        Rows have no edges: give the graph of a program that has one.
        """
        lines = []
        for rank, row in enumerate(rows):
            if isinstance(row, (str, bytes)):
                raise TypeError(f"row {rank} must be a sequence of cells, not a text")
            line = ",".join(_cell_text(cell, rank, k) for k, cell in enumerate(row))
            lines.append((line or '""') + "\n")  # a blank line at the end would be no rank
        return cls.parse("".join(lines), "rows", graph)

    # ---- What it has ----

    @property
    def _c(self) -> Any:
        return self._handle.pointer[0]

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return int(self._c.rank_count)

    @property
    def stages(self) -> int:
        """Number of stages."""
        return int(self._c.stage_count)

    @property
    def microbatches(self) -> int:
        """Number of microbatches."""
        return int(self._c.microbatch_count)

    @property
    def graph(self) -> Optional[Graph]:
        """The graph of its stages; None where they form a chain and nothing more is known."""
        pointer = self._c.graph
        return Graph._adopt(lib.weft_graph_hold(pointer)) if pointer else None

    @property
    def has_communication(self) -> bool:
        """Whether it has SEND, RECV, UNSHARD, RESHARD or TIE_GRAD: not so in a table."""
        return bool(self._c.level == c.WEFT_LEVEL_COMMS)

    @property
    def actions(self) -> Any:
        """All records, rank after rank, without a copy and read-only.

        With NumPy a structured array with the fields op, parts, stage and microbatch; without it
        a memoryview of 8 bytes for each record (struct format "BBHI"). `row_begin` divides it.
        """
        return array_of(self._records(), c.weft_action)

    def _records(self) -> memoryview:
        program = self._c
        return records(program.actions, c.weft_action, program.action_count, self._handle)

    @property
    def row_begin(self) -> tuple[int, ...]:
        """Where each rank's records begin in `actions`, and where the last one's end."""
        program = self._c
        return tuple(program.row_begin[: program.rank_count + 1])

    @property
    def placement(self) -> str:
        """'loop', 'v', or 'inferred' for any other."""
        return self._placement()[0]

    @property
    def rank_of_stage(self) -> tuple[Optional[int], ...]:
        """The rank that computes each stage; None where no rank does."""
        return self._placement()[1]

    def _placement(self) -> tuple[str, tuple[Optional[int], ...]]:
        owners = (ctypes.c_uint32 * max(self.stages, 1))()
        kind = lib.weft_placement_infer(self._handle.pointer, owners)
        ranks = tuple(None if k == c.WEFT_RANK_NONE else k for k in owners[: self.stages])
        return PLACEMENTS[kind], ranks

    def __len__(self) -> int:
        """Count the ranks."""
        return self.ranks

    def __getitem__(self, rank: int) -> tuple[Optional[Action], ...]:
        """Give the row of a rank."""
        rank = operator.index(rank)
        if not -self.ranks <= rank < self.ranks:
            raise IndexError(f"rank {rank} is not there: the program has {self.ranks} ranks")
        rank %= self.ranks
        begin, end = self._c.row_begin[rank], self._c.row_begin[rank + 1]
        return tuple(_cells(self._records()[8 * begin : 8 * end]))

    def __iter__(self) -> Iterator[tuple[Optional[Action], ...]]:
        """Go through the rows."""
        return (self[rank] for rank in range(self.ranks))

    def steps(self, rank: int) -> int:
        """Count the cells of a rank's row."""
        rank = integer(rank, "rank", 0, self.ranks - 1)
        return int(lib.weft_program_row_steps(self._handle.pointer, rank))

    def __eq__(self, other: object) -> bool:
        """Compare the edges between stages, and the rows, action for action."""
        if not isinstance(other, Program):
            return NotImplemented
        return bool(lib.weft_program_equal(self._handle.pointer, other._handle.pointer))

    def __hash__(self) -> int:
        """Hash the rows: the same on every machine."""
        return int(lib.weft_program_hash(self._handle.pointer))

    def __reduce__(self) -> Any:
        """Pickle as CSV, and the graph, whose names and sizes CSV has not."""
        return type(self).parse, (str(self), "input", self.graph)

    def __repr__(self) -> str:
        """Give the shape."""
        graph = ", a graph" if self._c.graph else ""
        return (
            f"<weft_pipeline.{type(self).__name__}: {self.ranks} ranks, {self.stages} stages"
            f"{graph}, {self.microbatches} microbatches>"
        )

    def __str__(self) -> str:
        """Give the CSV form."""
        return text_of(lib.weft_program_print, self._handle.pointer, fails=False)

    def save(self, path: Path) -> None:
        """Write the CSV form to a file; to .svg, .html, .png or .pdf its timeline, as simulate()
        gives it without costs."""
        if path_name(path).endswith(_simulation.PICTURES):
            self.simulate().save(path)
        else:
            write_file(path, str(self))

    def grid(self) -> str:
        """Give PyTorch's text grid: a line for each step, a column for each rank."""
        return text_of(lib.weft_grid_print, self._handle.pointer, None)

    def to_dict(self) -> dict[str, Any]:
        """Give the shape and the rows as JSON has them, actions as text and None for a bubble."""
        names = ("ranks", "stages", "microbatches", "placement", "rank_of_stage", "graph")
        return {
            **{name: plain(getattr(self, name)) for name in (*names, "has_communication")},
            "rows": [plain(row) for row in self],
        }

    def to_dataframe(self) -> Any:
        """Give a pandas DataFrame with a row for each action, in the order of its rank."""
        return dataframe(
            ("rank", "step", *ACTION),
            (
                (rank, step, *action_columns(action))
                for rank, row in enumerate(self)
                for step, action in enumerate(row)
                if action is not None
            ),
        )

    # ---- What can be done with it ----

    def verify(
        self,
        comm: Union[str, int] = "rendezvous",
        *,
        channel: str = "edge",
        stages: int = 0,
        microbatches: int = 0,
        max_findings: int = 100,
    ) -> Report:
        """Prove that it is complete, in order, and cannot hang; or say what is wrong.

        `comm` says when a send ends, as SEND_MODELS lists: "rendezvous" is the strictest, and a
        number K is "slots:K". `channel` says what shares a channel, as CHANNEL_MODELS lists.
        docs/verify.md explains all of them. `stages` and `microbatches` are those expected; 0
        takes the program's own.
        """
        return _report.verify(self, comm, channel, stages, microbatches, max_findings)

    def simulate(
        self,
        costs: Optional[CostsLike] = None,
        *,
        channel: str = "edge",
        rank_factors: Optional[Sequence[float]] = None,
        jitter: float = 0,
        seed: int = 1,
    ) -> Simulation:
        """Predict times, idle times and memory; without costs, F, I and W take 1 each.

        `costs` are Costs, or a dict with their arguments: simulate({"f": 1, "b": 2}).
        `rank_factors` says how many times as long each rank takes (those of the costs, where
        they have them); `jitter` is the standard deviation of an action's time as a share of it.
        """
        return _simulation.simulate(self, costs, channel, rank_factors, jitter, seed)

    def diff(self, other: Program, max_differences: int = 1000) -> Diff:
        """Compare with another program: a shortest edit script for each rank."""
        if not isinstance(other, Program):
            raise TypeError(f"other must be a Program or Table, not {type(other).__name__}")
        limit = integer(max_differences, "max_differences", 0, 2**31)
        out = ctypes.POINTER(c.weft_diff)()
        call(
            lib.weft_diff_create,
            None,
            self._handle.pointer,
            other._handle.pointer,
            limit,
            ctypes.byref(out),
        )
        handle = Handle(out, lib.weft_diff_destroy, (self._handle, other._handle))
        diff = handle.pointer[0]

        def step(number: int) -> Optional[int]:
            return None if number == 2**64 - 1 else number

        found = tuple(
            Difference(
                item.rank,
                step(item.step_a),
                step(item.step_b),
                action_at(item.a),
                action_at(item.b),
            )
            for item in (diff.differences[k] for k in range(diff.difference_count))
        )
        return Diff(found, diff.left_out, _edges_of(self, other) if diff.graphs_differ else ())

    def explain(self, rank: Optional[int] = None) -> Explanation:
        """List every instruction, of all ranks or of one, with what it is linked to."""
        if rank is not None:
            rank = integer(rank, "rank", 0, self.ranks - 1)
        out = ctypes.POINTER(c.weft_links)()
        call(lib.weft_links_create, None, self._handle.pointer, ctypes.byref(out))
        links = Handle(out, lib.weft_links_destroy, self._handle)
        wanted = range(self.ranks) if rank is None else (rank,)
        return Explanation(entry for r in wanted for entry in _instructions(self, links, r))

    def dry_run(self) -> Program:
        """Run it as PyTorch's dry run does, untimed: the same with bubbles where a rank waits."""
        out = _ProgramPointer()
        call(lib.weft_dry_run, None, self._handle.pointer, ctypes.byref(out))
        return Program._adopt(out)

    def _repr_svg_(self) -> Optional[str]:
        """Draw it in a notebook, with unit costs; nothing where it cannot be executed."""
        try:
            return self.simulate()._repr_svg_()
        except InvalidError:
            return None


def _edges_of(a: Program, b: Program) -> tuple[EdgeDifference, ...]:
    """List the edges that differ: those of a first, then those that only b has."""
    sides = [
        {
            edge[:2]: edge.gradient
            for edge in (chain_edges(side.stages) if side.graph is None else side.graph.edges)
        }
        for side in (a, b)
    ]
    every = {**sides[0], **sides[1]}
    found = (EdgeDifference(*edge, *(side.get(edge) for side in sides)) for edge in every)
    return tuple(edge for edge in found if edge.a is not edge.b)


def _cell_text(cell: object, rank: int, step: int) -> str:
    if cell is None:
        return ""
    if not isinstance(cell, (str, Action)):
        raise TypeError(
            f"row {rank}, cell {step} must be an Action, a str or None, not {type(cell).__name__}"
        )
    text = str(cell)
    if any(mark in text for mark in ',"\r\n'):
        raise UsageError(f"row {rank}, cell {step} is {text!r}; expected one action")
    return text


def _instructions(program: Program, links: Handle, rank: int) -> Iterator[Instruction]:
    rows = program.row_begin
    everything = program._records()

    def reference(record: int) -> Reference:
        where = lib.weft_program_rank_at(program._handle.pointer, record)
        cell = next(_cells(everything[8 * record :]))
        return Reference(where, record - rows[where], cell)

    needs = (ctypes.c_uint64 * c.WEFT_NEEDS_MAX)()
    step, left = -1, 0  # parts of the overlap that are still to come
    for record in range(rows[rank], rows[rank + 1]):
        op, parts, _, _ = _RECORD.unpack_from(everything, 8 * record)
        if left:
            left -= 1
        else:
            step += 1
            left = parts if op == c.WEFT_OP_OVERLAP_F_B else 0
        peer = lib.weft_links_peer(links.pointer, record)
        count = lib.weft_links_needs(links.pointer, record, needs)
        yield Instruction(
            rank,
            record - rows[rank],
            step,
            reference(record).action,
            None if peer == c.WEFT_MATCH_NONE else reference(peer),
            tuple(reference(need) for need in needs[:count]),
        )


class Table(Program):
    """A schedule table: the compute actions of every rank, without communication.

    Make one with Table.named(), Table.parse(), Table.load() or Table.from_rows(). lower() makes
    it a program.
    """

    __slots__ = ()

    @classmethod
    def named(
        cls,
        name: ScheduleName,
        *,
        ranks: int = 0,
        microbatches: int = 0,
        stages_per_rank: int = 0,
        placement: str = "loop",
        graph: Optional[Graph] = None,
    ) -> Table:
        """Make the table of a named schedule; schedules() lists them.

        PyTorch's classes and their names will do: ScheduleInterleaved1F1B.
        Without `stages_per_rank` the schedule's default is taken. `placement` is for ForwardOnly;
        the others have their own. With a `graph`, `ranks` may be left out: there are as many as
        its stages need. A fixed table ("VShaped") needs no shape.
        """
        shape = c.weft_shape()
        shape.ranks = integer(ranks, "ranks", 0, 2**32 - 1)
        shape.microbatches = integer(microbatches, "microbatches", 0, 2**32 - 1)
        shape.stages_per_rank = integer(stages_per_rank, "stages_per_rank", 0, 2**32 - 1)
        shape.placement = placement_number(placement)
        out = _ProgramPointer()
        shape.graph = graph_pointer(graph)
        wanted = string(schedule_name(name), "name"), ctypes.byref(shape)
        try:
            call(lib.weft_generate, None, *wanted, ctypes.byref(out))
        except UsageError as error:
            if not lib.weft_schedule_find(wanted[0], None):
                between = "" if not error.hint else " " if error.hint.endswith("?") else "; "
                error.hint += f"{between}weft_pipeline.schedules() lists the names"
            raise
        return Table._adopt(out)

    def _check_level(self, name: str) -> None:
        if self.has_communication:
            raise InvalidError(
                f"{name} is a program with communication, not a table",
                "read it with Program.parse() or Program.load()",
            )

    def lower(
        self,
        *,
        merge_bw: bool = False,
        unshard: bool = True,
        reduce_grad: bool = True,
        tie_grad: bool = False,
        communicate: bool = True,
        unshard_window: int = 3,
    ) -> Program:
        """Make it a program: add SEND and RECV, UNSHARD and RESHARD, and REDUCE_GRAD.

        `merge_bw` makes an I that its W follows a B, `tie_grad` adds TIE_GRAD for weights that
        the first and the last stage share, `unshard_window` is how many stages of a rank are
        unsharded at once.
        """
        options = c.weft_lower_options()
        options.merge_bw = boolean(merge_bw, "merge_bw")
        options.unshard = boolean(unshard, "unshard")
        options.reduce_grad = boolean(reduce_grad, "reduce_grad")
        options.tie_grad = boolean(tie_grad, "tie_grad")
        options.communicate = boolean(communicate, "communicate")
        options.unshard_window = integer(unshard_window, "unshard_window", 1, c.WEFT_STAGES_MAX)
        out = _ProgramPointer()
        call(lib.weft_lower, None, self._handle.pointer, ctypes.byref(options), ctypes.byref(out))
        return Program._adopt(out)

    def for_pytorch(self) -> Table:
        """Give the table as PyTorch's loader takes it: without REDUCE_GRAD, which it refuses.

        `_load_csv(path, format="compute_only")` of PyTorch reads what `save(path)` then writes.
        """
        out = _ProgramPointer()
        call(lib.weft_table_for_pytorch, None, self._handle.pointer, ctypes.byref(out))
        return Table._adopt(out)


def schedule_name(given: Any) -> Any:
    """Give the name of a schedule that may be a class of PyTorch's."""
    return given.__name__ if isinstance(given, type) else given


def placement_number(placement: object) -> int:
    """Check the name of a placement that a shape can have."""
    if not isinstance(placement, str):
        raise TypeError(f"placement must be a str, not {type(placement).__name__}")
    if placement not in PLACEMENTS[:2]:
        raise UsageError(f"placement is {placement!r}; expected 'loop' or 'v'")
    return PLACEMENTS.index(placement)


class ScheduleInfo(NamedTuple):
    """What is known about a named schedule. A maximum of None means any."""

    name: str
    summary: str
    paper: str
    placement: str
    stages_per_rank_min: int
    stages_per_rank_max: Optional[int]
    stages_per_rank_default: int
    splits_backward: bool
    trains: bool
    in_pytorch: bool
    fixed: bool
    bubble: str
    peak_activation: str
    limits: str


def schedules() -> tuple[ScheduleInfo, ...]:
    """List the named schedules."""
    result = []
    for index in range(lib.weft_schedule_count()):
        info = lib.weft_schedule_at(index).contents
        most = info.stages_per_rank_max
        result.append(
            ScheduleInfo(
                info.name.decode(),
                info.summary.decode(),
                info.paper.decode(),
                PLACEMENTS[info.placement],
                info.stages_per_rank_min,
                None if most == 2**32 - 1 else most,
                info.stages_per_rank_default,
                info.splits_backward,
                info.trains,
                info.in_pytorch,
                info.fixed,
                info.bubble.decode(),
                info.peak_activation.decode(),
                info.limits.decode(),
            )
        )
    return tuple(result)


from . import _report, _simulation  # noqa: E402  They import this module.
