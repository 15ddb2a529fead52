#!/usr/bin/env python3
"""A model with a skip connection: Weft's runtime beside PyTorch's own pipelining.

    tests/peers/test_skip_pytorch.py build/tests/job_skip

`job_skip` runs three stages, of which the last uses what the first and the second make, and prints
its weights, batch, losses and gradients. PyTorch traces the same model into three stages and runs
them with GPipe on three processes that talk through gloo. Losses and gradients must agree. Exits 0
when they do, 1 when not, 69 when torch is not there.
"""

import json
import multiprocessing
import os
import socket
import subprocess
import sys

try:
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import ScheduleGPipe, SplitPoint, pipeline
except ImportError as error:
    print(f"no PyTorch with pipelining: {error}", file=sys.stderr)
    sys.exit(69)


class Skip(torch.nn.Module):
    """The model of job_skip.c."""

    def __init__(self, width):
        super().__init__()
        self.first = torch.nn.Linear(width, width, bias=False)
        self.second = torch.nn.Linear(width, width, bias=False)
        self.third = torch.nn.Linear(width, width, bias=False)

    def forward(self, x):
        a = self.first(x)
        b = self.second(a)
        return self.third(a + b)


def half_squares(output, target):
    return 0.5 * ((output - target) ** 2).sum()


def tensor(numbers, *shape):
    return torch.tensor(numbers, dtype=torch.float32).reshape(shape)


def run_rank(rank, port, found, queue):
    """One stage of the traced model; puts its losses and the gradients of its parameters."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=found["stages"])
    width, rows, m = found["width"], found["rows"], found["microbatches"]
    model = Skip(width)
    weights = tensor(found["weights"], found["stages"], width, width)
    with torch.no_grad():
        for k, layer in enumerate((model.first, model.second, model.third)):
            layer.weight.copy_(weights[k])
    x, y = tensor(found["x"], m * rows, width), tensor(found["y"], m * rows, width)
    split = {"second": SplitPoint.BEGINNING, "third": SplitPoint.BEGINNING}
    stage = pipeline(model, mb_args=(x[:rows],), split_spec=split).build_stage(rank, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, m, loss_fn=half_squares, scale_grads=False)
    losses = []
    if rank == 0:
        schedule.step(x)
    elif rank == found["stages"] - 1:
        schedule.step(target=y, losses=losses)
    else:
        schedule.step()
    grads = {name: p.grad.tolist() for name, p in stage.submod.named_parameters() if p.grad is not None}
    queue.put((rank, [float(loss.detach()) for loss in losses], grads))
    dist.barrier()
    dist.destroy_process_group()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_pytorch(found):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    port = free_port()
    ranks = [context.Process(target=run_rank, args=(r, port, found, queue)) for r in range(found["stages"])]
    for rank in ranks:
        rank.start()
    answers = [queue.get(timeout=240) for _ in ranks]
    for rank in ranks:
        rank.join(60)
    losses = next(losses for _, losses, _ in answers if losses)
    return losses, {name: grad for _, _, grads in answers for name, grad in grads.items()}


def main():
    for name in ("GPipe", "1F1B", "ZBH1"):
        done = subprocess.run([sys.argv[1], name], capture_output=True, text=True, check=True, timeout=60)
        found = json.loads(done.stdout)
        if name == "GPipe":
            first = found
            losses, grads = run_pytorch(found)
        width = found["width"]
        own = tensor(found["grads"], found["stages"], width, width)
        worst = max(abs(a - b) / abs(b) for a, b in zip(found["losses"], losses))
        for k, layer in enumerate(("first", "second", "third")):
            grad = tensor(grads[f"{layer}.weight"], width, width)
            worst = max(worst, float((own[k] - grad).abs().max() / grad.abs().max()))
        same = found["losses"] == first["losses"] and found["grads"] == first["grads"]
        print(f"{name}: losses and gradients within {worst:.1e} of PyTorch's pipelining, "
              f"{'the same bits as' if same else 'OTHER bits than'} GPipe")
        if worst > 1e-5 or not same:
            sys.exit(1)
    print("check_skip: 3 agree")


if __name__ == "__main__":
    main()
