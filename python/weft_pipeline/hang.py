"""Which rank a hanging PyTorch job waits for, from the dumps of its flight recorder.

from weft_pipeline import hang

diagnosis = hang.from_flight_recorder("dumps", program)
print(diagnosis)            # a line for each rank, then the culprit
diagnosis.culprit           # a rank, or None
diagnosis.actions[2]        # what rank 2 is in: "2F3"

PyTorch writes a dump for each rank when TORCH_NCCL_TRACE_BUFFER_SIZE is set and a transfer times
out. Dumps are read as data: a pickle that names code is refused.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import stat
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional, Union

from ._data import dataframe, plain
from ._errors import FileError, MissingError, UsageError
from ._library import Immutable, Path, c, content, lib, path_name, read_file, set_once, text_of
from ._program import Program

__all__ = ["Collective", "Diagnosis", "Rank", "from_dumps", "from_flight_recorder"]


class Collective(NamedTuple):
    """A collective that a rank has started and not done."""

    name: str
    """As PyTorch names it: 'nccl:_all_gather_base'."""
    group: str
    """Its process group."""
    ranks: str
    """Those of the group, as the dump has them: '[2, 6]'; '' where it does not."""
    file: str
    """Of the Python frame that started it; '' where the dump has none."""
    line: Optional[int]
    function: str


class Rank(NamedTuple):
    """What one rank does."""

    rank: int
    """Its number in the job."""
    state: str
    """'waiting', 'computing', 'between steps', or 'missing' where there is no dump."""
    action: Optional[str]
    """The action that it waits in or computes; None where it is not known, or one of several."""
    step: Optional[int]
    """The training step, from 1; of a rank between steps, how many it has done."""
    peer: Optional[int]
    """The rank that it waits for."""
    file: Optional[str]
    """The dump."""
    actions: tuple[str, ...] = ()
    """Those that it can be in: dumps do not tell computations apart between two transfers."""
    collectives: tuple[Collective, ...] = ()
    """Those that it has started and not done, of any process group: the oldest of each."""
    pipeline: Optional[int] = None
    """Which of the job's pipelines it is in, from 0; None where it is in none."""
    row: Optional[int] = None
    """Its rank in the program; None where it is in no pipeline."""


def _rank(members: Mapping[str, Any]) -> Rank:
    values = {name: members[name] for name in Rank._fields}
    values["actions"] = tuple(members["actions"])
    values["collectives"] = tuple(
        Collective(*(item[name] for name in Collective._fields)) for item in members["collectives"]
    )
    return Rank(**values)


class Diagnosis(Immutable):
    """What every rank of a job does, and who is to be looked at."""

    __slots__ = (
        "_text",
        "culprit",
        "cycle",
        "hangs",
        "hint",
        "message",
        "ranks",
        "suspects",
        "unread",
    )
    _text: str
    culprit: Optional[int]
    """The rank that the others wait for; None where none hangs, where it is a deadlock, and where
    the dumps do not tell: `message` says why."""
    cycle: tuple[int, ...]
    """Of a deadlock: the ranks that wait for each other, each for the next."""
    hangs: bool
    """Whether any rank waits."""
    suspects: tuple[int, ...]
    """Where the dumps do not tell: the ranks at which the waits end, or come back."""
    message: str
    hint: str
    ranks: tuple[Rank, ...]
    unread: tuple[str, ...]
    """Why dumps that count as missing could not be read."""

    def __init__(self, text: str, document: Mapping[str, Any]) -> None:
        """Take the explanation as text and as JSON."""
        set_once(
            self,
            _text=text,
            culprit=document["culprit"],
            cycle=tuple(document["cycle"]),
            hangs=document["hangs"],
            suspects=tuple(document["suspects"]),
            message=document["message"],
            hint=document["hint"],
            ranks=tuple(_rank(rank) for rank in document["ranks"]),
            unread=tuple(item["message"] for item in document["unread"]),
        )

    @property
    def actions(self) -> tuple[Optional[str], ...]:
        """The action that each of `ranks` is in; None: not known, or one of several."""
        return tuple(rank.action for rank in self.ranks)

    def __str__(self) -> str:
        """Give a line for each rank, then the verdict."""
        return self._text

    def __repr__(self) -> str:
        """Give the verdict."""
        return f"<weft_pipeline.hang.Diagnosis: {self.message}>"

    def to_dict(self) -> dict[str, Any]:
        """Give all of it as JSON has it."""
        return {name: plain(getattr(self, name)) for name in self.__slots__ if name != "_text"}

    def to_dataframe(self) -> Any:
        """Give a pandas DataFrame with a row for each rank; collectives are in `ranks`."""
        columns = [name for name in Rank._fields if name != "collectives"]
        return dataframe(columns, ([getattr(k, name) for name in columns] for k in self.ranks))


def _check_program(program: object) -> None:
    if not isinstance(program, Program):
        raise TypeError(f"program must be a Program or Table, not {type(program).__name__}")


def from_dumps(dumps: Mapping[str, Union[bytes, str]], program: Program) -> Diagnosis:
    """Diagnose dumps that are in memory: pickles or JSON, by file name.

    A name ends with the number of its rank: "rank0.pkl", "nccl_trace_rank_1". `program` is the
    table or program that the job runs.
    """
    _check_program(program)
    if not isinstance(dumps, Mapping):
        raise TypeError(f"dumps must be a mapping of names to bytes, not {type(dumps).__name__}")
    contents: list[tuple[bytes, bytes, Optional[bytes]]] = [
        (os.fsencode(name), content(data, name), None) for name, data in dumps.items()
    ]
    if any(b"\0" in name for name, _, _ in contents):
        raise UsageError("the name of a dump has a NUL character")
    return _explain(contents, program)


def _explain(contents: list[tuple[bytes, bytes, Optional[bytes]]], program: Program) -> Diagnosis:
    """Diagnose dumps: name, data, and why there is no data."""
    array = (c.weft_flight_dump * max(len(contents), 1))()
    for item, (name, data, unread) in zip(array, contents):
        item.name = name
        item.data = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p)
        item.size = len(data)
        item.unread = unread
    call = (lib.weft_flight_explain, None, program._handle.pointer, array, len(contents))
    return Diagnosis(text_of(*call, False), json.loads(text_of(*call, True)))


def from_flight_recorder(folder: Path, program: Program) -> Diagnosis:
    """Diagnose a job by the dumps in a folder: the files whose names end with a number.

    `program` is the table or program that each pipeline of the job runs. Dumps may be missing,
    and may have lost their beginning.
    """
    _check_program(program)
    name = path_name(folder)
    try:
        files = sorted(file for file in os.listdir(name) if re.match(r"[^.]*[0-9](\.|$)", file))
    except FileNotFoundError as error:
        raise MissingError(f"the folder {name} is not there", "give that of the dumps") from error
    except (OSError, ValueError) as error:
        raise FileError(f"the folder {name} cannot be read: {error}") from error
    if not files:
        raise MissingError(
            f"the folder {name} has no file with a number at the end of its name",
            "the dumps are files like rank0.pkl or nccl_trace_rank_0",
        )
    return _explain([_read(name, file) for file in files], program)


def _read(folder: str, file: str) -> tuple[bytes, bytes, Optional[bytes]]:
    """Read a dump. What cannot be read, such as a named pipe, does not end the diagnosis."""
    path = os.path.join(folder, file)
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return os.fsencode(file), b"", b"is no regular file"
        return os.fsencode(file), read_file(path), None
    except (OSError, FileError, MissingError) as error:
        return os.fsencode(file), b"", str(error).encode("utf-8", "replace")
