"""What forwards leave in attributes and buffers of modules, and whether a backward reads it.

In a loop the backward of a microbatch comes right after its forward. In a pipeline forwards of
later microbatches come between, and leave their own in the same attributes: a mask that a function
in checkpoint() reads again, an input that a hook of gradients needs. Such a read is noticed.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Optional

from ._tensors import are_equal

_class_lock = threading.Lock()  # of classes of modules


class Left(NamedTuple):
    """What a forward has left in a module: values, and how often each has changed."""

    path: str
    part: Any
    values: dict[str, tuple[Any, int]]


@functools.cache
def _own(torch: Any) -> frozenset[str]:
    return frozenset(vars(torch.nn.Module()))  # of every module: hooks, tables, training


def _values(part: Any) -> dict[str, Any]:
    return {**vars(part), **dict(part.named_buffers(recurse=False))}


def _version(torch: Any, value: Any) -> int:
    is_counted = isinstance(value, torch.Tensor) and not value.is_inference()
    return value._version if is_counted else 0


def left_by(torch: Any, modules: Iterable[Any]) -> list[Left]:
    """Give what a forward has left in modules."""
    own = _own(torch)
    return [
        Left(
            path,
            part,
            {
                name: (value, _version(torch, value))
                for name, value in _values(part).items()
                if name not in own
            },
        )
        for module in modules
        for path, part in module.named_modules()
    ]


@contextlib.contextmanager
def reads_of(torch: Any, left: Iterable[Left], is_one_thread: bool) -> Iterator[list[str]]:
    """Give a list that gets the names of attributes that are read and are not what was left.

    Only modules with others are looked at, each by a class of its own. Where the backward
    `is_one_thread`, others do not count: a module may be in stages of several ranks.
    """
    found: list[str] = []
    thread = threading.get_ident() if is_one_thread else None
    looked: list[tuple[Any, Any, dict[str, tuple[Any, int]]]] = []
    try:
        for path, part, values in left:
            now = _values(part)
            watched = {
                name: (value, version)
                for name, (value, version) in values.items()
                if now.get(name) is not value or _version(torch, value) != version
            }
            if watched:
                with _class_lock, contextlib.suppress(TypeError):  # of a kind that takes no other
                    made = _looking(torch, type(part), path, watched, found, thread)
                    part.__class__ = made
                    looked.append((part, made, watched))
        yield found
    finally:
        for part, made, watched in looked:
            with _class_lock:
                made._weft_is_over = True
                kind: Any = type(part)
                while vars(kind).get("_weft_is_over"):  # that of another rank may be on top
                    kind = kind.__base__
                part.__class__ = kind
            watched.clear()  # a class is freed late, and what it holds with it


def _looking(
    torch: Any,
    kind: Any,
    path: str,
    watched: dict[str, tuple[Any, int]],
    found: list[str],
    thread: Optional[int],
) -> Any:
    """A class as another, whose instance notes reads of these attributes until it sets them."""

    def is_mine(name: str) -> bool:
        return name in watched and thread in (None, threading.get_ident())

    def get(self: Any, name: str) -> Any:
        if is_mine(name):
            value, version = watched.pop(name)
            if not _is_same(torch, value, version, _values(self).get(name)):
                found.append(f"{path}.{name}" if path else name)
        return kind.__getattribute__(self, name)

    def put(self: Any, name: str, value: Any) -> None:
        if is_mine(name):
            watched.pop(name)
        kind.__setattr__(self, name, value)

    names = {
        "__getattribute__": get,
        "__setattr__": put,
        "__module__": kind.__module__,
        "_weft_is_over": False,
    }
    made = type(kind.__name__, (kind,), names)
    made.__qualname__ = kind.__qualname__
    return made


def _is_same(torch: Any, old: Any, version: int, now: Any) -> bool:
    """Whether a value is what another was when it had this version."""
    if isinstance(old, torch.Tensor):
        return (
            isinstance(now, torch.Tensor)
            and _version(torch, old) == version  # otherwise it is not what it was
            and old.dtype == now.dtype
            and old.device == now.device
            and are_equal(torch, old, now)
        )
    if now is old or type(now) is not type(old):
        return now is old
    if type(old) in (tuple, list):
        pairs = zip(old, now)
        return len(old) == len(now) and all(
            _is_same(torch, a, _version(torch, a), b) for a, b in pairs
        )
    return type(old) in (bool, int, float, str, torch.Size, torch.device) and now == old
