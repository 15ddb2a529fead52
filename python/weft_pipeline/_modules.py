"""Which modules of PyTorch can be stages: what would be computed wrongly is refused by name."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, NamedTuple, Optional

from ._errors import StageError, UsageError
from ._library import c
from ._program import Program
from ._tensors import are_equal

# Wrappers that reduce or gather by hooks of their own, which expect a backward after each forward.
_WRAPPERS = (
    ("torch.nn.parallel", "DistributedDataParallel"),
    ("torch.distributed.fsdp", "FullyShardedDataParallel"),
    ("torch.distributed.fsdp", "FSDPModule"),
)
_AVERAGE = (
    "give the plain module, and the pipeline data_parallel=group: it takes the mean of the "
    "gradients over the processes of the group"
)


_SMALL = 1 << 12  # numbers of a buffer


class Shared(NamedTuple):
    """A tensor that is looked at, and the sentence that says whose it is."""

    tensor: Any
    message: str


def _wrapper_of(module: Any) -> Optional[str]:
    """What PyTorch calls the wrapper that a module is; its parts are not looked at."""
    for package, name in _WRAPPERS:
        kind = getattr(sys.modules.get(package), name, None)  # without it there are none
        if kind is not None and isinstance(module, kind):
            return "fully_shard (FSDP2)" if name == "FSDPModule" else name
    contract = sys.modules.get("torch.distributed._composable.contract")
    registry = contract._get_registry(module) if contract is not None else None
    return next((f"{name}()" for name in registry or ()), None)


def _check_kind(k: int, module: Any) -> None:
    for path, part in module.named_modules():
        wrapper = _wrapper_of(part)
        if wrapper is not None:
            where = f"its part {path} is" if path else "it is"
            raise UsageError(
                f"stage {k} cannot run: {where} wrapped in {wrapper}, which communicates by hooks "
                f"that microbatches of a pipeline do not call in its order",
                _AVERAGE,
            )
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    is_lazy = import_module("torch.nn.parameter").is_lazy
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise UsageError(
                f"stage {k} cannot run: its tensor {name} has no shape yet (a lazy module)",
                "run the module once with a dummy batch, or give it its sizes",
            )
        if kind is not None and isinstance(tensor, kind):
            raise UsageError(
                f"stage {k} cannot run: its tensor {name} is a DTensor, and ranks of a pipeline "
                f"do not compute in the order that its collectives need",
                "give the plain module; a table of Weft runs such stages in PyTorch with "
                "weft_pipeline.torch.runtime()",
            )


def check_modules(
    torch: Any,
    modules: list[Any],
    functions: dict[int, Any],
    program: Program,
    rank: Optional[int],
) -> list[Shared]:
    """Refuse modules that cannot be stages, and losses that cannot be theirs.

    Gives the buffers that stages share, which they may as long as none changes them.
    """
    for k, module in enumerate(modules):
        if rank is not None and program.rank_of_stage[k] != rank and module is None:
            continue
        if not isinstance(module, torch.nn.Module):
            where = "" if rank is None else f" of rank {rank}"
            raise TypeError(
                f"stage {k}{where} must be a module of PyTorch, not {type(module).__name__}"
            )
        _check_kind(k, module)
    for k, function in functions.items():
        if isinstance(function, torch.nn.Module):
            _check_kind(k, function)
    if c.WEFT_OP_TIE_GRAD in bytes(program._records())[::8]:
        raise UsageError(
            "the program has TIE_GRAD, and Pipeline ties no weights",
            "lower the table without tie_grad; put what shares a weight into one stage",
        )
    check_weights(torch, modules, functions)
    return _shared(torch, modules, functions, "named_buffers", "buffer")


def _shared(
    torch: Any, modules: list[Any], functions: dict[int, Any], names: str, what: str
) -> list[Shared]:
    found: dict[int, tuple[int, str]] = {}
    shared = []
    parts = [(k, "", module) for k, module in enumerate(modules) if module is not None]
    parts += [
        (k, "loss_fn.", function)
        for k, function in functions.items()
        if isinstance(function, torch.nn.Module)
    ]
    for k, prefix, module in parts:
        for name, tensor in getattr(module, names)():
            first, whose = found.setdefault(id(tensor), (k, prefix + name))
            if first != k:
                said = f"stages {first} and {k} share the {what} {whose}"
                said += f" ({prefix + name})" * (prefix + name != whose)
                shared.append(Shared(tensor, said))
    return shared


def check_weights(torch: Any, modules: list[Any], functions: dict[int, Any]) -> None:
    """Refuse weights of several stages that get a gradient."""
    for weight in _shared(torch, modules, functions, "named_parameters", "weight"):
        if weight.tensor.requires_grad:
            raise UsageError(
                f"{weight.message}: each would add to one gradient, and at its own time",
                "put what shares a weight into one stage, or give each stage its own copy and add "
                "up their gradients after step()",
            )


def scan(tensors: list[Shared], values: bool = True) -> list[tuple[int, Any]]:
    """Remember tensors: how often they changed, and with `values` small buffers whole.

    Not all changes of buffers count: those by functional.batch_norm() do not.
    """
    return [
        (
            0 if tensor.is_inference() else tensor._version,
            tensor.clone()
            if values and not tensor.requires_grad and tensor.numel() <= _SMALL
            else None,
        )
        for tensor, _ in tensors
    ]


def changed(torch: Any, tensors: list[Shared], before: list[tuple[int, Any]]) -> Optional[str]:
    """Give the sentence of the first that has changed since it was looked at."""
    for (tensor, message), (version, value) in zip(tensors, before):
        if (not tensor.is_inference() and tensor._version != version) or (
            value is not None and not are_equal(torch, value, tensor)
        ):
            return message
    return None


def check_unchanged(torch: Any, buffers: list[Shared], before: list[tuple[int, Any]]) -> None:
    """Refuse buffers of several stages that these change."""
    message = changed(torch, buffers, before)
    if message is not None:
        raise UsageError(
            f"{message}, and a forward changes it: ranks do so in any order",
            "give each stage a module of its own",
        )


def check_batches(torch: Any, given: Iterable[tuple[int, Any]]) -> None:
    """Refuse a tensor that was given to several stages, and that one of them changes."""
    takers: dict[int, set[int]] = {}
    changers: dict[int, int] = {}
    leaves = import_module("torch.utils._pytree").tree_leaves
    for k, parts in given:
        for x in leaves(parts):
            if isinstance(x, torch.Tensor) and x.layout is torch.strided:
                memory = x.untyped_storage()._cdata
                takers.setdefault(memory, set()).add(k)
                if not x.is_inference() and x._version:
                    changers.setdefault(memory, k)
    for memory, k in changers.items():
        if len(takers[memory]) > 1:
            raise UsageError(
                f"stage {k} changes x in place, and another stage takes it, too: ranks do so in "
                f"any order",
                "mask = mask * 2, not mask *= 2, and inplace=False in its first layer; or give "
                "each stage a tensor of its own: step((x, x.clone()), target=target)",
            )


def _words(error: BaseException) -> str:
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


# ---- What a step finds ----


def check_output(torch: Any, k: int, module: Any, y: Any) -> None:
    """Refuse what a tensor has beside its numbers: these alone go over an edge."""
    if y.layout is not torch.strided:
        raise UsageError(
            f"stage {k} ({type(module).__name__}) gives a tensor of layout {y.layout}; expected "
            f"torch.strided",
            "return y.to_dense()",
        )
    kind = type(y)
    kinds = torch.Tensor, torch.nn.Parameter
    if kind not in kinds and kind.__name__ != "AsyncCollectiveTensor":
        raise UsageError(
            f"stage {k} ({type(module).__name__}) gives a {kind.__name__}, and the next stage "
            f"would take a plain tensor",
            "return y.as_subclass(torch.Tensor), and make it again where it is used",
        )
    name = next((name for name in vars(y) if not name.startswith("_")), None)
    if name is not None:
        raise UsageError(
            f"stage {k} ({type(module).__name__}) gives a tensor with an attribute {name}, which "
            f"the next stage would not see",
            "send it as a tensor of its own, over an edge of a graph (weft.Graph)",
        )


def groups_of(torch: Any) -> list[Any]:
    """The process groups of PyTorch that this process communicates in."""
    dist = torch.distributed
    if not dist.is_available() or not dist.is_initialized():
        return []
    return [group for group in dist.distributed_c10d._world.pg_map if group.size() > 1]


def collectives_of(groups: Iterable[Any]) -> int:
    """How often process groups have communicated."""
    count = 0
    for group in groups:
        with contextlib.suppress(RuntimeError):  # a backend that does not count
            count += group._get_sequence_number_for_group()
    return count


def _nodes_of(first: Iterable[Any]) -> Iterator[Any]:
    """All nodes of autograd's graph behind these."""
    left = list(first)
    seen = set(left)
    while left:
        node = left.pop()
        yield node
        for after, _ in node.next_functions:
            if after is not None and after not in seen:
                seen.add(after)
                left.append(after)


def leaves_of(outputs: Iterable[Any]) -> list[Any]:
    """All tensors that the gradients of these are added to."""
    first = [output.grad_fn for output in outputs if output.grad_fn is not None]
    return [node.variable for node in _nodes_of(first) if hasattr(node, "variable")]


class Visits:
    """What functions of the user's gave in the first part of a split backward.

    The second part may call them again: what keeps a count, or changes what it has saved, gives
    something else then. So may hooks of gradients, which all nodes can have.
    """

    def __init__(self, torch: Any, first: Iterable[Any], every: bool) -> None:
        """Look at the functions behind these nodes, or at every node."""
        self._kind = torch.autograd.function.BackwardCFunction
        self._torch = torch
        self._nodes = [
            node
            for node in _nodes_of(first)
            if isinstance(node, self._kind) or (every and not hasattr(node, "variable"))
        ]
        self._first: dict[Any, list[Any]] = {}
        self.changed: Optional[str] = None  # the name of a function that gives something else

    def _look(self, node: Any, gives: Sequence[Any], takes: Sequence[Any]) -> None:
        gradients = *gives, *takes
        first = self._first.get(node)
        if first is None:
            self._first[node] = [None if grad is None else grad.clone() for grad in gradients]
        elif not all(map(self._is_same, first, gradients)):
            name = type(node).__name__
            is_own = isinstance(node, self._kind)
            found = name.replace("Backward", "") if is_own else f"{name} (by a hook)"
            self.changed = self.changed or found  # those behind it get others, too

    def _is_same(self, a: Any, b: Any) -> bool:
        """Up to what the order of sums makes."""
        if a is None or b is None:  # only the first part needs one of an input, say
            return True
        if a.layout is not self._torch.strided or a.numel() == 0:
            return True
        slack = 1e-3 * float(a.detach().abs().nan_to_num(0, 0, 0).max())
        return bool(self._torch.allclose(a, b, rtol=1e-2, atol=slack, equal_nan=True))

    @contextlib.contextmanager
    def look(self) -> Iterator[None]:
        """Look at them in a part of a backward."""
        with contextlib.ExitStack() as handles:
            for node in self._nodes:
                # Older releases (2.11) have no hooks for a node whose graph is gone: nothing calls
                # it again.
                with contextlib.suppress(RuntimeError):
                    hook = functools.partial(self._look, node)
                    handles.callback(node.register_hook(hook).remove)
            yield


# What PyTorch says, and what helps.
_REMEDIES = (
    (
        "a leaf Variable that requires grad",
        "what a stage takes stays as it is: inplace=False in its first layer, or x = x.clone()",
    ),
    (
        "donated buffers",
        "torch._functorch.config.donated_buffer = False before the first step, or a schedule "
        "with whole backwards (1F1B): a split backward goes through the graph twice",
    ),
    (
        "modified by an inplace operation",
        "weights, and what a backward needs, change between steps only: optimizer.step() after "
        "step()",
    ),
    (
        "detached in-place",
        "what a module keeps for the next microbatch: self.state = y.detach(), not y.detach_()",
    ),
    (
        "use_reentrant",
        "checkpoint(..., use_reentrant=False), or a schedule with whole backwards (1F1B)",
    ),
    (
        "backward an extra time",
        "a schedule with whole backwards (1F1B): a split backward recomputes twice, and selective "
        "checkpointing keeps its choice for once",
    ),
    (
        "backward through the graph a second time",
        "what a module keeps for the next microbatch is detached: self.state = h.detach(). Where "
        "the backward is split, a function that frees what it saved needs a schedule with whole "
        "backwards (1F1B), as a split one goes through the graph twice",
    ),
)


def explained(k: int, module: Any, function: str, error: BaseException) -> BaseException:
    """Give what to raise for an exception of a stage: PyTorch's own with stage and remedy.

    Those of a forward are the module's, but for the known ones.
    """
    if type(error) not in (RuntimeError, NotImplementedError):
        return error
    reason = error
    while reason.__cause__ is not None:  # PyTorch's pipelining hides the reason
        reason = reason.__cause__
    text = f"{reason}"
    hint = next((remedy for found, remedy in _REMEDIES if found in text), "")
    if function == "forward" and not hint:
        return error
    kind = "forward" if function == "forward" else "backward"
    made = StageError(
        f"stage {k} ({type(module).__name__}): its {kind} failed: {_words(reason)}", hint
    )
    made.__cause__ = error
    return made
