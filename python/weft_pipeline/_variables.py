"""Variables outside modules, which the run that finds shapes leaves as they were.

That run calls copies of modules, but functions, classes and files are there once: what they
remember (a count, a list of what was seen) would have a forward too many in it, and tensors without
data. So variables that the code of modules reaches are put back after the run: globals, attributes
of classes, functions and objects, what functions have around them, and containers among these.
Reached is the code of classes, hooks and attributes of a module, and what it names, and so on; in
an installed package only from within, as others may have threads that go on. Generators of random
numbers that are reached have their states again, and those that Python and NumPy have for all.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import os
import random
import sys
import types
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any, Callable

_CONTAINERS = (
    list,
    dict,
    set,
    collections.deque,
    collections.OrderedDict,
    collections.defaultdict,
    collections.Counter,
)
_NOTHING = object()


def _package(name: Any) -> str:
    return str(name).partition(".")[0]


@functools.cache
def _is_installed(package: str) -> bool:
    file = getattr(sys.modules.get(package), "__file__", None) or ""
    return (
        package in sys.builtin_module_names
        or f"-packages{os.sep}" in file
        or file.startswith(os.path.dirname(os.__file__) + os.sep)
    )


def _is_followed(package: str, caller: str) -> bool:
    return package not in ("builtins", "torch", "weft_pipeline") and (
        package == caller or not _is_installed(package)
    )


def _names_of(code: types.CodeType) -> set[str]:
    """What a function and those in it name: globals and attributes."""
    inner = [_names_of(part) for part in code.co_consts if isinstance(part, types.CodeType)]
    return set(code.co_names).union(*inner)


def _marks(container: Any) -> list[int]:
    if isinstance(container, set):
        return sorted(map(id, container))
    values = container.values() if isinstance(container, dict) else ()
    return [*map(id, container), *map(id, values)]


class _Variables:
    """Variables and their values."""

    def __init__(self) -> None:
        """Know none."""
        self.names: set[str] = set()  # that the code has: only these variables are put back
        self.seen: dict[tuple[int, str], Any] = {}
        self.tables: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
        self.classes: list[tuple[Any, dict[str, Any]]] = []
        self.cells: list[tuple[Any, Any]] = []
        self.containers: list[tuple[Any, Any]] = []
        self.generators: list[tuple[Callable[[Any], Any], Any]] = []  # how to set their states
        self._numpy = sys.modules.get("numpy.random")

    def save(self, value: Any, package: str) -> None:
        """Save the variables of what a package uses, and of all that this reaches."""
        left = [(value, package)]
        while left:
            value, package = left.pop()
            if (id(value), package) not in self.seen:
                self.seen[id(value), package] = value
                found, home = self._reached(value, package)
                left += [(other, home) for other in found]

    def _reached(self, value: Any, package: str) -> tuple[Iterable[Any], str]:
        """Save the variables of a value; give what it reaches, and the package that does."""
        kind = type(value)
        if kind in _CONTAINERS:
            self.containers.append((value, copy.copy(value)))
            return (), package
        if kind is types.CellType:
            content = _NOTHING
            with contextlib.suppress(ValueError):  # it is empty
                content = value.cell_contents
            self.cells.append((value, content))
            return (content,), package
        if kind is types.MethodType:
            return (value.__func__, value.__self__), package
        if kind in (staticmethod, classmethod):
            return (value.__func__,), package
        if kind is property:
            return (value.fget, value.fset), package
        if kind is functools.partial:
            return (value.func, *value.args, *value.keywords.values()), package
        self._save_generator(value)
        is_code = kind is types.FunctionType or issubclass(kind, type)
        home = _package((value if is_code else kind).__module__)
        if not _is_followed(home, package):
            return (), package
        if kind is types.FunctionType:
            return self._of_function(value, home), home
        if is_code:
            self.classes.append((value, dict(vars(value))))
            return (*vars(value).values(), *value.__mro__[1:]), home
        table = getattr(value, "__dict__", {})
        self._save_table(table)
        return (kind, *(item for item in table.values() if type(item) in _CONTAINERS)), home

    def save_common_generators(self) -> None:
        """Save the states of the generators that Python and NumPy have for all."""
        self.generators.append((random.setstate, random.getstate()))
        if self._numpy is not None:
            self.generators.append((self._numpy.set_state, self._numpy.get_state()))

    def _save_generator(self, value: Any) -> None:
        if isinstance(value, random.Random):
            self.generators.append((value.setstate, value.getstate()))
        elif self._numpy is not None and isinstance(value, self._numpy.RandomState):
            self.generators.append((value.set_state, value.get_state()))
        elif self._numpy is not None and isinstance(value, self._numpy.Generator):
            bits = value.bit_generator
            self.generators.append((functools.partial(setattr, bits, "state"), bits.state))

    def _of_function(self, function: Any, home: str) -> list[Any]:
        names = _names_of(function.__code__)
        self.names |= names
        self._save_table(vars(function))
        found = [*(function.__closure__ or ()), *(function.__defaults__ or ())]
        found += (function.__kwdefaults__ or {}).values()
        tables = [function.__globals__]
        if not _is_followed(_package(tables[0].get("__name__")), home):  # of a decorator
            return found
        for table in tables:
            self._save_table(table)
            for name in names.intersection(table):
                value = table[name]
                if type(value) is not types.ModuleType:
                    found.append(value)
                elif _is_followed(_package(value.__name__), home) and all(
                    vars(value) is not other for other in tables
                ):
                    tables.append(vars(value))
        return found

    def _save_table(self, table: dict[str, Any]) -> None:
        self.tables.setdefault(id(table), (table, dict(table)))

    def put_back(self) -> None:
        """Give all of them the values that they had."""
        for set_state, state in self.generators:
            set_state(state)
        for table, before in self.tables.values():
            for name in self._changed(table, before):
                if name in before:
                    table[name] = before[name]
                else:
                    del table[name]
        for kind, before in self.classes:
            for name in self._changed(dict(vars(kind)), before):
                if name in before:
                    type.__setattr__(kind, name, before[name])
                else:
                    type.__delattr__(kind, name)
        for cell, content in self.cells:
            if content is not _NOTHING:
                cell.cell_contents = content
            else:
                with contextlib.suppress(ValueError):
                    del cell.cell_contents
        for container, before in self.containers:
            if _marks(container) != _marks(before):
                container.clear()
                fill = container.extend if hasattr(container, "extend") else container.update
                fill(before)

    def _changed(self, table: dict[str, Any], before: dict[str, Any]) -> list[str]:
        return [
            name
            for name in self.names
            if table.get(name, _NOTHING) is not before.get(name, _NOTHING)
        ]


@contextlib.contextmanager
def put_back(modules: Iterable[Any]) -> Iterator[None]:
    """Put variables back at the end that forwards of copies of modules may change."""
    variables = _Variables()
    variables.save_common_generators()
    of_all = import_module("torch.nn.modules.module")
    hooks = [*of_all._global_forward_hooks.values(), *of_all._global_forward_pre_hooks.values()]
    for part in (part for module in modules for part in module.modules()):
        found = [*type(part).__mro__, *hooks, *part._forward_hooks.values()]
        found += part._forward_pre_hooks.values()
        found += [value for value in vars(part).values() if type(value) not in _CONTAINERS]
        for value in found:
            is_code = isinstance(value, (type, types.FunctionType))
            variables.save(value, _package((value if is_code else type(part)).__module__))
    try:
        yield
    finally:
        variables.put_back()
