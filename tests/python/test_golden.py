"""What PyTorch wrote, through Python, byte for byte; every table and program verifies."""

import re
from pathlib import Path

import pytest
import weft_pipeline as weft

GOLDEN = Path(__file__).parent.parent / "golden"


def files(kind):
    found = sorted(GOLDEN.glob(f"*.{kind}.csv"))
    assert found
    return found


def text_of(file):
    return file.read_bytes().decode()


def other(file, kind):
    return file.with_name(file.name.split(".")[0] + f".{kind}.csv")


def test_named():
    for file in files("compute"):
        shape = re.match(r"([A-Za-z0-9]+)_p(\d+)_v(\d+)_m(\d+)", file.name)
        if shape:
            name, ranks, stages, microbatches = shape[1], *map(int, shape.groups()[1:])
            table = weft.Table.named(
                name, ranks=ranks, stages_per_rank=stages, microbatches=microbatches
            )
            assert str(table) == text_of(file), file.name


def test_lower():
    for file in files("comms"):
        program = weft.Table.load(other(file, "compute")).lower()
        assert str(program) == text_of(file), file.name
        assert program == weft.Program.load(file)
        assert hash(program) == hash(weft.Program.load(file))
        assert program.verify().ok


def test_merge_bw():
    for file in files("merged"):
        table = weft.Table.load(other(file, "compute"))
        merged = table.lower(merge_bw=True, unshard=False, reduce_grad=False, communicate=False)
        assert str(merged) == text_of(file), file.name


def test_dry_run():
    for file in files("sim"):
        table = weft.Table.load(other(file, "compute"))
        program = table.lower(unshard=False, reduce_grad=False)
        assert str(program.dry_run()) == text_of(file), file.name


def test_rows_and_records():
    for file in files("compute") + files("comms"):
        program = weft.Program.load(file)
        assert program.verify().ok
        assert weft.Program.from_rows(program) == program
        for rank, line in enumerate(text_of(file).splitlines()):
            assert ",".join("" if cell is None else str(cell) for cell in program[rank]) == line
            assert program.steps(rank) == len(program[rank])
        assert not program.diff(program)


def test_compare_is_the_command():
    comparison = weft.compare(ranks=4, microbatches=8, memory=5)
    assert [(entry.name, entry.stages_per_rank) for entry in comparison.entries[:3]] == [
        ("InterleavedZeroBubble", 4),
        ("InterleavedZeroBubble", 2),
        ("ZBVZeroBubble", 2),
    ]
    assert comparison.best.makespan == 24.75
    assert not comparison.entries[-1].fits
    assert "<table>" in comparison._repr_html_()


@pytest.mark.parametrize("comm", ["eager", "slots:2", 1])
def test_other_models(comm):
    program = weft.Program.parse("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n")
    assert program.verify(comm, channel="pair").ok
