#!/usr/bin/env python3
"""Weft beside PyTorch's pipelining on one GPU, with the same stages.

    python3 bench/gpu_against_pytorch.py [--weft build/weft-bench] [--ranks 2,4]

The model is eight blocks x + W2 gelu(W1 x) of width 2,048 without biases, in bf16, and a step has
eight microbatches of 2,048 rows; the loss is the sum of outputs times targets. Weights, inputs and
targets are functions of their index, the same in both programs, so the losses must agree up to the
rounding of bf16; they are compared first.

PyTorch runs a process per rank on the GPU, under MPS if it can be started, with NCCL between them
(each process claims to be a host of its own, else NCCL refuses two ranks on a GPU). Weft runs all
ranks in one process (`weft bench gpu-blocks`). Printed is the median step of each in milliseconds.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

WIDTH, WIDE, BLOCKS, ROWS, MICROBATCHES, STEPS = 2048, 8192, 8, 2048, 8, 10
SCHEDULES = {"1F1B": 1, "Interleaved1F1B": 2, "ZBVZeroBubble": 2}
TOLERANCE = 0.02  # of the sum of the losses' magnitudes


def numbers(torch, seed, rows, columns, scale):
    """As number_at() of bench/bench_gpu_stages.c."""
    mask = 0xFFFFFFFF
    x = torch.arange(rows * columns, dtype=torch.int64, device="cuda")
    x = (x * 2654435761 + seed * 0x9E3779B9) & mask
    x = ((x ^ (x >> 15)) * 2246822519) & mask
    x = ((x ^ (x >> 13)) * 3266489917) & mask
    x = x ^ (x >> 16)
    value = ((x >> 8).float() / 16777216.0 - 0.5) * scale
    return value.bfloat16().view(rows, columns)


def run_rank(rank, ranks, schedule, port, out):
    """A rank of PyTorch; rank 0 writes the times, the last stage's the losses."""
    os.environ.update(NCCL_HOSTID=f"host{rank}", NCCL_SOCKET_IFNAME="lo",
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                      RANK=str(rank), WORLD_SIZE=str(ranks))
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

    class Block(torch.nn.Module):
        def __init__(self, number):
            super().__init__()
            up = (12.0 / WIDTH) ** 0.5
            down = 0.5 * (12.0 / WIDE) ** 0.5
            self.up = torch.nn.Parameter(numbers(torch, 2 * number + 1, WIDE, WIDTH, up))
            self.down = torch.nn.Parameter(numbers(torch, 2 * number + 2, WIDTH, WIDE, down))

        def forward(self, x):
            f = torch.nn.functional
            return x + f.linear(f.gelu(f.linear(x, self.up), approximate="tanh"), self.down)

    device = torch.device("cuda:0")
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", rank=rank, world_size=ranks, device_id=device)
    each = SCHEDULES[schedule]
    stages = ranks * each
    mine = [rank + k * ranks for k in range(each)]
    if schedule == "ZBVZeroBubble":
        mine = [rank, stages - 1 - rank]
    layers = BLOCKS // stages
    example = torch.zeros(1, ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
    parts = []
    for s in mine:
        blocks = [Block(s * layers + k) for k in range(layers)]
        parts.append(PipelineStage(torch.nn.Sequential(*blocks), s, stages, device,
                                   input_args=(example,), output_args=(example,)))
    kind = get_schedule_class(schedule)
    multi = issubclass(kind, PipelineScheduleMulti)
    pipeline = kind(parts if multi else parts[0], MICROBATCHES, scale_grads=False,
                    loss_fn=lambda o, t: (o.float() * t.float()).sum())
    inputs = torch.stack([numbers(torch, 1000 + m, ROWS, WIDTH, 2.0) for m in range(MICROBATCHES)])
    targets = torch.stack([numbers(torch, 2000 + m, ROWS, WIDTH, 0.125)
                           for m in range(MICROBATCHES)])
    parameters = [p for part in parts for p in part.submod.parameters()]
    times, losses = [], []

    def step():
        for p in parameters:
            p.grad = None
        losses.clear()
        arguments = (inputs,) if 0 in mine else ()
        last = {"target": targets, "losses": losses} if stages - 1 in mine else {}
        pipeline.step(*arguments, **last)

    for k in range(3 + STEPS):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        if k >= 3:
            times.append((time.perf_counter() - begin) * 1e3)
    if stages - 1 in mine:
        with open(out + ".losses", "w") as file:
            json.dump([float(loss) for loss in losses], file)
    if rank == 0:
        with open(out + ".times", "w") as file:
            json.dump(times, file)
    sys.stdout.flush()
    os._exit(0)


def run_pytorch(ranks, schedule, limit):
    """(median milliseconds, losses) of PyTorch, or None and why not."""
    import torch
    port = 20000 + (os.getpid() * 7 + ranks * 13 + len(schedule)) % 20000
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out")
        processes = [subprocess.Popen([sys.executable, os.path.abspath(__file__), "--rank",
                                       str(r), str(ranks), schedule, str(port), out],
                                      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                     for r in range(ranks)]
        why = ""
        until = time.time() + limit
        for process in processes:
            try:
                _, text = process.communicate(timeout=max(1, until - time.time()))
                if process.returncode != 0 and not why:
                    why = text.decode(errors="replace").strip().splitlines()[-1:]
            except subprocess.TimeoutExpired:
                why = why or f"not done after {limit} s"
                process.kill()
                process.communicate()
        if why or not os.path.exists(out + ".times"):
            return None, f"PyTorch {torch.__version__}: {why}"
        with open(out + ".times") as file:
            times = json.load(file)
        with open(out + ".losses") as file:
            return (statistics.median(times), json.load(file)), ""


def start_mps(folder):
    """A server of MPS for the processes started from here, or None."""
    pipe = os.path.join(folder, "pipe")
    log = os.path.join(folder, "log")
    os.makedirs(pipe)
    os.makedirs(log)
    environment = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=pipe, CUDA_MPS_LOG_DIRECTORY=log)
    try:
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=environment, check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    os.environ["CUDA_MPS_PIPE_DIRECTORY"] = pipe
    os.environ["CUDA_MPS_LOG_DIRECTORY"] = log
    return environment


def stop_mps(environment):
    if environment is not None:
        subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", env=environment,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=20)
        del os.environ["CUDA_MPS_PIPE_DIRECTORY"]
        del os.environ["CUDA_MPS_LOG_DIRECTORY"]


def run_weft(command, ranks):
    text = subprocess.run(command + ["-p", str(ranks), "--json"], check=True,
                          stdout=subprocess.PIPE, timeout=120).stdout
    return {row["case"]: row for row in json.loads(text)["blocks"]}


def main():
    if sys.argv[1:2] == ["--rank"]:
        run_rank(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5]), sys.argv[6])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weft", default="build/weft-bench", help="the program weft-bench")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--limit", type=int, default=60, help="seconds for a case of PyTorch")
    arguments = parser.parse_args()
    ranks = [int(text) for text in arguments.ranks.split(",")]
    weft = {p: run_weft([arguments.weft, "bench", "gpu-blocks"], p) for p in ranks}
    bad = False
    with tempfile.TemporaryDirectory() as folder:
        mps = start_mps(folder)
        print(f"8 blocks of width {WIDTH}, {MICROBATCHES} microbatches of {ROWS} rows, bf16; "
              f"PyTorch's processes {'under MPS' if mps else 'without MPS'}")
        print(f"{'schedule':<18} {'ranks':>5} {'pytorch ms':>11} {'weft ms':>9} {'eager ms':>9} "
              f"{'pytorch/weft':>12} {'loss: pytorch':>14} {'weft':>12}")
        try:
            for p in ranks:
                for schedule in SCHEDULES:
                    found, why = run_pytorch(p, schedule, arguments.limit)
                    row = weft[p][schedule]
                    if found is None:
                        print(f"{schedule:<18} {p:>5} {'-':>11} {row['step_ms']:>9.2f} "
                              f"{row['eager_ms']:>9.2f}  {why}", flush=True)
                        continue
                    milliseconds, losses = found
                    print(f"{schedule:<18} {p:>5} {milliseconds:>11.2f} {row['step_ms']:>9.2f} "
                          f"{row['eager_ms']:>9.2f} {milliseconds / row['step_ms']:>12.2f} "
                          f"{losses[0]:>14.4f} {row['loss_0']:>12.4f}", flush=True)
                    size = sum(abs(loss) for loss in losses)
                    if abs(sum(losses) - row["loss_sum"]) > TOLERANCE * size:
                        print(f"  the losses differ: {sum(losses)} and {row['loss_sum']}")
                        bad = True
        finally:
            stop_mps(mps)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
