"""Modes of PyTorch around a step: they belong to the thread of the caller, and ranks are others."""

from __future__ import annotations

import functools
import warnings
from importlib import import_module
from typing import Any, Callable

from ._devices import RankDevice
from ._errors import UsageError


def modes_of_caller(torch: Any, devices: dict[int, RankDevice]) -> list[Callable[[], Any]]:
    """Give what makes the caller's modes in another thread; refuses those that cannot be there."""
    found = _autocasts(torch, devices)
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)  # only the inner one counts
    if hooks is not None:
        found.append(functools.partial(torch.autograd.graph.saved_tensors_hooks, *hooks))
    modes = import_module("torch.utils._python_dispatch")._get_current_dispatch_mode_stack()
    for mode in import_module("torch.overrides")._get_current_function_mode_stack():
        if type(mode).__module__ == "torch.utils._device":  # torch.set_default_device()
            found.append(functools.partial(torch.device, mode.device))
        else:
            modes.append(mode)
    if modes:
        raise UsageError(
            f"the step is in the mode {type(modes[-1]).__name__} of PyTorch, which sees its own "
            f"thread only; ranks are other threads",
            'use the mode inside a module, or a process for each rank (transport="torch" or "mpi")',
        )
    return found


def dtypes_of(torch: Any, devices: dict[int, RankDevice]) -> dict[str, Any]:
    """Give what autocast of the caller makes of tensors, by kind of device."""
    return {
        kind: torch.get_autocast_dtype(kind)
        for kind in {device.torch_device.type for device in devices.values()}
        if torch.is_autocast_enabled(kind)
    }


def _autocasts(torch: Any, devices: dict[int, RankDevice]) -> list[Callable[[], Any]]:
    return [
        functools.partial(
            torch.autocast,
            kind,
            dtype=dtype,
            cache_enabled=torch.is_autocast_cache_enabled(),
        )
        for kind, dtype in dtypes_of(torch, devices).items()
    ]


def warn_of_profiler() -> None:
    """Say that a profiler of the caller sees nothing of the ranks."""
    warnings.warn(
        "torch.profiler sees its own thread only, and ranks are other threads: give it "
        "experimental_config=torch._C._profiler._ExperimentalConfig(profile_all_threads=True)",
        stacklevel=2,
    )
