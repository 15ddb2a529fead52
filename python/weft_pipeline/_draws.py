"""Random numbers of stages: the same whatever the order in which ranks compute.

PyTorch has one generator for the CPU in a process. Ranks are threads that would draw from it in any
order, and torch.utils.checkpoint sets it back while others use it. So where anything of a step
draws, every forward and every backward has the generator for itself, with a seed of its own that
follows from the generator's state before the step: the same seed gives the same step, and a
recomputed forward draws what the forward drew. Between processes it is rank 0's generator.

One stage at a time is the price, so steps that draw nothing go without. The first step tells which
those are: it runs with seeds and looks whether the generator moved. Later ones without seeds only
look at their end, and where torch.random.fork_rng() puts the generator back.
"""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, Callable, Optional

from ._errors import StalledError, UsageError

_generator_lock = threading.Lock()  # of the process, as the generator
_holders: list[tuple[Any, float]] = []  # who has it, and since when: one at most

_moves: list[int] = [0]  # how often steps have moved the generator on

_STEP = struct.Struct("<qb")  # the seed of a step, and whether steps like it draw: -1 is unknown

Agree = Callable[[bytes], list[bytes]]  # gives every rank's bytes

_WAIT = 0.001  # s, after which a rank looks after its messages and asks again


class _Watched:
    """The generator in place of that of torch.random: it knows whether anything drew from it.

    What draws within torch.random.fork_rng() moves it, too, and sets it back.
    """

    def __init__(self, torch: Any) -> None:
        """Begin with the present state."""
        self._torch, self._generator = torch, torch.default_generator
        self._lock = threading.Lock()
        self._before, self._drew = self._generator.get_state(), False
        torch.random.default_generator = self

    def end(self) -> None:
        """Give torch.random its generator back."""
        self._torch.random.default_generator = self._generator

    def drew(self) -> bool:
        """Whether anything has drawn so far."""
        now = self._generator.get_state()
        self._drew = self._drew or not self._torch.equal(self._before, now)
        return self._drew

    def _set(self, name: str, value: Any) -> None:
        with self._lock:
            self.drew()
            getattr(self._generator, name)(value)
            self._before = self._generator.get_state()

    def set_state(self, state: Any) -> None:
        """Set the state, as at the end of torch.random.fork_rng()."""
        self._set("set_state", state)

    def manual_seed(self, seed: int) -> Any:
        """Set the seed, as torch.manual_seed() does."""
        self._set("manual_seed", seed)
        return self._generator

    def __getattr__(self, name: str) -> Any:
        """All else is the generator's own."""
        return getattr(self._generator, name)


@contextlib.contextmanager
def _no_other_step() -> Iterator[None]:
    """Keep the generator from steps of other pipelines; from none that hangs."""
    is_mine = _generator_lock.acquire(timeout=1)
    try:
        yield
    finally:
        if is_mine:
            _generator_lock.release()


class Draws:
    """Who has the generator in a step of a pipeline."""

    def __init__(self, torch: Any) -> None:
        """Know nothing yet."""
        self.torch = torch
        self.generator = torch.default_generator
        self.are_seeded = False  # in this step
        self._of: dict[Any, bool] = {}  # whether steps like these draw
        self._key: Any = None
        self._watched: Any = None
        self._moved = 0
        self._seed = 0
        self._is_new = False  # no rank knows yet whether a step like this draws
        self._drew = False

    def begin(self, modules: Iterable[Any], training: bool, agree: Optional[Agree]) -> None:
        """Begin a step; `modules` are all that may draw in it.

        Ranks that are processes `agree`: all have the seeds of rank 0's generator, and whether
        anything draws is known of all.
        """
        self._key = (training, tuple([module.training for module in modules]))
        with _no_other_step():
            before, self._moved = self.generator.get_state(), _moves[0]
            self._watched = _Watched(self.torch)
        known = self._of.get(self._key)
        self._is_new = known is None
        if agree is not None or known is not False:
            copy = self.torch.Generator()
            copy.set_state(before)
            self._seed = self._next(copy)
        if agree is not None:
            mine = _STEP.pack(self._seed, -1 if known is None else known)
            seeds, all_known = zip(*map(_STEP.unpack, agree(mine)))
            self._seed, self._is_new = seeds[0], -1 in all_known
            known = True if 1 in all_known else None if self._is_new else False
        self.are_seeded, self._drew = known is not False, known is True

    def _next(self, generator: Any) -> int:
        return int(self.torch.randint(1 << 62, (), generator=generator, device="cpu").item())

    def call(self, function: Callable[[], None], number: int, who: Any, may_wait: bool) -> bool:
        """Call a function with a seed of its own; false if another rank has the generator.

        `number` tells calls of a step apart, `who` says who calls. A caller that `may_wait` is not
        sent away.
        """
        if not _generator_lock.acquire(timeout=-1 if may_wait else _WAIT):
            return False
        try:
            _holders.append((who, time.monotonic()))
            generator = self.generator if self._drew else self._watched
            before = generator.get_state()
            generator.manual_seed(self._seed + number)
            try:
                function()
            finally:
                self._drew = self._drew or self._watched.drew()
                generator.set_state(before)
        finally:
            _holders.clear()
            _generator_lock.release()
        return True

    def release(self) -> None:
        """Look no more: a step has run, or failed."""
        if self._watched is not None:
            self._watched.end()

    def end(self, agree: Optional[Agree]) -> None:
        """End a step. A step that drew moves the generator on, so the next one draws others."""
        if agree is not None and self._is_new:
            self._drew = any(map(any, agree(bytes([self._drew]))))
        with _no_other_step():
            if self.are_seeded and self._drew:
                self._next(self.generator)
                _moves[0] += 1
            drew, moved = self._watched.drew(), _moves[0]
        if self.are_seeded:
            self._of[self._key] = self._drew
        elif moved == self._moved and drew:
            self._of[self._key] = True
            raise UsageError(
                "random numbers were drawn in this step, but none in the first one like it: ranks "
                "drew them in any order, and recomputed activations may differ",
                "drop the gradients of this step; later ones draw in order. Make a new Pipeline "
                "when a module begins to draw, and let other threads draw from a torch.Generator "
                "of their own",
            )


def with_holder(error: StalledError) -> Optional[StalledError]:
    """Give a stall with the rank that has the generator: others wait for it, and know it not."""
    for (rank, stage, function, microbatch), since in list(_holders):
        op = {"forward": "F", "backward": "B", "backward_input": "I", "backward_weight": "W"}
        action = f"{stage}{op[function]}{microbatch}"
        if f"rank {rank}, which is in {action}" in error.message:
            return None
        return StalledError(
            f"rank {rank} is in {action} since "
            f"{time.monotonic() - since:.1f} s, and other ranks wait for PyTorch's random "
            f"generator, which it has; {error.message}",
            f"look at rank {rank}'s stage {stage}: it has not returned from its {function}",
        )
    return None
