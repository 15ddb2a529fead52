"""The first lines that a user writes, as they stand."""

import json

import weft_pipeline as weft

DEADLOCK = """\
0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1
1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1
"""


def test_table_to_simulation():
    table = weft.Table.named("Interleaved1F1B", ranks=4, stages_per_rank=2, microbatches=8)
    program = table.lower()
    assert program.verify().ok
    sim = table.simulate(weft.Costs(f=1, i=1, w=1, hop=0.1))
    assert sim.makespan == 29.9
    assert sim.note == "times are of a rank's share of the model: a stage takes 1/2"
    assert sim.note in repr(sim)
    whole = table.simulate(weft.Costs(f=1, i=1, w=1, hop=0.1, of="stage"))
    assert whole.makespan == 58.4 and whole.note == "times are of a stage"
    assert sim._repr_svg_().startswith("<svg")


def test_report():
    report = weft.Program.parse(DEADLOCK).verify()
    assert not report.ok
    finding = report.findings[0]
    assert (finding.rule, finding.rank, finding.step) == ("deadlock", 0, 3)
    assert finding.action == "0SEND_F1"
    assert "wait for each other" in finding.message
    assert "slots:1" in finding.hint
    assert [wait.rank for wait in finding.cycle] == [0, 1]


LINES = """
import weft_pipeline as weft
table = weft.Table.named("Interleaved1F1B", ranks=4, stages_per_rank=2, microbatches=8)
program = table.lower()
assert program.verify().ok
sim = table.simulate(weft.Costs(f=1, i=1, w=1, hop=0.1)); sim.makespan; sim   # an SVG in a notebook
report = weft.Program.parse(text).verify()      # report.ok, report.findings[0].rule, .rank, .step
plan = weft.plan(ranks=8, microbatches=24, costs=weft.Costs.load("costs.json"), memory=5)
"""


def test_as_they_stand(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stage = {"f": 1, "i": 1, "w": 1, "activation": 1}
    document = {"schema": "weft-costs/1", "stages": [stage], "hop": {"latency": 0.1}}
    (tmp_path / "costs.json").write_text(json.dumps(document))
    names = {"text": DEADLOCK}
    exec(LINES, names)
    assert not names["report"].ok
    plan = names["plan"]
    assert plan.table.lower().verify().ok
    assert plan.bound <= plan.makespan
    assert plan.optimal == (plan.makespan == plan.bound)
