"""Results as what other tools take: dicts that JSON has, and pandas DataFrames."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

from ._errors import UnavailableError

ACTION = ("action", "op", "stage", "microbatch")  # columns


def optional(name: str, what: str) -> Any:
    """Import a package that the base package does not need; `what` needs it."""
    try:
        return import_module(name)
    except ImportError as error:
        package = name.split(".")[0]
        raise UnavailableError(
            f"{what} needs {package}, which is not there: {error}", f"pip install {package}"
        ) from error


def plain(value: Any) -> Any:
    """Give a value as JSON has it: tuples are lists, actions text, and infinity is None."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if hasattr(value, "_plain"):
        return value._plain()
    if hasattr(value, "_fields"):
        return fields(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value]


def fields(value: Any, without: Sequence[str] = ()) -> dict[str, Any]:
    """Give the fields of a named tuple, by name."""
    return {name: plain(getattr(value, name)) for name in value._fields if name not in without}


def action_columns(action: Any) -> tuple[Any, ...]:
    """Give what an action has in the columns ACTION."""
    return str(action), action.op, action.stage, action.microbatch


def dataframe(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Any:
    """Make a DataFrame. Numbers of stages and microbatches are integers, also where some lack."""
    pandas = optional("pandas", "to_dataframe()")
    made = pandas.DataFrame.from_records(list(rows), columns=list(columns))
    return made.astype({name: "Int64" for name in ("stage", "microbatch") if name in columns})
