"""For PyTorch: prove what its pipeline schedules really run, and run Weft's tables in it.

Tested with PyTorch 2.13. Importing this module does not import PyTorch; its functions do.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Callable, Optional, Union

from ._autoplan import Autoplan, Step, plan_for, profile_program, stages_in
from ._costs import Costs
from ._errors import UnavailableError, UsageError
from ._graph import refuse_graph
from ._kineto import costs_from_kineto, timeline_from_kineto
from ._pipeline import Pipeline, StepResult
from ._plan import Plan
from ._program import Program, Table
from ._report import Report
from ._split import Split, split

__all__ = [
    "Autocheck",
    "Autoplan",
    "Pipeline",
    "Split",
    "StepResult",
    "autocheck",
    "autoplan",
    "check",
    "costs_from_kineto",
    "profile",
    "program_of",
    "runtime",
    "split",
    "stages_of",
    "timeline_from_kineto",
]

_ORDER = "pipeline_order_with_comms"
_PREPARE = "_prepare_schedule_with_comms"


def _schedules() -> Any:
    """PyTorch's module of schedules."""
    try:
        return import_module("torch.distributed.pipelining.schedules")
    except ImportError as error:
        raise UnavailableError(
            f"PyTorch with torch.distributed.pipelining is not there: {error}", "pip install torch"
        ) from error


# ---- What a schedule runs ----


def _forward_only(rank: int, ranks: int, microbatches: int) -> list[str]:
    row = []
    for k in range(microbatches):
        row += [f"{rank}RECV_F{k}"] * (rank > 0)
        row += [f"{rank}F{k}"]
        row += [f"{rank}SEND_F{k}"] * (rank < ranks - 1)
    return row


def _backward(rank: int, ranks: int, k: int) -> list[str]:
    row = [f"{rank}RECV_B{k}"] * (rank < ranks - 1)
    row += [f"{rank}B{k}"]
    return row + [f"{rank}SEND_B{k}"] * (rank > 0)


def _gpipe(rank: int, ranks: int, microbatches: int) -> list[str]:
    row = _forward_only(rank, ranks, microbatches)
    for k in range(microbatches):
        row += _backward(rank, ranks, k)
    return [*row, f"{rank}REDUCE_GRAD"]


def _one_f_one_b(rank: int, ranks: int, microbatches: int) -> list[str]:
    """The loop of Schedule1F1B.

    It starts a send and a receive together and then waits for both. A row has them one after the
    other, which is stricter: the send first on the side of the next rank, the receive first on
    that of the one before, as both ends of the same pair of messages.
    """
    first, last = rank == 0, rank == ranks - 1
    warm_up = min(microbatches, ranks - rank)
    row = []
    for k in range(warm_up):
        row += [f"{rank}RECV_F{k}"] * (not first)
        row += [f"{rank}F{k}"]
        row += [f"{rank}SEND_F{k}"] * (not last)
    for k in range(microbatches):
        row += [f"{rank}RECV_B{k}"] * (not last)
        row += [f"{rank}B{k}"]
        n = warm_up + k  # the forward that follows this backward
        row += [f"{rank}RECV_F{n}"] * (not first and n < microbatches)
        row += [f"{rank}SEND_B{k}"] * (not first)
        if n < microbatches:
            row += [f"{rank}F{n}"]
            row += [f"{rank}SEND_F{n}"] * (not last)
    return [*row, f"{rank}REDUCE_GRAD"]


def _single(schedules: Any, schedule: Any) -> Program:
    """GPipe, 1F1B and forward only have a loop of their own instead of a program."""
    loops: dict[Any, Callable[[int, int, int], list[str]]] = {
        schedules.ScheduleGPipe._step_microbatches: _gpipe,
        schedules.Schedule1F1B._step_microbatches: _one_f_one_b,
        schedules._ScheduleForwardOnly._step_microbatches: _forward_only,
    }
    loop = loops.get(type(schedule)._step_microbatches)
    if loop is None:
        raise UnavailableError(
            f"{type(schedule).__name__} has a _step_microbatches() of its own, so what it runs is "
            f"not known",
            "check the program that it runs with weft_pipeline.Program.from_rows(rows).verify()",
        )
    if not getattr(schedule, "_has_backward", True):
        loop = _forward_only
    ranks, microbatches = schedule._num_stages, schedule._n_microbatches
    return Program.from_rows(loop(rank, ranks, microbatches) for rank in range(ranks))


def _rows(order: Any) -> list[list[Optional[str]]]:
    """PyTorch's rows as text. A rank that is missing has an empty row, which a check finds."""
    ranks = max(order, default=-1) + 1
    return [
        [None if action is None else str(action) for action in order.get(rank, ())]
        for rank in range(ranks)
    ]


def program_of(schedule: Any) -> Program:
    """Give what a live PyTorch schedule runs, of all ranks.

    For schedules of _PipelineScheduleRuntime (all with several stages on a rank) that is their
    program with communication; for GPipe and 1F1B, what their loops do; for another
    PipelineScheduleMulti its table.
    """
    schedules = _schedules()
    if isinstance(schedule, schedules._PipelineScheduleRuntime):
        order = getattr(schedule, _ORDER, None)
        if not order:
            raise UsageError(
                "the schedule has no program yet", "load one (_load_csv) before it is checked"
            )
        return Program.from_rows(_rows(order))
    if isinstance(schedule, schedules.PipelineScheduleSingle):
        return _single(schedules, schedule)
    if isinstance(schedule, schedules.PipelineScheduleMulti):
        if not schedule.pipeline_order:
            raise UsageError("the schedule has no table yet", "load one before it is checked")
        return Table.from_rows(_rows(schedule.pipeline_order))
    raise TypeError(f"schedule must be a schedule of PyTorch, not {type(schedule).__name__}")


# ---- Checks ----


def check(schedule: Any, comm: Union[str, int] = "rendezvous", *, channel: str = "edge") -> Report:
    """Prove that a live PyTorch schedule is complete, in order, and cannot hang.

    It looks at what PyTorch will really run, communication included, and raises a VerifyError
    with the cycle of ranks that wait for each other, or with what else is wrong. `comm` and
    `channel` are those of Program.verify(); the default is the strictest.
    """
    program = program_of(schedule)
    report = program.verify(
        comm,
        channel=channel,
        stages=schedule._num_stages,
        microbatches=schedule._n_microbatches,
    )
    return report.raise_if_bad()


class Autocheck:
    """Checks that are switched on; off() or the end of a `with` block switches them off."""

    def __init__(self, comm: Union[str, int], channel: str) -> None:
        """Switch the checks on."""
        self._comm = comm
        self._channel = channel
        self._on = True
        schedules = _schedules()
        self._wrap(schedules._PipelineScheduleRuntime, _PREPARE, self._check)
        self._wrap(schedules.PipelineScheduleSingle, "__init__", self._check)
        self._wrap(schedules.PipelineScheduleMulti, "_load_csv", self._check_loaded)

    def _wrap(self, kind: Any, name: str, after: Callable[[Any], None]) -> None:
        original = kind.__dict__[name]

        @functools.wraps(original)
        def checked(schedule: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(schedule, *args, **kwargs)
            if self._on:
                after(schedule)
            return result

        setattr(kind, name, checked)

    def _check(self, schedule: Any) -> None:
        try:
            check(schedule, self._comm, channel=self._channel)
        except UnavailableError as error:
            warnings.warn(f"not checked: {error.message}", stacklevel=4)

    def _check_loaded(self, schedule: Any) -> None:
        # The runtime's own _load_csv goes on to make a program, and that is checked.
        if not isinstance(schedule, _schedules()._PipelineScheduleRuntime):
            self._check(schedule)

    def off(self) -> None:
        """Switch the checks off."""
        self._on = False

    def __enter__(self) -> Autocheck:
        """Leave the checks on."""
        return self

    def __exit__(self, *_: object) -> None:
        """Switch the checks off."""
        self.off()


def autocheck(comm: Union[str, int] = "rendezvous", *, channel: str = "edge") -> Autocheck:
    """Check every schedule that is built or loaded from now on.

    The constructor, or _load_csv(), then raises a VerifyError instead of giving a schedule that
    would hang. off() of what is returned switches it off.
    """
    Program.from_rows([["0F0"]]).verify(comm, channel=channel)  # refuses wrong arguments now
    return Autocheck(comm, channel)


# ---- Running a table ----


def _lowered(source: Union[Table, Program, Plan]) -> Program:
    if isinstance(source, Plan):
        source = source.table
    if isinstance(source, Table):
        return source.lower()
    if not isinstance(source, Program):
        raise TypeError(f"expected a Table, Program or Plan, not {type(source).__name__}")
    return source


def stages_of(source: Union[Table, Program, Plan], rank: int) -> tuple[int, ...]:
    """Give the stages that a rank computes: those to make a PipelineStage for."""
    program = source.table if isinstance(source, Plan) else source
    if not isinstance(program, Program):
        raise TypeError(f"expected a Table, Program or Plan, not {type(source).__name__}")
    return tuple(stage for stage, owner in enumerate(program.rank_of_stage) if owner == rank)


def runtime(
    stages: Sequence[Any],
    source: Union[Table, Program, Plan],
    loss_fn: Optional[Callable[..., Any]] = None,
    **options: Any,
) -> Any:
    """Make a PyTorch runtime that runs a table, a program or a plan on these PipelineStages.

    The table is lowered and proven first, and the stages must be those that the table places on
    this rank (stages_of()). Further options are those of PyTorch's schedules (scale_grads, ...).
    """
    schedules = _schedules()
    program = _lowered(source)
    program.verify().raise_if_bad()
    refuse_graph(
        program, "PyTorch's runtime", "weft_pipeline.torch.Pipeline runs graphs of modules"
    )
    stages = list(stages)
    if not stages:
        raise UsageError("there are no stages", "give a PipelineStage for each of stages_of()")
    first = stages[0]
    if (first.group_size, first.num_stages) != (program.ranks, program.stages):
        raise UsageError(
            f"the table has {program.ranks} ranks and {program.stages} stages, but the process "
            f"group has {first.group_size} ranks and the model {first.num_stages} stages"
        )
    rank = first.group_rank
    found = sorted(stage.stage_index for stage in stages)
    expected = list(stages_of(program, rank))
    if found != expected:
        raise UsageError(
            f"rank {rank} has stages {found}, but the table places {expected} there",
            "make the stages of stages_of(table, rank)",
        )
    try:
        actions = {
            k: [schedules._Action.from_str(str(cell)) for cell in row if cell is not None]
            for k, row in enumerate(program)
        }
    except RuntimeError as error:  # TIE_GRAD
        raise UsageError(f"PyTorch cannot run this program: {error}") from error
    made = schedules._PipelineScheduleRuntime(
        stages, program.microbatches, loss_fn=loss_fn, **options
    )
    made.pipeline_order = {
        k: [action for action in row if action.is_compute_op] for k, row in actions.items()
    }
    getattr(made, _PREPARE)(actions, format="compute_comms")
    return made


# ---- Measuring and planning ----


def profile(
    schedule: Any, step: Step, *, steps: int = 4, warm_up: int = 1, unit: str = "ms"
) -> Costs:
    """Measure what a live schedule costs: F, I, W, B, transfers, and bytes of activations.

    Every rank of the pipeline calls it; `step` is called with the schedule and runs one training
    step. `warm_up` steps, at least one, run before the profiler looks at `steps` of them. All
    ranks get the same costs. Activations are the bytes that a microbatch keeps for its backward.
    """
    return profile_program(schedule, program_of(schedule), step, steps, warm_up, unit)


def autoplan(
    schedule: Any,
    step: Step,
    *,
    memory: Optional[float] = None,
    steps: int = 4,
    warm_up: int = 1,
    **options: Any,
) -> Autoplan:
    """Measure some steps, plan a better order within `memory`, and make a runtime for it.

    Every rank of the pipeline calls it between two steps, with the same arguments. `memory` is in
    bytes of activations per rank. Stages stay where they are, and so do losses and gradients; the
    schedule that is returned replaces the old one where its prediction is better. Backwards are
    split only where the present schedule splits them, since only then their parts are known.
    Further options are those of plan().
    """
    program = program_of(schedule)
    costs = profile_program(schedule, program, step, steps, warm_up, "ms")
    found = plan_for(schedule, program, costs, memory, options)
    before = program.simulate(costs).makespan
    made = schedule
    if found.makespan < before:
        made = runtime(
            stages_in(schedule),
            found,
            schedule._loss_fn,
            args_chunk_spec=schedule._args_chunk_spec,
            kwargs_chunk_spec=schedule._kwargs_chunk_spec,
            output_merge_spec=schedule._output_merge_spec,
            scale_grads=schedule.scale_grads,
        )
    return Autoplan(made, found, costs, before, found.makespan)
