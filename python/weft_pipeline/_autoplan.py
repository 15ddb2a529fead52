"""Measure a live PyTorch pipeline, plan a better order for it, and switch to that."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Callable, NamedTuple, Optional

from ._costs import Costs
from ._errors import UsageError
from ._kineto import collect, costs_of, warn_of_host
from ._library import integer
from ._plan import Plan, plan
from ._program import Program
from ._trace import processes_of

Step = Callable[[Any], object]


def stages_in(schedule: Any) -> list[Any]:
    """Give the stages of a schedule on this rank."""
    return list(getattr(schedule, "_stages", None) or [schedule._stage])


@contextmanager
def _saved_bytes(torch: Any, stages: list[Any]) -> Iterator[dict[int, int]]:
    """Count what the forward of a microbatch keeps for its backward, by stage: the most."""
    found: dict[int, int] = {}

    def counted(stage: Any, forward: Any) -> Any:
        own = {
            tensor.untyped_storage().data_ptr()
            for module in (stage.submod,)
            for tensor in (*module.parameters(), *module.buffers())
        }

        def run(*args: Any, **kwargs: Any) -> Any:
            sizes: dict[int, int] = {}

            def pack(tensor: Any) -> Any:
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in own:
                    sizes[storage.data_ptr()] = storage.nbytes()
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                result = forward(*args, **kwargs)
            found[stage.stage_index] = max(found.get(stage.stage_index, 0), sum(sizes.values()))
            return result

        return run

    for stage in stages:
        stage.forward_one_chunk = counted(stage, stage.forward_one_chunk)
    try:
        yield found
    finally:
        for stage in stages:
            del stage.forward_one_chunk  # the class's is there again


def profile_program(
    schedule: Any, program: Program, step: Step, steps: int, warm_up: int, unit: str
) -> Costs:
    """Measure a schedule whose program is known (torch.profile())."""
    torch = import_module("torch")
    profiler = import_module("torch.profiler")
    if not callable(step):
        raise TypeError(f"step must be a function, not {type(step).__name__}")
    steps = integer(steps, "steps", 1, 10000)
    warm_up = integer(warm_up, "warm_up", 1, 10000)
    stages = stages_in(schedule)
    for _ in range(warm_up):
        with _saved_bytes(torch, stages) as saved:
            step(schedule)
    activities = [profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(profiler.ProfilerActivity.CUDA)
    with profiler.profile(activities=activities) as recorded:
        for _ in range(steps):
            step(schedule)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        recorded.export_chrome_trace(path)
        actions = [process.actions() for process in processes_of(path)]
    gathered = gather(stages[0], (actions, dict(saved)))
    sizes: dict[int, int] = {}
    for _, found in gathered:
        sizes.update(found)
    activations = [sizes.get(stage) for stage in range(program.stages)]
    ran = (process for processes, _ in gathered for process in processes)
    costs = costs_of(collect(ran), program, unit, activations)
    if stages[0].group_rank == 0:  # all ranks have the same costs
        warn_of_host(costs, program, 4)
    return costs


def gather(stage: Any, mine: Any) -> list[Any]:
    """Collect an object of every rank of the pipeline, on every rank."""
    dist = import_module("torch.distributed")
    everything: list[Any] = [None] * stage.group_size
    dist.all_gather_object(everything, mine, group=stage.group)
    return everything


class Autoplan(NamedTuple):
    """What autoplan() found: use `schedule` from now on.

    `before` and `after` are the predicted times of a step, in the unit of the costs. Where the
    plan gains nothing, `schedule` is the one that was there.
    """

    schedule: Any
    plan: Plan
    costs: Costs
    before: float
    after: float

    def __str__(self) -> str:
        """Say what is gained."""
        unit, step = self.costs.unit, self.costs.measured
        if step is not None and step.host_limited:
            return f"{self._gain()}; but the host limits the steps, at {step.time:g} {unit}"
        return self._gain()

    def _gain(self) -> str:
        unit = self.costs.unit
        if self.after >= self.before:
            return f"the schedule stays: {self.before:g} {unit}, planned {self.after:g} {unit}"
        gain = 100 * (1 - self.after / self.before)
        return (
            f"{self.before:g} {unit} -> {self.after:g} {unit} predicted, {gain:.1f} % less; "
            f"bound {self.plan.bound:g} {unit}"
        )


def plan_for(
    schedule: Any, program: Program, costs: Costs, memory: Optional[float], options: dict[str, Any]
) -> Plan:
    """Plan for the stages as they are placed; one rank searches, all get its plan."""
    stages = stages_in(schedule)
    placement = program.placement
    if program.stages % program.ranks or placement == "inferred":
        raise UsageError(
            "the stages are placed neither in a loop nor as a V, so there is nothing to plan"
        )
    found: Any = None
    if stages[0].group_rank == 0:
        splits = any(action is not None and action.op == "I" for row in program for action in row)
        options = {"whole_backward": not splits, "threads": 1, **options}
        try:
            found = plan(
                ranks=program.ranks,
                microbatches=program.microbatches,
                costs=costs,
                memory=memory,
                stages_per_rank=program.stages // program.ranks,
                placement=placement,
                **options,
            )
        except Exception as error:  # all ranks must know
            found = error
    found = gather(stages[0], found)[0]
    if isinstance(found, Exception):
        raise found
    return found  # type: ignore[no-any-return]
