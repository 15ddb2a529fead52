"""Results as dicts and DataFrames, schedules by PyTorch's classes, pictures by matplotlib.

pandas and matplotlib are optional: tests that need them are skipped where they are not.
"""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import weft_pipeline as weft
from weft_pipeline import hang

TABLE = weft.Table.named("Interleaved1F1B", ranks=2, stages_per_rank=2, microbatches=4)
COSTS = weft.Costs(f=[1, 2, 1, 2], b=3, hop=0.5, unit="ms")
SIM = TABLE.lower().simulate(COSTS)
WRONG = weft.Program.parse(
    "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
    "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n"
)
PLAN = weft.plan(ranks=2, microbatches=4, memory=3, threads=1, effort=0.05)
DUMPS = Path(__file__).parents[1] / "flight" / "dumps" / "sleeper"
RESULTS = [
    hang.from_flight_recorder(DUMPS, weft.Program.load(DUMPS / "program.csv")),
    TABLE,
    TABLE.lower(),
    TABLE.lower().explain(),
    TABLE.diff(weft.Table.named("LoopedBFS", ranks=2, stages_per_rank=2, microbatches=4)),
    SIM,
    WRONG.verify(),
    weft.compare(ranks=2, microbatches=4, memory=5),
    PLAN,
    COSTS,
]


def choice():
    costs = {
        "schema": "weft-costs/1",
        "stages": [{}],
        "parts": [{"f": 1, "i": 1, "w": 1}] * 8,
        "microbatch_size": 1,
    }
    return weft.choose(ranks=4, global_batch=8, costs=costs, memory=1000, effort=0.05)


@pytest.mark.parametrize("result", [*RESULTS, choice()], ids=lambda result: type(result).__name__)
def test_dicts_are_json(result):
    document = result.to_dict()
    assert document and json.loads(json.dumps(document, allow_nan=False)) == document


def test_dicts_have_the_figures():
    document = TABLE.to_dict()
    assert document["rows"][0][:2] == ["0F0", "0F1"] and document["rank_of_stage"] == [0, 1, 0, 1]
    assert weft.Table.from_rows(document["rows"]) == TABLE
    graph = weft.Graph("0>1,0>2,1>2")
    skip = weft.Table.named("1F1B", graph=graph, microbatches=2)
    assert skip.to_dict()["graph"] == skip.graph.to_dict()
    document = SIM.to_dict()
    assert document["makespan"] == SIM.makespan and document["unit"] == "ms"
    assert document["ranks"][1]["idle_by_cause"] == SIM.ranks[1].idle_by_cause
    first = next(event for event in document["events"] if event["end"] > 0)
    assert first == {"rank": 0, "action": "0F0", "begin": 0, "end": 1}
    document = WRONG.verify().to_dict()
    assert not document["ok"] and document["findings"][0]["cycle"][0]["action"] == "0SEND_F1"
    assert "program" not in document
    document = weft.compare(ranks=4, microbatches=6).to_dict()
    assert document["entries"][0]["name"] and "table" not in document["entries"][0]
    assert set(document["left_out"][0]) == {"name", "stages_per_rank", "why"}
    document = RESULTS[0].to_dict()
    assert document["culprit"] == 2 and document["ranks"][0]["file"] == "rank0.pkl"
    document = PLAN.to_dict()
    assert document["value"] == PLAN.value and document["costs"] == PLAN.costs.to_dict()
    assert weft.Table.from_rows(document["table"]["rows"]) == PLAN.table
    assert choice().to_dict()["candidates"][0]["plan"]["table"]["rows"]


def test_dataframes():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    for result in [*RESULTS, choice()]:
        made = result.to_dataframe()
        assert isinstance(made, pandas.DataFrame) and len(made)
    events = SIM.to_dataframe()
    assert len(events) == len(SIM)
    busy = events[(events["rank"] == 0) & events["op"].isin(["F", "B"])]
    assert (busy["end"] - busy["begin"]).sum() == SIM.ranks[0].busy
    ranks = SIM.to_dataframe(of="ranks")
    assert ranks["idle_gradient"][0] == SIM.ranks[0].idle_by_cause["gradient"]
    with pytest.raises(weft.UsageError, match="events"):
        SIM.to_dataframe(of="stages")
    actions = TABLE.lower().to_dataframe()
    assert (actions["stage"] == 3).sum() and actions["microbatch"].isna().sum() == 12
    assert list(actions.query("op == 'F' and stage == 0")["microbatch"]) == [0, 1, 2, 3]
    overlaps = weft.Table.named("DualPipeV", ranks=2, microbatches=6).to_dataframe()
    assert overlaps["stage"].isna().sum() == (overlaps["op"] == "OVERLAP_F_B").sum() > 0
    nothing = TABLE.verify().to_dataframe()
    assert not len(nothing) and list(nothing.columns)[:2] == ["rule", "rank"]
    assert list(COSTS.to_dataframe()["f"]) == [1, 2, 1, 2]


def test_without_pandas_and_matplotlib():
    script = """
import sys
sys.modules["pandas"] = sys.modules["matplotlib"] = None
import weft_pipeline as weft
sim = weft.Table.named("1F1B", ranks=2, microbatches=2).simulate()
for call, package in (
    (sim.to_dataframe, "pandas"),
    (sim.plot, "matplotlib"),
    (lambda: sim.save("no.png"), "matplotlib"),
    (lambda: sim.save("no.pdf"), "matplotlib"),
):
    try:
        call()
    except weft.UnavailableError as error:
        assert package in error.message and error.hint == f"pip install {package}", error
    else:
        sys.exit("made")
"""
    subprocess.run([sys.executable, "-c", script], check=True)


PICTURES = [
    SIM,
    TABLE.simulate(),
    weft.Table.named("DualPipeV", ranks=4, microbatches=8).lower().simulate({"hop": 0.5}),
    weft.Table.named("1F1B", ranks=20, microbatches=40).simulate(),
    weft.Table.named(
        "1F1B", graph=weft.Graph("0>1,0>2,1>2", names=["a", "b", "c"]), microbatches=2
    ).simulate(),
]


@pytest.mark.parametrize("sim", PICTURES)
def test_what_an_svg_consists_of(sim):
    """save() knows these elements of the library's SVG, and draws them by matplotlib."""
    for element in ElementTree.fromstring(sim.to_svg(name="a <b>", dark=True)):
        tag = element.tag.rsplit("}", 1)[-1]
        assert tag in ("title", "desc", "rect", "path", "text") and not len(element)
        assert tag != "path" or re.fullmatch(r"M[-0-9. MHVL]*z?", element.get("d"))
        assert tag != "path" or bool(element.get("fill")) != bool(element.get("stroke"))


def test_png_and_pdf(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from matplotlib import image

    for sim in PICTURES:
        for kind, begins in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
            sim.save(tmp_path / f"picture.{kind}")
            assert (tmp_path / f"picture.{kind}").read_bytes().startswith(begins)
    picture = image.imread(tmp_path / "picture.png")  # of the last one, 1200 pixels of an SVG
    assert picture.shape[1] == 2400
    colours = {
        tuple(round(255 * part) for part in pixel[:3]) for pixel in picture[::5, ::5].reshape(-1, 4)
    }
    assert {(0x56, 0xB4, 0xE9), (0xD5, 0x5E, 0x00)} <= colours  # F and B
    with pytest.raises(weft.FileError):
        SIM.save(tmp_path / "none" / "picture.png")


def test_plot():
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from matplotlib.figure import Figure

    for sim in PICTURES:
        ax = Figure().add_subplot()
        assert sim.plot(ax, name="a timeline") is ax and ax.get_title() == "a timeline"
        assert ax.get_xlim() == (0, sim.makespan)
        drawn = {bars.get_label(): len(bars.get_paths()) for bars in ax.collections}
        forwards = [event for event in sim if event.action.op == "F" and event.end > event.begin]
        assert drawn["F forward"] == len(forwards)
        ax.figure.canvas.draw()
    with pytest.raises(TypeError, match="ax must be an axis"):
        SIM.plot(3)
    pyplot = importlib.import_module("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    assert SIM.plot() is pyplot.gca()  # the current axis
    pyplot.close("all")
    ax = Figure().add_subplot()
    SIM.plot(ax)
    assert ax.get_xlabel() == "time (ms)" and [text.get_text() for text in ax.texts].count("3") == 8


NAMES = (
    "GPipe",
    "1F1B",
    "LoopedBFS",
    "Interleaved1F1B",
    "InterleavedZeroBubble",
    "ZBVZeroBubble",
    "DualPipeV",
)


def test_classes_of_pytorch():
    """By their names, and as classes, whether or not PyTorch is there."""
    kinds = [type(f"Schedule{name}", (), {}) for name in NAMES]
    for name, kind in zip(NAMES, kinds):
        made = [
            weft.Table.named(given, ranks=2, microbatches=4)
            for given in (name, kind, kind.__name__)
        ]
        assert made[0] == made[1] == made[2]
    with pytest.raises(weft.UsageError, match="unknown schedule 'int'"):
        weft.Table.named(int, ranks=2, microbatches=4)
    with pytest.raises(TypeError):
        weft.Table.named(kinds[0](), ranks=2, microbatches=4)
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    for name in NAMES:
        kind = getattr(schedules, f"Schedule{name}")
        assert weft.Table.named(kind, ranks=2, microbatches=4).verify().ok
