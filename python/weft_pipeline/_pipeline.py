"""PyTorch modules as stages of Weft's own runtime, with a thread for each rank."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Callable, NamedTuple, Optional, Union

from ._errors import Error, StageError, UsageError
from ._library import Handle, Immutable, boolean, c, call, integer, lib, real, set_once
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
_TransportPointer = ctypes.POINTER(c.weft_transport)
_stuck: list[Any] = []  # what threads that never return may still use


def _kind(struct: Any, field: str) -> Any:
    return next(entry[1] for entry in struct._fields_ if entry[0] == field)


def _shape(torch: Any, tensor: Any, what: str) -> Any:
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


_views: dict[Any, Any] = {}  # by place, type and size: the runtime reuses its buffers
_VIEWS_MAX = 4096


def _view(torch: Any, item: Any) -> Any:
    """A tensor in the memory of the runtime, without a copy."""
    shape = item.shape
    key = (item.data, shape.dtype, tuple(shape.dims[: shape.dim_count]))
    found = _views.get(key)
    if found is None:
        if len(_views) >= _VIEWS_MAX:
            _views.clear()
        found = _views[key] = _new_view(torch, item)
    return found.detach()


def _new_view(torch: Any, item: Any) -> Any:
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


class _Stage:
    """A module and its functions for the runtime."""

    def __init__(self, pipeline: _Runs, module: Any, loss_fn: Optional[Callable[..., Any]]) -> None:
        self.pipeline = pipeline
        self.torch = pipeline.torch
        self.module = module
        self.loss_fn = loss_fn
        self.kept: dict[int, Any] = {}
        self.shapes: dict[Any, Any] = {}
        self.weights: list[Any] = []
        self.ops = c.weft_stage_ops()
        self.ops.name = b"torch"
        names = ["forward", "backward", "backward_input", "backward_weight", "scale_grads"]
        for name in names + (["loss"] if loss_fn is not None else []):
            kind = _kind(c.weft_stage_ops, name)
            setattr(self.ops, name, kind(self._guarded(getattr(self, name))))
        self.struct = c.weft_stage()
        self.struct.ops = ctypes.pointer(self.ops)

    def _guarded(self, function: Callable[[Any], None]) -> Callable[[Any, Any, Any], int]:
        """Exceptions become an error of the runtime, and come out of step()."""

        def run(_stage: Any, where: Any, error: Any) -> int:
            try:
                function(where[0])
            except BaseException as caught:
                if self.pipeline.error is None:
                    self.pipeline.error = caught
                text = f"stage {where[0].stage}: {type(caught).__name__}: {caught}"
                error[0].status = c.WEFT_ERR_STAGE
                error[0].message = text.encode("utf-8", "replace")[:500]
                error[0].hint = b""
                return int(c.WEFT_ERR_STAGE)
            return int(c.WEFT_OK)

        return run

    def forward(self, where: Any) -> None:
        x = _view(self.torch, where.inputs[0].items[0])
        with self.torch.set_grad_enabled(bool(where.training)):
            if where.training and where.stage > 0 and x.is_floating_point():
                x.requires_grad_()
            y = self.module(x)
        item = where.outputs[0].items[0]
        size = tuple(y.shape)
        if size not in self.shapes:
            self.shapes[size] = _shape(self.torch, y, f"the output of stage {where.stage}")
        item.shape = self.shapes[size]
        _view(self.torch, item).copy_(y.detach())
        if where.training:
            self.kept[where.slot] = (x, y)

    def loss(self, where: Any) -> None:
        assert self.loss_fn is not None
        y = _view(self.torch, where.outputs[0].items[0])
        target = _view(self.torch, where.targets[0].items[0])
        with self.torch.set_grad_enabled(bool(where.training)):
            y.requires_grad_(bool(where.training))
            loss = self.loss_fn(y, target)
        where.loss[0] += float(loss.detach())
        if where.training:
            (gradient,) = self.torch.autograd.grad(loss, y)
            _view(self.torch, where.output_grads[0].items[0]).copy_(gradient)

    def _input_gradient(self, where: Any, gradient: Any) -> None:
        if where.input_grads[0].count:
            _view(self.torch, where.input_grads[0].items[0]).copy_(gradient)

    def backward(self, where: Any) -> None:
        x, y = self.kept.pop(where.slot)
        gradient = _view(self.torch, where.output_grads[0].items[0])
        wanted = [*self.weights, x] if x.requires_grad else self.weights
        if wanted:
            self.torch.autograd.backward([y], [gradient], inputs=wanted)
        if x.requires_grad:
            self._input_gradient(where, x.grad)

    def backward_input(self, where: Any) -> None:
        x, y = self.kept[where.slot]
        if x.requires_grad:
            gradient = _view(self.torch, where.output_grads[0].items[0])
            (found,) = self.torch.autograd.grad([y], [x], [gradient], retain_graph=True)
            self._input_gradient(where, found)

    def backward_weight(self, where: Any) -> None:
        _, y = self.kept.pop(where.slot)
        gradient = _view(self.torch, where.output_grads[0].items[0])
        wanted = self.weights
        if wanted:
            self.torch.autograd.backward([y], [gradient], inputs=wanted)

    def scale_grads(self, where: Any) -> None:
        for weight in self.weights:
            if weight.grad is not None:
                weight.grad.mul_(where.grad_scale)


class _Runs:
    """What the callbacks of a pipeline share."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.error: Optional[BaseException] = None


class _World:
    """The ranks of a pipeline, a thread each, and their pipelines."""

    def __init__(self, owner: Pipeline, x: Any) -> None:
        runs, program, stages = owner._runs, owner.program, owner._stages
        self.size = tuple(x.shape)
        modules = [stage.module for stage in stages]
        boundaries = _boundaries(runs.torch, modules, x, program.microbatches)
        pointers = (ctypes.POINTER(c.weft_stage) * len(stages))()
        for k, stage in enumerate(stages):
            stage.kept.clear()
            pointers[k] = ctypes.pointer(stage.struct)
        source = c.weft_fixed_source()
        source.program = program._handle.pointer
        options = lib.weft_pipeline_options_default()
        kind = _kind(c.weft_pipeline_options, "source")
        options.source = ctypes.cast(lib.weft_source_fixed, kind)
        options.source_context = ctypes.cast(ctypes.pointer(source), ctypes.c_void_p)
        options.microbatch_count = program.microbatches
        options.stages, options.stage_count = pointers, len(stages)
        options.boundaries, options.boundary_count = boundaries, len(stages)
        options.scale_grads = owner._scale
        options.stall_limit = owner._stall
        world = lib.weft_comm_options_default()
        world.rank_count = program.ranks
        out = ctypes.POINTER(c.weft_comm)()
        call(lib.weft_comm_open, None, b"threads", ctypes.byref(world), ctypes.byref(out))
        keep = [program, stages, pointers, source, options, boundaries]
        self.comm = Handle(out, lib.weft_comm_close, keep)
        self.pipelines = []
        for rank in range(program.ranks):
            pipeline = ctypes.POINTER(c.weft_pipeline)()
            call(
                lib.weft_pipeline_create,
                None,
                lib.weft_comm_endpoint(out, rank),
                ctypes.byref(options),
                ctypes.byref(pipeline),
            )
            self.pipelines.append(Handle(pipeline, lib.weft_pipeline_destroy, self.comm))


class StepResult(NamedTuple):
    """The losses of the microbatches, and the output of the last stage where it is wanted."""

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


class Pipeline(Immutable):
    """Trains modules as the stages of a pipeline, on Weft's runtime, with a thread for each rank.

    `stages` are the modules in order, `schedule` a name ("1F1B"; then `microbatches` is needed), a
    table, a program or a plan. `loss_fn(output, target)` gives the loss of a microbatch. Forward,
    backward and the split into gradients of inputs and weights come from autograd; gradients add
    up in the parameters' `.grad`, times 1 / microbatches with `scale_grads`. A stage takes and
    gives one tensor, on the CPU. A rank that makes no progress for `stall_limit` seconds ends
    the step with an error that names it.
    """

    __slots__ = ("_lock", "_runs", "_scale", "_stages", "_stall", "_world", "program")
    program: Program
    _lock: threading.Lock
    _runs: _Runs
    _scale: bool
    _stages: list[_Stage]
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
    ) -> None:
        """Make a pipeline. Its threads and buffers come with the first step."""
        torch = import_module("torch")
        modules = list(stages)
        if not modules or not all(isinstance(module, torch.nn.Module) for module in modules):
            raise TypeError("stages must be modules of PyTorch")
        if loss_fn is not None and not callable(loss_fn):
            raise TypeError("loss_fn must be a function")
        count = integer(microbatches, "microbatches", 0, c.WEFT_MICROBATCHES_MAX)
        program = _program_of(schedule, len(modules), count)
        runs = _Runs(torch)
        last = len(modules) - 1
        made = [
            _Stage(runs, module, loss_fn if k == last else None) for k, module in enumerate(modules)
        ]
        set_once(
            self,
            program=program,
            _lock=threading.Lock(),
            _runs=runs,
            _scale=boolean(scale_grads, "scale_grads"),
            _stages=made,
            _stall=int(real(stall_limit, "stall_limit", 0, 1e6) * 1e9),
            _world=[],
        )

    def _open(self, x: Any) -> _World:
        """The ranks, with buffers for batches like this one; made anew for a larger one."""
        size = tuple(x.shape)
        if self._world:
            world = self._world[0]
            if size[0] <= world.size[0] and size[1:] == world.size[1:]:
                return world
            self._world.clear()
        self._world.append(_World(self, x))
        return self._world[0]

    def step(self, x: Any, target: Any = None, *, output: bool = False) -> StepResult:
        """Run a training step on a batch, which is split along its first dimension."""
        return self._run(lib.weft_pipeline_step, x, target, boolean(output, "output"))

    def eval(self, x: Any, target: Any = None, *, output: bool = True) -> StepResult:
        """Run the forwards alone."""
        return self._run(lib.weft_pipeline_eval, x, target, boolean(output, "output"))

    def _run(self, function: Any, x: Any, target: Any, output: bool) -> StepResult:
        torch, program = self._runs.torch, self.program
        tensors = {"inputs": x, "targets": target}
        items: dict[str, Any] = {}
        for name, tensor in tensors.items():
            if tensor is None and name == "targets":
                continue
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"{name} must be a tensor, not {type(tensor).__name__}")
            tensor = tensor.detach().contiguous()
            if tensor.dim() == 0 or tensor.shape[0] < program.microbatches:
                raise UsageError(
                    f"{name} has the shape {tuple(tensor.shape)}, which cannot be split into "
                    f"{program.microbatches} microbatches"
                )
            item = c.weft_tensor()
            item.shape = _shape(torch, tensor, name)
            item.data = tensor.data_ptr()
            items[name] = (item, tensor)
        if function is lib.weft_pipeline_step and (
            target is None or self._stages[-1].loss_fn is None
        ):
            raise UsageError("a training step needs a target, and the pipeline a loss_fn")
        with self._lock:
            return self._run_on(self._open(items["inputs"][1]), function, items, output)

    def _run_on(self, world: _World, function: Any, items: Any, output: bool) -> StepResult:
        torch, program = self._runs.torch, self.program
        last = program.rank_of_stage[-1]
        for stage in self._stages:
            stage.weights = [w for w in stage.module.parameters() if w.requires_grad]
        results = [c.weft_step_result() for _ in world.pipelines]

        def rank_main(_context: Any, transport: Any, error: Any) -> int:
            rank = transport[0].rank
            batch = c.weft_batch()
            batch.microbatch_count = program.microbatches
            batch.inputs, batch.input_count = ctypes.pointer(items["inputs"][0]), 1
            if "targets" in items:
                batch.targets, batch.target_count = ctypes.pointer(items["targets"][0]), 1
            batch.want_losses = rank == last and self._stages[-1].loss_fn is not None
            batch.want_losses = batch.want_losses and "targets" in items
            batch.want_outputs = rank == last and output
            pipeline = world.pipelines[rank].pointer
            return int(function(pipeline, ctypes.byref(batch), results[rank], error))

        main = next(iter(lib.weft_comm_run.argtypes[1:2]))(rank_main)
        self._runs.error = None
        try:
            call(lib.weft_comm_run, world.comm.pointer, main, None)
        except Error as error:
            self._world.clear()  # the next step begins with new ranks
            if isinstance(error, StageError) and self._runs.error is not None:
                raise self._runs.error from error
            raise
        finally:
            if lib.weft_comm_stuck_ranks(world.comm.pointer):
                _stuck.append((self, world, main, items, results))
        result = results[last if last is not None else 0]
        losses = tuple(result.losses[: result.loss_count]) if result.loss_count else ()
        merged = None
        if output and result.outputs.count:
            merged = _view(torch, result.outputs.items[0]).clone()
        return StepResult(losses, merged)


def _boundaries(torch: Any, modules: list[Any], example: Any, microbatches: int) -> Any:
    """What each stage gives for the largest microbatch, without computing it."""
    fake = import_module("torch._subclasses").FakeTensorMode(allow_non_fake_inputs=True)
    if example.dim() == 0 or example.shape[0] < microbatches:
        raise UsageError(
            f"the batch has the shape {tuple(example.shape)}, which cannot be split into "
            f"{microbatches} microbatches"
        )
    boundaries = (c.weft_boundary * len(modules))()
    with torch.no_grad(), torch.random.fork_rng(devices=[]), fake:
        largest = -(-example.shape[0] // microbatches)
        x = torch.empty((largest, *example.shape[1:]), dtype=example.dtype)
        for k, module in enumerate(modules):
            x = module(x)
            if not isinstance(x, torch.Tensor):
                raise UsageError(f"stage {k} gives {type(x).__name__}; expected one tensor")
            boundaries[k].tensor_count = 1
            boundaries[k].tensors[0].largest = _shape(torch, x, f"the output of stage {k}")
            boundaries[k].tensors[0].needs_grad = x.is_floating_point()
    return boundaries
