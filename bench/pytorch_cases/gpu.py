"""The same stages on one GPU, in Weft and in PyTorch's pipelining.

    bench/pytorch.py gpu [--weft build/weft-bench] [--ranks 2,4]
    bench/pytorch.py gpu --weft-nccl build/tests/job_blocks_nccl_openmpi

The model is eight blocks x + W2 gelu(W1 x) of width 2,048 without biases, in bf16, and a step has
eight microbatches of 2,048 rows; the loss is the sum of outputs times targets. Weights, inputs and
targets are functions of their index, the same in both programs, so the losses must agree up to the
rounding of bf16; they are compared.

PyTorch runs a process per rank on the GPU, under MPS if it can be started, with NCCL between them
(each process claims to be a host of its own, else NCCL refuses two ranks on a GPU). Weft runs all
ranks in one process (`weft bench gpu-blocks`). Ranks share the whole GPU, or each has its part of
it: by MPS's limit on threads, and by partitions. Printed is the median step in milliseconds.

With --weft-nccl, Weft runs as PyTorch does: a process per rank, over NCCL and its sockets, under the
same MPS, and each step ends with a barrier; as a graph per rank.

--width 16 --device cpu tries the script where there is no GPU: Weft needs the fake driver of the
tests, PyTorch computes on the host over gloo, and the times mean nothing.
"""
import argparse
import importlib.util
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

from pytorch_cases import shared

BLOCKS, MICROBATCHES, STEPS = 8, 8, 10
WIDTH, WIDE, ROWS, DEVICE = 2048, 8192, 2048, "cuda"  # set_size()
SCHEDULES = {"GPipe": 1, "1F1B": 1, "LoopedBFS": 2, "Interleaved1F1B": 2,
             "InterleavedZeroBubble": 2, "ZBVZeroBubble": 2, "DualPipeV": 2}
TOLERANCE = 0.02  # of the sum of the losses' magnitudes


# ---- A rank of PyTorch ----

def make_table(torch):
    """As table_number() of bench/gpu/bench_gpu_stages.c."""
    mask = 0xFFFFFFFF
    x = torch.arange(1 << 24, dtype=torch.int64, device=DEVICE)
    x = (x * 2654435761) & mask
    x = ((x ^ (x >> 15)) * 2246822519) & mask
    x = ((x ^ (x >> 13)) * 3266489917) & mask
    x = x ^ (x >> 16)
    return ((x >> 8).float() / 16777216.0 - 0.5).bfloat16()


def scale_of(count):
    return 2.0 ** -math.floor(math.log2(count / 12) / 2 + 0.5)


def numbers(table, seed, rows, columns, scale):
    return (table.roll(-seed * 1234577)[: rows * columns] * scale).view(rows, columns)


def time_schedule(torch, dist, table, rank, ranks, schedule):
    """Milliseconds of each step, and the losses of the last if the last stage is here."""
    from torch.distributed import pipelining

    class Block(torch.nn.Module):
        def __init__(self, number):
            super().__init__()
            up, down = scale_of(WIDTH), scale_of(WIDE) / 2
            self.up = torch.nn.Parameter(numbers(table, 2 * number + 1, WIDE, WIDTH, up))
            self.down = torch.nn.Parameter(numbers(table, 2 * number + 2, WIDTH, WIDE, down))

        def forward(self, x):
            f = torch.nn.functional
            return x + f.linear(f.gelu(f.linear(x, self.up), approximate="tanh"), self.down)

    def batch(seed, scale):
        return torch.stack([numbers(table, seed + m, ROWS, WIDTH, scale)
                            for m in range(MICROBATCHES)])

    stages = ranks * SCHEDULES[schedule]
    mine = shared.stages_of(schedule, rank, ranks, SCHEDULES[schedule])
    layers = BLOCKS // stages
    device = torch.device(DEVICE)
    batch_example = torch.zeros(1, ROWS, WIDTH, device=DEVICE, dtype=torch.bfloat16)
    example = batch_example.clone().requires_grad_()  # PyTorch 2.13 takes it from here
    parts = [pipelining.PipelineStage(
        torch.nn.Sequential(*[Block(s * layers + k) for k in range(layers)]), s, stages, device,
        input_args=(example if s > 0 else batch_example,), output_args=(example,)) for s in mine]
    pipeline = shared.make_schedule(
        pipelining, schedule, parts, MICROBATCHES, scale_grads=False,
        loss_fn=lambda o, t: (o.float() * t.float()).sum())
    inputs, targets = batch(1000, 2.0), batch(2000, 0.125)
    parameters = [p for part in parts for p in part.submod.parameters()]
    times, losses = [], []

    def synchronize():
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    for k in range(3 + STEPS):
        synchronize()
        dist.barrier()
        synchronize()
        begin = time.perf_counter()
        for p in parameters:
            p.grad = None
        losses.clear()
        last = {"target": targets, "losses": losses} if stages - 1 in mine else {}
        pipeline.step(*((inputs,) if 0 in mine else ()), **last)
        synchronize()
        dist.barrier()
        synchronize()
        if k >= 3:
            times.append((time.perf_counter() - begin) * 1e3)
    return times, [float(loss) for loss in losses]


def set_size(width, device):
    global WIDTH, WIDE, ROWS, DEVICE
    WIDTH, WIDE, ROWS, DEVICE = width, 4 * width, width, device


def run_rank(rank, ranks, port, folder):
    os.environ.update(NCCL_HOSTID=f"host{rank}", NCCL_SOCKET_IFNAME="lo",
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                      RANK=str(rank), WORLD_SIZE=str(ranks))
    import torch
    import torch.distributed as dist
    if DEVICE == "cuda":
        torch.cuda.set_device(0)
        dist.init_process_group("nccl", rank=rank, world_size=ranks,
                                device_id=torch.device("cuda:0"))
    else:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", rank=rank, world_size=ranks)
    table = make_table(torch)
    for schedule in SCHEDULES:
        times, losses = time_schedule(torch, dist, table, rank, ranks, schedule)
        for name, found in (("times", times if rank == 0 else []), ("losses", losses)):
            if found:
                path = os.path.join(folder, f"{schedule}.{name}")
                with open(path + ".part", "w") as file:
                    json.dump(found, file)
                os.rename(path + ".part", path)
    os._exit(0)


# ---- Both programs ----

def what_failed(text):
    """The last exception in what a process printed, with what it says on the lines after it."""
    lines = [re.sub(r"^\[rank\d+\]: ?", "", line).rstrip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    at = max((k for k, line in enumerate(lines) if re.match(r"[\w.]+(Error|Exception)\b", line)),
             default=len(lines) - 1)
    return " ".join(line.strip() for line in lines[at:at + 4]) or "it printed nothing"


def run_pytorch(ranks, limit, percentage):
    """{schedule: (median milliseconds, losses)} of those that ended, and why others did not."""
    port = 20000 + (os.getpid() * 7 + ranks * 13 + percentage) % 20000
    environment = dict(os.environ)
    if percentage < 100:
        environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(percentage)
    found, why = {}, ""
    with tempfile.TemporaryDirectory() as folder:
        processes = [subprocess.Popen([sys.executable, shared.SCRIPT, "gpu", "--rank", str(r),
                                       str(ranks), str(port), folder, str(WIDTH), DEVICE],
                                      env=environment, stdout=subprocess.DEVNULL,
                                      stderr=subprocess.PIPE)
                     for r in range(ranks)]
        until = time.time() + limit
        for process in processes:
            try:
                _, text = process.communicate(timeout=max(1, until - time.time()))
                if process.returncode != 0:
                    why = why or what_failed(text.decode(errors="replace"))
            except subprocess.TimeoutExpired:
                why = why or f"not done after {limit} s"
                process.kill()
                process.communicate()
        for schedule in SCHEDULES:
            path = os.path.join(folder, schedule)
            if os.path.exists(path + ".times") and os.path.exists(path + ".losses"):
                with open(path + ".times") as times, open(path + ".losses") as losses:
                    found[schedule] = statistics.median(json.load(times)), json.load(losses)
    return found, why


def start_mps(folder):
    """The environment of a server of MPS for the processes started from here, or None."""
    names = {"CUDA_MPS_PIPE_DIRECTORY": "pipe", "CUDA_MPS_LOG_DIRECTORY": "log"}
    for name, place in names.items():
        os.makedirs(os.path.join(folder, place))
        os.environ[name] = os.path.join(folder, place)
    try:
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, timeout=20)
        return names
    except (OSError, subprocess.SubprocessError):
        for name in names:
            del os.environ[name]
        return None


def stop_mps(names):
    if names is not None:
        subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, timeout=20)


def run_weft(command, ranks):
    done = subprocess.run(command + ["-p", str(ranks), "--dim", str(WIDTH), "--json"],
                          stdout=subprocess.PIPE, timeout=300, check=False)
    if done.returncode != 0:  # 69: no GPU, or no cublasLt; it has said so
        sys.exit(0 if done.returncode == 69 else 1)
    return {row["case"]: row for row in json.loads(done.stdout)["blocks"]}


def run_weft_nccl(program, ranks, limit):
    """As run_weft(), by a job of MPI."""
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                       OMPI_MCA_btl="^tcp,openib", NCCL_MAX_CTAS="1")
    environment.setdefault("NCCL_SOCKET_IFNAME", "lo")
    command = ["mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle",
               "1", "-n", str(ranks), program, str(WIDTH), str(STEPS)]
    try:
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, timeout=limit,
                              check=False)
        text = done.stdout.decode() if done.returncode == 0 else ""
        text = re.sub(r"(?m)^NCCL version .*\n", "", text)  # each rank's NCCL may print it
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"Weft over NCCL, {ranks} ranks: {error}")
        text = ""
    return {row["case"]: row for row in json.loads(text)["blocks"]} if text else {}


def compare(ranks, weft, pytorch, column):
    """Prints a line per schedule; whether losses agree."""
    same = True
    for schedule in SCHEDULES:
        row = weft.get(schedule)
        if row is None:
            text = f"{pytorch[schedule][0]:.2f}" if schedule in pytorch else "-"
            print(f"{schedule:<22} {ranks:>5} {text:>11} {'-':>9}", flush=True)
            continue
        if schedule not in pytorch:
            print(f"{schedule:<22} {ranks:>5} {'-':>11} {row[column]:>9.2f}", flush=True)
            continue
        milliseconds, losses = pytorch[schedule]
        print(f"{schedule:<22} {ranks:>5} {milliseconds:>11.2f} {row[column]:>9.2f} "
              f"{milliseconds / row[column]:>12.2f} {sum(losses):>13.4f} {row['loss_sum']:>13.4f}",
              flush=True)
        size = sum(abs(loss) for loss in losses)
        if abs(sum(losses) - row["loss_sum"]) > TOLERANCE * size:
            print("  the losses differ")
            same = False
    return same


def main(words):
    if words[:1] == ["--rank"]:
        set_size(int(words[5]), words[6])
        run_rank(int(words[1]), int(words[2]), int(words[3]), words[4])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weft", default="build/weft-bench", help="the program weft-bench")
    parser.add_argument("--weft-nccl", help="the program job_blocks_nccl of the tests instead")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--limit", type=int, default=120, help="seconds for PyTorch, each time")
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--device", choices=("cuda", "cpu"), default=DEVICE, help="of PyTorch")
    arguments = parser.parse_args(words)
    set_size(arguments.width, arguments.device)
    ranks = [int(text) for text in arguments.ranks.split(",")]
    if importlib.util.find_spec("torch") is None:
        print("there is no PyTorch here; nothing was compared")
        return 0
    by_rank = arguments.weft_nccl
    weft = {} if by_rank else {p: run_weft([arguments.weft, "bench", "gpu-blocks"], p) for p in ranks}
    same = True
    with tempfile.TemporaryDirectory() as folder:
        mps = start_mps(folder)
        try:
            for shared in (True, False) if mps and not by_rank else (True,):
                print(f"8 blocks of width {WIDTH}, {MICROBATCHES} microbatches, bf16; "
                      f"{'both' if by_rank else 'PyTorch'} {'under MPS' if mps else 'without MPS'}; "
                      f"{'ranks share the GPU' if shared else 'each rank has its part of the GPU'}")
                print(f"{'schedule':<22} {'ranks':>5} {'pytorch ms':>11} {'weft ms':>9} "
                      f"{'pytorch/weft':>12} {'loss: pytorch':>13} {'weft':>13}", flush=True)
                for p in ranks:
                    if by_rank:
                        weft[p] = run_weft_nccl(by_rank, p, arguments.limit)
                    found, why = run_pytorch(p, arguments.limit, 100 if shared else 100 // p)
                    column = "step_ms" if shared else "partitions_ms"
                    same = compare(p, weft[p], found, column) and same
                    if why:
                        print(f"  PyTorch with {p} ranks: {why}", flush=True)
        finally:
            stop_mps(mps)
    return 0 if same else 1
