#!/usr/bin/env python3
"""Weft beside an installed PyTorch: the same schedules, built and lowered by both.

    bench/against_pytorch.py [-p RANKS] [-m MICROBATCHES] [--repeats N] [--json]
                             [--build DIR] [NAME ...]

PyTorch's time is that of its own schedule class: the constructor builds the
table of all ranks and lowers it (UNSHARD/RESHARD, REDUCE_GRAD, SEND/RECV). No
process group is needed for that, only objects that answer what the constructor
asks of a stage. Its validation is timed too, and taken off: it is not compared.

Weft's time is weft_generate() and weft_lower() of libweft.so, called in this
process; the lowering includes slot assignment, which PyTorch does not have. Of
N runs the median counts. PyTorch runs once: it takes seconds.

Times are CPU times of this process. Both sides use one thread and never wait, so
on an idle machine that is the time on the clock; on a busy one it is still the
work that was done. The last line says how much longer the clock ran.

Then both programs are written as text and compared. Where several RESHARDs
stand together their order is arbitrary in PyTorch; they are sorted first, as
Weft writes them.

Optional: without torch it says so and exits 0. Exit status 1 when a program
differs; a ratio below the target is shown, and is no failure, since it is the
machine's business as well.
"""

import argparse
import ctypes
import json
import os
import platform
import statistics
import sys
import time
import unittest.mock

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STAGES_PER_RANK = 2
TARGET = 1000
NAMES = ("LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")


# ---- PyTorch ----


class Stage:
    """What a schedule's constructor asks of a pipeline stage."""

    submod = None

    def __init__(self, ranks, stages):
        self.num_stages = stages
        self.group_size = ranks
        self.group_rank = 0
        self.has_backward = True


class Stopwatch:
    """Adds up the time spent in a function."""

    def __init__(self, function):
        self.function = function
        self.time_s = 0.0

    def __call__(self, *arguments, **named):
        begin = time.process_time()
        result = self.function(*arguments, **named)
        self.time_s += time.process_time() - begin
        return result


def run_torch(schedules, name, ranks, microbatches):
    """(seconds to build, seconds to lower, the program)"""
    validate = Stopwatch(schedules._validate_schedule)

    class Timed(getattr(schedules, f"Schedule{name}")):
        def _prepare_schedule_with_comms(self, *arguments, **named):
            lower = Stopwatch(super()._prepare_schedule_with_comms)
            lower(*arguments, **named)
            self.lower_s = lower.time_s

    stages = [Stage(ranks, ranks * STAGES_PER_RANK) for _ in range(STAGES_PER_RANK)]
    construct = Stopwatch(Timed)
    with unittest.mock.patch.object(schedules, "_validate_schedule", validate):
        schedule = construct(stages, microbatches)
    build_s = construct.time_s - schedule.lower_s
    return build_s, schedule.lower_s - validate.time_s, schedule.pipeline_order_with_comms


def sort_reshards(cells):
    sorted_cells, together = [], []
    for cell in [*cells, ""]:
        if cell.endswith("RESHARD"):
            together.append(cell)
            continue
        sorted_cells += sorted(together, key=lambda reshard: int(reshard[: -len("RESHARD")]))
        together = []
        sorted_cells.append(cell)
    return sorted_cells[:-1]


def torch_text(program):
    rows = (sort_reshards([str(action) for action in program[rank]]) for rank in sorted(program))
    return "".join(",".join(row) + "\n" for row in rows)


# ---- Weft ----


class Shape(ctypes.Structure):
    _fields_ = [
        ("ranks", ctypes.c_uint32),
        ("stages_per_rank", ctypes.c_uint32),
        ("microbatches", ctypes.c_uint32),
        ("placement", ctypes.c_int),
    ]


class Error(ctypes.Structure):
    _fields_ = [
        ("status", ctypes.c_int),
        ("line", ctypes.c_uint64),
        ("column", ctypes.c_uint64),
        ("message", ctypes.c_char * 512),
        ("hint", ctypes.c_char * 256),
    ]


class Text(ctypes.Structure):
    _fields_ = [
        ("allocator", ctypes.c_void_p),
        ("data", ctypes.c_char_p),
        ("size", ctypes.c_size_t),
        ("capacity", ctypes.c_size_t),
        ("failed", ctypes.c_bool),
    ]


class ProgramHead(ctypes.Structure):
    """The first members of struct weft_program."""

    _fields_ = [
        ("level", ctypes.c_int),
        ("rank_count", ctypes.c_uint32),
        ("stage_count", ctypes.c_uint32),
        ("microbatch_count", ctypes.c_uint32),
        ("action_count", ctypes.c_uint64),
    ]


class Weft:
    def __init__(self, build):
        path = os.path.join(build, "lib", "libweft.so")
        if not os.path.exists(path):
            sys.exit(f"there is no {path}; 'make' builds it")
        self.library = ctypes.CDLL(path)
        pointer, reference = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
        self.library.weft_version.restype = ctypes.c_char_p
        self.library.weft_generate.argtypes = (
            pointer, ctypes.c_char_p, ctypes.POINTER(Shape), reference, ctypes.POINTER(Error))
        self.library.weft_lower.argtypes = (
            pointer, pointer, pointer, reference, ctypes.POINTER(Error))
        self.library.weft_program_destroy.argtypes = (pointer,)
        self.library.weft_program_destroy.restype = None
        self.library.weft_program_print.argtypes = (pointer, ctypes.POINTER(Text))
        self.library.weft_program_print.restype = None
        self.library.weft_text_finish.argtypes = (ctypes.POINTER(Text),)
        self.library.weft_text_finish.restype = None

    def version(self):
        return self.library.weft_version().decode()

    def check(self, status, error):
        if status != 0:
            sys.exit(f"weft: {error.message.decode()}\n  hint: {error.hint.decode()}")

    def run(self, name, ranks, microbatches):
        """(nanoseconds, the program, to be destroyed)"""
        shape = Shape(ranks, STAGES_PER_RANK, microbatches, 0)
        name, error = name.encode(), Error()
        table, program = ctypes.c_void_p(), ctypes.c_void_p()
        table_out, program_out = ctypes.byref(table), ctypes.byref(program)
        shape_in, error_out = ctypes.byref(shape), ctypes.byref(error)
        generate, lower = self.library.weft_generate, self.library.weft_lower
        begin = time.process_time_ns()
        generated = generate(None, name, shape_in, table_out, error_out)
        lowered = lower(None, table, None, program_out, error_out) if generated == 0 else generated
        time_ns = time.process_time_ns() - begin
        self.check(lowered, error)
        self.library.weft_program_destroy(table)
        return time_ns, program

    def text(self, program):
        text = Text()
        self.library.weft_program_print(program, ctypes.byref(text))
        copy = ctypes.string_at(text.data, text.size).decode()
        self.library.weft_text_finish(ctypes.byref(text))
        return copy

    def measure(self, name, ranks, microbatches, repeats):
        """(median nanoseconds, number of actions, the program as text)"""
        times_ns = []
        for repeat in range(repeats + 1):
            time_ns, program = self.run(name, ranks, microbatches)
            if repeat == 0:  # warm-up, and the answer to compare
                text = self.text(program)
                actions = ctypes.cast(program, ctypes.POINTER(ProgramHead)).contents.action_count
            else:
                times_ns.append(time_ns)
            self.library.weft_program_destroy(program)
        return int(statistics.median(times_ns)), actions, text


# ---- The table ----


def first_difference(ours, theirs):
    for rank, (a, b) in enumerate(zip(ours.splitlines(), theirs.splitlines())):
        for step, (x, y) in enumerate(zip(a.split(","), b.split(","))):
            if x != y:
                return f"rank {rank} step {step}: weft {x}, PyTorch {y}"
        if a != b:
            return f"rank {rank}: rows of different length"
    return "different numbers of ranks"


def compare(weft, schedules, name, options):
    weft_ns, actions, ours = weft.measure(name, options.ranks, options.microbatches, options.repeats)
    build_s, lower_s, program = run_torch(schedules, name, options.ranks, options.microbatches)
    theirs = torch_text(program)
    return {
        "schedule": name,
        "actions": actions,
        "torch_build_s": build_s,
        "torch_lower_s": lower_s,
        "weft_ns": weft_ns,
        "ratio": (build_s + lower_s) * 1e9 / weft_ns,
        "identical": ours == theirs,
        "difference": None if ours == theirs else first_difference(ours, theirs),
    }


def print_row(row):
    torch_s = row["torch_build_s"] + row["torch_lower_s"]
    print(
        f"{row['schedule']:<22} {row['actions']:>8} {row['torch_build_s']:>8.2f} "
        f"{row['torch_lower_s']:>8.2f} {torch_s:>8.2f} {row['weft_ns'] / 1e6:>8.2f} "
        f"{row['ratio']:>8.0f}  {'yes' if row['identical'] else 'NO'}",
        flush=True,
    )
    if row["difference"] is not None:
        print(f"    first difference: {row['difference']}", flush=True)


def print_head(weft, torch, options):
    print(
        f"weft {weft.version()} and PyTorch {torch.__version__} (Python "
        f"{platform.python_version()}): build and lower, p = {options.ranks}, "
        f"v = {STAGES_PER_RANK}, m = {options.microbatches}\n\n"
        f"{'':<22} {'':>8} {'torch':>8} {'torch':>8} {'torch':>8} {'weft':>8} {'torch':>8}\n"
        f"{'schedule':<22} {'actions':>8} {'build s':>8} {'lower s':>8} {'both s':>8} "
        f"{'both ms':>8} {'/ weft':>8}  identical",
        flush=True,
    )


def parse_options():
    parser = argparse.ArgumentParser(description="Weft beside an installed PyTorch.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="schedules; default: all five")
    parser.add_argument("-p", "--ranks", type=int, default=64)
    parser.add_argument("-m", "--microbatches", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=21, help="runs of Weft; the median counts")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"), help="where libweft.so is")
    parser.add_argument("--json", action="store_true", help="write one JSON document")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(NAMES))
    if unknown:
        parser.error(f"unknown schedule {', '.join(unknown)}; there are {', '.join(NAMES)}")
    return options


def main():
    options = parse_options()
    try:
        import torch
        from torch.distributed.pipelining import schedules
    except ImportError as error:
        print(f"bench/against_pytorch.py: no PyTorch with pipelining here ({error}); not compared")
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
    if options.json:
        document = {"schema": "weft-bench-against-pytorch/1", "weft": weft.version(),
                    "torch": torch.__version__, "ranks": options.ranks,
                    "stages_per_rank": STAGES_PER_RANK, "microbatches": options.microbatches,
                    "target": TARGET, "clock_per_cpu": busy, "runs": rows}
        print(json.dumps(document))
    else:
        least = min(row["ratio"] for row in rows)
        print(
            f"\nCPU time, and the clock ran {busy:.2f} times as long. Smallest ratio {least:.0f}; "
            f"the target is {TARGET} at p = 64, m = 256."
        )
    return 0 if all(row["identical"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
