"""Weft's runtime beside PyTorch's pipelining, over gloo.

PyTorch runs for real: a process per rank, torch.distributed.pipelining on the loopback interface,
PipelineStage and Schedule*.step(). First its answers are checked: losses and gradients under the
schedule must be those of the same model in one process. Then two things are measured.

    actions   stages that compute next to nothing, Linear(4, 4), so that what is left is the runtime.
              An action is a compute, a SEND or a RECV of the program that libweft lowers; both
              runtimes do these.
                wall   time of a step / actions of the longest row: what a rank needs per action, as
                       long as there is a core for each rank
                cpu    CPU time of all ranks / all actions: the work that was done, however many
                       cores there are
    sleep     stages that sleep, F 2 ms and B 4 ms (I 2 ms, W 2 ms): the time of a step beside the
              makespan that weft_makespan() gives. PyTorch leaves the I of stage 0 to its W, and is
              simulated like that.

Steps are warm, and the median of N counts; of sleeping ones the fastest is shown too, since a
machine with other work only makes them longer.

Weft's side is what `weft bench run --json` prints, or FILE, which holds that. All of it takes two
minutes at most; no process outlives the script.
"""

import functools
import json
import os
import platform
import statistics
import time

from pytorch_cases import shared

STAGES_PER_RANK = {"GPipe": 1, "1F1B": 1, "Interleaved1F1B": 2, "LoopedBFS": 2, "ZBVZeroBubble": 2}
SPLITS_BACKWARD = ("ZBVZeroBubble",)
WIDTH, ROWS = 4, 2  # of a microbatch
F_MS, I_MS, W_MS = 2, 2, 2
TORCH_LIMIT_S, WEFT_LIMIT_S = 75, 40  # wall time of each side, at most


# ---- PyTorch: one rank, in a process of its own ----


def make_sleepers(torch):
    """Identities that take their time: on the way of x, and on that of the weights."""

    class SleepInput(torch.autograd.Function):
        @staticmethod
        def forward(context, x, anchor):
            context.has_anchor = anchor is not None
            time.sleep(F_MS / 1e3)
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            time.sleep(I_MS / 1e3)
            return gradient, torch.zeros(()) if context.has_anchor else None

    class SleepWeight(torch.autograd.Function):
        @staticmethod
        def forward(context, weight):
            return weight.clone()

        @staticmethod
        def backward(context, gradient):
            time.sleep(W_MS / 1e3)
            return gradient

    return SleepInput, SleepWeight


def make_sleeping_linear(torch):
    sleep_input, sleep_weight = make_sleepers(torch)

    class SleepingLinear(torch.nn.Module):
        def __init__(self, stage):
            super().__init__()
            self.linear = make_linear(torch, stage)
            # The input of stage 0 needs no gradient; this makes its backward take time all the same.
            self.anchor = torch.nn.Parameter(torch.zeros(())) if stage == 0 else None

        def forward(self, x):
            weight = sleep_weight.apply(self.linear.weight)
            return torch.nn.functional.linear(sleep_input.apply(x, self.anchor), weight)

    return SleepingLinear


def make_linear(torch, stage):
    torch.manual_seed(1000 + stage)
    return torch.nn.Linear(WIDTH, WIDTH)


class Rank:
    """One rank's stages and schedule, and what its step is given."""

    def __init__(self, torch, pipelining, name, options, make_module):
        self.torch, self.options = torch, options
        self.stage_count = options.ranks * STAGES_PER_RANK[name]
        own = shared.stages_of(name, options.rank, options.ranks, STAGES_PER_RANK[name])
        self.modules = {stage: make_module(stage) for stage in own}
        stages = [
            pipelining.PipelineStage(module, stage, self.stage_count, torch.device("cpu"))
            for stage, module in self.modules.items()
        ]
        self.schedule = shared.make_schedule(pipelining, name, stages, options.microbatches,
                                             loss_fn=torch.nn.functional.mse_loss)
        torch.manual_seed(7)
        self.inputs = torch.randn(options.microbatches * ROWS, WIDTH)
        self.targets = torch.randn(options.microbatches * ROWS, WIDTH)

    def step(self):
        """Losses by microbatch, on the rank with the last stage."""
        losses = []
        last = {"target": self.targets, "losses": losses}
        self.schedule.step(*([self.inputs] if 0 in self.modules else []),
                           **(last if self.stage_count - 1 in self.modules else {}))
        return losses

    def check(self):
        """What differs from the model in one process, or None."""
        torch = self.torch
        losses = self.step()
        layers = [make_linear(torch, stage) for stage in range(self.stage_count)]
        model, count = torch.nn.Sequential(*layers), self.options.microbatches
        expected = [
            torch.nn.functional.mse_loss(model(x), t)
            for x, t in zip(self.inputs.tensor_split(count), self.targets.tensor_split(count))
        ]
        (sum(expected) / count).backward()
        pairs = [(f"loss {mb}", a, b) for mb, (a, b) in enumerate(zip(losses, expected))]
        for stage, module in self.modules.items():
            pairs += [(f"stage {stage} {kind}", getattr(module, kind).grad,
                       getattr(layers[stage], kind).grad) for kind in ("weight", "bias")]
        for what, found, wanted in pairs:
            if found is None:
                return f"{what}: there is none"
            if not torch.allclose(found, wanted, rtol=1e-4, atol=1e-7):
                return f"{what}: off by {(found - wanted).abs().max().item():.3g}"
        if self.stage_count - 1 in self.modules and len(losses) != count:
            return f"{len(losses)} losses, and {count} microbatches"
        return None

    def measure(self, dist, warm, repeats):
        """[(begin, end, CPU) in nanoseconds] of each step."""
        samples = []
        for repeat in range(warm + repeats):
            dist.barrier()
            cpu, begin = time.process_time_ns(), time.monotonic_ns()
            self.step()
            end = time.monotonic_ns()
            if repeat >= warm:
                samples.append((begin, end, time.process_time_ns() - cpu))
        return samples


def gather(dist, options, value):
    values = [None] * options.ranks
    dist.all_gather_object(values, value)
    return values


def steps_of(samples):
    """(wall ms, CPU ms of all ranks) of each step, from the samples of all ranks."""
    return [
        ((max(end for _, end, _ in step) - min(begin for begin, _, _ in step)) / 1e6,
         sum(cpu for _, _, cpu in step) / 1e6)
        for step in zip(*samples)
    ]


def run_schedule(torch, dist, pipelining, name, options):
    tiny = Rank(torch, pipelining, name, options, functools.partial(make_linear, torch))
    differences = gather(dist, options, tiny.check())
    steps = steps_of(gather(dist, options, tiny.measure(dist, 2, options.repeats)))
    asleep = Rank(torch, pipelining, name, options, make_sleeping_linear(torch))
    slept = steps_of(gather(dist, options, asleep.measure(dist, 1, options.repeats)))
    return {
        "schedule": name,
        "difference": next((f"rank {rank}, {what}" for rank, what in enumerate(differences)
                            if what is not None), None),
        "wall_ms": statistics.median(wall for wall, _ in steps),
        "cpu_ms": statistics.median(cpu for _, cpu in steps),
        "sleep_ms": statistics.median(wall for wall, _ in slept),
        "sleep_fastest_ms": min(wall for wall, _ in slept),
    }


def run_rank(rank, options, folder):
    shared.run_group(rank, options.ranks, options, folder, TORCH_LIMIT_S, run_schedule)


# ---- Weft ----


def sleeping_costs(weft, name, options):
    """Those of PyTorch's stages."""
    stage = {"f": F_MS, "i": I_MS, "w": W_MS, "b": I_MS + W_MS}
    stages = [dict(stage) for _ in range(options.ranks * STAGES_PER_RANK[name])]
    if name in SPLITS_BACKWARD:
        stages[0].update(i=0, w=I_MS + W_MS)
    return weft.costs({"schema": "weft-costs/1", "unit": "ms", "stages": stages})


def facts(weft, name, options):
    """(all actions, actions of the longest row, makespan in ms of the sleeping stages)"""
    shape = shared.Shape(options.ranks, STAGES_PER_RANK[name], options.microbatches, 0)
    program, costs = weft.transfers_alone(name, shape), sleeping_costs(weft, name, options)
    _, makespan_ms = weft.makespan(program, costs)
    rows = [len(row.split(",")) for row in weft.text(program).splitlines()]
    weft.destroy("costs", costs)
    weft.destroy("program", program)
    return sum(rows), max(rows), makespan_ms


def read_weft(options):
    """(what `weft bench run --json` printed, why there is nothing)"""
    if options.weft_json is None:
        return shared.run_bench(options, "run", WEFT_LIMIT_S)
    try:
        with open(options.weft_json, encoding="utf-8") as file:
            return json.load(file), None
    except (OSError, ValueError) as error:
        return None, f"no figures from {options.weft_json}: {error}"


def find_run(document, part, name, options):
    """The entry of a schedule, for these ranks and microbatches where it says how many."""
    for run in (document or {}).get(part, []):
        if (run.get("schedule") == name and run.get("ranks", options.ranks) == options.ranks
                and run.get("microbatches", options.microbatches) == options.microbatches):
            return run
    return {}


# ---- The table ----


def combine(weft, document, name, torch_run, options):
    actions, longest, makespan_ms = facts(weft, name, options)
    row = {"schedule": name, "actions": actions, "actions_longest_row": longest,
           "simulated_ms": makespan_ms,
           "weft_ns": find_run(document, "executor", name, options).get("ns_per_action"),
           "weft_sleep_ratio": find_run(document, "sleep", name, options).get("ratio")}
    if torch_run is not None:
        row.update(torch_run)
        row["wall_us"] = torch_run["wall_ms"] * 1e3 / longest
        row["cpu_us"] = torch_run["cpu_ms"] * 1e3 / actions
        row["sleep_ratio"] = torch_run["sleep_ms"] / makespan_ms
        row["sleep_ratio_fastest"] = torch_run["sleep_fastest_ms"] / makespan_ms
        if row["weft_ns"]:
            row["ratio"] = row["cpu_us"] * 1e3 / row["weft_ns"]
    return row


def cell(row, key, width, digits):
    value = row.get(key)
    return f"{'-':>{width}}" if value is None else f"{value:>{width}.{digits}f}"


def print_actions(rows):
    print(
        f"\n{'':<16} {'':>8} {'torch':>8} {'torch':>10} {'torch':>10} {'weft':>10} {'torch':>10}\n"
        f"{'actions':<16} {'':>8} {'step ms':>8} {'wall':>10} {'cpu':>10} {'':>10} {'cpu':>10}\n"
        f"{'schedule':<16} {'actions':>8} {'(wall)':>8} {'us/action':>10} {'us/action':>10} "
        f"{'ns/action':>10} {'/ weft':>10}  same"
    )
    for row in rows:
        same = "-" if "wall_ms" not in row else "yes" if row["difference"] is None else "NO"
        print(f"{row['schedule']:<16} {row['actions']:>8} {cell(row, 'wall_ms', 8, 1)} "
              f"{cell(row, 'wall_us', 10, 1)} {cell(row, 'cpu_us', 10, 1)} "
              f"{cell(row, 'weft_ns', 10, 1)} {cell(row, 'ratio', 10, 0)}  {same}")
        if row.get("difference") is not None:
            print(f"    first difference: {row['difference']}")


def print_sleep(rows):
    print(
        f"\n{'sleep':<16} {'simulated':>10} {'torch':>10} {'torch':>10} {'torch':>10} {'weft':>10}\n"
        f"{'schedule':<16} {'ms':>10} {'ms':>10} {'/ sim':>10} {'fastest':>10} {'/ sim':>10}"
    )
    for row in rows:
        print(f"{row['schedule']:<16} {cell(row, 'simulated_ms', 10, 1)} "
              f"{cell(row, 'sleep_ms', 10, 1)} {cell(row, 'sleep_ratio', 10, 3)} "
              f"{cell(row, 'sleep_ratio_fastest', 10, 3)} {cell(row, 'weft_sleep_ratio', 10, 3)}")


def print_report(document, options):
    print(f"weft {document['weft']} and PyTorch {document['torch'] or '(none)'} over gloo (Python "
          f"{platform.python_version()}): run, p = {options.ranks}, m = {options.microbatches}, "
          f"{os.cpu_count()} cores")
    for what in document["left_out"]:
        print(f"left out: {what}")
    print_actions(document["runs"])
    print_sleep(document["runs"])
    if document["handover_ns"] is not None:
        print(f"\nweft hands a message over to another thread in {document['handover_ns']} ns.")
    if document["torch"] is not None and options.ranks > (os.cpu_count() or 1):
        print("\nThere are more ranks than cores: torch's wall time per action includes waiting for "
              "a core.\nIts CPU time does not, and is what is compared.")


def main(words):
    parser = shared.parser_of(__doc__, ranks=8, microbatches=32, repeats=7)
    parser.add_argument("--weft-json", metavar="FILE", help="Weft's figures, instead of a run")
    options = shared.parse(parser, words, STAGES_PER_RANK)
    shared.stop_on_signals()
    weft = shared.Weft(options.build)
    document, why_not = read_weft(options)
    left_out, torch_runs, broken = ([why_not] if why_not else []), [], False
    torch, why_not = shared.find_torch(gloo=True)
    if torch is not None:
        torch_runs, why_not, broken = shared.run_ranks(
            run_rank, options.ranks, options, TORCH_LIMIT_S)
    left_out += [why_not] if why_not is not None else []
    by_name = {run["schedule"]: run for run in torch_runs}
    rows = [combine(weft, document, name, by_name.get(name), options) for name in options.names]
    result = {"schema": "weft-bench-run-against-pytorch/1", "weft": weft.version(),
              "torch": torch.__version__ if torch is not None else None, "ranks": options.ranks,
              "microbatches": options.microbatches, "cores": os.cpu_count(), "left_out": left_out,
              "handover_ns": (document or {}).get("handover_ns"), "runs": rows}
    if options.json:
        print(json.dumps(result))
    else:
        print_report(result, options)
    return 1 if broken or any(row.get("difference") for row in rows) else 0
