"""PyTorch modules as stages of Weft's own runtime: a thread or a process for each rank."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import signal
import threading
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, Callable, NamedTuple, Optional, Union

from . import launch
from ._errors import CancelledError, Error, StageError, UsageError
from ._library import Immutable, boolean, c, choice, integer, lib, real, set_once
from ._places import Place, places_of, same_device
from ._plan import Plan
from ._program import Program, Table
from ._stages import Runs, Stage
from ._worlds import World

_TRANSPORTS = ("threads", "cuda", "mpi", "nccl")


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

    Between processes only the rank with the last stage has them.
    """

    losses: tuple[float, ...]
    output: Any


def _program_of(schedule: Union[str, Table, Program, Plan], stages: int, m: int) -> Program:
    if isinstance(schedule, Plan):
        schedule = schedule.table
    if isinstance(schedule, str):
        if m == 0:
            raise UsageError(
                f"the schedule {schedule} needs a number of microbatches",
                "give microbatches=8, say",
            )
        table = Table.named(schedule, ranks=stages, microbatches=m)
        if table.stages != stages:  # several stages on a rank
            v = table.stages // table.ranks
            if stages % v:
                raise UsageError(
                    f"{schedule} has {v} stages on each rank; there are {stages} modules",
                    f"divide the model into a multiple of {v}",
                )
            table = Table.named(schedule, ranks=stages // v, stages_per_rank=v, microbatches=m)
        schedule = table
    if not isinstance(schedule, Program):
        raise TypeError(f"schedule must be a name, Table, Program or Plan, not {schedule!r}")
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


def _check_modules(torch: Any, modules: list[Any], program: Program, rank: Optional[int]) -> None:
    for k, module in enumerate(modules):
        if rank is not None and program.rank_of_stage[k] != rank and module is None:
            continue
        if not isinstance(module, torch.nn.Module):
            where = "" if rank is None else f" of rank {rank}"
            raise TypeError(
                f"stage {k}{where} must be a module of PyTorch, not {type(module).__name__}"
            )


def _transport_of(transport: Optional[str], places: dict[int, Place], partitions: int) -> str:
    """The transport for ranks on these places: the one that is asked for, if it serves them."""
    devices = sorted({str(place.device) for place in places.values() if place.enqueues})
    found = transport or ("cuda" if devices else "threads")
    if devices and found == "threads":
        raise UsageError(
            f"stages are on {', '.join(devices)}, and the transport threads is for the CPU",
            'leave transport out, or give "cuda"',
        )
    if not devices and found in ("cuda", "nccl"):
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

    `stages` are the modules in order, `schedule` a name ("1F1B"; then `microbatches` is needed), a
    table, a program or a plan. `loss_fn(output, target)` gives the loss of a microbatch. Forward,
    backward and the split into gradients of inputs and weights come from autograd; gradients add
    up in the parameters' `.grad`, divided by the number of microbatches with `scale_grads`. A stage
    takes and gives one tensor. A rank that makes no progress for `stall_limit` seconds ends the
    step with an error that names it.

    All ranks are in this process. Those with stages on the CPU are threads. Those whose modules are
    on a GPU run there, one GPU or several, and what they exchange stays on it; `partitions` splits
    each GPU into so many groups of its multiprocessors, one or more for each rank.

    With `transport="mpi"`, or "nccl" for GPUs, every rank is a process that mpirun or srun started,
    and each of them makes the same pipeline; modules of other ranks' stages may be None. A process
    has one such pipeline, and its first batch is the largest. `progress="thread"` moves messages
    while a stage computes.
    """

    __slots__ = (
        "_last_rank",
        "_lock",
        "_microbatches",
        "_partitions",
        "_places",
        "_progress",
        "_rank",
        "_runs",
        "_scale",
        "_stages",
        "_stall",
        "_transport",
        "_world",
        "program",
    )
    program: Program
    _last_rank: int
    _lock: Any
    _microbatches: int
    _partitions: int
    _places: dict[int, Place]  # of the ranks of this process
    _progress: str
    _rank: Optional[int]  # None: all ranks are here
    _runs: Runs
    _scale: bool
    _stages: list[Optional[Stage]]
    _stall: int
    _transport: str
    _world: list[World]  # none before the first step

    def __init__(
        self,
        stages: Sequence[Any],
        schedule: Union[str, Table, Program, Plan] = "1F1B",
        loss_fn: Optional[Callable[..., Any]] = None,
        *,
        microbatches: int = 0,
        scale_grads: bool = True,
        stall_limit: float = 30,
        transport: Optional[str] = None,
        progress: str = "calls",
        partitions: int = 0,
    ) -> None:
        """Make a pipeline. Its threads and buffers come with the first step."""
        torch = import_module("torch")
        modules = list(stages)
        if not modules or isinstance(stages, str):
            raise TypeError("stages must be modules of PyTorch")
        if loss_fn is not None and not callable(loss_fn):
            raise TypeError("loss_fn must be a function")
        count = integer(microbatches, "microbatches", 0, c.WEFT_MICROBATCHES_MAX)
        scale = boolean(scale_grads, "scale_grads")
        stall = int(real(stall_limit, "stall_limit", 0, 1e6) * 1e9)
        if transport is not None:
            choice(transport, "transport", _TRANSPORTS)
        choice(progress, "progress", ("calls", "thread"))
        parts = integer(partitions, "partitions", 0, 64)
        program = _program_of(schedule, len(modules), count)
        is_job = transport in ("mpi", "nccl")
        job = launch.info()
        rank = job.rank if is_job else None
        if is_job and job.ranks != program.ranks:
            raise UsageError(
                f"the schedule has {program.ranks} ranks; there are {job.ranks} processes",
                f"mpirun -n {program.ranks} starts that many",
            )
        _check_modules(torch, modules, program, rank)
        places = places_of(torch, modules, program, rank)
        runs = Runs(torch)
        last = len(modules) - 1
        made = [
            Stage(runs, places[owner or 0], k, modules[k], loss_fn, k == last)
            if rank is None or owner == rank
            else None
            for k, owner in enumerate(program.rank_of_stage)
        ]
        set_once(
            self,
            program=program,
            _last_rank=program.rank_of_stage[-1],
            _microbatches=program.microbatches,
            _lock=launch.state.lock if is_job else threading.Lock(),
            _partitions=parts,
            _places=places,
            _progress=progress,
            _rank=rank,
            _runs=runs,
            _scale=scale,
            _stages=made,
            _stall=stall,
            _transport=_transport_of(transport, places, parts),
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
                stage.kept.clear()
        with same_device(self._runs.torch, self._places):
            self._world.clear()

    def _open(self, x: Any) -> World:
        """The ranks, with buffers for batches like this one; made anew for a larger one."""
        if self._world:
            world = self._world[0]
            size = None if x is None else tuple(x.shape)
            if size is None or world.size is None:
                return world
            if size[0] <= world.size[0] and size[1:] == world.size[1:]:
                return world
            if self._rank is not None:
                raise UsageError(
                    f"a batch of {size} is larger than the first one, of {world.size}",
                    "between processes, begin with the largest batch",
                )
            self._clear()
        self._world.append(World(self, x))
        return self._world[0]

    def step(self, x: Any = None, target: Any = None, *, output: bool = False) -> StepResult:
        """Run a training step on a batch, which is split along its first dimension.

        Between processes the rank with the first stage needs `x`, that with the last `target`.
        """
        return self._run(lib.weft_pipeline_step, x, target, boolean(output, "output"))

    def eval(self, x: Any = None, target: Any = None, *, output: bool = True) -> StepResult:
        """Run the forwards alone."""
        return self._run(lib.weft_pipeline_eval, x, target, boolean(output, "output"))

    def _batch(self, tensor: Any, name: str, stage: int) -> Optional[Any]:
        """A tensor for a stage, on its device, if that is in this process."""
        made = self._stages[stage]
        if made is None or (tensor is None and name == "target"):
            return None
        if not isinstance(tensor, self._runs.torch.Tensor):
            raise TypeError(f"{name} must be a tensor, not {type(tensor).__name__}")
        m = self._microbatches
        if tensor.dim() == 0 or tensor.shape[0] < m:
            raise UsageError(
                f"{name} has the shape {tuple(tensor.shape)}, which cannot be split into "
                f"{m} microbatches",
                f"give at least {m} rows, or make the pipeline for fewer microbatches",
            )
        place = made.place  # streams of a GPU wait for the copy, the host's threads do not
        return tensor.detach().to(place.device, non_blocking=place.enqueues)

    def _run(self, function: Any, x: Any, target: Any, output: bool) -> StepResult:
        training = function is lib.weft_pipeline_step
        x, target = self._batch(x, "x", 0), self._batch(target, "target", -1)
        last = self._stages[-1]
        if training and last is not None and (target is None or last.loss_fn is None):
            raise UsageError(
                "a training step needs a target, and the pipeline a loss_fn",
                "step(x, target); forwards alone are eval(x)",
            )
        with self._lock:
            if self._rank is not None and launch.state.agreed is not None:
                raise UsageError("the job has failed before", "end the process") from (
                    launch.state.agreed
                )
            with same_device(self._runs.torch, self._places):
                return self._run_on(self._open(x), function, x, target, output)

    def _run_on(self, world: World, function: Any, x: Any, target: Any, output: bool) -> StepResult:
        torch, runs, m = self._runs.torch, self._runs, self._microbatches
        first, last = self._stages[0], self._stages[-1]
        if first is not None:
            first.chunks = x.tensor_split(m)
        plain, wants = c.weft_batch(), c.weft_batch()  # for the rank with the last stage the second
        plain.microbatch_count = wants.microbatch_count = m
        if last is not None:
            last.targets = target.tensor_split(m) if target is not None else None
            last.outputs.clear()
            wants.want_losses = target is not None and last.loss_fn is not None
        runs.error, runs.output = None, output
        training = function is lib.weft_pipeline_step
        owner = self._last_rank
        result = c.weft_step_result()
        casts = _autocasts(torch, self._places)

        def step(pipeline: Any, rank: int, error: Any) -> int:
            batch = wants if rank == owner else plain
            into = ctypes.byref(result) if rank == owner else None
            with contextlib.ExitStack() as modes:  # of this thread
                modes.enter_context(torch.set_grad_enabled(training))
                for mode in casts:
                    modes.enter_context(mode())
                return int(function(pipeline, ctypes.byref(batch), into, ctypes.byref(error)))

        for place in self._places.values():
            place.begin()
        try:
            with _interruptible():
                world.run(step, (self, x, target, plain, wants, result))
        except Error as error:
            self._clear()  # the next step begins with new ranks
            cause = runs.error if isinstance(error, StageError) else None
            if self._rank is not None:
                launch.is_failed(error)
            if cause is not None:
                raise cause from error
            raise
        found = tuple(result.losses[: result.loss_count]) if result.loss_count else ()
        merged = None
        if last is not None and output:
            merged = torch.cat([last.outputs[k] for k in range(m)])
            last.outputs.clear()
        return StepResult(found, merged)


def _autocasts(torch: Any, places: dict[int, Place]) -> list[Callable[[], Any]]:
    """The autocast modes that the caller is in; ranks are threads, which have their own."""
    return [
        functools.partial(
            torch.autocast,
            kind,
            dtype=torch.get_autocast_dtype(kind),
            cache_enabled=torch.is_autocast_cache_enabled(),
        )
        for kind in {place.device.type for place in places.values()}
        if torch.is_autocast_enabled(kind)
    ]
