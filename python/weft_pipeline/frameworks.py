"""Other frameworks: what torchtitan and Megatron-LM need to run a plan, and DeepSpeed's schedules.

from weft_pipeline import frameworks

frameworks.torchtitan(plan, "plan.csv").flags
frameworks.megatron(plan).flags
frameworks.deepspeed(TrainSchedule, ranks=4, microbatches=8).verify()
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Callable, NamedTuple, Optional, Union

from ._errors import InvalidError, UsageError
from ._graph import refuse_graph
from ._library import Path, integer, path_name
from ._plan import Plan
from ._program import Program, Table

__all__ = ["Megatron", "Torchtitan", "deepspeed", "megatron", "torchtitan"]


def _table_of(source: Union[Table, Plan]) -> Table:
    table = source.table if isinstance(source, Plan) else source
    if not isinstance(table, Table):
        raise TypeError(f"expected a Table or Plan, not {type(source).__name__}")
    refuse_graph(table, "this framework", "weft_pipeline.torch.Pipeline runs graphs of modules")
    if table.stages % table.ranks:
        raise UsageError(
            f"{table.stages} stages are not the same number on each of {table.ranks} ranks"
        )
    return table


def _cut(parts: Sequence[Any], counts: Sequence[int]) -> list[list[Any]]:
    """Divide the parts of a model among the stages."""
    if sum(counts) != len(parts):
        raise UsageError(
            f"the plan has {sum(counts)} parts, but {len(parts)} are named",
            "name the parts of the costs, in their order",
        )
    result, first = [], 0
    for count in counts:
        result.append(list(parts[first : first + count]))
        first += count
    return result


# ---- torchtitan ----


class Torchtitan(NamedTuple):
    """What torchtitan (since August 2026) needs: flags for its command line, and settings.

    `settings` has the same by name. `module_fqns_per_model_part`, a setting of its parallelism
    section, is None where the plan does not partition the model.
    """

    flags: tuple[str, ...]
    settings: dict[str, Any]
    module_fqns_per_model_part: Optional[list[list[str]]]


def _names(count: int) -> list[Union[str, list[str]]]:
    """Torchtitan's names: an embedding, layers, and the norm with the head."""
    layers: list[Union[str, list[str]]] = [f"layers.{k}" for k in range(count - 2)]
    return ["tok_embeddings", *layers, ["norm", "lm_head"]]


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
    v, placement = table.stages // table.ranks, table.placement
    if placement == "inferred" or (placement == "v" and v > 2):
        raise InvalidError(
            f"torchtitan has no placement {placement!r} with {v} stages per rank",
            "plan with stages_per_rank=2, or with placement='loop'",
        )
    name = "ZBVZeroBubble" if placement == "v" and v == 2 else "PipelineScheduleMulti"
    if v == 1:
        name = "PipelineScheduleSingle"
    table.for_pytorch().save(path)
    settings: dict[str, Any] = {
        "parallelism.pipeline_parallel_degree": table.ranks,
        "parallelism.pipeline_parallel_schedule": name,
        "parallelism.pipeline_parallel_schedule_csv": path_name(path),
        "parallelism.num_pp_microbatches": table.microbatches,
        "training.disable_cuda_graphs": True,
    }
    if tokens_per_microbatch is not None:
        count = integer(tokens_per_microbatch, "tokens_per_microbatch", 1, 2**62)
        settings["training.num_tokens_per_microbatch_per_dp_rank"] = count
    flags: list[str] = []
    for key, value in settings.items():
        flags += [f"--{key}"] if value is True else [f"--{key}", str(value)]
    lists = None
    counts = source.stage_parts if isinstance(source, Plan) else None
    if counts is not None:
        parts = _names(sum(counts)) if modules is None else list(modules)
        lists = [
            [name for part in stage for name in ([part] if isinstance(part, str) else part)]
            for stage in _cut(parts, counts)
        ]
        settings["parallelism.module_fqns_per_model_part"] = lists
    return Torchtitan(tuple(flags), settings, lists)


# ---- Megatron-LM ----


class Megatron(NamedTuple):
    """What Megatron-LM needs: the layout of the layers, and flags. It runs its own order only."""

    layout: str
    flags: tuple[str, ...]


def megatron(
    source: Union[Plan, Sequence[int]], *, ranks: int = 0, parts: Optional[str] = None
) -> Megatron:
    """Give Megatron's --pipeline-model-parallel-layout for a partition of the model.

    `source` is a plan that partitions the model, or the number of parts of each stage (then
    `ranks` is needed). `parts` has a letter for each part: E embedding, t layer, m MTP, L loss;
    without it the first is the embedding, the last the loss, and the others are layers. Stage i
    of the layout is on rank i mod p, so the placement must be a loop.
    """
    if isinstance(source, Plan):
        if source.stage_parts is None:
            raise UsageError("the plan does not partition the model", "give costs with parts")
        if source.placement != "loop":
            raise InvalidError(
                "Megatron places stages in a loop, and the plan is a V",
                "plan with placement='loop'",
            )
        counts, ranks = list(source.stage_parts), source.table.ranks
    else:
        if isinstance(source, (str, bytes)) or not isinstance(source, Iterable):
            raise TypeError(f"expected a Plan or numbers, not {type(source).__name__}")
        counts = [integer(count, "the parts of a stage", 0, 2**20) for count in source]
        ranks = integer(ranks, "ranks", 1, 2**16)
    if not counts or len(counts) % ranks:
        raise UsageError(f"{len(counts)} stages are not the same number on each of {ranks} ranks")
    if parts is None:
        parts = "E" + "t" * max(sum(counts) - 2, 0) + "L"
    if not isinstance(parts, str) or set(parts) - set("EtmL"):
        raise UsageError("parts has other letters than E, t, m and L")
    layout = "|".join("".join(stage) for stage in _cut(parts, counts))
    flags = ["--pipeline-model-parallel-size", str(ranks), "--pipeline-model-parallel-layout"]
    flags.append(layout)
    if len(counts) > ranks:
        flags += ["--microbatch-group-size-per-virtual-pipeline-stage", str(ranks)]
    return Megatron(layout, tuple(flags))


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
