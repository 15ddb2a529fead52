"""Wrong types, sizes and values, dead objects and threads: exceptions, never a crash."""

import ctypes
import gc
import inspect
import math
import random
import threading
import time

import pytest
import weft_pipeline as weft

TABLE = weft.Table.named("Interleaved1F1B", ranks=2, stages_per_rank=2, microbatches=4)
PROGRAM = TABLE.lower()
COSTS = weft.Costs(hop=0.5)
SIM = TABLE.simulate(COSTS)
GRAPH = weft.Graph("0>1,1>2,2>3,0>3")
OPS = ["F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B"]


class Odd:
    """Answers as it should not."""

    def __index__(self):
        return 2**70

    def __float__(self):
        return math.nan

    def __iter__(self):
        return iter([self, None])

    def __fspath__(self):
        return 3


class Angry:
    """Raises whatever is asked."""

    def __getattr__(self, name):
        raise RuntimeError(name)

    def __index__(self):
        raise RuntimeError

    def __len__(self):
        raise RuntimeError


VALUES = [
    None,
    True,
    0,
    1,
    -1,
    3,
    2**63,
    2**64,
    10**30,
    0.0,
    0.5,
    -0.5,
    1e300,
    math.inf,
    -math.inf,
    math.nan,
    "",
    "1F1B",
    "edge",
    "slots:1",
    "slots:99999999999999999999",
    "slots:²",
    "a\0b",
    "\ud800",
    b"",
    b"0F0,0B0\n",
    bytearray(b"\xff"),
    [],
    [1],
    [1, 2],
    ["0F0", None],
    [["0F0", "0B0"]],
    [[None]],
    [[1]],
    (),
    {},
    {"schema": "weft-costs/1", "stages": [{}]},
    set(),
    object(),
    int,
    len,
    1j,
    range(3),
    Odd(),
    Angry(),
    TABLE,
    PROGRAM,
    COSTS,
    SIM,
    GRAPH,
    "0>1",
    ["0>1", (1, 2)],
    threading.Event(),
]

EXPECTED = (weft.Error, TypeError, ValueError, IndexError, RuntimeError, AttributeError, OSError)


def functions():
    """Everything public that can be called, with what it is called on."""
    yield weft.Table.named
    yield weft.Costs
    yield weft.Costs.from_dict
    yield weft.compare
    for kind in (weft.Table, weft.Program):
        yield from (kind, kind.parse, kind.from_rows, kind.load, kind._adopt.__func__)
    yield from (weft.Costs.parse, weft.Costs.load, weft.Simulation)
    yield from (weft.Graph, weft.Graph.parse, weft.Graph.load, weft.Graph.from_dict)
    for thing in (TABLE, PROGRAM, SIM, COSTS, GRAPH, TABLE.verify()):
        for name, member in inspect.getmembers(thing):
            if callable(member) and not name.startswith("_") and name != "save":
                yield member
    yield from (TABLE.__getitem__, TABLE.__eq__, COSTS.__eq__, PROGRAM.__getitem__)


def fuzzed(function, chance):
    """Call with odd arguments; most are right, so that the odd ones get far."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    usual = {"name": "1F1B", "ranks": 2, "microbatches": 2, "text": "0F0,0B0\n", "other": TABLE}
    positional, named = [], {}
    for parameter in parameters:
        odd = chance.random() < 0.4
        if not odd and parameter.default is not parameter.empty and chance.random() < 0.7:
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                break
            continue
        value = chance.choice(VALUES) if odd else usual.get(parameter.name, 1)
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = value
        elif parameter.kind is parameter.VAR_POSITIONAL:
            positional += [chance.choice(VALUES) for _ in range(chance.randrange(3))]
        else:
            positional.append(value)
    result = function(*positional, **named)
    if isinstance(result, weft.Program) and result.ranks * result.stages < 10**4:
        str(result)
        result.verify()


def test_wrong_arguments():
    chance = random.Random(20)
    called = [f for f in functions() if getattr(f, "__name__", "") != "_adopt"]
    failures = 0
    for _ in range(60):
        for function in called:
            try:
                fuzzed(function, chance)
            except EXPECTED:
                failures += 1
    assert failures > 100


def test_large_shapes_are_refused():
    for value in (2**16 + 1, 2**31, 2**32, 2**64):
        for name in ("ranks", "microbatches", "stages_per_rank"):
            shape = {"ranks": 2, "microbatches": 2, "stages_per_rank": 1, name: value}
            if name == "microbatches" and value < 2**20:
                continue
            with pytest.raises((weft.UsageError, weft.LimitError)):
                weft.Table.named("Interleaved1F1B", **shape)


def random_text(chance):
    rows = []
    for _ in range(chance.randrange(1, 5)):
        cells = []
        for _ in range(chance.randrange(12)):
            action = f"{chance.randrange(4)}{chance.choice(OPS)}{chance.randrange(3)}"
            other = f"{chance.randrange(4)}{chance.choice(['UNSHARD', 'RESHARD', 'REDUCE_GRAD'])}"
            overlap = f"({chance.randrange(4)}F0;{chance.randrange(4)}B1)OVERLAP_F_B"
            cells.append(chance.choices([action, "", other, overlap], [8, 1, 1, 1])[0])
        rows.append(",".join(cells))
    return "\n".join(rows) + "\n"


def altered(chance):
    """A right program with a few cells exchanged or lost."""
    rows = [list(row) for row in chance.choice([TABLE, PROGRAM])]
    for _ in range(chance.randrange(1, 4)):
        row = chance.choice(rows)
        if len(row) > 2:
            a, b = chance.randrange(len(row)), chance.randrange(len(row))
            row[a], row[b] = row[b], row[a]
            if chance.random() < 0.3:
                del row[a]
    return str(weft.Program.from_rows(rows))


def test_wrong_programs():
    chance = random.Random(4)
    for _ in range(600):
        text = random_text(chance) if chance.random() < 0.5 else altered(chance)
        try:
            program = weft.Program.parse(text)
        except weft.FormatError:
            continue
        report = program.verify(chance.choice(["rendezvous", "eager", 1]))
        str(report)
        str(program.explain())
        program.grid()
        str(program.diff(PROGRAM))
        _ = (program.placement, program.rank_of_stage, repr(program), hash(program))
        for use in (
            program.dry_run,
            lambda p=program: p.simulate(COSTS),
            lambda p=program: p.simulate(COSTS).period(),
            lambda p=program: p.simulate(COSTS).critical_path(),
            lambda p=program: p.simulate(channel="rank"),
            lambda p=program: p.simulate().to_svg(),
            lambda p=program: p.simulate().to_html(),
            lambda p=program: p.simulate().to_trace(),
            lambda p=program: str(p.simulate()),
            lambda t=text: weft.Table.parse(t).lower(),
            lambda t=text: weft.Table.parse(t).lower(merge_bw=True, tie_grad=True),
        ):
            try:
                use()
            except weft.Error as error:
                assert error.message


def test_objects_without_a_constructor():
    for kind in (weft.Table, weft.Program, weft.Simulation, weft.Costs):
        empty = kind.__new__(kind)
        for name, member in inspect.getmembers(kind):
            if name.startswith("__") and name not in ("__len__", "__hash__", "__repr__", "__str__"):
                continue
            with pytest.raises((AttributeError, TypeError, weft.UnavailableError)):
                if isinstance(member, property):
                    getattr(empty, name)
                elif inspect.isfunction(member):
                    count = len(inspect.signature(member).parameters) - 1
                    member(empty, *[1] * min(count, 1))
                raise TypeError
        for use in (lambda e=empty: TABLE.diff(e), lambda e=empty: TABLE.simulate(e)):
            with pytest.raises((AttributeError, TypeError)):
                use()


def test_dead_objects():
    for _ in range(200):
        program = TABLE.lower()
        sim = program.simulate(weft.Costs(f=2))
        rows, events = iter(program), iter(sim)
        view = sim.events
        kept = [sim.costs, sim.program]
        cycle = [program, sim]
        cycle.append(cycle)
        del program, sim, cycle
        gc.collect(0)
        next(rows), next(events), view.sum
        assert kept[1].verify().ok
    gc.collect()


def test_threads_share_objects():
    errors = []
    table = weft.Table.named("ZBVZeroBubble", ranks=4, microbatches=8)
    expected = table.simulate(COSTS).makespan

    def work(seed):
        chance = random.Random(seed)
        try:
            for _ in range(60):
                program = table.lower()
                assert program.verify().ok
                assert table.simulate(COSTS).makespan == expected
                assert len(program.actions) == program.row_begin[-1]
                try:
                    weft.Program.parse(random_text(chance)).simulate()
                except weft.Error as error:
                    assert error.message
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_overhead_of_a_call(capsys):
    """Prints what Python adds to a call of the C library (at most 5 us is the aim)."""
    lib, c = weft._program.lib, weft._program.c
    program, table = PROGRAM._handle.pointer, TABLE._handle.pointer

    text = str(PROGRAM).encode()
    costs = COSTS._handle.pointer
    shape = c.weft_shape()
    shape.ranks, shape.microbatches = 2, 2

    def bare(kind, function, destroy, *arguments):
        out = ctypes.POINTER(kind)()
        function(None, *arguments, ctypes.byref(out), None)
        destroy(out)

    def bare_costs():
        out = ctypes.POINTER(c.weft_costs)()
        lib.weft_costs_create(None, 1, ctypes.byref(out), None)
        lib.weft_costs_check(out, 1, None)
        lib.weft_costs_destroy(out)

    def bare_program(function, *arguments):
        return lambda: bare(c.weft_program, function, lib.weft_program_destroy, *arguments)

    def best(call):
        times = []
        for _ in range(5):
            begin = time.process_time_ns()
            for _ in range(500):
                call()
            times.append((time.process_time_ns() - begin) / 500)
        return min(times)

    pairs = {
        "steps": (lambda: lib.weft_program_row_steps(program, 0), lambda: PROGRAM.steps(0)),
        "verify": (
            lambda: bare(c.weft_report, lib.weft_verify, lib.weft_report_destroy, program, None),
            PROGRAM.verify,
        ),
        "lower": (bare_program(lib.weft_lower, table, None), TABLE.lower),
        "parse": (
            bare_program(lib.weft_program_parse, text, len(text), b"input"),
            lambda: weft.Program.parse(text),
        ),
        "named": (
            bare_program(lib.weft_generate, b"1F1B", ctypes.byref(shape)),
            lambda: weft.Table.named("1F1B", ranks=2, microbatches=2),
        ),
        "simulate": (
            lambda: bare(
                c.weft_simulation,
                lib.weft_simulate,
                lib.weft_simulation_destroy,
                program,
                costs,
                None,
            ),
            lambda: PROGRAM.simulate(COSTS),
        ),
        "Costs, three calls": (bare_costs, weft.Costs),
        "Costs of numbers": (bare_costs, lambda: weft.Costs(f=2, i=1, w=1, hop=0.1)),
    }
    with capsys.disabled():
        for name, (inside, whole) in pairs.items():
            before, after = best(inside), best(whole)
            print(
                f"\n  {name}: {(after - before) / 1000:.2f} us on top of {before / 1000:.2f} us, "
                f"{after / before:.2f} times",
                end="",
            )
            assert after < 50 * before
        print()
