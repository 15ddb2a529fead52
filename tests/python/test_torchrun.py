"""Pipeline on torch.distributed: jobs of torchrun, with the bits of a plain loop, and their ends.

WEFT_FAULTS is how often each way to fail is tried, at random points; without it 2.
"""

import json
import os
import socket
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

FAULTS = int(os.environ.get("WEFT_FAULTS", "2"))

# All schedules with a pipeline each, one after the other in the same processes. LoopedBFS adds
# gradients in another order than a loop.
TRAINING = """
import os, sys
import torch, torch.distributed as dist
from weft_pipeline import Table
from weft_pipeline.torch import Pipeline

torch.set_num_threads(1)
device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cpu")
if device.type == "cuda":  # all processes on one GPU, which NCCL takes for hosts of their own
    os.environ.update(NCCL_HOSTID=os.environ["RANK"], NCCL_SOCKET_IFNAME="lo", NCCL_MAX_CTAS="1")
    torch.cuda.set_device(device)
dist.init_process_group("gloo")
ranks, rank, width = dist.get_world_size(), dist.get_rank(), 24
loss_fn = torch.nn.functional.mse_loss


def modules(count):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(width, width) for _ in range(count)]
    return [torch.nn.Sequential(layer, torch.nn.Tanh()).to(device) for layer in layers]


for name, v in [
    ("GPipe", 1), ("1F1B", 1), ("ZBH1", 1), ("LoopedBFS", 2), ("Interleaved1F1B", 2),
    ("InterleavedZeroBubble", 2), ("ZBVZeroBubble", 2), ("DualPipeV", 2),
]:
    m = 2 * ranks
    mine, plain = modules(ranks * v), modules(ranks * v)
    table = Table.named(name, ranks=ranks, stages_per_rank=v, microbatches=m)
    pipeline = Pipeline(mine, table, loss_fn, transport="torch", stall_limit=60)
    owned = [k for k, owner in enumerate(pipeline.program.rank_of_stage) if owner == rank]
    optimizers = [
        torch.optim.SGD([w for module in each for w in module.parameters()], 0.1)
        for each in (mine, plain)
    ]
    for step in range(2):
        # 400 rows of a microbatch are more than a block of the transport has room for.
        x, y = torch.randn(2, (3 if step == 0 else 400) * m, width).to(device).unbind()
        for optimizer in optimizers:
            optimizer.zero_grad()
        losses = pipeline.step(x, target=y).losses
        plainly = []
        for xs, ys in zip(x.tensor_split(m), y.tensor_split(m)):
            for module in plain:
                xs = module(xs)
            loss = loss_fn(xs, ys)
            loss.backward()
            plainly.append(loss.item())
        for module in plain:
            for w in module.parameters():
                w.grad.div_(m)
        assert not losses or list(losses) == plainly, (name, losses, plainly)
        for k in owned:
            for a, b in zip(mine[k].parameters(), plain[k].parameters()):
                if name == "LoopedBFS":
                    torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-7)
                else:
                    assert torch.equal(a.grad, b.grad), (name, step, k)
        if name == "LoopedBFS":
            break
        for optimizer in optimizers:
            optimizer.step()
    pipeline.close()
sys.stdout.write(f"rank {rank} of {ranks} has the bits\\n")
"""

# Ranks that fork from a process with PyTorch, which takes seconds to load, job after job.
FAULTY = """
import json, os, random, signal, socket, sys, tempfile, time
import torch, torch.distributed as dist
from weft_pipeline.torch import Pipeline

RANKS = 4
DEVICE = sys.argv[2]


def rank_main(rank, kind, victim, when):
    torch.set_num_threads(1)
    if DEVICE != "cpu":
        os.environ.update(NCCL_HOSTID=str(rank), NCCL_SOCKET_IFNAME="lo", NCCL_MAX_CTAS="1")
        torch.cuda.set_device(DEVICE)
    dist.init_process_group("gloo")
    done = 0

    class Stage(torch.nn.Module):
        def __init__(self, k):
            super().__init__()
            self.k = k
            self.layer = torch.nn.Linear(8, 8)

        def forward(self, x):
            nonlocal done
            done += 1
            if self.k == victim and done == when:
                if kind in ("SIGKILL", "SIGSTOP"):
                    os.kill(os.getpid(), getattr(signal, kind))
                elif kind == "exit":
                    os._exit(3)
                elif kind == "hang":
                    time.sleep(600)
                else:
                    raise LookupError("planted")
            return self.layer(x)

    pipeline = Pipeline(
        [Stage(k).to(DEVICE) for k in range(RANKS)],
        "1F1B",
        torch.nn.functional.mse_loss,
        microbatches=8,
        transport="torch",
        stall_limit=3,
    )
    for _ in range(4):
        pipeline.step(torch.randn(16, 8, device=DEVICE), target=torch.randn(16, 8, device=DEVICE))


def run(kind, seed):
    drawn = random.Random(seed)
    # Rank 0 has the store of torch.distributed: without it the others find out by themselves.
    victim, when = drawn.randrange(RANKS), drawn.randrange(1, 33)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children, files = [], []
    for rank in range(RANKS):
        file = tempfile.TemporaryFile("w+")
        pid = os.fork()
        if pid == 0:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            os.environ.update(
                RANK=str(rank),
                WORLD_SIZE=str(RANKS),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
            )
            status = 0
            try:
                rank_main(rank, kind, victim, when)
            except BaseException as error:
                sys.stderr.write(f"{type(error).__name__}: {error}\\n")
                status = 1
            import atexit

            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        children.append(pid)
        files.append(file)
    began, left, statuses = time.monotonic(), set(range(RANKS)) - {victim}, {}
    while left and time.monotonic() < began + 60:
        for rank in sorted(left):
            pid, status = os.waitpid(children[rank], os.WNOHANG)
            if pid:
                statuses[rank] = status
                left.discard(rank)
        time.sleep(0.01)
    took = time.monotonic() - began
    for rank in [victim, *left]:
        try:
            os.kill(children[rank], signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.waitpid(children[rank], 0)
    said = []
    for file in files:
        file.seek(0)
        said.append(file.read())
    return {
        "kind": kind, "victim": victim, "when": when, "pid": children[victim], "took": took,
        "stuck": sorted(left), "statuses": statuses, "said": said,
    }


for kind, seed in json.loads(sys.argv[1]):
    sys.stdout.write(json.dumps(run(kind, seed)) + "\\n")
    sys.stdout.flush()
"""


def run(*words, **more):
    """Exit status and output of a command."""
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        **more,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("ranks", [2, 4])
def test_bits_of_a_plain_loop(tmp_path, ranks):
    file = tmp_path / "train.py"
    file.write_text(TRAINING)
    status, said = run("-m", "torch.distributed.run", "--nproc-per-node", ranks, file)
    assert status == 0, said
    for rank in range(ranks):
        assert f"rank {rank} of {ranks} has the bits" in said


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("ranks", [2, 4])
def test_bits_on_a_gpu(tmp_path, ranks):
    file = tmp_path / "train.py"
    file.write_text(TRAINING)
    status, said = run("-m", "torch.distributed.run", "--nproc-per-node", ranks, file, "cuda:0")
    assert status == 0, said
    for rank in range(ranks):
        assert f"rank {rank} of {ranks} has the bits" in said


def test_dimension_of_a_mesh(tmp_path):
    """Two pipelines of two processes, each with batches of its own."""
    file = tmp_path / "mesh.py"
    file.write_text(
        TRAINING.split("for name, v in")[0]
        + """
from torch.distributed.device_mesh import init_device_mesh

mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
mine, plain = modules(2), modules(2)
pipeline = Pipeline(
    mine, "1F1B", loss_fn, microbatches=4, transport="torch", group=mesh["pp"], stall_limit=60
)
torch.manual_seed(1 + mesh["dp"].get_local_rank())
x, y = torch.randn(2, 8, width).unbind()
pipeline.step(x, target=y)
for xs, ys in zip(x.tensor_split(4), y.tensor_split(4)):
    loss_fn(plain[1](plain[0](xs)), ys).backward()
k = mesh["pp"].get_local_rank()
for a, b in zip(mine[k].parameters(), plain[k].parameters()):
    assert torch.equal(a.grad, b.grad / 4)
sys.stdout.write(f"rank {rank} of {ranks} has the bits\\n")
"""
    )
    status, said = run("-m", "torch.distributed.run", "--nproc-per-node", 4, file)
    assert status == 0, said
    assert all(f"rank {rank} of 4 has the bits" in said for rank in range(4)), said


DROPOUT = """
def with_dropout(count):
    return [
        torch.nn.Sequential(module, torch.nn.Dropout(0.5)) if k % 2 else module
        for k, module in enumerate(modules(count))
    ]


for name, v in [("1F1B", 1), ("ZBVZeroBubble", 2)]:
    table = Table.named(name, ranks=ranks, stages_per_rank=v, microbatches=2 * ranks)
    found = []
    for over in ({"transport": "torch"}, {}):
        mine = with_dropout(ranks * v)
        pipeline = Pipeline(mine, table, loss_fn, stall_limit=60, **over)
        x, y = torch.randn(2, 4 * ranks, width).unbind()
        torch.manual_seed(7)
        losses = []
        for step in range(3):
            if over and rank > 0:
                torch.rand(rank)  # generators of other ranks than the first do not count
            losses.append(pipeline.step(x, target=y).losses)
        losses.append(pipeline.eval(x, target=y).losses)
        assert len({tuple(each) for each in losses if each}) in (0, 4)  # others in each step
        owned = [k for k, owner in enumerate(pipeline.program.rank_of_stage) if owner == rank]
        found.append((losses, [w.grad for k in owned for w in mine[k].parameters()]))
        pipeline.close()
    assert found[0][0] in (found[1][0], [()] * 4), (name, found[0][0], found[1][0])
    assert all(map(torch.equal, found[0][1], found[1][1])), name
sys.stdout.write(f"rank {rank} of {ranks} has the bits\\n")
"""

REPLICAS = """
from torch.distributed.device_mesh import init_device_mesh

dp, pp = int(sys.argv[1]), ranks // int(sys.argv[1])
mesh = init_device_mesh("cpu", (dp, pp), mesh_dim_names=("dp", "pp"))
over = dict(transport="torch", group=mesh["pp"]) if pp > 1 else {}
m = 4


class Some(torch.nn.Module):  # one replica does not use a weight
    def __init__(self, layer):
        super().__init__()
        self.layer, self.more = layer, torch.nn.Linear(width, width).to(torch.float64)

    def forward(self, x):
        y = self.layer(x)
        return y + self.more(x.double()).float() if x.sum() > 0 else y


for schedule in ("1F1B", "ZBH1"):
    stages = max(pp, 2)
    mine, plain = modules(stages), modules(stages)
    torch.manual_seed(5)
    mine[1] = Some(mine[1])
    torch.manual_seed(5)
    plain[1] = Some(plain[1])
    pipeline = Pipeline(
        mine, schedule, loss_fn, microbatches=m, data_parallel=mesh["dp"], stall_limit=60, **over
    )
    for step in range(2):
        parts = []
        for k in range(dp):
            torch.manual_seed(10 * step + k)
            x, y = torch.randn(2, 2 * m, width).unbind()
            x = x.abs() if k == 0 else -x.abs()
            for module in plain:
                module.zero_grad()
            for xs, ys in zip(x.tensor_split(m), y.tensor_split(m)):
                for module in plain:
                    xs = module(xs)
                loss_fn(xs, ys).backward()
            parts.append([
                None if w.grad is None else w.grad / m for mod in plain for w in mod.parameters()
            ])
            if k == mesh["dp"].get_local_rank():
                batch = x, y
        expected = []
        for all_of in zip(*parts):
            some = [g for g in all_of if g is not None]
            total = None
            for g in all_of:
                g = torch.zeros_like(some[0]) if g is None and some else g
                total = g if total is None else total + g
            expected.append(None if not some else total / dp)
        pipeline.step(batch[0], target=batch[1])
        at = 0
        for k, module in enumerate(mine):
            for w in module.parameters():
                if pp == 1 or pipeline.program.rank_of_stage[k] == mesh["pp"].get_local_rank():
                    want = expected[at]
                    assert (w.grad is None) == (want is None), (schedule, step, k)
                    assert want is None or torch.equal(w.grad, want), (schedule, step, k)
                    w.grad = None
                at += 1
    pipeline.close()
wrong = modules(max(pp, 2))
if rank == 0:
    torch.nn.init.zeros_(wrong[0][0].weight)
pipeline = Pipeline(
    wrong, "1F1B", loss_fn, microbatches=m, data_parallel=mesh["dp"], stall_limit=9, **over
)
try:
    pipeline.step(batch[0], target=batch[1])
    said = "nothing"
except Exception as error:
    said = str(error)
assert "different weights: 0.weight" in said or mesh.get_coordinate()[1] > 0, said
sys.stdout.write(f"rank {rank} of {ranks} has the bits\\n")
"""


def test_dropout_is_that_of_threads(tmp_path):
    file = tmp_path / "dropout.py"
    file.write_text(TRAINING.split("for name, v in")[0] + DROPOUT)
    status, said = run("-m", "torch.distributed.run", "--nproc-per-node", 2, file)
    assert status == 0, said
    assert all(f"rank {rank} of 2 has the bits" in said for rank in range(2)), said


@pytest.mark.parametrize(("processes", "replicas"), [(2, 2), (4, 2)])
def test_replicas(tmp_path, processes, replicas):
    file = tmp_path / "replicas.py"
    file.write_text(
        TRAINING.split("for name, v in")[0].replace("sys.argv[1] if", '"cpu" if') + REPLICAS
    )
    command = "-m", "torch.distributed.run", "--nproc-per-node", processes, file, replicas
    status, said = run(*command)
    assert status == 0, said
    assert all(f"rank {rank} of {processes} has the bits" in said for rank in range(processes)), (
        said
    )


@pytest.mark.parametrize("device", ["cpu"] + ["cuda:0"] * torch.cuda.is_available())
def test_failures_are_named(tmp_path, device):
    file = tmp_path / "faulty.py"
    file.write_text(FAULTY)
    kinds = ("SIGKILL", "SIGSTOP", "exit", "hang", "raise")
    jobs = [(kind, 100 * n + seed) for n, kind in enumerate(kinds) for seed in range(FAULTS)]
    status, said = run(file, json.dumps(jobs), device)
    assert status == 0, said
    found = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert len(found) == len(jobs), said
    for job in found:
        rank, others = job["victim"], [k for k in range(4) if k != job["victim"]]
        assert job["stuck"] == [], job
        where = f"rank {rank} ({socket.gethostname()}, process {job['pid']}"
        for k in others:
            text = job["said"][k]
            if job["kind"] == "raise":
                assert "StageError" in text, job
                assert f"rank {rank}, step" in text and "planted" in text, job
            elif job["kind"] in ("SIGKILL", "exit"):
                assert "PeerError" in text and where in text and ") died" in text, job
            else:
                assert "StalledError" in text and where in text, job
                word = "is stopped" if job["kind"] == "SIGSTOP" else "which is in"
                assert word in text, job


def test_a_script_that_ends_early_is_named(tmp_path):
    file = tmp_path / "early.py"
    file.write_text(
        TRAINING.split("for name, v in")[0]
        + """
pipeline = Pipeline(modules(2), "1F1B", loss_fn, microbatches=2, transport="torch", stall_limit=9)
for step in range(3 + rank):
    pipeline.step(torch.randn(4, width), target=torch.randn(4, width))
"""
    )
    status, said = run("-m", "torch.distributed.run", "--nproc-per-node", 2, file)
    assert status != 0
    assert "rank 0 (" in said and "has ended, and other ranks are still in a step" in said, said


def test_wrong_calls_are_refused(tmp_path):
    file = tmp_path / "wrong.py"
    file.write_text(
        """
import torch, torch.distributed as dist
from weft_pipeline import UsageError
from weft_pipeline.torch import Pipeline

modules = [torch.nn.Linear(2, 2) for _ in range(2)]


def refused(*words, **more):
    try:
        Pipeline(modules, "1F1B", torch.nn.functional.mse_loss, microbatches=2, **more)
    except UsageError as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(words)


refused("has not begun", "init_process_group", transport="torch")
refused("group is for the transport torch", group=object())
dist.init_process_group("gloo")
refused("has 2 ranks; there are 1 processes", "torchrun --nproc-per-node 2", transport="torch")
"""
    )
    status, said = run("-m", "torch.distributed.run", "--nproc-per-node", 1, file)
    assert status == 0, said
