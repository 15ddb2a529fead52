"""Against a real PyTorch: every schedule is checked, and tables run in several processes."""

import inspect
import json
import multiprocessing
import os
import tempfile
import time

import pytest
import test_launch
import weft_pipeline as weft
import weft_pipeline.torch as weft_torch

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("torch.distributed.pipelining")
import torch.distributed as dist  # noqa: E402
from torch.distributed.pipelining import PipelineStage, schedules  # noqa: E402

WIDTH, ROWS = 4, 2


def step_on(pipeline, batch):
    x, y = batch
    return pipeline.step(x, target=y)


class Stage:
    """As much of a pipeline stage as a schedule looks at before it runs."""

    def __init__(self, num_stages, group_size, index=0):
        self.num_stages = num_stages
        self.group_size = group_size
        self.group_rank = 0
        self.stage_index = index
        self.has_backward = True
        self.submod = torch.nn.Identity()
        self.is_first = index == 0
        self.is_last = index == num_stages - 1


def loss_of(output, target):
    return ((output - target) ** 2).sum()


MULTI = [
    (schedules.ScheduleLoopedBFS, 2),
    (schedules.ScheduleInterleaved1F1B, 2),
    (schedules.ScheduleInterleavedZeroBubble, 2),
    (schedules.ScheduleZBVZeroBubble, 2),
    (schedules.ScheduleDualPipeV, 2),
]


def multi(kind, p, v, m, **options):
    stages = [Stage(p * v, p, k) for k in range(v)]
    return kind(stages, m, loss_fn=loss_of, **options)


@pytest.mark.parametrize(("kind", "v"), MULTI)
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 12)])
def test_multi(kind, v, p, m):
    report = weft_torch.check(multi(kind, p, v, m))
    assert report.ok and report.liveness_checked
    assert (report.stages, report.microbatches) == (p * v, m)


@pytest.mark.parametrize("kind", [schedules.ScheduleGPipe, schedules.Schedule1F1B])
@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 2), (4, 8), (4, 5), (8, 8)])
def test_single(kind, p, m):
    schedule = kind(Stage(p, p), m, loss_fn=loss_of)
    report = weft_torch.check(schedule)
    assert report.ok and report.has_backward
    # The same computation in the same order as Weft's table.
    name = {"ScheduleGPipe": "GPipe", "Schedule1F1B": "1F1B"}[kind.__name__]
    table = weft.Table.named(name, ranks=p, microbatches=m)
    for ours, theirs in zip(table, report.program):
        compute = [str(a) for a in theirs if a.op in "FB"]
        assert compute == [str(a) for a in ours if a is not None and a.op in "FB"]


def test_forward_only():
    report = weft_torch.check(schedules._ScheduleForwardOnly(Stage(4, 4), 6))
    assert report.ok and not report.has_backward


def test_deferred_receives_deadlock():
    schedule = multi(schedules.ScheduleInterleaved1F1B, 2, 2, 2, defer_pp_recv=True)
    with pytest.raises(weft.VerifyError) as caught:
        weft_torch.check(schedule)
    assert caught.value.rule == "deadlock"
    assert {wait.rank for wait in caught.value.cycle} == {0, 1}
    assert weft_torch.check(schedule, "slots:1").ok


@pytest.mark.parametrize(("kind", "v"), MULTI)
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8)])
def test_deferred_receives_of_all(kind, v, p, m):
    if "defer_pp_recv" not in inspect.signature(kind).parameters:
        pytest.skip(f"{kind.__name__} has no defer_pp_recv")
    schedule = multi(kind, p, v, m, defer_pp_recv=True)
    try:
        weft_torch.check(schedule)
    except weft.VerifyError as error:
        assert error.rule == "deadlock" and error.cycle
    weft_torch.check(schedule, "eager")


class Recorder(Stage):
    """A stage that writes down what the loop of a schedule asks for."""

    def __init__(self, ranks, rank, log):
        super().__init__(ranks, ranks, rank)
        self.log = log

    def __getattr__(self, name):
        rank, last = self.stage_index, self.num_stages - 1
        ops = {
            "get_fwd_recv_ops": ("RECV_F", rank > 0),
            "get_fwd_send_ops": ("SEND_F", rank < last),
            "get_bwd_recv_ops": ("RECV_B", rank < last),
            "get_bwd_send_ops": ("SEND_B", rank > 0),
        }
        if name in ops:
            op, there = ops[name]
            return lambda k: [f"{rank}{op}{k}"] * there
        compute = {"forward_one_chunk": "F", "backward_one_chunk": "B"}
        if name in compute:
            return lambda k, *_, **__: self.log.append({f"{rank}{compute[name]}{k}"})
        if name == "perform_reduce_grad":
            return lambda _: self.log.append({f"{rank}REDUCE_GRAD"})
        raise AttributeError(name)


@pytest.mark.parametrize("kind", [schedules.ScheduleGPipe, schedules.Schedule1F1B])
@pytest.mark.parametrize(("p", "m"), [(1, 2), (2, 2), (4, 7)])
def test_loops_are_what_pytorch_runs(kind, p, m, monkeypatch):
    log = []

    def batch(ops, desc=None):
        if ops:
            log.append(set(ops))
        return []

    monkeypatch.setattr(schedules, "_batch_p2p", batch)
    monkeypatch.setattr(schedules, "_sorted_batch_p2p", lambda ops, desc=None: {0: batch(ops)})
    for name in ("_initialize_stage", "_maybe_compute_loss", "_maybe_get_loss", "_update_losses"):
        monkeypatch.setattr(kind, name, lambda *_, **__: None)
    for rank in range(p):
        log.clear()
        schedule = kind(Recorder(p, rank, log), m, loss_fn=loss_of)
        row = [str(action) for action in weft_torch.program_of(schedule)[rank]]
        schedule._step_microbatches([()] * m, [{}] * m, [None] * m, [])
        for together in log:  # a batch is started at once; a row has it in an order
            assert set(row[: len(together)]) == together
            del row[: len(together)]
        assert row == []


def test_autocheck(tmp_path):
    with weft_torch.autocheck():
        multi(schedules.ScheduleInterleaved1F1B, 4, 2, 8)
        schedules.Schedule1F1B(Stage(4, 4), 8, loss_fn=loss_of)
        with pytest.raises(weft.VerifyError):
            multi(schedules.ScheduleInterleaved1F1B, 2, 2, 2, defer_pp_recv=True)
        runtime = schedules._PipelineScheduleRuntime([Stage(2, 2)], 2, loss_fn=loss_of)
        file = tmp_path / "mine.csv"
        file.write_text(
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
            "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n"
        )
        with pytest.raises(weft.VerifyError) as caught:
            runtime._load_csv(str(file), format="compute_comms")
        assert caught.value.rule == "deadlock"
    multi(schedules.ScheduleInterleaved1F1B, 2, 2, 2, defer_pp_recv=True)
    with pytest.raises(TypeError):
        weft_torch.autocheck(3.5)


def test_wrong_arguments():
    for wrong in (None, 3, "1F1B", object()):
        with pytest.raises(TypeError):
            weft_torch.check(wrong)
    with pytest.raises(weft.UsageError):
        weft_torch.check(schedules._PipelineScheduleRuntime([Stage(2, 2)], 2, loss_fn=loss_of))
    table = weft.Table.named("1F1B", ranks=2, microbatches=2)
    with pytest.raises(weft.UsageError):
        weft_torch.runtime([], table)
    with pytest.raises(weft.UsageError):
        weft_torch.runtime([Stage(4, 2)], table)
    with pytest.raises(weft.UsageError) as caught:
        weft_torch.runtime([Stage(2, 2, 1)], table)
    assert "[1]" in caught.value.message and "[0]" in caught.value.message
    with pytest.raises(TypeError):
        weft_torch.runtime([Stage(2, 2)], "table.csv")

    class Own(schedules.ScheduleGPipe):
        def _step_microbatches(self, *args, **kwargs):
            pass

    with pytest.raises(weft.UnavailableError):
        weft_torch.check(Own(Stage(2, 2), 2, loss_fn=loss_of))


# ---- Several processes ----


def modules_of(count):
    torch.manual_seed(7)
    return [
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(count)
    ]


def batch_of(m):
    torch.manual_seed(8)
    return torch.randn(m * ROWS, WIDTH), torch.randn(m * ROWS, WIDTH)


def reference(count, m):
    modules = modules_of(count)
    x, y = batch_of(m)
    losses = []
    for k in range(m):
        rows = slice(k * ROWS, (k + 1) * ROWS)
        loss = loss_of(torch.nn.Sequential(*modules)(x[rows]), y[rows])
        loss.backward()
        losses.append(loss.item())
    return losses, {
        s: [q.grad.tolist() for q in module.parameters()] for s, module in enumerate(modules)
    }


def run_rank(rank, source, store, queue):
    torch.set_num_threads(1)
    table = source.table if isinstance(source, weft.Plan) else source
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=len(table))
    modules = modules_of(table.stages)
    mine = weft_torch.stages_of(source, rank)
    stages = [PipelineStage(modules[s], s, table.stages, torch.device("cpu")) for s in mine]
    schedule = weft_torch.runtime(stages, source, loss_of, scale_grads=False)
    assert weft_torch.check(schedule).ok
    x, y = batch_of(table.microbatches)
    losses = []
    last = {"target": y, "losses": losses} if table.stages - 1 in mine else {}
    schedule.step(*([x] if 0 in mine else []), **last)
    gradients = {s: [q.grad.tolist() for q in modules[s].parameters()] for s in mine}
    queue.put(([loss.item() for loss in losses], gradients))
    dist.barrier()
    dist.destroy_process_group()


class Takes(torch.autograd.Function):
    """Takes some seconds forward, and twice as many backward."""

    @staticmethod
    def forward(context, x, seconds):
        context.seconds = seconds
        time.sleep(seconds)
        return x * 1

    @staticmethod
    def backward(context, gradient):
        time.sleep(2 * context.seconds)
        return gradient * 1, None


class Uneven(torch.nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, WIDTH)
        self.last = torch.nn.Linear(WIDTH, WIDTH)
        self.seconds = seconds

    def forward(self, x):
        return self.last(Takes.apply(self.first(x), self.seconds))


SECONDS = {  # of each stage
    2: [0.012, 0.004, 0.004, 0.012],
    4: [0.012, 0.004, 0.008, 0.004, 0.004, 0.008, 0.004, 0.012],
}


def autoplan_rank(rank, p, m, store, queue):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=p)
    torch.manual_seed(7)
    modules = [Uneven(seconds) for seconds in SECONDS[p]]
    mine = [rank, p + rank]
    stages = [PipelineStage(modules[s], s, 2 * p, torch.device("cpu")) for s in mine]
    x, y = batch_of(m)
    losses = []

    def step(schedule):
        for module in modules:
            module.zero_grad()
        losses.clear()
        last = {"target": y, "losses": losses} if 2 * p - 1 in mine else {}
        begin = time.perf_counter()
        schedule.step(*([x] if 0 in mine else []), **last)
        return time.perf_counter() - begin

    def gradients():
        return [q.grad.clone() for s in mine for q in modules[s].parameters()]

    schedule = schedules.ScheduleLoopedBFS(stages, m, loss_fn=loss_of, scale_grads=False)
    found = weft_torch.autoplan(schedule, step, steps=2, effort=0.05)
    weft_torch.check(found.schedule)
    step(schedule)
    expected, expected_losses = gradients(), [loss.item() for loss in losses]
    step(found.schedule)
    same = all(map(torch.allclose, gradients(), expected))
    same = same and [loss.item() for loss in losses] == pytest.approx(expected_losses)
    times = [(step(schedule), step(found.schedule)) for _ in range(5)]
    queue.put((found.before, found.after, same, times, str(found), found.costs.to_dict()))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("p", SECONDS)
def test_autoplan(p, capsys):
    m = 8
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        ranks = [
            context.Process(target=autoplan_rank, args=(rank, p, m, store, queue))
            for rank in range(p)
        ]
        for rank in ranks:
            rank.start()
        found = [queue.get(timeout=200) for _ in ranks]
        for rank in ranks:
            rank.join(timeout=60)
            assert rank.exitcode == 0
    assert all(same for _, _, same, *_ in found)
    assert all(rank[4:] == found[0][4:] for rank in found)  # the same plan and costs
    before, after, _, times, said, costs = found[0]
    measured = [min(pair[k] for pair in times) for k in (0, 1)]
    with capsys.disabled():
        print(
            f"\n  {p} processes: {said}; measured "
            f"{1e3 * measured[0]:.0f} ms -> {1e3 * measured[1]:.0f} ms"
        )
    stages = costs["stages"]
    sizes = [stage["activation"] for stage in stages]
    assert min(sizes) >= ROWS * WIDTH * 4  # at least the input of a layer, in bytes
    late = max(
        stage[op] / (1e3 * seconds * (1 if op == "f" else 2))
        for stage, seconds in zip(stages, SECONDS[p])
        for op in "fb"
    )
    if late > 1.4 or 1e3 * measured[0] > 1.2 * before:  # stages sleep, so others take the time
        pytest.skip(
            f"the machine is busy: a stage takes {late:.1f} times as long as it sleeps, and a step "
            f"{1e3 * measured[0] / before:.1f} times as long as its actions"
        )
    assert after < 0.9 * before
    assert measured[1] < measured[0]
    assert stages[0]["f"] > 2 * stages[1]["f"] and stages[-1]["b"] > 2 * stages[-2]["b"]


def test_split_backwards_of_one_rank(tmp_path):
    """PyTorch's I of stage 0 does nothing: it takes no time, but has its place in a timeline."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        stages = [
            PipelineStage(torch.nn.Linear(WIDTH, WIDTH), s, 2, torch.device("cpu"))
            for s in range(2)
        ]
        row = ["0F0", "1F0", "1I0", "0F1", "1F1", "1W0", "0I0", "1I1", "0W0", "1W1", "0I1", "0W1"]
        table = weft.Table.from_rows([row])
        schedule = weft_torch.runtime(stages, table, loss_of, scale_grads=False)
        x, y = batch_of(2)

        def step(schedule):
            schedule.step(x, target=y)

        costs = weft_torch.profile(schedule, step, steps=2)
        first, last = costs.to_dict()["stages"]
        assert first["i"] == 0 and first["b"] == first["w"] > 0 and last["i"] > 0
        assert costs.measured.time > 0 and not costs.measured.host_limited
        cpu = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=cpu) as recorded:
            step(schedule)
        recorded.export_chrome_trace(str(tmp_path / "trace.json"))
    finally:
        dist.destroy_process_group()
    timeline = weft_torch.timeline_from_kineto(tmp_path, table)
    assert [str(event.action) for event in timeline] == row
    assert min(event.end - event.begin for event in timeline) == 0


PLANNED = weft.plan(
    ranks=2, microbatches=4, memory=3, threads=1, effort=0.05, costs=weft.Costs(f=1, i=2, w=1)
)


@pytest.mark.parametrize(
    "source",
    [
        weft.Table.named("1F1B", ranks=2, microbatches=4),
        weft.Table.named("ZBVZeroBubble", ranks=2, microbatches=4),
        weft.Table.named("Interleaved1F1B", ranks=4, stages_per_rank=2, microbatches=4),
        weft.Table.from_rows(
            [["1F0", "1F1", "1B0", "1B1"], ["0F0", "0F1", "0B0", "0B1"]]  # a placement of its own
        ),
        PLANNED,
    ],
    ids=["1F1B", "ZBV", "Interleaved", "reversed", "planned"],
)
def test_runtime_computes_the_same(source):
    table = source.table if isinstance(source, weft.Plan) else source
    context = multiprocessing.get_context("fork")  # torch is loaded once
    queue = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        ranks = [
            context.Process(target=run_rank, args=(rank, source, store, queue))
            for rank in range(len(table))
        ]
        for rank in ranks:
            rank.start()
        found = [queue.get(timeout=200) for _ in ranks]
        for rank in ranks:
            rank.join(timeout=60)
            assert rank.exitcode == 0
    losses, gradients = reference(table.stages, table.microbatches)
    assert max((got for got, _ in found), key=len) == pytest.approx(losses, rel=1e-5)
    together = {s: g for _, got in found for s, g in got.items()}
    assert sorted(together) == sorted(gradients)
    for stage, expected in gradients.items():
        for got, want in zip(together[stage], expected):
            assert torch.allclose(torch.tensor(got), torch.tensor(want), rtol=1e-5, atol=1e-6)


# ---- Weft's own runtime ----


class Fails(torch.nn.Module):
    def forward(self, x):
        raise ZeroDivisionError("in a stage")
        return x * 1


class Sleeps(torch.nn.Module):
    def forward(self, x):
        time.sleep(3)
        return x * 1


@pytest.mark.parametrize(
    "schedule",
    [
        "1F1B",
        "GPipe",
        weft.Table.named("ZBVZeroBubble", ranks=2, microbatches=4),
        weft.Table.named("Interleaved1F1B", ranks=2, stages_per_rank=2, microbatches=4),
        weft.Table.named("DualPipeV", ranks=2, microbatches=4),
        weft.plan(ranks=2, microbatches=4, stages_per_rank=2, effort=0.05, threads=1),
    ],
    ids=["1F1B", "GPipe", "ZBV", "Interleaved", "DualPipeV", "planned"],
)
def test_pipeline_computes_the_same(schedule):
    modules = modules_of(4)
    pipeline = weft_torch.Pipeline(
        modules, schedule, loss_of, microbatches=4, scale_grads=False, stall_limit=60
    )
    x, y = batch_of(4)
    found = pipeline.step(x, target=y, return_outputs=True)
    losses, gradients = reference(4, 4)
    assert found.losses == pytest.approx(losses, rel=1e-6)
    for stage, module in enumerate(modules):
        for weight, expected in zip(module.parameters(), gradients[stage]):
            assert torch.allclose(weight.grad, torch.tensor(expected), rtol=1e-5, atol=1e-6)
    whole = torch.nn.Sequential(*modules)(x).detach()
    assert torch.allclose(found.output, whole, rtol=1e-5, atol=1e-6)
    assert torch.allclose(pipeline.eval(x).output, whole, rtol=1e-5, atol=1e-6)
    before = [weight.grad.clone() for weight in modules[0].parameters()]
    pipeline.step(x, target=y)  # gradients add up
    for weight, once in zip(modules[0].parameters(), before):
        assert torch.allclose(weight.grad, 2 * once, rtol=1e-5, atol=1e-6)


class Wide(torch.nn.Module):
    def __init__(self, view):
        super().__init__()
        self.first, self.last = torch.nn.Linear(WIDTH, 300), torch.nn.Linear(300, WIDTH)
        self.deep = torch.nn.Linear(300, 300)  # more weights than make a walk worth it
        self.view = view

    def forward(self, x):
        y = self.last(torch.tanh(self.deep(torch.tanh(self.first(x)))) + self.first(x))
        return y.view(-1, WIDTH) if self.view else y


@pytest.mark.parametrize("view", [False, True])
def test_pipeline_splits_the_backward_of_large_stages(view):
    torch.manual_seed(7)
    modules = [Wide(view) for _ in range(4)]
    x, y = batch_of(4)
    expected = []
    for module in modules:
        module.zero_grad()
    for rows, target in zip(x.split(ROWS), y.split(ROWS)):
        loss_of(torch.nn.Sequential(*modules)(rows), target).backward()
    for module in modules:
        expected += [weight.grad.clone() for weight in module.parameters()]
        module.zero_grad()
    table = weft.Table.named("ZBVZeroBubble", ranks=2, microbatches=4)
    pipeline = weft_torch.Pipeline(modules, table, loss_of, scale_grads=False, stall_limit=60)
    assert all(stage.visits_graph for stage in pipeline._stages)
    pipeline.step(x, target=y)
    found = [weight.grad for module in modules for weight in module.parameters()]
    for got, want in zip(found, expected):
        assert torch.allclose(got, want, rtol=1e-4, atol=1e-5)


def test_pipeline_scales_and_takes_other_batches():
    modules = modules_of(2)
    pipeline = weft_torch.Pipeline(modules, "1F1B", loss_of, microbatches=4)
    x, y = batch_of(4)
    pipeline.step(x, target=y)
    _, gradients = reference(2, 4)
    for weight, expected in zip(modules[1].parameters(), gradients[1]):
        assert torch.allclose(weight.grad, torch.tensor(expected) / 4, rtol=1e-5, atol=1e-6)
    assert len(pipeline.step(torch.cat([x, x]), target=torch.cat([y, y])).losses) == 4
    assert len(pipeline.step(x[:5], target=y[:5]).losses) == 4
    rows = x.t().contiguous().t()  # not contiguous
    assert pipeline.step(rows, target=y).losses == pipeline.step(x, target=y).losses


def test_pipeline_in_autocast():
    """Ranks are threads, and modes of PyTorch belong to a thread."""
    x, y = batch_of(4)
    modules = modules_of(2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pipeline = weft_torch.Pipeline(modules, "1F1B", loss_of, microbatches=4, scale_grads=False)
        found = pipeline.step(x, target=y, return_outputs=True)
        gradients = [weight.grad for module in modules for weight in module.parameters()]
        model = torch.nn.Sequential(*modules_of(2))
        losses = []
        for rows, target in zip(x.split(ROWS), y.split(ROWS)):
            loss = loss_of(model(rows), target)
            loss.backward()
            losses.append(loss.item())
    assert found.output.dtype == torch.bfloat16
    assert found.losses == tuple(losses)
    for got, weight in zip(gradients, model.parameters()):
        assert torch.equal(got, weight.grad)


def test_pipeline_fails_with_the_reason():
    x, y = batch_of(4)
    pipeline = weft_torch.Pipeline([*modules_of(1), Fails()], "1F1B", loss_of, microbatches=4)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError) as caught:
            pipeline.step(x, target=y)
        assert "1F0" in str(caught.value.__cause__)
    asleep = weft_torch.Pipeline(
        [*modules_of(1), Sleeps()], "1F1B", loss_of, microbatches=4, stall_limit=0.5
    )
    with pytest.raises(weft.StalledError) as caught:
        asleep.step(x, target=y)
    assert "rank 1" in caught.value.message and "1F0" in caught.value.message
    good = weft_torch.Pipeline(modules_of(2), "1F1B", loss_of, microbatches=4)
    for wrong, kind in (
        ((x[:3], y), weft.UsageError),
        ((x, None), weft.UsageError),
        ((3, y), TypeError),
        ((x, "y"), TypeError),
        ((torch.tensor(3.0), y), weft.UsageError),
    ):
        with pytest.raises(kind):
            step_on(good, wrong)
    for wrong in ([], [3], "modules"):
        with pytest.raises(TypeError):
            weft_torch.Pipeline(wrong, "1F1B", loss_of, microbatches=4)
    for count, name, m in ((2, "1F1B", 0), (3, "ZBVZeroBubble", 4), (2, "2F2B", 4)):
        with pytest.raises(weft.UsageError) as caught:
            weft_torch.Pipeline(modules_of(count), name, loss_of, microbatches=m)
        assert caught.value.hint
    rows = torch.nn.MSELoss(reduction="none")
    pipeline = weft_torch.Pipeline(modules_of(2), "1F1B", rows, microbatches=4)
    with pytest.raises(weft.UsageError) as caught:
        pipeline.step(x, target=y)
    assert caught.value.hint
    with pytest.raises(weft.UsageError):
        table = weft.Table.named("1F1B", ranks=3, microbatches=4)
        weft_torch.Pipeline(modules_of(2), table, loss_of)


# ---- Between processes ----

MPI_JOB = """\
import json, os, signal, sys, time
sys.path[:0] = [os.path.dirname(TEST)]
from weft_pipeline import launch
launch.begin()
import torch
import weft_pipeline as weft
import weft_pipeline.torch as weft_torch
from test_torch import WIDTH, batch_of, loss_of, modules_of

torch.set_num_threads(1)
name, m, what = sys.argv[1], int(sys.argv[2]), sys.argv[3]


class Trouble(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "sleep":
            time.sleep(300)
        if what == "raise":
            raise ZeroDivisionError("in a stage")
        if what == "detach":
            return self.linear(x.detach())
        return x * 1


me = launch.info()
table = weft.Table.named(name, ranks=me.ranks, microbatches=m)
mine = weft_torch.stages_of(table, me.rank)
modules = [module if k in mine else None for k, module in enumerate(modules_of(table.stages))]
if what and modules[1] is not None:
    modules[1] = torch.nn.Sequential(modules[1], Trouble())
pipeline = weft_torch.Pipeline(
    modules, table, loss_of, scale_grads=False, transport="mpi",
    stall_limit=1 if what == "sleep" else 60,
)
x, y = batch_of(m)
first, last = 0 in mine, table.stages - 1 in mine
found = pipeline.step(x if first else None, target=y if last else None)
gradients = {
    k: [None if w.grad is None else w.grad.tolist() for w in modules[k].parameters()] for k in mine
}
output = pipeline.eval(x if first else None).output
smaller = pipeline.eval(x[:5] if first else None).output
larger = pipeline.eval(x.repeat(99999, 1) if first else None).output  # megabytes
assert not last or torch.allclose(larger[-len(x) :], output, rtol=1e-5, atol=1e-6)
with open(f"rank{me.rank}.json", "w") as file:
    outputs = [out.tolist() if last else None for out in (output, smaller)]
    json.dump([found.losses, gradients, outputs], file)
"""


def mpi_job(tmp_path, monkeypatch, mpi, ranks, *words):
    file = tmp_path / "job.py"
    file.write_text(MPI_JOB.replace("TEST", repr(os.path.abspath(__file__))))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEFT_BUILD_DIR", os.path.abspath(test_launch.BUILD))
    return test_launch.mpirun(mpi, ranks, file, *map(str, words))


@pytest.mark.parametrize(
    ("ranks", "name"), [(2, "1F1B"), (2, "ZBVZeroBubble"), (4, "Interleaved1F1B")]
)
@pytest.mark.parametrize("mpi", test_launch.MPIS)
def test_pipeline_over_mpi(mpi, ranks, name, tmp_path, monkeypatch):
    status, said = mpi_job(tmp_path, monkeypatch, mpi, ranks, name, 4, "")
    assert status == 0, said
    found = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(ranks)]
    stages = weft.Table.named(name, ranks=ranks, microbatches=4).stages
    losses, gradients = reference(stages, 4)
    assert max((got[0] for got in found), key=len) == pytest.approx(losses, rel=1e-6)
    together = {int(s): g for got in found for s, g in got[1].items()}
    assert sorted(together) == sorted(gradients)
    for stage, expected in gradients.items():
        for got, want in zip(together[stage], expected):
            assert torch.allclose(torch.tensor(got), torch.tensor(want), rtol=1e-5, atol=1e-6)
    (outputs,) = [got[2] for got in found if got[2][0] is not None]
    x, _ = batch_of(4)
    whole = torch.nn.Sequential(*modules_of(stages))(x).detach()
    assert torch.allclose(torch.tensor(outputs[0]), whole, rtol=1e-5, atol=1e-6)
    assert torch.allclose(torch.tensor(outputs[1]), whole[:5], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("kill", "rank 1 (pid "),
        ("sleep", "look at rank 1's stage 1: it has not returned from its forward"),
        ("raise", "1F0 failed: stage 1: ZeroDivisionError: in a stage"),
    ],
)
@pytest.mark.parametrize("mpi", test_launch.MPIS)
def test_pipeline_over_mpi_fails(mpi, what, expected, tmp_path, monkeypatch):
    status, said = mpi_job(tmp_path, monkeypatch, mpi, 4, "1F1B", 4, what)
    assert status == 75, said
    assert expected in said
    assert said.count("Traceback") == (2 if what == "raise" else 0), said


@pytest.mark.parametrize("mpi", test_launch.MPIS[:1])
def test_no_gradient_over_mpi(mpi, tmp_path, monkeypatch):
    status, said = mpi_job(tmp_path, monkeypatch, mpi, 3, "1F1B", 4, "detach")
    assert status == 0, said
    found = [json.loads((tmp_path / f"rank{rank}.json").read_text())[1] for rank in range(3)]
    assert set(found[0]["0"]) == {None} and None not in found[1]["1"][2:] + found[2]["2"]


def test_pipeline_over_mpi_arguments():
    with pytest.raises(weft.UsageError) as caught:
        weft_torch.Pipeline(modules_of(2), "1F1B", loss_of, microbatches=4, transport="mpi")
    assert "2 ranks; there are 1 process" in caught.value.message
    for wrong in ({"transport": "ucx"}, {"progress": "magic"}):
        with pytest.raises(weft.UsageError):
            weft_torch.Pipeline(modules_of(2), "1F1B", loss_of, microbatches=4, **wrong)
    with pytest.raises(weft.UnavailableError) as caught:
        away = [torch.nn.Linear(2, 2, device="meta"), *modules_of(1)]
        weft_torch.Pipeline(away, "1F1B", loss_of, microbatches=4)
    assert "meta" in caught.value.message
