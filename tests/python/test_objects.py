"""Objects: what they have, that they do not change, and the exceptions."""

import copy
import gc
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time

import numpy
import pytest
import weft_pipeline as weft
from test_first_lines import DEADLOCK

TABLE = weft.Table.named("1F1B", ranks=4, microbatches=8)


def test_errors_carry_place_and_hint():
    with pytest.raises(weft.FormatError) as caught:
        weft.Program.parse("0F0\n1F0,,xx\n", "mine.csv")
    error = caught.value
    assert isinstance(error, ValueError)
    assert (error.line, error.column) == (2, 6)
    assert "mine.csv:2:6" in error.message
    assert "0F1" in error.hint
    again = pickle.loads(pickle.dumps(error))
    assert (again.message, again.hint, again.line) == (error.message, error.hint, error.line)


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (weft.UsageError, lambda: weft.Table.named("1F2B", ranks=2, microbatches=2)),
        (weft.UsageError, lambda: weft.Table.named("1F1B", ranks=0, microbatches=2)),
        (weft.LimitError, lambda: weft.Table.named("1F1B", ranks=2**16, microbatches=2**24)),
        (weft.InvalidError, lambda: weft.Table.parse("0F0,0SEND_F0\n1RECV_F0\n")),
        (weft.InvalidError, lambda: weft.Program.parse("1F0,0F0\n").simulate()),
        (weft.MissingError, lambda: weft.Table.load("no such file")),
        (FileNotFoundError, lambda: weft.Costs.load("no such file")),
        (weft.FileError, lambda: weft.Table.load("/")),
        (weft.FormatError, lambda: weft.Costs.parse("{}")),
        (weft.UsageError, lambda: weft.Costs(f=[1, 2], i=[1, 2, 3])),
        (weft.UsageError, lambda: weft.Costs(f=-1)),
        (weft.UsageError, lambda: weft.Costs(f=float("nan"))),
        (weft.UsageError, lambda: TABLE.simulate(weft.Costs(f=[1, 2]))),
        (weft.UsageError, lambda: TABLE.simulate(rank_factors=[1, 2])),
        (weft.InvalidError, lambda: weft.plan(ranks=4, microbatches=8, memory=0.1)),
    ],
)
def test_statuses(kind, call):
    with pytest.raises(kind) as caught:
        call()
    if isinstance(caught.value, weft.Error):
        assert caught.value.message


def test_ranks_without_actions():
    report = weft.Table.parse("0F0,0B0\n\n1F0,1B0\n\n\n").verify()
    assert report.program.ranks == 3
    assert report.notes == ("rank 1 has no action",)
    assert str(report).endswith("\nnote: rank 1 has no action")
    assert TABLE.verify().notes == ()
    rows = weft.Table.from_rows([["0F0", "0B0"], []])
    assert rows.ranks == 2 and str(rows) == '0F0,0B0\n""\n'


def test_verify_error():
    report = weft.Program.parse(DEADLOCK).verify()
    with pytest.raises(weft.VerifyError) as caught:
        report.raise_if_bad()
    error = caught.value
    assert (error.rule, error.rank, error.step, error.action) == ("deadlock", 0, 3, "0SEND_F1")
    assert "slots:1" in error.hint
    assert len(error.cycle) == 2
    assert ">0SEND_F1<" in str(report)
    assert report.least_comm == "slots:1"
    assert weft.Program.parse(DEADLOCK).verify("slots:1").ok
    assert pickle.loads(pickle.dumps(error)).rule == "deadlock"
    assert TABLE.verify().raise_if_bad().ok
    assert "deadlock" in report._repr_html_()


def test_every_rule_has_a_hint():
    wrong = [
        "0F0\n",
        "0F0,0B0,0B0\n",
        "0B0,0F0\n",
        "0F0,0B0\n1F0,1B0,2SEND_F0\n",
        "0F0,0SEND_F0\n1F0,1B0\n",
        "0F0,0UNSHARD,0UNSHARD,0B0\n",
    ]
    for text in wrong:
        for finding in weft.Program.parse(text).verify(microbatches=2).findings:
            assert finding.hint, finding


def test_immutable():
    sim = TABLE.simulate()
    for thing in (TABLE, TABLE.lower(), sim, weft.Costs()):
        for name in ("_handle", "ranks", "costs", "makespan", "new"):
            with pytest.raises(AttributeError):
                setattr(thing, name, None)
        with pytest.raises(AttributeError):
            del thing._handle
    with pytest.raises((AttributeError, ValueError)):
        TABLE.actions["stage"] = 3
    assert memoryview(TABLE.actions).readonly


def test_copies():
    sim = TABLE.simulate(weft.Costs(f=2, hop=0.5))
    for thing in (TABLE, TABLE.lower(), weft.Costs(f=3, unit="ms")):
        assert copy.copy(thing) == thing
        assert copy.deepcopy(thing) == thing
        assert pickle.loads(pickle.dumps(thing)) == thing
    assert pickle.loads(pickle.dumps(sim)).makespan == sim.makespan


def test_arrays_share_memory_and_outlive_their_objects():
    program = TABLE.lower()
    actions = program.actions
    assert numpy.shares_memory(actions, program.actions)
    assert actions.dtype.names == ("op", "parts", "stage", "microbatch")
    assert len(actions) == program.row_begin[-1]
    expected = actions.copy()
    events = program.simulate().events
    assert events.dtype.names == ("rank", "record", "begin", "end")
    del program
    gc.collect()
    churn = [TABLE.lower() for _ in range(50)]
    assert (actions == expected).all()
    assert events["end"].max() > 0
    assert len(churn) == 50


def test_without_numpy():
    script = """
import sys, struct
sys.modules["numpy"] = None
import weft_pipeline as weft
table = weft.Table.named("1F1B", ranks=2, microbatches=2)
records = list(struct.iter_unpack("BBHI", table.actions))
assert isinstance(table.actions, memoryview) and table.actions.readonly
assert len(records) == table.row_begin[-1] and records[0] == (1, 0, 0, 0)
assert len(list(struct.iter_unpack("IIqq", table.simulate().events))) == len(table.simulate())
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_base_imports_neither_numpy_nor_torch():
    script = "import sys, weft_pipeline; assert not {'numpy', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_simulation():
    costs = weft.Costs(f=1, b=2, hop=0.1)
    sim = TABLE.simulate(costs)
    assert sim.makespan == 34.6  # as `weft sim` prints in the README
    assert round(100 * sim.bubble, 2) == 30.64
    assert sim.peak_activation == 4
    assert [round(rank.idle, 6) for rank in sim.ranks] == [10.6] * 4
    assert sim.ranks[0].idle_by_cause["gradient"] == pytest.approx(10.6)
    assert sim.period() == 34.6
    path = sim.critical_path()
    assert path[0].begin == 0 and path[-1].end == sim.makespan
    assert len(list(sim)) == len(sim.events) == len(sim)
    assert max(size for _, size in sim.memory(0)) == 4
    slow = TABLE.simulate(costs, rank_factors=[1, 1, 2, 1])
    assert slow.makespan > sim.makespan
    assert TABLE.simulate(costs, channel="rank").makespan >= sim.makespan
    world = TABLE.simulate(costs, channel="nccl-world").makespan
    assert world >= TABLE.simulate(costs, channel="nccl-directed").makespan >= sim.makespan
    assert TABLE.lower().verify(channel="nccl-pair").channel == "nccl-pair"
    for channel in weft.CHANNEL_MODELS:
        for comm in weft.SEND_MODELS:
            comm = comm.replace("K", "3")
            report = TABLE.lower().verify(comm, channel=channel)
            assert report.ok and (report.comm, report.channel) == (comm, channel)
    assert "makespan 34.6" in str(sim)
    assert sim.to_svg(dark=True).startswith("<svg")
    assert "makespan" in sim.to_svg() and "makespan" not in sim.to_svg(bare=True)
    many = weft.Table.named("GPipe", ranks=64, microbatches=2).simulate()
    assert many.to_text().count("\nrank ") == 17 - 1
    assert many.to_text(all_ranks=True).count("\nrank ") == 64 - 1
    assert "<html" in sim.to_html()[:200]
    assert '"traceEvents"' in sim.to_trace()


def test_costs_as_a_dict():
    table = weft.Table.named("1F1B", ranks=2, microbatches=4)
    costs = weft.Costs(f=[1, 2], b=3, hop=0.5, unit="ms")
    arguments = {"f": [1, 2], "b": 3, "hop": 0.5, "unit": "ms"}
    for given in (arguments, costs.to_dict()):
        assert table.simulate(given).costs == costs
        assert table.simulate(given).makespan == table.simulate(costs).makespan
    assert weft.compare(ranks=2, microbatches=4, costs={"f": 2}).best.name
    planned = weft.plan(ranks=2, microbatches=4, costs={"f": 2}, threads=1, effort=0.05)
    assert planned.makespan > weft.plan(ranks=2, microbatches=4, threads=1, effort=0.05).makespan
    for wrong, kind in (({"g": 1}, weft.UsageError), ({1: 1}, weft.UsageError), ("f=1", TypeError)):
        with pytest.raises(kind, match=r"expected some of f, i, w, b|must be Costs or a dict"):
            table.simulate(wrong)
    with pytest.raises(weft.UsageError, match="f is -1"):
        table.simulate({"f": -1})


def test_saves(tmp_path):
    TABLE.save(tmp_path / "table.csv")
    assert weft.Table.load(tmp_path / "table.csv") == TABLE
    costs = weft.Costs(f=[1, 2, 3, 4], unit="ms", rank_factors=[1, 1, 1, 2])
    costs.save(tmp_path / "costs.json")
    assert weft.Costs.load(tmp_path / "costs.json") == costs
    assert weft.Costs.from_dict(costs.to_dict()) == costs
    sim = TABLE.simulate(costs)
    for suffix in ("svg", "html", "json", "txt"):
        sim.save(tmp_path / f"picture.{suffix}")
        assert (tmp_path / f"picture.{suffix}").stat().st_size > 100
    with pytest.raises(weft.UsageError):
        sim.save(tmp_path / "picture.gif")
    plan = weft.plan(ranks=2, microbatches=4, costs={"f": 3}, threads=1, effort=0.05)
    for thing, timeline in ((TABLE, TABLE.simulate()), (plan, plan.simulate())):
        thing.save(tmp_path / "a.svg")
        assert (tmp_path / "a.svg").read_text(encoding="utf-8") == timeline.to_svg()
        thing.save(tmp_path / "a.txt")
        assert weft.Table.load(tmp_path / "a.txt").ranks == timeline.program.ranks


def test_explain():
    program = weft.Table.named("1F1B", ranks=2, microbatches=2).lower()
    entry = program.explain(0)[2]
    assert str(entry.action) == "0SEND_F0"
    assert (entry.peer.rank, str(entry.peer.action)) == (1, "1RECV_F0")
    assert [str(need.action) for need in entry.needs] == ["0F0"]
    assert "0SEND_F0" in str(program.explain())
    assert len(program.explain()) == len(program.actions)


def test_diff():
    other = weft.Table.named("GPipe", ranks=4, microbatches=8)
    diff = TABLE.diff(other)
    assert diff and diff.differences[0].rank == 0
    assert TABLE.diff(other, 1).left_out > 0
    assert not TABLE.diff(weft.Table.parse(str(TABLE)))


def test_plan():
    seen = []
    plan = weft.plan(ranks=4, microbatches=8, memory=3, threads=1, effort=0.1, progress=seen.append)
    assert plan.table.verify().ok and plan.table.lower().verify().ok
    assert plan.simulate().makespan == plan.makespan >= plan.bound
    assert plan.peak_memory <= 3
    assert pickle.loads(pickle.dumps(plan)).table == plan.table
    table = plan.table
    del plan
    gc.collect()
    assert table.verify().ok
    with pytest.raises(ZeroDivisionError):
        weft.plan(**LONG, costs=UNEVEN, progress=lambda _: 1 / 0)


LONG = {"ranks": 8, "microbatches": 37, "memory": 5, "time_limit": 100, "threads": 1}
UNEVEN = weft.Costs(f=1.1, i=1.3, w=0.7, hop=0.13)


def test_cancel():
    cancel = threading.Event()
    cancel.set()
    plan = weft.plan(**LONG, costs=UNEVEN, cancel=cancel)
    assert plan.stopped and plan.table.verify().ok


def test_ctrl_c_returns_the_best_so_far():
    waiting = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    waiting.start()
    plan = weft.plan(**LONG, costs=UNEVEN)
    assert plan.stopped and plan.table.verify().ok
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_run_during_a_search():
    count = 0
    done = threading.Event()

    def tick():
        nonlocal count
        while not done.is_set():
            count += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    weft.plan(ranks=8, microbatches=37, memory=5, threads=1, effort=0.3, costs=UNEVEN)
    done.set()
    thread.join()
    assert count > 3


def test_choose():
    parts = [{"f": 1, "i": 1, "w": 1, "activation": 1}] * 8
    costs = weft.Costs.from_dict(
        {"schema": "weft-costs/1", "stages": [{}], "parts": parts, "microbatch_size": 1}
    )
    choice = weft.choose(ranks=4, global_batch=16, costs=costs, memory=20, effort=0.1)
    best = choice.candidates[0]
    assert best.ranks * best.replicas == 4
    assert best.plan.table.verify().ok
    assert best.value >= choice.bound


def test_schedules():
    names = {info.name for info in weft.schedules()}
    assert {"1F1B", "Interleaved1F1B", "ZBVZeroBubble", "DualPipeV"} <= names
    assert weft.Table.named("Schedule1F1B", ranks=2, microbatches=2).ranks == 2  # PyTorch's class
    for name, hint in (
        ("1F1C", "did you mean '1F1B'? weft_pipeline.schedules() lists the names"),
        ("Nothing like it", "weft_pipeline.schedules() lists the names"),
    ):
        with pytest.raises(weft.UsageError) as caught:
            weft.Table.named(name, ranks=2, microbatches=2)
        assert caught.value.hint == hint
    with pytest.raises(weft.Error) as caught:
        weft.Table.named("1F1B", ranks=2, microbatches=0)
    assert "schedules()" not in caught.value.hint


def test_errors_name_the_parameters_of_python():
    for arguments, hint in (
        (
            {"name": "1F1B", "ranks": 2, "microbatches": 2, "stages_per_rank": 2},
            "stages_per_rank=1",
        ),
        ({"name": "DualPipeV", "ranks": 3, "microbatches": 1}, "use microbatches=6"),
        ({"name": "DualPipeV", "ranks": 3, "microbatches": 5}, "microbatches=6 with ranks=3, or r"),
        (
            {"name": "1F1B", "ranks": 2, "microbatches": 2, "graph": weft.Graph("0>1,1>2")},
            "ranks=3",
        ),
        ({"name": "1F1B", "ranks": 2}, "at least one rank and one microbatch"),
    ):
        with pytest.raises(weft.UsageError) as caught:
            weft.Table.named(**arguments)
        assert hint in caught.value.hint
        assert not re.search(r"\b[pvm] = |--|weft [a-z]", str(caught.value))
    why = weft.compare(ranks=4, microbatches=6).left_out[0][2]
    assert "at least 8 microbatches for ranks=4; microbatches=6" in why
    with pytest.raises(weft.FormatError, match="m = 3"):  # a name of the caller stays
        weft.Table.parse("x", "m = 3")
    assert weft.Table.named("VShaped").ranks == 2


def test_docstrings():
    for name in weft.__all__:
        thing = getattr(weft, name)
        if name == "__version__":
            continue
        assert thing.__doc__, name
        for member, value in vars(thing).items() if isinstance(thing, type) else ():
            if not member.startswith("_") and callable(value):
                assert value.__doc__, f"{name}.{member}"


def test_version_is_compared():
    script = """
import importlib.util, pathlib, sys
folder = pathlib.Path(importlib.util.find_spec("weft_pipeline").origin).parent
spec = importlib.util.spec_from_file_location("weft_pipeline._layout", folder / "_layout.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.WEFT_VERSION_PATCH += 1
sys.modules["weft_pipeline._layout"] = module
try:
    import weft_pipeline
except ImportError as error:
    assert "version" in str(error), error
else:
    sys.exit("imported")
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_layout_is_compared():
    script = """
import ctypes, weft_pipeline._layout as c
class Wrong(ctypes.Structure):
    _fields_ = [(name, kind) for name, kind in reversed(c.weft_error._fields_)]
Wrong.__name__ = "weft_error"
c.STRUCTS[c.STRUCTS.index(c.weft_error)] = Wrong
"""
    script = f"""
import importlib.util, pathlib, sys
folder = pathlib.Path(importlib.util.find_spec("weft_pipeline").origin).parent
spec = importlib.util.spec_from_file_location("weft_pipeline._layout", folder / "_layout.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.modules["weft_pipeline._layout"] = module
{script.replace("import ctypes, weft_pipeline._layout as c", "import ctypes; c = module")}
try:
    import weft_pipeline
except ImportError as error:
    assert "struct weft_error" in str(error), error
else:
    sys.exit("imported")
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_table_has_the_same_numbers_everywhere():
    plan = weft.plan(ranks=4, microbatches=8, memory=3, threads=1)
    assert plan.makespan == 25.75 and plan.peak_memory == 3
    for costs in (None, weft.Costs(), plan.costs):
        sim = plan.table.simulate(costs)
        assert (sim.makespan, sim.peak_memory) == (25.75, 3)
    table = weft.Table.named("zbv", ranks=4, microbatches=8)
    best = {entry.name: entry for entry in weft.compare(table).entries}
    for entry in (best["program 0"], best["ZBVZeroBubble"]):
        assert (entry.makespan, entry.peak_activation) == (25.5, 4)
    found = weft.compare(table)
    assert any(entry.table is table for entry in found.entries)
    assert found.why.startswith(f"{found.best.name} with v = 4 wins: ")
    three = weft.Table.named("Interleaved1F1B", ranks=2, stages_per_rank=3, microbatches=4)
    assert 3 in {
        entry.stages_per_rank for entry in weft.compare(three).entries if entry.table != three
    }
    for wrong in ({"ranks": 4}, {"microbatches": 4}, {}):
        with pytest.raises(weft.UsageError):
            weft.compare(**wrong)
    with pytest.raises(weft.UsageError, match="no backward"):
        weft.compare(weft.Table.named("ForwardOnly", ranks=2, microbatches=2))
    sim = table.simulate()
    assert (sim.makespan, sim.peak_activation) == (25.5, 4)
    sim = table.simulate(weft.Costs(of="stage"))
    assert (sim.makespan, sim.peak_activation) == (51, 8)
    odd = weft.Table.parse("0F0,1F0,1B0,0B0\n2F0,2B0\n")
    assert odd.simulate().makespan == 6
    assert weft.Costs().of == "rank" and weft.Costs(f=[1, 2]).of == "stage"
    assert weft.Costs.from_dict(weft.Costs(of="stage").to_dict()).of == "stage"
    with pytest.raises(weft.UsageError):
        weft.Costs(of="model")
    with pytest.raises(TypeError):
        weft.Costs(of=1)
