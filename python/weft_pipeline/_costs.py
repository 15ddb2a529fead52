"""Costs: how long each action takes, what it keeps in memory, and what a transfer costs."""

from __future__ import annotations

import ctypes
import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Optional, Union

from ._data import dataframe
from ._errors import OutOfMemoryError, UsageError
from ._library import (
    Handle,
    Immutable,
    Path,
    c,
    call,
    content,
    json_of,
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
_COLUMNS = tuple(field[0] for field in c.weft_stage_costs._fields_)  # all of them double
_I, _W, _B = map(_COLUMNS.index, ("i", "w", "b"))
_ACTIVATION, _AFTER_I = map(_COLUMNS.index, ("activation", "activation_after_i"))
_SIZE = ctypes.sizeof(c.weft_stage_costs)
_pack = struct.Struct(f"={len(_COLUMNS)}d").pack
_CostsPointer = ctypes.POINTER(c.weft_costs)
# Bound here, because looking them up takes as long as they do.
_byref, _memmove, _set = ctypes.byref, ctypes.memmove, object.__setattr__
_create, _check, _destroy = lib.weft_costs_create, lib.weft_costs_check, lib.weft_costs_destroy


def _default() -> list[float]:
    out = _CostsPointer()
    call(_create, None, 1, ctypes.byref(out))
    try:
        return list(struct.unpack(f"={len(_COLUMNS)}d", bytes(out.contents.stages[0])))
    finally:
        _destroy(out)


_DEFAULT = _default()


class MeasuredStep(NamedTuple):
    """What a run showed of its steps, in the unit of the costs that were measured with it.

    `time` is that of a step, from the first work to the last, on the rank that takes longest.
    `starved` is how much of it a device has nothing to do because its host has launched nothing,
    on the rank where that is most. `host_limited` says that this is why steps take much longer
    than a simulation with the times of the kernels.
    """

    time: float
    starved: float
    host_limited: bool


class Costs(Immutable):
    """Times and sizes of the stages, and of a transfer. It does not change.

    Each of `f`, `i`, `w`, `b` and the sizes is one number for all stages, or a sequence with one
    for each stage; `b` is i + w where it is left out. `hop` is the time of a transfer; with
    `hop_bytes` and `hop_bytes_per_unit` it takes hop + hop_bytes / hop_bytes_per_unit. A costs
    file (docs/prediction.md) can say more: Costs.load() and Costs.parse() read it.

    Where no number is a sequence, they are `of` a rank's share of the model ("rank"), which its
    stages divide: with two stages per rank a stage takes half of them. Or of every stage ("stage").
    A sequence has each stage's own.
    """

    __slots__ = ("_handle", "_measured")
    _handle: Handle
    _measured: MeasuredStep  # not set where nothing was measured

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
        of: str = "rank",
    ) -> None:
        """Make costs of numbers."""
        given = (f, i, w, b, overlap_f_b, activation, activation_after_i, unshard, reduce_grad)
        row = _DEFAULT[:]
        columns: dict[int, list[float]] = {}
        count = 1
        for k, value in enumerate((*given, parameters, gradients)):
            if value is None:
                continue
            kind = type(value)
            if (kind is not int and kind is not float) or not 0 <= value <= _MAX:  # type: ignore[operator]
                value = _column(value, _COLUMNS[k])
                if type(value) is list:
                    columns[k] = value
                    count = len(value)
                    continue
            row[k] = value  # type: ignore[assignment]
        out = _CostsPointer()
        if columns:
            _check_counts(columns)
        if _create(None, count, _byref(out), None) < 0:  # then once more, for the reason
            call(_create, None, count, _byref(out))
        handle = Handle(out, _destroy)
        costs = out.contents
        if columns or row != _DEFAULT:
            _memmove(costs.stages, _rows(row, columns, count, b, activation_after_i), count * _SIZE)
        if hop != 0:
            costs.hop.latency = real(hop, "hop", 0, _MAX)
        if hop_bytes != 0:
            costs.hop.bytes = real(hop_bytes, "hop_bytes", 0, _MAX)
        if hop_bytes_per_unit != 0:
            rate = real(hop_bytes_per_unit, "hop_bytes_per_unit", 0, _MAX)
            costs.hop.bytes_per_unit = rate
        if unit != "":
            unit_name = string(unit, "unit")
            if len(unit_name) > _UNIT_MAX:
                raise UsageError(f"unit is {unit!r}; expected at most {_UNIT_MAX} bytes")
            costs.unit = unit_name
        if rank_factors is not None:
            _set_rank_factors(costs, list(rank_factors))
        if of != "rank":
            costs.of = _scope(of)
        if _check(out, count, None) < 0:
            call(_check, out, count)
        _set(self, "_handle", handle)

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
        return json_of(lib.weft_costs_print, self._handle.pointer)

    def to_dataframe(self) -> Any:
        """Give a pandas DataFrame with a row for each stage, or one that serves all."""
        stages = self._handle.pointer[0].stages[: self.stages]
        rows = ([getattr(stage, name) for name in _COLUMNS] for stage in stages)
        return dataframe(_COLUMNS, rows)

    def save(self, path: Path) -> None:
        """Write a costs file."""
        write_file(path, json.dumps(self.to_dict(), indent=2) + "\n")

    @property
    def unit(self) -> str:
        """The unit of time; "" when none was given."""
        return str(self._handle.pointer[0].unit.decode("utf-8", "replace"))

    @property
    def of(self) -> str:
        """What the numbers are of: "rank", a rank's share of the model, or "stage"."""
        costs = self._handle.pointer[0]
        is_share = costs.stage_count == 1 and costs.of == c.WEFT_COSTS_OF_RANK
        return "rank" if is_share else "stage"

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

    @property
    def measured(self) -> Optional[MeasuredStep]:
        """What the run that these costs are from showed of its steps; None where there was none."""
        return getattr(self, "_measured", None)

    def with_measured(self, measured: Optional[MeasuredStep]) -> Costs:
        """Give the same costs with what a run showed beside them. A costs file does not keep it."""
        made = Costs._adopt(self._handle)
        if measured is not None:
            set_once(made, _measured=measured)
        return made

    def __eq__(self, other: object) -> bool:
        """Compare all numbers, but not what was measured beside them."""
        if not isinstance(other, Costs):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        """Hash all numbers."""
        return hash(json.dumps(self.to_dict(), sort_keys=True))

    def __reduce__(self) -> Any:
        """Pickle as JSON, with what was measured."""
        return _unpickle, (json.dumps(self.to_dict()), self.measured)

    def __repr__(self) -> str:
        """Give the times of the first stage."""
        first = self._handle.pointer[0].stages[0]
        of = "a rank's share" if self.of == "rank" else "a stage"
        more = f", {self.stages} stages" if self.stages > 1 else f", of {of}"
        hop = self._handle.pointer[0].hop.latency
        return f"<weft_pipeline.Costs: f={first.f:g} i={first.i:g} w={first.w:g} hop={hop:g}{more}>"


CostsLike = Union[Costs, Mapping[str, Any]]
_KEYWORDS = tuple(name for name in Costs.__init__.__annotations__ if name != "return")


def costs_given(value: Optional[CostsLike]) -> Costs:
    """Take costs as an argument: Costs, a dict of their keywords or of a costs file, or none."""
    if isinstance(value, Costs):
        return value
    if value is None:
        return Costs()
    if not isinstance(value, Mapping):
        raise TypeError(f"costs must be Costs or a dict, not {type(value).__name__}")
    if "schema" in value or "stages" in value:
        return Costs.from_dict(value)
    unknown = next((key for key in value if key not in _KEYWORDS), None)
    if unknown is not None:
        raise UsageError(
            f"the costs have {unknown!r}; expected some of {', '.join(_KEYWORDS)}",
            "or give a dict with the fields of a costs file",
        )
    return Costs(**value)


def _scope(of: object) -> int:
    if not isinstance(of, str):
        raise TypeError(f"of must be a str, not {type(of).__name__}")
    if of not in ("rank", "stage"):
        raise UsageError(f"of is {of!r}; expected 'rank' or 'stage'")
    return int(c.WEFT_COSTS_OF_RANK if of == "rank" else c.WEFT_COSTS_OF_STAGE)


def _unpickle(text: str, measured: Optional[MeasuredStep]) -> Costs:
    return Costs.parse(text).with_measured(measured)


def _check_counts(columns: Mapping[int, list[float]]) -> None:
    counts = {len(column) for column in columns.values()}
    if len(counts) > 1 or 0 in counts:
        found = ", ".join(f"{_COLUMNS[k]} {len(column)}" for k, column in columns.items())
        raise UsageError(
            f"the costs have different numbers of stages: {found}",
            "give one number for all stages, or one for each",
        )


def _rows(
    row: list[float], columns: Mapping[int, list[float]], count: int, b: object, after: object
) -> bytes:
    """Stages in memory; what follows from other numbers is as in a costs file."""
    rows = []
    for k in range(count):
        for column, values in columns.items():
            row[column] = values[k]
        if b is None:
            row[_B] = row[_I] + row[_W]
        if after is None:
            row[_AFTER_I] = row[_ACTIVATION]
        rows.append(_pack(*row))
    return rows[0] if count == 1 else b"".join(rows)


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
