"""What the cases share: libweft by ctypes, PyTorch's placement of stages, its ranks as processes of
this script, Weft's commands, and options."""

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

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "pytorch.py")
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")


# ---- libweft ----


class Shape(ctypes.Structure):
    _fields_ = [
        ("ranks", ctypes.c_uint32),
        ("stages_per_rank", ctypes.c_uint32),
        ("microbatches", ctypes.c_uint32),
        ("placement", ctypes.c_int),
        ("graph", ctypes.c_void_p),
    ]


class LowerOptions(ctypes.Structure):
    _fields_ = [
        ("merge_bw", ctypes.c_bool),
        ("unshard", ctypes.c_bool),
        ("reduce_grad", ctypes.c_bool),
        ("tie_grad", ctypes.c_bool),
        ("communicate", ctypes.c_bool),
        ("unshard_window", ctypes.c_uint32),
        ("by_time", ctypes.c_bool),
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
    """libweft.so. A call that fails ends the script with the message; what is made is for destroy()."""

    def __init__(self, build):
        path = os.path.join(build, "lib", "libweft.so")
        if not os.path.exists(path):
            sys.exit(f"there is no {path}; 'make' builds it")
        self.library = ctypes.CDLL(path)
        pointer, out = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
        words, number = ctypes.c_char_p, ctypes.POINTER(ctypes.c_double)
        for name, arguments in {
            "weft_generate": (words, ctypes.POINTER(Shape), out),
            "weft_lower": (pointer, ctypes.POINTER(LowerOptions), out),
            "weft_dry_run": (pointer, out),
            "weft_costs_create": (ctypes.c_uint32, out),
            "weft_costs_parse": (words, ctypes.c_size_t, words, out),
            "weft_simulate": (pointer, pointer, pointer, out),
            "weft_makespan": (pointer, pointer, pointer, number),
        }.items():
            getattr(self.library, name).argtypes = (pointer, *arguments, ctypes.POINTER(Error))
        self.library.weft_version.restype = words
        for name, argument in {
            "weft_program_destroy": pointer,
            "weft_costs_destroy": pointer,
            "weft_simulation_destroy": pointer,
            "weft_text_finish": ctypes.POINTER(Text),
        }.items():
            getattr(self.library, name).argtypes = (argument,)
            getattr(self.library, name).restype = None
        self.library.weft_program_print.argtypes = (pointer, ctypes.POINTER(Text))
        self.library.weft_program_print.restype = None

    def version(self):
        return self.library.weft_version().decode()

    def call(self, name, *arguments):
        """CPU time in nanoseconds of the call alone."""
        function, error = getattr(self.library, name), Error()
        error_out = ctypes.byref(error)
        begin = time.process_time_ns()
        status = function(None, *arguments, error_out)
        time_ns = time.process_time_ns() - begin
        if status != 0:
            sys.exit(f"weft: {error.message.decode()}\n  hint: {error.hint.decode()}")
        return time_ns

    def make(self, name, *arguments):
        """(nanoseconds, what the function makes)"""
        out = ctypes.c_void_p()
        return self.call(name, *arguments, ctypes.byref(out)), out

    def destroy(self, kind, *made):
        for one in made:
            getattr(self.library, f"weft_{kind}_destroy")(one)

    def program(self, name, shape, options=None):
        """(nanoseconds of weft_generate() and weft_lower(), the program)"""
        generate_ns, table = self.make("weft_generate", name.encode(), ctypes.byref(shape))
        lower_ns, program = self.make(
            "weft_lower", table, ctypes.byref(options) if options is not None else None)
        self.destroy("program", table)
        return generate_ns + lower_ns, program

    def transfers_alone(self, name, shape):
        """The program with SEND and RECV, and nothing else that lowering adds."""
        return self.program(name, shape, LowerOptions(communicate=True, unshard_window=3))[1]

    def costs(self, document):
        text = json.dumps(document).encode()
        return self.make("weft_costs_parse", text, len(text), b"costs")[1]

    def makespan(self, program, costs):
        """(nanoseconds, the makespan)"""
        makespan = ctypes.c_double()
        return self.call("weft_makespan", program, costs, None, ctypes.byref(makespan)), makespan.value

    def text(self, program):
        text = Text()
        self.library.weft_program_print(program, ctypes.byref(text))
        copy = ctypes.string_at(text.data, text.size).decode()
        self.library.weft_text_finish(ctypes.byref(text))
        return copy


def action_count(program):
    return ctypes.cast(program, ctypes.POINTER(ProgramHead)).contents.action_count


def first_difference(ours, theirs):
    """Of two programs as text, or None."""
    if ours == theirs:
        return None
    for rank, (a, b) in enumerate(zip(ours.splitlines(), theirs.splitlines())):
        for step, (x, y) in enumerate(zip(a.split(","), b.split(","))):
            if x != y:
                return f"rank {rank} step {step}: weft {x}, PyTorch {y}"
        if a != b:
            return f"rank {rank}: rows of different length"
    return "different numbers of ranks"


# ---- PyTorch ----


def find_torch(gloo=False):
    """(torch, why there is none)"""
    warnings.filterwarnings("ignore")  # of torch, about itself
    try:
        import torch
        import torch.distributed.pipelining

        if gloo and not torch.distributed.is_gloo_available():
            return None, f"PyTorch {torch.__version__} has no gloo"
        return torch, None
    except ImportError as error:
        return None, f"no PyTorch with pipelining here ({error})"


def stages_of(name, rank, ranks, per_rank):
    """The stages of a rank under PyTorch's schedule."""
    if name in V_SHAPED:
        return [rank, 2 * ranks - 1 - rank]
    return [rank + k * ranks for k in range(per_rank)]


def make_schedule(pipelining, name, stages, microbatches, **named):
    kind = pipelining.schedules.get_schedule_class(name)
    is_multi = issubclass(kind, pipelining.schedules.PipelineScheduleMulti)
    return kind(stages if is_multi else stages[0], microbatches, **named)


# ---- Ranks: processes of this script ----

GROUP_STARTED = "group started"


def die_with_parent():
    """Linux: a rank whose parent is gone is of no use to anybody."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    except (AttributeError, OSError):
        pass


def begin_rank(rank, options, folder, threads=1):
    """In the process of a rank: its output goes to files."""
    import torch

    die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for stream, name in ((1, "out"), (2, "err")):
        file = os.open(os.path.join(folder, f"{name}.{rank}"), os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(file, stream)
    options.rank = rank
    torch.set_num_threads(threads)
    return torch


def run_group(rank, ranks, options, folder, limit_s, run_schedule):
    """All schedules on a rank of gloo. Rank 0 writes a line when the group has started, and the
    result of run_schedule(torch, dist, pipelining, name, options) of each."""
    torch = begin_rank(rank, options, folder)
    import torch.distributed as dist
    from torch.distributed import pipelining

    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks,
        timeout=datetime.timedelta(seconds=limit_s))
    dist.barrier()
    if rank == 0:
        print(GROUP_STARTED, flush=True)
    for name in options.names:
        run = run_schedule(torch, dist, pipelining, name, options)
        if rank == 0:
            print(json.dumps(run), flush=True)
    dist.barrier()
    dist.destroy_process_group()


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


def run_ranks(target, count, options, limit_s):
    """target(rank, options, folder) in `count` processes.
    (a row per line of JSON of rank 0, why there are no more, whether that is a failure)"""
    # Forked, so that importing torch, seconds of it, is done once and not by every rank.
    processes, fork = [], multiprocessing.get_context("fork")
    os.environ.update(GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        try:
            for rank in range(count):
                processes.append(fork.Process(target=target, args=(rank, options, folder)))
                processes[-1].start()
            failed, why = wait_for(processes, limit_s)
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
        why = f"PyTorch's processes did not start: {why}"
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    return rows, why, started and bool(failed)


def stop_on_signals():
    """So that ranks are ended on the way out."""
    signal.signal(signal.SIGTERM, lambda _signal, _frame: sys.exit(1))


# ---- Weft's commands ----


def run_command(command, limit_s, words, **more):
    """(what it wrote, why there is nothing); `words` is what messages call it."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=limit_s, check=False, **more)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return None, f"no figures from '{words}': {error}"
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        return None, f"'{words}' failed: {said[0]}"
    return done.stdout, None


def run_bench(options, name, limit_s, *more):
    """(the document of `weft bench NAME --json`, why there is none)"""
    command = [os.path.join(options.build, "weft"), "bench", name, "--json", *more]
    text, why_not = run_command(command, limit_s, f"weft bench {name} --json")
    return (json.loads(text) if text is not None else None), why_not


# ---- Options, and tables of programs ----


def parser_of(description, ranks=None, microbatches=None, repeats=None):
    """Numbers: the defaults of those options that the case has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="schedules; default: all")
    if ranks is not None:
        parser.add_argument("-p", "--ranks", type=int, default=ranks)
        parser.add_argument("-m", "--microbatches", type=int, default=microbatches)
        parser.add_argument("--repeats", type=int, default=repeats, help="the median of these counts")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"),
                        help="where the command and libweft.so are")
    parser.add_argument("--json", action="store_true", help="write one JSON document")
    return parser


def parse(parser, words, names):
    options = parser.parse_args(words)
    unknown = sorted(set(options.names) - set(names))
    if unknown:
        parser.error(f"unknown schedule {', '.join(unknown)}; there are {', '.join(names)}")
    options.names = options.names or list(names)
    if vars(options).get("ranks", 2) < 2 or min(
            vars(options).get(name, 1) for name in ("microbatches", "repeats", "rounds")) < 1:
        parser.error("at least 2 ranks, and 1 of all else, are needed")
    return options


def run_table(options, title, head, compare, print_row, finish):
    """The cases that compare programs in this process. compare(weft, torch, name, options) makes a
    row; finish(document) adds what is common to all, and returns the last words."""
    torch, why_not = find_torch()
    if torch is None:
        print(f"{why_not}; not compared")
        return 0
    weft = Weft(options.build)
    if not options.json:
        print(f"weft {weft.version()} and PyTorch {torch.__version__} (Python "
              f"{platform.python_version()}): {title}, p = {options.ranks}, v = 2, "
              f"m = {options.microbatches}\n\n{head}", flush=True)
    rows = []
    clock_begin, cpu_begin = time.perf_counter(), time.process_time()
    for name in options.names:
        rows.append(compare(weft, torch, name, options))
        if not options.json:
            print_row(rows[-1])
            if rows[-1]["difference"] is not None:
                print(f"    first difference: {rows[-1]['difference']}", flush=True)
    busy = (time.perf_counter() - clock_begin) / (time.process_time() - cpu_begin)
    document = {"weft": weft.version(), "torch": torch.__version__, "ranks": options.ranks,
                "stages_per_rank": 2, "microbatches": options.microbatches, "clock_per_cpu": busy,
                "runs": rows}
    words = finish(document)
    print(json.dumps(document) if options.json else
          f"\nCPU time, and the clock ran {busy:.2f} times as long. {words}")
    return 0 if all(row["identical"] for row in rows) else 1


def median_ns(samples):
    return int(statistics.median(samples))
