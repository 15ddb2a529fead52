#!/usr/bin/env python3
"""Measures F, I, W and B of PyTorch's pipeline stages into a costs file for Weft.

In your training script, on every rank:

    from pytorch_costs import watch, write_costs

    schedule.step(...)                  # once or twice first: warm-up
    times = watch(schedule, stages)     # the PipelineStage objects of this rank
    schedule.step(...)                  # some steps
    write_costs("costs.json", times)    # rank 0 writes the file

Use a schedule with I and W, such as ScheduleInterleavedZeroBubble or a table of
`weft gen ZBH1`; one with whole backwards gives f and b only. The times are those of
the actions as they run, without the waiting for messages between them. Around each
action the device is synchronized, so steps are slower while they are watched. The
costs of transfers (`hop`) are not measured: add them to the file.

Run by itself it measures a small model on the CPU, one process per rank:

    examples/pytorch_costs.py [--layers 2,1,1,1] [-m MICROBATCHES] [--steps N] -o FILE
    examples/pytorch_costs.py ... --table TABLE.csv      # only runs TABLE: the time of a step

Tried with PyTorch 2.13. Without torch it says so and exits with status 69.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time

try:
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, ScheduleInterleavedZeroBubble
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
except ImportError as error:
    print(f"no PyTorch with pipelining: {error}", file=sys.stderr)
    sys.exit(69)


# ---- For your script ----


def watch(schedule, stages):
    """From now on the times of all actions of these stages are kept: {stage: {"f": [ms, ...]}}."""
    times = {stage.stage_index: {"f": [], "i": [], "w": [], "b": [], "loss": []} for stage in stages}

    def timed(stage, name_of, method):
        def call(*arguments, **options):
            if stage.device.type != "cpu":
                torch.accelerator.synchronize()
            begin = time.perf_counter()
            result = method(*arguments, **options)
            if stage.device.type != "cpu":
                torch.accelerator.synchronize()
            times[stage.stage_index][name_of(options)].append(1e3 * (time.perf_counter() - begin))
            return result

        return call

    for stage in stages:
        stage.forward_one_chunk = timed(stage, lambda _: "f", stage.forward_one_chunk)
        stage.backward_one_chunk = timed(
            stage, lambda options: "b" if options.get("full_backward", True) else "i", stage.backward_one_chunk
        )
        stage.backward_weight_one_chunk = timed(stage, lambda _: "w", stage.backward_weight_one_chunk)
        if stage.is_last and schedule._loss_fn is not None:
            schedule._loss_fn = timed(stage, lambda _: "loss", schedule._loss_fn)
    return times


def costs_of(times):
    """The entry of a stage: medians, in ms. The loss is part of the last stage's F."""
    entry = {name: statistics.median(times[name]) for name in "fiwb" if times[name]}
    if times["loss"]:
        entry["f"] += statistics.median(times["loss"])
    return {name: round(value, 4) for name, value in entry.items()}


def write_costs(path, times):
    """Gathers the times of all ranks; rank 0 writes the file."""
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, {stage: costs_of(kept) for stage, kept in times.items()})
    if dist.get_rank() != 0:
        return
    found = {stage: entry for rank in gathered for stage, entry in rank.items()}
    costs = {"schema": "weft-costs/1", "unit": "ms", "stages": [found[stage] for stage in sorted(found)]}
    with open(path, "w", encoding="ascii") as file:
        json.dump(costs, file)
        file.write("\n")


# ---- A small model, to try it ----


def make_stage(layers, width):
    torch.manual_seed(1)
    return torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU()) for _ in range(layers))
    )


def loss_of(output, target):
    return ((output - target) ** 2).mean()


def make_schedule(stage, options):
    if options.table is None:
        return ScheduleInterleavedZeroBubble([stage], options.microbatches, loss_fn=loss_of)
    runtime = _PipelineScheduleRuntime([stage], options.microbatches, loss_fn=loss_of)
    runtime._load_csv(options.table, format="compute_only")
    return runtime


def run_rank(rank, options, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=len(options.layers))
    module = make_stage(options.layers[rank], options.width)
    stage = PipelineStage(module, rank, len(options.layers), torch.device("cpu"))
    schedule = make_schedule(stage, options)
    batch = torch.randn(options.microbatches * options.rows, options.width)

    def step():
        dist.barrier()
        begin = time.perf_counter()
        inputs = [batch] if stage.is_first else []
        schedule.step(*inputs, **({"target": batch, "losses": []} if stage.is_last else {}))
        dist.barrier()
        return 1e3 * (time.perf_counter() - begin)

    for _ in range(2):
        step()
    if options.table is None:
        times = watch(schedule, [stage])
        for _ in range(options.steps):
            step()
        write_costs(options.output, times)
    else:
        steps = [step() for _ in range(options.steps)]
        if rank == 0:
            print(f"{options.table}: a step takes {statistics.median(steps):.1f} ms"
                  f" (median of {options.steps}; the shortest {min(steps):.1f} ms)")
    dist.barrier()
    dist.destroy_process_group()


def parse_options():
    parser = argparse.ArgumentParser(description="F, I, W and B of PyTorch's pipeline stages as a costs file of Weft")
    parser.add_argument("--layers", default="1,1", help="of each stage; as many ranks")
    parser.add_argument("-m", "--microbatches", type=int, default=8)
    parser.add_argument("--width", type=int, default=1024, help="of a stage's matrix")
    parser.add_argument("--rows", type=int, default=256, help="of a microbatch")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("-o", "--output", help="the costs file to write")
    parser.add_argument("--table", help="run this table instead, and say how long a step takes")
    options = parser.parse_args()
    if (options.output is None) == (options.table is None):
        parser.error("give -o FILE, to measure, or --table TABLE, to run it")
    options.layers = [int(count) for count in options.layers.split(",")]
    return options


def main():
    options = parse_options()
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("fork")  # torch is loaded once
        store = os.path.join(folder, "store")
        ranks = [context.Process(target=run_rank, args=(rank, options, store)) for rank in range(len(options.layers))]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(timeout=300)
        ended = [rank.exitcode for rank in ranks]
        if any(status != 0 for status in ended):
            for rank in ranks:
                rank.kill()
            sys.exit(f"the ranks ended with {ended}")


if __name__ == "__main__":
    main()
