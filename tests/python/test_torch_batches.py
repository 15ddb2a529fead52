"""What step() takes and modules give each other, beside PyTorch and a plain loop."""

import ctypes
import math

import pytest
import weft_pipeline as weft

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import weft_pipeline.torch as weft_torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.pipelining import microbatch as rules  # noqa: E402
from weft_pipeline import _edges  # noqa: E402

M, WIDTH = 4, 6
BOTH = pytest.mark.parametrize("schedule", ["1F1B", "ZBH1", "GPipe"])


class First(nn.Module):
    """Several inputs of all kinds; several outputs."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, more, factor=1.0, *, mask=None):
        y = self.linear(x) + more
        if mask is not None:
            y = y * mask
        return y * factor, (y.detach() > 0), y.sum(1).tanh(), None, 3, "text"


class Middle(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, y, positive, total, none, three, text, mask=None):
        assert none is None and three == 3 and text == "text"
        assert positive.dtype == torch.bool and not positive.requires_grad
        y = self.linear(y) * positive + total[:, None]
        return (y if mask is None else y * mask, total)


class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, y, total):
        return {"y": self.linear(y), "total": total}


def loss_of(output, target):
    return nn.functional.mse_loss(output["y"], target) + output["total"].square().mean()


def modules_of():
    torch.manual_seed(3)
    return [First(), Middle(), Last()]


def plainly(args, kwargs, target, args_spec=None, kwargs_spec=None):
    modules = modules_of()
    parts = rules.split_args_kwargs_into_chunks(args, kwargs, M, args_spec, kwargs_spec)
    losses, outputs = [], []
    for xs, options, rows in zip(*parts, target.tensor_split(M)):
        mask = {"mask": options["mask"]} if "mask" in options else {}
        y = modules[0](*xs, **options)
        y = modules[2](*modules[1](*y, **mask))
        loss = loss_of(y, rows)
        (loss / M).backward()
        losses.append(loss.item())
        outputs.append(y)
    gradients = [w.grad for module in modules for w in module.parameters()]
    return tuple(losses), gradients, rules.merge_chunks(outputs, None)


CASES = {
    "two": lambda x, more, mask: ((x, more), {}, {}),
    "number": lambda x, more, mask: ((x, more, 0.5), {}, {}),
    "names": lambda x, more, mask: ((x,), {"more": more, "factor": 2, "mask": mask}, {}),
    "replicated": lambda x, more, mask: (
        (x, more[0]),
        {"mask": mask[0]},
        {
            "args_chunk_spec": (rules.TensorChunkSpec(0), rules._Replicate()),
            "kwargs_chunk_spec": {"mask": rules._Replicate()},
        },
    ),
}


@BOTH
@pytest.mark.parametrize("case", CASES)
def test_arguments(schedule, case):
    torch.manual_seed(1)
    rows = 3 * M + 1
    x, more, target = torch.randn(3, rows, WIDTH).unbind()
    args, kwargs, specs = CASES[case](x, more, torch.rand(rows, WIDTH))
    expected = plainly(
        args, kwargs, target, *(specs.get(f"{k}_chunk_spec") for k in ("args", "kwargs"))
    )
    modules = modules_of()
    pipeline = weft_torch.Pipeline(modules, schedule, loss_of, microbatches=M, **specs)
    found = pipeline.step(*args, target=target, return_outputs=True, **kwargs)
    assert found.losses == expected[0]
    for weight, gradient in zip((w for m in modules for w in m.parameters()), expected[1]):
        assert torch.allclose(weight.grad, gradient, rtol=1e-6, atol=1e-8)
    assert found.output.keys() == expected[2].keys()
    assert all(torch.equal(found.output[k], expected[2][k]) for k in found.output)
    again = pipeline.eval(*args, **kwargs).output
    assert all(torch.equal(again[k], expected[2][k]) for k in again)


def test_wrong_arguments():
    x = torch.randn(8, WIDTH)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(2)]
    pipeline = weft_torch.Pipeline(layers, "1F1B", nn.MSELoss(), microbatches=M)
    with pytest.raises(weft.UsageError, match="needs a target"):
        pipeline.step(x, x)
    with pytest.raises(TypeError, match="no module here takes an argument mask"):
        pipeline.step(x, target=x, mask=x)
    with pytest.raises(weft.UsageError, match=r"\(3, 6\), which cannot be split into 4"):
        pipeline.step(x[:3], target=x)
    options = {"microbatches": M, "kwargs_chunk_spec": {"other": rules._Replicate()}}
    pipeline = weft_torch.Pipeline(modules_of(), "1F1B", loss_of, **options)
    with pytest.raises(weft.UsageError, match="does not say how to split mask"):
        pipeline.step(x, x, target=x, mask=x)
    options = {"microbatches": M, "args_chunk_spec": (rules.TensorChunkSpec(1),)}
    graph = weft.Graph("0>1")
    with pytest.raises(weft.UsageError, match="args_chunk_spec is for chains"):
        weft_torch.Pipeline(layers, "1F1B", nn.MSELoss(), graph=graph, **options)
    with pytest.raises(weft.UsageError, match="stage 0 gives dict"):
        weft_torch.Pipeline([Last(), *layers], "1F1B", nn.MSELoss(), microbatches=M).eval(x, x)


def test_outputs_that_cannot_be_merged():
    x = torch.randn(8, WIDTH)
    sums = nn.Linear(WIDTH, 1)
    sums.register_forward_hook(lambda _, __, y: y.sum())
    pipeline = weft_torch.Pipeline(
        [nn.Linear(WIDTH, WIDTH), sums], "1F1B", lambda y, _: y, microbatches=M
    )
    with pytest.raises(weft.UsageError, match="cannot be merged") as caught:
        pipeline.eval(x)
    assert "output_merge_spec" in caught.value.hint
    assert len(pipeline.step(x, target=x).losses) == M


class Masks(nn.Linear):
    """Changes a mask in place, or not."""

    def __init__(self, factor):
        super().__init__(WIDTH, WIDTH)
        self.factor = factor

    def forward(self, x, mask):
        if self.factor != 1:
            mask *= self.factor
        return super().forward(x) * mask.clone()


@BOTH
def test_arguments_that_a_stage_changes(schedule):
    """Only the order of a loop gives each microbatch and stage what the one before has left."""
    x, specs = torch.randn(8, WIDTH), {"kwargs_chunk_spec": {"mask": rules._Replicate()}}
    for modules in ([Masks(0.5), Masks(1)], [nn.Linear(WIDTH, WIDTH), Masks(0.5)]):
        mask = torch.ones(WIDTH)
        pipeline = weft_torch.Pipeline(modules, schedule, nn.MSELoss(), microbatches=M, **specs)
        if isinstance(modules[0], Masks):
            with pytest.raises(weft.UsageError, match="stage 0 changes x in place"):
                pipeline.step(x, target=x, mask=mask)
            continue
        pipeline.step(x, target=x, mask=mask)
        assert torch.equal(mask, torch.full((WIDTH,), 0.5**M))


def test_arguments_of_compiled_modules():
    modules = [Masks(1), nn.Linear(WIDTH, WIDTH)]
    compiled = [torch.compile(module, backend="eager") for module in modules]
    pipeline = weft_torch.Pipeline(compiled, "1F1B", nn.MSELoss(), microbatches=M)
    x, mask = torch.randn(2, 8, WIDTH).unbind()
    whole = modules[1](modules[0](x, mask=mask))
    assert torch.allclose(pipeline.eval(x, mask=mask).output, whole, rtol=1e-5, atol=1e-6)


# ---- Between processes ----


def carried(values, kind, room=4096):
    """What comes of values that go to another process."""
    message = (ctypes.c_char * 4096)(*range(100))
    made = _edges.Sending(torch, kind, values, bytes(message)[: _edges.HEAD], room)
    block = torch.zeros(room, dtype=torch.uint8)
    block[: made.block.numel()] = made.block
    arrived = _edges.Arrived(torch, block)
    for into, part in zip(arrived.empty(), made.follow):
        into.copy_(part)
    assert arrived.head == bytes(message)[: _edges.HEAD]
    return arrived.values(kind)


def test_what_goes_between_processes():
    for size in ((), (0, 3), (5,), (2, 3, 4, 5), (50, 40)):
        whole = torch.arange(math.prod(size)).reshape(size) % 7
        for dtype in (
            *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64),
            *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool),
        ):
            x = whole.to(dtype)
            formats = [x, x.t() if x.dim() == 2 else x]
            if x.dim() == 4:
                formats.append(x.contiguous(memory_format=torch.channels_last))
            for each in formats:
                ((found, flag),) = carried([(each, True)], _edges.FORWARD)
                assert flag and found.dtype == dtype
                assert each.numel() == 0 or found.stride() == each.stride()
                assert torch.equal(found, each)
    complex_one = torch.randn(3, 4, dtype=torch.complex64)
    for each in (complex_one.conj(), complex_one.t().conj(), complex_one.conj().imag):
        assert torch.equal(carried([each], _edges.BACKWARD)[0], each)
    values = [(1, False), (True, False), (0.0, False), (-0.0, False), (None, False), ("x", False)]
    found = carried([*values, (torch.ones(3), True)], _edges.FORWARD)
    assert [repr(x) for x, _ in found[:-1]] == [repr(x) for x, _ in values]
    first, second = carried([None, torch.ones(1).expand(4, 4)], _edges.BACKWARD)
    assert first is None and torch.equal(second, torch.ones(4, 4))
    with pytest.raises(weft.UsageError, match="beside tensors"):
        carried([("x" * 5000, False)], _edges.FORWARD)


def test_damaged_blocks():
    """A block that cannot be one is an exception, and nothing is read beyond it."""
    good = _edges.Sending(torch, 0, [(torch.ones(9), True)], bytes(_edges.HEAD), 4096).block
    for cut in (b"\xff" * 4, b"\0" * 4):
        block = torch.zeros(4096, dtype=torch.uint8)
        block[: good.numel()] = good
        at = 8 + _edges.HEAD
        block[at : at + 4] = torch.tensor(list(cut), dtype=torch.uint8)
        with pytest.raises((ValueError, EOFError)):
            _edges.Arrived(torch, block)
