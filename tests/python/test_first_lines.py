"""The first lines that a user writes, as they stand."""

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
    assert sim.makespan == 58.4
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
