"""What works in Pipeline: kinds of modules and uses, and the table of them in docs/pytorch.md.

Each is right (bits of a plain loop of PyTorch, or up to rounding where it is `close`), or refused
with an error of Weft's that says these words. As a program this file prints the table; under
torchrun it runs the right ones between processes.
"""

import contextlib
import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any, Callable, NamedTuple

import pytest
import weft_pipeline as weft
import weft_pipeline.torch as weft_torch

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("torch.distributed.pipelining")
import test_torch_batches as batches  # noqa: E402
import test_torch_modules as others  # noqa: E402
import torch.distributed as dist  # noqa: E402
from test_torch_modules import LARGE, WIDTH, M, layers  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.utils import prune  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

WHOLE, SPLIT = ("GPipe", "1F1B"), ("ZBH1", "InterleavedZeroBubble")
STAGES = 4
Function = torch.autograd.Function


class Kind(NamedTuple):
    """A part of a sentence, and what shows it."""

    topic: str
    words: str
    make: Callable[[], Any]  # one or two modules, between two linear ones
    said: str = ""  # by the error
    by: tuple[str, ...] = WHOLE + SPLIT  # schedules that refuse it
    width: int = WIDTH
    loss: Callable[[], Any] = nn.MSELoss
    draws: bool = False
    close: bool = False
    around: Callable[[], Any] = contextlib.nullcontext
    error: type[weft.Error] = weft.UsageError


class Does(others.Apply):
    """A function of the module and all that it takes."""

    def forward(self, *values):
        return self.function(self, *values)


def one(*functions, width=WIDTH):
    """Stages that do this with what they take."""
    return lambda: [Does(function, width) for function in functions]


def of(*kinds):
    return lambda: [kind() for kind in kinds]


# ---- Modules ----


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x):
        whole = x[None]
        return self.inner(whole, whole, whole)[0][0]


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.LSTM(WIDTH, WIDTH)

    def forward(self, x):
        return self.inner(x)[0]


class Convolutions(nn.Sequential):
    def __init__(self):
        layout = {"memory_format": torch.channels_last}
        super().__init__(
            nn.Unflatten(1, (1, 2, 4)), nn.Conv2d(1, 1, 3, padding=1).to(**layout), nn.ReLU()
        )


class Rotary(nn.Linear):
    def __init__(self):
        super().__init__(WIDTH, WIDTH)
        self.cache = {}

    def forward(self, x):
        if len(x) not in self.cache:
            angles = torch.arange(len(x))[:, None] / (torch.arange(WIDTH) + 1)
            self.cache[len(x)] = angles.cos()
        return super().forward(x) * self.cache[len(x)]


class Average(nn.Linear):
    """Keeps a running mean in place."""

    def __init__(self):
        super().__init__(WIDTH, WIDTH)
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x):
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return super().forward(x - self.mean)


class Codes(nn.Linear):
    """Vector quantization: the nearest code, with a gradient as if it were not there."""

    def __init__(self):
        super().__init__(WIDTH, WIDTH)
        self.register_buffer("codes", torch.randn(5, WIDTH))

    def forward(self, x):
        y = super().forward(x)
        nearest = torch.cdist(y.detach(), self.codes).argmin(1)
        self.codes = self.codes.index_add(0, nearest, y.detach(), alpha=0.1)
        return y + (self.codes[nearest] - y).detach()


class Table(nn.Module):
    def __init__(self, **more):
        super().__init__()
        self.table = nn.Embedding(9, WIDTH, **more)

    def forward(self, x):
        return x + self.table((x.detach()[:, 0].abs() * 3).long().clamp(0, 8))


class Ties(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x):
        return self.head(torch.tanh(self.head(x)) + self.table(x.detach().argmax(1)))


class Twin(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t(), x * 2

    @staticmethod
    def backward(ctx, first, second):
        x, weight = ctx.saved_tensors
        return first @ weight + 2 * second, first.t() @ x


class Seen(Function):
    """Gives a view."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, WIDTH))

    def forward(self, x):
        return x, self.table


def hooked():
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    module.register_forward_pre_hook(lambda _, xs: (xs[0] * 2,))
    module[0].weight.register_hook(lambda grad: grad * 3)
    module.register_full_backward_hook(lambda _, given, __: (given[0] * 2,))
    return module


def pruned():
    return prune.l1_unstructured(nn.Linear(WIDTH, WIDTH), "weight", 0.3)


def by_func(self, x):
    weights = {name: w * 2 for name, w in self.linear.named_parameters()}
    slope = torch.func.vmap(torch.func.grad(lambda row: torch.tanh(self.linear(row)).sum()))
    return torch.func.functional_call(self.linear, weights, (x,)) + slope(x)


def stateful(self, x):
    if hasattr(self, "state"):
        self.state.detach_()
    x = self.linear(x) + (self.state.sum(0) if hasattr(self, "state") else 0)
    self.state = x * 1
    return self.state


def in_place(self, x):
    y = self.linear(x)
    y[:, 0] = 0
    return y.mul_(2).relu_()


def eager(self, x):
    if torch.is_grad_enabled():
        torch.tanh(self.linear(x)).sum().backward(inputs=list(self.linear.parameters()))
    return self.linear(x)


def of_its_input(self, x):
    if x.requires_grad:
        x.register_hook(lambda grad: grad * 3)
    return self.linear(x)


def dropped(self, x):
    return functional.dropout(self.linear(x), 0.5)


def again(function, **more):
    return lambda self, x: checkpoint(function, self, x, **more)


class Dies(Function):
    """Its backward gives more each time."""

    @staticmethod
    def forward(ctx, x):
        ctx.count = 0
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        ctx.count += 1
        return grad * ctx.count


def thaws(self, x):
    self.count = getattr(self, "count", 0) + 1
    return self.linear.requires_grad_(self.count > 1)(x)


def thawing():
    return [Does(thaws).requires_grad_(False)]


def compiled():
    inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    return [torch.compile(inner, backend="aot_eager")]


def shared(how):
    """Two stages with something in common."""

    def make():
        pair = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)) for _ in range(2)]
        how(*pair)
        return pair

    return make


def tie(a, b):
    a[0].weight = b[0].weight


def tie_frozen(a, b):
    tie(a, b)
    a[0].weight.requires_grad_(False)


def share_norm(a, b):
    for part in (a, b):
        part[1] = nn.BatchNorm1d(WIDTH, affine=False)
    b[1] = a[1]


def by_reference():
    other = nn.Linear(WIDTH, WIDTH)
    return [Does(lambda self, x: self.linear(x) * other.bias)]


def bypass():
    kept = {}

    def keep(self, x):
        kept["x"] = x * 1
        return self.linear(x)

    return [Does(keep), Does(lambda self, x: self.linear(x) + kept["x"])]


def wrapped(kind):
    def make():
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        plain = nn.Linear(WIDTH, WIDTH)
        if kind == "fully_shard":
            return [fully_shard(plain, mesh=init_device_mesh("cpu", (1,)))]
        return [nn.parallel.DistributedDataParallel(plain)]

    return make


@contextlib.contextmanager
def in_a_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def hooks_of_saved():
    return torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x)


def counting():
    from torch.utils.flop_counter import FlopCounterMode

    return FlopCounterMode(display=False)


def optimized():
    module = Table()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    module.table.weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    return [module]


def masks(self, x):
    self.mask = (x.detach() > 0).to(x.dtype)
    return checkpoint(lambda h: torch.tanh(self.linear(h) * self.mask), x, use_reentrant=False)


def normed():
    module = Does(lambda self, x: checkpoint(self.norm, self.linear(x), use_reentrant=False))
    module.norm = nn.BatchNorm1d(WIDTH)
    return [module]


def detached(y, target):
    return functional.mse_loss(y, target).detach()


def with_graph():
    return [others.LastWithGraph()]


def marked(self, x):
    y = self.linear(x)
    y.scale = 3.0
    return y


def linear_in_place(self, x):
    return self.linear(x.relu_())


MODULES, WEIGHTS, GRADIENTS = "modules", "weights", "gradients"
BETWEEN, STATE, AROUND = "between stages", "state", "around `step()`"
BACKWARD = {"error": weft.StageError}

KINDS = [
    Kind(MODULES, "attention", of(Attention), close=True),
    Kind(MODULES, "LSTM", of(Recurrent)),
    Kind(MODULES, "channels_last convolutions", lambda: [Convolutions(), nn.Flatten()]),
    Kind(MODULES, "experts (`nonzero`)", of(others.Experts)),
    Kind(MODULES, "`.item()`", one(lambda self, x: self.linear(x) * x.max().item())),
    Kind(MODULES, "`if` on a tensor", one(lambda self, x: self.linear(x if x.sum() > 0 else -x))),
    Kind(MODULES, "`jit.script`", lambda: [torch.jit.script(nn.Linear(WIDTH, WIDTH))], close=True),
    Kind(MODULES, "`torch.func`", one(by_func)),
    Kind(MODULES, "dropout", one(dropped), draws=True),
    Kind(
        MODULES,
        "`checkpoint`, dropout inside",
        one(again(dropped, use_reentrant=False)),
        draws=True,
    ),
    Kind(MODULES, "lazy modules", of(lambda: nn.LazyLinear(WIDTH)), "has no shape yet"),
    Kind(MODULES, "DDP", wrapped("ddp"), "DistributedDataParallel", around=in_a_group),
    Kind(MODULES, "FSDP", wrapped("fully_shard"), "fully_shard", around=in_a_group),
    Kind(MODULES, "`torch.compile`¹", compiled, "donated buffers", SPLIT, close=True, **BACKWARD),
    Kind(
        MODULES,
        "`checkpoint(use_reentrant=True)`",
        one(again(lambda self, x: self.linear(x), use_reentrant=True)),
        "use_reentrant",
        SPLIT,
        **BACKWARD,
    ),
    Kind(WEIGHTS, "tied in a stage; used twice", of(Ties), close=True),
    Kind(WEIGHTS, "unused", one(lambda _, x: x * 2)),
    Kind(WEIGHTS, "frozen", lambda: [nn.Linear(WIDTH, WIDTH).requires_grad_(False)]),
    Kind(WEIGHTS, "stages without", of(nn.Tanh)),
    Kind(WEIGHTS, "65,536 or more", lambda: layers(1, LARGE), width=LARGE, close=True),
    Kind(WEIGHTS, "frozen in several stages", shared(tie_frozen)),
    Kind(WEIGHTS, "weight_norm", lambda: [others.RIGHT["weight norm"]()]),
    Kind(WEIGHTS, "spectral_norm", lambda: [others.RIGHT["spectral norm"]()]),
    Kind(WEIGHTS, "pruned", of(pruned)),
    Kind(WEIGHTS, "sparse or bounded embeddings", lambda: [Table(sparse=True), Table(max_norm=1)]),
    Kind(WEIGHTS, "of the loss", of(nn.Tanh), loss=others.Weighs),
    Kind(WEIGHTS, "of several stages, tied", shared(tie), "share the weight"),
    Kind(WEIGHTS, "no parameter of stage or loss", by_reference, "none of its parameters"),
    Kind(WEIGHTS, "changed in a hook", optimized, "changes its weight"),
    Kind(WEIGHTS, "unfrozen in a forward", thawing, "unfreezes a weight", SPLIT),
    Kind(
        GRADIENTS,
        "`autograd.Function`",
        one(lambda self, x: sum(Twin.apply(x, self.linear.weight))),
    ),
    Kind(GRADIENTS, "views of a function", one(lambda self, x: Seen.apply(self.linear(x)))),
    Kind(GRADIENTS, "hooks", lambda: [hooked(), Does(of_its_input)]),
    Kind(GRADIENTS, "`autograd.grad()` in a forward", one(torch.enable_grad()(others.slope))),
    Kind(GRADIENTS, "`backward()` in a forward", one(eager), close=True),
    Kind(GRADIENTS, "detached inputs", one(lambda self, x: self.linear(x.detach()))),
    Kind(
        GRADIENTS,
        "those of large stages",
        one(lambda self, x: self.linear(x.detach()), width=LARGE),
        width=LARGE,
        close=True,
    ),
    Kind(
        GRADIENTS,
        "changed in place by a hook",
        one(others.at_the_end),
        "changes the gradient",
        SPLIT,
    ),
    Kind(
        GRADIENTS,
        "added to a weight by a function",
        one(lambda self, x: others.ByHand.apply(x, self.linear.weight)),
        "by itself",
        SPLIT,
        close=True,
    ),
    Kind(
        GRADIENTS,
        "others in a second backward",
        one(lambda self, x: self.linear(Dies.apply(self.linear(x)))),
        "gives other gradients",
        SPLIT,
    ),
    Kind(GRADIENTS, "a detached loss", of(nn.Tanh), "grad_fn", loss=lambda: detached),
    Kind(
        BETWEEN,
        "tuples with numbers and None",
        one(
            lambda self, x: (self.linear(x), x.detach() > 0, 0.5, None),
            lambda self, y, mask, half, none: self.linear(y) * mask * half,
        ),
    ),
    Kind(
        BETWEEN,
        "one tensor twice; views",
        one(
            lambda self, x: (lambda y: (y, y, y[:, :4], x))(self.linear(x)),
            lambda self, a, b, half, x: self.linear(a) * b + half.repeat(1, 2) + x,
        ),
        close=True,
    ),
    Kind(
        BETWEEN,
        "expanded and transposed ones",
        one(
            lambda self, x: self.linear(x).sum(1, keepdim=True).expand(-1, WIDTH).t(),
            lambda self, y: self.linear(y.t()),
        ),
        close=True,
    ),
    Kind(
        BETWEEN,
        "complex and bfloat16 ones",
        one(
            lambda self, x: torch.complex(self.linear(x), x).conj(),
            lambda self, z: self.linear((z * z).imag.bfloat16().float()),
        ),
    ),
    Kind(
        BETWEEN,
        "sizes that change",
        one(
            lambda self, x: (self.linear(x)[x.detach().sum(1) > 0], x),
            lambda self, y, x: self.linear(x) + y.sum(0),
        ),
    ),
    Kind(BETWEEN, "parameters", lambda: [Positions(), Does(lambda self, x, p: self.linear(x) + p)]),
    Kind(BETWEEN, "outputs changed in place", one(in_place)),
    Kind(BETWEEN, "dicts, objects", one(lambda self, x: {"y": x}), "expected a tensor"),
    Kind(
        BETWEEN,
        "sparse tensors",
        one(lambda self, x: self.linear(x).to_sparse()),
        "layout",
    ),
    Kind(BETWEEN, "subclasses", one(lambda self, x: x.as_subclass(others.Kind)), "gives a Kind"),
    Kind(BETWEEN, "attributes", one(marked), "attribute scale"),
    Kind(BETWEEN, "inputs changed in place", one(linear_in_place), "forward failed", **BACKWARD),
    Kind(BETWEEN, "bypasses", bypass, "another forward"),
    Kind(STATE, "counters", of(others.Remembers)),
    Kind(STATE, "BatchNorm", lambda: [nn.BatchNorm1d(WIDTH)]),
    Kind(STATE, "rotary caches", of(Rotary)),
    Kind(STATE, "running means", of(Average)),
    Kind(STATE, "vector quantization", of(Codes)),
    Kind(STATE, "kept inputs", of(others.Last)),
    Kind(STATE, "kept outputs (`detach_()`)", one(stateful)),
    Kind(STATE, "kept with their graph", with_graph, "another forward"),
    Kind(STATE, "changed by several stages", shared(share_norm), "share the buffer"),
    Kind(STATE, "BatchNorm in `checkpoint()`", normed, "changes its buffer"),
    Kind(STATE, "`self.mask` for a backward", one(masks), "reads its attribute"),
    Kind(
        AROUND,
        "autocast",
        one(lambda self, x: self.linear(x).float()),
        around=lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    ),
    Kind(AROUND, "`saved_tensors_hooks`", of(nn.Tanh), around=hooks_of_saved),
    Kind(AROUND, "`save_on_cpu`", of(nn.Tanh), around=torch.autograd.graph.save_on_cpu),
    Kind(AROUND, "`torch.device`", of(nn.Tanh), around=lambda: torch.device("cpu")),
    Kind(AROUND, "dispatch modes", of(nn.Tanh), "FlopCounterMode", around=counting),
]


# ---- Uses ----


def fails_and_ends(schedule):
    """A step that fails, one after it, close(), and another pipeline of the same modules."""
    is_bad = []

    def function(self, x):
        if is_bad and not is_bad.pop():
            raise LookupError
        return self.linear(x)

    modules, (x, y) = [*layers(1), Does(function), *layers(1), nn.Tanh()], others.batch()
    loss_fn = nn.MSELoss()
    losses, gradients, _ = others.plain(modules, loss_fn, x, y)
    two = [
        weft_torch.Pipeline(modules, name, loss_fn, microbatches=M) for name in (schedule, "GPipe")
    ]
    is_bad.extend((False, True))
    with pytest.raises(LookupError):
        two[0].step(x, target=y)
    for step in range(6):
        for module in modules:
            module.zero_grad()
        assert two[step % 2].step(x, target=y).losses == losses
        same([w.grad for w in weights_of(modules)], gradients, close=False)
        two[step % 2].eval(y)
        if step == 3:
            two[0].close()
            two[0].close()


def arguments(schedule):
    for case in batches.CASES:
        batches.test_arguments(schedule, case)


def needs_gradient(schedule):
    x, y = others.batch()
    pipeline = weft_torch.Pipeline(layers(4), schedule, nn.MSELoss(), microbatches=M)
    wanting = torch.ones_like(x, requires_grad=True)
    for words, data in (("x requires a", (wanting, y)), ("target requires a", (x, wanting))):
        with pytest.raises(weft.UsageError, match=words):
            pipeline.step(data[0], target=data[1])


STEPS = {  # and whether it is right
    "several inputs, keyword arguments, chunk specs": (arguments, True),
    "batches of other sizes": (lambda _: None, True),  # test_kinds does it
    "sums over steps without `zero_grad()`": (
        lambda schedule: others.test_gradients_add_up_over_steps(schedule, True),
        True,
    ),
    "unfreezing between steps": (lambda _: others.test_unfreezing_between_steps(), True),
    "`eval()` between steps": (lambda _: None, True),
    "steps after one that failed; `close()`; pipelines in turns": (fails_and_ends, True),
    "a batch that requires a gradient": (needs_gradient, False),
    "an argument of several stages that one changes": (
        batches.test_arguments_that_a_stage_changes,
        False,
    ),
}


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B", "ZBH1"])
@pytest.mark.parametrize("name", STEPS)
def test_steps(name, schedule):
    STEPS[name][0](schedule)


# ---- What is shown ----


def build(kind):
    """Modules and loss; the same each time."""
    torch.manual_seed(3)
    middle, loss_fn = kind.make(), kind.loss()
    first, last = layers(2, kind.width)
    return ([first, *middle, last, nn.Tanh()])[:STAGES], loss_fn


def call(module, values):
    return module(*values) if type(values) in (tuple, list) else module(values)


def loop(modules, loss_fn, x, y, draws):
    """Losses of a loop over the microbatches; gradients add up in the weights."""
    losses = []
    seed = others.seeds(STAGES) if draws else None
    for k, (values, target) in enumerate(zip(x.tensor_split(M), y.tensor_split(M))):
        for s, module in enumerate(modules):
            if seed is not None:
                seed(s, k)
            values = call(module, values)
        loss = loss_fn(values, target)
        loss.backward()
        losses.append(loss.item())
    return losses


def weights_of(modules, loss_fn=None):
    parts = [*modules, loss_fn] if isinstance(loss_fn, nn.Module) else modules
    return [weight for part in parts for weight in part.parameters()]


def check(kind, schedule, mine=range(STAGES), **more):
    """Steps of several sizes, with an eval before one, are those of a plain loop."""
    modules, loss_fn = build(kind)
    plain, plain_loss = build(kind)
    pipeline = weft_torch.Pipeline(modules, schedule, loss_fn, microbatches=M, **more)
    for step, rows in enumerate((3, 5, 3)):
        torch.manual_seed(11 + step)
        x, y = torch.randn(2, rows * M, kind.width).unbind()
        for weight in (*weights_of(modules, loss_fn), *weights_of(plain, plain_loss)):
            weight.grad = None
        with kind.around():
            torch.manual_seed(step)
            losses = loop(plain, plain_loss, x, y, kind.draws)
            torch.manual_seed(step)
            found = pipeline.step(x, target=y).losses
            if step == 1 and not kind.draws:
                pipeline.eval(x)
                with torch.no_grad():
                    for values in x.tensor_split(M):
                        for module in plain:
                            values = call(module, values)
        if STAGES - 1 in mine:
            same([torch.tensor(found)], [torch.tensor(losses)], kind.close)
        pairs = [(modules[k], plain[k]) for k in mine]
        if STAGES - 1 in mine and isinstance(loss_fn, nn.Module):
            pairs.append((loss_fn, plain_loss))
        for a, b in pairs:
            gradients = [None if w.grad is None else w.grad.to_dense() / M for w in b.parameters()]
            mean = [None if w.grad is None else w.grad.to_dense() for w in a.parameters()]
            same(mean, gradients, kind.close)
            same(list(a.buffers()), list(b.buffers()), kind.close)
    return pipeline


def same(found, expected, close):
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        if a is None or b is None:
            assert a is b
        elif close:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
        else:
            assert torch.equal(a, b)


@pytest.mark.parametrize("schedule", WHOLE + SPLIT)
@pytest.mark.parametrize("kind", KINDS, ids=[kind.words for kind in KINDS])
def test_kinds(kind, schedule):
    if not kind.said or schedule not in kind.by:
        check(kind, schedule)
        return
    with pytest.raises(kind.error) as caught, kind.around():
        modules, loss_fn = build(kind)
        pipeline = weft_torch.Pipeline(modules, schedule, loss_fn, microbatches=M)
        x, y = torch.randn(2, 3 * M, kind.width).unbind()
        pipeline.step(x, target=y)
    assert kind.said in caught.value.message and caught.value.hint
    assert "stage" in caught.value.message or kind.topic == AROUND


# ---- The table ----


def table():
    """The table of docs/pytorch.md, in the order of KINDS."""
    lines = ["| | right | refused |", "|---|---|---|"]
    for topic in dict.fromkeys(kind.topic for kind in KINDS):
        mine = [kind for kind in KINDS if kind.topic == topic]
        right = "; ".join(kind.words for kind in mine if not kind.said)
        refused = "; ".join(
            f'{kind.words}{"²" * (kind.by == SPLIT)} ("{kind.said}")' for kind in mine if kind.said
        )
        lines.append(f"| {topic} | {right} | {refused} |")
    right, refused = (
        "; ".join(k for k, (_, is_right) in STEPS.items() if is_right == each)
        for each in (True, False)
    )
    lines.append(f"| steps | {right} | {refused} |")
    return "\n".join(lines) + "\n"


def test_page():
    """docs/pytorch.md has the table that this file prints."""
    page = Path(__file__).parent.parent.parent / "docs" / "pytorch.md"
    assert table() in page.read_text(encoding="utf-8"), "python tests/python/test_torch_kinds.py"


# ---- Between processes ----


def test_kinds_between_processes(tmp_path):
    """All right ones, under torchrun with two processes."""
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", __file__]
    job = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    count = len(between_processes())
    assert job.returncode == 0, job.stdout + job.stderr
    for rank in range(2):
        assert f"rank {rank} has {count} kinds\n" in job.stdout, job.stdout + job.stderr


def between_processes():
    """Kinds and schedules of the job."""
    return [
        (kind, schedule)
        for kind in KINDS
        for schedule in ("Interleaved1F1B", "InterleavedZeroBubble")
        if not kind.said or (kind.by == SPLIT and schedule not in SPLIT)
    ]


def run_between_processes():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mine = [k for k in range(STAGES) if k % 2 == rank]
    for kind, schedule in between_processes():
        try:
            check(kind, schedule, mine, transport="torch", stall_limit=60).close()
        except Exception as error:
            raise AssertionError(f"{kind.words}, {schedule}") from error
    sys.stdout.write(f"rank {rank} has {len(between_processes())} kinds\n")


# ---- PyTorch's own tests of pipelining, as cases ----


class Mlp(nn.Sequential):
    def __init__(self, count):
        super().__init__(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(count)])


PLACED = {  # test_schedule_multiproc.py: V, unbalanced, reordered B, W
    "v": ["0F0,3F0,3B0,0B0,0F1,3F1,3B1,0B1", "1F0,2F0,2B0,1B0,1F1,2F1,2B1,1B1"],
    "unbalanced": ["0F0,1F0,4F0,4B0,1B0,0B0", "2F0,3F0,3B0,2B0"],
    "reordered": ["0F0,0F1,0B1,0B0", "1F0,1F1,1B1,1B0"],
    "split": ["0F0,0F1,0I0,0W0,0I1,0W1", "1F0,1F1,1I0,1I1,1W0,1W1"],
}


@pytest.mark.parametrize("name", PLACED)
def test_tables_of_pytorchs_tests(name):
    """Sums of losses without scale_grads are those of the whole batch; several steps add up."""
    table = weft.Table.from_rows([row.split(",") for row in PLACED[name]])
    torch.manual_seed(3)
    whole, loss_fn = Mlp(table.stages), nn.MSELoss(reduction="sum")
    x, y = torch.randn(2, 12, WIDTH).unbind()
    pipeline = weft_torch.Pipeline(list(whole), table, loss_fn, scale_grads=False)
    for _ in range(4):
        found = pipeline.step(x, target=y, return_outputs=True)
    gradients = [w.grad.clone() for w in whole.parameters()]
    whole.zero_grad()
    for _ in range(4):
        loss = loss_fn(whole(x), y)
        loss.backward()
    torch.testing.assert_close(found.output, whole(x))
    torch.testing.assert_close(sum(found.losses), loss.item())
    torch.testing.assert_close(gradients, [w.grad for w in whole.parameters()])


def test_forwards_alone():
    """test_forward_only: what comes out goes in again."""
    whole = Mlp(2)
    x = y = torch.randn(8, WIDTH)
    pipeline = weft_torch.Pipeline(list(whole), "GPipe", microbatches=4)
    with torch.no_grad():
        for _ in range(20):
            x, y = pipeline.eval(x).output, whole(y)
    torch.testing.assert_close(x, y)


class Traced(nn.Module):
    """With keyword arguments, and skips over stages, as in test_pipe.py."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = layers(3)

    def forward(self, x, y=None):
        from torch.distributed.pipelining import pipe_split

        x = self.one(x)
        pipe_split()
        x = torch.relu(self.two(x))
        pipe_split()
        return self.three(x) - y.tanh()


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B", "ZBH1"])
@pytest.mark.parametrize("keywords", [False, True])
def test_tracer(schedule, keywords):
    """Stages that pipeline() makes: their names, and the keyword argument of a later one."""
    from torch.distributed.pipelining import SplitPoint, pipeline

    x, y = others.batch()
    more = {"y": y} if keywords else {}
    whole = Traced() if keywords else Mlp(4)
    spec = None if keywords else {"2": SplitPoint.BEGINNING}
    example = {name: value[:3] for name, value in more.items()}
    pipe = pipeline(whole, (x[:3],), example, split_spec=spec)
    modules = [pipe.get_stage_module(k) for k in range(pipe.num_stages)]
    assert len(modules) == (3 if keywords else 2)
    made = weft_torch.Pipeline(modules, schedule, nn.MSELoss(), microbatches=M)
    found = made.step(x, target=y, return_outputs=True, **more)
    torch.testing.assert_close(found.output, whole(x, **more))
    mine = {name: w.grad.clone() for module in modules for name, w in module.named_parameters()}
    whole.zero_grad()
    nn.functional.mse_loss(whole(x, **more), y).backward()
    assert mine.keys() == {name for name, _ in whole.named_parameters()}
    for name, weight in whole.named_parameters():
        torch.testing.assert_close(mine[name], weight.grad)


def test_nothing_is_left_of_a_step():
    """check_leaked_tensors() of PyTorch's tests: no cycles, and no outputs that nobody wants."""
    seen = []

    def function(self, x):
        y = self.linear(x)
        seen.append(weakref.ref(y))
        return y

    modules, (x, y) = [Does(function), Does(function)], others.batch()
    gc.collect()
    gc.disable()
    try:
        for schedule in WHOLE + SPLIT[:1]:
            pipeline = weft_torch.Pipeline(modules, schedule, nn.MSELoss(), microbatches=M)
            for _ in range(2):
                pipeline.step(x, target=y)
                assert [ref() for ref in seen] == [None] * 2 * M
                seen.clear()
    finally:
        gc.enable()


if __name__ == "__main__":
    if "RANK" in os.environ:
        run_between_processes()
    else:
        sys.stdout.write(table())
