"""The C library: loading it, checking its layout, calling it, and owning what it returns.

Callers check types and sizes before they call a C function.
"""

from __future__ import annotations

import ctypes
import json
import operator
import os
import re
import weakref
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Callable, Optional, Union

from . import _layout as c
from ._errors import Error, FileError, MissingError, UsageError, error_of_status

Path = Union[str, "os.PathLike[str]"]


def _load() -> ctypes.CDLL:
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libweft_pipeline.so")
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"weft_pipeline cannot load its library: {error}") from error
    _check_layout(library)
    for name, (result, arguments) in c.FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError as error:
            raise ImportError(
                f"weft_pipeline's library has no {name}, which _layout.py declares; "
                f"install the package again"
            ) from error
        function.restype = result
        function.argtypes = arguments
    return library


def _check_layout(library: ctypes.CDLL) -> None:
    """Compare the ctypes declarations with what the compiler saw."""
    structs: list[Any] = c.STRUCTS
    expected = sum(1 + 2 * len(struct._fields_) for struct in structs) + len(c.ENUMERATORS)
    count = ctypes.c_uint64.in_dll(library, "weft_python_layout").value
    numbers = (ctypes.c_uint64 * (expected + 1)).in_dll(library, "weft_python_layout")
    if count != expected:
        raise ImportError(
            f"weft_pipeline's library and its _layout.py are of different builds: "
            f"{count} and {expected} declarations; install the package again"
        )
    position = 1
    for struct in structs:
        found = [ctypes.sizeof(struct)]
        for name, *_ in struct._fields_:
            field = getattr(struct, name)
            found += [field.offset, field.size]
        if found != list(numbers[position : position + len(found)]):
            raise ImportError(
                f"struct {struct.__name__} of weft_pipeline's library is not laid out as "
                f"_layout.py says; install the package again"
            )
        position += len(found)
    for name, value in c.ENUMERATORS.items():
        if numbers[position] != value % 2**64:
            raise ImportError(
                f"{name} is {numbers[position]} in weft_pipeline's library and {value} in "
                f"_layout.py; install the package again"
            )
        position += 1


lib = _load()
version: str = lib.weft_version().decode()
_declared = f"{c.WEFT_VERSION_MAJOR}.{c.WEFT_VERSION_MINOR}.{c.WEFT_VERSION_PATCH}"
if version != _declared:
    raise ImportError(
        f"weft_pipeline's library has version {version} and _layout.py {_declared}; "
        f"install the package again"
    )

Status = {lib.weft_status_name(k).decode(): k for k in range(c.WEFT_ERR_DEVICE, 1)}
_STATUS_NAMES = {number: name for name, number in Status.items()}


# The library's letters for a shape, as in "use v = 2", and the parameters of Python that they are.
_PARAMETERS = {"p": "ranks", "v": "stages_per_rank", "m": "microbatches"}
_LETTER = re.compile(r"\b([pvm]) = (?=\d)")


def in_python(text: bytes) -> str:
    """Decode a message or hint of the library about arguments; it names Python's parameters."""
    decoded = text.decode("utf-8", "replace")
    return _LETTER.sub(lambda letter: f"{_PARAMETERS[letter[1]]}=", decoded)


def raise_error(status: int, error: Any) -> None:
    """Raise the exception of a failed call."""
    is_usage = status == c.WEFT_ERR_USAGE
    message, hint = (
        in_python(text) if is_usage else text.decode("utf-8", "replace")
        for text in (error.message, error.hint)
    )
    name = _STATUS_NAMES.get(status, "internal")
    raise error_of_status(name, message, hint, error.line or None, error.column or None)


_byref = ctypes.byref
_Error = c.weft_error


def call(function: Any, *arguments: Any) -> None:
    """Call a function whose last argument is a struct weft_error."""
    error = _Error()
    status = function(*arguments, _byref(error))
    if status < 0:
        raise_error(status, error)


def default_of(function: Any) -> Any:
    """Return a function that copies what a weft_..._options_default() returns."""
    options = function()
    copy, data = type(options).from_buffer_copy, bytes(options)
    return lambda: copy(data)


def text_of(function: Any, *arguments: Any, fails: bool = True) -> str:
    """Return what a function appends to a struct weft_text, its last argument before the error."""
    text = c.weft_text()
    try:
        if fails:
            call(function, *arguments, ctypes.byref(text))
        else:
            function(*arguments, ctypes.byref(text))
        call(lib.weft_text_status, ctypes.byref(text))
        return ctypes.string_at(text.data, text.size).decode("utf-8", "replace")
    finally:
        lib.weft_text_finish(ctypes.byref(text))


def json_of(function: Any, pointer: Any) -> dict[str, Any]:
    """Return the object that a weft_..._print() writes as JSON."""
    text = c.weft_text()
    writer = c.weft_json()
    writer.text = ctypes.pointer(text)
    try:
        function(pointer, ctypes.byref(writer), None)
        call(lib.weft_text_status, ctypes.byref(text))
        document: dict[str, Any] = json.loads(ctypes.string_at(text.data, text.size))
        return document
    finally:
        lib.weft_text_finish(ctypes.byref(text))


def field_type(struct: Any, field: str) -> Any:
    """Give the type of a struct's field."""
    return next(entry[1] for entry in struct._fields_ if entry[0] == field)


# ---- Memory of the library ----


class _Owner(weakref.ref):  # type: ignore[type-arg]
    """What is left when a handle goes: how to destroy its object.

    It holds `keep` too, so that a garbage collection that finds an object and what it borrows at
    once destroys them in the right order. This is weakref.finalize, but ten times as fast.
    """

    __slots__ = ("destroy", "keep", "pointer")
    destroy: Callable[[Any], None]
    keep: Any
    pointer: Any


_owners: dict[int, _Owner] = {}


def _release(owner: Any) -> None:
    if _owners.pop(id(owner), None) is not None:
        owner.destroy(owner.pointer)


class Handle:
    """Owns an object of the library, and keeps alive what that object borrows."""

    __slots__ = ("__weakref__", "keep", "pointer")

    def __init__(
        self, pointer: Any, destroy: Optional[Callable[[Any], None]] = None, keep: Any = None
    ) -> None:
        self.pointer = pointer
        self.keep = keep
        if destroy is not None:
            owner = _Owner(self, _release)
            owner.destroy, owner.pointer, owner.keep = destroy, pointer, keep
            _owners[id(owner)] = owner

    def __reduce__(self) -> Any:
        raise TypeError("a handle of the C library cannot be pickled")


class Immutable:
    """An object whose attributes are set once, by its constructor."""

    __slots__ = ("__weakref__",)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: the object does not change."""
        raise AttributeError(f"{type(self).__name__} is immutable: {name} cannot be set")

    def __delattr__(self, name: str) -> None:
        """Refuse: the object does not change."""
        raise AttributeError(f"{type(self).__name__} is immutable: {name} cannot be deleted")


def set_once(target: object, **values: object) -> None:
    """Set attributes of an Immutable that is being made."""
    for name, value in values.items():
        object.__setattr__(target, name, value)


def records(address: Any, kind: Any, count: int, owner: object) -> memoryview:
    """Return the bytes of `count` structs, read-only and without a copy; it keeps `owner` alive."""
    size = ctypes.sizeof(kind) * count
    where = ctypes.cast(address, ctypes.c_void_p).value
    if not where or not size:
        return memoryview(b"")
    array = (ctypes.c_ubyte * size).from_address(where)
    array.owner = owner  # type: ignore[attr-defined]
    return memoryview(array).cast("B").toreadonly()


def array_of(view: memoryview, kind: Any) -> Any:
    """Return a NumPy array of structs that shares the memory, or without NumPy the bytes."""
    try:
        numpy = import_module("numpy")
    except ImportError:
        return view
    return numpy.frombuffer(view, dtype=kind) if len(view) else numpy.empty(0, dtype=kind)


# ---- Arguments ----


def integer(value: object, name: str, low: int, high: int) -> int:
    """Check an integer within limits."""
    if type(value) is int and low <= value <= high:
        return value
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}")
    number = operator.index(value)
    if not low <= number <= high:
        raise UsageError(f"{name} is {number}; expected {low} to {high}")
    return number


def real(value: Any, name: str, low: float, high: float) -> float:
    """Check a number within limits."""
    if type(value) is float and low <= value <= high:
        return value
    if isinstance(value, (bool, str, bytes)) or not (
        hasattr(value, "__float__") or hasattr(value, "__index__")
    ):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        raise UsageError(f"{name} is too large; expected {low:g} to {high:g}") from None
    if not low <= number <= high:  # NaN too
        raise UsageError(f"{name} is {number:g}; expected {low:g} to {high:g}")
    return number


def boolean(value: object, name: str) -> bool:
    """Check a bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {type(value).__name__}")
    return value


def string(value: object, name: str) -> bytes:
    """Check a text, for C: without a NUL."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    if "\0" in value:
        raise UsageError(f"{name} has a NUL character")
    return value.encode("utf-8", "surrogateescape")


def content(value: object, name: str) -> bytes:
    """Check the text of a file: str or bytes."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    raise TypeError(f"{name} must be a str or bytes, not {type(value).__name__}")


def choice(value: object, name: str, names: Sequence[str]) -> int:
    """Check one of several names; return its number."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    try:
        return names.index(value)
    except ValueError:
        expected = " or ".join(map(repr, names))
        raise UsageError(f"{name} is {value!r}; expected {expected}") from None


def numbers(value: object, name: str, count: int, low: float, high: float) -> Any:
    """Check a sequence of `count` numbers; return them as a C array."""
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise TypeError(f"{name} must be a sequence of numbers, not {type(value).__name__}")
    items = [real(item, f"{name}[{k}]", low, high) for k, item in enumerate(value)]
    if len(items) != count:
        raise UsageError(f"{name} has {len(items)} numbers; expected {count}")
    return (ctypes.c_double * count)(*items)


# ---- Files ----


def path_name(path: Path) -> str:
    """Check a path."""
    name = os.fspath(path)
    if not isinstance(name, str):
        raise TypeError(f"a path must be a str or os.PathLike, not {type(path).__name__}")
    return name


def read_file(path: Path) -> bytes:
    """Read a file."""
    name = path_name(path)
    try:
        with open(name, "rb") as file:
            return file.read()
    except FileNotFoundError as error:
        raise MissingError(f"{name} is not there", "give the path of a file") from error
    except (OSError, ValueError) as error:
        raise FileError(f"{name} cannot be read: {error}") from error


def write_file(path: Path, text: str) -> None:
    """Write a file."""
    name = path_name(path)
    try:
        with open(name, "w", encoding="utf-8", newline="") as file:
            file.write(text)
    except (OSError, ValueError) as error:
        raise FileError(f"{name} cannot be written: {error}") from error


__all__ = [
    "Error",
    "Handle",
    "Immutable",
    "array_of",
    "boolean",
    "c",
    "call",
    "choice",
    "content",
    "field_type",
    "integer",
    "json_of",
    "lib",
    "numbers",
    "read_file",
    "real",
    "records",
    "set_once",
    "string",
    "text_of",
    "version",
    "write_file",
]
