"""PyTorch modules as stages of Weft's own runtime: a thread or a process for each rank."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, Callable, NamedTuple, Optional, Union

from . import launch
from ._errors import CancelledError, Error, StageError, UnavailableError, UsageError
from ._library import (
    Handle,
    Immutable,
    boolean,
    c,
    call,
    choice,
    integer,
    lib,
    raise_error,
    real,
    set_once,
)
from ._plan import Plan
from ._program import Program, Table

_DTYPES = {
    "float32": c.WEFT_F32,
    "float64": c.WEFT_F64,
    "float16": c.WEFT_F16,
    "bfloat16": c.WEFT_BF16,
    "int8": c.WEFT_I8,
    "int16": c.WEFT_I16,
    "int32": c.WEFT_I32,
    "int64": c.WEFT_I64,
    "uint8": c.WEFT_U8,
    "bool": c.WEFT_BOOL,
}
_NAMES = {number: name for name, number in _DTYPES.items()}
_TRANSPORTS = ("threads", "mpi")
_WALK_FROM = 1 << 16  # weights of a stage
_stuck: list[Any] = []  # what threads that never return may still use


def _kind(struct: Any, field: str) -> Any:
    return next(entry[1] for entry in struct._fields_ if entry[0] == field)


# ---- Tensors ----


def _shape(tensor: Any, what: str) -> Any:
    """The shape of a tensor for the runtime."""
    name = str(tensor.dtype).replace("torch.", "")
    if name not in _DTYPES or tensor.device.type != "cpu" or tensor.dim() > c.WEFT_DIMS_MAX:
        raise UsageError(
            f"{what} is a tensor of {name} with {tensor.dim()} dimensions on {tensor.device}",
            f"expected at most {c.WEFT_DIMS_MAX} dimensions on the CPU",
        )
    shape = c.weft_tensor_shape()
    shape.dtype, shape.dim_count = _DTYPES[name], tensor.dim()
    for k, size in enumerate(tensor.shape):
        shape.dims[k] = size
    return shape


_shapes: dict[Any, Any] = {}


def _tensor(tensor: Any, what: str) -> Any:
    """A tensor of PyTorch for the runtime."""
    key = (tensor.shape, tensor.dtype)
    shape = _shapes.get(key)
    if shape is None:
        if len(_shapes) >= _VIEWS_MAX:
            _shapes.clear()
        shape = _shapes[key] = _shape(tensor, what)
    return c.weft_tensor(None, tensor.data_ptr(), None, shape)


_views: dict[bytes, Any] = {}  # by place, type and size: the runtime reuses its buffers
_VIEWS_MAX = 4096
_ITEM = c.weft_tensors.items.offset
_ITEM_SIZE = ctypes.sizeof(c.weft_tensor)
_string_at = ctypes.string_at


def _view(address: int) -> Any:
    """The first of the tensors at an address, in the memory of the runtime, without a copy."""
    key = _string_at(address + _ITEM, _ITEM_SIZE)
    found = _views.get(key)
    if found is None:
        if len(_views) >= _VIEWS_MAX:
            _views.clear()
        found = _views[key] = _new_view(c.weft_tensor.from_address(address + _ITEM))
    return found


def _new_view(item: Any) -> Any:
    torch = import_module("torch")
    dims = list(item.shape.dims[: item.shape.dim_count])
    dtype = getattr(torch, _NAMES[item.shape.dtype])
    count = 1
    for size in dims:
        count *= size
    if count == 0:
        return torch.empty(dims, dtype=dtype)
    size = count * lib.weft_dtype_size(item.shape.dtype)
    memory = (ctypes.c_ubyte * size).from_address(item.data)
    return torch.frombuffer(memory, dtype=dtype, count=count).view(dims)


# ---- Stages ----


class _Call(ctypes.Structure):
    """A struct weft_stage_call whose pointers are numbers: fields are read faster so."""


def _number_for(kind: Any) -> Any:
    return kind if kind.__module__ == "ctypes" else ctypes.c_size_t


_Call._fields_ = [(entry[0], _number_for(entry[1])) for entry in c.weft_stage_call._fields_]
_Function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class _Stage:
    """A module and its functions for the runtime.

    These are called for every action, so they do little: no dict or list is built, tensors in the
    runtime's buffers are made once, and the autograd engine is called without the checks of
    torch.autograd.backward(), whose arguments are right here.
    """

    def __init__(
        self, runs: _Runs, index: int, module: Any, loss_fn: Optional[Callable[..., Any]]
    ) -> None:
        self.runs = runs
        self.index = index
        self.module = module
        self.loss_fn = loss_fn
        self.takes_grad = False  # whether its input needs a gradient
        self.chunks: Any = None  # microbatches of the batch, for the first stage
        self.targets: Any = None  # likewise, for the last
        self.kept: dict[int, Any] = {}
        self.calls: dict[int, Any] = {}
        # Autograd's W after I goes through the stage once more. PyTorch's pipelining avoids that
        # by a walk through the graph, which is worth it where the stage computes for longer.
        self.walks = sum(weight.numel() for weight in module.parameters()) >= _WALK_FROM
        self.step = 0  # of the last W
        self.weights: tuple[Any, ...] = ()  # in that step
        self.ops = c.weft_stage_ops()
        self.ops.name = b"torch"
        self.functions = []  # kept alive
        for name in ("forward", "backward", "backward_input", "backward_weight", "scale_grads"):
            function = _Function(self._guarded(getattr(self, name)))
            self.functions.append(function)
            setattr(self.ops, name, ctypes.cast(function, _kind(c.weft_stage_ops, name)))
        self.struct = c.weft_stage()
        self.struct.ops = ctypes.pointer(self.ops)

    def _guarded(self, function: Callable[[Any], None]) -> Callable[[int, int, int], int]:
        """Exceptions become an error of the runtime, and come out of step()."""
        calls = self.calls

        def run(_stage: int, address: int, error: int) -> int:
            try:
                where = calls.get(address)
                if where is None:
                    where = calls[address] = _Call.from_address(address)
                function(where)
            except BaseException as caught:
                if self.runs.error is None:
                    self.runs.error = caught
                text = f"stage {self.index}: {type(caught).__name__}: {caught}"
                out = c.weft_error.from_address(error)
                out.status = c.WEFT_ERR_STAGE
                out.message = text.encode("utf-8", "replace")[:500]
                out.hint = b""
                return int(c.WEFT_ERR_STAGE)
            return 0

        return run

    def forward(self, where: Any) -> None:
        training = where.training
        if self.chunks is not None:
            x = self.chunks[where.microbatch]
        else:
            x = _view(where.inputs).detach()
            if training and self.takes_grad:
                x.requires_grad_()
        y = self.module(x)
        if self.loss_fn is None:
            self._put(where.outputs, y)
        else:
            if self.runs.output:
                self._put(where.outputs, y)
            if self.targets is not None:
                y = self.loss_fn(y, self.targets[where.microbatch])
                ctypes.c_double.from_address(where.loss).value = y.item()
        if training:
            self.kept[where.slot] = (x, y)

    def _put(self, outputs: int, y: Any) -> None:
        out = _view(outputs)
        if y.shape != out.shape or y.dtype != out.dtype:
            largest = out.shape
            if (
                y.dtype != out.dtype
                or len(y.shape) != len(largest)
                or any(size > most for size, most in zip(y.shape, largest))
            ):
                raise UsageError(
                    f"stage {self.index} gives {y.dtype} of {tuple(y.shape)}; expected {out.dtype} "
                    f"of at most {tuple(largest)}, which it gave for tensors without data"
                )
            item = c.weft_tensor.from_address(outputs + _ITEM)
            item.shape = _shape(y, f"the output of stage {self.index}")
            out = _view(outputs)
        out.copy_(y.detach())

    def _gradient(self, where: Any, y: Any) -> Any:
        """The gradient of what the stage gives: its output, or the loss.

        A copy: the engine may keep a part of it as the gradient of a weight.
        """
        if self.loss_fn is not None:
            return self.runs.ones_like(y)
        return _view(where.output_grads).clone()

    @staticmethod
    def _pass_on(where: Any, gradient: Any) -> None:
        out = _view(where.input_grads)
        if gradient is None:  # the output does not depend on the input
            out.zero_()
        else:
            out.copy_(gradient)

    def backward(self, where: Any) -> None:
        x, y = self.kept.pop(where.slot)
        if y.requires_grad:
            self.runs.backward((y,), (self._gradient(where, y),), False, False, (), True, True)
        if x.requires_grad:
            self._pass_on(where, x.grad)

    def _weights_in(self, where: Any) -> tuple[Any, ...]:
        if where.step != self.step:
            self.step = where.step
            self.weights = tuple(w for w in self.module.parameters() if w.requires_grad)
        return self.weights

    def backward_input(self, where: Any) -> None:
        slot = where.slot
        x, y = self.kept[slot]
        gradient = self._gradient(where, y)
        if self.walks and x.requires_grad and y.requires_grad and not y._is_view():
            weights = iter(self._weights_in(where))
            found, groups = self.runs.split.stage_backward_input([y], [gradient], [x], weights)
            self.kept[slot] = (groups, None)
            self._pass_on(where, found[0])
            return
        self.kept[slot] = (gradient, y)
        if x.requires_grad:
            found = None
            if y.requires_grad:
                (found,) = self.runs.backward((y,), (gradient,), True, False, (x,), True, False)
            self._pass_on(where, found)

    def backward_weight(self, where: Any) -> None:
        gradient, y = self.kept.pop(where.slot)
        weights = self._weights_in(where)
        if y is None:  # what I left of the graph
            self.runs.split.stage_backward_weight(iter(weights), gradient)
        elif weights and y.requires_grad:
            self.runs.backward((y,), (gradient,), False, False, weights, True, True)

    def scale_grads(self, where: Any) -> None:
        gradients = [w.grad for w in self.module.parameters() if w.grad is not None]
        if gradients:
            self.runs.torch._foreach_div_(gradients, where.microbatch_count)


class _Runs:
    """What the stages of a pipeline share."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.backward = torch.autograd.Variable._execution_engine.run_backward
        self.split = import_module("torch.distributed.pipelining._backward")
        self.ones_like = torch.ones_like
        self.output = False  # wanted of the last stage
        self.error: Optional[BaseException] = None


# ---- Ranks ----


class _World:
    """The ranks of a pipeline that are in this process, and their pipelines."""

    def __init__(self, owner: Pipeline, x: Any) -> None:
        program, stages = owner.program, owner._stages
        self.rank = owner._rank
        self.size = None if x is None else tuple(x.shape)
        options = lib.weft_pipeline_options_default()
        world = lib.weft_comm_options_default()
        world.rank_count = program.ranks
        if self.rank is None:
            comm = ctypes.POINTER(c.weft_comm)()
            call(lib.weft_comm_open, None, b"threads", ctypes.byref(world), ctypes.byref(comm))
            boundaries = _boundaries(owner, x, lambda mine: [mine])
        else:
            if launch.state.is_used:
                raise UsageError(
                    "this process has had a pipeline over MPI; its world serves one",
                    "keep one Pipeline for all steps; its first batch is the largest",
                )
            comm = launch.world(owner._progress)
            launch.state.is_used = True
            boundaries = _boundaries(owner, x, lambda m: launch.allgather(m, owner._stall))
        pointers = (ctypes.POINTER(c.weft_stage) * len(stages))()
        for k, stage in enumerate(stages):
            if stage is not None:
                stage.kept.clear()
                stage.calls.clear()
                stage.step = 0
                stage.takes_grad = k > 0 and boundaries[k - 1].tensors[0].needs_grad
                pointers[k] = ctypes.pointer(stage.struct)
        source = c.weft_fixed_source()
        source.program = program._handle.pointer
        kind = _kind(c.weft_pipeline_options, "source")
        options.source = ctypes.cast(lib.weft_source_fixed, kind)
        options.source_context = ctypes.cast(ctypes.pointer(source), ctypes.c_void_p)
        options.microbatch_count = program.microbatches
        options.stages, options.stage_count = pointers, len(stages)
        options.boundaries, options.boundary_count = boundaries, len(stages)
        options.scale_grads = owner._scale
        options.stall_limit = owner._stall
        kind = _kind(c.weft_pipeline_options, "interrupted")
        options.interrupted = ctypes.cast(lib.weft_launch_is_interrupted, kind)
        keep = [program, stages, pointers, source, options, boundaries]
        destroy = lib.weft_comm_close if self.rank is None else None
        self.comm = Handle(comm, destroy, keep)
        self.pipelines = {}
        for rank in range(program.ranks) if self.rank is None else [self.rank]:
            pipeline = ctypes.POINTER(c.weft_pipeline)()
            call(
                lib.weft_pipeline_create,
                None,
                lib.weft_comm_endpoint(comm, rank),
                ctypes.byref(options),
                ctypes.byref(pipeline),
            )
            self.pipelines[rank] = Handle(pipeline, lib.weft_pipeline_destroy, self.comm)

    def run(self, step: Callable[[Any, int, Any], int], keep: Any) -> None:
        """Run a step on the ranks of this process."""
        if self.rank is not None:
            error = c.weft_error()
            status = step(self.pipelines[self.rank].pointer, self.rank, error)
            if status < 0:
                raise_error(status, error)
            return

        def rank_main(_context: Any, transport: Any, error: Any) -> int:
            rank = transport[0].rank
            return step(self.pipelines[rank].pointer, rank, error[0])

        main = lib.weft_comm_run.argtypes[1](rank_main)
        try:
            call(lib.weft_comm_run, self.comm.pointer, main, None)
        finally:
            if lib.weft_comm_stuck_ranks(self.comm.pointer):
                _stuck.append((self, main, keep))


def _boundaries(owner: Pipeline, x: Any, allgather: Callable[[bytes], list[bytes]]) -> Any:
    """What each stage gives for the largest microbatch, without computing it.

    On MPI the ranks tell each other, stage by stage; a rank that cannot tell says so, and all fail.
    """
    torch, program = owner._runs.torch, owner.program
    fake = import_module("torch._subclasses").FakeTensorMode(allow_non_fake_inputs=True)
    size = ctypes.sizeof(c.weft_tensor_shape)
    boundaries = (c.weft_boundary * program.stages)()
    failure: Optional[BaseException] = None
    shape = c.weft_tensor_shape()
    for k in range(-1, program.stages):  # -1: the batch itself
        rank = program.rank_of_stage[max(k, 0)] or 0
        mine = b""
        if owner._rank in (None, rank):
            try:
                with torch.no_grad(), torch.random.fork_rng(devices=[]), fake:
                    if k < 0:
                        rows = -(-x.shape[0] // program.microbatches)
                        y = torch.empty((rows, *x.shape[1:]), dtype=x.dtype)
                    else:
                        dtype = getattr(torch, _NAMES[shape.dtype])
                        y = torch.empty(shape.dims[: shape.dim_count], dtype=dtype)
                        y = owner._stages[k].module(y)  # type: ignore[union-attr]
                    if not isinstance(y, torch.Tensor):
                        raise UsageError(f"stage {k} gives {type(y).__name__}; expected one tensor")
                    mine = b"+" + bytes(_shape(y, f"the output of stage {k}"))
            except BaseException as caught:
                failure = caught
                mine = b"-" + bytes(size)
        found = allgather(mine or bytes(size + 1))
        answer = found[rank if len(found) > 1 else 0]
        if answer[:1] != b"+":
            reason = StageError(
                f"rank {rank} cannot tell what stage {k} gives", "that rank's error says why"
            )
            if owner._rank is not None:
                launch.is_failed(failure or reason)
            raise failure or reason
        shape = c.weft_tensor_shape.from_buffer_copy(answer[1:])
        if k >= 0:
            boundaries[k].tensor_count = 1
            boundaries[k].tensors[0].largest = shape
            is_floating = getattr(torch, _NAMES[shape.dtype]).is_floating_point
            boundaries[k].tensors[0].needs_grad = is_floating
    return boundaries


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
        table = Table.named(schedule, ranks=stages, microbatches=m)
        if table.stages != stages:  # several stages on a rank
            v = table.stages // table.ranks
            if stages % v:
                raise UsageError(f"{schedule} has {v} stages on each rank; there are {stages}")
            table = Table.named(schedule, ranks=stages // v, stages_per_rank=v, microbatches=m)
        schedule = table
    if not isinstance(schedule, Program):
        raise TypeError(f"schedule must be a name, Table, Program or Plan, not {schedule!r}")
    program = schedule.lower() if isinstance(schedule, Table) else schedule
    program.verify().raise_if_bad()
    if program.stages != stages:
        raise UsageError(f"the schedule has {program.stages} stages; there are {stages} modules")
    if m and program.microbatches != m:
        raise UsageError(f"the schedule has {program.microbatches} microbatches, not {m}")
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
        devices = {str(weight.device) for weight in module.parameters()} - {"cpu"}
        if devices:
            raise UnavailableError(
                f"stage {k} is on {', '.join(sorted(devices))}; Pipeline runs stages on the CPU",
                "run it in PyTorch with weft_pipeline.torch.runtime(), or module.cpu()",
            )


class Pipeline(Immutable):
    """Trains modules as the stages of a pipeline, on Weft's runtime.

    `stages` are the modules in order, `schedule` a name ("1F1B"; then `microbatches` is needed), a
    table, a program or a plan. `loss_fn(output, target)` gives the loss of a microbatch. Forward,
    backward and the split into gradients of inputs and weights come from autograd; gradients add
    up in the parameters' `.grad`, divided by the number of microbatches with `scale_grads`. A stage
    takes and gives one tensor, on the CPU. A rank that makes no progress for `stall_limit` seconds
    ends the step with an error that names it.

    With `transport="threads"` all ranks are threads of this process. With "mpi" every rank is a
    process that mpirun or srun started, and each of them makes the same pipeline; modules of other
    ranks' stages may be None. A process has one such pipeline, and its first batch is the largest.
    `progress="thread"` moves messages while a stage computes.
    """

    __slots__ = (
        "_last_rank",
        "_lock",
        "_microbatches",
        "_progress",
        "_rank",
        "_runs",
        "_scale",
        "_stages",
        "_stall",
        "_world",
        "program",
    )
    program: Program
    _last_rank: int
    _lock: Any
    _microbatches: int
    _progress: str
    _rank: Optional[int]  # None: all ranks are here
    _runs: _Runs
    _scale: bool
    _stages: list[Optional[_Stage]]
    _stall: int
    _world: list[_World]  # none before the first step

    def __init__(
        self,
        stages: Sequence[Any],
        schedule: Union[str, Table, Program, Plan] = "1F1B",
        loss_fn: Optional[Callable[..., Any]] = None,
        *,
        microbatches: int = 0,
        scale_grads: bool = True,
        stall_limit: float = 30,
        transport: str = "threads",
        progress: str = "calls",
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
        is_mpi = choice(transport, "transport", _TRANSPORTS) == 1
        choice(progress, "progress", ("calls", "thread"))
        program = _program_of(schedule, len(modules), count)
        job = launch.info()
        rank = job.rank if is_mpi else None
        if is_mpi and job.ranks != program.ranks:
            raise UsageError(
                f"the schedule has {program.ranks} ranks; there are {job.ranks} processes",
                f"mpirun -n {program.ranks} starts that many",
            )
        _check_modules(torch, modules, program, rank)
        runs = _Runs(torch)
        last = len(modules) - 1
        made = [
            _Stage(runs, k, module, loss_fn if k == last else None)
            if rank is None or program.rank_of_stage[k] == rank
            else None
            for k, module in enumerate(modules)
        ]
        set_once(
            self,
            program=program,
            _last_rank=program.rank_of_stage[-1],
            _microbatches=program.microbatches,
            _lock=launch.state.lock if is_mpi else threading.Lock(),
            _progress=progress,
            _rank=rank,
            _runs=runs,
            _scale=scale,
            _stages=made,
            _stall=stall,
            _world=[],
        )
        if is_mpi:
            launch.state.users.append(self)

    def close(self) -> None:
        """Free buffers and threads. The next step makes new ones, except between processes."""
        with self._lock:
            self._world.clear()

    def _open(self, x: Any) -> _World:
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
            self._world.clear()
        self._world.append(_World(self, x))
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
        """A tensor for a stage, if that is in this process."""
        if self._stages[stage] is None or (tensor is None and name == "target"):
            return None
        if not isinstance(tensor, self._runs.torch.Tensor):
            raise TypeError(f"{name} must be a tensor, not {type(tensor).__name__}")
        m = self._microbatches
        if tensor.dim() == 0 or tensor.shape[0] < m:
            raise UsageError(
                f"{name} has the shape {tuple(tensor.shape)}, which cannot be split into "
                f"{m} microbatches"
            )
        return tensor.detach().contiguous()

    def _run(self, function: Any, x: Any, target: Any, output: bool) -> StepResult:
        training = function is lib.weft_pipeline_step
        x, target = self._batch(x, "x", 0), self._batch(target, "target", -1)
        last = self._stages[-1]
        if training and last is not None and (target is None or last.loss_fn is None):
            raise UsageError("a training step needs a target, and the pipeline a loss_fn")
        with self._lock:
            if self._rank is not None and launch.state.agreed is not None:
                raise UsageError("the job has failed before", "end the process") from (
                    launch.state.agreed
                )
            return self._run_on(self._open(x), function, x, target, output)

    def _run_on(
        self, world: _World, function: Any, x: Any, target: Any, output: bool
    ) -> StepResult:
        torch, runs, m = self._runs.torch, self._runs, self._microbatches
        first, last = self._stages[0], self._stages[-1]
        if first is not None:
            first.chunks = x.tensor_split(m)
        losses = False
        if last is not None:
            last.targets = target.tensor_split(m) if target is not None else None
            losses = target is not None and last.loss_fn is not None
        plain, wants = c.weft_batch(), c.weft_batch()  # for the rank with the last stage the second
        for batch in (plain, wants):
            batch.microbatch_count = m
            if x is not None:
                batch.inputs, batch.input_count = ctypes.pointer(_tensor(x, "x")), 1
            if target is not None:
                batch.targets, batch.target_count = ctypes.pointer(_tensor(target, "target")), 1
        wants.want_losses, wants.want_outputs = losses, output
        runs.error, runs.output = None, output
        training = function is lib.weft_pipeline_step
        owner = self._last_rank
        result = c.weft_step_result()

        def step(pipeline: Any, rank: int, error: Any) -> int:
            batch = wants if rank == owner else plain
            into = ctypes.byref(result) if rank == owner else None
            with torch.set_grad_enabled(training):  # of this thread
                return int(function(pipeline, ctypes.byref(batch), into, ctypes.byref(error)))

        try:
            with _interruptible():
                world.run(step, (self, x, target, plain, wants, result))
        except Error as error:
            self._world.clear()  # the next step begins with new ranks
            cause = runs.error if isinstance(error, StageError) else None
            if self._rank is not None:
                launch.is_failed(error)
            if cause is not None:
                raise cause from error
            raise
        found = tuple(result.losses[: result.loss_count]) if result.loss_count else ()
        merged = None
        if output and result.outputs.count:
            merged = _view(ctypes.addressof(result.outputs)).clone()
        return StepResult(found, merged)
