#!/usr/bin/env python3
"""Planned tables run by the real PyTorch, on ranks that talk through gloo.

    WEFT=build/weft tests/peers/test_planned_pytorch.py

For each case: `weft plan` writes a table, PyTorch's _PipelineScheduleRuntime loads it, every
rank runs a step of its stages, and the losses of all microbatches and the gradients of all
stages must be those of the same model in one process. Exits 0 when all agree, 1 when one does
not, 69 when torch is not there.
"""

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile

try:
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
except ImportError as error:
    print(f"no PyTorch with pipelining: {error}", file=sys.stderr)
    sys.exit(69)

WIDTH, ROWS = 8, 3  # of a stage's matrix, of a microbatch

# Unequal stages, so that the order is none of the named ones.
CASES = {
    "one stage a rank": (4, 6, ["-v", "1"], [3, 1, 2, 1]),
    "a loop": (2, 5, ["-v", "2", "--placement", "loop"], [1, 3, 2, 1]),
    "a V": (2, 5, ["-v", "2", "--placement", "v"], [1, 2, 3, 2]),
    "whole backwards": (2, 4, ["-v", "1", "--no-split"], [2, 1]),
}


def plan(folder, name, p, m, options, times):
    """The path of a table, and what weft says about it."""
    costs = os.path.join(folder, "costs.json")
    table = os.path.join(folder, f"{name.replace(' ', '-')}.csv")
    stages = [{"f": t, "i": t, "w": 0.5 * t} for t in times]
    with open(costs, "w", encoding="ascii") as file:
        json.dump({"schema": "weft-costs/1", "stages": stages, "hop": {"latency": 0.1}}, file)
    words = [os.environ.get("WEFT", "weft"), "plan", "-p", str(p), "-m", str(m), "--costs", costs]
    words += ["--effort", "0.05", "--threads", "1", "--json", "-o", table, *options]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)
    return table, json.loads(done.stdout)


def make_stages(count):
    """The same on every rank."""
    torch.manual_seed(1)
    return [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(count)]


def make_batch(m):
    torch.manual_seed(2)
    return torch.randn(m * ROWS, WIDTH), torch.randn(m * ROWS, WIDTH)


def loss_of(output, target):
    return ((output - target) ** 2).sum()


def reference(stage_count, m):
    """Losses by microbatch, and gradients by stage, in one process."""
    stages = make_stages(stage_count)
    model = torch.nn.Sequential(*stages)
    x, y = make_batch(m)
    losses = []
    for k in range(m):
        rows = slice(k * ROWS, (k + 1) * ROWS)
        loss = loss_of(model(x[rows]), y[rows])
        loss.backward()
        losses.append(loss.item())
    return losses, [[q.grad.clone() for q in stage.parameters()] for stage in stages]


def own_stages(table, rank):
    """Which stages the rank's row computes."""
    with open(table, encoding="ascii") as file:
        row = file.read().splitlines()[rank].split(",")
    return sorted({int(cell.split("F")[0]) for cell in row if "F" in cell})


def run_rank(rank, p, m, stage_count, table, store, queue):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=p)
    modules = make_stages(stage_count)
    mine = own_stages(table, rank)
    stages = [PipelineStage(modules[s], s, stage_count, torch.device("cpu")) for s in mine]
    runtime = _PipelineScheduleRuntime(stages, m, loss_fn=loss_of, scale_grads=False)
    runtime._load_csv(table, format="compute_only")
    x, y = make_batch(m)
    losses = []
    arguments = [x] if 0 in mine else []
    if stage_count - 1 in mine:
        runtime.step(*arguments, target=y, losses=losses)
    else:
        runtime.step(*arguments)
    gradients = {s: [q.grad.tolist() for q in modules[s].parameters()] for s in mine}
    queue.put((rank, [loss.item() for loss in losses], gradients))
    dist.barrier()
    dist.destroy_process_group()


def run(p, m, stage_count, table, folder):
    """What all ranks found, together."""
    context = multiprocessing.get_context("fork")  # torch is loaded once
    queue = context.Queue()
    store = tempfile.mktemp(dir=folder)
    ranks = [
        context.Process(target=run_rank, args=(r, p, m, stage_count, table, store, queue))
        for r in range(p)
    ]
    for rank in ranks:
        rank.start()
    found = [queue.get(timeout=120) for _ in ranks]
    for rank in ranks:
        rank.join(timeout=120)
        assert rank.exitcode == 0, f"a rank ended with {rank.exitcode}"
    losses = max((losses for _, losses, _ in found), key=len)
    return losses, {s: g for _, _, gradients in found for s, g in gradients.items()}


def close(a, b):
    return torch.allclose(torch.tensor(a), torch.tensor(b), rtol=1e-5, atol=1e-6)


def check(folder, name, p, m, options, times):
    table, said = plan(folder, name, p, m, options, times)
    losses, gradients = run(p, m, len(times), table, folder)
    expected_losses, expected_gradients = reference(len(times), m)
    assert len(losses) == m and close(losses, expected_losses), f"{name}: {losses}"
    assert sorted(gradients) == list(range(len(times)))
    for stage, expected in enumerate(expected_gradients):
        for got, want in zip(gradients[stage], expected, strict=True):
            assert close(got, want.tolist()), f"{name}: gradients of stage {stage}"
    print(f"{name}: same losses and gradients ({said['schedule']}, {said['placement']})")


def main():
    with tempfile.TemporaryDirectory() as folder:
        for name, case in CASES.items():
            check(folder, name, *case)


if __name__ == "__main__":
    main()
