"""PyTorch modules as stages of Weft's own runtime: a thread or a process for each rank."""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import signal
import threading
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, Callable, NamedTuple, Optional, Union

from . import launch
from ._batches import Batches, each
from ._devices import RankDevice, rank_devices_of, same_device
from ._draws import with_holder
from ._errors import CancelledError, Error, StageError, StalledError, UsageError
from ._graph import Edge, Graph, chain_edges, graph_pointer
from ._library import (
    Immutable,
    boolean,
    c,
    choice,
    integer,
    lib,
    real,
    set_once,
    string,
)
from ._modes import modes_of_caller, warn_of_profiler
from ._modules import (
    Shared,
    check_batches,
    check_modules,
    check_unchanged,
    check_weights,
    groups_of,
    scan,
)
from ._plan import Plan
from ._program import Program, ScheduleName, Table, schedule_name
from ._replicas import Replicas
from ._stages import Runs, Stage
from ._torch_world import group_of
from ._worlds import World

_TRANSPORTS = ("threads", "cuda", "mpi", "torch")


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Within it Ctrl-C and SIGTERM end the step, where Python would not see them before its end."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return
    lib.weft_launch_signals_begin()
    number = 0
    try:
        yield
    except CancelledError:
        number = lib.weft_launch_signal()
        raise
    finally:
        late = number or lib.weft_launch_signal()
        lib.weft_launch_signals_end()
        if late:
            signal.raise_signal(late)


class StepResult(NamedTuple):
    """The losses of the microbatches, and the output of the last stage where it is wanted.

    In a graph, stages without out-edges compute losses: `losses` are their sums, `heads` has those
    of each stage, and `output` is a tuple where there are several. Between processes a rank has
    what its own stages compute.
    """

    losses: tuple[float, ...]
    output: Any
    heads: dict[int, tuple[float, ...]]


def _table_of(name: str, stages: int, m: int) -> Table:
    """The table of a named schedule, with as many stages on a rank as is usual for it."""
    info = lib.weft_schedule_find(string(name, "schedule"), None)
    v = info.contents.stages_per_rank_default if info else 1  # an unknown name is refused below
    if stages % v:
        raise UsageError(
            f"{name} has {v} stages on each rank; there are {stages} modules",
            f"divide the model into a multiple of {v}",
        )
    return Table.named(name, ranks=stages // v, stages_per_rank=v, microbatches=m)


def _program_of(
    schedule: Union[ScheduleName, Table, Program, Plan], stages: int, m: int, graph: Optional[Graph]
) -> Program:
    graph_pointer(graph)
    schedule = schedule_name(schedule)
    if isinstance(schedule, Plan):
        schedule = schedule.table
    if isinstance(schedule, str):
        if m == 0:
            raise UsageError(
                f"the schedule {schedule} needs a number of microbatches",
                "give microbatches=8, say",
            )
        if graph is not None:
            schedule = Table.named(schedule, graph=graph, microbatches=m)
        else:
            schedule = _table_of(schedule, stages, m)
    if not isinstance(schedule, Program):
        raise TypeError(f"schedule must be a name, Table, Program or Plan, not {schedule!r}")
    if graph is not None and not lib.weft_graph_equal(schedule._c.graph, graph_pointer(graph)):
        raise UsageError(
            f"the schedule has the graph {schedule.graph}, not {graph}",
            "leave graph out, except for a schedule by name; Table.from_rows(table, graph=...) "
            "gives a table a graph",
        )
    program = schedule.lower() if isinstance(schedule, Table) else schedule
    program.verify().raise_if_bad()
    if program.stages != stages:
        raise UsageError(
            f"the schedule has {program.stages} stages; there are {stages} modules",
            "give a module for each stage, in order",
        )
    if m and program.microbatches != m:
        raise UsageError(
            f"the schedule has {program.microbatches} microbatches, not {m}",
            "leave microbatches out, except for a schedule by name",
        )
    return program


def _transport_of(transport: Optional[str], devices: dict[int, RankDevice], partitions: int) -> str:
    """The transport for ranks on these devices: the one that is asked for, if it serves them."""
    on_gpus = [d for d in devices.values() if d.enqueues or d.torch_device.type == "cuda"]
    names = sorted({str(device.torch_device) for device in on_gpus})
    found = transport or ("cuda" if names else "threads")
    if names and found == "threads":
        raise UsageError(
            f"stages are on {', '.join(names)}, and the transport threads is for the CPU",
            'leave transport out, or give "cuda"',
        )
    if not names and found == "cuda":
        raise UsageError(
            "no stage is on a GPU, and the transport cuda is for GPUs",
            'module.to("cuda"), or leave transport out',
        )
    if partitions and found != "cuda":
        raise UsageError(
            f"partitions of GPUs are for stages on GPUs and the transport cuda, not {found}",
            "leave partitions out; between processes CUDA's MPS splits a GPU",
        )
    return found


def _replicas_of(
    torch: Any, group: Any, program: Program, devices: dict[int, RankDevice], stall: int
) -> Replicas:
    """The replicas of a pipeline, whose program sums gradients."""
    found = group_of(torch, group, "data_parallel")
    if any(device.enqueues for device in devices.values()):
        raise UsageError(
            "data_parallel sums gradients of ranks on the CPU, or of ranks that are processes; "
            "here ranks are in one process on GPUs",
            'transport="torch", under torchrun',
        )
    records = program._records().cast("B")
    of: dict[int, set[int]] = {}  # stages by op
    for k in range(0, len(records), 8):
        of.setdefault(records[k], set()).add(records[k + 2] + 256 * records[k + 3])
    trained = of.get(c.WEFT_OP_B, set()) | of.get(c.WEFT_OP_W, set())
    missing = trained - of.get(c.WEFT_OP_REDUCE_GRAD, set())
    if missing:
        raise UsageError(
            f"the program does not sum the gradients of stage {min(missing)} (REDUCE_GRAD), and "
            f"the pipeline has replicas",
            "lower the table with reduce_grad=True, the default, or give the table",
        )
    return Replicas(torch, found, stall)


class Pipeline(Immutable):
    """Trains modules as the stages of a pipeline, on Weft's runtime.

    `stages` are the modules in order, `schedule` a name ("1F1B") or a class of PyTorch's (then
    `microbatches` is needed), a table, a program or a plan. `loss_fn(output, target)` gives the
    loss of a microbatch. Forward, backward and the split into gradients of inputs and weights come
    from autograd; gradients add up in the parameters' `.grad`; with `scale_grads` a step divides
    what it adds by the number of microbatches. What would be computed otherwise than in a loop of
    PyTorch is refused. A rank that makes no progress for `stall_limit` seconds ends the step with
    an error that names it.

    The first module takes what step() gets. A module gives a tensor, or a tuple of tensors and
    plain values, which the next one takes as so many arguments. Shapes may change from one
    microbatch to the next. `args_chunk_spec`, `kwargs_chunk_spec` and `output_merge_spec` are those
    of PyTorch's schedules.

    Modules may form a graph: that of the schedule, or `graph` for a schedule by name. A module then
    gets what comes over each in-edge, in ascending order of the stages that these come from. What
    it gives goes over all out-edges; a tuple with a part for each, in ascending order of the stages
    that they go to, is divided. Gradients that come back for one tensor are summed in that order.
    A stage that gets no gradient over any edge is frozen: it runs without autograd. Stages without
    in-edges take the batch, those without out-edges compute losses: with several of them, the
    batch, `target` and `loss_fn` are one for all, or one for each, in ascending order.

    `data_parallel` is a process group, or a device mesh of one dimension, whose processes have the
    same pipeline, or the same rank of one, and other batches. Gradients are their mean over the
    replicas, or with `scale_grads=False` their sum, in the order of the group.

    All ranks are in this process. Those with stages on the CPU are threads. Those whose modules are
    on a GPU run there, one GPU or several, and what they exchange stays on it; `partitions` splits
    each GPU into so many groups of its multiprocessors, one or more for each rank.

    With `transport="torch"` every rank is a process that torchrun started: one of `group`, a
    process group or device mesh of torch.distributed, or of all processes. With "mpi" mpirun or
    srun started it, and a process has one such pipeline; `progress="thread"` moves messages while a
    stage computes. Each process makes the same pipeline; modules of other ranks' stages may be
    None.
    """

    __slots__ = (
        "_batches",
        "_buffers",
        "_devices",
        "_edges",
        "_group",
        "_lock",
        "_losses",
        "_microbatches",
        "_partitions",
        "_progress",
        "_rank",
        "_runs",
        "_scale",
        "_sources",
        "_stages",
        "_stall",
        "_transport",
        "_world",
        "program",
    )
    program: Program
    _batches: Batches
    _buffers: list[Shared]  # of several stages
    _edges: tuple[Edge, ...]
    _group: Any  # of torch.distributed
    _lock: Any
    _losses: tuple[int, ...]  # stages without out-edges
    _microbatches: int
    _partitions: int
    _devices: dict[int, RankDevice]  # of the ranks of this process
    _progress: str
    _rank: Optional[int]  # None: all ranks are here
    _runs: Runs
    _scale: bool
    _sources: tuple[int, ...]  # stages without in-edges
    _stages: list[Optional[Stage]]
    _stall: int
    _transport: str
    _world: list[World]  # none before the first step

    def __init__(
        self,
        stages: Sequence[Any],
        schedule: Union[ScheduleName, Table, Program, Plan] = "1F1B",
        loss_fn: Union[Callable[..., Any], Sequence[Callable[..., Any]], None] = None,
        *,
        graph: Optional[Graph] = None,
        microbatches: int = 0,
        scale_grads: bool = True,
        stall_limit: float = 30,
        transport: Optional[str] = None,
        progress: str = "calls",
        partitions: int = 0,
        group: Any = None,
        args_chunk_spec: Any = None,
        kwargs_chunk_spec: Any = None,
        output_merge_spec: Any = None,
        data_parallel: Any = None,
    ) -> None:
        """Make a pipeline. Its threads come with the first step."""
        torch = import_module("torch")
        modules = list(stages)
        if not modules or isinstance(stages, str):
            raise TypeError("stages must be modules of PyTorch")
        count = integer(microbatches, "microbatches", 0, c.WEFT_MICROBATCHES_MAX)
        scale = boolean(scale_grads, "scale_grads")
        stall = int(real(stall_limit, "stall_limit", 0, 1e6) * 1e9)
        if transport is not None:
            choice(transport, "transport", _TRANSPORTS)
        choice(progress, "progress", ("calls", "thread"))
        parts = integer(partitions, "partitions", 0, 64)
        program = _program_of(schedule, len(modules), count, graph)
        found = program.graph
        edges = chain_edges(program.stages) if found is None else found.edges
        sources = (0,) if found is None else found.sources
        losses = (program.stages - 1,) if found is None else found.losses
        functions = each(loss_fn, "loss_fn", losses)
        for function in functions.values():
            if function is not None and not callable(function):
                raise TypeError("loss_fn must be a function, or a sequence of functions")
        is_job = transport in ("mpi", "torch")
        rank = None
        if transport == "torch":
            group = group_of(torch, group)
            rank = torch.distributed.get_rank(group)
            processes = torch.distributed.get_world_size(group)
            starts = f"torchrun --nproc-per-node {program.ranks}"
        elif group is not None:
            raise UsageError(
                f"group is for the transport torch, not {transport}", 'give transport="torch"'
            )
        elif is_job:
            _, rank, processes = launch.info()
            starts = f"mpirun -n {program.ranks}"
        if rank is not None and processes != program.ranks:
            raise UsageError(
                f"the schedule has {program.ranks} ranks; there are {processes} processes",
                f"{starts} starts that many",
            )
        buffers = check_modules(torch, modules, functions, program, rank)
        devices = rank_devices_of(torch, modules, program, rank, transport != "torch")
        replicas = None
        if data_parallel is not None:
            replicas = _replicas_of(torch, data_parallel, program, devices, stall)
        runs = Runs(torch, program, scale, replicas)
        made = [
            Stage(runs, devices[owner or 0], k, modules[k], functions.get(k))
            if rank is None or owner == rank
            else None
            for k, owner in enumerate(program.rank_of_stage)
        ]
        runs.stages, runs.loss_count = made, len(losses)
        set_once(
            self,
            program=program,
            _batches=Batches(torch, program, args_chunk_spec, kwargs_chunk_spec, output_merge_spec),
            _buffers=buffers,
            _edges=edges,
            _group=group,
            _losses=losses,
            _sources=sources,
            _microbatches=program.microbatches,
            _lock=launch.state.lock if is_job else threading.Lock(),
            _partitions=parts,
            _devices=devices,
            _progress=progress,
            _rank=rank,
            _runs=runs,
            _scale=scale,
            _stages=made,
            _stall=stall,
            _transport=_transport_of(transport, devices, parts),
            _world=[],
        )
        if is_job:
            launch.state.users.append(self)

    def close(self) -> None:
        """Free the ranks. The next step makes new ones, except between processes."""
        with self._lock:
            for world in self._world:
                world.close()
            self._clear()

    def _clear(self) -> None:
        for stage in self._stages:
            if stage is not None:
                stage.forget()
        with same_device(self._runs.torch, self._devices):
            self._world.clear()

    def step(
        self, *args: Any, target: Any = None, return_outputs: bool = False, **kwargs: Any
    ) -> StepResult:
        """Run a training step on a batch: the arguments of the first module.

        They are split into microbatches as PyTorch's schedules split them: tensors along their
        first dimension, or as args_chunk_spec and kwargs_chunk_spec say; all else goes to every
        microbatch. Keyword arguments go to each module that takes one of that name. `target` is
        what loss_fn takes beside the output.

        Between processes the rank with the first stage needs the arguments, that with the last
        `target`; in a graph, ranks with stages without in-edges, and without out-edges. Graphs
        with several first stages take an argument for each, which may be a tuple.
        """
        return self._run(lib.weft_pipeline_step, args, kwargs, target, return_outputs)

    def eval(
        self, *args: Any, target: Any = None, return_outputs: bool = True, **kwargs: Any
    ) -> StepResult:
        """Run the forwards alone."""
        return self._run(lib.weft_pipeline_eval, args, kwargs, target, return_outputs)

    def _run(
        self, function: Any, args: Any, kwargs: Any, target: Any, return_outputs: bool
    ) -> StepResult:
        training = function is lib.weft_pipeline_step
        output = boolean(return_outputs, "return_outputs")
        mine = {k: stage for k, stage in enumerate(self._stages) if stage is not None}
        xs, options = self._batches.inputs(self._sources, mine, args, kwargs, training)
        targets = self._batches.targets(self._losses, mine, target, training)
        for k in self._losses if training else ():
            if k in mine and (k not in targets or mine[k].loss_fn is None):
                raise UsageError(
                    "a training step needs a target, and the pipeline a loss_fn"
                    + (f"; stage {k} has not both" if len(self._losses) > 1 else ""),
                    "step(x, target=y); other arguments are the first module's. Forwards alone "
                    "are eval(x)",
                )
        with self._lock:
            if self._rank is not None and launch.state.agreed is not None:
                raise UsageError("the job has failed before", "end the process") from (
                    launch.state.agreed
                )
            with same_device(self._runs.torch, self._devices):
                if not self._world:
                    self._world.append(World(self))
                    if self._runs.replicas is not None:
                        self._runs.replicas.open(mine.values())
                for k, stage in mine.items():
                    stage.chunks, stage.options = xs.get(k), options.get(k)
                    stage.targets = targets.get(k)
                return self._run_on(self._world[0], function, output)

    def _run_on(self, world: World, function: Any, output: bool) -> StepResult:
        torch, runs = self._runs.torch, self._runs
        batch = c.weft_batch()
        batch.microbatch_count = self._microbatches
        runs.error, runs.output = None, output
        training = function is lib.weft_pipeline_step
        modes, is_profiled = [], False
        runs.is_profiled = torch.autograd.profiler._is_profiler_enabled  # in any thread
        if self._rank is None:  # otherwise this thread computes
            modes = modes_of_caller(torch, self._devices)
            is_profiled = torch.autograd._profiler_enabled()
        unseen: list[int] = []  # ranks that a profiler does not see
        context = contextvars.copy_context()  # for other threads, too

        def step(pipeline: Any, rank: int, error: Any) -> int:
            torch.get_num_threads()  # takes over torch.set_num_threads(); a new thread has not
            if is_profiled and not torch.autograd._profiler_enabled():
                unseen.append(rank)
            with contextlib.ExitStack() as entered:  # of this thread
                entered.enter_context(torch.set_grad_enabled(training))
                for mode in modes:
                    entered.enter_context(mode())
                arguments = pipeline, ctypes.byref(batch), None, ctypes.byref(error)
                return int(context.copy().run(function, *arguments))

        for device in self._devices.values():
            device.begin()
        stages = [stage for stage in self._stages if stage is not None]
        values = scan(self._buffers)
        runs.edges.clear()
        for stage in stages:
            stage.forget()
            stage.look(training)
        if training:
            self._check_weights(stages)
        agree = None if self._rank is None else world.allgather
        try:
            runs.draws.begin(world.modules, training, agree)
        except BaseException as error:
            runs.draws.release()
            if isinstance(error, Error):
                self._fail(error)
            raise
        is_threads = self._transport == "threads" and len(self._devices) > 1
        runs.groups = groups_of(torch) if is_threads else []
        if training:
            for stage in stages:
                stage.begin(self._scale or runs.replicas is not None)
        try:
            with _interruptible():
                world.run(step, (self, batch))
            for stage in stages if training else ():
                stage.check_strangers()
        except BaseException as error:
            for stage in stages:
                stage.undo()
            if isinstance(error, Error):
                self._fail(error)
            raise
        finally:
            runs.draws.release()
        for stage in stages:
            stage.end()
        if unseen:
            warn_of_profiler()
        check_unchanged(torch, self._buffers, values)
        given = [(s.index, part) for s in stages for part in (s.chunks, s.options)]
        if len(stages) < len(self._stages):  # whose options are not here
            given += [(-1, s.options) for s in stages]
        check_batches(torch, given)
        runs.draws.end(agree)
        return self._result(output)

    def _check_weights(self, stages: list[Stage]) -> None:
        """Weights may have been tied, or frozen ones unfrozen, since the last step."""
        trained = [id(w) for stage in stages for w in stage.trained]
        if len(trained) != len(set(trained)):
            modules = [None if stage is None else stage.module for stage in self._stages]
            functions = {stage.index: stage.loss_fn for stage in stages if stage.is_loss}
            check_weights(self._runs.torch, modules, functions)

    def _fail(self, error: Error) -> None:
        """Raise what a stage raised, where that is the reason."""
        self._clear()  # the next step begins with new ranks
        if self._rank is not None:
            launch.is_failed(error)
        cause = self._runs.error if isinstance(error, StageError) else None
        if isinstance(error, StalledError):
            cause = with_holder(error)
        if cause is None:
            return
        if cause.__cause__ is not None and isinstance(cause, Error):
            raise cause  # it names the stage, and its own cause says more
        raise cause from error

    def _result(self, output: bool) -> StepResult:
        """Collect what the losses of this process have found, and free it."""
        m = self._microbatches
        losses: dict[int, tuple[float, ...]] = {}
        merged: list[Any] = []
        is_here = any(self._stages[k] is not None for k in self._losses)
        for k in self._losses if is_here else ():
            stage = self._stages[k]
            if stage is None:
                merged += [None] * output
                continue
            if stage.losses:
                found = self._runs.torch.stack([stage.losses[j].reshape(()) for j in range(m)])
                losses[k] = tuple(found.double().tolist())
            if output:
                merged.append(self._batches.merge([stage.outputs[j] for j in range(m)]))
        for made in self._stages:
            if made is not None:
                made.forget()
                made.chunks = made.options = made.targets = None
        one = merged[0] if len(merged) == 1 else tuple(merged) if merged else None
        return StepResult(tuple(map(sum, zip(*losses.values()))), one, losses)
