"""Where the stages of a rank are: on the host, where a function computes, or on a GPU, where it
enqueues what PyTorch launches on the stream of its rank.

A step of the runtime and the caller's own work on a GPU are ordered in both directions: streams of
the runtime begin a step when what the caller has enqueued so far is done, and a step returns when
the GPU has ended it. So memory that PyTorch allocated in a step, gradients for instance, may be
used and freed by the caller, and the next step may have it again.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any, Callable, Optional, Union

from ._errors import UnavailableError, UsageError
from ._library import Handle, c, call, lib
from ._program import Program


class Host:
    """Stages on the CPU, or on the GPU of a process of its own, where PyTorch orders all."""

    enqueues = False
    enter: Optional[Callable[[int], None]] = None

    def __init__(self, torch: Any, device: Any = "cpu") -> None:
        """Make it."""
        self.torch_device = torch.device(device)

    def begin(self) -> None:
        """Begin a step."""

    def take(self, x: Any) -> Any:
        """Take a tensor that another rank has made."""
        return x.to(self.torch_device)


class Gpu:
    """Stages on a GPU. One thread at a time calls the functions of all of them."""

    enqueues = True

    def __init__(self, torch: Any, index: int) -> None:
        """Make a GPU, counted as PyTorch and CUDA do."""
        self.torch = torch
        self.number = index
        self.torch_device = torch.device("cuda", index)
        self.streams: dict[int, Any] = {}
        self.begun: Any = None  # event: what the caller had enqueued when the step began
        self.in_step: set[int] = set()  # streams that wait for it

    def begin(self) -> None:
        """Begin a step after all that the caller's stream has now."""
        cuda = self.torch.cuda
        if self.begun is None:
            self.begun = cuda.Event()
        self.begun.record(cuda.current_stream(self.torch_device))
        self.in_step.clear()

    def enter(self, handle: int) -> None:
        """Make a stream of the runtime PyTorch's current one, in this thread."""
        stream = self.streams.get(handle)
        if stream is None:
            stream = self.torch.cuda.ExternalStream(handle, device=self.torch_device)
            self.streams[handle] = stream
        if handle not in self.in_step:
            stream.wait_event(self.begun)
            self.in_step.add(handle)
        self.torch.cuda.set_stream(stream)

    def take(self, x: Any) -> Any:
        """Take a tensor that another rank has made: its memory is not free before this is done."""
        if x.is_cuda:
            x.record_stream(self.torch.cuda.current_stream(x.device))
        return x.to(self.torch_device, non_blocking=True)


RankDevice = Union[Host, Gpu]


def _device_of(modules: dict[int, Any], rank: int) -> Any:
    """The device of a rank's stages; None where they have neither weights nor buffers."""
    found: dict[Any, int] = {}
    for k, module in modules.items():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.device.type not in ("cpu", "cuda"):
                raise UnavailableError(
                    f"stage {k} is on {tensor.device}; Pipeline runs stages on the CPU and on "
                    f"NVIDIA's GPUs",
                    "move it to one of them, or run it in PyTorch with "
                    "weft_pipeline.torch.runtime()",
                )
            found.setdefault(tensor.device, k)
    if len(found) > 1:
        where = ", ".join(f"stage {k} on {device}" for device, k in found.items())
        raise UsageError(
            f"rank {rank} has {where}; expected one device for all stages of a rank",
            "move them to one device, or place them on several ranks",
        )
    return next(iter(found), None)


def rank_devices_of(
    torch: Any, modules: list[Any], program: Program, rank: Optional[int], has_streams: bool
) -> dict[int, RankDevice]:
    """Give the device of each rank of this process; without weights it is a neighbour's.

    On GPUs the runtime `has_streams` of its own, or none.
    """
    homes: dict[int, Any] = {}
    for r in range(program.ranks) if rank is None else [rank]:
        mine = {k: modules[k] for k, owner in enumerate(program.rank_of_stage) if owner == r}
        homes[r] = _device_of(mine, r)
    known = [device for device in homes.values() if device is not None]
    last = known[0] if known else torch.device("cpu")
    made: dict[Any, RankDevice] = {}
    devices = {}
    for r, device in homes.items():
        last = last if device is None else device
        if last not in made:
            is_own = has_streams and last.type == "cuda"
            made[last] = Gpu(torch, last.index or 0) if is_own else Host(torch, last)
        devices[r] = made[last]
    return devices


# ---- The runtime's devices ----


class Gpus:
    """GPUs, or partitions of them, for the ranks of this process."""

    def __init__(self, devices: dict[int, RankDevice], partitions: int) -> None:
        """Open them. Ranks of a GPU go to its partitions in order, as many in each as is even."""
        numbers = {r: device.number for r, device in devices.items() if isinstance(device, Gpu)}
        gpus = sorted(set(numbers.values()))
        parts = max(partitions, 1)
        room = max(-(-list(numbers.values()).count(gpu) // parts) for gpu in gpus)
        options = c.weft_cuda_options()
        listed = (ctypes.c_uint32 * len(gpus))(*gpus)
        options.gpus, options.gpu_count, options.partitions = listed, len(gpus), partitions
        out = ctypes.POINTER(c.weft_cuda)()
        # Every partition gets a device for each of the ranks that it may have.
        count = len(gpus) * parts * room
        call(lib.weft_cuda_open, None, ctypes.byref(options), count, ctypes.byref(out))
        self.handle = Handle(out, lib.weft_cuda_close)
        self.device_of: dict[int, Any] = {}
        taken: dict[int, int] = {}
        for k, gpu in enumerate(gpus):
            mine = [r for r, number in numbers.items() if number == gpu]
            for j, r in enumerate(mine):
                part = k * parts + j * parts // max(len(mine), parts)
                seat = taken[part] = taken.get(part, -1) + 1
                self.device_of[r] = lib.weft_cuda_device(out, part * room + seat)


@contextlib.contextmanager
def same_device(torch: Any, devices: dict[int, RankDevice]) -> Iterator[None]:
    """Leave the caller's current GPU and stream as they are; the runtime has its own."""
    if not any(device.enqueues for device in devices.values()) or not torch.cuda.is_initialized():
        yield
        return
    cuda = torch.cuda
    before = cuda.current_device()
    gpus = {device.torch_device for device in devices.values() if device.enqueues}
    streams = [cuda.current_stream(gpu) for gpu in gpus]
    try:
        yield
    finally:
        for stream in streams:
            cuda.set_stream(stream)
        cuda.set_device(before)
