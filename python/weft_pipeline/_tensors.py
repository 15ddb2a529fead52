"""Comparing tensors of PyTorch."""

from __future__ import annotations

from typing import Any


def are_equal(torch: Any, a: Any, b: Any) -> bool:
    """Whether tensors of one type have the same numbers, or none at the same places."""
    if torch.equal(a, b):
        return True
    if a.shape != b.shape or not (a.is_floating_point() or a.is_complex()):
        return False
    numbers = ~a.isnan()
    return bool(torch.equal(numbers, ~b.isnan()) and torch.equal(a[numbers], b[numbers]))
