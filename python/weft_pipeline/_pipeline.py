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
from ._modes import dtypes_of, modes_of_caller, warn_of_profiler
from ._modules import (
    Shared,
    check_batches,
    check_modules,
    check_unchanged,
    check_weights,
    groups_of,
    parts_of,
    scan,
)
from ._plan import Plan
from ._program import Program, ScheduleName, Table, schedule_name
from ._stages import Runs, Stage
from ._torch_world import group_of
from ._worlds import World

_TRANSPORTS = ("threads", "cuda", "mpi", "nccl", "torch")


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
    names = sorted({str(device.torch_device) for device in devices.values() if device.enqueues})
    found = transport or ("cuda" if names else "threads")
    if names and found == "threads":
        raise UsageError(
            f"stages are on {', '.join(names)}, and the transport threads is for the CPU",
            'leave transport out, or give "cuda"',
        )
    if not names and found in ("cuda", "nccl"):
        raise UsageError(
            f"no stage is on a GPU, and the transport {found} is for GPUs",
            'module.to("cuda"), or leave transport out',
        )
    if partitions and found != "cuda":
        raise UsageError(
            f"partitions of GPUs are for stages on GPUs and the transport cuda, not {found}",
            "leave partitions out; between processes CUDA's MPS splits a GPU",
        )
    return found


class Pipeline(Immutable):
    """Trains modules as the stages of a pipeline, on Weft's runtime.

    `stages` are the modules in order, `schedule` a name ("1F1B") or a class of PyTorch's (then
    `microbatches` is needed), a table, a program or a plan. `loss_fn(output, target)` gives the
    loss of a microbatch. Forward, backward and the split into gradients of inputs and weights come
    from autograd; gradients add up in the parameters' `.grad`; with `scale_grads` a step divides
    what it adds by the number of microbatches. A stage takes and gives one tensor. What would be
    computed otherwise than in a loop of PyTorch is refused. A rank that makes no progress for
    `stall_limit` seconds ends the step with an error that names it.

    Modules may form a graph: that of the schedule, or `graph` for a schedule by name. A module then
    gets a tensor for each in-edge, in ascending order of the stages that these come from. It gives
    one tensor, which goes over all out-edges, or a tuple with one for each, in ascending order of
    the stages that they go to. Gradients that come back for one tensor are summed in that order.
    A stage that gets no gradient over any edge is frozen: it runs without autograd. Stages without
    in-edges take the batch, those without out-edges compute losses: with several of them, `x`,
    `target` and `loss_fn` are one for all, or a sequence with one for each, in ascending order.

    All ranks are in this process. Those with stages on the CPU are threads. Those whose modules are
    on a GPU run there, one GPU or several, and what they exchange stays on it; `partitions` splits
    each GPU into so many groups of its multiprocessors, one or more for each rank.

    With `transport="torch"` every rank is a process that torchrun started: one of `group`, a
    process group or device mesh of torch.distributed, or of all processes. With "mpi", or "nccl"
    for GPUs, mpirun or srun started it, and a process has one such pipeline; `progress="thread"`
    moves messages while a stage computes. Each process makes the same pipeline, whose first batch
    is the largest; modules of other ranks' stages may be None.
    """

    __slots__ = (
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
    ) -> None:
        """Make a pipeline. Its threads and buffers come with the first step."""
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
        functions = _each(loss_fn, "loss_fn", losses)
        for function in functions.values():
            if function is not None and not callable(function):
                raise TypeError("loss_fn must be a function, or a sequence of functions")
        is_job = transport in ("mpi", "nccl", "torch")
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
        devices = rank_devices_of(torch, modules, program, rank)
        runs = Runs(torch, program)
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
        """Free buffers and threads. The next step makes new ones, except between processes."""
        with self._lock:
            self._clear()

    def _clear(self) -> None:
        for stage in self._stages:
            if stage is not None:
                stage.forget()
        with same_device(self._runs.torch, self._devices):
            self._world.clear()

    def _open(self, xs: dict[int, Any]) -> World:
        """The ranks, with buffers for batches like these; made anew for larger ones.

        In this process also where stages may give another dtype: in autocast, or not any more.
        """
        kinds = dtypes_of(self._runs.torch, self._devices), {k: x.dtype for k, x in xs.items()}
        if self._world and self._rank is None and self._world[0].kinds != kinds:
            self._clear()
        if self._world:
            world = self._world[0]
            larger = [
                (size, most)
                for size, most in ((tuple(x.shape), world.sizes[k]) for k, x in xs.items())
                if size[0] > most[0] or size[1:] != most[1:]
            ]
            if not larger:
                return world
            if self._rank is not None:
                raise UsageError(
                    f"a batch of {larger[0][0]} is larger than the first one, of {larger[0][1]}",
                    "between processes, begin with the largest batch",
                )
            self._clear()
        self._world.append(World(self, xs, kinds))
        return self._world[0]

    def step(self, x: Any = None, target: Any = None, *, output: bool = False) -> StepResult:
        """Run a training step on a batch, which is split along its first dimension.

        Between processes the rank with the first stage needs `x`, that with the last `target`; in a
        graph, ranks with stages without in-edges, and without out-edges.
        """
        return self._run(lib.weft_pipeline_step, x, target, boolean(output, "output"))

    def eval(self, x: Any = None, target: Any = None, *, output: bool = True) -> StepResult:
        """Run the forwards alone."""
        return self._run(lib.weft_pipeline_eval, x, target, boolean(output, "output"))

    def _batches(
        self, given: Any, name: str, stages: tuple[int, ...], training: bool
    ) -> dict[int, Any]:
        """The tensors of those of these stages that are in this process, on their devices."""
        found = {}
        for k, tensor in _each(given, name, stages).items():
            made = self._stages[k]
            if made is not None and not (tensor is None and name == "target"):
                found[k] = self._batch(tensor, name, made, training)
        return found

    def _batch(self, tensor: Any, name: str, made: Stage, training: bool) -> Any:
        if not isinstance(tensor, self._runs.torch.Tensor):
            raise TypeError(f"{name} must be a tensor, not {type(tensor).__name__}")
        m = self._microbatches
        if tensor.dim() == 0 or tensor.shape[0] < m:
            raise UsageError(
                f"{name} has the shape {tuple(tensor.shape)}, which cannot be split into "
                f"{m} microbatches",
                f"give at least {m} rows, or make the pipeline for fewer microbatches",
            )
        if training and tensor.requires_grad:
            raise UsageError(
                f"{name} requires a gradient, and Pipeline gives none for a batch",
                f"give {name}.detach(); what is to learn is a parameter of a stage",
            )
        device = made.device  # streams of a GPU wait for the copy, the host's threads do not
        return tensor.detach().to(device.torch_device, non_blocking=device.enqueues)

    def _run(self, function: Any, x: Any, target: Any, output: bool) -> StepResult:
        training = function is lib.weft_pipeline_step
        xs = self._batches(x, "x", self._sources, training)
        targets = self._batches(target, "target", self._losses, training)
        if training:
            for k in self._losses:
                made = self._stages[k]
                if made is not None and (k not in targets or made.loss_fn is None):
                    raise UsageError(
                        "a training step needs a target, and the pipeline a loss_fn"
                        + (f"; stage {k} has not both" if len(self._losses) > 1 else ""),
                        "step(x, target); forwards alone are eval(x)",
                    )
        with self._lock:
            if self._rank is not None and launch.state.agreed is not None:
                raise UsageError("the job has failed before", "end the process") from (
                    launch.state.agreed
                )
            with same_device(self._runs.torch, self._devices):
                return self._run_on(self._open(xs), function, xs, targets, output)

    def _run_on(
        self, world: World, function: Any, xs: Any, targets: Any, output: bool
    ) -> StepResult:
        torch, runs, m = self._runs.torch, self._runs, self._microbatches
        for k, x in xs.items():
            self._stages[k].chunks = parts_of(x, m)
        heads: dict[int, Stage] = {}  # losses of this process
        batches: dict[Optional[int], Any] = {}  # of ranks with losses; None: of the others
        for k in self._losses:
            stage, rank = self._stages[k], self.program.rank_of_stage[k]
            if stage is None:
                continue
            heads[k] = stage
            stage.targets = parts_of(targets[k], m) if k in targets else None
            stage.outputs.clear()
            batch = batches.setdefault(rank, c.weft_batch())
            batch.want_losses |= stage.targets is not None and stage.loss_fn is not None
        batches.setdefault(None, c.weft_batch())
        for batch in batches.values():
            batch.microbatch_count = m
        runs.error, runs.output = None, output
        training = function is lib.weft_pipeline_step
        results = {rank: c.weft_step_result() for rank in batches if rank is not None}
        modes, is_profiled = [], False
        runs.is_profiled = torch.autograd.profiler._is_profiler_enabled  # in any thread
        if self._rank is None:  # otherwise this thread computes
            modes = modes_of_caller(torch, self._devices)
            is_profiled = torch.autograd._profiler_enabled()
        unseen: list[int] = []  # ranks that a profiler does not see
        context = contextvars.copy_context()  # for other threads, too

        def step(pipeline: Any, rank: int, error: Any) -> int:
            batch = batches[rank if rank in batches else None]
            into = ctypes.byref(results[rank]) if rank in results else None
            if is_profiled and not torch.autograd._profiler_enabled():
                unseen.append(rank)
            with contextlib.ExitStack() as entered:  # of this thread
                entered.enter_context(torch.set_grad_enabled(training))
                for mode in modes:
                    entered.enter_context(mode())
                arguments = pipeline, ctypes.byref(batch), into, ctypes.byref(error)
                return int(context.copy().run(function, *arguments))

        for device in self._devices.values():
            device.begin()
        stages = [stage for stage in self._stages if stage is not None]
        values = scan(self._buffers)
        for stage in stages:
            stage.look(training)
        if training:
            self._check_weights(stages)
        runs.draws.begin(world.modules, training)
        runs.missing.clear()
        is_threads = self._transport == "threads" and len(self._devices) > 1
        runs.groups = groups_of(torch) if is_threads else []
        if training:
            for stage in stages:
                stage.begin(self._scale)
        try:
            with _interruptible():
                world.run(step, (self, xs, targets, batches, results))
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
        check_batches({k: self._stages[k].chunks for k in xs})
        runs.draws.end()
        return self._result(heads, results, output)

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

    def _result(self, heads: dict[int, Stage], results: Any, output: bool) -> StepResult:
        m = self._microbatches
        losses = {
            head.stage: tuple(head.losses[:m])
            for result in results.values()
            for head in result.heads[: result.head_count]
            if heads[head.stage].targets is not None and head.losses
        }
        losses = {k: losses[k] for k in heads if k in losses}
        merged: list[Any] = []
        for k in self._losses if output and heads else ():
            stage = heads.get(k)
            if stage is None:
                merged.append(None)
                continue
            merged.append(self._runs.torch.cat([stage.outputs[j] for j in range(m)]))
            stage.outputs.clear()
        one = merged[0] if len(merged) == 1 else tuple(merged) if merged else None
        return StepResult(tuple(map(sum, zip(*losses.values()))), one, losses)


def _each(given: Any, name: str, stages: tuple[int, ...]) -> dict[int, Any]:
    """What is given for all of these stages, or a sequence with one for each."""
    if not isinstance(given, (tuple, list)):
        return dict.fromkeys(stages, given)
    if len(given) != len(stages):
        listed = ", ".join(map(str, stages))
        raise UsageError(
            f"{name} has {len(given)} items; expected {len(stages)}, for "
            f"{'stages' if len(stages) > 1 else 'stage'} {listed}",
            "give one for all of them, or one for each in ascending order",
        )
    return dict(zip(stages, given))
