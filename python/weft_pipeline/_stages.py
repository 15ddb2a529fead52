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
from ._edges import BACKWARD, FORWARD, MOVES, NEEDS_GRAD, Edges, kind_of, values_by_edge
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
from ._replicas import Replicas

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

    The module gets what comes over its in-edges, in ascending order of the stages that these come
    from. What it gives goes over all out-edges, or a part over each.

    The functions are called for every action, so they do little: the autograd engine is called
    without the checks of torch.autograd.backward(), whose arguments are right here.
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
        self.index = index
        self.rank = runs.rank_of_stage[index]
        self.module = module
        self.name = f"stage {index} ({type(module).__name__})"
        self.is_loss = False
        self.loss_fn = loss_fn
        # Edges, and whether a gradient comes back over each.
        self.in_edges: tuple[tuple[int, bool], ...] = ()
        self.out_edges: tuple[tuple[int, bool], ...] = ()
        self.has_backward = True
        self.chunks: Any = None  # arguments by microbatch, for a stage without in-edges
        self.options: Any = None  # keyword arguments by microbatch, if it takes any
        self.targets: Any = None  # by microbatch, for a loss
        self.losses: dict[int, Any] = {}  # by microbatch
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
        self.is_first = False  # step of its kind
        self.tried = False  # a split backward
        self.known: set[bool] = set()  # kinds of steps that there have been: training, or not
        self.strangers: list[Any] = []  # leaves in them that are no weights, weakly
        self.is_split = False  # its backward: only weights get their gradients then
        self.begun = 0  # collectives of PyTorch before this action, and those of the loss
        self.ops = c.weft_stage_ops()
        self.ops.name = b"torch"
        self.ops.enqueues = device.enqueues  # and replays nothing: the module decides on the host
        self.functions = []  # kept alive
        names = (*_COMPUTE, "scale_grads")
        for name in (*names, "reduce_grad") if runs.replicas is not None else names:
            function = _Function(self._guarded(getattr(self, name)))
            self.functions.append(function)
            setattr(self.ops, name, ctypes.cast(function, field_type(c.weft_stage_ops, name)))
        self.struct = c.weft_stage()
        self.struct.ops = ctypes.pointer(self.ops)

    def reset(
        self, takes: list[tuple[int, bool]], gives: list[tuple[int, bool]], is_loss: bool
    ) -> None:
        """Begin anew, with ranks that have just been opened, and these in-edges and out-edges."""
        self.in_edges, self.out_edges, self.is_loss = tuple(takes), tuple(gives), is_loss
        self.has_backward = is_loss or any(comes for _, comes in gives)
        self.forget()
        self.calls.clear()
        self.known.clear()
        self.strangers = []

    def forget(self) -> None:
        """Free what is kept of microbatches."""
        for kept in (self.kept, self.left, self.visits, self.losses, self.outputs):
            kept.clear()

    # ---- Steps ----

    def look(self, training: bool) -> None:
        """Begin a step: find the weights. All microbatches of the first step of its kind are looked
        at, and one of each later step.
        """
        self.weights = self._weights()
        self.trained = tuple([w for w in self.weights if w.requires_grad])
        self.is_first = training not in self.known
        self.known.add(training)
        self.checks = self.runs.microbatch_count if self.is_first else 1
        self.strangers = [leaf for leaf in self.strangers if leaf() is not None]

    def _weights(self) -> list[Any]:
        found = {id(w): w for module in self.modules for w in module.parameters()}
        return list(found.values())

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
        k = where.microbatch
        ends: list[list[Any]] = []  # by in-edge: inputs that need a gradient
        args = self._inputs(k, training, ends) if self.chunks is None else self.chunks[k]
        options = self.options[k] if self.options is not None else {}
        is_seen = self.checks > 0
        self.checks -= is_seen
        if training or not where.training:
            y = self.module(*args, **options)
        else:  # frozen
            with self.runs.torch.no_grad():
                y = self.module(*args, **options)
        values: Any
        if self.is_loss:
            values = y = self._loss(k, y)
            outputs = [y]
            if training and self.loss_fn is not None and not y.requires_grad:
                self._check_learns(y)
        else:
            values = values_by_edge(self.runs.torch, self.index, y, len(self.out_edges))
            is_tensor = self.runs.is_tensor
            outputs = [value for part in values for value in part if is_tensor(value)]
            if is_seen:
                for value in outputs:
                    check_output(self.runs.torch, self.index, self.module, value)
            values = self._give(k, values, training)
        if training:
            if is_seen:
                self._check_leaves([x for end in ends for x in end], outputs)
                self.left[where.slot] = left_by(self.runs.torch, self.modules)
            self.kept[where.slot] = (ends, values, is_seen)

    def _inputs(self, k: int, training: bool, ends: list[list[Any]]) -> list[Any]:
        """Take what has come over the in-edges: each tensor is this stage's own."""
        args: list[Any] = []
        for edge, comes in self.in_edges:
            mine = []
            for x, flags in self.runs.edges.take(FORWARD, edge, k):
                if flags & MOVES:
                    x = self.device.take(x)
                if flags & NEEDS_GRAD and training and comes:
                    x._weft_taker = self.index  # for as long as anything keeps it
                    mine.append(x.requires_grad_())
                args.append(x)
            ends.append(mine)
        return args

    def _give(self, k: int, values: list[tuple[Any, ...]], training: bool) -> list[list[Any]]:
        """Put copies of tensors on the out-edges; give where their gradients go, by edge.

        The module may keep its own, change them in place and detach them before these come back.
        """
        here = self.device.torch_device
        found: dict[int, Any] = {}  # by tensor: the node of a first copy
        ends: list[list[Any]] = []
        for (edge, comes), part in zip(self.out_edges, values):
            given, mine = [], []
            for x in part:
                flags = 0
                if self.runs.is_tensor(x):
                    moves = x.device == here
                    is_needed = training and comes and x.requires_grad
                    end = found.get(id(x)) if is_needed else None
                    copy = x.clone() if is_needed and end is None else x.detach().clone()
                    if is_needed:
                        if end is None:
                            end = found[id(x)] = self.runs.end_of(copy.grad_fn, 0)
                        mine.append((end, moves))
                    x = copy.detach()
                    flags = NEEDS_GRAD * is_needed + MOVES * moves
                given.append((x, flags))
            self.runs.edges.put(FORWARD, edge, k, given)
            ends.append(mine)
        return ends

    def _check_leaves(self, inputs: list[Any], outputs: list[Any]) -> None:
        """Refuse weights that are reached and not known: they would not be scaled, nor get a W.

        A tensor that a forward makes for itself is another one the next time, and goes with what
        follows from it (check_strangers()).
        """
        known = {id(tensor) for tensor in (*inputs, *self.weights)}
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
        now = self._weights()
        if len(now) != len(self.weights) or any(a is not b for a, b in zip(now, self.weights)):
            raise UsageError(
                f"{self.name}: a forward makes or replaces weights, and this step has gradients of "
                f"those from before it",
                "make weights before the first step, and change them between steps, or in place",
            )
        if not self.is_split:
            return
        known = {id(w) for w in self.trained}
        for w in self.weights:
            if w.requires_grad and id(w) not in known:
                raise UsageError(
                    f"{self.name}: a forward unfreezes a weight of {tuple(w.shape)}, and W of a "
                    f"split backward gives it no gradient in this step",
                    "unfreeze weights between steps, or take a schedule with whole backwards "
                    "(1F1B)",
                )
        if all(leaf() is None for leaf in self.strangers):
            return
        gc.collect()
        for leaf in self.strangers:
            if leaf() is not None:
                self._refuse(leaf())

    def _loss(self, k: int, y: Any) -> Any:
        if self.runs.output:
            # Copies: the module may change what it gives when the next microbatch comes.
            self.outputs[k] = self.runs.copy(y)
        if self.loss_fn is None or self.targets is None:
            return y
        groups = self.runs.groups if self.runs.loss_count == 1 else ()
        begun = collectives_of(groups)
        loss = self.loss_fn(y, self.targets[k])
        self.begun += collectives_of(groups) - begun  # of one rank, so their order is the same
        if not isinstance(loss, self.runs.torch.Tensor):
            raise UsageError(
                f"loss_fn of stage {self.index} gives {kind_of(loss)}; expected a tensor with one "
                f"number",
                "return the loss alone; eval(x).output is there for what else is wanted",
            )
        if loss.numel() != 1 or loss.is_complex():
            raise UsageError(
                f"loss_fn of stage {self.index} gives a tensor of {tuple(loss.shape)} and "
                f"{loss.dtype}; expected one real number",
                'reduction="mean" or "sum" of PyTorch\'s losses gives one',
            )
        loss = loss.clone()  # the function may keep its own, and change it in place
        self.losses[k] = loss.detach()
        return loss

    def _roots(self, k: int, values: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Where the backward begins, and the gradients there.

        Gradients that come back for one tensor are summed in the order of the out-edges.
        """
        if self.is_loss:
            y = values
            if not y.requires_grad:
                return (), ()
            return (self.runs.end_of(y.grad_fn, 0),), (self.runs.ones_like(y),)
        found: dict[Any, Any] = {}
        for (edge, comes), part in zip(self.out_edges, values):
            if not comes:
                continue
            for (y, moves), gradient in zip(part, self.runs.edges.take(BACKWARD, edge, k)):
                if gradient is not None:
                    gradient = self.device.take(gradient) if moves else gradient
                    found[y] = found[y] + gradient if y in found else gradient
        return tuple(found), tuple(found.values())

    def _pass_on(self, k: int, gradients: Iterable[Any], ends: list[list[Any]]) -> None:
        """Give the gradients of inputs to the stages that these come from."""
        left = iter(gradients)
        for (edge, comes), mine in zip(self.in_edges, ends):
            if comes:
                self.runs.edges.put(BACKWARD, edge, k, [next(left) for _ in mine])

    def backward(self, where: Any) -> None:
        """Compute all gradients."""
        ends, values, is_seen = self.kept.pop(where.slot)
        roots, grads = self._roots(where.microbatch, values)
        with self._looked_at(is_seen, self.left.pop(where.slot, ())):
            if roots:
                self.runs.backward(roots, grads, False, False, (), True, True)
        self._pass_on(where.microbatch, [x.grad for end in ends for x in end], ends)

    def backward_input(self, where: Any) -> None:
        """Compute the gradients of the inputs."""
        slot, self.is_split = where.slot, True
        ends, values, is_seen = self.kept[slot]
        roots, grads = self._roots(where.microbatch, values)
        inputs = tuple([x for end in ends for x in end])
        before = [(w, w.grad, _version(w.grad)) for w in self.trained] if is_seen else ()
        if is_seen and self.trained:
            nodes = [root.node for root in roots]
            self.visits[slot] = Visits(self.runs.torch, nodes, self.is_first)
        with self._looked_at(is_seen, self.left.get(slot, ()), grads, self.visits.get(slot)):
            found: Any = None
            # The first I leaves W to go through all again, so that hooks with a state are noticed.
            if self.visits_graph and self.tried and len(roots) == len(inputs) == 1:
                found = self._visit_graph(slot, inputs[0], roots[0], grads, is_seen)
            if found is None:
                self.kept[slot] = (grads, roots, is_seen)
                found = (None,) * len(inputs)
                if inputs and roots:
                    found = self.runs.backward(roots, grads, True, False, inputs, True, False)
            found = map(_sum, inputs, found)
            self._pass_on(where.microbatch, [self._own(x, slot) for x in found], ends)
        self.tried = True
        for w, old, version in before:
            if w.grad is not old or _version(old) != version:
                raise UsageError(
                    f"{self.name} adds to the gradient of a "
                    f"weight of {tuple(w.shape)} by itself, in a backward function: a split "
                    f"backward calls that twice",
                    "return the gradient from the function, or take a schedule with whole "
                    "backwards (1F1B)",
                )

    def _own(self, gradient: Any, slot: int) -> Any:
        """Give a gradient that W does not begin with: hooks of other stages may change it."""
        if gradient is None or gradient.layout is not self.runs.torch.strided:
            return gradient
        grads, roots, _ = self.kept[slot]
        if roots is None:
            grads = [grad for begin in grads for grad in begin.grads or ()]
        memory = gradient.untyped_storage()._cdata
        for kept in grads:
            is_strided = kept is not None and kept.layout is self.runs.torch.strided
            if is_strided and kept.untyped_storage()._cdata == memory:
                return gradient.clone()
        return gradient

    def _visit_graph(
        self, slot: int, x: Any, root: Any, grads: tuple[Any, ...], is_seen: bool
    ) -> Optional[tuple[Any]]:
        """Compute the gradient of the input, and keep those where the weights go on from.

        PyTorch's groups say which weights are reached from which node on the way to the input.
        Where there is one such node for all ways to a weight, W goes on from there. None where
        there is none, or several: W begins at the output then.
        """
        split, node_of = self.runs.split, self.runs.split._get_grad_fn_or_grad_acc
        ways = split.construct_reverse_graph([root.node])
        ends = [node_of(weight) for weight in self.trained]
        groups = split.get_param_groups([node_of(x)], ends, ways)
        weights = [end for group in groups for end in group["params"]]
        if not groups or len(weights) != len(set(weights)):
            return None
        if any(len(group["intermediates"]) != 1 for group in groups):
            return None
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
        self.kept[slot] = (begins, None, is_seen)
        return (found[0],)

    def backward_weight(self, where: Any) -> None:
        """Compute the gradients of the weights."""
        grads, roots, is_seen = self.kept.pop(where.slot)
        gone_on = [grad for begin in grads for grad in begin.grads or ()] if roots is None else ()
        left, visits = self.left.pop(where.slot, ()), self.visits.pop(where.slot, None)
        with self._looked_at(is_seen, left, gone_on, visits):
            if roots is None:  # what I left of the graph
                for begin in grads:
                    begin.backward(self.runs)
            elif self.trained and roots:
                self.runs.backward(roots, grads, False, False, self.trained, True, True)

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
        is_seen: bool,
        left: Iterable[Left],
        grads: Sequence[Any] = (),
        visits: Optional[Visits] = None,
    ) -> Iterator[None]:
        """Look at a backward of a microbatch that is looked at: what it changes and reads.

        If it is split, functions and hooks may be called twice: `grads` are those where it begins,
        `visits` looks at what functions give.
        """
        if not is_seen:
            yield
            return
        before, versions = self._state(), [_version(grad) for grad in grads]
        visiting = contextlib.nullcontext() if visits is None else visits.look()
        with reads_of(self.runs.torch, left, not self.device.enqueues) as names, visiting:
            yield
        self._check_state(*before)
        if [_version(grad) for grad in grads] != versions:
            raise UsageError(
                f"{self.name}: a hook or a backward function "
                f"changes the gradient that it takes, and a split backward calls it twice",
                "return another tensor (grad * 2, not grad.mul_(2)), as PyTorch asks, or take a "
                "schedule with whole backwards (1F1B)",
            )
        if visits is not None and visits.changed is not None:
            raise UsageError(
                f"{self.name}: the backward of {visits.changed} gives other gradients when it is "
                f"called again, and a split backward calls it twice",
                "compute them from what forward saved, and leave that as it is; or take a schedule "
                "with whole backwards (1F1B)",
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

    def reduce_grad(self, _where: Any) -> None:
        """Sum the gradients over the replicas, or take their mean where gradients are scaled."""
        assert self.runs.replicas is not None
        self.runs.replicas.reduce(self, self.runs.scales)


def _plainly(function: Callable[[Any], None], where: Any) -> None:
    function(where)


def _sum(x: Any, gradient: Any) -> Any:
    """The gradient of an input, with what a forward has put there by a backward() of its own."""
    if x.grad is None or gradient is None:
        return gradient if x.grad is None else x.grad
    return x.grad + gradient


def _version(gradient: Any) -> int:
    return 0 if gradient is None else gradient._version


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
        found = [(k, grad) for k, grad in enumerate(self.grads) if grad is not None]
        roots = tuple([runs.end_of(self.node, k) for k, _ in found])
        grads = tuple([grad for _, grad in found])
        # Hooks of the outputs have been called: they would see what they made themselves.
        handle = self.node.register_prehook(lambda _: self.grads)
        try:
            runs.backward(roots, grads, False, False, self.weights, True, True)
        finally:
            handle.remove()


class Runs:
    """What the stages of a pipeline share."""

    def __init__(
        self, torch: Any, program: Program, scales: bool, replicas: Optional[Replicas]
    ) -> None:
        """Take the functions of PyTorch that every action needs."""
        self.torch = torch
        self.scales, self.replicas = scales, replicas
        self.draws = Draws(torch)
        self.stage_count, self.microbatch_count = program.stages, program.microbatches
        self.rank_of_stage = program.rank_of_stage
        self.stages: list[Optional[Stage]] = []
        self.loss_count = 1  # stages with a loss
        self.groups: list[Any] = []  # of PyTorch's processes, which ranks as threads must not use
        self.edges = Edges(program.graph is None)
        self.backward = torch.autograd.Variable._execution_engine.run_backward
        self.split = import_module("torch.distributed.pipelining._backward")
        self.ones_like = torch.ones_like
        self.end_of = torch.autograd.graph.GradientEdge
        self.map = import_module("torch.utils._pytree").tree_map
        self.output = False  # wanted of the last stage
        self.is_profiled = False
        self.error: Optional[BaseException] = None

    def is_tensor(self, value: Any) -> bool:
        """Whether a value is a tensor."""
        return isinstance(value, self.torch.Tensor)

    def copy(self, y: Any) -> Any:
        """Copy the tensors in what a module gives."""
        return self.map(lambda x: x.detach().clone() if self.is_tensor(x) else x, y)

    def number(self, kind: int, stage: int, microbatch: int) -> int:
        """Number the calls of a step, for their seeds."""
        return (kind * self.microbatch_count + microbatch) * self.stage_count + stage

    def whose(self, leaf: Any) -> str:
        """Say which stage has a weight."""
        for stage in self.stages:
            if stage is not None and any(leaf is w for w in stage.weights):
                return f"; stage {stage.index} has it"
        return ""
