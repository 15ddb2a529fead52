#!/usr/bin/env python3
"""Weft and the real PyTorch, side by side: what one writes the other must read,
and both must lower, dry-run and draw a table the same way.

    WEFT=build/weft tests/peers/test_pytorch_peer.py [CHECK ...]
    tests/peers/test_pytorch_peer.py --update    writes tests/expected/grid_*.txt

A check is a function named check_*; without arguments all of them run. Exits 0
when all agree, 1 when one does not, 69 when torch is not there.
"""

import contextlib
import csv
import functools
import io
import os
import random
import subprocess
import sys
import tempfile

try:
    from torch.distributed.pipelining import schedules as torch_schedules
except ImportError as error:
    print(f"no PyTorch with pipelining: {error}", file=sys.stderr)
    sys.exit(69)

Action = torch_schedules._Action
TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GOLDEN = os.path.join(TESTS, "golden")

# What tests/inspect/test_grid.c compares with: one table of each kind.
GRIDS = [
    "1F1B_p4_v1_m8.compute",
    "ZBVZeroBubble_p4_v2_m7.compute",  # bubbles
    "Interleaved1F1B_p2_v2_m4.comms",  # long names
    "DualPipeV_p3_v2_m6.compute",  # overlaps
    "InterleavedZeroBubble_p8_v2_m16.sim",  # three digits of steps
]

# name, p, v, m. PyTorch refuses to generate many of them (m < p for 1F1B; m that
# does not fit into rounds for the interleaved ones), but takes the tables.
SHAPES = (
    [("GPipe", p, 1, m) for p in (1, 2, 3, 5) for m in (1, 2, 7)]
    + [("1F1B", p, 1, m) for p in (1, 2, 3, 5) for m in (1, 2, 3, 4, 8)]
    + [("LoopedBFS", p, v, m) for p in (2, 3) for v in (1, 2, 3) for m in (1, 5)]
    + [
        (name, p, v, m)
        for name in ("Interleaved1F1B", "InterleavedZeroBubble")
        for p, v in ((1, 2), (2, 1), (2, 3), (3, 2), (4, 2))
        for m in (1, 3, 5, 7, 11)
    ]
    + [("ZBVZeroBubble", p, 2, m) for p in (1, 2, 3, 4) for m in (1, 2, 5, 9)]
    + [("DualPipeV", p, 2, m) for p in (1, 2, 3, 4) for m in (2 * p, 2 * p + 3)]
    + [("ZBH1", p, 1, m) for p in (1, 2, 4) for m in (1, 3, 8)]
    + [("Eager1F1B", p, 1, m) for p in (1, 2, 4) for m in (1, 3, 8)]
)


class Disagreement(Exception):
    pass


def run_weft(*arguments, text=None):
    """(exit status, stdout)"""
    weft = os.environ.get("WEFT", "weft")
    done = subprocess.run([weft, *arguments], input=text, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout


@functools.cache
def weft(*arguments, text=None):
    status, output = run_weft(*arguments, text=text)
    if status != 0:
        raise Disagreement(f"weft {' '.join(arguments)}: exit status {status}")
    return output


def parse(text):
    """Rows as PyTorch's own loader reads them."""
    rows = csv.reader(io.StringIO(text, newline=""))
    return {rank: [Action.from_str(cell) for cell in row] for rank, row in enumerate(rows)}


def write(order):
    rows = (",".join("" if a is None else str(a) for a in order[rank]) for rank in sorted(order))
    return "".join(row + "\n" for row in rows)


def parts_of(action):
    return action.sub_actions if action.sub_actions is not None else (action,)


def actions_of(order):
    for row in order.values():
        for action in row:
            if action is not None:
                yield from parts_of(action)


def stage_ranks(order):
    ranks = {}
    for rank in sorted(order):
        for action in actions_of({rank: order[rank]}):
            if action.is_compute_op:
                ranks.setdefault(action.stage_index, rank)
    return ranks


def compute_only(order):
    """Without bubbles and without REDUCE_GRAD, which PyTorch's own tables of GPipe
    and 1F1B carry and its own lowering refuses."""
    return {
        rank: [a for a in row if a is not None and a.computation_type.value != "REDUCE_GRAD"]
        for rank, row in order.items()
    }


def sort_reshards(row):
    """PyTorch evicts in the order of a set; ours is ascending."""
    sorted_row, run = [], []
    for action in [*row, None]:
        if action is not None and action.computation_type.value == "RESHARD":
            run.append(action)
            continue
        sorted_row += sorted(run, key=lambda a: a.stage_index)
        run = []
        if action is not None:
            sorted_row.append(action)
    return sorted_row


def add_send_recv(order):
    ranks = stage_ranks(order)
    # _add_send_recv asserts that no row is empty, and eats the rows it is given.
    rows = {rank: list(row) for rank, row in order.items() if row}
    lowered = torch_schedules._add_send_recv(rows, ranks.__getitem__, len(ranks))
    return {rank: lowered.get(rank, []) for rank in order}


def lower(order, microbatches, window):
    rows = {
        rank: torch_schedules._add_reduce_grad(
            torch_schedules._add_unshard_reshard(row, window), microbatches
        )
        for rank, row in compute_only(order).items()
    }
    return {rank: sort_reshards(row) for rank, row in add_send_recv(rows).items()}


def simulate(order):
    """PyTorch's dry run, or None where it gets stuck. It draws the grid then, which
    itself fails (IndexError) on fewer steps than ranks."""
    ranks = stage_ranks(order)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return torch_schedules._simulate_comms_compute(order, ranks.__getitem__, len(ranks))
    except (ValueError, IndexError):
        return None


def expect_equal(what, ours, theirs):
    if ours == theirs:
        return
    for number, (a, b) in enumerate(zip(ours.splitlines(), theirs.splitlines())):
        if a != b:
            raise Disagreement(f"{what}: line {number}\n  weft:    {a}\n  PyTorch: {b}")
    raise Disagreement(f"{what}: {len(ours)} bytes from weft, {len(theirs)} from PyTorch")


def tables():
    """Each shape with its table as text and as PyTorch's actions."""
    for name, p, v, m in SHAPES:
        text = weft("gen", name, "-p", str(p), "-v", str(v), "-m", str(m))
        yield f"{name} p={p} v={v} m={m}", p, v, m, text, parse(text)


def check_tables_are_valid():
    count = 0
    for label, p, v, m, text, order in tables():
        try:
            torch_schedules._validate_schedule(order, p, p * v, m)
        except AssertionError as error:
            raise Disagreement(f"{label}: PyTorch says {error}") from error
        expect_equal(f"{label}: round trip", text, write(order))
        count += 1
    return count


def check_lowering():
    count = 0
    for index, (label, _, _, m, text, order) in enumerate(tables()):
        window = index % 3 + 1
        ours = weft("lower", "--window", str(window), "-", text=text)
        expect_equal(f"{label}: lower", ours, write(lower(order, m, window)))
        count += 1
    return count


def check_merging():
    options = ("--merge-bw", "--no-unshard", "--no-reduce-grad", "--no-comm")
    count = 0
    for label, _, _, _, text, order in tables():
        theirs = {r: torch_schedules._merge_bw(row) for r, row in compute_only(order).items()}
        expect_equal(f"{label}: merge", weft("lower", *options, "-", text=text), write(theirs))
        count += 1
    return count


def has_overlap(order):
    return any(a is not None and a.sub_actions for row in order.values() for a in row)


def check_dry_run():
    count = 0
    for label, _, _, _, text, order in tables():
        if has_overlap(order):
            continue  # PyTorch's dry run does not know overlaps
        theirs = simulate(add_send_recv(compute_only(order)))
        if theirs is None:
            raise Disagreement(f"{label}: PyTorch's dry run gets stuck")
        expect_equal(f"{label}: dry run", weft("sim", "--steps", "-", text=text), write(theirs))
        count += 1
    return count


def scramble(order, generator):
    """Moves one action of one row elsewhere in it."""
    order = {rank: list(row) for rank, row in order.items()}
    row = order[generator.choice([rank for rank in order if len(order[rank]) > 1])]
    row.insert(generator.randrange(len(row)), row.pop(generator.randrange(len(row))))
    return order


def check_dry_run_of_scrambled_programs():
    generator = random.Random(20)
    stuck = count = 0
    for name, p, v, m in (("1F1B", 3, 1, 4), ("Interleaved1F1B", 2, 2, 3), ("ZBVZeroBubble", 2, 2, 3)):
        text = weft("gen", name, "-p", str(p), "-v", str(v), "-m", str(m))
        program = add_send_recv(compute_only(parse(text)))
        for _ in range(80):
            scrambled = scramble(scramble(program, generator), generator)
            status, ours = run_weft("sim", "--steps", "-", text=write(scrambled))
            theirs = simulate(scrambled)
            if (status == 1) != (theirs is None):
                raise Disagreement(f"stuck or not?\n{write(scrambled)}")
            if theirs is not None:
                expect_equal(f"dry run of\n{write(scrambled)}", ours, write(theirs))
            stuck += theirs is None
            count += 1
    if not 20 <= stuck <= count - 20:
        raise Disagreement(f"{stuck} of {count} scrambled programs get stuck: too few of one kind")
    return count


class Stage:
    """As much of a pipeline stage as the runtime looks at before it runs."""

    def __init__(self, num_stages, group_size):
        self.num_stages = num_stages
        self.group_size = group_size
        self.group_rank = 0
        self.has_backward = True


def check_loading():
    """_load_csv of the real runtime takes tables, as --for pytorch writes them, and programs."""
    count = 0
    for name, p, v, m in SHAPES:
        shape = (name, "-p", str(p), "-v", str(v), "-m", str(m))
        program = weft("lower", "-", text=weft("gen", *shape))
        contents = (
            ("compute_only", weft("gen", *shape, "--for", "pytorch")),
            ("compute_comms", program),
        )
        with tempfile.TemporaryDirectory() as folder:
            for form, content in contents:
                path = os.path.join(folder, f"{form}.csv")
                with open(path, "w", encoding="ascii") as file:
                    file.write(content)
                runtime = torch_schedules._PipelineScheduleRuntime([Stage(p * v, p)], m)
                runtime._load_csv(path, format=form)
                loaded = {
                    rank: sort_reshards(row)
                    for rank, row in runtime.pipeline_order_with_comms.items()
                }
                expect_equal(f"{' '.join(shape)}: loaded as {form}", program, write(loaded))
                count += 1
    return count


def golden_text(name):
    with open(os.path.join(GOLDEN, name), encoding="ascii") as file:
        return file.read()


def check_grids():
    count = 0
    for name in sorted(os.listdir(GOLDEN)):
        if not name.endswith((".sim.csv", ".comms.csv")):
            continue
        order = parse(golden_text(name))
        if max(len(row) for row in order.values()) < len(order):
            continue  # PyTorch fails with fewer steps than ranks
        theirs = torch_schedules._format_pipeline_order(order)
        expect_equal(f"{name}: grid", weft("show", "--grid", os.path.join(GOLDEN, name)), theirs)
        count += 1
    return count


def update_grids():
    folder = os.path.join(TESTS, "expected")
    os.makedirs(folder, exist_ok=True)
    for name in GRIDS:
        path = os.path.join(folder, f"grid_{name}.txt")
        with open(path, "w", encoding="ascii") as file:
            file.write(torch_schedules._format_pipeline_order(parse(golden_text(f"{name}.csv"))))


def main():
    checks = {name: f for name, f in globals().items() if name.startswith("check_")}
    if sys.argv[1:] == ["--update"]:
        update_grids()
        return 0
    failed = False
    for name in sys.argv[1:] or checks:
        try:
            print(f"{name}: {checks[name]()} agree", flush=True)
        except Disagreement as disagreement:
            print(f"{name}: {disagreement}", flush=True)
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
