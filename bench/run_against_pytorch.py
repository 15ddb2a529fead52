#!/usr/bin/env python3
"""Weft's runtime beside the pipeline runtime of an installed PyTorch, over gloo.

    bench/run_against_pytorch.py [-p RANKS] [-m MICROBATCHES] [--repeats N] [--json]
                                 [--build DIR] [--weft-json FILE] [NAME ...]

PyTorch runs for real: a process per rank, torch.distributed.pipelining on the
loopback interface, PipelineStage and Schedule*.step(). First its answers are
checked: losses and gradients under the schedule must be those of the same model
in one process. Then two things are measured.

    actions   stages that compute next to nothing, Linear(4, 4), so that what is
              left is the runtime. An action is a compute, a SEND or a RECV of the
              program that libweft lowers; both runtimes do these.
                wall   time of a step / actions of the longest row: what a rank
                       needs per action, as long as there is a core for each rank
                cpu    CPU time of all ranks / all actions: the work that was
                       done, however many cores there are
    sleep     stages that sleep, F 2 ms and B 4 ms (I 2 ms, W 2 ms): the time of a
              step beside the makespan that weft_makespan() gives. PyTorch leaves
              the I of stage 0 to its W, and is simulated like that.

Steps are warm, and the median of N counts; of sleeping ones the fastest is shown
too, since a machine with other work only makes them longer.

Weft's side is what `weft bench run --json` prints, or FILE, which holds that.

Optional: without torch, without the command, when no process group starts or time
is up (two minutes in all), it says so, leaves that out, and exits 0. Exit status 1
when an answer differs or a rank fails. No process outlives the script.
"""

import argparse
import ctypes
import datetime
import json
import multiprocessing
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

import against_pytorch
import dry_run_against_pytorch
from against_pytorch import Error, Shape
from dry_run_against_pytorch import LowerOptions

STAGES_PER_RANK = {"GPipe": 1, "1F1B": 1, "Interleaved1F1B": 2, "LoopedBFS": 2, "ZBVZeroBubble": 2}
SPLITS_BACKWARD = ("ZBVZeroBubble",)
WIDTH, ROWS = 4, 2  # of a microbatch
F_MS, I_MS, W_MS = 2, 2, 2
TORCH_LIMIT_S, WEFT_LIMIT_S = 75, 40  # wall time of each side, at most
GROUP_STARTED = "group started"


# ---- PyTorch: one rank, in a process of its own ----


def die_with_parent():
    """Linux: a rank whose parent is gone is of no use to anybody."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    except (AttributeError, OSError):
        pass


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
        ranks, rank = options.ranks, options.rank
        per_rank = STAGES_PER_RANK[name]
        self.stage_count = ranks * per_rank
        own = [rank, 2 * ranks - 1 - rank] if name in SPLITS_BACKWARD else range(
            rank, self.stage_count, ranks)
        self.modules = {stage: make_module(stage) for stage in own}
        stages = [
            pipelining.PipelineStage(module, stage, self.stage_count, torch.device("cpu"))
            for stage, module in self.modules.items()
        ]
        self.schedule = getattr(pipelining, f"Schedule{name}")(
            stages if per_rank > 1 else stages[0], options.microbatches,
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
    tiny = Rank(torch, pipelining, name, options, lambda stage: make_linear(torch, stage))
    differences = gather(dist, options, tiny.check())
    steps = steps_of(gather(dist, options, tiny.measure(dist, 2, options.repeats)))
    sleeper = make_sleeping_linear(torch)
    asleep = Rank(torch, pipelining, name, options, sleeper)
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
    """Rank 0 writes a line when the group has started, and one per schedule."""
    import torch
    import torch.distributed as dist
    from torch.distributed import pipelining

    die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for stream, name in ((1, "out"), (2, "err")):
        file = os.open(os.path.join(folder, f"{name}.{rank}"), os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(file, stream)
    options.rank = rank
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=options.ranks,
        timeout=datetime.timedelta(seconds=TORCH_LIMIT_S))
    dist.barrier()
    if rank == 0:
        print(GROUP_STARTED, flush=True)
    for name in options.names:
        run = run_schedule(torch, dist, pipelining, name, options)
        if rank == 0:
            print(json.dumps(run), flush=True)
    dist.barrier()
    dist.destroy_process_group()


# ---- PyTorch: all ranks ----


def wait_for(processes, limit_s):
    """(the ranks that failed, why they did not end well, or None)"""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        codes = [process.exitcode for process in processes]
        if any(codes):
            time.sleep(0.5)  # those that noticed may have been quicker than the one that failed
            codes = [process.exitcode for process in processes]
            failed = [rank for rank, code in enumerate(codes) if code]
            return failed, f"ranks {failed} ended early"
        if all(code == 0 for code in codes):
            return [], None
        time.sleep(0.05)
    return [], f"not done after {limit_s} s"


def last_words(folder, ranks):
    """Of the first rank that says more than that another one is gone."""
    words = ""
    for rank in ranks:
        with open(os.path.join(folder, f"err.{rank}"), encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
        if lines and (words == "" or "by peer" in words):
            words = f"; rank {rank}: {lines[-1][:300]}"
    return words


def run_torch(options):
    """(a row per schedule, why there are no more, whether that is a failure)"""
    # Forked, so that importing torch, seconds of it, is done once and not by every rank.
    processes, fork = [], multiprocessing.get_context("fork")
    os.environ.update(GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        try:
            for rank in range(options.ranks):
                processes.append(fork.Process(target=run_rank, args=(rank, options, folder)))
                processes[-1].start()
            failed, why = wait_for(processes, TORCH_LIMIT_S)
            if failed:
                why += last_words(folder, failed)
            with open(os.path.join(folder, "out.0"), encoding="utf-8") as out:
                lines = out.read().splitlines()
        finally:
            for process in processes:
                process.kill()
                process.join()
    started = GROUP_STARTED in lines
    if why is not None and not started:
        why = f"PyTorch's process group did not start: {why}"
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    return rows, why, started and bool(failed)


# ---- Weft ----


class Weft(dry_run_against_pytorch.Weft):
    def __init__(self, build):
        super().__init__(build)
        self.library.weft_costs_parse.argtypes = (
            ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p,
            ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(Error))

    def program(self, name, options):
        """With SEND and RECV alone, to be destroyed."""
        shape = Shape(options.ranks, STAGES_PER_RANK[name], options.microbatches, 0)
        lower, error = LowerOptions(communicate=True, unshard_window=3), Error()
        table, program = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.library.weft_generate(None, name.encode(), ctypes.byref(shape),
                                              ctypes.byref(table), ctypes.byref(error)), error)
        self.check(self.library.weft_lower(None, table, ctypes.byref(lower), ctypes.byref(program),
                                           ctypes.byref(error)), error)
        self.library.weft_program_destroy(table)
        return program

    def sleeping_costs(self, name, options):
        """Those of PyTorch's stages; to be destroyed."""
        stage = {"f": F_MS, "i": I_MS, "w": W_MS, "b": I_MS + W_MS}
        stages = [dict(stage) for _ in range(options.ranks * STAGES_PER_RANK[name])]
        if name in SPLITS_BACKWARD:
            stages[0].update(i=0, w=I_MS + W_MS)
        text = json.dumps({"schema": "weft-costs/1", "unit": "ms", "stages": stages}).encode()
        costs, error = ctypes.c_void_p(), Error()
        self.check(self.library.weft_costs_parse(None, text, len(text), b"costs",
                                                 ctypes.byref(costs), ctypes.byref(error)), error)
        return costs

    def facts(self, name, options):
        """(all actions, actions of the longest row, makespan in ms of the sleeping stages)"""
        program, costs = self.program(name, options), self.sleeping_costs(name, options)
        makespan, error = ctypes.c_double(), Error()
        self.check(self.library.weft_makespan(None, program, costs, None, ctypes.byref(makespan),
                                              ctypes.byref(error)), error)
        rows = [len(row.split(",")) for row in self.text(program).splitlines()]
        self.library.weft_costs_destroy(costs)
        self.library.weft_program_destroy(program)
        return sum(rows), max(rows), makespan.value


def read_weft(options):
    """(what `weft bench run --json` printed, why there is nothing)"""
    try:
        if options.weft_json is not None:
            with open(options.weft_json, encoding="utf-8") as file:
                return json.load(file), None
        command = [os.path.join(options.build, "weft"), "bench", "run", "--json"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=WEFT_LIMIT_S, check=False)
        if done.returncode != 0:
            words = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
            return None, f"'weft bench run --json' failed: {words[0]}"
        return json.loads(done.stdout), None
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return None, f"no figures from 'weft bench run --json': {error}"


def find_run(document, part, name, options):
    """The entry of a schedule, for these ranks and microbatches where it says how many."""
    for run in (document or {}).get(part, []):
        if (run.get("schedule") == name and run.get("ranks", options.ranks) == options.ranks
                and run.get("microbatches", options.microbatches) == options.microbatches):
            return run
    return {}


# ---- The table ----


def combine(weft, document, name, torch_run, options):
    actions, longest, makespan_ms = weft.facts(name, options)
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


def cell(row, key, width, digits, scale=1.0):
    value = row.get(key)
    return f"{'-':>{width}}" if value is None else f"{value * scale:>{width}.{digits}f}"


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


def print_report(weft, document, torch_version, rows, left_out, options):
    print(f"weft {weft.version()} and PyTorch {torch_version or '(none)'} over gloo (Python "
          f"{platform.python_version()}): run, p = {options.ranks}, m = {options.microbatches}, "
          f"{os.cpu_count()} cores")
    for what in left_out:
        print(f"left out: {what}")
    print_actions(rows)
    print_sleep(rows)
    handover_ns = (document or {}).get("handover_ns")
    if handover_ns is not None:
        print(f"\nweft hands a message over to another thread in {handover_ns} ns.")
    if torch_version is not None and options.ranks > (os.cpu_count() or 1):
        print("\nThere are more ranks than cores: torch's wall time per action includes waiting for "
              "a core.\nIts CPU time does not, and is what is compared.")


def parse_options():
    parser = argparse.ArgumentParser(description="Weft's runtime beside PyTorch's, over gloo.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="schedules; default: all five")
    parser.add_argument("-p", "--ranks", type=int, default=8)
    parser.add_argument("-m", "--microbatches", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=7, help="steps; the median counts")
    parser.add_argument("--build", default=os.path.join(against_pytorch.ROOT, "build"),
                        help="where the command and libweft.so are")
    parser.add_argument("--weft-json", metavar="FILE", help="Weft's figures, instead of a run")
    parser.add_argument("--json", action="store_true", help="write one JSON document")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(STAGES_PER_RANK))
    if unknown:
        parser.error(f"unknown schedule {', '.join(unknown)}; there are {', '.join(STAGES_PER_RANK)}")
    if options.ranks < 2 or options.microbatches < 1 or options.repeats < 1:
        parser.error("at least 2 ranks, 1 microbatch and 1 repeat are needed")
    options.names = options.names or list(STAGES_PER_RANK)
    return options


def find_torch():
    """(version, why there is none)"""
    warnings.filterwarnings("ignore")  # of torch, about itself
    try:
        import torch
        import torch.distributed.pipelining

        if not torch.distributed.is_gloo_available():
            return None, f"PyTorch {torch.__version__} has no gloo"
        return torch.__version__, None
    except ImportError as error:
        return None, f"no PyTorch with pipelining here ({error})"


def stop(_signal, _frame):
    """So that ranks are ended on the way out."""
    sys.exit(1)


def main():
    options = parse_options()
    signal.signal(signal.SIGTERM, stop)
    weft = Weft(options.build)
    document, why_not = read_weft(options)
    left_out, torch_runs, broken = ([why_not] if why_not else []), [], False
    torch_version, why_not = find_torch()
    if torch_version is not None:
        torch_runs, why_not, broken = run_torch(options)
    if why_not is not None:
        left_out.append(why_not)
    by_name = {run["schedule"]: run for run in torch_runs}
    rows = [combine(weft, document, name, by_name.get(name), options) for name in options.names]
    if options.json:
        print(json.dumps({
            "schema": "weft-bench-run-against-pytorch/1", "weft": weft.version(),
            "torch": torch_version, "ranks": options.ranks, "microbatches": options.microbatches,
            "cores": os.cpu_count(), "left_out": left_out,
            "handover_ns": (document or {}).get("handover_ns"), "runs": rows}))
    else:
        print_report(weft, document, torch_version, rows, left_out, options)
    return 1 if broken or any(row.get("difference") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
