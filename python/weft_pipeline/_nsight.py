"""A profile of Nsight Systems, exported to SQLite, read into the events of a Kineto trace.

nsys export --type sqlite writes a table for each kind of event; where there was none of a kind, its
table is not there. Times are nanoseconds since the session began.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Callable

from ._data import optional
from ._errors import FormatError

Event = Mapping[str, Any]

_MAGIC = b"SQLite format 3\0"
_RANGES = (59, 60)  # of NVTX: pushed and popped, or begun and ended
_EPOCH = 1_767_225_600 * 10**9  # 2026 began: microseconds since then are precise in a double
_LONGEST = 10**15  # nanoseconds, as long as in a Kineto trace
_TEXTS = "SELECT id, value FROM StringIds"
_SESSION = "TARGET_INFO_SESSION_START_TIME"
_NVTX = "NVTX_EVENTS"
_LAUNCHES = "CUPTI_ACTIVITY_KIND_RUNTIME"
_WORK = {  # tables of work on a device: what a Kineto trace calls it, and what has its name
    "CUPTI_ACTIVITY_KIND_KERNEL": ("kernel", "shortName"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": ("kernel", "NULL"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("gpu_memcpy", "NULL"),
    "CUPTI_ACTIVITY_KIND_MEMSET": ("gpu_memset", "NULL"),
}


def is_export(name: str) -> bool:
    """Whether a file is an SQLite database, by its first bytes."""
    try:
        with open(name, "rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except (OSError, ValueError):
        return False  # whoever reads it says why


def read_export(name: str, is_range: Callable[[str], bool]) -> list[list[Event]]:
    """Read the events of each process, with those ranges of NVTX that matter."""
    sqlite3 = optional("sqlite3", f"reading {name}")
    try:
        database = sqlite3.connect(f"{Path(name).resolve().as_uri()}?mode=ro", uri=True)
        database.text_factory = lambda data: data.decode("utf-8", "replace")
        try:
            return _processes(database, name, is_range)
        finally:
            database.close()
    except (sqlite3.Error, UnicodeDecodeError) as error:  # it cannot say what is wrong
        raise FormatError(
            f"{name} is no export of Nsight Systems that can be read: {error}",
            "export it again: nsys export --type sqlite profile.nsys-rep",
        ) from error


def _processes(database: Any, name: str, is_range: Callable[[str], bool]) -> list[list[Event]]:
    tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master")}
    for table in (_NVTX, "StringIds"):
        if table not in tables:
            raise FormatError(
                f"{name} has no table {table}, so it is no export of Nsight Systems with ranges",
                "profile with nsys profile --trace=cuda,nvtx, and export that to SQLite",
            )
    if _LAUNCHES not in tables or not _WORK.keys() & tables:
        raise FormatError(
            f"{name} has no kernels, or not what launched them",
            "profile with nsys profile --trace=cuda,nvtx",
        )
    began = 0
    if _SESSION in tables:
        for (time,) in database.execute(f"SELECT utcEpochNs FROM {_SESSION}"):
            began = time - _EPOCH if type(time) is int else 0
    texts: dict[Any, str] = {key: str(text) for key, text in database.execute(_TEXTS)}
    found: dict[int, list[Event]] = {}

    def add(category: str, query: str) -> None:
        with contextlib.closing(database.execute(query)) as rows:  # also after an error
            take(category, rows)

    def take(category: str, rows: Iterable[Any]) -> None:
        for begin, end, thread, text, correlation in rows:
            if end is None:  # the profile ended first
                continue
            numbers = all(type(number) is int for number in (begin, end, thread))
            if not numbers or not 0 <= end - begin <= _LONGEST:
                raise FormatError(
                    f"{name}: a {category} lasts from {begin!r:.40} to {end!r:.40}",
                    "export it again",
                )
            event = {
                "cat": category,
                "name": text if isinstance(text, str) else texts.get(text, ""),
                "ts": (begin + began) / 1000,
                "dur": (end - begin) / 1000,
                "tid": thread & 0xFFFFFF,
                "args": {"correlation": correlation},
            }
            if category != "user_annotation" or is_range(event["name"]):
                found.setdefault(thread >> 24, []).append(event)

    fields = f"SELECT start, end, globalTid, COALESCE(text, textId), NULL FROM {_NVTX}"
    add("user_annotation", f"{fields} WHERE eventType IN {_RANGES}")
    add(
        "cuda_runtime",
        f"SELECT start, end, globalTid, nameId, correlationId FROM {_LAUNCHES}",
    )
    for table, (category, text) in _WORK.items():
        if table in tables:
            add(category, f"SELECT start, end, globalPid, {text}, correlationId FROM {table}")
    return list(found.values())
