"""Processes that mpirun or srun started: the MPI world, and a supervisor around each rank.

A training script begins with

    from weft_pipeline import launch
    launch.begin()

before it starts threads (importing PyTorch first is fine). A rank that dies, fails or hangs then
ends the job within seconds, with a report that names it, and with exit status 75. docs/mpi.md
describes it and says where the driver for MPI comes from.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import stat
import sys
import threading
import traceback
from typing import Any, NamedTuple, Optional

from ._errors import Error, UnavailableError, UsageError
from ._library import c, call, choice, lib, string

__all__ = ["Info", "begin", "info"]


class Info(NamedTuple):
    """What the launcher says: its name (None without one), this rank, and how many there are."""

    launcher: Optional[str]
    rank: int
    ranks: int


def info() -> Info:
    """Tell which rank of how many this process is, before MPI starts."""
    found = lib.weft_launch_info()
    name = found.launcher.decode() if found.launcher else None
    return Info(name, found.rank, found.rank_count) if name else Info(None, 0, 1)


class _State:
    """What this process has begun."""

    def __init__(self) -> None:
        self.begun = False
        self.program = b""  # stays valid: the C library keeps the pointer
        self.comm: Any = None  # the MPI world; opened once, closed at exit
        self.progress = ""
        self.transport = ""
        self.devices: Any = None  # what the world's transfers use
        self.rank: Any = None  # likewise
        self.is_used = False  # by a pipeline; a world serves one
        self.lock = threading.RLock()  # MPI is called by one thread at a time
        self.users: list[Any] = []  # what must be closed before the world
        self.agreed: Optional[BaseException] = None  # the failure that all ranks know
        self.failure: Optional[Any] = None  # of this rank alone: a struct weft_error


state = _State()


def begin(program: Optional[str] = None) -> None:
    """Put a supervisor around this rank; call it first. Without a launcher it does nothing.

    The process forks: the new one goes on as the rank, the old one watches it. Where threads run
    already, the rank starts its script again instead. `program` comes first in every report; it
    is the name of the script.
    """
    if program is None:
        program = os.path.basename(sys.argv[0] if sys.argv else "") or "python"
    state.program = string(program, "program")
    sys.stdout.flush()
    sys.stderr.flush()
    lib.weft_launch_begin(state.program)
    _watch_the_end()


def _watch_the_end() -> None:
    if state.begun:
        return
    state.begun = True
    atexit.register(_end)
    before = sys.excepthook

    def hook(kind: Any, value: Any, trace: Any) -> None:
        if value is not None and value is state.agreed:
            return  # one rank reports it for all
        state.failure = _failure_of(value)
        before(kind, value, trace)

    sys.excepthook = hook


def _failure_of(value: BaseException) -> Any:
    """What other ranks are told about an exception that ends this one."""
    error = c.weft_error()
    where = traceback.extract_tb(value.__traceback__)
    place = f" ({os.path.basename(where[-1].filename)}:{where[-1].lineno})" if where else ""
    text = f"the script of rank {info().rank} ends with {type(value).__name__}: {value}{place}"
    error.status = c.WEFT_ERR_STAGE
    error.message = text.encode("utf-8", "replace")[:500]
    error.hint = b""
    return error


def _end() -> None:
    """At exit: wait for the other ranks and close the world, or report its failure and end."""
    for user in list(state.users):
        user.close()
    if state.comm is None:
        lib.weft_launch_leave()  # there is no world to close
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed
            stream.flush()
    comm, state.comm = state.comm, None
    error = state.failure
    status = lib.weft_launch_end(comm, ctypes.byref(error) if error is not None else None)
    if status:
        os._exit(status)


_PROGRESS = ("calls", "thread")


def _is_trusted(path: str, owner: int) -> bool:
    """Whether a file and its folder are root's, this user's or `owner`'s, and not for all to write.

    As in mpi_loader.c: a driver is code.
    """
    for each in (path, os.path.dirname(path)):
        try:
            facts = os.stat(each)
        except OSError:
            return False
        if facts.st_uid not in (0, os.geteuid(), owner) or facts.st_mode & stat.S_IWOTH:
            return False
    return True


def _driver() -> Optional[str]:
    """A driver of a Weft whose command is on PATH, installed or in a build folder.

    The library in a wheel has none of its own.
    """
    name = info().launcher
    machine = os.uname().machine
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        command = os.path.join(folder, "weft")
        if not os.path.isabs(folder) or not os.path.exists(command):
            continue  # never relative to the current folder
        owner = os.stat(command).st_uid
        for place in ("../lib/weft", f"../lib/{machine}-linux-gnu/weft", "lib"):
            for which in [name] if name else ["openmpi", "mpich"]:
                path = os.path.realpath(os.path.join(folder, place, f"weft-mpi-{which}.so"))
                if _is_trusted(path, owner):
                    return path
    return None


def world(progress: str = "calls", transport: str = "mpi") -> Any:
    """Return the world of this process, over MPI or NCCL. All ranks call it."""
    with state.lock:
        number = choice(progress, "progress", _PROGRESS)
        if state.comm is not None:
            begun, asked = (state.transport, state.progress), (transport, progress)
            if begun != asked:
                raise UsageError(
                    f"the world has begun with transport={begun[0]!r}, progress={begun[1]!r}, not "
                    f"{asked[0]!r}, {asked[1]!r}",
                    "give all pipelines of a process the same",
                )
            return state.comm
        options = lib.weft_comm_options_default()
        options.progress = number
        out = ctypes.POINTER(c.weft_comm)()
        found = None if os.environ.get("WEFT_MPI_DRIVER") else _driver()
        if found:
            os.environ["WEFT_MPI_DRIVER"] = found
        lib.weft_launch_startup_begin(None, 0)
        try:
            name = transport.encode()
            call(lib.weft_comm_open, None, name, ctypes.byref(options), ctypes.byref(out))
        except UnavailableError as error:
            if found or "there is no driver" not in error.message:
                raise
            raise UnavailableError(
                f"{error.message}; and beside a command `weft` on PATH", error.hint
            ) from None
        finally:
            lib.weft_launch_startup_end()
            if found:
                del os.environ["WEFT_MPI_DRIVER"]
        state.comm, state.progress, state.transport = out, progress, transport
        _watch_the_end()
        return out


def is_failed(error: BaseException) -> None:
    """Note the failure that all ranks of the world agree on."""
    state.agreed = error


def allgather(mine: bytes, stall_limit: int) -> list[bytes]:
    """Give every rank the bytes of all."""
    transport = lib.weft_comm_local(state.comm)
    ranks, size = transport[0].rank_count, len(mine)
    out = ctypes.create_string_buffer(ranks * size)
    try:
        call(lib.weft_allgather, transport, mine, out, size, stall_limit)
    except Error as error:
        is_failed(error)
        raise
    return [out.raw[k * size : (k + 1) * size] for k in range(ranks)]
