"""What goes over the edges of a pipeline: tensors as PyTorch has them, and plain values.

The runtime moves a token of one number per edge and microbatch, and sees to order, waiting and
failures; what the token stands for is here, under (direction, edge, microbatch). In one process it
stays here; between processes a transport takes it and brings it to another. So a shape is known
when a module has given it, and may be another one each time.
"""

from __future__ import annotations

import ctypes
import math
import pickle
import struct
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

from ._errors import UsageError
from ._library import c

FORWARD, BACKWARD = 0, 1  # as enum weft_message_kind
NEEDS_GRAD, MOVES = 1, 2  # of a value: what it needs, and whether it goes to the taker's device
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


class Key(NamedTuple):
    """What a message is about."""

    kind: int
    edge: int
    microbatch: int


class Edges:
    """What is under way."""

    def __init__(self, is_chain: bool) -> None:
        """Nothing is."""
        self.is_chain = is_chain
        self.items: dict[Key, Any] = {}

    def put(self, kind: int, edge: int, microbatch: int, values: Any) -> None:
        """Give something to the other end of an edge."""
        self.items[Key(kind, edge, microbatch)] = values

    def message(self, message: int, channel: int) -> Any:
        """Take what a message over a channel of the runtime stands for."""
        microbatch = ctypes.c_uint32.from_address(message + MICROBATCH_AT).value
        return self.take(channel & 1, self.edge_of(channel), microbatch)

    def edge_of(self, channel: int) -> int:
        """Give the edge of a channel; in a chain gradients have the number of their sender."""
        return channel // 2 - (self.is_chain and channel & 1)

    def arrive(self, message: int, channel: int, arrived: Arrived) -> None:
        """Put what has come in a message, and write its header."""
        ctypes.memmove(message, arrived.head, HEAD)
        microbatch = ctypes.c_uint32.from_address(message + MICROBATCH_AT).value
        values = arrived.values(channel & 1)
        self.put(channel & 1, self.edge_of(channel), microbatch, values)

    def take(self, kind: int, edge: int, microbatch: int) -> Any:
        """Take what has come over an edge."""
        return self.items.pop(Key(kind, edge, microbatch))

    def clear(self) -> None:
        """Forget what has not been taken."""
        self.items.clear()


def kind_of(y: Any) -> str:
    """Say what a module or a loss gives."""
    if type(y) not in (tuple, list):
        return type(y).__name__
    kinds = ("tensor" if hasattr(part, "grad_fn") else type(part).__name__ for part in y)
    return f"{type(y).__name__} of {len(y)} ({', '.join(kinds)})"


def values_of(torch: Any, k: int, y: Any) -> Optional[tuple[Any, ...]]:
    """Give what goes over one edge, one after the other: None if that cannot be.

    A tensor is one value. A tuple or list are several, which the next module takes as so many
    arguments, as in PyTorch's pipelining.
    """
    if isinstance(y, torch.Tensor):
        return (y,)
    if type(y) not in (tuple, list) or not y:
        return None
    for part in y:
        if not isinstance(part, (torch.Tensor, *_PLAIN)):
            return None
    return tuple(y)


def values_by_edge(torch: Any, k: int, y: Any, count: int) -> list[tuple[Any, ...]]:
    """Give what goes over each of the out-edges of stage k.

    With several edges a tuple of as many has what goes over each; all else goes over all of them.
    """
    if count > 1 and type(y) in (tuple, list) and len(y) == count:
        each = [values_of(torch, k, part) for part in y]
        if None not in each:
            return each  # type: ignore[return-value]
    whole = values_of(torch, k, y) if count == 1 or isinstance(y, torch.Tensor) else None
    if whole is None:
        several = f", or {count} of these, one for each of its out-edges" if count > 1 else ""
        raise UsageError(
            f"stage {k} gives {kind_of(y)}; expected a tensor, or a tuple of tensors, numbers, "
            f"texts and None{several}",
            "return the tensors of a dict or an object as a tuple, in the order in which the next "
            "stage takes them",
        )
    return [whole] * count


# ---- Between processes ----
#
# A message is a block: when it was sent, the runtime's header, and a pickled description of the
# values. Tensors come behind it in the block, if there is room for all; if not, they follow. Those
# on GPUs come by another way, if there is one, and are copied to the host otherwise.

# Header and shape of a struct weft_message, whose payload is a token.
HEAD = c.weft_message.shapes.offset + ctypes.sizeof(c.weft_tensor_shape)
MICROBATCH_AT = c.weft_message_header.microbatch.offset
_FRONT = struct.Struct(f"<q{HEAD}sI?")
_ALIGN = 16  # of tensors in a block
_MOST = 4096  # descriptions that are kept

_described: dict[bytes, Any] = {}  # what has come before
_descriptions: dict[Any, bytes] = {}


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _flat(torch: Any, x: Any) -> tuple[Any, Optional[tuple[int, ...]]]:
    """Give the bytes of a tensor, itself where it is dense, and its strides where they count."""
    x = x.resolve_conj().resolve_neg()
    if not x.is_contiguous():
        x = x.clone()  # dense, and in the same order
    if x.is_contiguous():
        return x.view(-1).view(torch.uint8), None
    return x.as_strided((x.numel(),), (1,)).view(torch.uint8), x.stride()


def _describe(about: tuple[Any, ...]) -> bytes:
    text = _descriptions.get(about)
    if text is None:
        text = pickle.dumps(about)
        if all(each[0] is not None for each in about):  # 1 is True, and 0.0 is -0.0
            if len(_descriptions) >= _MOST:
                _descriptions.clear()
            _descriptions[about] = text
    return text


def _read(text: bytes) -> Any:
    about = _described.get(text)
    if about is None:
        about = pickle.loads(text)
        if len(_described) >= _MOST:
            _described.clear()
        _described[text] = about
    return about


class Sending:
    """A message that is made: its block, and the bytes of tensors that follow."""

    def __init__(
        self, torch: Any, kind: int, values: Any, head: bytes, room: int, apart: bool = False
    ) -> None:
        """Take what goes over an edge; a block has so much room.

        Tensors on GPUs go `apart`, where that is so.
        """
        about = []
        parts: list[Any] = []
        self.apart: list[Any] = []  # bytes of tensors on GPUs
        for value in values:
            x, flags = (value, 0) if kind == BACKWARD else value
            if isinstance(x, torch.Tensor):
                is_apart = apart and x.is_cuda
                line, strides = _flat(torch, x.cpu() if x.is_cuda and not apart else x)
                about.append((x.dtype, tuple(x.shape), strides, flags, is_apart))
                (self.apart if is_apart else parts).append(line)
            else:
                about.append((None, x, None, flags, False))
        text = _describe(tuple(about))
        begin = _aligned(_FRONT.size + len(text))
        if begin > room:
            raise UsageError(
                f"what goes over an edge beside tensors has {len(text)} bytes; at most "
                f"{room - _FRONT.size} are possible",
                "send long texts as tensors (uint8), or none of them",
            )
        sizes = [_aligned(part.numel()) for part in parts]
        is_whole = begin + sum(sizes) <= room
        self.follow = [] if is_whole else [part for part in parts if part.numel()]
        self.begin = time.monotonic_ns()
        self.block = torch.empty(begin + sum(sizes) * is_whole, dtype=torch.uint8)
        into = self.block.data_ptr()
        front = _FRONT.pack(self.begin, head, len(text), is_whole)
        ctypes.memmove(into, front, _FRONT.size)
        ctypes.memmove(into + _FRONT.size, text, len(text))
        into += begin
        for size, part in zip(sizes, parts if is_whole else ()):
            ctypes.memmove(into, part.data_ptr(), part.numel())
            into += size


class Arrived:
    """A block that has arrived."""

    def __init__(self, torch: Any, block: Any) -> None:
        """Read it; ValueError where it cannot be one."""
        self.torch = torch
        where, room = block.data_ptr(), block.numel()
        self.begin, self.head, size, self.is_whole = _FRONT.unpack(
            ctypes.string_at(where, _FRONT.size)
        )
        at = _aligned(_FRONT.size + size)
        if at > room:
            raise ValueError(f"a description of {size} bytes in a block of {room}")
        self.about = _read(ctypes.string_at(where + _FRONT.size, size))
        self.sizes = [
            math.prod(s) * d.itemsize for d, s, _, _, apart in self.about if d and not apart
        ]
        self.parts: list[Any] = []
        self.apart: list[Any] = []
        if self.is_whole:
            if at + sum(map(_aligned, self.sizes)) > room:
                raise ValueError("more tensors than it has room for")
            for size in self.sizes:
                self.parts.append(block[at : at + size].clone())
                at += _aligned(size)

    def empty(self, unit: int = 1) -> Iterator[Any]:
        """Make the memory of tensors that follow; the bytes of each are to be written there.

        Behind each is memory up to a multiple of `unit`.
        """
        for size in () if self.is_whole else self.sizes:
            whole = self.torch.empty(-(-size // unit) * unit, dtype=self.torch.uint8)
            part = whole[:size]
            self.parts.append(part)
            if size:
                yield part

    def empty_apart(self, device: Any) -> list[Any]:
        """Make the memory of tensors that come another way."""
        self.apart = [
            self.torch.empty(math.prod(s) * d.itemsize, dtype=self.torch.uint8, device=device)
            for d, s, _, _, apart in self.about
            if apart
        ]
        return [part for part in self.apart if part.numel()]

    def values(self, kind: int) -> list[Any]:
        """Give what goes over an edge."""
        left, apart = iter(self.parts), iter(self.apart)
        found: list[Any] = []
        for dtype, shape, strides, flags, is_apart in self.about:
            x = shape
            if dtype is not None:
                line = next(apart if is_apart else left).view(dtype)
                x = line.view(shape) if strides is None else line.as_strided(shape, strides)
            found.append(x if kind == BACKWARD else (x, flags))
        return found
