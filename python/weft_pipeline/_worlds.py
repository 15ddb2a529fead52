"""The ranks of a pipeline that are in this process, and what goes between its stages."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from . import launch
from ._devices import Gpus
from ._errors import Error, UsageError
from ._library import Handle, c, call, field_type, lib, raise_error
from ._mpi_world import MpiRank
from ._torch_world import TorchWorld

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


def _launched(owner: Pipeline, gpus: Optional[Gpus]) -> MpiRank:
    """The rank of a process that mpirun or srun started: its world serves one pipeline."""
    if launch.state.is_used:
        raise UsageError(
            "this process has had a pipeline over MPI; its world serves one",
            "keep one Pipeline for all steps",
        )
    comm = launch.world(owner._progress)
    launch.state.is_used = True
    launch.state.devices = gpus
    runs = owner._runs
    rank = MpiRank(runs.torch, lib.weft_comm_endpoint(comm, owner._rank), runs.edges)
    launch.state.rank = rank  # for as long as there is a world
    return rank


def _open(owner: Pipeline, gpus: Optional[Gpus]) -> Union[_Here, MpiRank, TorchWorld]:
    if owner._rank is None:
        return _Here(owner)
    runs, device = owner._runs, owner._devices[owner._rank].torch_device
    if owner._transport == "torch":
        return TorchWorld(runs.torch, owner._group, owner._stall, runs.edges, device)
    return _launched(owner, gpus)


class World:
    """The ranks of a pipeline that are in this process, and their pipelines."""

    def __init__(self, owner: Pipeline) -> None:
        """Open the ranks."""
        program, stages = owner.program, owner._stages
        self.rank, self.stall = owner._rank, owner._stall
        tops = [module for stage in stages if stage is not None for module in stage.modules]
        self.modules = [part for module in tops for part in module.modules()]
        gpus = None
        if any(device.enqueues for device in owner._devices.values()):
            gpus = Gpus(owner._devices, owner._partitions)
        self.ranks = _open(owner, gpus)
        boundaries = _boundaries(owner)
        for k, stage in enumerate(stages):
            if stage is not None:
                needs = [boundary.tensors[0].needs_grad for boundary in boundaries]
                edges = list(enumerate(owner._edges))
                takes = [(e, needs[e]) for e, edge in edges if edge.to_stage == k]
                gives = [(e, needs[e]) for e, edge in edges if edge.from_stage == k]
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

    def allgather(self, mine: bytes) -> list[bytes]:
        """Give the bytes of all ranks, each of which is a process."""
        assert self.rank is not None
        size, endpoint = len(mine), self.ranks.endpoint(self.rank)
        count = endpoint[0].rank_count
        out = ctypes.create_string_buffer(count * size)
        try:
            call(lib.weft_allgather, endpoint, mine, out, size, self.stall)
        except Error as error:
            launch.is_failed(error)
            raise
        return [out.raw[k * size : (k + 1) * size] for k in range(count)]

    def close(self) -> None:
        """Leave the other processes, where a process may have other pipelines."""
        if isinstance(self.ranks, TorchWorld):
            self.pipelines.clear()
            self.ranks.close()

    def run(self, step: Callable[[Any, int, Any], int], keep: Any) -> None:
        """Run a step on the ranks of this process."""
        if self.rank is not None:
            error = c.weft_error()
            status = step(self.pipelines[self.rank].pointer, self.rank, error)
            if status < 0:
                if isinstance(self.ranks, TorchWorld):  # gloo may still use the buffers
                    _stuck.append((self, keep))
                raise_error(status, error)
            if isinstance(self.ranks, TorchWorld):
                self.ranks.finish()
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


def _boundaries(owner: Pipeline) -> Any:
    """Tokens for what goes over each edge, and for what each loss gives.

    A gradient comes back over an edge whose taker gets one to go on from.
    """
    edges = owner._edges
    boundaries = (c.weft_boundary * (len(edges) + len(owner._losses)))()
    for boundary in boundaries:
        boundary.tensor_count, boundary.own_output = 1, True
        largest = boundary.tensors[0].largest
        largest.dtype, largest.dim_count, largest.dims[0] = c.WEFT_F64, 1, 1
    has_backward = [k in owner._losses for k in range(owner.program.stages)]
    for k in reversed(range(owner.program.stages)):
        for e in _outputs_of(owner, k):
            comes = e >= len(edges) or (edges[e].gradient and has_backward[edges[e].to_stage])
            boundaries[e].tensors[0].needs_grad = comes
            has_backward[k] = has_backward[k] or comes
    return boundaries
