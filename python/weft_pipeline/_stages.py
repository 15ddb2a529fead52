"""A module of PyTorch as a stage of Weft's runtime: autograd behind its functions."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import weakref
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, Callable, Optional

from ._attributes import Left, left_by, reads_of
from ._devices import RankDevice
from ._draws import Draws
from ._errors import Error, UsageError
from ._library import c, field_type
from ._modules import (
    Shared,
    Visits,
    changed,
    check_output,
    collectives_of,
    explained,
    leaves_of,
    scan,
)
from ._program import Program
from ._tensors import ITEM, shape_of

_TENSORS = ctypes.sizeof(c.weft_tensors)  # of one edge

_VISIT_FROM = 1 << 16  # weights of a stage
_COMPUTE = ("forward", "backward", "backward_input", "backward_weight")
_LETTERS = "FBIW"  # of actions


class _Call(ctypes.Structure):
    """A struct weft_stage_call whose pointers are numbers: fields are read faster so."""


def _number_for(kind: Any) -> Any:
    return kind if kind.__module__ == "ctypes" else ctypes.c_size_t


_Call._fields_ = [(entry[0], _number_for(entry[1])) for entry in c.weft_stage_call._fields_]
_Function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class Stage:
    """A module and its functions for the runtime.

    The module gets a tensor for each in-edge, in ascending order of the stages that these come
    from. It gives one tensor, which goes over all out-edges, or one for each.

    The functions are called for every action, so they do little: tensors in the runtime's buffers
    are made once, and the autograd engine is called without the checks of
    torch.autograd.backward(), whose arguments are right here.
    """

    def __init__(
        self,
        runs: Runs,
        device: RankDevice,
        index: int,
        module: Any,
        loss_fn: Optional[Callable[..., Any]],
    ) -> None:
        """Make a stage on a device."""
        self.runs = runs
        self.device = device
        self.view = device.view
        self.index = index
        self.rank = runs.rank_of_stage[index]
        self.module = module
        self.name = f"stage {index} ({type(module).__name__})"
        self.is_loss = False
        self.loss_fn = loss_fn
        # Where the tensor of an input or output is among all, and whether it needs a gradient.
        self.in_edges: tuple[tuple[int, bool], ...] = ()
        self.gives: tuple[tuple[int, bool], ...] = ()
        self.owes: tuple[tuple[int, int], ...] = ()  # gradients that it gives, and the stages to
        self.takers: tuple[tuple[int, ...], ...] = ()  # stages that give one back for each output
        self.has_backward = True
        self.chunks: Any = None  # microbatches of the batch, for a stage without in-edges
        self.targets: Any = None  # likewise, for a loss
        self.outputs: dict[int, Any] = {}  # of a loss, by microbatch, where wanted
        self.kept: dict[int, Any] = {}
        self.left: dict[int, list[Left]] = {}  # by forwards of microbatches that are looked at
        self.visits: dict[int, Visits] = {}  # of their split backwards
        self.calls: dict[int, Any] = {}
        # Autograd's W after I goes through the stage once more. PyTorch's pipelining avoids that
        # by a visit of the graph, which is worth it where the stage computes for longer.
        self.visits_graph = sum(weight.numel() for weight in module.parameters()) >= _VISIT_FROM
        # A loss may be a module with weights, which are the stage's then.
        is_module = isinstance(loss_fn, runs.torch.nn.Module)
        self.modules: tuple[Any, ...] = (module, loss_fn) if is_module else (module,)
        self.weights: list[Any] = []  # in this step
        self.trained: tuple[Any, ...] = ()  # those that need a gradient
        # Gradients from before this step, where it scales its own.
        self.before: Optional[list[tuple[Any, Any]]] = None
        self.checks = 0  # microbatches that are still looked at
        self.known: set[bool] = set()  # kinds of steps that there have been: training, or not
        self.strangers: list[Any] = []  # leaves in them that are no weights, weakly
        self.is_split = False  # its backward: only weights get their gradients then
        self.begun = 0  # collectives of PyTorch before this action, and those of the loss
        self.copies = True  # of inputs, as the module may keep one
        self.keeps = False  # the module did
        self.ops = c.weft_stage_ops()
        self.ops.name = b"torch"
        self.ops.enqueues = device.enqueues  # and replays nothing: the module decides on the host
        self.functions = []  # kept alive
        for name in (*_COMPUTE, "scale_grads"):
            function = _Function(self._guarded(getattr(self, name)))
            self.functions.append(function)
            setattr(self.ops, name, ctypes.cast(function, field_type(c.weft_stage_ops, name)))
        self.struct = c.weft_stage()
        self.struct.ops = ctypes.pointer(self.ops)

    def reset(
        self,
        takes: list[tuple[int, bool]],
        gives: list[tuple[tuple[int, ...], bool]],
        is_loss: bool,
    ) -> None:
        """Begin anew, with ranks that have just been opened.

        `takes` and `gives` say which stages its inputs come from and its outputs go to, and which
        of them need a gradient.
        """
        self.in_edges = tuple((k * _TENSORS, needs) for k, (_, needs) in enumerate(takes))
        self.gives = tuple((k * _TENSORS, needs) for k, (_, needs) in enumerate(gives))
        self.owes = tuple((k * _TENSORS, stage) for k, (stage, needs) in enumerate(takes) if needs)
        self.takers = tuple(stages for stages, _ in gives)
        self.is_loss = is_loss
        self.has_backward = is_loss or any(needs for _, needs in gives)
        self.forget()
        self.outputs.clear()
        self.calls.clear()
        self.known.clear()
        self.strangers = []
        self.copies, self.keeps = True, False

    def forget(self) -> None:
        """Free what is kept of microbatches."""
        for kept in (self.kept, self.left, self.visits):
            kept.clear()

    # ---- Steps ----

    def look(self, training: bool) -> None:
        """Begin a step: find the weights. All microbatches of the first step of its kind are looked
        at, and one of each later step.
        """
        found = {id(w): w for module in self.modules for w in module.parameters()}
        self.weights = list(found.values())
        self.trained = tuple([w for w in self.weights if w.requires_grad])
        is_first = training not in self.known
        self.known.add(training)
        self.checks = self.runs.microbatch_count if is_first else 1
        self.strangers = [leaf for leaf in self.strangers if leaf() is not None]
        self.copies = self.keeps or is_first

    def begin(self, scales: bool) -> None:
        """Begin a training step. One that `scales` its gradients adds them to others at its end."""
        self.before = None
        if scales:
            self.before = [(w, w.grad) for w in self.weights if w.grad is not None]
            for w, _ in self.before:
                w.grad = None

    def end(self) -> None:
        """End a training step: add its gradients to those from before."""
        before, self.before = self.before or (), None
        for w, old in before:
            new, w.grad = w.grad, old
            if new is None:
                continue
            with self.runs.torch.no_grad():
                if old.is_sparse and not new.is_sparse:
                    w.grad = new + old
                else:
                    old.add_(new)

    def undo(self) -> None:
        """End a training step that failed: gradients are those from before, if it scales them."""
        before, self.before = self.before, None
        if before is not None:
            for w in self.weights:
                w.grad = None
            for w, old in before:
                w.grad = old

    def _guarded(self, function: Callable[[Any], None]) -> Callable[[int, int, int], int]:
        """Exceptions become an error of the runtime, and come out of step()."""
        runs, calls, enter, draws = self.runs, self.calls, self.device.enter, self.runs.draws
        name = getattr(function, "__name__", "")
        kind = _COMPUTE.index(name) if name in _COMPUTE else None
        waits = self.device.enqueues  # one thread has all these, so nobody else has the generator

        def shown(where: Any) -> None:
            action = f"{self.index}{_LETTERS[kind or 0]}{where.microbatch}"
            with runs.torch.profiler.record_function(f"PP:{action}"):  # as PyTorch's runtime does
                function(where)

        def run(_stage: int, address: int, error: int) -> int:
            try:
                where = calls.get(address)
                if where is None:
                    where = calls[address] = _Call.from_address(address)
                if enter is not None:
                    enter(where.stream)
                act = shown if runs.is_profiled and kind is not None else function
                if kind is None or not draws.are_seeded:
                    act(where)
                else:
                    k = where.microbatch
                    who = self.rank, self.index, name, k
                    number = self.runs.number(kind, self.index, k)
                    work = self._watched if self.runs.groups else _plainly
                    if not draws.call(functools.partial(work, act, where), number, who, waits):
                        return int(c.WEFT_IN_PROGRESS)
            except BaseException as caught:
                self._fail(explained(self.index, self.module, name, caught), error)
                return int(c.WEFT_ERR_STAGE)
            return 0

        return run

    def _watched(self, function: Callable[[Any], None], where: Any) -> None:
        """Call a function while no other rank computes, and see whether it communicates."""
        self.begun = collectives_of(self.runs.groups)
        function(where)
        if collectives_of(self.runs.groups) != self.begun:
            raise UsageError(
                f"{self.name} communicates by "
                f"torch.distributed in its forward, its backward or a hook: ranks are threads, "
                f"which do so in another order in each process",
                "average gradients after step(), in one order; or a process for each rank "
                '(transport="mpi")',
            )

    def _fail(self, caught: BaseException, error: int) -> None:
        if self.runs.error is None:
            self.runs.error = caught
        out = c.weft_error.from_address(error)
        out.status = c.WEFT_ERR_STAGE
        text, hint = f"stage {self.index}: {type(caught).__name__}: {caught}", ""
        if isinstance(caught, Error):
            text, hint = caught.message, caught.hint
        out.message = text.encode("utf-8", "replace")[:500]
        out.hint = hint.encode("utf-8", "replace")[:250]

    def forward(self, where: Any) -> None:
        """Compute the output, and of a loss the loss."""
        training = where.training and self.has_backward
        if self.chunks is not None:
            xs = (self.chunks[where.microbatch],)
        else:
            xs = tuple(
                [self._input(where.inputs + at, needs and training) for at, needs in self.in_edges]
            )
        seen = None
        if self.checks:
            self.checks -= 1
            seen = [_Seen(x, self.copies) for x in xs] if self.chunks is None else []
        if training or not where.training:
            y = self.module(*xs)
        else:  # frozen
            with self.runs.torch.no_grad():
                y = self.module(*xs)
        if self.is_loss:
            y = self._loss(where, y)
            parts = [y]
            if training and self.loss_fn is not None and not y.requires_grad:
                self._check_learns(y)
        else:
            parts = self.parts_of(y, len(self.gives))
            if seen is not None:
                for part in parts:
                    check_output(self.runs.torch, self.index, self.module, part)
            self._put(where.outputs, parts)
        if training:
            if seen is not None:
                self._check_leaves(xs, parts)
                self.left[where.slot] = left_by(self.runs.torch, self.modules)
            self.kept[where.slot] = (xs, y, seen)
        elif seen:
            del xs, y, parts
            self._check_inputs(seen)

    def _check_leaves(self, xs: Any, outputs: list[Any]) -> None:
        """Refuse weights that are reached and not known: they would not be scaled, nor get a W.

        A tensor that a forward makes for itself is another one the next time, and goes with what
        follows from it (check_strangers()).
        """
        known = {id(tensor) for tensor in (*xs, *self.weights)}
        found = [leaf for leaf in leaves_of(outputs) if id(leaf) not in known]
        old = {id(leaf()) for leaf in self.strangers}
        self.strangers += [weakref.ref(leaf) for leaf in found]
        for leaf in found:
            taken = getattr(leaf, "_weft_taker", None)
            if taken is not None:
                raise UsageError(
                    f"{self.name} computes with what stage "
                    f"{taken} took in another forward, a tensor of {tuple(leaf.shape)}: no edge "
                    f"brings its gradient back",
                    "x.detach() where it is kept; or a graph of modules with an edge between the "
                    "stages (weft.Graph)",
                )
            if isinstance(leaf, self.runs.torch.nn.Parameter) or id(leaf) in old:
                self._refuse(leaf)

    def _refuse(self, leaf: Any) -> None:
        raise UsageError(
            f"{self.name} computes with a tensor of {tuple(leaf.shape)} that needs a gradient and "
            f"is none of its parameters" + self.runs.whose(leaf),
            "register it in the module (self.weight = ...); a loss with weights is a module too, "
            "given as loss_fn; or weight.detach()",
        )

    def check_strangers(self) -> None:
        """Refuse what is still there after a step and has no gradient from a split backward."""
        if not self.is_split or all(leaf() is None for leaf in self.strangers):
            return
        gc.collect()
        for leaf in self.strangers:
            if leaf() is not None:
                self._refuse(leaf())

    def _check_inputs(self, seen: list[_Seen]) -> None:
        """See whether a module keeps what it took, when nothing else does.

        The runtime gives the memory to another microbatch now. In the first step inputs are copies,
        and in later ones where one was kept.
        """
        is_kept = any(item.is_kept(self.runs.uses_of) for item in seen)
        if seen and seen[0].is_copy:
            self.keeps = self.keeps or is_kept
        elif is_kept and not self.device.enqueues:  # there autograd lets go of it in its own time
            gc.collect()
            if any(item.is_kept(self.runs.uses_of) for item in seen):
                raise UsageError(
                    f"{self.name} keeps a tensor that it "
                    f"took, and kept none in the first step: the next microbatch gets its memory",
                    "keep x.clone(); or run the step again: after an error inputs are copies",
                )

    def _input(self, address: int, needs_grad: bool) -> Any:
        x = self.view(address)
        x = x.clone() if self.copies else x.detach()
        if needs_grad:
            x._weft_taker = self.index  # for as long as anything keeps it
            x.requires_grad_()
        return x

    def _loss(self, where: Any, y: Any) -> Any:
        if self.runs.output:
            # A copy: it may be a view of an input, whose memory others get next.
            self.outputs[where.microbatch] = y.detach().clone()
        if self.loss_fn is None or self.targets is None:
            return y
        groups = self.runs.groups if self.runs.loss_count == 1 else ()
        begun = collectives_of(groups)
        loss = self.loss_fn(y, self.targets[where.microbatch])
        self.begun += collectives_of(groups) - begun  # of one rank, so their order is the same
        if not isinstance(loss, self.runs.torch.Tensor):
            raise UsageError(
                f"loss_fn of stage {self.index} gives {_kind_of(loss)}; expected a tensor with one "
                f"number",
                "return the loss alone; eval(x).output is there for what else is wanted",
            )
        if loss.numel() != 1:
            raise UsageError(
                f"loss_fn of stage {self.index} gives a tensor of {tuple(loss.shape)}; expected "
                f"one number",
                'reduction="mean" or "sum" of PyTorch\'s losses gives one',
            )
        self.device.put_loss(where.loss, loss)
        return loss

    def parts_of(self, y: Any, count: int) -> list[Any]:
        """Give each of so many outputs."""
        tensor = self.runs.torch.Tensor
        if isinstance(y, tensor):
            return [y] * count
        is_many = type(y) in (tuple, list)
        if is_many and len(y) == count > 1 and all(isinstance(part, tensor) for part in y):
            return list(y)
        each = f", or {count}, one for each of its out-edges" if count > 1 else ""
        raise UsageError(
            f"stage {self.index} gives {_kind_of(y)}; expected one tensor{each}",
            "return a tensor; several of one shape can be stacked",
        )

    def _put(self, outputs: int, parts: list[Any]) -> None:
        for (at, _), part in zip(self.gives, parts):
            self._put_one(outputs + at, part)

    def _put_one(self, outputs: int, y: Any) -> None:
        out = self.view(outputs)
        if y.shape != out.shape or y.dtype != out.dtype:
            largest = out.shape
            if (
                y.dtype != out.dtype
                or len(y.shape) != len(largest)
                or any(size > most for size, most in zip(y.shape, largest))
            ):
                raise UsageError(
                    f"stage {self.index} gives {y.dtype} of {tuple(y.shape)}; expected {out.dtype} "
                    f"of at most {tuple(largest)}, which it gave for tensors without data",
                    "begin with what is largest, in the modes that later steps have (train(), "
                    "autocast); after close() the next step begins anew, but not between processes",
                )
            item = c.weft_tensor.from_address(outputs + ITEM)
            item.shape = shape_of(y, f"{self.name} gives", self.device.torch_device)
            out = self.view(outputs)
        out.copy_(y.detach())

    def _roots(self, where: Any, y: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Where the backward begins, and the gradients there.

        Copies: the engine may keep a part of one as the gradient of a weight.
        """
        if self.is_loss:
            return ((y,), (self.runs.ones_like(y),)) if y.requires_grad else ((), ())
        if len(self.gives) == 1:
            if not y.requires_grad or not self._gets(where, 0):
                return (), ()
            return (y,), (self.view(where.output_grads).clone(),)
        pairs = [
            (part, self.view(where.output_grads + at).clone())
            for k, ((at, needs), part) in enumerate(
                zip(self.gives, self.parts_of(y, len(self.gives)))
            )
            if needs and part.requires_grad and self._gets(where, k)
        ]
        return tuple(part for part, _ in pairs), tuple(grad for _, grad in pairs)

    def _gets(self, where: Any, k: int) -> bool:
        """Whether a gradient came back for an output, and not zeros in place of none."""
        missing = self.runs.missing
        if not missing:
            return True
        keys = [(self.index, taker, where.microbatch) for taker in self.takers[k]]
        return not all(key in missing for key in keys)

    def _pass_on(self, where: Any, gradients: Any) -> None:
        """Write the gradients of the inputs that need one."""
        for (at, giver), gradient in zip(self.owes, gradients):
            out = self.view(where.input_grads + at)
            if gradient is not None:
                out.copy_(gradient)
                continue
            if self.runs.stages[giver] is None:
                raise UsageError(
                    f"{self.name} has no gradient for what "
                    f"stage {giver} gives, as its output does not depend on that; stage {giver} is "
                    f"in another process and waits for one",
                    f"an edge without gradients: weft.Graph with {giver}>{self.index}F",
                )
            # The sum of several edges needs zeros; where all of them have none, so has its stage.
            out.zero_()
            self.runs.missing.add((giver, self.index, where.microbatch))

    def backward(self, where: Any) -> None:
        """Compute all gradients."""
        xs, y, seen = self.kept.pop(where.slot)
        roots, grads = self._roots(where, y)
        with self._looked_at(seen, self.left.pop(where.slot, ())):
            if roots:
                self.runs.backward(roots, grads, False, False, (), True, True)
        if self.owes:
            self._pass_on(where, [x.grad for x in xs if x.requires_grad])
        if seen:
            del xs, y, roots, grads
            self._check_inputs(seen)

    def backward_input(self, where: Any) -> None:
        """Compute the gradients of the inputs."""
        slot, self.is_split = where.slot, True
        xs, y, seen = self.kept[slot]
        roots, grads = self._roots(where, y)
        ends = tuple([x for x in xs if x.requires_grad])
        before = None if seen is None else [(w, w.grad, _version(w.grad)) for w in self.trained]
        if seen is not None and self.trained:
            self.visits[slot] = Visits(self.runs.torch, roots)
        with self._looked_at(seen, self.left.get(slot, ()), grads, self.visits.get(slot)):
            is_single = len(roots) == len(ends) == len(xs) == 1
            if not (self.visits_graph and is_single) or not self._visit_graph(
                where, ends[0], roots[0], grads, seen
            ):
                self.kept[slot] = (grads, roots, seen)
                if ends:
                    found = (None,) * len(ends)
                    if roots:
                        found = self.runs.backward(roots, grads, True, False, ends, True, False)
                    self._pass_on(where, [_sum(x, part) for x, part in zip(ends, found)])
        for w, old, version in before or ():
            if w.grad is not old or _version(old) != version:
                raise UsageError(
                    f"{self.name} adds to the gradient of a "
                    f"weight of {tuple(w.shape)} by itself, in a backward function: a split "
                    f"backward calls that twice",
                    "return the gradient from the function, or take a schedule with whole "
                    "backwards (1F1B)",
                )

    def _visit_graph(
        self, where: Any, x: Any, root: Any, grads: tuple[Any, ...], seen: Optional[list[_Seen]]
    ) -> bool:
        """Compute the gradient of the input, and keep those where the weights go on from.

        PyTorch's groups say which weights are reached from which node on the way to the input.
        Where there is one such node for all ways to a weight, W goes on from there. False where
        there is none, or several: W begins at the output then.
        """
        split, node_of = self.runs.split, self.runs.split._get_grad_fn_or_grad_acc
        if root.grad_fn is None:
            return False
        ways = split.construct_reverse_graph([root.grad_fn])
        ends = [node_of(weight) for weight in self.trained]
        groups = split.get_param_groups([node_of(x)], ends, ways)
        weights = [end for group in groups for end in group["params"]]
        if not groups or len(weights) != len(set(weights)):
            return False
        if any(len(group["intermediates"]) != 1 for group in groups):
            return False
        begins = []
        handles = []
        for group in groups:
            node = next(iter(group["intermediates"]))
            begin = _Begin(node, tuple([end.variable for end in group["params"]]))
            handles.append(node.register_prehook(begin.keep))
            begins.append(begin)
        try:
            found = self.runs.backward((root,), grads, True, False, (x,), True, False)
        finally:
            for handle in handles:
                handle.remove()
        self.kept[where.slot] = (begins, None, seen)
        self._pass_on(where, (_sum(x, found[0]),))
        return True

    def backward_weight(self, where: Any) -> None:
        """Compute the gradients of the weights."""
        grads, roots, seen = self.kept.pop(where.slot)
        gone_on = [grad for begin in grads for grad in begin.grads or ()] if roots is None else ()
        left, visits = self.left.pop(where.slot, ()), self.visits.pop(where.slot, None)
        with self._looked_at(seen, left, gone_on, visits):
            if roots is None:  # what I left of the graph
                for begin in grads:
                    begin.backward(self.runs)
            elif self.trained and roots:
                self.runs.backward(roots, grads, False, False, self.trained, True, True)
        if seen:
            begin = None
            del grads, roots, gone_on, visits
            self._check_inputs(seen)

    def _check_learns(self, loss: Any) -> None:
        """Refuse a loss that no gradient can come from, as PyTorch's backward() does."""
        if self.runs.loss_count > 1:  # another head may have one
            return
        raise UsageError(
            f"the loss of stage {self.index} does not need a gradient (it is {loss.dtype} and has "
            f"no grad_fn), so nothing would learn",
            "return the loss itself, not loss.detach() or a new tensor; weights that are to learn "
            "have requires_grad",
        )

    @contextlib.contextmanager
    def _looked_at(
        self,
        seen: Optional[list[_Seen]],
        left: Iterable[Left],
        grads: Sequence[Any] = (),
        visits: Optional[Visits] = None,
    ) -> Iterator[None]:
        """Look at a backward of a microbatch that is looked at: what it changes and reads.

        If it is split, functions and hooks may be called twice: `grads` are those where it begins,
        `visits` looks at what functions give.
        """
        if seen is None:
            yield
            return
        before, versions = self._state(), [_version(grad) for grad in grads]
        visiting = contextlib.nullcontext() if visits is None else visits.look()
        with reads_of(self.runs.torch, left, not self.device.enqueues) as names, visiting:
            yield
        self._check_state(*before)
        if visits is not None and visits.changed is not None:
            raise UsageError(
                f"{self.name}: the backward of {visits.changed} gives other gradients when it is "
                f"called again, and a split backward calls it twice",
                "compute them from what forward saved, and leave that as it is; or take a schedule "
                "with whole backwards (1F1B)",
            )
        if [_version(grad) for grad in grads] != versions:
            raise UsageError(
                f"{self.name}: a hook or a backward function "
                f"changes the gradient that it takes, and a split backward calls it twice",
                "return another tensor (grad * 2, not grad.mul_(2)), as PyTorch asks, or take a "
                "schedule with whole backwards (1F1B)",
            )
        if names:
            raise UsageError(
                f"{self.name}: a backward reads its "
                f"attribute {names[0]}, and forwards of later microbatches have changed that",
                "give it to checkpoint() as an argument, not as an attribute; a hook of gradients "
                "takes it from variables that are made in each forward",
            )

    def _state(self) -> tuple[list[Shared], list[tuple[int, Any]]]:
        """What a backward leaves as it is: weights, and buffers."""
        parts = [
            Shared(tensor, f"its {kind} {name}")
            for module in self.modules
            for kind, named in (
                ("weight", module.named_parameters()),
                ("buffer", module.named_buffers()),
            )
            for name, tensor in named
        ]
        return parts, scan(parts, not self.device.enqueues)

    def _check_state(self, parts: list[Shared], before: list[tuple[int, Any]]) -> None:
        """Refuse what a backward changes: microbatches that are under way would see it."""
        what = changed(self.runs.torch, parts, before)
        if what is not None:
            raise UsageError(
                f"{self.name}: a backward changes {what}; "
                f"forwards of later microbatches come before it, and not after it as in a loop",
                "step optimizers after step(), not in hooks of gradients; keep what changes its "
                "buffers (BatchNorm) out of checkpoint(), which runs it again in the backward",
            )

    def scale_grads(self, where: Any) -> None:
        """Divide the gradients by the number of microbatches."""
        gradients = [w.grad for w in self.weights if w.grad is not None]
        if gradients:
            self.runs.torch._foreach_div_(gradients, where.microbatch_count)


def _plainly(function: Callable[[Any], None], where: Any) -> None:
    function(where)


def _sum(x: Any, gradient: Any) -> Any:
    """The gradient of an input, with what a forward has put there by a backward() of its own."""
    if x.grad is None or gradient is None:
        return gradient if x.grad is None else x.grad
    return x.grad + gradient


def _version(gradient: Any) -> int:
    return 0 if gradient is None else gradient._version


class _Seen:
    """An input that a module took, to see later whether it keeps it, or a view of it."""

    def __init__(self, x: Any, is_copy: bool) -> None:
        """Look at a tensor, which is a copy of what the runtime has, or shares its memory."""
        self.is_copy = is_copy
        self.tensor = weakref.ref(x)
        self.storage = x.untyped_storage()

    def is_kept(self, uses_of: Callable[[int], int]) -> bool:
        """Whether anything but the runtime's view and this has it."""
        mine = 1 if self.is_copy else 2
        return self.tensor() is not None or uses_of(self.storage._cdata) > mine


class _Begin:
    """Where a W goes on: a node that I went through, its gradients, and the weights behind it."""

    def __init__(self, node: Any, weights: tuple[Any, ...]) -> None:
        """Wait for I."""
        self.node = node
        self.weights = weights
        self.grads: Any = None  # of the outputs of the node, after the hooks of these

    def keep(self, grads: Any) -> None:
        """Keep the gradients when I comes by."""
        self.grads = grads

    def backward(self, runs: Runs) -> None:
        """Add to the gradients of the weights."""
        if self.grads is None:  # no gradient comes by
            return
        edge = runs.torch.autograd.graph.GradientEdge
        found = [(k, grad) for k, grad in enumerate(self.grads) if grad is not None]
        roots = tuple([edge(self.node, k) for k, _ in found])
        grads = tuple([grad for _, grad in found])
        # Hooks of the outputs have been called: they would see what they made themselves.
        handle = self.node.register_prehook(lambda _: self.grads)
        try:
            runs.backward(roots, grads, False, False, self.weights, True, True)
        finally:
            handle.remove()


def _kind_of(y: Any) -> str:
    """Say what a module or a loss gives."""
    if type(y) not in (tuple, list):
        return type(y).__name__
    kinds = ("tensor" if hasattr(part, "grad_fn") else type(part).__name__ for part in y)
    return f"{type(y).__name__} of {len(y)} ({', '.join(kinds)})"


class Runs:
    """What the stages of a pipeline share."""

    def __init__(self, torch: Any, program: Program) -> None:
        """Take the functions of PyTorch that every action needs."""
        self.torch = torch
        self.draws = Draws(torch)
        self.stage_count, self.microbatch_count = program.stages, program.microbatches
        self.rank_of_stage = program.rank_of_stage
        self.stages: list[Optional[Stage]] = []
        self.loss_count = 1  # stages with a loss
        self.groups: list[Any] = []  # of PyTorch's processes, which ranks as threads must not use
        # Gradients of this step that are zeros in place of none: giver, taker, microbatch.
        self.missing: set[tuple[int, int, int]] = set()
        self.backward = torch.autograd.Variable._execution_engine.run_backward
        self.split = import_module("torch.distributed.pipelining._backward")
        self.ones_like = torch.ones_like
        self.uses_of = torch._C._storage_Use_Count
        self.output = False  # wanted of the last stage
        self.is_profiled = False
        self.error: Optional[BaseException] = None

    def number(self, kind: int, stage: int, microbatch: int) -> int:
        """Number the calls of a step, for their seeds."""
        return (kind * self.microbatch_count + microbatch) * self.stage_count + stage

    def whose(self, leaf: Any) -> str:
        """Say which stage has a weight."""
        for stage in self.stages:
            if stage is not None and any(leaf is w for w in stage.weights):
                return f"; stage {stage.index} has it"
        return ""
