"""A module of PyTorch as a stage of Weft's runtime: autograd behind its functions."""

from __future__ import annotations

import ctypes
from importlib import import_module
from typing import Any, Callable, Optional

from ._errors import UsageError
from ._library import c
from ._places import Place
from ._tensors import ITEM, shape_of

_WALK_FROM = 1 << 16  # weights of a stage


def field_type(struct: Any, field: str) -> Any:
    """Give the type of a struct's field."""
    return next(entry[1] for entry in struct._fields_ if entry[0] == field)


class _Call(ctypes.Structure):
    """A struct weft_stage_call whose pointers are numbers: fields are read faster so."""


def _number_for(kind: Any) -> Any:
    return kind if kind.__module__ == "ctypes" else ctypes.c_size_t


_Call._fields_ = [(entry[0], _number_for(entry[1])) for entry in c.weft_stage_call._fields_]
_Function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class Stage:
    """A module and its functions for the runtime.

    These are called for every action, so they do little: no dict or list is built, tensors in the
    runtime's buffers are made once, and the autograd engine is called without the checks of
    torch.autograd.backward(), whose arguments are right here.
    """

    def __init__(
        self,
        runs: Runs,
        place: Place,
        index: int,
        module: Any,
        loss_fn: Optional[Callable[..., Any]],
        is_last: bool,
    ) -> None:
        """Make a stage on a place."""
        self.runs = runs
        self.place = place
        self.view = place.view
        self.index = index
        self.module = module
        self.is_last = is_last
        self.loss_fn = loss_fn if is_last else None
        self.takes_grad = False  # whether its input needs a gradient
        self.chunks: Any = None  # microbatches of the batch, for the first stage
        self.targets: Any = None  # likewise, for the last
        self.outputs: dict[int, Any] = {}  # of the last stage, by microbatch, where wanted
        self.kept: dict[int, Any] = {}
        self.calls: dict[int, Any] = {}
        # Autograd's W after I goes through the stage once more. PyTorch's pipelining avoids that
        # by a walk through the graph, which is worth it where the stage computes for longer.
        self.walks = sum(weight.numel() for weight in module.parameters()) >= _WALK_FROM
        self.step = 0  # of the last W
        self.weights: tuple[Any, ...] = ()  # in that step
        self.ops = c.weft_stage_ops()
        self.ops.name = b"torch"
        self.ops.enqueues = place.enqueues  # and replays nothing: the module decides on the host
        self.functions = []  # kept alive
        for name in ("forward", "backward", "backward_input", "backward_weight", "scale_grads"):
            function = _Function(self._guarded(getattr(self, name)))
            self.functions.append(function)
            setattr(self.ops, name, ctypes.cast(function, field_type(c.weft_stage_ops, name)))
        self.struct = c.weft_stage()
        self.struct.ops = ctypes.pointer(self.ops)

    def reset(self, takes_grad: bool) -> None:
        """Begin anew, with ranks that have just been opened."""
        self.takes_grad = takes_grad
        self.kept.clear()
        self.outputs.clear()
        self.calls.clear()
        self.step = 0

    def _guarded(self, function: Callable[[Any], None]) -> Callable[[int, int, int], int]:
        """Exceptions become an error of the runtime, and come out of step()."""
        calls, enter = self.calls, self.place.enter

        def run(_stage: int, address: int, error: int) -> int:
            try:
                where = calls.get(address)
                if where is None:
                    where = calls[address] = _Call.from_address(address)
                if enter is not None:
                    enter(where.stream)
                function(where)
            except BaseException as caught:
                if self.runs.error is None:
                    self.runs.error = caught
                text = f"stage {self.index}: {type(caught).__name__}: {caught}"
                out = c.weft_error.from_address(error)
                out.status = c.WEFT_ERR_STAGE
                out.message = text.encode("utf-8", "replace")[:500]
                out.hint = b""
                return int(c.WEFT_ERR_STAGE)
            return 0

        return run

    def forward(self, where: Any) -> None:
        """Compute the output, and of the last stage the loss."""
        training = where.training
        if self.chunks is not None:
            x = self.chunks[where.microbatch]
        else:
            x = self.view(where.inputs).detach()
            if training and self.takes_grad:
                x.requires_grad_()
        y = self.module(x)
        if not self.is_last:
            self._put(where.outputs, y)
        else:
            if self.runs.output:
                self.outputs[where.microbatch] = y.detach()
            if self.loss_fn is not None and self.targets is not None:
                y = self.loss_fn(y, self.targets[where.microbatch])
                if y.numel() != 1:
                    raise UsageError(
                        f"loss_fn gives a tensor of {tuple(y.shape)}; expected one number",
                        'reduction="mean" or "sum" of PyTorch\'s losses gives one',
                    )
                self.place.put_loss(where.loss, y)
        if training:
            self.kept[where.slot] = (x, y)

    def _put(self, outputs: int, y: Any) -> None:
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
                    f"of at most {tuple(largest)}, which it gave for tensors without data"
                )
            item = c.weft_tensor.from_address(outputs + ITEM)
            item.shape = shape_of(y, f"the output of stage {self.index}", self.place.device)
            out = self.view(outputs)
        out.copy_(y.detach())

    def _gradient(self, where: Any, y: Any) -> Any:
        """The gradient of what the stage gives: its output, or the loss.

        A copy: the engine may keep a part of it as the gradient of a weight.
        """
        if self.loss_fn is not None:
            return self.runs.ones_like(y)
        return self.view(where.output_grads).clone()

    def _pass_on(self, where: Any, gradient: Any) -> None:
        out = self.view(where.input_grads)
        if gradient is None:  # the output does not depend on the input
            out.zero_()
        else:
            out.copy_(gradient)

    def backward(self, where: Any) -> None:
        """Compute all gradients."""
        x, y = self.kept.pop(where.slot)
        if y.requires_grad:
            self.runs.backward((y,), (self._gradient(where, y),), False, False, (), True, True)
        if x.requires_grad:
            self._pass_on(where, x.grad)

    def _weights_in(self, where: Any) -> tuple[Any, ...]:
        if where.step != self.step:
            self.step = where.step
            self.weights = tuple(w for w in self.module.parameters() if w.requires_grad)
        return self.weights

    def backward_input(self, where: Any) -> None:
        """Compute the gradient of the input."""
        slot = where.slot
        x, y = self.kept[slot]
        gradient = self._gradient(where, y)
        if self.walks and x.requires_grad and y.requires_grad and not y._is_view():
            weights = iter(self._weights_in(where))
            found, groups = self.runs.split.stage_backward_input([y], [gradient], [x], weights)
            self.kept[slot] = (groups, None)
            self._pass_on(where, found[0])
            return
        self.kept[slot] = (gradient, y)
        if x.requires_grad:
            found = None
            if y.requires_grad:
                (found,) = self.runs.backward((y,), (gradient,), True, False, (x,), True, False)
            self._pass_on(where, found)

    def backward_weight(self, where: Any) -> None:
        """Compute the gradients of the weights."""
        gradient, y = self.kept.pop(where.slot)
        weights = self._weights_in(where)
        if y is None:  # what I left of the graph
            self.runs.split.stage_backward_weight(iter(weights), gradient)
        elif weights and y.requires_grad:
            self.runs.backward((y,), (gradient,), False, False, weights, True, True)

    def scale_grads(self, where: Any) -> None:
        """Divide the gradients by the number of microbatches."""
        gradients = [w.grad for w in self.module.parameters() if w.grad is not None]
        if gradients:
            self.runs.torch._foreach_div_(gradients, where.microbatch_count)


class Runs:
    """What the stages of a pipeline share."""

    def __init__(self, torch: Any) -> None:
        """Take the functions of PyTorch that every action needs."""
        self.torch = torch
        self.backward = torch.autograd.Variable._execution_engine.run_backward
        self.split = import_module("torch.distributed.pipelining._backward")
        self.ones_like = torch.ones_like
        self.output = False  # wanted of the last stage
        self.error: Optional[BaseException] = None
