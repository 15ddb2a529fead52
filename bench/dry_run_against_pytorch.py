#!/usr/bin/env python3
"""Weft's simulations beside the untimed dry run of an installed PyTorch.

    bench/dry_run_against_pytorch.py [-p RANKS] [-m MICROBATCHES] [--rounds N] [--repeats N]
                                     [--json] [--build DIR] [NAME ...]

Both are given the same program, a table lowered with SEND and RECV alone: all
that PyTorch's _simulate_comms_compute() knows. (Of the five schedules, DualPipeV
has overlaps, which it does not know either.) First the answers are compared:
weft_dry_run() must give the same rows with the same bubbles. Then come the times

    dry run      weft_dry_run(): the same untimed run
    simulation   weft_simulate(): timed, with memory and causes of idle time
    makespan     weft_makespan(): what a search calls

The target is about the makespan, which, like PyTorch's run, finds out how long
the program takes and no more; the ratio to the simulation is shown too. What
PyTorch needs per action depends on how many bubbles there are.

The two take turns, because a shared machine is fast for some seconds and slow
for others: in each round PyTorch runs once, and Weft a number of times before and
after it. Of all runs of each the median counts. Times are CPU times of this
process, as in against_pytorch.py.

Optional: without torch it says so and exits 0. Exit status 1 when an answer
differs; a ratio below the target is shown, and is no failure.
"""

import argparse
import ctypes
import json
import os
import platform
import statistics
import sys
import time

import against_pytorch
from against_pytorch import STAGES_PER_RANK, Error, ProgramHead, Shape

TARGET = 600
NAMES = ("LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble")


# ---- PyTorch ----


def parse(schedules, text):
    return {
        rank: [schedules._Action.from_str(cell) for cell in row.split(",")]
        for rank, row in enumerate(text.splitlines())
    }


def rank_of_stages(order):
    ranks = {}
    for rank, row in order.items():
        for action in row:
            if action.is_compute_op:
                ranks[action.stage_index] = rank
    return ranks


def run_torch(schedules, text):
    """(nanoseconds, the rows with their bubbles)"""
    order = parse(schedules, text)
    ranks = rank_of_stages(order)
    begin = time.process_time_ns()
    simulated = schedules._simulate_comms_compute(order, ranks.__getitem__, len(ranks))
    return time.process_time_ns() - begin, simulated


def torch_text(order):
    rows = (",".join("" if a is None else str(a) for a in order[rank]) for rank in sorted(order))
    return "".join(row + "\n" for row in rows)


# ---- Weft ----


class LowerOptions(ctypes.Structure):
    _fields_ = [
        ("merge_bw", ctypes.c_bool),
        ("unshard", ctypes.c_bool),
        ("reduce_grad", ctypes.c_bool),
        ("tie_grad", ctypes.c_bool),
        ("communicate", ctypes.c_bool),
        ("unshard_window", ctypes.c_uint32),
    ]


class Weft(against_pytorch.Weft):
    def __init__(self, build):
        super().__init__(build)
        pointer, reference = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
        error = ctypes.POINTER(Error)
        self.library.weft_dry_run.argtypes = (pointer, pointer, reference, error)
        self.library.weft_costs_create.argtypes = (pointer, ctypes.c_uint32, reference, error)
        self.library.weft_costs_destroy.argtypes = (pointer,)
        self.library.weft_costs_destroy.restype = None
        self.library.weft_simulate.argtypes = (pointer, pointer, pointer, pointer, reference, error)
        self.library.weft_simulation_destroy.argtypes = (pointer,)
        self.library.weft_simulation_destroy.restype = None
        self.library.weft_makespan.argtypes = (
            pointer, pointer, pointer, pointer, ctypes.POINTER(ctypes.c_double), error)

    def lowered(self, name, ranks, microbatches):
        """The program with SEND and RECV alone, to be destroyed."""
        shape, error = Shape(ranks, STAGES_PER_RANK, microbatches, 0), Error()
        options = LowerOptions(communicate=True, unshard_window=3)
        table, program = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.library.weft_generate(
            None, name.encode(), ctypes.byref(shape), ctypes.byref(table), ctypes.byref(error)), error)
        self.check(self.library.weft_lower(
            None, table, ctypes.byref(options), ctypes.byref(program), ctypes.byref(error)), error)
        self.library.weft_program_destroy(table)
        return program

    def costs(self):
        costs, error = ctypes.c_void_p(), Error()
        self.check(self.library.weft_costs_create(
            None, 1, ctypes.byref(costs), ctypes.byref(error)), error)
        return costs

    def timed(self, function, *arguments):
        error = Error()
        begin = time.process_time_ns()
        status = function(None, *arguments, ctypes.byref(error))
        time_ns = time.process_time_ns() - begin
        self.check(status, error)
        return time_ns

    def dry_run(self, program):
        """(nanoseconds, the rows with their bubbles, to be destroyed)"""
        out = ctypes.c_void_p()
        return self.timed(self.library.weft_dry_run, program, ctypes.byref(out)), out

    def time_once(self, program, costs):
        """Nanoseconds of the dry run, the simulation, the makespan."""
        simulation, makespan = ctypes.c_void_p(), ctypes.c_double()
        dry_ns, rows = self.dry_run(program)
        self.library.weft_program_destroy(rows)
        full_ns = self.timed(
            self.library.weft_simulate, program, costs, None, ctypes.byref(simulation))
        self.library.weft_simulation_destroy(simulation)
        makespan_ns = self.timed(
            self.library.weft_makespan, program, costs, None, ctypes.byref(makespan))
        return dry_ns, full_ns, makespan_ns

    def dry_text(self, program):
        rows = self.dry_run(program)[1]
        text = self.text(rows)
        self.library.weft_program_destroy(rows)
        return text


# ---- The table ----


def take_turns(weft, schedules, program, text, options):
    """(nanoseconds of PyTorch, of the three of Weft, PyTorch's rows with their bubbles)"""
    torch_samples, samples = [], []
    costs = weft.costs()
    weft.time_once(program, costs)  # warm-up
    for _ in range(options.rounds):
        samples += [weft.time_once(program, costs) for _ in range(options.repeats)]
        torch_ns, simulated = run_torch(schedules, text)
        torch_samples.append(torch_ns)
        samples += [weft.time_once(program, costs) for _ in range(options.repeats)]
    weft.library.weft_costs_destroy(costs)
    medians = [int(statistics.median(column)) for column in zip(*samples)]
    return int(statistics.median(torch_samples)), medians, simulated


def compare(weft, schedules, name, options):
    program = weft.lowered(name, options.ranks, options.microbatches)
    actions = ctypes.cast(program, ctypes.POINTER(ProgramHead)).contents.action_count
    torch_ns, (dry_ns, full_ns, makespan_ns), simulated = take_turns(
        weft, schedules, program, weft.text(program), options)
    ours, theirs = weft.dry_text(program), torch_text(simulated)
    weft.library.weft_program_destroy(program)
    return {
        "schedule": name,
        "actions": actions,
        "torch_ns": torch_ns,
        "weft_dry_run_ns": dry_ns,
        "weft_simulation_ns": full_ns,
        "weft_makespan_ns": makespan_ns,
        "ratio": torch_ns / makespan_ns,
        "simulation_ratio": torch_ns / full_ns,
        "identical": ours == theirs,
        "difference": None if ours == theirs else against_pytorch.first_difference(ours, theirs),
    }


def print_row(row):
    def each(key):
        return row[key] / row["actions"]

    print(
        f"{row['schedule']:<22} {row['actions']:>8} {row['torch_ns'] / 1e9:>8.2f} "
        f"{each('torch_ns') / 1e3:>8.2f} {each('weft_dry_run_ns'):>8.2f} "
        f"{each('weft_simulation_ns'):>10.2f} {each('weft_makespan_ns'):>8.2f} "
        f"{row['simulation_ratio']:>10.0f} {row['ratio']:>9.0f}  {'yes' if row['identical'] else 'NO'}",
        flush=True,
    )
    if row["difference"] is not None:
        print(f"    first difference: {row['difference']}", flush=True)


def print_head(weft, torch, options):
    print(
        f"weft {weft.version()} and PyTorch {torch.__version__} (Python "
        f"{platform.python_version()}): simulation, p = {options.ranks}, "
        f"v = {STAGES_PER_RANK}, m = {options.microbatches}\n\n"
        f"{'':<22} {'':>8} {'torch':>8} {'torch':>8} {'dry run':>8} {'simulation':>10} "
        f"{'makespan':>8} {'torch /':>10} {'torch /':>9}  same\n"
        f"{'schedule':<22} {'actions':>8} {'s':>8} {'us/act':>8} {'ns/act':>8} {'ns/act':>10} "
        f"{'ns/act':>8} {'simulation':>10} {'makespan':>9}  dry run",
        flush=True,
    )


def parse_options():
    parser = argparse.ArgumentParser(description="Weft's simulations beside PyTorch's dry run.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="schedules; default: all four")
    parser.add_argument("-p", "--ranks", type=int, default=64)
    parser.add_argument("-m", "--microbatches", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3, help="runs of PyTorch; the median counts")
    parser.add_argument("--repeats", type=int, default=7,
                        help="runs of Weft before and after each of PyTorch; the median counts")
    parser.add_argument("--build", default=os.path.join(against_pytorch.ROOT, "build"),
                        help="where libweft.so is")
    parser.add_argument("--json", action="store_true", help="write one JSON document")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(NAMES))
    if unknown:
        parser.error(f"unknown schedule {', '.join(unknown)}; there are {', '.join(NAMES)}")
    return options


def total(rows, key):
    return sum(row[key] for row in rows)


def report(weft, torch, options, rows, busy):
    least = min(row["ratio"] for row in rows)
    whole = total(rows, "torch_ns") / total(rows, "weft_makespan_ns")
    if options.json:
        print(json.dumps({
            "schema": "weft-bench-dry-run-against-pytorch/1", "weft": weft.version(),
            "torch": torch.__version__, "ranks": options.ranks,
            "stages_per_rank": STAGES_PER_RANK, "microbatches": options.microbatches,
            "target": TARGET, "ratio": whole, "clock_per_cpu": busy, "runs": rows}))
    else:
        print(
            f"\nCPU time, and the clock ran {busy:.2f} times as long. All together PyTorch takes "
            f"{whole:.0f} times as long\nas the makespan, and {least:.0f} times where it does best; "
            f"the target is {TARGET}."
        )


def main():
    options = parse_options()
    try:
        import torch
        from torch.distributed.pipelining import schedules
    except ImportError as error:
        print("bench/dry_run_against_pytorch.py: no PyTorch with pipelining here "
              f"({error}); not compared")
        return 0
    weft = Weft(options.build)
    if not options.json:
        print_head(weft, torch, options)
    rows = []
    clock_begin, cpu_begin = time.perf_counter(), time.process_time()
    for name in options.names or NAMES:
        rows.append(compare(weft, schedules, name, options))
        if not options.json:
            print_row(rows[-1])
    busy = (time.perf_counter() - clock_begin) / (time.process_time() - cpu_begin)
    report(weft, torch, options, rows, busy)
    return 0 if all(row["identical"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
