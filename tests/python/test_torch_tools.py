"""Tools of PyTorch around Pipeline's steps: the profiler, modes of dispatch, hooks."""

import collections
import importlib
import inspect

import pytest
import weft_pipeline as weft
import weft_pipeline.torch as weft_torch

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("torch.distributed.pipelining")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

WIDTH, ROWS, M = 8, 3, 4
EVERYWHERE = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)


def step_on(pipeline, batch):
    x, y = batch
    return pipeline.step(x, target=y)


def layers(count):
    torch.manual_seed(5)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count)]


def batch():
    torch.manual_seed(11)
    return torch.randn(ROWS * M, WIDTH), torch.randn(ROWS * M, WIDTH)


def pipeline_of(schedule, stages=2, **options):
    return weft_torch.Pipeline(
        layers(stages), schedule, nn.MSELoss(), microbatches=M, stall_limit=60, **options
    )


def ranges_of(profile):
    return collections.Counter(
        event.name for event in profile.events() if event.name.startswith("PP:")
    )


@pytest.mark.parametrize("schedule", ["1F1B", "ZBH1", "InterleavedZeroBubble"])
def test_every_action_is_a_range(schedule):
    pipeline = pipeline_of(schedule, 4)
    step_on(pipeline, batch())
    with torch.profiler.profile(experimental_config=EVERYWHERE) as profile:
        for _ in range(2):
            step_on(pipeline, batch())
    wanted = [
        f"PP:{action}"
        for row in pipeline.program
        for action in row
        if action.op in ("F", "B", "I", "W")
    ]
    assert ranges_of(profile) == dict.fromkeys(wanted, 2)
    with torch.profiler.profile(experimental_config=EVERYWHERE) as profile:
        pipeline.eval(batch()[0])
    assert set(ranges_of(profile)) == {f"PP:{s}F{k}" for s in range(4) for k in range(M)}


def test_ranges_of_actions_that_draw():
    modules = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5)) for _ in range(2)]
    pipeline = weft_torch.Pipeline(modules, "ZBH1", nn.MSELoss(), microbatches=M)
    with torch.profiler.profile(experimental_config=EVERYWHERE) as profile:
        step_on(pipeline, batch())
    assert set(ranges_of(profile).values()) == {1} and len(ranges_of(profile)) == 2 * 3 * M


def test_no_ranges_without_a_profiler(monkeypatch):
    def record(name):
        raise AssertionError(name)

    monkeypatch.setattr(torch.profiler, "record_function", record)
    step_on(pipeline_of("1F1B"), batch())


def test_flops_of_ranks_that_are_threads_are_refused():
    pipeline = pipeline_of("1F1B")
    with FlopCounterMode(display=False), pytest.raises(weft.UsageError) as caught:
        step_on(pipeline, batch())
    assert "FlopCounterMode" in caught.value.message and "other threads" in caught.value.message
    assert 'transport="torch"' in caught.value.hint
    step_on(pipeline, batch())  # without it the pipeline goes on


def test_flops_of_a_rank_that_is_a_process_are_counted(tmp_path):
    """A process of its own computes in the caller's thread, so its modes and hooks count."""
    if "sort_ranks" not in inspect.signature(dist.new_group).parameters:
        pytest.skip("the transport torch needs a later PyTorch")
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    packed = []
    try:
        pipeline = pipeline_of("1F1B", 1, transport="torch")
        step_on(pipeline, batch())
        with FlopCounterMode(display=False) as counted:
            step_on(pipeline, batch())
        # Forward and the gradient of the weight; nobody needs that of the input.
        assert counted.get_total_flops() == 2 * 2 * ROWS * M * WIDTH * WIDTH
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: packed.append(tensor) or tensor, lambda tensor: tensor
        ):
            step_on(pipeline, batch())
        assert len(packed) >= 2 * M
        with torch.profiler.profile() as profile:
            step_on(pipeline, batch())
        assert set(ranges_of(profile)) == {f"PP:0{op}{k}" for op in "FB" for k in range(M)}
    finally:
        dist.destroy_process_group()


def test_hooks_of_saved_tensors_that_change_them():
    """They pack in the forward and unpack in the backward, on every rank, as in a plain loop."""

    def loop():
        modules = layers(2)
        for x, y in zip(*(tensor.tensor_split(M) for tensor in batch())):
            (nn.MSELoss()(nn.Sequential(*modules)(x), y) / M).backward()
        return [w.grad for module in modules for w in module.parameters()]

    def halved():
        return torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: tensor.to(torch.bfloat16), lambda tensor: tensor.to(torch.float32)
        )

    exact = loop()
    with halved():
        expected = loop()
    assert not all(torch.equal(a, b) for a, b in zip(exact, expected))
    for schedule in ("1F1B", "ZBH1"):
        modules = layers(2)
        pipeline = weft_torch.Pipeline(modules, schedule, nn.MSELoss(), microbatches=M)
        with halved():
            step_on(pipeline, batch())
        found = [w.grad for module in modules for w in module.parameters()]
        for a, b in zip(found, expected):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_hooks_of_saved_tensors_that_raise():
    def pack(tensor):
        raise RuntimeError("no room on disk")

    pipeline = pipeline_of("1F1B")
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks, pytest.raises((RuntimeError, weft.StageError), match="no room on disk"):
        step_on(pipeline, batch())
    step_on(pipeline, batch())


def test_schedules_by_their_classes():
    from torch.distributed.pipelining import schedules

    for kind in (schedules.Schedule1F1B, schedules.ScheduleInterleavedZeroBubble):
        pipeline = pipeline_of(kind, 4)
        assert len(step_on(pipeline, batch()).losses) == M
        assert pipeline.program == pipeline_of(kind.__name__, 4).program


@pytest.mark.parametrize("schedule", ["1F1B", "InterleavedZeroBubble"])
def test_costs_from_a_trace_of_a_pipeline(schedule, tmp_path):
    pipeline = pipeline_of(schedule, 4)
    step_on(pipeline, batch())
    with torch.profiler.profile(experimental_config=EVERYWHERE) as profile:
        for _ in range(3):
            step_on(pipeline, batch())
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    costs = weft_torch.costs_from_kineto(tmp_path, pipeline.program)
    stages = costs.to_dict()["stages"]
    assert len(stages) == 4 and all(stage["f"] > 0 and stage["b"] > 0 for stage in stages)
    timeline = weft_torch.timeline_from_kineto(tmp_path, pipeline.program, costs, step=1)
    busy = [rank.busy for rank in timeline.ranks]
    assert len(busy) == pipeline.program.ranks and all(
        0 < time < timeline.makespan for time in busy
    )


MEGATRON = """
def forward_step(model, x):
    return model(x)

def backward_step(y):
    y.square().sum().backward()

def iteration(model, microbatches):  # of a pipeline with one rank: 1F1B
    for x in microbatches:
        backward_step(forward_step(model, x))
"""


def test_functions_in_a_trace_with_stacks(tmp_path, monkeypatch):
    """What --pytorch-profiler-collect-callstack of Megatron-LM leaves of its own functions."""
    folder = tmp_path / "megatron" / "core" / "pipeline_parallel"
    folder.mkdir(parents=True)
    (folder / "schedules.py").write_text(MEGATRON)
    monkeypatch.syspath_prepend(str(tmp_path))
    iteration = importlib.import_module("megatron.core.pipeline_parallel.schedules").iteration
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    parts = torch.randn(M, 32, 64)
    iteration(model, parts)
    with torch.profiler.profile(with_stack=True) as profile:
        for _ in range(2):
            iteration(model, parts)
    (tmp_path / "traces").mkdir()
    profile.export_chrome_trace(str(tmp_path / "traces" / "rank-0.json.gz"))
    table = weft.Table.named("1F1B", ranks=1, microbatches=M)
    costs = weft_torch.costs_from_kineto(tmp_path / "traces", table)
    (stage,) = costs.to_dict()["stages"]
    assert 0 < stage["f"] < 1000 and 0 < stage["b"] < 1000
    assert weft_torch.timeline_from_kineto(tmp_path / "traces", table, step=1).makespan > 0
    with pytest.raises(weft.UsageError, match="in a step"):
        other = weft.Table.named("1F1B", ranks=1, microbatches=M + 1)
        weft_torch.costs_from_kineto(tmp_path / "traces", other)
