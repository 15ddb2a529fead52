"""A rank whose messages MPI carries: the transport of jobs that mpirun or srun starts.

Messages of Weft's transport mpi have a size that is known when channels are opened. What goes over
an edge has not, so each channel has two there: one for blocks, and one for pieces of the tensors
that follow a block. The runtime's functions for messages are Python here; all others are MPI's.
"""

from __future__ import annotations

import collections
import ctypes
from typing import Any

from ._edges import HEAD, Arrived, Edges, Sending
from ._errors import Error
from ._library import c, field_type

_BLOCK = 3072  # bytes that go with a header (mpi_world.h)
_PIECE = 1 << 20
_PIECES = 1 << 20  # number of the channel for pieces, beyond that of the blocks


class _Piece:
    """A message of MPI's: some bytes of a tensor, or a block."""

    def __init__(self, channel: int, data: int, size: int, room: int, keep: Any) -> None:
        self.channel, self.keep, self.is_posted = channel, keep, False
        self.message = c.weft_message()
        header = self.message.header
        header.magic, header.protocol = c.WEFT_MESSAGE_MAGIC, c.WEFT_PROTOCOL
        header.bytes, self.message.data, self.message.capacity = size, data, room


def _pieces(channel: int, parts: Any) -> list[_Piece]:
    return [
        _Piece(
            channel + _PIECES, part.data_ptr() + at, min(_PIECE, part.numel() - at), _PIECE, part
        )
        for part in parts
        for at in range(0, part.numel(), _PIECE)
    ]


class _Message:
    """A message of the runtime, and its pieces that are not done."""

    def __init__(self, channel: int, address: int, sends: bool, pieces: list[_Piece]) -> None:
        self.channel, self.address, self.sends = channel, address, sends
        self.arrived: Any = None
        self.pieces = collections.deque(pieces)


class MpiRank:
    """This process's rank of a pipeline."""

    def __init__(self, torch: Any, transport: Any, edges: Edges) -> None:
        """Put Python's functions into the table of a transport."""
        self.torch, self.edges = torch, edges
        self.pointer = transport
        self.mpi, self.ops = c.weft_transport_ops(), c.weft_transport_ops()
        for ops in (self.mpi, self.ops):  # MPI's own functions, and those of the table
            ctypes.memmove(ctypes.byref(ops), transport[0].ops, ctypes.sizeof(ops))
        for name in ("open", "post", "test", "cancel", "progress"):
            kind = field_type(c.weft_transport_ops, name)
            setattr(self.ops, name, kind(getattr(self, "_" + name)))
        self.left: list[Any] = []  # what MPI may still use
        self.under_way: dict[int, _Message] = {}
        self.channels: dict[int, collections.deque[_Message]] = {}
        transport[0].ops = ctypes.pointer(self.ops)

    def endpoint(self, _rank: int) -> Any:
        """Give the transport of this rank."""
        return self.pointer

    def _open(self, transport: Any, ends: Any, count: int, error: Any) -> int:
        made = (c.weft_channel_end * (2 * count))()
        for k in range(count):
            self.channels[ends[k].channel] = collections.deque()
            for end, more, size in ((made[2 * k], 0, _BLOCK), (made[2 * k + 1], _PIECES, _PIECE)):
                ctypes.memmove(ctypes.byref(end), ctypes.byref(ends[k]), ctypes.sizeof(end))
                end.channel, end.bytes_max = ends[k].channel + more, size
        return int(self.mpi.open(transport, made, 2 * count, error))

    def _post(self, transport: Any, channel: int, sends: bool, message: Any, error: Any) -> int:
        address = ctypes.addressof(message.contents)
        try:
            if sends:
                values = self.edges.message(address, channel)
                head = ctypes.string_at(address, HEAD)
                made = Sending(self.torch, channel & 1, values, head, _BLOCK)
                block, size = made.block, made.block.numel()
                more = _pieces(channel, made.follow)
            else:
                block, size, more = self.torch.empty(_BLOCK, dtype=self.torch.uint8), 0, []
        except Exception as caught:
            return _failed(caught, error)
        first = _Piece(channel, block.data_ptr(), size, _BLOCK, block)
        found = _Message(channel, address, sends, [first, *more])
        self.under_way[address] = found
        self.channels[channel].append(found)
        return self._advance(transport, channel, error)

    def _advance(self, transport: Any, channel: int, error: Any) -> int:
        """Post what can be posted of a channel, in order, and see what is done."""
        line = self.channels[channel]
        status = int(c.WEFT_OK)
        for found in line:
            status = self._post_pieces(transport, found, error)
            if status != c.WEFT_OK:
                break
        while status >= 0 and line:
            status = self._finish(transport, line[0], error)
            if status != c.WEFT_OK:
                break
            del self.under_way[line.popleft().address]
        return min(status, int(c.WEFT_OK))

    def _post_pieces(self, transport: Any, found: _Message, error: Any) -> int:
        for piece in found.pieces:
            if not piece.is_posted:
                message = ctypes.pointer(piece.message)
                status = int(self.mpi.post(transport, piece.channel, found.sends, message, error))
                if status != c.WEFT_OK:
                    return status
                piece.is_posted = True
        return int(c.WEFT_OK)

    def _finish(self, transport: Any, found: _Message, error: Any) -> int:
        """Go on with the first message of a channel."""
        while found.pieces:
            piece = found.pieces[0]
            status = int(c.WEFT_IN_PROGRESS)
            if piece.is_posted:
                message = ctypes.pointer(piece.message)
                status = int(self.mpi.test(transport, message, error))
            if status != c.WEFT_OK:
                return status
            found.pieces.popleft()
            into = c.weft_message.from_address(found.address)
            into.begin, into.end = piece.message.begin, piece.message.end
            if not found.sends and found.arrived is None:
                try:
                    found.arrived = Arrived(self.torch, piece.keep)
                except Exception as caught:
                    return _failed(caught, error)
                found.pieces.extend(_pieces(found.channel, found.arrived.empty(_PIECE)))
                status = self._post_pieces(transport, found, error)
                if status < 0:
                    return status
        if not found.sends:
            self.edges.arrive(found.address, found.channel, found.arrived)
        return int(c.WEFT_OK)

    def _test(self, transport: Any, message: Any, error: Any) -> int:
        found = self.under_way.get(ctypes.addressof(message.contents))
        if found is None:
            return int(c.WEFT_OK)
        status = self._advance(transport, found.channel, error)
        is_done = found.address not in self.under_way
        return status or int(c.WEFT_OK if is_done else c.WEFT_IN_PROGRESS)

    def _cancel(self, transport: Any, message: Any) -> None:
        """Give a message back. MPI may still use the pieces."""
        found = self.under_way.pop(ctypes.addressof(message.contents), None)
        for piece in found.pieces if found is not None else ():
            if piece.is_posted:
                self.mpi.cancel(transport, ctypes.pointer(piece.message))
        self.left.append(found)

    def _progress(self, transport: Any, error: Any) -> int:
        status = int(self.mpi.progress(transport, error))
        for channel, line in self.channels.items() if status >= 0 else ():
            if line:
                status = min(status, self._advance(transport, channel, error))
        return status


def _failed(caught: Exception, error: Any) -> int:
    """Write why an exception ends the step."""
    out = error[0] if error else c.weft_error()
    out.status = c.WEFT_ERR_PROTOCOL
    text, hint = f"{type(caught).__name__}: {caught}", "all ranks must run the same version"
    if isinstance(caught, Error):
        text, hint = caught.message, caught.hint
        out.status = c.WEFT_ERR_USAGE
    out.message = text.encode("utf-8", "replace")[:500]
    out.hint = hint.encode("utf-8", "replace")[:250]
    return int(out.status)
