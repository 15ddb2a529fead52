"""Pipeline with stages on GPUs, as far as it goes without one: on the fake driver of tests/device.

PyTorch computes on the CPU here, in the fake driver's memory, when all that was enqueued before has
run; ranks, streams, buffers, messages and losses are those of the runtime on GPUs. What PyTorch
does on a real GPU is tests/python/device_tensors.py.
"""

import ctypes
import json
import os
import re
import subprocess
import sys
import threading
import time
import warnings

import pytest
import test_launch
import test_torch_graphs
import weft_pipeline as weft
import weft_pipeline.torch as weft_torch
from weft_pipeline import _devices, _worlds

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from test_torch import batch_of, loss_of, modules_of, reference  # noqa: E402

FAKE = os.path.join(os.path.abspath(test_launch.BUILD), "tests", "fake-cuda")
IS_FAKE = os.environ.get("WEFT_FAKE_CUDA") is not None


def step_on(pipeline, batch):
    x, y = batch
    return pipeline.step(x, target=y)


def test_on_the_fake_driver():
    """Run the tests below in a process that has the fake driver for libcuda."""
    if IS_FAKE:
        return
    if not os.path.exists(os.path.join(FAKE, "libcuda.so.1")):
        pytest.skip("the fake CUDA driver is not built")
    environment = {**os.environ, "LD_LIBRARY_PATH": FAKE, "WEFT_FAKE_CUDA": "devices=2,queues=4"}
    environment["XDG_CACHE_HOME"] = "/nonexistent"
    command = [sys.executable, "-m", "pytest", "-qx", "-rs", "-p", "no:cacheprovider", __file__]
    command += ["-k", "not without_a_gpu"]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    if "skipped" in done.stdout:
        warnings.warn("\n".join(re.findall("^SKIPPED.*", done.stdout, re.M)), stacklevel=1)


on_fake = pytest.mark.skipif(not IS_FAKE, reason="test_on_the_fake_driver runs it")


class Gpu(_devices.Gpu):
    """A GPU of the fake driver, on which PyTorch computes at once."""

    threads = None  # of a step

    def __init__(self, torch, index):
        super().__init__(torch, index)
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.driver.fake_cuda_view.restype = ctypes.c_void_p
        self.driver.fake_cuda_view.argtypes = [ctypes.c_void_p]
        self.driver.fake_cuda_run.restype = ctypes.c_bool
        self.torch_device = torch.device("cpu")

    def begin(self):
        Gpu.threads = set()

    def enter(self, handle):
        assert handle
        Gpu.threads.add(threading.get_ident())
        assert self.driver.fake_cuda_run()
        assert self.driver.fake_cuda_finding_count() == 0


def on_gpus(monkeypatch, gpu_of_rank):
    """Ranks on these GPUs; None: on the host."""
    monkeypatch.setattr(
        _devices,
        "_device_of",
        lambda _, rank: (
            torch.device("cpu")
            if gpu_of_rank(rank) is None
            else torch.device("cuda", gpu_of_rank(rank))
        ),
    )
    monkeypatch.setattr(_devices, "Gpu", Gpu)


WHERE = {
    "one": lambda rank: 0,
    "two": lambda rank: rank % 2,
    "uneven": lambda rank: min(rank, 1),
    "host-too": lambda rank: None if rank == 1 else 0,
}


@on_fake
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(
    "table",
    [
        weft.Table.named("1F1B", ranks=2, microbatches=4),
        weft.Table.named("ZBVZeroBubble", ranks=4, microbatches=8),
        weft.Table.named("Interleaved1F1B", ranks=4, stages_per_rank=2, microbatches=8),
        weft.Table.named("DualPipeV", ranks=4, microbatches=8),
    ],
    ids=["1F1B", "ZBV", "Interleaved", "DualPipeV"],
)
def test_losses_and_gradients(table, where, monkeypatch):
    on_gpus(monkeypatch, WHERE[where])
    modules, m = modules_of(table.stages), table.microbatches
    losses, gradients = reference(table.stages, m)
    x, y = batch_of(m)
    pipeline = weft_torch.Pipeline(modules, table, loss_of, scale_grads=False)
    for _ in range(2):
        for module in modules:
            module.zero_grad()
        found = pipeline.step(x, target=y, return_outputs=True)
        assert len(Gpu.threads) == 1  # which enqueues all ranks
        assert found.losses == pytest.approx(losses, rel=1e-6)
        for k, module in enumerate(modules):
            for weight, want in zip(module.parameters(), gradients[k]):
                assert torch.allclose(weight.grad, torch.tensor(want), rtol=1e-5, atol=1e-6)
    whole = torch.nn.Sequential(*modules)(x).detach()
    assert torch.allclose(found.output, whole, rtol=1e-5, atol=1e-6)
    assert torch.allclose(pipeline.eval(x[:-1]).output, whole[:-1], rtol=1e-5, atol=1e-6)
    pipeline.close()


@on_fake
def test_partitions(monkeypatch):
    on_gpus(monkeypatch, WHERE["one"])
    x, y = batch_of(4)
    for ranks, parts in ((4, 2), (2, 2), (2, 4)):
        table = weft.Table.named("1F1B", ranks=ranks, microbatches=4)
        pipeline = weft_torch.Pipeline(
            modules_of(ranks), table, loss_of, scale_grads=False, partitions=parts
        )
        assert pipeline.step(x, target=y).losses == pytest.approx(reference(ranks, 4)[0], rel=1e-6)
        pipeline.close()
    too_many = weft_torch.Pipeline(modules_of(2), "1F1B", loss_of, microbatches=4, partitions=60)
    with pytest.raises(weft.UsageError) as caught:
        too_many.step(x, target=y)
    assert "cannot be split into 60 partitions" in caught.value.message and caught.value.hint


@on_fake
def test_places_of_ranks():
    """Ranks of a GPU fill its partitions in order, as many in each as is even."""
    for ranks, parts, expected in (
        (4, 0, [0, 0, 0, 0]),
        (4, 2, [0, 0, 1, 1]),
        (3, 2, [0, 0, 1]),
        (2, 4, [0, 1]),
    ):
        devices = {r: Gpu(torch, 1) for r in range(ranks)}
        gpus = _devices.Gpus(devices, parts)
        addresses = [ctypes.addressof(gpus.device_of[r].contents) for r in range(ranks)]
        assert len(set(addresses)) == ranks
        assert all(device.contents.number == 1 for device in gpus.device_of.values())
        lib = _devices.lib
        count = len(set(expected)) if parts else 1
        texts = {
            ctypes.addressof(lib.weft_cuda_device(gpus.handle.pointer, k).contents): (
                lib.weft_cuda_location(gpus.handle.pointer, k).decode()
            )
            for k in range(max(parts, 1) * -(-ranks // max(parts, 1)))
        }
        found = [texts[address] for address in addresses]
        assert len(set(found)) == count, found
        if parts:
            assert [f"partition {k} of {parts}" in text for k, text in zip(expected, found)] == [
                True
            ] * ranks


class Fails(torch.nn.Module):
    def forward(self, x):
        raise ZeroDivisionError("in a stage")


@on_fake
def test_a_stage_fails(monkeypatch):
    on_gpus(monkeypatch, WHERE["two"])
    x, y = batch_of(4)
    pipeline = weft_torch.Pipeline([*modules_of(1), Fails()], "1F1B", loss_of, microbatches=4)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError) as caught:
            pipeline.step(x, target=y)
        assert "1F0" in str(caught.value.__cause__)


class Sleeps(torch.nn.Module):
    def forward(self, x):
        time.sleep(60)
        return x * 1


@on_fake
def test_a_stage_hangs(monkeypatch):
    on_gpus(monkeypatch, WHERE["one"])
    x, y = batch_of(4)
    pipeline = weft_torch.Pipeline(
        [*modules_of(1), Sleeps()], "1F1B", loss_of, microbatches=4, stall_limit=0.5
    )
    begin = time.monotonic()
    with pytest.raises(weft.StalledError) as caught:
        pipeline.step(x, target=y)
    assert time.monotonic() - begin < 60  # it did not wait for the stage
    assert "rank 1" in caught.value.message and "1F0" in caught.value.message


@on_fake
def test_no_such_gpu(monkeypatch):
    on_gpus(monkeypatch, lambda rank: 7)
    pipeline = weft_torch.Pipeline(modules_of(2), "1F1B", loss_of, microbatches=4)
    with pytest.raises(weft.UsageError) as caught:
        step_on(pipeline, batch_of(4))
    assert "7" in caught.value.message and caught.value.hint


@on_fake
@pytest.mark.parametrize("name", ["skip", "frozen-skip", "heads"])
def test_graphs(name, monkeypatch):
    on_gpus(monkeypatch, lambda rank: rank % 2)
    graph = weft.Graph(test_torch_graphs.GRAPHS[name])
    for schedule in ("1F1B", "ZBH1"):
        test_torch_graphs.compare(test_torch_graphs.modules_for(graph), graph, schedule)


# ---- A process for each rank ----

JOB = """\
import ctypes, json, os, sys, threading, time
sys.path[:0] = [FOLDER]
from weft_pipeline import launch
launch.begin()
import torch
import weft_pipeline as weft
import weft_pipeline.torch as weft_torch
from test_torch import batch_of, loss_of, modules_of
from test_torch_gpus import Gpu, _devices
from weft_pipeline import _stages

driver = ctypes.CDLL("libcuda.so.1")
driver.fake_cuda_pending.restype = ctypes.c_uint64
driver.fake_cuda_run_nodes.argtypes = [ctypes.c_uint64]
guarded = _stages.Stage._guarded


def patient(stage, function):
    run = guarded(stage, function)

    def poll(*arguments):  # transfers wait for another process, and this one has to go on
        return run(*arguments) if driver.fake_cuda_pending() == 0 else 1

    return poll


def work():  # the fake GPU does so only when it is asked
    while True:
        driver.fake_cuda_run_nodes(64)
        time.sleep(0.0005)


_stages.Stage._guarded = patient
threading.Thread(target=work, daemon=True).start()
torch.set_num_threads(1)
name = sys.argv[1]
me = launch.info()
_devices._device_of = lambda modules, rank: torch.device("cuda", rank % 2)
_devices.Gpu = Gpu
table = weft.Table.named(name, ranks=me.ranks, microbatches=4)
mine = weft_torch.stages_of(table, me.rank)
modules = [module if k in mine else None for k, module in enumerate(modules_of(table.stages))]
pipeline = weft_torch.Pipeline(modules, table, loss_of, scale_grads=False, transport="mpi")
x, y = batch_of(4)
for _ in range(2):
    for k in mine:
        modules[k].zero_grad()
    found = pipeline.step(x if 0 in mine else None, target=y if table.stages - 1 in mine else None)
gradients = {k: [w.grad.tolist() for w in modules[k].parameters()] for k in mine}
with open(f"rank{me.rank}.json", "w") as file:
    json.dump([found.losses, gradients], file)
"""


@on_fake
@pytest.mark.parametrize(("ranks", "name"), [(2, "ZBVZeroBubble"), (4, "1F1B")])
@pytest.mark.parametrize("mpi", test_launch.MPIS[:1])
def test_a_process_per_rank(mpi, ranks, name, tmp_path, monkeypatch):
    file = tmp_path / "job.py"
    file.write_text(JOB.replace("FOLDER", repr(os.path.dirname(os.path.abspath(__file__)))))
    monkeypatch.setenv("WEFT_BUILD_DIR", os.path.abspath(test_launch.BUILD))
    monkeypatch.setenv("LD_LIBRARY_PATH", FAKE)
    monkeypatch.chdir(tmp_path)
    status, said = test_launch.mpirun(mpi, ranks, file, name)
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


# ---- Without any driver ----


class Recorded:
    """As much of torch.cuda as a device uses; it writes down what is asked of it."""

    def __init__(self):
        log = self.log = []

        class Event:
            def record(self, stream):
                log.append(("record", stream))

        class ExternalStream:
            def __init__(self, handle, device):
                assert device == torch.device("cuda", 1)
                self.handle = handle

            def wait_event(self, event):
                log.append(("wait", self.handle))

        self.Event, self.ExternalStream = Event, ExternalStream

    def current_stream(self, device):
        return f"the caller's on {device}"

    def set_stream(self, stream):
        self.log.append(("set", getattr(stream, "handle", stream)))

    def set_device(self, device):
        self.log.append(("device", device))

    def current_device(self):
        return 0

    def is_initialized(self):
        return True


class Torch:
    def __init__(self):
        self.cuda = Recorded()

    def __getattr__(self, name):
        return getattr(torch, name)


def test_streams_are_ordered_after_the_caller():
    module = Torch()
    device = _devices.Gpu(module, 1)
    log = module.cuda.log
    for _ in range(2):  # a stream waits once in every step, before its first action
        log.clear()
        device.begin()
        for handle in (16, 32, 16):
            device.enter(handle)
        caller = ("record", "the caller's on cuda:1")
        assert log == [caller, ("wait", 16), ("set", 16), ("wait", 32), ("set", 32), ("set", 16)]
    log.clear()
    with _devices.same_device(module, {0: device, 1: _devices.Host(torch)}):
        device.enter(16)
    assert log[-2:] == [("set", "the caller's on cuda:1"), ("device", 0)]


def on_cuda(count):
    """Modules whose weights say that they are on a GPU; there need not be one."""
    made = [torch.nn.Module() for _ in range(count)]
    with torch._subclasses.FakeTensorMode():
        for module in made:
            module.weight = torch.nn.Parameter(torch.empty(4, 4, device="cuda:0"))
    return made


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.skipif(IS_FAKE, reason="there is a fake GPU")
def test_without_a_gpu():
    pipeline = weft_torch.Pipeline(on_cuda(2), "1F1B", loss_of, microbatches=4)
    assert {str(device.torch_device) for device in pipeline._devices.values()} == {"cuda:0"}
    with pytest.raises(weft.UnavailableError) as caught:
        _worlds.World(pipeline)
    assert "libcuda" in caught.value.message and caught.value.hint


def test_wrong_arguments():
    def refused(stages, kind=weft.UsageError, **options):
        with pytest.raises(kind) as caught:
            weft_torch.Pipeline(stages, "1F1B", loss_of, microbatches=4, **options)
        assert caught.value.hint
        return caught.value.message

    assert "cuda:0" in refused(on_cuda(2), transport="threads")
    assert "no stage is on a GPU" in refused(modules_of(2), transport="cuda")
    assert "partitions" in refused(modules_of(2), partitions=2)
    two = [torch.nn.Sequential(*on_cuda(1), *modules_of(1)), *modules_of(1)]
    assert "stage 0 on cuda:0, stage 0 on cpu" in refused(two)
    with pytest.raises(TypeError):
        weft_torch.Pipeline(modules_of(2), "1F1B", loss_of, microbatches=4, partitions="2")
    # A stage without weights is where the one before it is.
    table = weft.Table.named("1F1B", ranks=3, microbatches=4)
    stages = [*on_cuda(1), torch.nn.Tanh(), *modules_of(1)]
    devices = weft_torch.Pipeline(stages, table, loss_of)._devices
    assert [str(devices[r].torch_device) for r in range(3)] == ["cuda:0", "cuda:0", "cpu"]
