"""What torchtitan, PyTorch and Megatron-LM need to run a plan, and DeepSpeed's schedules.

from weft_pipeline import frameworks

frameworks.torchtitan(plan, "plan.csv").flags
frameworks.pytorch(plan, "plan.csv").code
frameworks.megatron(plan).flags
frameworks.deepspeed(TrainSchedule, ranks=4, microbatches=8).verify()
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Callable, NamedTuple, Optional, Union

from ._errors import InvalidError
from ._graph import refuse_graph
from ._library import Handle, Path, c, call, integer, lib, path_name, string
from ._plan import Plan
from ._program import Program, Table

__all__ = [
    "Megatron",
    "PyTorch",
    "Torchtitan",
    "deepspeed",
    "megatron",
    "pytorch",
    "torchtitan",
]


def _target(kind: int, **fields: Any) -> Handle:
    request = c.weft_target_request(kind=kind, **fields)
    out = ctypes.POINTER(c.weft_target)()
    call(lib.weft_target, None, ctypes.byref(request), ctypes.byref(out))
    return Handle(out, lib.weft_target_destroy)


def _table_of(source: Union[Table, Plan]) -> Table:
    table = source.table if isinstance(source, Plan) else source
    if not isinstance(table, Table):
        raise TypeError(f"expected a Table or Plan, not {type(source).__name__}")
    refuse_graph(table, "this framework", "weft_pipeline.torch.Pipeline runs graphs of modules")
    return table


def _numbers(counts: Optional[Sequence[int]]) -> Any:
    return None if counts is None else (ctypes.c_uint32 * len(counts))(*counts)


def _names(names: Optional[Sequence[Union[str, Sequence[str]]]], name: str) -> dict[str, Any]:
    """Several names of a part are joined."""
    if names is None:
        return {}
    texts = [string(one if isinstance(one, str) else "+".join(one), name) for one in names]
    return {"part_names": (ctypes.c_char_p * len(texts))(*texts), "part_count": len(texts)}


def _flags(target: Any) -> tuple[str, ...]:
    every = (target.flags[k] for k in range(target.flag_count))
    words = (word for flag in every for word in (flag.name, flag.value))
    return tuple(os.fsdecode(word) for word in words if word is not None)


def _notes(target: Any) -> tuple[str, ...]:
    return tuple(target.notes[k].decode() for k in range(target.note_count))


# ---- torchtitan and PyTorch ----


class Torchtitan(NamedTuple):
    """What torchtitan (since August 2026) needs: flags for its command line, and settings.

    `settings` has the same by name. `module_fqns_per_model_part`, a setting of its parallelism
    section, is None where the plan does not partition the model. `notes` are sentences for the
    user.
    """

    flags: tuple[str, ...]
    settings: dict[str, Any]
    module_fqns_per_model_part: Optional[list[list[str]]]
    notes: tuple[str, ...]


class PyTorch(NamedTuple):
    """What PyTorch itself needs: lines of Python, for each rank with its own stages."""

    code: str
    notes: tuple[str, ...]


def torchtitan(
    source: Union[Table, Plan],
    path: Path,
    *,
    modules: Optional[Sequence[Union[str, Sequence[str]]]] = None,
    tokens_per_microbatch: Optional[int] = None,
) -> Torchtitan:
    """Write the table to a CSV file, and give the flags with which torchtitan runs it.

    torchtitan takes the order from the file and the placement from the name of the schedule, so
    it must be a loop, or a V with two stages per rank. `modules` names each part of the model (or
    gives the names of its modules) where the plan partitions it; without it the first part is
    tok_embeddings, the last norm and lm_head, and those between are layers.
    """
    table = _table_of(source)
    counts = source.stage_parts if isinstance(source, Plan) else None
    tokens = 0
    if tokens_per_microbatch is not None:
        tokens = integer(tokens_per_microbatch, "tokens_per_microbatch", 1, 2**62)
    handle = _target(
        c.WEFT_TARGET_TORCHTITAN,
        table=table._handle.pointer,
        stage_parts=_numbers(counts),
        file=os.fsencode(path_name(path)),
        tokens_per_microbatch=tokens,
        **(_names(modules, "modules") if counts is not None else {}),
    )
    target = handle.pointer[0]
    Table._adopt(target.table, handle).save(path)
    settings: dict[str, Any] = {}
    for flag in (target.flags[k] for k in range(target.flag_count)):
        value = True if flag.value is None else os.fsdecode(flag.value)
        settings[flag.name.decode()[2:]] = int(value) if flag.is_number else value
    lists = None
    if target.modules:
        counts = target.stage_modules[: target.stage_count]
        names = iter(target.modules[: sum(counts)])
        lists = [[name.decode() for name in islice(names, count)] for count in counts]
        settings["parallelism.module_fqns_per_model_part"] = lists
    return Torchtitan(_flags(target), settings, lists, _notes(target))


def pytorch(source: Union[Table, Plan], path: Path) -> PyTorch:
    """Write the table to a CSV file, and give the code with which PyTorch itself runs it."""
    handle = _target(
        c.WEFT_TARGET_PYTORCH,
        table=_table_of(source)._handle.pointer,
        file=os.fsencode(path_name(path)),
    )
    target = handle.pointer[0]
    Table._adopt(target.table, handle).save(path)
    return PyTorch(target.code.decode(), _notes(target))


# ---- Megatron-LM ----


class Megatron(NamedTuple):
    """What Megatron-LM needs: the layout of the layers, and flags. It runs its own order only."""

    layout: str
    flags: tuple[str, ...]
    notes: tuple[str, ...]


def megatron(
    source: Union[Plan, Sequence[int]], *, ranks: int = 0, parts: Optional[str] = None
) -> Megatron:
    """Give Megatron's --pipeline-model-parallel-layout for a partition of the model.

    `source` is a plan that partitions the model, or the number of parts of each stage (then
    `ranks` is needed). `parts` has a letter for each part: E embedding, t layer, m MTP, L loss;
    without it the first is the embedding, the last the loss, and the others are layers. Stage i
    of the layout is on rank i mod p, so the placement must be a loop.
    """
    fields: dict[str, Any]
    counts: Optional[Sequence[int]]
    if isinstance(source, Plan):
        counts = source.stage_parts
        fields = {"table": source.table._handle.pointer}
    elif isinstance(source, (str, bytes)) or not isinstance(source, Iterable):
        raise TypeError(f"expected a Plan or numbers, not {type(source).__name__}")
    else:
        counts = [integer(count, "the parts of a stage", 0, 2**20) for count in source]
        fields = {"ranks": integer(ranks, "ranks", 1, 2**16), "stage_count": len(counts)}
    handle = _target(
        c.WEFT_TARGET_MEGATRON, stage_parts=_numbers(counts), **fields, **_names(parts, "parts")
    )
    target = handle.pointer[0]
    return Megatron(target.layout.decode(), _flags(target), _notes(target))


# ---- DeepSpeed ----


def deepspeed(schedule: Callable[..., Any], *, ranks: int, microbatches: int) -> Program:
    """Make the program of a schedule of DeepSpeed (TrainSchedule, InferenceSchedule), to verify it.

    DeepSpeed's instructions name buffers. Microbatches go through a stage in order, so a buffer
    holds the microbatch of the last forward into it.
    """
    ranks = integer(ranks, "ranks", 1, 2**16)
    microbatches = integer(microbatches, "microbatches", 1, 2**24)
    if not callable(schedule):
        raise TypeError(f"schedule must be a class of DeepSpeed, not {type(schedule).__name__}")
    return Program.from_rows(
        _deepspeed_row(schedule(microbatches, ranks, rank), rank) for rank in range(ranks)
    )


def _deepspeed_row(schedule: Any, rank: int) -> list[str]:
    row = []
    held: dict[Any, int] = {}  # buffer: microbatch
    received = computed = 0
    for commands in schedule.steps():
        for command in commands:
            name, buffer = type(command).__name__, getattr(command, "buffer_id", None)
            if name == "RecvActivation":
                row.append(f"{rank}RECV_F{received}")
                received += 1
            elif name == "ForwardPass":
                held[buffer] = computed
                row.append(f"{rank}F{computed}")
                computed += 1
            elif name in _DEEPSPEED_OPS:
                if buffer not in held:
                    raise InvalidError(f"rank {rank}: {name} of buffer {buffer}, which is empty")
                row.append(f"{rank}{_DEEPSPEED_OPS[name]}{held[buffer]}")
            elif name == "ReduceGrads":
                row.append(f"{rank}REDUCE_GRAD")
    return row


_DEEPSPEED_OPS = {
    "SendActivation": "SEND_F",
    "RecvGrad": "RECV_B",
    "BackwardPass": "B",
    "SendGrad": "SEND_B",
}
