"""The ranks of a pipeline that are in this process, and what goes between its stages."""

from __future__ import annotations

import ctypes
from importlib import import_module
from typing import TYPE_CHECKING, Any, Callable, Optional

from . import launch
from ._errors import StageError, UsageError
from ._library import Handle, c, call, lib, raise_error
from ._places import Gpus
from ._stages import field_type
from ._tensors import NAMES, shape_of

if TYPE_CHECKING:
    from ._pipeline import Pipeline

_stuck: list[Any] = []  # what threads that never return may still use


class World:
    """The ranks of a pipeline that are in this process, and their pipelines."""

    def __init__(self, owner: Pipeline, x: Any) -> None:
        """Open the ranks, with buffers for batches like this one."""
        program, stages = owner.program, owner._stages
        self.rank = owner._rank
        self.size = None if x is None else tuple(x.shape)
        gpus = None
        if any(place.enqueues for place in owner._places.values()):
            gpus = Gpus(owner._places, owner._partitions)
        if self.rank is None:
            boundaries = _boundaries(owner, x, lambda mine: [mine])
            world = lib.weft_comm_options_default()
            world.rank_count = program.ranks
            comm = ctypes.POINTER(c.weft_comm)()
            transport = owner._transport.encode()
            call(lib.weft_comm_open, None, transport, ctypes.byref(world), ctypes.byref(comm))
        else:
            if launch.state.is_used:
                raise UsageError(
                    "this process has had a pipeline over MPI; its world serves one",
                    "keep one Pipeline for all steps; its first batch is the largest",
                )
            comm = launch.world(owner._progress, owner._transport)
            launch.state.is_used = True
            launch.state.devices = gpus  # NCCL uses them for as long as there is a world
            boundaries = _boundaries(owner, x, lambda m: launch.allgather(m, owner._stall))
        for k, stage in enumerate(stages):
            if stage is not None:
                stage.reset(takes_grad=k > 0 and boundaries[k - 1].tensors[0].needs_grad)
        options, keep = _options(owner, boundaries)
        destroy = lib.weft_comm_close if self.rank is None else None
        self.comm = Handle(comm, destroy, [keep, gpus])
        self.pipelines = {}
        for rank in range(program.ranks) if self.rank is None else [self.rank]:
            options.device = gpus.device_of.get(rank) if gpus is not None else None
            pipeline = ctypes.POINTER(c.weft_pipeline)()
            endpoint = lib.weft_comm_endpoint(comm, rank)
            into = ctypes.byref(pipeline)
            call(lib.weft_pipeline_create, None, endpoint, ctypes.byref(options), into)
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
    options.boundaries, options.boundary_count = boundaries, len(stages)
    options.scale_grads = owner._scale
    options.stall_limit = owner._stall
    options.no_events = True
    kind = field_type(c.weft_pipeline_options, "interrupted")
    options.interrupted = ctypes.cast(lib.weft_launch_is_interrupted, kind)
    return options, [program, stages, pointers, source, options, boundaries]


def _boundaries(owner: Pipeline, x: Any, allgather: Callable[[bytes], list[bytes]]) -> Any:
    """What each stage gives for the largest microbatch, without computing it.

    Between processes the ranks tell each other, stage by stage; a rank that cannot tell says so,
    and all fail.
    """
    torch, program = owner._runs.torch, owner.program
    size = ctypes.sizeof(c.weft_tensor_shape)
    boundaries = (c.weft_boundary * program.stages)()
    failure: Optional[BaseException] = None
    shape = c.weft_tensor_shape()
    for k in range(-1, program.stages):  # -1: the batch itself
        rank = program.rank_of_stage[max(k, 0)] or 0
        mine = b""
        if owner._rank in (None, rank):
            try:
                mine = b"+" + bytes(_given(owner, x, k, shape))
            except BaseException as caught:
                failure = caught
                mine = b"-" + bytes(size)
            finally:
                torch.clear_autocast_cache()  # weights without data are no use to a step
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
            is_floating = getattr(torch, NAMES[shape.dtype]).is_floating_point
            boundaries[k].tensors[0].needs_grad = is_floating
    return boundaries


def _given(owner: Pipeline, x: Any, k: int, shape: Any) -> Any:
    """The shape of what a stage gives for an input of a shape; of -1, of a microbatch of `x`."""
    torch, program = owner._runs.torch, owner.program
    stage = owner._stages[max(k, 0)]
    assert stage is not None
    device = stage.place.device
    fake = import_module("torch._subclasses").FakeTensorMode(allow_non_fake_inputs=True)
    with torch.no_grad(), torch.random.fork_rng(devices=[]), fake:
        if k < 0:
            rows = -(-x.shape[0] // program.microbatches)
            y = torch.empty((rows, *x.shape[1:]), dtype=x.dtype, device=device)
        else:
            dtype = getattr(torch, NAMES[shape.dtype])
            y = torch.empty(shape.dims[: shape.dim_count], dtype=dtype, device=device)
            y = stage.module(y)
        if not isinstance(y, torch.Tensor):
            raise UsageError(
                f"stage {k} gives {type(y).__name__}; expected one tensor",
                "return a tensor; several of one shape can be stacked",
            )
        return shape_of(y, f"the output of stage {k}" if k >= 0 else "x", device)
