"""The ranks of a pipeline that are in this process, and what goes between its stages."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from . import launch
from ._devices import Gpus
from ._errors import StageError, UsageError
from ._library import Handle, c, call, field_type, lib, raise_error
from ._modules import without_data
from ._tensors import NAMES, shape_of
from ._torch_world import TorchWorld
from ._variables import put_back

if TYPE_CHECKING:
    from ._pipeline import Pipeline

_stuck: list[Any] = []  # what threads that never return may still use


class _Here:
    """Ranks that are all in this process."""

    def __init__(self, owner: Pipeline) -> None:
        """Open as many as the program has."""
        options = lib.weft_comm_options_default()
        options.rank_count = owner.program.ranks
        comm = ctypes.POINTER(c.weft_comm)()
        transport = owner._transport.encode()
        call(lib.weft_comm_open, None, transport, ctypes.byref(options), ctypes.byref(comm))
        self.comm = Handle(comm, lib.weft_comm_close)

    def endpoint(self, rank: int) -> Any:
        """Give the transport of a rank."""
        return lib.weft_comm_endpoint(self.comm.pointer, rank)

    def allgather(self, mine: bytes) -> list[bytes]:
        """Give the bytes of all processes."""
        return [mine]


class _Launched:
    """The rank of a process that mpirun or srun started."""

    def __init__(self, owner: Pipeline, gpus: Optional[Gpus]) -> None:
        """Take the world of the process."""
        if launch.state.is_used:
            raise UsageError(
                "this process has had a pipeline over MPI; its world serves one",
                "keep one Pipeline for all steps; its first batch is the largest",
            )
        self.comm = Handle(launch.world(owner._progress, owner._transport))
        self.stall = owner._stall
        launch.state.is_used = True
        launch.state.devices = gpus  # NCCL uses them for as long as there is a world

    def endpoint(self, rank: int) -> Any:
        """Give the transport of this rank."""
        return lib.weft_comm_endpoint(self.comm.pointer, rank)

    def allgather(self, mine: bytes) -> list[bytes]:
        """Give the bytes of all processes."""
        return launch.allgather(mine, self.stall)


def _open(owner: Pipeline, gpus: Optional[Gpus]) -> Union[_Here, _Launched, TorchWorld]:
    if owner._rank is None:
        return _Here(owner)
    if owner._transport == "torch":
        return TorchWorld(owner._runs.torch, owner._group, owner._stall)
    return _Launched(owner, gpus)


class World:
    """The ranks of a pipeline that are in this process, and their pipelines."""

    def __init__(self, owner: Pipeline, xs: dict[int, Any], kinds: Any) -> None:
        """Open the ranks, with buffers for batches like these, by stage without in-edges.

        `kinds` are what the dtypes of tensors follow from.
        """
        self.kinds = kinds
        program, stages = owner.program, owner._stages
        self.rank = owner._rank
        self.sizes = {k: tuple(x.shape) for k, x in xs.items()}
        tops = [module for stage in stages if stage is not None for module in stage.modules]
        self.modules = [part for module in tops for part in module.modules()]
        mine = [stage.module for stage in stages if stage is not None]
        gpus = None
        if any(device.enqueues for device in owner._devices.values()):
            gpus = Gpus(owner._devices, owner._partitions)
        self.ranks = _open(owner, gpus)
        with put_back(mine):
            boundaries = _boundaries(owner, xs, self.ranks.allgather)
        for k, stage in enumerate(stages):
            if stage is not None:
                needs = [boundary.tensors[0].needs_grad for boundary in boundaries]
                edges = owner._edges
                takes = [
                    (edge.from_stage, needs[e])
                    for e, edge in enumerate(edges)
                    if edge.to_stage == k
                ]
                outputs = _outputs_of(owner, k)
                gives: list[tuple[tuple[int, ...], bool]] = [
                    ((edges[e].to_stage,) if e < len(edges) else (), needs[e]) for e in outputs
                ]
                if not boundaries[outputs[0]].own_output:  # one goes over all edges
                    takers = [stage for stages, comes in gives for stage in stages if comes]
                    gives = [(tuple(takers), any(comes for _, comes in gives))]
                stage.reset(takes, gives, k in owner._losses)
        options, keep = _options(owner, boundaries)
        keep = [keep, gpus, self.ranks]
        self.pipelines = {}
        for rank in range(program.ranks) if self.rank is None else [self.rank]:
            options.device = gpus.device_of.get(rank) if gpus is not None else None
            pipeline = ctypes.POINTER(c.weft_pipeline)()
            endpoint, into = self.ranks.endpoint(rank), ctypes.byref(pipeline)
            call(lib.weft_pipeline_create, None, endpoint, ctypes.byref(options), into)
            self.pipelines[rank] = Handle(pipeline, lib.weft_pipeline_destroy, keep)

    def run(self, step: Callable[[Any, int, Any], int], keep: Any) -> None:
        """Run a step on the ranks of this process."""
        if self.rank is not None:
            error = c.weft_error()
            status = step(self.pipelines[self.rank].pointer, self.rank, error)
            if status < 0:
                if isinstance(self.ranks, TorchWorld):  # gloo may still use the buffers
                    _stuck.append((self, keep))
                raise_error(status, error)
            return

        here = self.ranks
        assert isinstance(here, _Here)

        def rank_main(_context: Any, transport: Any, error: Any) -> int:
            rank = transport[0].rank
            return step(self.pipelines[rank].pointer, rank, error[0])

        main = lib.weft_comm_run.argtypes[1](rank_main)
        try:
            call(lib.weft_comm_run, here.comm.pointer, main, None)
        finally:
            if lib.weft_comm_stuck_ranks(here.comm.pointer):
                _stuck.append((self, main, keep))


def _options(owner: Pipeline, boundaries: Any) -> tuple[Any, Any]:
    """The options of the ranks' pipelines, and what must live as long as these."""
    program, stages = owner.program, owner._stages
    pointers = (ctypes.POINTER(c.weft_stage) * len(stages))()
    for k, stage in enumerate(stages):
        if stage is not None:
            pointers[k] = ctypes.pointer(stage.struct)
    source = c.weft_fixed_source()
    source.program = program._handle.pointer
    options = lib.weft_pipeline_options_default()
    kind = field_type(c.weft_pipeline_options, "source")
    options.source = ctypes.cast(lib.weft_source_fixed, kind)
    options.source_context = ctypes.cast(ctypes.pointer(source), ctypes.c_void_p)
    options.microbatch_count = program.microbatches
    options.stages, options.stage_count = pointers, len(stages)
    options.boundaries, options.boundary_count = boundaries, len(boundaries)
    options.scale_grads = owner._scale
    options.stall_limit = owner._stall
    options.no_events = True
    kind = field_type(c.weft_pipeline_options, "interrupted")
    options.interrupted = ctypes.cast(lib.weft_launch_is_interrupted, kind)
    return options, [program, stages, pointers, source, options, boundaries]


def _outputs_of(owner: Pipeline, k: int) -> list[int]:
    """The boundaries that a stage writes: those of its out-edges, or that of a loss."""
    if k in owner._losses:
        return [len(owner._edges) + owner._losses.index(k)]
    return [e for e, edge in enumerate(owner._edges) if edge.from_stage == k]


def _boundaries(
    owner: Pipeline, xs: dict[int, Any], allgather: Callable[[bytes], list[bytes]]
) -> Any:
    """What goes over each edge, and what each loss gives, for the largest microbatch.

    Modules compute it without data. Between processes the ranks tell each other, stage by stage; a
    rank that cannot tell says so, and all fail.
    """
    torch, program, edges = owner._runs.torch, owner.program, owner._edges
    size = ctypes.sizeof(c.weft_tensor_shape)
    boundaries = (c.weft_boundary * (len(edges) + len(owner._losses)))()
    failure: Optional[BaseException] = None
    for k in range(program.stages):
        rank = program.rank_of_stage[k] or 0
        outputs = _outputs_of(owner, k)
        mine = b""
        if owner._rank in (None, rank):
            inputs = [
                boundaries[e].tensors[0].largest
                for e, edge in enumerate(edges)
                if edge.to_stage == k
            ]
            try:
                shapes, is_one = _given(owner, xs.get(k), k, inputs, len(outputs))
                mine = (b"1" if is_one else b"+") + b"".join(map(bytes, shapes))
            except BaseException as caught:
                failure = caught
                mine = b"-" + bytes(size * len(outputs))
            finally:
                torch.clear_autocast_cache()  # weights without data are no use to a step
        found = allgather(mine or bytes(size * len(outputs) + 1))
        answer = found[rank if len(found) > 1 else 0]
        if answer[:1] not in (b"1", b"+"):
            reason = StageError(
                f"rank {rank} cannot tell what stage {k} gives", "that rank's error says why"
            )
            if owner._rank is not None:
                launch.is_failed(failure or reason)
            raise failure or reason
        for n, e in enumerate(outputs):
            shape = c.weft_tensor_shape.from_buffer_copy(answer, 1 + n * size)
            boundaries[e].tensor_count = 1
            boundaries[e].tensors[0].largest = shape
            boundaries[e].own_output = answer[:1] == b"+"
    _mark_gradients(owner, boundaries)
    return boundaries


def _mark_gradients(owner: Pipeline, boundaries: Any) -> None:
    """Tensors of floating point need a gradient, where their stage gets one to go on from."""
    torch = owner._runs.torch
    has_backward = [False] * owner.program.stages
    for k in reversed(range(owner.program.stages)):
        has_backward[k] = k in owner._losses
        for e in _outputs_of(owner, k):
            tensor = boundaries[e].tensors[0]
            comes_back = k in owner._losses or (
                owner._edges[e].gradient and has_backward[owner._edges[e].to_stage]
            )
            is_floating = getattr(torch, NAMES[tensor.largest.dtype]).is_floating_point
            tensor.needs_grad = comes_back and is_floating
            has_backward[k] = has_backward[k] or tensor.needs_grad


def _given(
    owner: Pipeline, x: Any, k: int, inputs: list[Any], count: int
) -> tuple[list[Any], bool]:
    """What a stage gives for inputs of these shapes or for a microbatch of `x`.

    The shapes over each of its out-edges, and whether that is one tensor for all of them.
    """
    torch = owner._runs.torch
    stage = owner._stages[k]
    assert stage is not None
    device = stage.device.torch_device
    with without_data(torch, k, stage.module) as twin:
        if not inputs:
            shape_of(x, f"{stage.name} takes x,", device)
            sizes = [((-(-x.shape[0] // owner._microbatches), *x.shape[1:]), x.dtype)]
        else:
            sizes = [
                (tuple(shape.dims[: shape.dim_count]), getattr(torch, NAMES[shape.dtype]))
                for shape in inputs
            ]
        y = twin.module(*(twin.empty(torch, dims, kind, device) for dims, kind in sizes))
        parts = stage.parts_of(y, count)
        shapes = [shape_of(part, f"{stage.name} gives", device) for part in parts]
        return shapes, isinstance(y, torch.Tensor)
