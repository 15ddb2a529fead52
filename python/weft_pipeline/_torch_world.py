"""A rank whose messages torch.distributed carries: the transport of jobs that torchrun starts.

The runtime asks a transport through a table of functions (weft/transport.h); here they are Python.
Every pair of channel and direction has tags of its own in a process group of gloo's, so messages on
a channel are in order and those of two channels do not wait for each other. A message is a block
with the header, what there is, and the tensors if they are small; larger ones follow, each by
itself. gloo reports the end of a transfer only to a thread that waits for it, so each end has one.

The store of torch.distributed has what all ranks must know: the first failure, which every rank
looks for ten times a second, and the ranks' status, which they write when one of them asks.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import ctypes
import datetime
import functools
import json
import mmap
import os
import queue
import socket
import struct
import sys
import threading
import time
from importlib import import_module
from typing import Any, Callable, NamedTuple, Optional

from . import launch
from ._edges import HEAD, Arrived, Edges, Sending
from ._errors import UsageError
from ._library import c, field_type, lib, raise_error

_BLOCK = 1 << 15  # bytes of a block, at most
_KEPT = 64  # sends whose memory is kept before a thread waits for them
_STATE_AT = c.weft_message.state.offset
_BEGIN_AT, _END_AT = c.weft_message.begin.offset, c.weft_message.end.offset
_NEVER = datetime.timedelta(days=1000)
_SOON = 0.002  # seconds within which an exchange is mostly done; later a thread waits for it
_POLL = 0.1  # seconds between two looks at the store
_ANSWER = 1.0  # seconds that the store may take
_HEARD = 2.0  # seconds that a process which ends gives the others to hear why
_KNOWN = 1.0  # how old the status of a rank that does not answer may be
# Seconds for a thread to end: one that comes back into an interpreter at its end aborts.
_JOIN = 5.0
_WAIT = 0.05  # seconds that wait() takes at most, so that signals are seen
_NUMBER = struct.Struct("<q")
_made: dict[str, int] = {}  # groups of the same processes so far
_u64, _i64 = ctypes.c_uint64, ctypes.c_int64


class _Home(NamedTuple):
    """Where a rank is."""

    host: str
    machine: str  # the boot's id: who has the same can look for the process
    pid: int
    started: str  # a number may be used again
    rank: int  # of the job
    file: int  # its status, which other processes of the machine map
    device: str  # the kind

    @classmethod
    def here(cls, rank: int, file: int, device: str) -> _Home:
        """Say where this process is."""
        machine = ""
        with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as boot:
            machine = boot.read().strip() + os.readlink("/proc/self/ns/pid")
        pid = os.getpid()
        return cls(socket.gethostname(), machine, pid, _process(pid)[1], rank, file, device)

    def text(self, rank: int) -> str:
        """Say it in a message about the rank of this number in the pipeline."""
        more = f", rank {self.rank} of the job" if self.rank != rank else ""
        return f"{self.host}, process {self.pid}{more}"


def _process(pid: int) -> tuple[str, str]:
    """The state of a process of this machine, as /proc has it, and when it started; or nothing."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return "", ""
    return fields[0], fields[19]


def _status_in(file: int) -> Any:
    """Make a struct weft_rank_status of a file, which is closed."""
    with os.fdopen(file, "r+b") as opened:
        memory = mmap.mmap(opened.fileno(), ctypes.sizeof(c.weft_rank_status))
    return c.weft_rank_status.from_buffer(memory)


class _Store:
    """The store of torch.distributed, which may not answer: its process may be stopped or gone."""

    def __init__(self, store: Any) -> None:
        """Start the thread that asks."""
        self.store = store
        self.questions: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.is_gone = False
        self.thread = threading.Thread(target=self._work, name="weft store", daemon=True)
        self.thread.start()

    def close(self) -> None:
        """End the thread."""
        self.questions.put(None)
        self.thread.join(_JOIN)

    def _work(self) -> None:
        while True:
            question = self.questions.get()
            if question is None:
                return
            name, arguments, answer = question
            try:
                answer.put((True, getattr(self.store, name)(*arguments)))
            except Exception as error:
                answer.put((False, error))

    def ask(self, name: str, *arguments: Any) -> Any:
        """Call a method of the store; RuntimeError where it fails, or does not answer in time."""
        if self.is_gone:  # PyTorch logs every vain attempt
            raise RuntimeError("the store has gone")
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.questions.put((name, arguments, answer))
        try:
            good, found = answer.get(timeout=_ANSWER)
        except queue.Empty:
            raise RuntimeError("the store does not answer") from None
        if not good:
            self.is_gone = True
            raise RuntimeError(str(found))
        return found


class _End:
    """One end of a channel, and the thread that waits for its transfers.

    A send is done at once for the runtime, as a copy of what it sends is kept here.
    """

    def __init__(self, world: TorchWorld, end: Any) -> None:
        self.world, self.channel, self.peer = world, end.channel, end.peer
        self.sends = end.sends
        self.kept: collections.deque[Any] = collections.deque()  # sends
        self.nccl: Any = None  # with this end as 1 if it sends, and as 0 if it receives
        self.sent: collections.deque[Any] = collections.deque()  # over it
        self.queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._work, name="weft messages", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        work = self._end_send if self.sends else self._end_receive
        while True:
            item = self.queue.get()
            if item is None:
                return
            try:
                work(*item)
            except Exception as error:
                self.world.lost(self.peer, error)
                return
            item = None  # and the tensors in it

    def _start(self, post: Any, part: Any, k: int) -> Any:
        with self.world.lock:
            return post([part], self.peer, 2 * self.channel + k)

    def post(self, message: int) -> None:
        """Start a message; the memory is used until it is done."""
        if not self.sends:
            block = self.world.empty(_BLOCK)
            _u64.from_address(message + _STATE_AT).value = 1
            self.queue.put((message, block, self._start(self.world.group.recv, block, 0)))
            return
        values = self.world.edges.message(message, self.channel)
        head, has_nccl = ctypes.string_at(message, HEAD), self.nccl is not None
        made = Sending(self.world.torch, self.channel & 1, values, head, _BLOCK, has_nccl)
        while self.sent and self.sent[0][0].is_completed():
            self.sent.popleft()
        send = self.world.group.send
        self.kept.append((self._start(send, made.block, 0), made.block))
        self.kept.extend([(self._start(send, part, 1), part) for part in made.follow])
        for part in made.apart:
            if part.numel():
                self.sent.append((self.nccl.send([part], 0, 0), part))
        if len(self.kept) > _KEPT:
            self.queue.put((list(self.kept),))
            self.kept.clear()
        _i64.from_address(message + _BEGIN_AT).value = made.begin
        _i64.from_address(message + _END_AT).value = made.begin
        _u64.from_address(message + _STATE_AT).value = 0

    def _end_send(self, kept: list[Any]) -> None:
        while kept:
            kept.pop()[0].wait(_NEVER)

    def _end_receive(self, message: int, block: Any, work: Any) -> None:
        work.wait(_NEVER)
        try:
            arrived = Arrived(self.world.torch, block)
        except Exception as error:
            raise _ProtocolError(str(error)) from error
        for part in arrived.empty():
            self._start(self.world.group.recv, part, 1).wait(_NEVER)
        if self.nccl is not None:
            self._receive_apart(message, arrived)
        self.world.edges.arrive(message, self.channel, arrived)
        now = time.monotonic_ns()
        _i64.from_address(message + _BEGIN_AT).value = min(arrived.begin, now)
        _i64.from_address(message + _END_AT).value = now
        _u64.from_address(message + _STATE_AT).value = 0
        self.world.news.put(None)

    def connect(self) -> None:
        """Make the way for tensors on GPUs; both ends call it, and all in the order of channels.

        Each channel has a communicator, so that none waits for what another one has to bring.
        """
        world = self.world
        dist = world.torch.distributed
        store = dist.PrefixStore(f"nccl/{self.channel}", world.base)
        self.nccl = dist.ProcessGroupNCCL(store, int(self.sends), 2)
        self.side = world.torch.cuda.Stream(world.device)
        probe = world.torch.zeros(1, dtype=world.torch.uint8, device=world.device)
        work = self.nccl.send([probe], 0, 0) if self.sends else self.nccl.recv([probe], 1, 0)
        work.wait()
        world.torch.cuda.synchronize(world.device)

    def _receive_apart(self, message: int, arrived: Arrived) -> None:
        cuda = self.world.torch.cuda
        with cuda.device(self.world.device), cuda.stream(self.side):  # after nothing else
            parts = arrived.empty_apart(self.world.device)
            works = [self.nccl.recv([part], 1, 0) for part in parts]
        if parts:
            self.world.landing[message] = works, parts

    def close(self) -> None:
        """End the thread; nothing is under way but what is sent."""
        self.queue.put(None)
        self._end_send(list(self.kept))
        self.thread.join(_JOIN)
        if self.nccl is not None:
            self.nccl.shutdown()


class _ProtocolError(Exception):
    """What arrived cannot be right."""


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """An op whose exception fails the world: C would not see it."""

    @functools.wraps(function)
    def guarded(self: TorchWorld, *arguments: Any) -> Any:
        try:
            return function(self, *arguments)
        except Exception as error:
            text = f"the transport torch fails in {function.__name__[1:]}: {error!r}"
            self.fail(self.rank, c.WEFT_ERR_SYSTEM, text, "")
            return self.status(arguments[-1] if arguments else None)

    return guarded


class TorchWorld:
    """This process's rank of a pipeline, on torch.distributed."""

    def __init__(self, torch: Any, group: Any, stall: int, edges: Edges, device: Any) -> None:
        """Connect the ranks of a process group. All of them call it, in the same order.

        What goes over `edges` of this rank is on a device.
        """
        dist = torch.distributed
        self.torch, self.stall = torch, stall
        self.edges, self.device = edges, device
        members = dist.get_process_group_ranks(group)
        self.rank, self.ranks = dist.get_rank(group), len(members)
        limit = datetime.timedelta(seconds=max(stall / 1e9, 60) if stall else 1800)
        # Not by new_group(): names of groups of some processes depend on how many others each has.
        line = "_".join(map(str, members))
        number = _made[line] = _made.get(line, -1) + 1
        store = dist.PrefixStore(
            f"weft/{line}/{number}", dist.distributed_c10d._get_default_store()
        )
        self.group = dist.ProcessGroupGloo(
            dist.PrefixStore("gloo", store), self.rank, self.ranks, limit
        )
        self.base = store
        self.store = _Store(store.clone())
        self.lock = threading.Lock()  # around calls of the group
        self.news: queue.SimpleQueue[None] = queue.SimpleQueue()  # since progress()
        self.ends: dict[int, _End] = {}
        self.landing: dict[int, Any] = {}  # messages whose tensors come over NCCL
        self.failure: Optional[Any] = None  # struct weft_failure, that all agree on
        self.gate = threading.Lock()  # around failing
        self.closed = threading.Event()
        self.exchanging: Any = None  # a work, and what it gathers
        self.gathered = threading.Event()
        self.dead: set[int] = set()
        self.asked = 0  # how often a status was asked for
        file = os.memfd_create("weft-status")  # no name that could be left behind
        os.ftruncate(file, ctypes.sizeof(c.weft_rank_status))
        home = _Home.here(dist.get_rank(), file, device.type)
        store.set(f"home/{self.rank}", json.dumps(home))
        self.homes = [_Home(*json.loads(store.get(f"home/{k}"))) for k in range(self.ranks)]
        self.mapped = {self.rank}
        self.statuses = [self._status_of(rank) for rank in range(self.ranks)]
        mine = self.statuses[self.rank]
        mine.peer, mine.since = 0xFFFFFFFF, time.monotonic_ns()
        self._publish(0)
        self.transport = c.weft_transport()
        self.ops = self._ops()
        self.transport.ops = ctypes.pointer(self.ops)
        self.transport.rank, self.transport.rank_count = self.rank, self.ranks
        self.pointer = ctypes.pointer(self.transport)
        self.group.barrier().wait()  # every status is there, and mapped
        os.close(file)
        self.watcher = threading.Thread(target=self._watch, name="weft watch", daemon=True)
        self.watcher.start()
        atexit.register(self.close)

    def _ops(self) -> Any:
        ops = c.weft_transport_ops()
        ops.name, ops.async_progress = b"torch", True
        for name in (
            "open",
            "post",
            "test",
            "cancel",
            "progress",
            "wait",
            "exchange",
            "fail",
            "get_failure",
            "refresh_status",
            "location",
        ):
            kind = field_type(c.weft_transport_ops, name)
            setattr(ops, name, kind(getattr(self, "_" + name)))
        # A callback gives no pointer, but its number.
        give = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)
        self.give_status = give(lambda _, rank: ctypes.addressof(self.statuses[rank]))
        kind = field_type(c.weft_transport_ops, "rank_status")
        ops.rank_status = ctypes.cast(self.give_status, kind)
        kind = field_type(c.weft_transport_ops, "now")
        ops.now = ctypes.cast(lib.weft_clock_ns, kind)  # which looks at no argument
        return ops

    def _status_of(self, rank: int) -> Any:
        """Map the status of a rank of this machine; of others make a copy."""
        home = self.homes[rank]
        if rank == self.rank:
            return _status_in(os.dup(home.file))
        if rank in self.ranks_here():
            with contextlib.suppress(OSError):
                status = _status_in(os.open(f"/proc/{home.pid}/fd/{home.file}", os.O_RDWR))
                self.mapped.add(rank)
                return status
        status = c.weft_rank_status()
        status.peer, status.since = 0xFFFFFFFF, time.monotonic_ns()
        return status

    # ---- Memory ----

    def empty(self, size: int) -> Any:
        """Make a tensor of bytes."""
        return self.torch.empty(size, dtype=self.torch.uint8)

    # ---- Messages ----

    @_guarded
    def _open(self, _transport: Any, ends: Any, count: int, _error: Any) -> int:
        is_nccl = self.torch.distributed.is_nccl_available()
        for end in sorted((ends[k] for k in range(count)), key=lambda end: int(end.channel)):
            made = self.ends[end.channel] = _End(self, end)
            kinds = {self.homes[rank].device for rank in (self.rank, made.peer)}
            if is_nccl and kinds == {"cuda"}:
                made.connect()
        return int(c.WEFT_OK)

    @_guarded
    def _post(self, _transport: Any, channel: int, _sends: bool, message: Any, _error: Any) -> int:
        self.ends[channel].post(ctypes.addressof(message.contents))
        return int(c.WEFT_OK)

    @_guarded
    def _test(self, _transport: Any, message: Any, error: Any) -> int:
        if message.contents.state[0] == 0:
            if self.landing:
                self._land(ctypes.addressof(message.contents))
            return int(c.WEFT_OK)
        return self.status(error) or int(c.WEFT_IN_PROGRESS)

    def _land(self, message: int) -> None:
        """What comes after this on the GPU comes after what a message brings."""
        works, parts = self.landing.pop(message, ((), ()))
        for work, part in zip(works, parts):
            work.wait()
            part.record_stream(self.torch.cuda.current_stream(self.device))

    def finish(self) -> None:
        """Wait for the GPU at the end of a step, for as long as a rank may make no progress."""
        if self.device.type != "cuda":
            return
        event = self.torch.cuda.Event()
        event.record(self.torch.cuda.current_stream(self.device))
        since = time.monotonic_ns()
        while not event.query() and self.failure is None:
            time.sleep(1e-4)
            if self.stall and time.monotonic_ns() > since + self.stall:
                self.fail(
                    self.rank,
                    c.WEFT_ERR_STALLED,
                    f"rank {self.rank} ({self.homes[self.rank].text(self.rank)}) has waited "
                    f"{self.stall / 1e9:.1f} s for its GPU at the end of a step",
                    "a rank whose messages do not come holds it up, or a kernel that does not end",
                )
        if self.failure is not None:
            raise_error(int(self.failure.error.status), self.failure.error)

    def _cancel(self, _transport: Any, message: Any) -> None:
        """Give a message back that is under way: only a failed world has any, and keeps it."""

    @_guarded
    def _progress(self, _transport: Any, error: Any) -> int:
        while not self.news.empty():
            self.news.get()
        return self.status(error)

    @_guarded
    def _wait(self, _transport: Any, until: int, _error: Any) -> int:
        left = (until - time.monotonic_ns()) / 1e9
        with contextlib.suppress(queue.Empty):
            self.news.get(timeout=max(0, min(left, _WAIT)))
            self.news.put(None)  # until progress() has seen it
        return int(c.WEFT_OK)

    @_guarded
    def _exchange(self, _transport: Any, mine: Any, out: Any, size: int, error: Any) -> int:
        status = self.status(error)
        if status:
            return status
        if self.exchanging is None:
            size = max(size, 1)  # an exchange of nothing waits, too
            part, parts = self.empty(size), self.empty(size * self.ranks)
            ctypes.memmove(part.data_ptr(), mine, size)
            with self.lock:
                work = self.group._allgather_base(parts, part)
            self.gathered.clear()
            self.exchanging = work, part, parts
            until = time.monotonic() + _SOON
            while not work.is_completed() and time.monotonic() < until:
                time.sleep(1e-5)
            if work.is_completed() and work.is_success():
                self.gathered.set()
            else:
                threading.Thread(target=self._end_exchange, args=(work,), daemon=True).start()
        if not self.gathered.is_set():
            return int(c.WEFT_IN_PROGRESS)
        if size:
            ctypes.memmove(out, self.exchanging[2].data_ptr(), size * self.ranks)
        self.exchanging = None
        return int(c.WEFT_OK)

    def _end_exchange(self, work: Any) -> None:
        try:
            work.wait(_NEVER)
        except Exception as error:
            self.lost(None, error)
            return
        self.gathered.set()
        self.news.put(None)

    # ---- Failures ----

    def status(self, error: Any) -> int:
        """Give the status of the failure, and write its error; WEFT_OK while there is none."""
        if self.failure is None:
            return int(c.WEFT_OK)
        if error:
            ctypes.memmove(error, ctypes.byref(self.failure.error), ctypes.sizeof(c.weft_error))
        return int(self.failure.error.status)

    def fail(self, rank: int, status: int, message: str, hint: str) -> None:
        """Fail the world."""
        failure = c.weft_failure()
        failure.rank, failure.error.status = rank, status
        failure.error.message = message.encode("utf-8", "replace")[:500]
        failure.error.hint = hint.encode("utf-8", "replace")[:250]
        self._agree(bytes(failure))

    def _fail(self, _transport: Any, failure: Any) -> None:
        self._agree(ctypes.string_at(failure, ctypes.sizeof(c.weft_failure)))

    def _agree(self, mine: bytes) -> None:
        """Take the first failure of the job; who reports it first says so at once.

        Launchers end the other processes as soon as one has ended, and might be faster.
        """
        with self.gate:
            if self.failure is not None:
                return
            first = mine
            with contextlib.suppress(RuntimeError):  # the store has gone, too
                first = bytes.fromhex(
                    self.store.ask("compare_set", "failure", "", mine.hex()).decode("ascii")
                )
            if not first:
                return
            self.failure = c.weft_failure.from_buffer_copy(first)
        self.news.put(None)
        with contextlib.suppress(RuntimeError):
            self.store.ask("add", "heard", 1)
            if first == mine:
                self.store.ask("add", "asked", 1)  # so that the others look
        if first == mine:
            error = self.failure.error
            hint = f"\n  hint: {error.hint.decode(errors='replace')}" if error.hint else ""
            with contextlib.suppress(OSError, ValueError):
                text = error.message.decode(errors="replace")
                sys.stderr.write(f"weft_pipeline: {text}{hint}\n")
                sys.stderr.flush()

    def _get_failure(self, _transport: Any, out: Any) -> bool:
        if self.failure is None:
            return False
        ctypes.memmove(out, ctypes.byref(self.failure), ctypes.sizeof(c.weft_failure))
        return True

    def lost(self, peer: Optional[int], error: Exception) -> None:
        """Find out why gloo has failed: whose process has ended, if any has."""
        if self.closed.is_set() or self.failure is not None:
            return
        if isinstance(error, _ProtocolError):
            hint = "all ranks must describe the same boundaries"
            text = f"rank {self.rank} got a wrong message from rank {peer}: {error}"
            self.fail(self.rank if peer is None else peer, c.WEFT_ERR_PROTOCOL, text, hint)
            return
        # Its process may still be ending; and a rank that has failed reports that before it ends.
        until = time.monotonic() + 1
        while time.monotonic() < until and self.failure is None:
            self._look_at_store()
            for rank in self.ranks_here():
                if self._is_dead(rank):
                    self._bury(rank)
                    return
            time.sleep(0.02)
        if self.failure is None:
            first = str(error).strip().split("\n")[0]
            who = "another rank" if peer is None else f"rank {peer} ({self.homes[peer].text(peer)})"
            self.fail(
                self.rank if peer is None else peer,
                c.WEFT_ERR_PEER,
                f"rank {self.rank} ({self.homes[self.rank].text(self.rank)}) has lost its "
                f"connection to {who}: {first}",
                "a process or the network has gone",
            )

    def ranks_here(self) -> list[int]:
        """List the other ranks whose processes can be seen from here."""
        mine = self.homes[self.rank].machine
        return [
            rank
            for rank, home in enumerate(self.homes)
            if home.machine == mine and mine and rank != self.rank
        ]

    def _is_dead(self, rank: int) -> bool:
        home = self.homes[rank]
        state, started = _process(home.pid)
        return not state or state in "ZX" or started != home.started

    def _has_left(self, rank: int) -> bool:
        with contextlib.suppress(RuntimeError):
            return bool(self.store.ask("check", [f"left/{rank}"]))
        return False

    def _bury(self, rank: int) -> None:
        """Report a rank whose process has ended."""
        self.dead.add(rank)
        self.statuses[rank].flags |= c.WEFT_RANK_DEAD
        name = f"rank {rank} ({self.homes[rank].text(rank)})"
        if self._has_left(rank):
            text = f"{name} has ended, and other ranks are still in a step"
            hint = "all ranks take the same number of steps"
        else:
            text, hint = f"{name} died", "look for what ended it: memory, a signal, exit()"
        self.fail(rank, c.WEFT_ERR_PEER, text, hint)

    # ---- What ranks are doing ----

    def _publish(self, number: int) -> None:
        self.asked = number
        self.store.ask(
            "set", f"status/{self.rank}", _NUMBER.pack(number) + bytes(self.statuses[self.rank])
        )

    def _watch(self) -> None:
        """Look for failures, and answer who asks for the status; a thread."""
        left: set[int] = set()
        known = time.monotonic()
        while not self.closed.wait(_POLL):
            with contextlib.suppress(RuntimeError):  # the store has gone: messages will tell
                asked = self.store.ask("add", "asked", 0)
                if asked != self.asked:
                    self._look_at_store()
                if asked != self.asked or time.monotonic() > known + _KNOWN:
                    self._publish(asked)
                    known = time.monotonic()
                for rank in self.ranks_here():
                    if rank not in left | self.dead and self._is_dead(rank):
                        if self._has_left(rank):
                            left.add(rank)
                        else:
                            self._bury(rank)

    def _look_at_store(self) -> None:
        with contextlib.suppress(RuntimeError):
            if self.failure is None and self.store.ask("check", ["failure"]):
                self._agree(b"")

    def _refresh_status(self, _transport: Any, until: int) -> None:
        here = self.ranks_here()
        keys = [f"status/{rank}" for rank in range(self.ranks)]
        silent = set(range(self.ranks)) - self.mapped
        with contextlib.suppress(RuntimeError):
            number = self.store.ask("add", "asked", 1) if silent else 0
            while silent:
                for rank, text in enumerate(self.store.ask("multi_get", keys)):
                    if rank in silent:
                        into = ctypes.byref(self.statuses[rank])
                        ctypes.memmove(into, text[_NUMBER.size :], len(text) - _NUMBER.size)
                        if _NUMBER.unpack_from(text)[0] >= number:
                            silent.discard(rank)
                if time.monotonic_ns() >= until:
                    break
                time.sleep(0.02)
        for rank in range(self.ranks):
            if rank != self.rank:
                flags = c.WEFT_RANK_DEAD if rank in self.dead else 0
                if rank in here and _process(self.homes[rank].pid)[0] in ("T", "t"):
                    flags |= c.WEFT_RANK_STOPPED
                elif rank in silent:
                    flags |= c.WEFT_RANK_SILENT
                self.statuses[rank].flags = flags

    def _location(self, _transport: Any, rank: int, buffer: Any, size: int) -> None:
        text = self.homes[rank].text(rank).encode("utf-8", "replace")[: size - 1]
        ctypes.memmove(buffer, text + b"\0", len(text) + 1)

    # ---- The end ----

    def endpoint(self, _rank: int) -> Any:
        """Give the transport of this rank."""
        return self.pointer

    def close(self) -> None:
        """Leave. What a failed world has under way stays as it is: gloo may still use it."""
        if self.closed.is_set():
            return
        failure = launch.state.failure  # of the script
        if failure is not None and self.failure is None:
            self._agree(bytes(_failure_of(self.rank, failure)))
        with contextlib.suppress(RuntimeError):
            if self.failure is None:
                self.store.ask("set", f"left/{self.rank}", "")
            # This process may have the store: the others are to hear of the failure first.
            until = time.monotonic() + _HEARD
            while (
                self.failure is not None
                and self.store.ask("add", "heard", 0) < self.ranks - 1
                and time.monotonic() < until
            ):
                time.sleep(0.01)
        self.closed.set()
        for _, end in sorted(self.ends.items()):
            if self.failure is None:
                end.close()
            elif end.nccl is not None:  # its kernels wait for ever
                with contextlib.suppress(Exception):
                    end.nccl.abort()
        if threading.current_thread() is not self.watcher:
            self.watcher.join(_JOIN)
        self.store.close()
        atexit.unregister(self.close)


def _failure_of(rank: int, error: Any) -> Any:
    failure = c.weft_failure()
    failure.rank, failure.error = rank, error
    return failure


def group_of(torch: Any, group: Any, name: str = "group") -> Any:
    """The process group that is meant: that of a device mesh, or all processes."""
    dist = torch.distributed
    if not dist.is_available() or not dist.is_initialized():
        raise UsageError(
            f"{'the transport torch' if name == 'group' else name} needs torch.distributed, which "
            f"has not begun",
            'torch.distributed.init_process_group("gloo"), and start the script by torchrun',
        )
    meshes = import_module("torch.distributed.device_mesh")
    if isinstance(group, meshes.DeviceMesh):
        if group.ndim != 1:
            raise UsageError(
                f"{name} is a mesh of {group.ndim} dimensions; expected one",
                'give mesh["pp"], say',
            )
        group = group.get_group()
    if group is None:
        group = dist.group.WORLD
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise UsageError(
            "this process is not in the group",
            "make the pipeline in the processes of its group only",
        )
    return group
