"""The same schedules, built and lowered by both.

PyTorch's time is that of its own schedule class: the constructor builds the table of all ranks and
lowers it (UNSHARD/RESHARD, REDUCE_GRAD, SEND/RECV). No process group is needed for that, only
objects that answer what the constructor asks of a stage. Its validation is timed too, and taken
off: it is not compared.

Weft's time is weft_generate() and weft_lower() of libweft.so, called in this process. Of N runs the
median counts. PyTorch runs once: it takes seconds.

Times are CPU times of this process. Both sides use one thread and never wait, so on an idle machine
that is the time on the clock; on a busy one it is still the work that was done. The last line says
how much longer the clock ran.

Then both programs are written as text and compared. Where several RESHARDs stand together their
order is arbitrary in PyTorch; they are sorted first, as Weft writes them. A ratio below the target is
shown, and is no failure, since it is the machine's business as well.
"""

import time
import unittest.mock

from pytorch_cases import shared

TARGET = 1000
NAMES = ("LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
HEAD = (f"{'':<22} {'':>8} {'torch':>8} {'torch':>8} {'torch':>8} {'weft':>8} {'torch':>8}\n"
        f"{'schedule':<22} {'actions':>8} {'build s':>8} {'lower s':>8} {'both s':>8} "
        f"{'both ms':>8} {'/ weft':>8}  identical")


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

    construct = Stopwatch(Timed)
    with unittest.mock.patch.object(schedules, "_validate_schedule", validate):
        schedule = construct([Stage(ranks, 2 * ranks) for _ in range(2)], microbatches)
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


def compare(weft, torch, name, options):
    shape = shared.Shape(options.ranks, 2, options.microbatches, 0)
    _, program = weft.program(name, shape)  # warm-up, and the answer to compare
    ours, actions, times_ns = weft.text(program), shared.action_count(program), []
    weft.destroy("program", program)
    for _ in range(options.repeats):
        time_ns, program = weft.program(name, shape)
        times_ns.append(time_ns)
        weft.destroy("program", program)
    weft_ns = shared.median_ns(times_ns)
    build_s, lower_s, program = run_torch(
        torch.distributed.pipelining.schedules, name, options.ranks, options.microbatches)
    difference = shared.first_difference(ours, torch_text(program))
    return {"schedule": name, "actions": actions, "torch_build_s": build_s, "torch_lower_s": lower_s,
            "weft_ns": weft_ns, "ratio": (build_s + lower_s) * 1e9 / weft_ns,
            "identical": difference is None, "difference": difference}


def print_row(row):
    torch_s = row["torch_build_s"] + row["torch_lower_s"]
    print(f"{row['schedule']:<22} {row['actions']:>8} {row['torch_build_s']:>8.2f} "
          f"{row['torch_lower_s']:>8.2f} {torch_s:>8.2f} {row['weft_ns'] / 1e6:>8.2f} "
          f"{row['ratio']:>8.0f}  {'yes' if row['identical'] else 'NO'}", flush=True)


def finish(document):
    document.update(schema="weft-bench-against-pytorch/1", target=TARGET)
    least = min(row["ratio"] for row in document["runs"])
    return f"Smallest ratio {least:.0f}; the target is {TARGET} at p = 64, m = 256."


def main(words):
    parser = shared.parser_of(__doc__, ranks=64, microbatches=256, repeats=21)
    options = shared.parse(parser, words, NAMES)
    return shared.run_table(options, "build and lower", HEAD, compare, print_row, finish)
