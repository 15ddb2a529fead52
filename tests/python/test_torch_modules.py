"""Which modules Pipeline runs: each gives what a plain loop of PyTorch gives, or is refused."""

import contextvars
import copy
import functools
import pickle
import random
import subprocess
import sys
import threading
import types

import pytest
import weft_pipeline as weft
import weft_pipeline.torch as weft_torch

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("torch.distributed.pipelining")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

WIDTH, ROWS, M = 8, 3, 4
LARGE = 260  # squared: more weights than make PyTorch's walk worth it
BOTH = pytest.mark.parametrize("schedule", ["1F1B", "ZBH1"])


def step_on(pipeline, batch):
    x, y = batch
    return pipeline.step(x, target=y)


class Apply(nn.Module):
    """A linear layer, and a function of the module and the tensor."""

    def __init__(self, function, width=WIDTH):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.function = function

    def forward(self, x):
        return self.function(self, x)


def batch(width=WIDTH, rows=ROWS * M):
    torch.manual_seed(11)
    return torch.randn(rows, width), torch.randn(rows, width)


def parameters_of(modules, loss_fn):
    parts = [*modules, loss_fn] if isinstance(loss_fn, nn.Module) else modules
    return [weight for part in parts for weight in part.parameters()]


def plain(modules, loss_fn, x, y, before_stage=None, twins=None):
    """Losses and mean gradients of a loop over microbatches, on copies of modules and loss."""
    modules, loss_fn = (twins, loss_fn) if twins else copy.deepcopy((modules, loss_fn))
    weights, losses = parameters_of(modules, loss_fn), []
    for weight in weights:
        weight.grad = None
    for k, (rows, target) in enumerate(zip(x.tensor_split(M), y.tensor_split(M))):
        for s, module in enumerate(modules):
            if before_stage is not None:
                before_stage(s, k)
            rows = module(rows)
        loss = loss_fn(rows, target)
        loss.backward()
        losses.append(loss.item())
    gradients = [None if weight.grad is None else weight.grad / M for weight in weights]
    return tuple(losses), gradients, modules


def same(found, expected, exact=True):
    assert len(found) == len(expected)
    for got, want in zip(found, expected):
        if want is None or got is None:
            assert got is want
            continue
        assert torch.equal(got, want) if exact else torch.allclose(got, want, rtol=1e-4, atol=1e-6)


def compare(modules, schedule, loss_fn=None, width=WIDTH, exact=True, twins=None):
    """Losses and gradients of a step are those of a plain loop; so is what modules remember."""
    loss_fn = loss_fn or nn.MSELoss()
    x, y = batch(width)
    losses, gradients, others = plain(modules, loss_fn, x, y, twins=twins)
    pipeline = weft_torch.Pipeline(modules, schedule, loss_fn, microbatches=M)
    found = pipeline.step(x, target=y).losses
    assert found == losses if exact else found == pytest.approx(losses, rel=1e-5)
    same([weight.grad for weight in parameters_of(modules, loss_fn)], gradients, exact)
    for module, other in zip(modules, others):
        same(list(module.buffers()), list(other.buffers()), exact)
    return pipeline


def refused(modules, schedule, *words, loss_fn=None, data=None, kind=weft.UsageError, table=None):
    """Making the pipeline, or its first step, raises a Weft error that says these words."""
    with pytest.raises(kind) as caught:
        pipeline = weft_torch.Pipeline(
            modules, table or schedule, loss_fn or nn.MSELoss(), microbatches=M
        )
        step_on(pipeline, data or batch())
    assert isinstance(caught.value, weft.Error) and caught.value.hint
    for word in words:
        assert word in caught.value.message, caught.value.message
    return caught.value


def layers(count, width=WIDTH):
    torch.manual_seed(5)
    return [nn.Linear(width, width) for _ in range(count)]


# ---- What works ----


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.unused = layers(3)
        self.position = nn.Parameter(torch.randn(WIDTH))
        self.unused.requires_grad_(False)

    def forward(self, x):
        x = x + self.position
        return self.left(x) + torch.tanh(self.right(self.left(x)))


def hooked():
    module = nn.Sequential(*layers(2))
    module[0].register_forward_hook(lambda _, __, y: y * 2)
    module[1].weight.register_hook(lambda grad: grad * 3)
    return module


def slope(self, x):
    """A module that needs autograd itself."""
    inner = x.detach().requires_grad_()
    (grad,) = torch.autograd.grad(torch.tanh(self.linear(inner)).sum(), inner, create_graph=True)
    return self.linear(x) + grad


RIGHT = {
    "branches": Branches,
    "unused": lambda: Apply(lambda _, x: x * 1),
    "frozen": lambda: layers(1)[0].requires_grad_(False),
    "identity": nn.Identity,
    "view": lambda: Apply(lambda self, x: self.linear(x).view(-1, WIDTH)),
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "cumulative batch norm": lambda: nn.BatchNorm1d(WIDTH, momentum=None),
    "autograd in a forward": lambda: Apply(slope),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(layers(1)[0]),
    "old weight norm": lambda: torch.nn.utils.weight_norm(layers(1)[0]),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(layers(1)[0]),
    "hooks": hooked,
    "checkpoint": lambda: Apply(
        lambda self, x: checkpoint(lambda h: torch.tanh(self.linear(h)), x, use_reentrant=False)
    ),
    "own leaf": lambda: Apply(lambda self, x: self.linear(x) * torch.ones(1, requires_grad=True)),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
@BOTH
@pytest.mark.parametrize("name", RIGHT)
def test_right(name, schedule):
    both = []
    for _ in range(2):  # some of them cannot be copied
        torch.manual_seed(3)
        both.append([*layers(1), RIGHT[name](), *layers(1)])
    compare(both[0], schedule, twins=both[1])


@BOTH
def test_reentrant_checkpoint_of_whole_backwards(schedule):
    modules = [
        *layers(1),
        Apply(lambda self, x: checkpoint(self.linear, x, use_reentrant=True)),
        *layers(1),
    ]
    if schedule == "1F1B":
        compare(modules, schedule)
        return
    error = refused(modules, schedule, "stage 1 (Apply)", "backward", kind=weft.StageError)
    assert "use_reentrant=False" in error.hint and isinstance(error.__cause__, RuntimeError)


def test_reentrant_checkpoint_of_a_large_stage():
    again = Apply(lambda self, x: checkpoint(self.linear, x, use_reentrant=True), LARGE)
    modules = [nn.Linear(LARGE, LARGE), again]
    error = refused(modules, "ZBH1", "stage 1 (Apply)", data=batch(LARGE), kind=weft.StageError)
    assert "use_reentrant=False" in error.hint


@BOTH
def test_compiled(schedule):
    inner = [nn.Sequential(*layers(1), nn.Tanh(), nn.Linear(WIDTH, WIDTH)) for _ in range(2)]
    modules = [torch.compile(module, backend="aot_eager") for module in inner]
    x, y = batch()
    pipeline = weft_torch.Pipeline(modules, schedule, nn.MSELoss(), microbatches=M)
    if schedule == "ZBH1":
        error = refused(modules, schedule, "stage 1", "donated", kind=weft.StageError)
        assert "donated_buffer = False" in error.hint and "1F1B" in error.hint
        assert isinstance(error.__cause__, RuntimeError)
        return
    losses, gradients, _ = plain(inner, nn.MSELoss(), x, y)
    assert pipeline.step(x, target=y).losses == pytest.approx(losses, rel=1e-5)
    same([weight.grad for weight in parameters_of(modules, None)], gradients, exact=False)


def test_compiled_with_buffers_that_stay():
    inner = [nn.Sequential(*layers(1, LARGE), nn.Tanh()) for _ in range(2)]
    modules, (x, y) = [torch.compile(part, backend="aot_eager") for part in inner], batch(LARGE)
    losses, gradients, _ = plain(inner, nn.MSELoss(), x, y)
    with torch._functorch.config.patch(donated_buffer=False):
        pipeline = weft_torch.Pipeline(modules, "ZBH1", nn.MSELoss(), microbatches=M)
        assert pipeline.step(x, target=y).losses == pytest.approx(losses, rel=1e-5)
    same([weight.grad for weight in parameters_of(modules, None)], gradients, exact=False)


def test_unfreezing_between_steps():
    modules, (x, y) = layers(3), batch()
    modules[1].requires_grad_(False)
    pipeline = compare(modules, "ZBH1")
    modules[1].requires_grad_()
    for module in modules:
        module.zero_grad()
    _, gradients, _ = plain(modules, nn.MSELoss(), x, y)
    pipeline.step(x, target=y)
    same([weight.grad for weight in parameters_of(modules, None)], gradients)


def test_lazy_modules_are_refused():
    modules = [*layers(1), nn.Sequential(nn.LazyLinear(WIDTH))]
    refused(modules, "1F1B", "stage 1", "0.weight", "lazy")
    modules[1](batch()[0])
    compare(modules, "1F1B")


def test_inputs_that_a_stage_changes():
    modules = [*layers(1), nn.Sequential(nn.ReLU(inplace=True), *layers(1))]
    error = refused(modules, "1F1B", "stage 1 (Sequential)", "forward", kind=weft.StageError)
    assert "inplace=False" in error.hint and isinstance(error.__cause__, RuntimeError)


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def test_inputs_and_outputs_that_a_function_changes():
    compare([*layers(1), Apply(lambda self, x: Doubles.apply(self.linear(x)))], "1F1B")
    changes = [*layers(1), Apply(lambda self, x: self.linear(Doubles.apply(x)))]
    keeps = [nn.Sequential(Keeps(lambda y: y.detach_(), lambda y: y * 3), *layers(2)), *layers(1)]
    for words, hint, modules in (
        ("stage 1 (Apply)", "x.clone()", changes),
        ("stage 0 (Sequential)", "y.detach()", keeps),
    ):
        assert hint in refused(modules, "1F1B", words, kind=weft.StageError).hint


class Last(nn.Module):
    """Keeps what it took, as it is or a view of it, for the next microbatch."""

    def __init__(self, how=lambda x: x, width=WIDTH):
        super().__init__()
        self.linear, self.how, self.last = nn.Linear(width, width), how, None

    def forward(self, x):
        y = self.linear(x) if self.last is None else self.linear(x) + self.last.detach().sum(0)
        self.last = self.how(x)
        return y


def drop_last(modules):
    for module in modules:
        module.last = None


@BOTH
@pytest.mark.parametrize("how", [lambda x: x, lambda x: x.detach()[:1], lambda x: x * x])
def test_inputs_that_a_module_keeps(schedule, how):
    torch.manual_seed(7)
    modules, (x, y) = [Last(how) for _ in range(4)], batch()
    pipeline = weft_torch.Pipeline(modules, schedule, nn.MSELoss(), microbatches=M)
    for _ in range(3):
        drop_last(modules)
        losses, gradients, _ = plain(modules, nn.MSELoss(), x, y)
        drop_last(modules)
        for module in modules:
            module.zero_grad()
        assert pipeline.step(x, target=y).losses == losses
        same([weight.grad for weight in parameters_of(modules, None)], gradients)


@BOTH
def test_inputs_that_a_module_begins_to_keep(schedule):
    modules, (x, y), kept = layers(3), batch(), []
    pipeline = compare(modules, schedule)
    modules[1].register_forward_hook(lambda _, xs, __: kept.append(xs[0]))
    for module in modules:
        module.zero_grad()
    losses, gradients, _ = plain(modules, nn.MSELoss(), x, y)
    kept.clear()
    assert pipeline.step(x, target=y).losses == losses
    same([weight.grad for weight in parameters_of(modules, None)], gradients)
    expected = [modules[0](rows) for rows in x.tensor_split(M)]
    assert all(torch.equal(got, want) for got, want in zip(kept[-M:], expected))


class Keeps(nn.Module):
    """Keeps what it gave, a stage or a loss, and does something with it in the next forward."""

    def __init__(self, how, function):
        super().__init__()
        self.linear, self.how, self.function = nn.Linear(WIDTH, WIDTH), how, function
        self.last = None

    def forward(self, x, *target):
        if self.last is not None:
            self.how(self.last)
        self.last = self.function(self.linear(x), *target)
        return self.last


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B", "ZBH1"])
@pytest.mark.parametrize("how", [lambda y: y.detach_(), lambda y: y.mul_(2)])
def test_outputs_that_a_module_keeps_and_changes(schedule, how):
    compare([*layers(1), Keeps(how, lambda y: y * 3), *layers(1)], schedule)
    compare(layers(2), schedule, Keeps(how, functional.mse_loss))


class Adds(nn.Module):
    """Its backward needs nothing that it saved, so a loop goes through it twice."""

    def __init__(self):
        super().__init__()
        self.position = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x):
        return x + self.position


class LastWithGraph(Last):
    def forward(self, x):
        y = self.linear(x) if self.last is None else self.linear(x) + self.last
        self.last = self.how(x)
        return y


@pytest.mark.parametrize("schedule", ["1F1B", "ZBH1", "GPipe"])
@pytest.mark.parametrize("how", [lambda x: x, lambda x: x.sum(0)])
def test_inputs_that_a_module_keeps_with_their_graph(schedule, how):
    torch.manual_seed(7)
    modules = [Adds(), LastWithGraph(how)]
    plain(modules, nn.MSELoss(), *batch())  # works
    error = refused(modules, schedule, "stage 1 (LastWithGraph)", "took in another forward")
    assert "detach()" in error.hint


def test_inputs_that_are_kept_in_eval():
    modules, (x, y), kept = layers(3), batch(), []
    modules[1].register_forward_hook(lambda _, xs, __: kept.append(xs[0]))
    pipeline = weft_torch.Pipeline(modules, "1F1B", nn.MSELoss(), microbatches=M)
    for rows in (x, y, x):
        kept.clear()
        pipeline.eval(rows)
        assert torch.equal(
            torch.cat(kept[-M:]), torch.cat([modules[0](part) for part in rows.tensor_split(M)])
        )


def test_outputs_that_are_views_of_an_input():
    modules, (x, y) = [*layers(1), nn.Flatten()], batch()
    whole = modules[0](x).detach()
    pipeline = weft_torch.Pipeline(modules, "GPipe", nn.MSELoss(), microbatches=M)
    for _ in range(3):
        kept = pipeline.eval(x).output
        pipeline.eval(y)
        assert torch.allclose(kept, whole, rtol=1e-5, atol=1e-6)
        assert torch.allclose(
            pipeline.step(x, target=y, return_outputs=True).output, whole, rtol=1e-5, atol=1e-6
        )


# ---- Random numbers ----


class Drops(nn.Module):
    def __init__(self, checkpointed):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.5)
        self.checkpointed = checkpointed
        self.masks = []

    def inner(self, x):
        y = self.drop(torch.ones_like(x))
        self.masks.append(y)
        return torch.tanh(self.linear(x)) * y

    def forward(self, x):
        if self.checkpointed:
            return checkpoint(self.inner, x, use_reentrant=False)
        return self.inner(x)


def seeds(stages):
    """What seeds the forwards of a step that begins now, as docs/pytorch.md says."""
    first = torch.randint(1 << 62, ()).item()
    return lambda stage, k: torch.manual_seed(first + k * stages + stage)


@pytest.mark.parametrize("checkpointed", [False, True], ids=["dropout", "checkpoint"])
@pytest.mark.parametrize("schedule", ["1F1B", "ZBH1", "Interleaved1F1B"])
def test_dropout(schedule, checkpointed):
    torch.manual_seed(1)
    modules = [Drops(checkpointed) for _ in range(4)]
    x, y = batch()
    pipeline = weft_torch.Pipeline(modules, schedule, nn.MSELoss(), microbatches=M)
    for step in range(3):
        torch.manual_seed(step)
        losses, gradients, _ = plain(modules, nn.MSELoss(), x, y, seeds(4))
        torch.manual_seed(step)
        for module in modules:
            module.zero_grad()
            module.masks.clear()
        assert pipeline.step(x, target=y).losses == losses
        same([weight.grad for weight in parameters_of(modules, None)], gradients)
        masks = [tuple(mask.flatten().tolist()) for module in modules for mask in module.masks]
        assert len(set(masks)) == 4 * M  # each of its own
        # A recomputation draws the same; a split backward needs two of them.
        assert all((masks.count(mask) > 1) == checkpointed for mask in masks)


def forked(self, x):
    """Draws with a seed of its own, and puts the generator back."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(self.seed)
        noise = torch.rand(x.shape[0], 4096)  # long enough for others to come between
    return self.linear(x) * noise[:, :WIDTH]


@BOTH
def test_draws_that_put_the_generator_back(schedule):
    modules, (x, y) = [Apply(forked) for _ in range(4)], batch()
    for k, module in enumerate(modules):
        module.seed = k
    losses, gradients, _ = plain(modules, nn.MSELoss(), x, y)
    pipeline = weft_torch.Pipeline(modules, schedule, nn.MSELoss(), microbatches=M)
    for _ in range(20):
        for module in modules:
            module.zero_grad()
        assert pipeline.step(x, target=y).losses == losses
        same([weight.grad for weight in parameters_of(modules, None)], gradients)
    assert torch.random.default_generator is torch.default_generator


def test_draws_that_begin_and_put_the_generator_back():
    modules, (x, y) = [*layers(1), Apply(lambda self, x: self.linear(x))], batch()
    pipeline = weft_torch.Pipeline(modules, "1F1B", nn.MSELoss(), microbatches=M)
    pipeline.step(x, target=y)
    modules[1].function, modules[1].seed = forked, 3
    with pytest.raises(weft.UsageError, match="random numbers were drawn"):
        pipeline.step(x, target=y)
    assert torch.random.default_generator is torch.default_generator


def test_the_callers_generator():
    x, y = batch()
    still = weft_torch.Pipeline(layers(2), "1F1B", nn.MSELoss(), microbatches=M)
    before = torch.get_rng_state()
    for _ in range(2):
        still.step(x, target=y)
        assert torch.equal(before, torch.get_rng_state())  # nothing draws
    draws = weft_torch.Pipeline([*layers(1), Drops(False)], "1F1B", nn.MSELoss(), microbatches=M)
    torch.manual_seed(0)
    first = [draws.step(x, target=y).losses for _ in range(2)]
    assert first[0] != first[1]
    torch.manual_seed(0)
    assert [draws.step(x, target=y).losses for _ in range(2)] == first
    for stage in draws._stages:
        stage.module.eval()
    before = torch.get_rng_state()
    assert draws.step(x, target=y).losses == draws.step(x, target=y).losses
    assert torch.equal(before, torch.get_rng_state())
    for stage in draws._stages:
        stage.module.train()
    torch.manual_seed(0)
    assert [draws.step(x, target=y).losses for _ in range(2)] == first


def test_a_loss_that_draws():
    def noisy(output, target):
        return functional.mse_loss(output + torch.randn_like(output), target)

    modules, (x, y) = layers(2), batch()
    pipeline = weft_torch.Pipeline(modules, "1F1B", noisy, microbatches=M)
    found = []
    for _ in range(2):
        torch.manual_seed(4)
        found.append(pipeline.step(x, target=y).losses)
    assert found[0] == found[1]


def test_a_module_that_begins_to_draw():
    modules, (x, y) = [*layers(1), Drops(False)], batch()
    modules[1].drop.p = 0.0
    pipeline = weft_torch.Pipeline(modules, "1F1B", nn.MSELoss(), microbatches=M)
    pipeline.step(x, target=y)
    modules[1].drop.p = 0.5
    with pytest.raises(weft.UsageError) as caught:
        pipeline.step(x, target=y)
    assert "random numbers" in caught.value.message and "Pipeline" in caught.value.hint
    for module in modules:
        module.zero_grad()
    torch.manual_seed(8)
    losses, gradients, _ = plain(modules, nn.MSELoss(), x, y, seeds(2))
    torch.manual_seed(8)
    assert pipeline.step(x, target=y).losses == losses
    same([weight.grad for weight in parameters_of(modules, None)], gradients)


# ---- Weights of several stages ----


@pytest.mark.parametrize("name", ["1F1B", "ZBH1", "ZBVZeroBubble"])
def test_shared_weights_are_refused(name):
    modules = layers(4)
    modules[3].weight = modules[0].weight
    error = refused(modules, name, "stages 0 and 3 share the weight weight")
    assert "one stage" in error.hint


def test_a_module_twice():
    one = layers(1)[0]
    refused([one, nn.Tanh(), one], "1F1B", "stages 0 and 2 share the weight weight")
    tanh = nn.Tanh()
    compare([*layers(1), tanh, *layers(1), tanh], "1F1B")


def test_shared_weights_that_are_frozen():
    modules = layers(3)
    modules[2].weight = modules[0].weight.requires_grad_(False)
    pipeline = compare(modules, "1F1B")
    modules[0].weight.requires_grad_()
    with pytest.raises(weft.UsageError) as caught:
        step_on(pipeline, batch())
    assert "stages 0 and 2 share the weight weight" in caught.value.message


def test_weights_that_are_shared_later():
    modules, (x, y) = layers(3), batch()
    pipeline = compare(modules, "1F1B")
    kept = [weight.grad for weight in parameters_of(modules, None)]
    modules[2].weight = modules[0].weight
    with pytest.raises(weft.UsageError) as caught:
        pipeline.step(x, target=y)
    assert "stages 0 and 2 share the weight weight" in caught.value.message
    assert modules[0].weight.grad is kept[0]


def test_shared_buffers():
    modules = [Apply(lambda self, x: self.linear(x) * self.table) for _ in range(2)]
    for module in modules:
        module.register_buffer("table", batch()[0][0])
    modules[1].table = modules[0].table
    compare(modules, "1F1B")
    statistics = nn.BatchNorm1d(WIDTH, affine=False)
    uncounted = Apply(lambda self, x: functional.batch_norm(x, self.mean, self.var, training=True))
    uncounted.register_buffer("mean", torch.zeros(WIDTH))
    uncounted.register_buffer("var", torch.ones(WIDTH))
    uncounted.requires_grad_(False)
    for norm in (statistics, uncounted):
        pair = [nn.Sequential(*layers(1), norm), nn.Sequential(*layers(1), norm)]
        refused(pair, "1F1B", "stages 0 and 1 share the buffer 1.", "forward changes it")


def test_tie_grad_is_refused():
    table = weft.Table.named("1F1B", ranks=2, microbatches=M).lower(tie_grad=True)
    error = refused(layers(2), None, "TIE_GRAD", table=table)
    assert "tie_grad" in error.hint


class Counts(nn.Module):
    """Without weights, so stages may share it; what it keeps is another tensor each time."""

    count = 0

    def forward(self, x):
        self.count += 1
        self.table = torch.arange(x.shape[1]).cos()
        return x * self.table


@BOTH
def test_a_module_of_several_stages_that_changes_its_attributes(schedule):
    counts, (x, y) = Counts(), batch()
    modules = [Apply(lambda self, x: torch.tanh(self.counts(self.linear(x)))) for _ in range(4)]
    for module in modules:
        module.counts = counts
    losses, gradients, _ = plain(modules, nn.MSELoss(), x, y)
    pipeline = weft_torch.Pipeline(modules, schedule, nn.MSELoss(), microbatches=M)
    for step in range(1, 21):
        for module in modules:
            module.zero_grad()
        assert pipeline.step(x, target=y).losses == losses
        same([weight.grad for weight in parameters_of(modules, None)], gradients)
        assert type(counts) is Counts and counts.count == step * 4 * M
    assert pickle.loads(pickle.dumps(counts)).count == counts.count


# ---- Wrappers ----


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_wrappers_are_refused(group):
    from torch.distributed._composable import replicate
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.tensor import distribute_module

    mesh = init_device_mesh("cpu", (1,))
    ddp = nn.parallel.DistributedDataParallel
    fsdp = FullyShardedDataParallel.__new__(FullyShardedDataParallel)  # it needs a GPU
    nn.Module.__init__(fsdp)
    for words, module in (
        (("wrapped in DistributedDataParallel",), ddp(*layers(1))),
        (("part 1", "DistributedDataParallel"), nn.Sequential(nn.Tanh(), ddp(*layers(1)))),
        (("FullyShardedDataParallel",), fsdp),
        (("part 0", "fully_shard"), nn.Sequential(fully_shard(layers(1)[0], mesh=mesh))),
        (("replicate()",), replicate(layers(1)[0])),
        (("weight is a DTensor",), distribute_module(layers(1)[0], mesh)),
    ):
        error = refused([*layers(1), module], "1F1B", "stage 1", *words)
        assert "plain module" in error.hint


# ---- Weights that a backward has to reach ----


class Weighs(nn.Module):
    """A loss with weights of its own."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((WIDTH,), 1.5))

    def forward(self, output, target):
        return functional.mse_loss(output * self.scale, target)


@BOTH
def test_weights_of_the_loss(schedule):
    compare(layers(2), schedule, Weighs())
    scale = nn.Parameter(torch.ones(WIDTH))
    for leaf in (scale, torch.ones(WIDTH, requires_grad=True)):
        error = refused(
            layers(2),
            schedule,
            "stage 1 (Linear)",
            f"({WIDTH},)",
            loss_fn=lambda y, t, leaf=leaf: functional.mse_loss(y * leaf, t),
        )
        assert "loss_fn" in error.hint


@BOTH
def test_weights_by_reference(schedule):
    other = layers(1)[0]
    module = Apply(lambda self, x: functional.linear(self.linear(x), other.weight))
    refused([*layers(1), module], schedule, "stage 1 (Apply)", "none of its parameters")
    refused([other, nn.Tanh(), module], schedule, "stage 2 (Apply)", "stage 0 has it")


@pytest.mark.parametrize("width", [WIDTH, LARGE])
@BOTH
def test_an_output_that_does_not_depend_on_the_input(schedule, width):
    cut = Apply(lambda self, x: self.linear(x.detach()), width)
    compare([*layers(1, width), cut, *layers(1, width)], schedule, width=width, exact=False)


@pytest.mark.parametrize("schedule", ["1F1B", "ZBVZeroBubble", "Interleaved1F1B"])
def test_no_gradient_is_none(schedule):
    """An optimizer leaves a weight without a gradient as it is; zeros would make it decay."""

    def unlearned(self, x):
        with torch.no_grad():
            return self.linear(x)

    for function in (unlearned, lambda self, x: self.linear(x.detach())):
        modules = [*layers(2), Apply(function), *layers(1)]
        compare(modules, schedule)
        assert modules[0].weight.grad is None

    def sometimes(self, x):
        self.count = getattr(self, "count", 0) + 1
        return self.linear(x if self.count % 2 else x.detach())

    compare([*layers(2), Apply(sometimes), *layers(1)], schedule)


def test_no_gradient_over_the_edges_of_a_graph():
    """A stage whose output goes to two others has none only where both give none."""
    x, y = batch()
    for cuts in ((), (1,), (1, 2)):
        branch = [
            Apply(lambda self, x, cut=k in cuts: self.linear(x.detach() if cut else x))
            for k in (1, 2)
        ]
        first, last = layers(2)
        join = Join(last)
        graph = weft.Graph("0>1,0>2,1>3,2>3")
        modules = [first, *branch, join]
        weft_torch.Pipeline(modules, "1F1B", nn.MSELoss(), graph=graph, microbatches=M).step(
            x, target=y
        )
        found = [weight.grad for weight in parameters_of(modules, None)]
        for weight in parameters_of(modules, None):
            weight.grad = None
        for rows, target in zip(x.tensor_split(M), y.tensor_split(M)):
            h = first(rows)
            (functional.mse_loss(join(branch[0](h), branch[1](h)), target) / M).backward()
        same(found, [weight.grad for weight in parameters_of(modules, None)], exact=False)


class Join(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.linear = linear

    def forward(self, a, b):
        return self.linear(a + b)


@BOTH
def test_losses_without_a_gradient(schedule):
    for loss_fn in (
        lambda y, t: functional.mse_loss(y, t).detach(),
        lambda y, t: (y.argmax(1) == t.argmax(1)).sum(),
    ):
        error = refused(layers(2), schedule, "loss of stage 1", "gradient", loss_fn=loss_fn)
        assert "detach()" in error.hint
        pipeline = weft_torch.Pipeline(layers(2), schedule, loss_fn, microbatches=M)
        x, y = batch()
        assert len(pipeline.eval(x, target=y).losses) == M


class Tied(nn.Module):
    """A weight in two layers, with a bias for each: PyTorch's walk has two groups with it."""

    def __init__(self, width):
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.randn(width)) for _ in range(2))
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)

    def forward(self, x):
        for bias in (self.a, self.b):
            x = torch.tanh(functional.linear(x, self.weight, bias))
        return x


@BOTH
def test_a_weight_twice_in_a_large_stage(schedule):
    compare([Tied(LARGE), Tied(LARGE)], schedule, width=LARGE, exact=False)


class Rows(nn.Module):
    """Weights of the shape of a microbatch, whose gradients are one tensor."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.a, self.b = (nn.Parameter(torch.randn(ROWS, width)) for _ in range(2))

    def forward(self, x):
        return self.linear(x) + self.a + self.b


class Gates(nn.Module):
    """A weight that is reached over two nodes, one behind the other."""

    def __init__(self, width):
        super().__init__()
        self.one, self.two = layers(2, width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        scale = self.scale.exp()
        return self.two(torch.tanh(self.one(x) * scale)) * scale


def doubled(self, x):
    """A module with a hook for the gradient of an activation."""
    y = self.linear(x)
    if y.requires_grad:
        y.register_hook(lambda grad: grad * 2)
    return torch.tanh(y)


LARGE_ONES = {
    "rows": lambda: Rows(LARGE),
    "gates": lambda: Gates(LARGE),
    "hook": lambda: Apply(doubled, LARGE),
    "views": lambda: Apply(lambda self, x: self.linear(x).view(-1, LARGE), LARGE),
    "unused": lambda: Apply(lambda _, x: x * 1, LARGE),
    "normed": lambda: nn.utils.parametrizations.weight_norm(layers(1, LARGE)[0]),
    "sparse": lambda: Looks(LARGE),
}


class Looks(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.table = nn.Embedding(300, width, sparse=True)

    def forward(self, x):
        return self.table((x.abs() * 9).long().clamp(0, 299)[:, 0]) + x


@BOTH
@pytest.mark.parametrize("name", LARGE_ONES)
def test_large_stages(name, schedule):
    torch.manual_seed(3)
    modules = [*layers(1, LARGE), LARGE_ONES[name](), *layers(1, LARGE)]
    x, y = batch(LARGE)
    losses, gradients, _ = plain(modules, nn.MSELoss(), x, y)
    pipeline = weft_torch.Pipeline(modules, schedule, nn.MSELoss(), microbatches=M)
    assert pipeline.step(x, target=y).losses == pytest.approx(losses, rel=1e-5)
    found = [weight.grad for weight in parameters_of(modules, None)]
    same(
        [grad.to_dense() for grad in found if grad is not None],
        [grad.to_dense() for grad in gradients if grad is not None],
        exact=False,
    )


@BOTH
def test_a_large_loss_with_an_expanded_gradient(schedule):
    compare([*layers(1, LARGE), Rows(LARGE)], schedule, lambda y, _: y.sum(), LARGE, exact=False)


class ByHand(torch.autograd.Function):
    """Adds to the gradient of a weight by itself."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight
        ctx.save_for_backward(x)
        return x @ weight.detach().t()

    @staticmethod
    def backward(ctx, grad):
        (x,), weight = ctx.saved_tensors, ctx.weight
        add = grad.t() @ x
        weight.grad = add if weight.grad is None else weight.grad + add
        return grad @ weight.detach(), None


@BOTH
@pytest.mark.parametrize("width", [WIDTH, LARGE])
def test_gradients_by_hand(schedule, width):
    module = Apply(lambda self, x: ByHand.apply(x, self.linear.weight), width)
    modules = [*layers(1, width), module, *layers(1, width)]
    if schedule == "1F1B":
        compare(modules, schedule, width=width, exact=False)
        return
    error = refused(modules, schedule, "stage 1 (Apply)", "by itself", data=batch(width))
    assert "1F1B" in error.hint


class Counted(torch.autograd.Function):
    """Its backward counts, and gives more each time."""

    @staticmethod
    def forward(ctx, x, _):
        ctx.count = 0
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        ctx.count += 1
        return grad * 2 * ctx.count, None


class Changed(torch.autograd.Function):
    """Its backward changes what forward left for it."""

    @staticmethod
    def forward(ctx, x, _):
        ctx.slope = torch.full_like(x, 2.0)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return ctx.slope.mul_(grad), None


class Weighed(torch.autograd.Function):
    """Its backward gives more for a weight each time."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        ctx.count = 0
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        ctx.count += 1
        return grad @ weight, grad.t() @ x * ctx.count


@BOTH
@pytest.mark.parametrize("width", [WIDTH, LARGE])
@pytest.mark.parametrize("function", [Counted, Changed, Weighed])
def test_functions_that_give_something_else_the_second_time(schedule, width, function):
    module = Apply(
        lambda self, x: self.linear(function.apply(self.linear(x), self.linear.weight)), width
    )
    modules = [*layers(1, width), module, *layers(1, width)]
    if schedule == "1F1B":
        compare(modules, schedule, width=width, exact=False)
        return
    words = f"backward of {function.__name__} gives other gradients"
    error = refused(modules, schedule, "stage 1 (Apply)", words, data=batch(width))
    assert "1F1B" in error.hint


def test_selective_checkpoint():
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def choose(_, op, *args, **kwargs):
        is_product = op == torch.ops.aten.addmm.default
        return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE

    def function(self, x):
        return checkpoint(
            lambda h: torch.tanh(self.linear(h)),
            x,
            use_reentrant=False,
            context_fn=lambda: create_selective_checkpoint_contexts(choose),
        )

    modules = [*layers(1), Apply(function), *layers(1)]
    compare(modules, "1F1B")
    error = refused(modules, "ZBH1", "stage 1 (Apply)", kind=weft.StageError)
    assert "1F1B" in error.hint


@BOTH
def test_activations_of_other_stages(schedule):
    kept = {}

    def keep(self, x):
        kept["x"] = x * 1
        return self.linear(x)

    modules = [*layers(1), Apply(keep), Apply(lambda self, x: self.linear(x) + kept["x"])]
    error = refused(modules, schedule, "stage 2 (Apply)", "stage 1 took in another forward")
    assert "detach()" in error.hint and "edge" in error.hint


@BOTH
def test_weights_by_reference_in_later_steps(schedule):
    other, uses, (x, y) = layers(1)[0], [], batch()
    module = Apply(lambda self, x: self.linear(x) * (other.bias if uses else 1))
    pipeline = weft_torch.Pipeline(
        [other, nn.Tanh(), module], schedule, nn.MSELoss(), microbatches=M
    )
    pipeline.step(x, target=y)
    uses.append(1)
    with pytest.raises(weft.UsageError) as caught:
        pipeline.step(x, target=y)
    assert "stage 0 has it" in caught.value.message


@BOTH
def test_leaves_by_reference_after_an_eval(schedule):
    leaf, (x, y) = torch.ones(WIDTH, requires_grad=True), batch()
    pipeline = weft_torch.Pipeline(
        layers(2), schedule, lambda y, t: functional.mse_loss(y * leaf, t), microbatches=M
    )
    for _ in range(2):
        pipeline.eval(x)
    with pytest.raises(weft.UsageError, match="none of its parameters"):
        pipeline.step(x, target=y)


@pytest.mark.parametrize("width", [WIDTH, LARGE])
@BOTH
def test_leaves_by_reference_in_one_microbatch(schedule, width):
    leaf, modules, (x, y) = torch.ones(width, requires_grad=True), layers(2, width), batch(width)
    pipeline = weft_torch.Pipeline(
        modules, schedule, lambda y, t: functional.mse_loss(y * leaf, t), microbatches=1
    )
    if schedule == "1F1B":
        pipeline.step(x, target=y)
        (expected,) = torch.autograd.grad(
            functional.mse_loss(modules[1](modules[0](x)) * leaf, y), leaf
        )
        assert torch.equal(leaf.grad, expected)
    with pytest.raises(weft.UsageError, match=r"stage 1 .* none of its parameters"):
        pipeline.step(x, target=y)
    assert (modules[0].weight.grad is None) == (schedule == "ZBH1")


@BOTH
def test_leaves_by_reference_in_some_microbatches(schedule):
    leaf, calls = torch.ones(WIDTH, requires_grad=True), []

    def loss_fn(y, t):
        calls.append(1)
        return functional.mse_loss(y * leaf if len(calls) % 2 else y, t)

    refused(layers(2), schedule, "stage 1 (Linear)", "none of its parameters", loss_fn=loss_fn)


@BOTH
def test_leaves_by_reference_in_later_steps(schedule):
    leaf, uses, (x, y) = torch.ones(WIDTH, requires_grad=True), [], batch()
    pipeline = weft_torch.Pipeline(
        layers(2),
        schedule,
        lambda y, t: functional.mse_loss(y * (leaf if uses else 1), t),
        microbatches=M,
    )
    pipeline.step(x, target=y)
    uses.append(1)
    with pytest.raises(weft.UsageError, match="none of its parameters"):
        for _ in range(2):
            pipeline.step(x, target=y)


class Eager(nn.Module):
    """Learns something else in its forward, by a backward of its own that reaches its input."""

    def __init__(self, width):
        super().__init__()
        self.linear, self.other = layers(2, width)

    def forward(self, x):
        if not torch._C._len_torch_dispatch_stack():  # not in the run for shapes
            self.other(x).pow(2).mean().backward(retain_graph=True)
        return self.linear(x)


@BOTH
@pytest.mark.parametrize("width", [WIDTH, LARGE])
def test_a_backward_in_a_forward(schedule, width):
    compare(
        [*layers(1, width), Eager(width), *layers(1, width)], schedule, width=width, exact=False
    )


class Names(nn.Module):
    """An embedding, whose backward needs no weight."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, WIDTH)

    def forward(self, x):
        return self.table(x[:, 0].abs().long().clamp(0, 4))


@BOTH
def test_weights_that_change_in_a_backward(schedule):
    modules = [Names(), *layers(1)]
    weight = modules[0].table.weight
    optimizer = torch.optim.SGD([weight], lr=0.5)
    weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    error = refused(modules, schedule, "stage 0 (Names)", "weight table.weight")
    assert "after step()" in error.hint


@BOTH
def test_buffers_that_change_in_a_backward(schedule):
    for norm in (nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(WIDTH, affine=False)):
        module = Apply(lambda self, x: checkpoint(self.norm, self.linear(x), use_reentrant=False))
        module.norm = norm
        error = refused([*layers(1), module], schedule, "stage 1 (Apply)", "buffer norm.")
        assert "checkpoint" in error.hint


def by_hook(grad):
    grad.mul_(2)


def inside(self, x):
    y = self.linear(x)
    if y.requires_grad:
        y.register_hook(by_hook)
    return torch.tanh(y)


def at_the_end(self, x):
    y = self.linear(torch.tanh(x))
    if y.requires_grad:
        y.register_hook(by_hook)
    return y


def counted(self, x):
    """A hook that gives something else each time."""

    def hook(grad):
        self.calls.append(1)
        return grad / len(self.calls)

    y = self.linear(x)
    if y.requires_grad:
        y.register_hook(hook)
    return torch.tanh(y)


@BOTH
@pytest.mark.parametrize("width", [WIDTH, LARGE])
def test_hooks_that_give_something_else_the_second_time(schedule, width):
    modules = [*layers(1, width), Apply(counted, width), *layers(1, width)]
    modules[1].calls = []
    if schedule == "1F1B":
        compare(modules, schedule, width=width, exact=False)
        return
    error = refused(modules, schedule, "stage 1 (Apply)", "(by a hook)", data=batch(width))
    assert "1F1B" in error.hint


@BOTH
@pytest.mark.parametrize("width", [WIDTH, LARGE])
@pytest.mark.parametrize("function", [inside, at_the_end])
def test_gradients_that_a_hook_changes(schedule, width, function):
    """A split backward has them twice, so what is changed in place may be changed twice."""
    modules = [*layers(1, width), Apply(function, width), *layers(1, width)]
    if schedule == "1F1B" or (function is inside and width == WIDTH):  # it is made anew
        compare(modules, schedule, width=width, exact=False)
        return
    error = refused(modules, schedule, "stage 1 (Apply)", "gradient that it", data=batch(width))
    assert "1F1B" in error.hint


@pytest.mark.parametrize("width", [WIDTH, LARGE])
def test_a_hook_that_changes_what_another_stage_needs(width):
    """The gradient of x + p is that of x and of p: stage 0 changes it before W of stage 1."""
    order = [f"{op}{{}}" for op in ("F", "B")], [f"{op}{{}}" for op in ("F", "I", "W")]
    rows = [
        [f"{stage}{op.format(k)}" for op in order[stage == 1] for k in range(M)]
        for stage in range(3)
    ]
    shift = nn.Sequential(Shifts(width), *([] if width == WIDTH else layers(1, width)))
    modules = [Apply(at_the_end, width), shift, *layers(1, width)]
    compare(modules, weft.Table.from_rows(rows), width=width, exact=False)


class Shifts(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.shift = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x + self.shift


# ---- What forwards leave for backwards ----


def counts(self, x):
    self.count = getattr(self, "count", 0) + 1


def masks(self, x):
    self.mask = (x.detach() > 0).to(x.dtype)


def adds(self, x):
    self.forwards += 1


def again(change, read):
    """A module whose forward changes an attribute, and whose checkpoint() may read it."""

    def function(self, x):
        change(self, x)
        return checkpoint(lambda h: torch.tanh(self.linear(h) * read(self)), x, use_reentrant=False)

    module = Apply(function)
    module.register_buffer("forwards", torch.zeros(()))
    return module


def with_input_for_a_hook():
    module = nn.Sequential(nn.Tanh(), *layers(1))
    module[1].register_forward_hook(lambda part, xs, _: setattr(part, "taken", xs[0].detach()))
    module[1].register_full_backward_hook(lambda part, grads, _: (grads[0] * part.taken,))
    return module


READ_LATER = {
    "count": lambda: again(counts, lambda self: self.count),
    "mask": lambda: again(masks, lambda self: self.mask),
    "forwards": lambda: again(adds, lambda self: self.forwards),
    "1.taken": with_input_for_a_hook,
}


@pytest.mark.parametrize("schedule", ["1F1B", "ZBH1", "GPipe"])
@pytest.mark.parametrize("name", READ_LATER)
def test_attributes_that_a_backward_reads(schedule, name):
    modules = [*layers(1), READ_LATER[name](), *layers(1)]
    kinds = [type(part) for part in modules[1].modules()]
    error = refused(modules, schedule, "stage 1", f"attribute {name}, and forwards")
    assert "argument" in error.hint
    assert [type(part) for part in modules[1].modules()] == kinds


def keeps(self, x):
    self.table = torch.arange(x.shape[1]).cos()  # another one with the same numbers
    self.size, self.name, self.pair = x.shape[0] + 1000, f"{x.shape}", (self.table, "cos")
    self.shape, self.place = x.shape, x.device


def writes(self, x):
    def inner(h):
        self.last = self.linear(h)
        return torch.tanh(self.last)

    return checkpoint(inner, x, use_reentrant=False)


@BOTH
def test_attributes_that_a_backward_does_not_read(schedule):
    for module in (
        again(counts, lambda self: 1),
        again(adds, lambda self: 1),
        again(keeps, lambda self: self.pair[0] * self.size * (self.name == f"{self.shape}")),
        again(keeps, lambda self: torch.ones(self.shape[1], device=self.place) * self.table),
        Apply(writes),
    ):
        compare([*layers(1), module, *layers(1)], schedule)


class Kind(torch.Tensor):
    pass


def test_outputs_that_are_more_than_numbers():
    def scaled(self, x):
        y = self.linear(x)
        y.scale = 3.0
        return y

    def of_a_kind(self, x):
        y = self.linear(x)
        return y if torch._C._len_torch_dispatch_stack() else y.as_subclass(Kind)

    for words, function in (
        (("attribute scale",), scaled),
        (("gives a Kind",), of_a_kind),
        (("layout torch.sparse_coo",), lambda self, x: self.linear(x).to_sparse()),
    ):
        refused([Apply(function), *layers(1)], "1F1B", "stage 0 (Apply)", *words)
        compare([*layers(1), Apply(scaled)], "1F1B")  # the loss takes all of it


PROCESSES = """\
import sys
import torch, weft_pipeline as weft, weft_pipeline.torch as weft_torch
import torch.distributed as dist
from torch import nn

rank, file = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
x = torch.randn(8, 8)


def counted(output, target):
    count = torch.ones(())
    dist.all_reduce(count)
    return ((output - target) ** 2).sum() / count


def run(*modules, loss_fn=nn.MSELoss()):
    try:
        weft_torch.Pipeline(modules, "1F1B", loss_fn, microbatches=4).step(x, target=x)
    except weft.UsageError as error:
        print(error.message)
    dist.barrier()


hooked, calls = ([nn.Linear(8, 8) for _ in range(2)] for _ in range(2))
for module in hooked:
    for weight in module.parameters():
        weight.register_hook(lambda grad: dist.all_reduce(grad))
for module in calls:
    module.register_forward_pre_hook(lambda _, xs: dist.all_reduce(xs[0].detach().clone()))
run(*hooked)
run(*calls)
run(nn.Linear(8, 8), nn.Tanh(), loss_fn=counted)  # one rank calls it, in order
"""


def test_collectives_in_ranks_that_are_threads(tmp_path):
    words = [sys.executable, "-c", PROCESSES]
    jobs = [
        subprocess.Popen(
            [*words, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    for job in jobs:
        said = job.communicate(timeout=120)[0].splitlines()
        assert job.returncode == 0 and len(said) == 2, said
        assert said[0].startswith("stage 1 (Linear) communicates by torch.distributed")
        assert said[1].startswith("stage 0 (Linear) communicates by torch.distributed")


def test_hooks_of_gradients_in_a_large_stage():
    modules, called = layers(2, LARGE), []
    for weight in modules[1].parameters():
        weight.register_post_accumulate_grad_hook(lambda _: called.append(1))
    step_on(weft_torch.Pipeline(modules, "ZBH1", nn.MSELoss(), microbatches=M), batch(LARGE))
    assert len(called) == 2 * M


# ---- The run that finds shapes ----


class Remembers(nn.Module):
    """Counts its forwards, and makes a table in the first."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("forwards", torch.zeros(()))
        self.count, self.tables = 0, {}

    def forward(self, x):
        self.count += 1
        self.forwards += 1
        if x.shape[1] not in self.tables:
            self.tables[x.shape[1]] = torch.arange(x.shape[1]).cos()
        return self.linear(x) * self.tables[x.shape[1]]


@BOTH
def test_modules_stay_as_they_are(schedule):
    modules = [nn.Sequential(*layers(1), nn.BatchNorm1d(WIDTH)), Remembers()]
    x, y = batch()
    _, _, others = plain(modules, nn.MSELoss(), x, y)
    compare(modules, schedule)
    assert modules[0][1].num_batches_tracked == others[0][1].num_batches_tracked == M
    assert modules[1].count == others[1].count == M == modules[1].forwards
    assert torch.equal(modules[1](x), others[1](x))  # no tensor without data is left


SEEN: list = []
CALLS = 0


class Outside(nn.Linear):
    """Counts its forwards in variables of the file, and of the function around it."""

    def forward(self, x):
        global CALLS
        CALLS += 1
        y = super().forward(x)
        SEEN.append(y.detach())
        return y


@BOTH
def test_functions_that_remember(schedule):
    global CALLS
    SEEN.clear()
    CALLS, called, seen = 0, 0, []

    def count(n):  # it has itself among its variables
        nonlocal called
        called += 1
        return count(n - 1) if n > 1 else None

    def scale(_, __, y):
        count(1)
        seen.append(y)
        return y * called

    def record(_, __, y, kept=SEEN):
        kept.append(y.detach())

    torch.manual_seed(5)
    modules = [*layers(1), nn.Sequential(nn.Linear(WIDTH, WIDTH)), Outside(WIDTH, WIDTH)]
    modules[1][0].register_forward_hook(scale)
    modules[0].register_forward_hook(record)
    x, y = batch()
    pipeline = weft_torch.Pipeline(modules, schedule, nn.MSELoss(), microbatches=M)
    losses = pipeline.step(x, target=y).losses
    found = [weight.grad.clone() for weight in parameters_of(modules, None)]
    assert (called, CALLS, len(seen), len(SEEN)) == (M, M, M, 2 * M)
    assert all(type(tensor) is torch.Tensor for tensor in (*seen, *SEEN))
    called = 0
    expected, gradients, _ = plain(modules, nn.MSELoss(), x, y, twins=modules)
    assert losses == expected
    same(found, gradients)


class Log:
    """An object outside modules, and a context that functions look at."""

    def __init__(self):
        self.count, self.seen, self.is_on = 0, [], False

    def add(self, x):
        self.count += 1
        self.seen.append(x.detach())

    def __enter__(self):
        self.is_on = True

    def __exit__(self, *_):
        self.is_on = False


LOG = Log()
HELPERS = types.ModuleType("helpers")
exec("count = 0\ndef note():\n    global count\n    count += 1", vars(HELPERS))


def note(x):
    global CALLS
    CALLS += 1
    SEEN.append(x.detach())
    note.calls = getattr(note, "calls", 0) + 1
    HELPERS.note()
    LOG.add(x)
    return 2.0 if LOG.is_on else 3.0


class Notes(nn.Module):
    """Counts its forwards in what its methods, and functions that these call, find by name."""

    calls, seen, kinds = 0, [], {}

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        type(self).calls = vars(type(self)).get("calls", 0) + 1
        with LOG:
            return self.inner(x) * note(x)

    def inner(self, x):
        Notes.last = x.detach()
        self.seen.append(x.detach())
        self.count(type(self).__name__)
        return self.linear(x)

    @classmethod
    def count(cls, name):
        cls.kinds[name] = cls.kinds.get(name, 0) + 1


class MoreNotes(Notes):
    def forward(self, x):
        return super().forward(x) * note(x)


@BOTH
def test_functions_and_classes_that_remember(schedule):
    def begin():
        global CALLS
        CALLS = HELPERS.count = LOG.count = Notes.calls = note.calls = 0
        for container in (SEEN, LOG.seen, Notes.seen, Notes.kinds):
            container.clear()
        for kind, name in ((MoreNotes, "calls"), (Notes, "last")):
            if name in vars(kind):
                delattr(kind, name)

    def found():
        seen = [*SEEN, *LOG.seen, *Notes.seen, Notes.last]
        assert all(type(tensor) is torch.Tensor for tensor in seen)
        kinds = Notes.calls, vars(MoreNotes).get("calls"), dict(Notes.kinds), len(seen)
        return CALLS, HELPERS.count, LOG.count, note.calls, kinds

    torch.manual_seed(5)
    modules, (x, y) = [*layers(1), Notes(), MoreNotes()], batch()
    begin()
    losses, gradients, _ = plain(modules, nn.MSELoss(), x, y)
    expected = found()
    begin()
    del note.calls
    pipeline = weft_torch.Pipeline(modules, schedule, nn.MSELoss(), microbatches=M)
    assert pipeline.step(x, target=y).losses == losses
    assert found() == expected
    same([weight.grad for weight in parameters_of(modules, None)], gradients)


class Tables(nn.Module):
    """Keeps a table outside itself, as rotary embeddings do."""

    kept = None

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("speed", torch.rand(WIDTH))

    def forward(self, x):
        if Tables.kept is None:
            Tables.kept = torch.arange(x.shape[1]) * self.speed
        return self.linear(x) * Tables.kept.cos()


@BOTH
def test_tables_outside_modules(schedule):
    @functools.lru_cache
    def table(size):
        return torch.arange(size).float().cos()

    torch.manual_seed(5)
    modules = [Apply(lambda self, x: self.linear(x) * table(x.shape[1])), Tables()]
    x, y = batch()
    Tables.kept = None
    pipeline = weft_torch.Pipeline(modules, schedule, nn.MSELoss(), microbatches=M)
    losses = pipeline.step(x, target=y).losses
    found = [weight.grad for weight in parameters_of(modules, None)]
    assert type(table(WIDTH)) is type(Tables.kept) is torch.Tensor  # with data
    Tables.kept = None
    table.cache_clear()
    expected, gradients, _ = plain(modules, nn.MSELoss(), x, y)
    assert losses == expected
    same(found, gradients)


@BOTH
def test_hooks_of_all_modules_that_remember(schedule):
    modules, (x, y), seen = layers(2), batch(), []
    both = nn.modules.module
    handles = [
        both.register_module_forward_hook(lambda _, __, y: seen.append(y)),
        both.register_module_forward_pre_hook(lambda _, xs: seen.append(xs[0])),
    ]
    try:
        weft_torch.Pipeline(modules, schedule, nn.MSELoss(), microbatches=M).step(x, target=y)
    finally:
        for handle in handles:
            handle.remove()
    assert len(seen) == 3 * 2 * M  # of the loss, too
    assert all(type(tensor) is torch.Tensor for tensor in seen)


OWN = random.Random(1)


def test_generators_of_python_and_numpy():
    """The run for shapes draws from none of them."""
    numpy = pytest.importorskip("numpy")
    own, old = numpy.random.default_rng(1), numpy.random.RandomState(1)
    kinds = {
        "python": (random.seed, lambda: random.random()),
        "numpy": (numpy.random.seed, lambda: numpy.random.rand()),
        "own": (OWN.seed, lambda: OWN.random()),
        "state": (old.seed, lambda: old.rand()),
        "generator": (
            lambda seed: setattr(own.bit_generator, "state", numpy.random.PCG64(seed).state),
            lambda: own.random(),
        ),
    }
    x, y = batch()
    for seed, draw in kinds.values():
        modules = [*layers(1), Apply(lambda self, x, draw=draw: self.linear(x) * draw())]
        seed(3)
        losses, gradients, _ = plain(modules, nn.MSELoss(), x, y)
        seed(3)
        pipeline = weft_torch.Pipeline(modules, "1F1B", nn.MSELoss(), microbatches=M)
        assert pipeline.step(x, target=y).losses == losses
        same([weight.grad for weight in parameters_of(modules, None)], gradients)


@BOTH
def test_buffers_and_attributes_that_are_not_numbers(schedule):
    def function(self, x):
        self.mask = torch.full((2,), float("nan"))
        return checkpoint(
            lambda h: self.linear(h) * self.mask.isnan().all(), x, use_reentrant=False
        )

    modules = [*layers(1), Apply(function), *layers(1)]
    modules[1].register_buffer("unset", torch.full((3,), float("nan")))
    x, y = batch()
    losses, gradients, _ = plain(modules, nn.MSELoss(), x, y)
    pipeline = weft_torch.Pipeline(modules, schedule, nn.MSELoss(), microbatches=M)
    assert pipeline.step(x, target=y).losses == losses
    same([weight.grad for weight in parameters_of(modules, None)], gradients)


class Locks(nn.Linear):
    def __init__(self):
        super().__init__(WIDTH, WIDTH)
        self.lock = threading.Lock()

    def __deepcopy__(self, memo):  # for plain()
        twin = Locks()
        twin.load_state_dict(self.state_dict())
        return twin


class Experts(nn.Module):
    """Each row goes to the expert that a router chooses: sizes depend on values."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(layers(3))

    def forward(self, x):
        weight, choice = self.router(x).softmax(1).max(1)
        y = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            rows = (choice == k).nonzero()[:, 0]
            y = y.index_add(0, rows, expert(x[rows]) * weight[rows, None])
        return y


@BOTH
@pytest.mark.parametrize(
    "module",
    [
        lambda: Apply(lambda self, x: self.linear(x if x.sum() > 0 else -x)),
        lambda: Apply(lambda self, x: self.linear(x) * x.max().item()),
        Experts,
        Locks,
    ],
)
def test_what_depends_on_values(schedule, module):
    compare([*layers(1), module(), *layers(1)], schedule)


@BOTH
def test_sizes_that_change(schedule):
    """From one microbatch to the next, from batch to batch, and what goes from stage to stage."""

    class Keeps(nn.Module):
        def forward(self, x):
            return x[x.sum(1) > 0]

    modules = [*layers(1), Keeps(), *layers(1)]
    loss_fn = lambda y, t: (y - t.mean()).square().sum()  # noqa: E731
    pipeline = weft_torch.Pipeline(modules, schedule, loss_fn, microbatches=M)
    torch.manual_seed(1)
    for rows in (M, 5 * M + 3, 2 * M + 1):
        x, y = torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)
        for module in modules:
            module.zero_grad()
        losses, gradients, _ = plain(modules, loss_fn, x, y)
        for module in modules:
            module.zero_grad()
        assert pipeline.step(x, target=y).losses == losses
        same([weight.grad for weight in parameters_of(modules, None)], gradients)


def test_a_module_that_does_not_fit():
    x, y = batch()
    modules = [*layers(1), nn.Linear(3, WIDTH)]
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        weft_torch.Pipeline(modules, "1F1B", nn.MSELoss(), microbatches=M).step(x, target=y)


# ---- Steps ----


@BOTH
def test_unfreezing_in_a_forward(schedule):
    def function(self, x):
        self.count = getattr(self, "count", 0) + 1
        return self.linear.requires_grad_(self.count > 1)(x)

    modules = [*layers(1), Apply(function), *layers(1)]
    modules[1].requires_grad_(False)
    if schedule == "1F1B":
        compare(modules, schedule)
        return
    error = refused(modules, schedule, "stage 1 (Apply)", "unfreezes a weight")
    assert "between steps" in error.hint


@BOTH
def test_weights_that_a_forward_replaces(schedule):
    def function(self, x):
        self.count = getattr(self, "count", 0) + 1
        if self.count == M + 2:
            self.linear.weight = nn.Parameter(self.linear.weight.detach() * 2)
        return self.linear(x)

    modules, (x, y) = [*layers(1), Apply(function), *layers(1)], batch()
    pipeline = weft_torch.Pipeline(modules, schedule, nn.MSELoss(), microbatches=M)
    pipeline.step(x, target=y)
    with pytest.raises(weft.UsageError, match=r"stage 1 \(Apply\): a forward makes or replaces"):
        pipeline.step(x, target=y)


@BOTH
@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_add_up_over_steps(schedule, to_none):
    modules, (x, y) = layers(2), batch()
    pipeline = weft_torch.Pipeline(modules, schedule, nn.MSELoss(), microbatches=M)
    _, once, _ = plain(modules, nn.MSELoss(), x, y)
    _, again, _ = plain(modules, nn.MSELoss(), y, x)
    pipeline.step(x, target=y)
    kept = modules[0].weight.grad
    pipeline.step(y, target=x)
    assert modules[0].weight.grad is kept
    weights = parameters_of(modules, None)
    same([w.grad for w in weights], [a + b for a, b in zip(once, again)])
    for module in modules:
        module.zero_grad(set_to_none=to_none)
    pipeline.step(x, target=y)
    same([w.grad for w in weights], once)


def test_a_step_that_fails_leaves_gradients():
    is_bad = []

    def fails(self, x):
        if is_bad:
            raise ZeroDivisionError
        return self.linear(x)

    modules, (x, y) = [*layers(1), Apply(fails)], batch()
    pipeline = weft_torch.Pipeline(modules, "1F1B", nn.MSELoss(), microbatches=M)
    pipeline.step(x, target=y)
    weights = parameters_of(modules, None)
    before = [w.grad.clone() for w in weights]
    is_bad.append(1)
    with pytest.raises(ZeroDivisionError):
        pipeline.step(x, target=y)
    same([w.grad for w in weights], before)


@pytest.mark.parametrize("m", [4, 5, 6, 7, 8])
def test_dualpipev_needs_microbatches_for_its_ranks_only(m):
    pipeline = weft_torch.Pipeline(layers(4), "DualPipeV", nn.MSELoss(), microbatches=m)
    assert (pipeline.program.ranks, pipeline.program.stages) == (2, 4)
    assert len(step_on(pipeline, batch()).losses) == m
    with pytest.raises(weft.UsageError):
        weft_torch.Pipeline(layers(4), "DualPipeV", nn.MSELoss(), microbatches=3)


def test_wrong_losses_and_batches():
    x, y = batch()

    def two(output, target):
        return functional.mse_loss(output, target), output

    refused(layers(2), "1F1B", "stage 1", "tuple of 2 (tensor, tensor)", loss_fn=two)
    for wrong in (lambda y, _: y, lambda y, _: (y * 1j).sum()):
        refused(layers(2), "1F1B", "stage 1", "expected one real number", loss_fn=wrong)
    refused(layers(2), "1F1B", "float", loss_fn=lambda output, _: output.mean().item())
    refused(layers(2), "1F1B", "x requires a gradient", data=(x.requires_grad_(), y))
    refused(layers(2), "1F1B", "target requires", data=(x.detach(), y.requires_grad_()))
    pipeline = weft_torch.Pipeline(layers(2), "1F1B", nn.MSELoss(), microbatches=M)
    assert len(pipeline.eval(x, target=y).losses) == M


@BOTH
def test_batches_and_targets_that_are_changed_in_place(schedule):
    def loss_fn(output, target):
        return functional.mse_loss(output, target.mul_(2))

    modules, (x, y) = [nn.Sequential(nn.ReLU(inplace=True), *layers(1)), *layers(1)], batch()
    losses, gradients, _ = plain(modules, loss_fn, x.clone(), y.clone())
    found = weft_torch.Pipeline(modules, schedule, loss_fn, microbatches=M).step(x, target=y)
    assert found.losses == losses
    same([weight.grad for weight in parameters_of(modules, None)], gradients)
    assert torch.equal(x, x.relu()) and torch.equal(y, batch()[1] * 2)


def test_a_batch_that_a_stage_of_several_changes():
    class Rectifies(nn.Linear):
        def forward(self, x):
            return super().forward(x.relu_())

    (x, y), graph = batch(), weft.Graph("0>2,1>2")
    modules = [Rectifies(WIDTH, WIDTH), *layers(1), Join(*layers(1))]
    pipeline = weft_torch.Pipeline(modules, "1F1B", nn.MSELoss(), graph=graph, microbatches=M)
    with pytest.raises(weft.UsageError, match="stage 0 changes x in place") as caught:
        pipeline.step(x - 1, target=y)
    assert "clone()" in caught.value.hint
    pipeline.step((x.clone(), x), target=y)


def test_complex_tensors_between_stages():
    turns = Apply(lambda _, x: torch.complex(x, 2 * x))
    back = Apply(lambda self, z: self.linear(torch.view_as_real(z * z).sum(-1)))
    compare([*layers(1), turns, back], "1F1B")


# ---- Modes of the caller ----


@BOTH
def test_autocast_of_some_steps(schedule):
    modules, (x, y) = layers(3), batch()
    pipeline = weft_torch.Pipeline(modules, schedule, nn.MSELoss(), microbatches=M)
    for dtype in (None, torch.bfloat16, torch.float16, None):
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            losses, _, _ = plain(modules, nn.MSELoss(), x, y)
            found = pipeline.step(x, target=y, return_outputs=True)
        assert found.losses == losses and found.output.dtype == (dtype or torch.float32)
    for module in modules:
        module.double()
    x, y = x.double(), y.double()
    losses, _, _ = plain(modules, nn.MSELoss(), x, y)
    assert pipeline.step(x, target=y).losses == losses


def test_variables_of_the_callers_context():
    scale = contextvars.ContextVar("scale", default=1.0)
    modules = [Apply(lambda self, x: self.linear(x) * scale.get()) for _ in range(2)]
    token = scale.set(3.0)
    try:
        compare(modules, "1F1B")
    finally:
        scale.reset(token)


def test_ranks_use_as_many_threads_as_the_caller_says():
    """Convolutions sum in another order on two threads than on one."""
    torch.manual_seed(2)
    modules = [nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 1, 3, padding=1)]
    x, y = torch.randn(8, 1, 8, 8), torch.randn(8, 1, 8, 8)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        _, expected, _ = plain(modules, nn.MSELoss(), x, y)
        pipeline = weft_torch.Pipeline(modules, "1F1B", nn.MSELoss(), microbatches=M)
        pipeline.step(x, target=y)
    finally:
        torch.set_num_threads(before)
    same([weight.grad for weight in parameters_of(modules, None)], expected)


def test_hooks_of_saved_tensors():
    modules, (x, y) = layers(2), batch()
    _, expected, _ = plain(modules, nn.MSELoss(), x, y)
    pipeline = weft_torch.Pipeline(modules, "ZBH1", nn.MSELoss(), microbatches=M)
    packed = []

    def pack(tensor):
        packed.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        pipeline.step(x, target=y)
    assert len(packed) >= 2 * M
    same([w.grad for w in parameters_of(modules, None)], expected)
    for module in modules:
        module.zero_grad()
    with torch.autograd.graph.save_on_cpu():
        pipeline.step(x, target=y)
    same([w.grad for w in parameters_of(modules, None)], expected)


def test_modes_of_dispatch_are_refused():
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        error = refused(layers(2), "1F1B", "FlopCounterMode")
    assert "mpi" in error.hint
    with torch.device("cpu"):
        compare(layers(2), "1F1B")


def test_profiler():
    x, y = batch()
    pipeline = weft_torch.Pipeline(layers(2), "1F1B", nn.MSELoss(), microbatches=M)
    with pytest.warns(UserWarning, match="profile_all_threads"), torch.profiler.profile():
        pipeline.step(x, target=y)
    everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with torch.profiler.profile(experimental_config=everywhere) as profile:
        pipeline.step(x, target=y)
    assert any(event.name == "aten::addmm" for event in profile.events())
