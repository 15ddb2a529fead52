"""Weft's simulations beside the untimed dry run of PyTorch.

Both are given the same program, a table lowered with SEND and RECV alone: all that PyTorch's
_simulate_comms_compute() knows. (Of the schedules with two stages per rank, DualPipeV has overlaps,
which it does not know either.) First the answers are compared: weft_dry_run() must give the same
rows with the same bubbles. Then come the times

    dry run      weft_dry_run(): the same untimed run
    simulation   weft_simulate(): timed, with memory and causes of idle time
    makespan     weft_makespan(): what a search calls

The target is about the makespan, which, like PyTorch's run, finds out how long the program takes and
no more; the ratio to the simulation is shown too. What PyTorch needs per action depends on how many
bubbles there are.

The two take turns, because a shared machine is fast for some seconds and slow for others: in each
round PyTorch runs once, and Weft a number of times before and after it. Of all runs of each the median
counts. Times are CPU times of this process, as in the case lower. A ratio below the target is shown,
and is no failure.
"""

import time

from pytorch_cases import shared

TARGET = 600
NAMES = ("LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble")
HEAD = (f"{'':<22} {'':>8} {'torch':>8} {'torch':>8} {'dry run':>8} {'simulation':>10} "
        f"{'makespan':>8} {'torch /':>10} {'torch /':>9}  same\n"
        f"{'schedule':<22} {'actions':>8} {'s':>8} {'us/act':>8} {'ns/act':>8} {'ns/act':>10} "
        f"{'ns/act':>8} {'simulation':>10} {'makespan':>9}  dry run")


def run_torch(schedules, text):
    """(nanoseconds, the rows with their bubbles)"""
    order = {rank: [schedules._Action.from_str(cell) for cell in row.split(",")]
             for rank, row in enumerate(text.splitlines())}
    ranks = {action.stage_index: rank for rank, row in order.items() for action in row
             if action.is_compute_op}
    begin = time.process_time_ns()
    simulated = schedules._simulate_comms_compute(order, ranks.__getitem__, len(ranks))
    return time.process_time_ns() - begin, simulated


def torch_text(order):
    rows = (",".join("" if a is None else str(a) for a in order[rank]) for rank in sorted(order))
    return "".join(row + "\n" for row in rows)


def time_once(weft, program, costs):
    """Nanoseconds of the dry run, the simulation, the makespan."""
    dry_ns, rows = weft.make("weft_dry_run", program)
    weft.destroy("program", rows)
    full_ns, simulation = weft.make("weft_simulate", program, costs, None)
    weft.destroy("simulation", simulation)
    return dry_ns, full_ns, weft.makespan(program, costs)[0]


def take_turns(weft, schedules, program, text, options):
    """(nanoseconds of PyTorch, of the three of Weft, PyTorch's rows with their bubbles)"""
    torch_samples, samples = [], []
    _, costs = weft.make("weft_costs_create", 1)
    time_once(weft, program, costs)  # warm-up
    for _ in range(options.rounds):
        samples += [time_once(weft, program, costs) for _ in range(options.repeats)]
        torch_ns, simulated = run_torch(schedules, text)
        torch_samples.append(torch_ns)
        samples += [time_once(weft, program, costs) for _ in range(options.repeats)]
    weft.destroy("costs", costs)
    return (shared.median_ns(torch_samples), [shared.median_ns(column) for column in zip(*samples)],
            simulated)


def compare(weft, torch, name, options):
    program = weft.transfers_alone(name, shared.Shape(options.ranks, 2, options.microbatches, 0))
    torch_ns, (dry_ns, full_ns, makespan_ns), simulated = take_turns(
        weft, torch.distributed.pipelining.schedules, program, weft.text(program), options)
    _, rows = weft.make("weft_dry_run", program)
    difference = shared.first_difference(weft.text(rows), torch_text(simulated))
    actions = shared.action_count(program)
    weft.destroy("program", rows, program)
    return {"schedule": name, "actions": actions, "torch_ns": torch_ns, "weft_dry_run_ns": dry_ns,
            "weft_simulation_ns": full_ns, "weft_makespan_ns": makespan_ns,
            "ratio": torch_ns / makespan_ns, "simulation_ratio": torch_ns / full_ns,
            "identical": difference is None, "difference": difference}


def print_row(row):
    def each(key):
        return row[key] / row["actions"]

    print(f"{row['schedule']:<22} {row['actions']:>8} {row['torch_ns'] / 1e9:>8.2f} "
          f"{each('torch_ns') / 1e3:>8.2f} {each('weft_dry_run_ns'):>8.2f} "
          f"{each('weft_simulation_ns'):>10.2f} {each('weft_makespan_ns'):>8.2f} "
          f"{row['simulation_ratio']:>10.0f} {row['ratio']:>9.0f}  "
          f"{'yes' if row['identical'] else 'NO'}", flush=True)


def finish(document):
    runs = document["runs"]
    whole = sum(row["torch_ns"] for row in runs) / sum(row["weft_makespan_ns"] for row in runs)
    document.update(schema="weft-bench-dry-run-against-pytorch/1", target=TARGET, ratio=whole)
    return (f"All together PyTorch takes {whole:.0f} times as long\nas the makespan, and "
            f"{min(row['ratio'] for row in runs):.0f} times where it does best; the target is "
            f"{TARGET}.")


def main(words):
    parser = shared.parser_of(__doc__, ranks=64, microbatches=256, repeats=7)
    parser.add_argument("--rounds", type=int, default=3, help="runs of PyTorch; the median counts")
    options = shared.parse(parser, words, NAMES)
    return shared.run_table(options, "simulation", HEAD, compare, print_row, finish)
