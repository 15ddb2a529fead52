"""Data parallelism: other processes that train the same stages on other batches.

The program's REDUCE_GRAD sums a stage's gradients over the replicas, in their order: ((a + b) + c),
so every replica has the same bits, whatever carries them. Each stage has a process group of its
own, because ranks that are threads come to their stages in any order.
"""

from __future__ import annotations

import atexit
import datetime
from collections.abc import Iterable
from typing import Any

from ._errors import PeerError, UsageError

_BUCKET = 1 << 26  # bytes of gradients that are sent at once
_made: dict[str, int] = {}  # groups of the same processes so far


class Replicas:
    """The processes of a group, one for each replica."""

    def __init__(self, torch: Any, group: Any, stall: int) -> None:
        """Know the group. Every process of it makes the same pipelines, in one order."""
        dist = torch.distributed
        members = dist.get_process_group_ranks(group)
        self.torch, self.members = torch, members
        self.rank, self.count = dist.get_rank(group), len(members)
        self.limit = datetime.timedelta(seconds=max(stall / 1e9, 60) if stall else 1800)
        line = "_".join(map(str, members))
        number = _made[line] = _made.get(line, -1) + 1
        store = dist.distributed_c10d._get_default_store()
        self.store = dist.PrefixStore(f"weft-replicas/{line}/{number}", store)
        self.groups: dict[int, Any] = {}  # by stage
        atexit.register(self.groups.clear)  # their threads end before the interpreter does

    def open(self, stages: Iterable[Any]) -> None:
        """Connect the stages of this process, and see that replicas begin with the same weights."""
        dist = self.torch.distributed
        for stage in stages:
            store = dist.PrefixStore(str(stage.index), self.store)
            device = stage.device.torch_device
            kind = dist.ProcessGroupGloo if device.type == "cpu" else dist.ProcessGroupNCCL
            self.groups[stage.index] = kind(store, self.rank, self.count, self.limit)
            self._check(stage, device)

    def _check(self, stage: Any, device: Any) -> None:
        named = [pair for module in stage.modules for pair in module.named_parameters()]
        sums = [
            w.detach().reshape(-1).view(self.torch.uint8).sum(dtype=self.torch.int64)
            for _, w in named
        ]
        mine = [self.torch.tensor(len(named), device=device), *sums]
        found = self._gather(stage.index, self.torch.stack(mine[:1]))
        if not bool((found == found[0]).all()):
            listed = ", ".join(str(int(n)) for n in found[:, 0])
            raise UsageError(
                f"{stage.name} has different numbers of weights in its replicas: {listed}",
                "every replica makes the same pipeline",
            )
        if not sums:
            return
        found = self._gather(stage.index, self.torch.stack(sums))
        for k, (name, _) in enumerate(named):
            if not bool((found[:, k] == found[0, k]).all()):
                raise UsageError(
                    f"the replicas of {stage.name} begin with different weights: {name}",
                    "torch.manual_seed() with one number before the modules are made, or "
                    "torch.distributed.broadcast() of their weights",
                )

    def _gather(self, k: int, x: Any) -> Any:
        """Give a tensor of each replica, in their order."""
        x = x.contiguous()
        line = x.view(-1).view(self.torch.uint8)
        out = self.torch.empty(self.count * line.numel(), dtype=line.dtype, device=x.device)
        try:
            self.groups[k]._allgather_base(out, line).wait()
        except RuntimeError as error:
            words = str(error).strip().split("\n")[0]
            raise PeerError(
                f"stage {k} cannot sum its gradients over the processes "
                f"{', '.join(map(str, self.members))}: {words}",
                "look at what ended the other replicas; all take the same number of steps",
            ) from error
        return out.view(x.dtype).view(self.count, *x.shape)

    def reduce(self, stage: Any, mean: bool) -> None:
        """Sum the gradients of a stage over the replicas; their mean, if that is wanted."""
        torch, k = self.torch, stage.index
        weights = list(stage.trained)
        if not weights:
            return
        for w in weights:
            if w.grad is not None and w.grad.layout is not torch.strided:
                raise UsageError(
                    f"{stage.name} has a gradient of layout {w.grad.layout}, which replicas do "
                    f"not sum",
                    "torch.nn.Embedding(..., sparse=False)",
                )
        device = stage.device.torch_device
        has = torch.tensor([w.grad is not None for w in weights], device=device)
        found = self._gather(k, has)
        chosen = [w for w, is_any in zip(weights, found.any(0).tolist()) if is_any]
        for bucket in _buckets(chosen):
            parts = [
                (torch.zeros_like(w) if w.grad is None else w.grad).reshape(-1) for w in bucket
            ]
            all_parts = self._gather(k, torch.cat(parts))
            total = all_parts[0]
            for part in all_parts[1:]:
                total = total + part
            if mean:
                total = total / self.count
            for w, new in zip(bucket, total.split([part.numel() for part in parts])):
                if w.grad is None:
                    w.grad = torch.empty_like(w)
                w.grad.copy_(new.view(w.shape))


def _buckets(weights: list[Any]) -> list[list[Any]]:
    """Weights with gradients of one type, as many as are sent at once."""
    found: list[list[Any]] = []
    size = 0
    for w in weights:
        bytes_of = w.numel() * w.element_size()
        if not found or found[-1][0].dtype != w.dtype or size + bytes_of > _BUCKET:
            found.append([])
            size = 0
        found[-1].append(w)
        size += bytes_of
    return found
