"""The batch of a step: split into microbatches and merged again by PyTorch's rules."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any, Optional

from ._errors import UsageError
from ._program import Program


def each(given: Any, name: str, stages: tuple[int, ...]) -> dict[int, Any]:
    """What is given for all of these stages, or a sequence with one for each."""
    if not isinstance(given, (tuple, list)):
        return dict.fromkeys(stages, given)
    if len(given) != len(stages):
        listed = ", ".join(map(str, stages))
        raise UsageError(
            f"{name} has {len(given)} items; expected {len(stages)}, for "
            f"{'stages' if len(stages) > 1 else 'stage'} {listed}",
            "give one for all of them, or one for each in ascending order",
        )
    return dict(zip(stages, given))


def _names_taken(module: Any) -> Optional[set[str]]:
    """The keyword arguments that a module takes; None: any."""
    module = getattr(module, "_orig_mod", module)  # of torch.compile()
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


class Batches:
    """How batches are split and outputs merged."""

    def __init__(
        self, torch: Any, program: Program, args_spec: Any, kwargs_spec: Any, merge_spec: Any
    ) -> None:
        """Take the specs of a pipeline, as PyTorch's schedules have them."""
        self.torch, self.count = torch, program.microbatches
        self.stages = program.stages
        self.is_chain = program.graph is None
        self.rules = import_module("torch.distributed.pipelining.microbatch")
        self.tree = import_module("torch.utils._pytree")
        self.args_spec, self.kwargs_spec, self.merge_spec = args_spec, kwargs_spec, merge_spec
        if args_spec is not None and not self.is_chain:
            raise UsageError(
                "args_chunk_spec is for chains, and the modules form a graph",
                "leave it out: tensors are split along their first dimension",
            )

    def inputs(
        self, sources: tuple[int, ...], mine: Any, args: Any, kwargs: Any, training: bool
    ) -> tuple[dict[int, list[Any]], dict[int, list[Any]]]:
        """Split what step() gets: arguments of these sources, and of any stage those by name.

        `mine` are the stages of this process.
        """
        names = {k: _names_taken(stage.module) for k, stage in mine.items()}
        for name in kwargs if len(mine) == self.stages else ():  # another process may have them
            if not any(taken is None or name in taken for taken in names.values()):
                listed = ", ".join(stage.name for stage in mine.values())
                raise TypeError(f"no module here takes an argument {name}: {listed}")
        options: dict[int, list[Any]] = {}
        for k, stage in mine.items():
            taken = names[k]
            chosen = {n: v for n, v in kwargs.items() if taken is None or n in taken}
            if chosen:
                unknown = [n for n in chosen if self.kwargs_spec and n not in self.kwargs_spec]
                if unknown:
                    raise UsageError(
                        f"kwargs_chunk_spec does not say how to split {', '.join(unknown)}",
                        "give it an entry for each keyword argument of step()",
                    )
                chosen = self._placed(chosen, "an argument", stage, training)
                spec = self.kwargs_spec and {n: self.kwargs_spec[n] for n in chosen}
                options[k] = self._split((), chosen, None, spec)[1]
        xs = {}
        for k, given in self._by_source(sources, args).items():
            if k in mine:
                given = self._placed(given, "x", mine[k], training)
                spec = self.args_spec if self.is_chain else None
                xs[k] = self._split(given, {}, spec, None)[0]
        return xs, options

    def _by_source(self, sources: tuple[int, ...], args: Any) -> dict[int, Any]:
        if len(sources) == 1:
            return {sources[0]: args}
        if len(args) == 1:
            args = args[0]
        given = each(args, "the batch", sources)
        return {k: x if isinstance(x, tuple) else (x,) for k, x in given.items()}

    def targets(
        self, losses: tuple[int, ...], mine: Any, target: Any, training: bool
    ) -> dict[int, list[Any]]:
        """Split the targets of the losses."""
        given = dict.fromkeys(losses, target) if self.is_chain else each(target, "target", losses)
        return {
            k: [
                part[0]
                for part in self._split(
                    (self._placed(one, "target", mine[k], training),), {}, None, None
                )[0]
            ]
            for k, one in given.items()
            if k in mine and one is not None
        }

    def _placed(self, values: Any, name: str, stage: Any, training: bool) -> Any:
        """Move tensors to the device of their stage."""
        device = stage.device  # streams of a GPU wait for the copy, the host's threads do not
        blocks = self.rules.BlockMask if hasattr(self.rules, "BlockMask") else ()

        def place(x: Any) -> Any:
            if not isinstance(x, self.torch.Tensor):
                return x
            if training and x.requires_grad:
                raise UsageError(
                    f"{name} requires a gradient, and Pipeline gives none for a batch",
                    "give it detached (x.detach()); what is to learn is a parameter of a stage",
                )
            return x.detach().to(device.torch_device, non_blocking=device.enqueues)

        return self.tree.tree_map(place, values, is_leaf=lambda x: isinstance(x, blocks))

    def _split(
        self, args: Any, kwargs: Any, args_spec: Any, kwargs_spec: Any
    ) -> tuple[list[Any], list[Any]]:
        m = self.count
        if not args and not kwargs:
            return [()] * m, [{}] * m
        try:
            parts = self.rules.split_args_kwargs_into_chunks(
                args, kwargs, m, args_spec, kwargs_spec
            )
        except (AssertionError, ValueError, IndexError) as error:
            raise UsageError(
                f"a batch cannot be split into {m} microbatches: {error}",
                "args_chunk_spec and kwargs_chunk_spec say how, as in PyTorch's schedules",
            ) from error
        if len(parts[0]) != m or len(parts[1]) != m:
            leaves = self.tree.tree_leaves((args, kwargs))
            shapes = [tuple(x.shape) for x in leaves if isinstance(x, self.torch.Tensor)]
            raise UsageError(
                f"a batch has tensors of the shapes {', '.join(map(str, shapes))}, which cannot be "
                f"split into {m} microbatches",
                f"give at least {m} rows, or make the pipeline for fewer microbatches",
            )
        # Each counts its own changes.
        own = lambda x: x.data if isinstance(x, self.torch.Tensor) else x  # noqa: E731
        args_parts, kwargs_parts = self.tree.tree_map(own, parts)
        return args_parts, kwargs_parts

    def merge(self, outputs: list[Any]) -> Any:
        """Merge what the microbatches of a loss have given."""
        try:
            if self.merge_spec is None and isinstance(outputs[0], self.torch.Tensor):
                return self.torch.cat(outputs)
            return self.rules.merge_chunks(outputs, self.merge_spec)
        except (AssertionError, ValueError, IndexError, RuntimeError, TypeError) as error:
            raise UsageError(
                f"the outputs of the microbatches cannot be merged: {error}",
                "return_outputs=False goes without them; output_merge_spec says how to merge, as "
                "in PyTorch's schedules",
            ) from error
