"""Costs: how long each action takes, what it keeps in memory, and what a transfer costs."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterable, Mapping
from typing import Any, Optional, Union

from ._errors import OutOfMemoryError, UsageError
from ._library import (
    Handle,
    Immutable,
    Path,
    c,
    call,
    content,
    lib,
    numbers,
    path_name,
    read_file,
    real,
    set_once,
    string,
    write_file,
)

Times = Union[float, Iterable[float]]
_MAX = c.WEFT_COST_MAX
_UNIT_MAX = c.weft_costs.unit.size - 1
_COLUMNS = (
    "f",
    "i",
    "w",
    "b",
    "activation",
    "activation_after_i",
    "overlap_f_b",
    "unshard",
    "reduce_grad",
    "parameters",
    "gradients",
)
_CostsPointer = ctypes.POINTER(c.weft_costs)


class Costs(Immutable):
    """Times and sizes of the stages, and of a transfer. It does not change.

    Each of `f`, `i`, `w`, `b` and the sizes is one number for all stages, or a sequence with one
    for each stage; `b` is i + w where it is left out. `hop` is the time of a transfer; with
    `hop_bytes` and `hop_bytes_per_unit` it takes hop + hop_bytes / hop_bytes_per_unit. A costs
    file (docs/prediction.md) can say more: Costs.load() and Costs.parse() read it.
    """

    __slots__ = ("_handle",)
    _handle: Handle

    def __init__(
        self,
        f: Times = 1,
        i: Times = 1,
        w: Times = 1,
        b: Optional[Times] = None,
        *,
        hop: float = 0,
        hop_bytes: float = 0,
        hop_bytes_per_unit: float = 0,
        activation: Optional[Times] = None,
        activation_after_i: Optional[Times] = None,
        overlap_f_b: Optional[Times] = None,
        unshard: Optional[Times] = None,
        reduce_grad: Optional[Times] = None,
        parameters: Optional[Times] = None,
        gradients: Optional[Times] = None,
        unit: str = "",
        rank_factors: Optional[Iterable[float]] = None,
    ) -> None:
        """Make costs of numbers."""
        columns: dict[str, Any] = {}
        counts = set()
        given = (f, i, w, b, activation, activation_after_i, overlap_f_b, unshard, reduce_grad)
        for name, value in zip(_COLUMNS, (*given, parameters, gradients)):
            if value is None:
                continue
            kind = type(value)
            if (kind is int or kind is float) and 0 <= value <= _MAX:  # type: ignore[operator]
                columns[name] = value
                continue
            columns[name] = column = _column(value, name)
            if isinstance(column, list):
                counts.add(len(column))
        if len(counts) > 1 or 0 in counts:
            found = ", ".join(
                f"{name} {len(column)}"
                for name, column in columns.items()
                if isinstance(column, list)
            )
            raise UsageError(
                f"the costs have different numbers of stages: {found}",
                "give one number for all stages, or one for each",
            )
        count = counts.pop() if counts else 1
        out = _CostsPointer()
        call(lib.weft_costs_create, None, count, ctypes.byref(out))
        handle = Handle(out, lib.weft_costs_destroy)
        costs = out.contents
        for k in range(count):
            _fill(costs.stages[k], columns, k)
        if (hop, hop_bytes, hop_bytes_per_unit) != (0, 0, 0):
            to = costs.hop
            to.latency = real(hop, "hop", 0, _MAX)
            to.bytes = real(hop_bytes, "hop_bytes", 0, _MAX)
            to.bytes_per_unit = real(hop_bytes_per_unit, "hop_bytes_per_unit", 0, _MAX)
        if unit != "":
            unit_name = string(unit, "unit")
            if len(unit_name) > _UNIT_MAX:
                raise UsageError(f"unit is {unit!r}; expected at most {_UNIT_MAX} bytes")
            costs.unit = unit_name
        if rank_factors is not None:
            _set_rank_factors(costs, list(rank_factors))
        call(lib.weft_costs_check, out, count)
        set_once(self, _handle=handle)

    @classmethod
    def _adopt(cls, handle: Handle) -> Costs:
        self = cls.__new__(cls)
        set_once(self, _handle=handle)
        return self

    @classmethod
    def parse(cls, text: Union[str, bytes], name: str = "input") -> Costs:
        """Read the JSON form, "weft-costs/1". Errors call it `name`."""
        string(name, "name")
        return cls._adopt(_parse(content(text, "text"), name))

    @classmethod
    def load(cls, path: Path) -> Costs:
        """Read a costs file."""
        return cls._adopt(_parse(read_file(path), path_name(path)))

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Costs:
        """Make costs of what to_dict() gives."""
        if not isinstance(document, Mapping):
            raise TypeError(f"document must be a mapping, not {type(document).__name__}")
        try:
            text = json.dumps(dict(document))
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"the costs are no JSON object: {error}") from None
        return cls.parse(text, "the costs")

    def to_dict(self) -> dict[str, Any]:
        """Give the JSON form as a dict."""
        text = c.weft_text()
        writer = c.weft_json()
        writer.text = ctypes.pointer(text)
        try:
            lib.weft_costs_print(self._handle.pointer, ctypes.byref(writer), None)
            call(lib.weft_text_status, ctypes.byref(text))
            document: dict[str, Any] = json.loads(ctypes.string_at(text.data, text.size))
            return document
        finally:
            lib.weft_text_finish(ctypes.byref(text))

    def save(self, path: Path) -> None:
        """Write a costs file."""
        write_file(path, json.dumps(self.to_dict(), indent=2) + "\n")

    @property
    def unit(self) -> str:
        """The unit of time; "" when none was given."""
        return str(self._handle.pointer[0].unit.decode("utf-8", "replace"))

    @property
    def stages(self) -> int:
        """Number of entries: one for each stage, or one that serves all."""
        return int(self._handle.pointer[0].stage_count)

    @property
    def rank_factors(self) -> Optional[tuple[float, ...]]:
        """How many times as long each rank takes; None where it is not known."""
        costs = self._handle.pointer[0]
        factors = costs.rank_factors
        return tuple(factors[: costs.rank_count]) if factors else None

    def __eq__(self, other: object) -> bool:
        """Compare all numbers."""
        if not isinstance(other, Costs):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        """Hash all numbers."""
        return hash(json.dumps(self.to_dict(), sort_keys=True))

    def __reduce__(self) -> Any:
        """Pickle as JSON."""
        return Costs.parse, (json.dumps(self.to_dict()),)

    def __repr__(self) -> str:
        """Give the times of the first stage."""
        first = self._handle.pointer[0].stages[0]
        more = f", {self.stages} stages" if self.stages > 1 else ""
        hop = self._handle.pointer[0].hop.latency
        return f"<weft_pipeline.Costs: f={first.f:g} i={first.i:g} w={first.w:g} hop={hop:g}{more}>"


def _fill(stage: Any, columns: Mapping[str, Any], k: int) -> None:
    """Set what is given of a stage; what follows from it is as in a costs file."""
    for name, column in columns.items():
        setattr(stage, name, column[k] if type(column) is list else column)
    if "b" not in columns:
        stage.b = stage.i + stage.w
    if "activation_after_i" not in columns:
        stage.activation_after_i = stage.activation


def _set_rank_factors(costs: Any, factors: list[float]) -> None:
    values = numbers(factors, "rank_factors", len(factors), 1e-6, 1e6)
    if not 1 <= len(factors) <= c.WEFT_RANKS_MAX:
        raise UsageError(f"rank_factors has {len(factors)} numbers; expected one for each rank")
    memory = lib.weft_array_allocate(None, len(factors), ctypes.sizeof(ctypes.c_double))
    if not memory:
        raise OutOfMemoryError("no memory for the factors of ranks")
    ctypes.memmove(memory, values, ctypes.sizeof(values))
    costs.rank_factors = ctypes.cast(memory, ctypes.POINTER(ctypes.c_double))
    costs.rank_count = len(factors)


def _column(value: object, name: str) -> Any:
    if isinstance(value, (str, bytes, Mapping)):
        raise TypeError(f"{name} must be a number or a sequence, not {type(value).__name__}")
    if type(value) is not int and type(value) is not float and hasattr(value, "__iter__"):
        try:
            items = list(value)
        except TypeError:  # a NumPy scalar
            return real(value, name, 0, _MAX)
        return [real(item, f"{name}[{k}]", 0, _MAX) for k, item in enumerate(items)]
    return real(value, name, 0, _MAX)


def _parse(data: bytes, name: str) -> Handle:
    out = _CostsPointer()
    called = name.replace("\0", "").encode("utf-8", "surrogateescape")
    call(lib.weft_costs_parse, None, data, len(data), called, ctypes.byref(out))
    return Handle(out, lib.weft_costs_destroy)
