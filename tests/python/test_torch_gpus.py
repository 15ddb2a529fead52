"""Pipeline with stages on GPUs, as far as it goes without one: on the fake driver of tests/device.

PyTorch computes on the CPU here, in the fake driver's memory, when all that was enqueued before has
run; ranks, streams, buffers, messages and losses are those of the runtime on GPUs. What PyTorch
does on a real GPU is tests/python/device_tensors.py.
"""

import ctypes
import os
import subprocess
import sys
import threading

import pytest
import test_launch
import weft_pipeline as weft
import weft_pipeline.torch as weft_torch
from weft_pipeline import _places, _tensors

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from test_torch import batch_of, fake, loss_of, modules_of, reference  # noqa: E402

FAKE = os.path.abspath(os.path.join(test_launch.BUILD, "tests/fake-cuda"))
IS_FAKE = os.environ.get("WEFT_FAKE_CUDA") is not None


def test_on_the_fake_driver():
    """Run the tests below in a process that has the fake driver for libcuda."""
    if IS_FAKE:
        return
    if not os.path.exists(os.path.join(FAKE, "libcuda.so.1")):
        pytest.skip("the fake CUDA driver is not built")
    environment = {**os.environ, "LD_LIBRARY_PATH": FAKE, "WEFT_FAKE_CUDA": "devices=2,queues=4"}
    environment["XDG_CACHE_HOME"] = "/nonexistent"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
    command += ["-k", "not without_a_gpu"]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout, done.stdout


on_fake = pytest.mark.skipif(not IS_FAKE, reason="test_on_the_fake_driver runs it")


class Views(_tensors.Views):
    def __init__(self, driver):
        super().__init__(torch, torch.device("cpu"))
        self.driver = driver

    def make(self, item):
        item.data = self.driver.fake_cuda_view(item.data)
        return super().make(item)


class Gpu(_places.Gpu):
    """A GPU of the fake driver, on which PyTorch computes at once."""

    threads = None  # of a step

    def __init__(self, torch, index):
        super().__init__(torch, index)
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.driver.fake_cuda_view.restype = ctypes.c_void_p
        self.driver.fake_cuda_view.argtypes = [ctypes.c_void_p]
        self.driver.fake_cuda_run.restype = ctypes.c_bool
        self.device = torch.device("cpu")
        self.view = Views(self.driver)

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
        _places,
        "_device_of",
        lambda _, rank: (
            torch.device("cpu")
            if gpu_of_rank(rank) is None
            else torch.device("cuda", gpu_of_rank(rank))
        ),
    )
    monkeypatch.setattr(_places, "Gpu", Gpu)


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
        found = pipeline.step(x, y, output=True)
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
        assert pipeline.step(x, y).losses == pytest.approx(reference(ranks, 4)[0], rel=1e-6)
        pipeline.close()
    too_many = weft_torch.Pipeline(modules_of(2), "1F1B", loss_of, microbatches=4, partitions=60)
    with pytest.raises(weft.UsageError) as caught:
        too_many.step(x, y)
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
        places = {r: Gpu(torch, 1) for r in range(ranks)}
        gpus = _places.Gpus(places, parts)
        addresses = [ctypes.addressof(gpus.device_of[r].contents) for r in range(ranks)]
        assert len(set(addresses)) == ranks
        assert all(device.contents.number == 1 for device in gpus.device_of.values())
        lib = _places.lib
        count = len(set(expected)) if parts else 1
        texts = {
            ctypes.addressof(lib.weft_cuda_device(gpus.handle.pointer, k).contents): (
                lib.weft_cuda_place(gpus.handle.pointer, k).decode()
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
        if not fake(x):
            raise ZeroDivisionError("in a stage")
        return x * 1


@on_fake
def test_a_stage_fails(monkeypatch):
    on_gpus(monkeypatch, WHERE["two"])
    x, y = batch_of(4)
    pipeline = weft_torch.Pipeline([*modules_of(1), Fails()], "1F1B", loss_of, microbatches=4)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError) as caught:
            pipeline.step(x, y)
        assert "1F0" in str(caught.value.__cause__)


@on_fake
def test_no_such_gpu(monkeypatch):
    on_gpus(monkeypatch, lambda rank: 7)
    pipeline = weft_torch.Pipeline(modules_of(2), "1F1B", loss_of, microbatches=4)
    with pytest.raises(weft.UsageError) as caught:
        pipeline.step(*batch_of(4))
    assert "7" in caught.value.message and caught.value.hint


# ---- Without any driver ----


def test_memory_as_a_tensor():
    """Every type that the runtime has, in memory that PyTorch does not own."""
    memory = (ctypes.c_ubyte * 64)()
    for name, number in _tensors.DTYPES.items():
        dtype = getattr(torch, name)
        for dims in ([2, 3], [4], [1, 2, 1], []):
            made = _tensors.tensor_at(
                torch, ctypes.addressof(memory), number, dims, torch.device("cpu")
            )
            assert made.dtype == dtype and list(made.shape) == dims and made.is_contiguous()
            assert made.data_ptr() == ctypes.addressof(memory)
            made.fill_(1)
            part = made.reshape(-1)[:1].clone()
            del made
            assert part.item() == 1
    made = _tensors.tensor_at(torch, 0, _tensors.DTYPES["int8"], [2, 0], torch.device("cpu"))
    assert made.shape == (2, 0)


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
    assert {str(place.device) for place in pipeline._places.values()} == {"cuda:0"}
    with pytest.raises(weft.UnavailableError) as caught:
        pipeline._open(torch.empty(8, 4))
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
    places = weft_torch.Pipeline(stages, table, loss_of)._places
    assert [str(places[r].device) for r in range(3)] == ["cuda:0", "cuda:0", "cpu"]
