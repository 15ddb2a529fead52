"""weft_pipeline.torch.Pipeline on a real GPU, beside plain PyTorch on the same GPU.

    PYTHONPATH=FOLDER python3 tests/python/device_tensors.py [--seconds 25] [--cpu]

FOLDER has the installed package (`python3 -m zipfile -e build/wheel/*.whl FOLDER`). For each case a
model of linear layers, norms and GELUs trains for three steps with an optimizer, by Pipeline and by
a loop of PyTorch over the same microbatches; losses, gradients and the weights at the end are
compared. The GPU is kept behind the host, inside stages and before the weights change, so that work
on a wrong stream, or too early, would be seen. Then the host time of an action. Without a GPU it
says so and ends with status 0; any difference ends it with status 1. Cases for which no time is
left are named. --cpu tries the script itself, without a GPU.
"""

import argparse
import itertools
import statistics
import sys
import time

BEGIN = time.perf_counter()
ROWS, STEPS = 4, 3


def spent():
    return time.perf_counter() - BEGIN


def skip(why):
    print(f"skipped: {why}")
    sys.exit(0)


try:
    import torch
except ImportError as error:
    skip(f"PyTorch is not there: {error}")
IS_CPU = "--cpu" in sys.argv
if not IS_CPU and not torch.cuda.is_available():
    skip(f"PyTorch {torch.__version__} finds no GPU")

import weft_pipeline as weft  # noqa: E402
import weft_pipeline.torch as weft_torch  # noqa: E402

GPU = torch.device("cpu") if IS_CPU else torch.device("cuda", torch.cuda.current_device())


def delay(microseconds):
    """Keep the current stream of the GPU busy."""
    if not IS_CPU:
        torch.cuda._sleep(int(1500 * microseconds))  # cycles


def synchronize():
    if not IS_CPU:
        torch.cuda.synchronize()


class Delay(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        delay(50)
        return x * 1

    @staticmethod
    def backward(context, gradient):
        delay(50)
        return gradient * 1


class Delayed(torch.nn.Module):
    def forward(self, x):
        return Delay.apply(x)


def loss_of(output, target):
    return ((output.float() - target.float()) ** 2).mean()


def modules_of(count, width, dtype, slow=True):
    torch.manual_seed(7)
    made = [
        torch.nn.Sequential(
            torch.nn.Linear(width, 2 * width),
            torch.nn.GELU(),
            torch.nn.Linear(2 * width, width),
            torch.nn.LayerNorm(width),
            *([Delayed()] if slow else []),
        )
        for _ in range(count)
    ]
    return [module.to(device=GPU, dtype=dtype) for module in made]


def batch_of(m, width, dtype, step):
    generator = torch.Generator().manual_seed(100 + step)
    return [
        torch.randn(m * ROWS, width, generator=generator).to(dtype) for _ in range(2)
    ]  # on the host


def optimizer_of(modules):
    weights = itertools.chain.from_iterable(module.parameters() for module in modules)
    return torch.optim.SGD(weights, lr=0.05)


def train(modules, step):
    """What a step of `step(k)`, a function that gives losses, leaves behind: for three of them."""
    optimizer = optimizer_of(modules)
    losses, gradients = [], []
    for k in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        losses.append(step(k))
        gradients.append(
            [weight.grad.clone() for module in modules for weight in module.parameters()]
        )
        delay(10000)
        optimizer.step()  # the next step must see the new weights: nobody waits here
    weights = [weight.detach().clone() for module in modules for weight in module.parameters()]
    return losses, gradients, weights


def plain(count, m, width, dtype):
    """The same training by PyTorch alone: one microbatch after the other, on one stream."""
    modules = modules_of(count, width, dtype)
    model = torch.nn.Sequential(*modules)

    def step(k):
        x, y = (tensor.to(GPU) for tensor in batch_of(m, width, dtype, k))
        found = []
        for rows, target in zip(x.tensor_split(m), y.tensor_split(m)):
            loss = loss_of(model(rows), target)
            loss.backward()
            found.append(loss.detach())
        for weight in model.parameters():
            weight.grad.div_(m)
        return [loss.item() for loss in found]

    return train(modules, step)


def piped(table, width, dtype, partitions, on_host):
    modules = modules_of(table.stages, width, dtype)
    m = table.microbatches
    partitions = 0 if IS_CPU else partitions
    pipeline = weft_torch.Pipeline(modules, table, loss_of, partitions=partitions, stall_limit=10)

    def step(k):
        x, y = batch_of(m, width, dtype, k)
        if not on_host:
            x, y = x.to(GPU), y.to(GPU)
        return list(pipeline.step(x, target=y).losses)

    found = train(modules, step)
    x = batch_of(m, width, dtype, 0)[0].to(GPU)
    with torch.no_grad():
        whole = torch.cat([torch.nn.Sequential(*modules)(part) for part in x.tensor_split(m)])
    output = pipeline.eval(x).output
    pipeline.close()
    return found, (output, whole)


def difference(ours, theirs):
    """The largest difference, and by how much it is beyond what rounding may make of it."""
    ours, theirs = ours.double(), theirs.double()
    assert ours.shape == theirs.shape
    return (ours - theirs).abs().max().item(), theirs.abs().max().item()


def compare(found, expected, outputs, dtype):
    """None, or what is wrong; and whether all bits are the same."""
    limit = 2e-2 if dtype is torch.bfloat16 else 1e-4
    same = True
    pairs = [
        ("loss", torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64))
        for a, b in zip(found[0], expected[0])
    ]
    for k, (a, b) in enumerate(zip(found[1], expected[1])):
        pairs += [(f"gradient of step {k}", *pair) for pair in zip(a, b)]
    pairs += [("weight", *pair) for pair in zip(found[2], expected[2])]
    pairs.append(("output", *outputs))
    largest = 0.0
    for what, ours, theirs in pairs:
        if torch.equal(ours, theirs):
            continue
        same = False
        apart, size = difference(ours, theirs)
        largest = max(largest, apart / max(size, 1e-30))
        if not apart <= limit * max(size, 1e-3):
            return f"{what}: {apart:g} apart, of {size:g}", same
    return None, "the same bits" if same else f"relative difference at most {largest:.1e}"


CASES = [  # schedule, ranks, microbatches, partitions, dtype, batch on the host
    ("1F1B", 2, 4, 0, torch.float32, False),
    ("1F1B", 4, 8, 0, torch.float32, True),
    ("ZBVZeroBubble", 4, 8, 0, torch.float32, False),
    ("DualPipeV", 4, 8, 0, torch.float32, False),
    ("InterleavedZeroBubble", 4, 8, 0, torch.bfloat16, True),
    ("GPipe", 2, 4, 0, torch.bfloat16, False),
    ("LoopedBFS", 4, 8, 0, torch.float32, False),
]
PARTITIONED = [
    ("1F1B", 4, 8, 4, torch.float32, False),
    ("Interleaved1F1B", 2, 4, 2, torch.float32, False),
    ("DualPipeV", 2, 4, 2, torch.float32, True),
    ("ZBVZeroBubble", 4, 8, 2, torch.bfloat16, False),
]


def run_cases(cases, known, seconds, width=256):
    wrong, left = 0, []
    for name, ranks, m, partitions, dtype, on_host in cases:
        kind = str(dtype).replace("torch.", "")
        label = f"{name}, {ranks} ranks, {m} microbatches, {kind}"
        label += f", {partitions} partitions" if partitions else ""
        label += ", batch on the host" if on_host else ""
        if spent() > seconds:
            left.append(label)
            continue
        table = weft.Table.named(name, ranks=ranks, microbatches=m)
        key = (table.stages, m, dtype)
        try:
            if key not in known:
                known[key] = plain(table.stages, m, width, dtype)
            found, outputs = piped(table, width, dtype, partitions, on_host)
            bad, same = compare(found, known[key], outputs, dtype)
        except Exception as error:
            bad, same = f"{type(error).__name__}: {error}", ""
        wrong += bad is not None
        print(f"{label}: {'WRONG: ' + bad if bad else same}  [{spent():.1f} s]", flush=True)
    for label in left:
        print(f"{label}: skipped: no time is left")
    return wrong


class Fails(torch.nn.Module):
    def forward(self, x):
        if not isinstance(x, torch._subclasses.FakeTensor):
            raise ZeroDivisionError("in a stage")
        return x * 1


def run_failures(width=64):
    """An exception of a stage comes out of step(), and the next pipeline works."""
    x, y = batch_of(4, width, torch.float32, 0)
    stages = [*modules_of(1, width, torch.float32), Fails()]
    pipeline = weft_torch.Pipeline(stages, "1F1B", loss_of, microbatches=4)
    try:
        pipeline.step(x, target=y)
    except ZeroDivisionError as error:
        print(f"a stage that fails: {error.__cause__}")
    else:
        return 1
    good = weft_torch.Pipeline(modules_of(2, width, torch.float32), "1F1B", loss_of, microbatches=4)
    return len(good.step(x, target=y).losses) != 4


def medians(function, count):
    times = []
    for _ in range(count):
        synchronize()
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return 1e6 * statistics.median(times)


def run_host_times(steps=20, width=16, ranks=4, m=8):
    """Small stages, so a step is host time; beside it the same forwards and backwards in a loop."""
    x, y = (tensor.to(GPU) for tensor in batch_of(m, width, torch.float32, 0))
    for name in ("1F1B", "ZBVZeroBubble"):
        table = weft.Table.named(name, ranks=ranks, microbatches=m)
        modules = modules_of(table.stages, width, torch.float32, slow=False)
        pipeline = weft_torch.Pipeline(modules, table, loss_of)
        pipeline.step(x, target=y)
        ours = medians(lambda run=pipeline: run.step(x, target=y), steps)
        pipeline.close()

        def loop(modules=modules):
            for rows, target in zip(x.tensor_split(m), y.tensor_split(m)):
                kept = []
                for module in modules:
                    rows = rows.detach().requires_grad_(bool(kept))
                    kept.append((rows, module(rows)))
                    rows = kept[-1][1]
                gradient = None
                for k, (before, after) in enumerate(reversed(kept)):
                    if k == 0:
                        loss_of(after, target).backward()
                    else:
                        torch.autograd.backward([after], [gradient])
                    gradient = before.grad
            synchronize()

        loop()
        theirs = medians(loop, steps)
        actions = sum(action is not None for row in table.lower() for action in row)
        compute = 2 * table.stages * m
        print(
            f"{name}, {ranks} ranks, {m} microbatches: a step takes {ours:.0f} us, "
            f"{ours / actions:.1f} us for each of {actions} actions; the same {compute} forwards "
            f"and backwards in a loop of PyTorch {theirs:.0f} us  [{spent():.1f} s]"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=25)
    parser.add_argument("--cpu", action="store_true")
    seconds = parser.parse_args().seconds
    print(
        f"PyTorch {torch.__version__}, {'CPU' if IS_CPU else torch.cuda.get_device_name(GPU)}, "
        f"Weft {weft.__version__}  [{spent():.1f} s]"
    )
    known = {}
    wrong = run_cases(CASES, known, seconds)
    wrong += run_failures()
    if spent() < seconds:
        run_host_times()
    else:
        print("host times: skipped: no time is left")
    wrong += run_cases(PARTITIONED, known, seconds)
    print(f"{'ok' if not wrong else f'{wrong} cases are wrong'} after {spent():.1f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
