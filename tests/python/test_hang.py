"""The dumps of PyTorch's flight recorder: real ones, and what is wrong with others."""

import os
import pathlib
import pickle
import shutil

import pytest
import weft_pipeline as weft
from weft_pipeline import hang

DUMPS = pathlib.Path(__file__).parents[1] / "flight" / "dumps"


def test_sleeper():
    program = weft.Program.load(DUMPS / "sleeper" / "program.csv")
    found = hang.from_flight_recorder(DUMPS / "sleeper", program)
    assert (found.culprit, found.cycle, found.hangs, found.unread) == (2, (), True, ())
    assert found.actions == ("4RECV_F3", "5RECV_F0", "2F3", "3RECV_F3")
    assert found.ranks[0] == hang.Rank(
        0, "waiting", "4RECV_F3", 3, 3, "rank0.pkl", ("4RECV_F3",), ()
    )
    assert str(found).splitlines()[2] == "rank 2: is in 2F3, in step 3"
    assert "rank 2" in repr(found)
    with pytest.raises(AttributeError):
        found.culprit = 1


def test_skewed_from_its_table():
    table = weft.Table.named("Interleaved1F1B", ranks=2, stages_per_rank=2, microbatches=6)
    found = hang.from_flight_recorder(str(DUMPS / "skewed"), table)
    assert found.culprit == 1
    assert found.ranks[1].state == "between steps" and found.actions[1] is None


def test_collectives_of_another_group():
    """A ring that is short because the collectives of another group share it."""
    dumps = {}
    for file in (DUMPS / "sleeper").glob("rank*.pkl"):
        dump = pickle.loads(file.read_bytes())
        entries = []
        for entry in dump["entries"]:
            other = dict(entry, pg_id=7, process_group=("7", "dp"), p2p_seq_id=0, is_p2p=False)
            entries += [entry, dict(other, profiling_name="nccl:all_reduce", state="completed")]
        dump["entries"] = [dict(entry, record_id=k) for k, entry in enumerate(entries)][-60:]
        dumps[file.name] = pickle.dumps(dump)
    program = weft.Program.load(DUMPS / "sleeper" / "program.csv")
    found = hang.from_dumps(dumps, program)
    assert (found.culprit, found.cycle) == (2, ())
    assert found.actions == ("4RECV_F3", "5RECV_F0", "2F3", "3RECV_F3")


def test_pending_collective():
    """A collective of another group that one rank has not done, with its Python frame."""
    dumps = {}
    for file in (DUMPS / "sleeper").glob("rank*.pkl"):
        dump = pickle.loads(file.read_bytes())
        if file.name == "rank2.pkl":
            frame = {"name": "step", "filename": "/home/me/train.py", "line": 123}
            dump["entries"].append(
                dict(
                    dump["entries"][-1],
                    record_id=len(dump["entries"]),
                    pg_id=7,
                    process_group=("7", "mesh_fsdp"),
                    profiling_name="nccl:_all_gather_base",
                    state="scheduled",
                    retired=False,
                    frames=[frame],
                )
            )
            dump["pg_config"]["7"] = {"name": "7", "desc": "mesh_fsdp", "ranks": "[2, 6]"}
        dumps[file.name] = pickle.dumps(dump)
    found = hang.from_dumps(dumps, weft.Program.load(DUMPS / "sleeper" / "program.csv"))
    assert found.culprit == 2
    assert found.ranks[2].collectives == (
        hang.Collective(
            "nccl:_all_gather_base", "mesh_fsdp", "[2, 6]", "/home/me/train.py", 123, "step"
        ),
    )
    assert "waits in nccl:_all_gather_base of group mesh_fsdp (train.py:123)" in found.message


def test_contradicted():
    table = weft.Table.named("Interleaved1F1B", ranks=4, stages_per_rank=2, microbatches=4)
    with pytest.raises(weft.Error, match="the program contradicts entry"):
        hang.from_flight_recorder(DUMPS / "sleeper", table)


def test_pipes_and_folders(tmp_path):
    for file in (DUMPS / "sleeper").iterdir():
        shutil.copy(file, tmp_path)
    os.mkfifo(tmp_path / "rank0.pipe")
    (tmp_path / "rank1").mkdir()
    program = weft.Program.load(tmp_path / "program.csv")
    found = hang.from_flight_recorder(tmp_path, program)
    assert found.culprit == 2
    assert found.unread == ("rank0.pipe: is no regular file", "rank1: is no regular file")


def test_missing_and_broken(tmp_path):
    for file in (DUMPS / "sleeper").iterdir():
        shutil.copy(file, tmp_path)
    (tmp_path / "rank3.pkl").unlink()
    (tmp_path / "rank1.pkl").write_bytes(b"\x80\x02cos\nsystem\n.")
    program = weft.Program.load(tmp_path / "program.csv")
    found = hang.from_flight_recorder(tmp_path, program)
    assert found.ranks[3].state == found.ranks[1].state == "missing"
    assert len(found.unread) == 1 and "rank1.pkl" in found.unread[0]


def test_code_in_a_pickle_is_refused():
    class Bad:
        def __reduce__(self):
            return os.system, ("touch should-not-be-there",)

    table = weft.Table.named("1F1B", ranks=2, microbatches=2)
    with pytest.raises(weft.FormatError, match="calls code"):
        hang.from_dumps({"rank0.pkl": pickle.dumps({"entries": [Bad()]}, protocol=2)}, table)
    assert not os.path.exists("should-not-be-there")


def test_arguments(tmp_path):
    table = weft.Table.named("1F1B", ranks=2, microbatches=2)
    with pytest.raises(TypeError):
        hang.from_flight_recorder(tmp_path, "1F1B")
    with pytest.raises(TypeError):
        hang.from_dumps(["rank0.pkl"], table)
    with pytest.raises(TypeError):
        hang.from_dumps({"rank0": 3}, table)
    with pytest.raises(weft.UsageError):
        hang.from_dumps({"rank0\0": b"{}"}, table)
    with pytest.raises(weft.MissingError):
        hang.from_flight_recorder(tmp_path, table)
    with pytest.raises(weft.MissingError):
        hang.from_flight_recorder(tmp_path / "gone", table)
    with pytest.raises(weft.FormatError):
        hang.from_dumps({"rank0": b""}, table)
    assert not hang.from_dumps({}, table).hangs
