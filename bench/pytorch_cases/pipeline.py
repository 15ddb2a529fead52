"""Host time per action: Pipeline beside PyTorch's pipelining over gloo.

    mpirun -n 2 python3 bench/pytorch.py pipeline [--schedule 1F1B] [--microbatches 8]
    torchrun --nproc-per-node 2 bench/pytorch.py pipeline [...]

Under mpirun Pipeline's messages go by MPI, under torchrun by gloo, too. Both run the same program on the same modules in the same processes, in turns. First losses and
gradients are compared. The modules are small, so a step is host time: what autograd takes for the
same forwards and backwards in a loop, without any pipeline, is the floor of both; the step that
these would make without communication is simulated, and the rest is what a runtime adds. Needs
PyTorch, weft_pipeline and, under mpirun, a driver for MPI (docs/mpi.md).
"""

import argparse
import os
import statistics
import sys
import tempfile
import time


def arguments(words):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedule", default="1F1B")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=20, help="in a round")
    return parser.parse_args(words)


def load():
    """Whether all is there. The supervisor comes first: before torch starts threads."""
    global launch, torch, dist, weft, weft_torch, PipelineStage
    try:
        from weft_pipeline import launch

        launch.begin()
        import torch
        import torch.distributed as dist
        import weft_pipeline as weft
        import weft_pipeline.torch as weft_torch
        from torch.distributed.pipelining import PipelineStage
    except ImportError as error:
        print(f"{error}; nothing was compared")
        return False
    return True


def loss_of(output, target):
    return ((output - target) ** 2).sum()


def modules_of(count, width):
    torch.manual_seed(7)
    return [
        torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh()) for _ in range(count)
    ]


def gradients(modules):
    return [weight.grad.clone() for module in modules for weight in module.parameters()]


def zero(modules):
    for module in modules:
        module.zero_grad()


def bare_times(module, width, is_first, is_last, count=200):
    """Microseconds of F, B, I and W of a stage in a loop, by PyTorch's public functions."""
    x0, gradient, target = (torch.randn(2, width) for _ in range(3))
    weights = list(module.parameters())
    backward = torch.autograd.backward
    times = {"f": [], "b": [], "i": [], "w": []}

    def forward():
        x = x0.detach()
        if not is_first:
            x.requires_grad_()
        y = module(x)
        if is_last:
            y = loss_of(y, target)
            y.item()
        return x, y

    for _ in range(count):
        t = [time.perf_counter()]
        x, y = forward()
        t.append(time.perf_counter())
        backward([y], None if is_last else [gradient])
        t.append(time.perf_counter())
        x, y = forward()
        t.append(time.perf_counter())
        if not is_first:
            grads = None if is_last else [gradient]
            torch.autograd.grad([y], [x], grads, retain_graph=True)
        t.append(time.perf_counter())
        backward([y], None if is_last else [gradient], inputs=weights)
        t.append(time.perf_counter())
        for name, k in (("f", 0), ("b", 1), ("i", 3), ("w", 4)):
            times[name].append(1e6 * (t[k + 1] - t[k]))
    return {name: statistics.median(values) for name, values in times.items()}


def report(options, program, times, floors, bare):
    actions = max(sum(cell is not None for cell in row) for row in program)
    print(
        f"{options.schedule}, {program.ranks} processes, {program.microbatches} microbatches, "
        f"{actions} actions: losses and gradients are the same"
    )
    print("us per action         median    best  beyond autograd: median    best")
    beyond = {}
    for name, values in (("autograd in a loop", floors), *times.items()):
        found = [pick(values) / actions for pick in (statistics.median, min)]
        beyond[name] = [
            (pick(values) - pick(floors)) / actions for pick in (statistics.median, min)
        ]
        more = "" if values is floors else "{:25.1f} {:7.1f}".format(*beyond[name])
        print(f"{name:20} {found[0]:7.1f} {found[1]:7.1f}{more}")
    ratio = statistics.median(times["weft"]) / statistics.median(times["pytorch"])
    ratios = [a / b for a, b in zip(beyond["weft"], beyond["pytorch"])]
    print(f"weft / pytorch: median {ratio:.3f}")
    print(f"weft / pytorch beyond autograd: median {ratios[0]:.3f}, best {ratios[1]:.3f}")
    print("F, B, I, W of each stage in a loop: ", end="")
    print(*("/".join(f"{t:.0f}" for t in row) for row in zip(*bare.values())), "us")


def main(words):
    options = arguments(words)
    if not load():
        return 0
    torch.set_num_threads(1)
    me, m, width = launch.info(), options.microbatches, options.width
    transport = "mpi"
    if me.launcher is None and "RANK" in os.environ:
        transport = "torch"
        dist.init_process_group("gloo")
        me = launch.Info("torchrun", dist.get_rank(), dist.get_world_size())
    table = weft.Table.named(options.schedule, ranks=me.ranks, microbatches=m)
    program = table.lower()
    mine = weft_torch.stages_of(program, me.rank)
    x, y = torch.randn(2 * m, width), torch.randn(2 * m, width)
    first, last = 0 in mine, program.stages - 1 in mine

    ours = modules_of(program.stages, width)
    pipeline = weft_torch.Pipeline(
        [module if k in mine else None for k, module in enumerate(ours)],
        program,
        loss_of,
        transport=transport,
    )

    def our_step():
        return pipeline.step(*[x] * first, target=y if last else None).losses

    if transport == "mpi":
        launch.world()
        job = launch.allgather(os.getpid().to_bytes(8, "little"), 60 * 10**9)[0].hex()
        store = os.path.join(tempfile.gettempdir(), f"weft-gloo-{job}")  # the last rank removes it
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=me.rank, world_size=me.ranks
        )
    theirs = modules_of(program.stages, width)
    stages = [PipelineStage(theirs[k], k, program.stages, torch.device("cpu")) for k in mine]
    schedule = weft_torch.runtime(stages, program, loss_of)

    def their_step():
        losses = []
        schedule.step(*([x] if first else []), **({"target": y, "losses": losses} if last else {}))
        return [loss.item() for loss in losses]

    # The answer first.
    our_losses, their_losses = list(our_step()), their_step()
    ours, theirs = [ours[k] for k in mine], [theirs[k] for k in mine]
    same = all(map(torch.allclose, gradients(ours), gradients(theirs)))
    same = same and torch.allclose(torch.tensor(our_losses), torch.tensor(their_losses))
    if not same:
        sys.exit(f"rank {me.rank}: losses or gradients differ: {our_losses} and {their_losses}")

    def round_of(step, modules):
        for _ in range(2):
            zero(modules)
            step()
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(options.steps):
            zero(modules)
            step()
        return 1e6 * (time.perf_counter() - begin) / options.steps

    last_stage = program.stages - 1
    times, floors = {"weft": [], "pytorch": []}, []
    for _ in range(options.rounds):
        times["pytorch"].append(round_of(their_step, theirs))
        times["weft"].append(round_of(our_step, ours))
        dist.barrier()
        bare = [bare_times(ours[0], width, k == 0, k == last_stage) for k in range(last_stage + 1)]
        columns = {name: [stage[name] for stage in bare] for name in bare[0]}
        floors.append(program.simulate(weft.Costs(unit="us", **columns)).makespan)
        dist.barrier()
    if me.rank == 0:
        report(options, program, times, floors, columns)
    dist.barrier()
    dist.destroy_process_group()
    return 0
