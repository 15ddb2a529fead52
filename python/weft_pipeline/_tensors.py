"""Tensors of PyTorch in the runtime's memory, of the host or of a GPU, without a copy."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from ._errors import UsageError
from ._library import c, lib

DTYPES = {
    "float32": c.WEFT_F32,
    "float64": c.WEFT_F64,
    "float16": c.WEFT_F16,
    "bfloat16": c.WEFT_BF16,
    "int8": c.WEFT_I8,
    "int16": c.WEFT_I16,
    "int32": c.WEFT_I32,
    "int64": c.WEFT_I64,
    "uint8": c.WEFT_U8,
    "bool": c.WEFT_BOOL,
}
NAMES = {number: name for name, number in DTYPES.items()}


def shape_of(tensor: Any, what: str, device: Any) -> Any:
    """Give the shape of a tensor for the runtime; it must be on the device of its stage.

    `what` says which stage takes or gives it.
    """
    name = str(tensor.dtype).replace("torch.", "")
    if name not in DTYPES or tensor.device != device or tensor.dim() > c.WEFT_DIMS_MAX:
        raise UsageError(
            f"{what} a tensor of {name} with {tensor.dim()} dimensions on {tensor.device}; "
            f"expected at most {c.WEFT_DIMS_MAX} dimensions on {device}, of {', '.join(DTYPES)}",
            "torch.view_as_real() makes complex numbers such a tensor, view_as_complex() takes it",
        )
    shape = c.weft_tensor_shape()
    shape.dtype, shape.dim_count = DTYPES[name], tensor.dim()
    for k, size in enumerate(tensor.shape):
        shape.dims[k] = size
    return shape


def are_equal(torch: Any, a: Any, b: Any) -> bool:
    """Whether tensors of one type have the same numbers, or none at the same places."""
    if torch.equal(a, b):
        return True
    if a.shape != b.shape or not (a.is_floating_point() or a.is_complex()):
        return False
    numbers = ~a.isnan()
    return bool(torch.equal(numbers, ~b.isnan()) and torch.equal(a[numbers], b[numbers]))


# ---- DLPack: how PyTorch takes memory that is not its own ----


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


_DEVICES = {"cpu": 1, "cuda": 2}
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}  # the name without its bits
_CAPSULE = b"dltensor"

# The description is memory of malloc(), and free() is its deleter: PyTorch calls that when the last
# tensor on the memory goes, maybe in a thread of its own, and no Python has to run for it.
_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_free = ctypes.cast(_libc.free, ctypes.c_void_p).value
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def tensor_at(torch: Any, data: int, dtype: int, dims: Sequence[int], device: Any) -> Any:
    """Make a tensor of memory at an address; its owner keeps the memory there."""
    name = NAMES[dtype]
    if 0 in dims:
        return torch.empty(list(dims), dtype=getattr(torch, name), device=device)
    size = ctypes.sizeof(_DLTensor)
    address = _libc.malloc(size + 8 * len(dims))
    if not address:
        raise MemoryError
    made = _DLTensor.from_address(address)
    made.data = data
    made.device_type, made.device_id = _DEVICES[device.type], device.index or 0
    made.ndim, made.shape, made.strides = len(dims), address + size, None
    (ctypes.c_int64 * len(dims)).from_address(address + size)[:] = list(dims)
    made.code = _CODES[name.rstrip("0123456789")]
    made.bits, made.lanes = 8 * lib.weft_dtype_size(dtype), 1
    made.byte_offset, made.manager_ctx, made.deleter = 0, None, _free
    return torch.from_dlpack(_new_capsule(address, _CAPSULE, None))


# ---- What a stage's function gets ----

_VIEWS_MAX = 4096
ITEM = c.weft_tensors.items.offset
_ITEM_SIZE = ctypes.sizeof(c.weft_tensor)
_string_at = ctypes.string_at


class Views:
    """Tensors in the buffers of the runtime; it reuses these, so each is made once."""

    def __init__(self, torch: Any, device: Any) -> None:
        """Make the views on a device."""
        self.torch = torch
        self.device = device
        self.found: dict[bytes, Any] = {}

    def __call__(self, address: int) -> Any:
        """Give the first of the tensors at an address."""
        key = _string_at(address + ITEM, _ITEM_SIZE)
        found = self.found.get(key)
        if found is None:
            if len(self.found) >= _VIEWS_MAX:
                self.found.clear()
            found = self.found[key] = self.make(c.weft_tensor.from_address(address + ITEM))
        return found

    def make(self, item: Any) -> Any:
        """Make the tensor of a struct weft_tensor."""
        shape = item.shape
        dims = list(shape.dims[: shape.dim_count])
        return tensor_at(self.torch, item.data, shape.dtype, dims, self.device)
