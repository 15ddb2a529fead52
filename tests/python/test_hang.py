"""The dumps of PyTorch's flight recorder: real ones, and what is wrong with others."""

import collections
import copy
import os
import pathlib
import pickle
import random
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
        0, "waiting", "4RECV_F3", 3, 3, "rank0.pkl", ("4RECV_F3",), (), 0, 0
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
            entries += [
                entry,
                dict(other, profiling_name="nccl:all_reduce", state="completed"),
            ]
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
            dump["pg_config"]["7"] = {
                "name": "7",
                "desc": "mesh_fsdp",
                "ranks": "[2, 6]",
            }
        dumps[file.name] = pickle.dumps(dump)
    found = hang.from_dumps(dumps, weft.Program.load(DUMPS / "sleeper" / "program.csv"))
    assert found.culprit is None and found.suspects == (2,)  # of rank 6 there is no dump
    assert found.ranks[2].collectives == (
        hang.Collective(
            "nccl:_all_gather_base",
            "mesh_fsdp",
            "[2, 6]",
            "/home/me/train.py",
            123,
            "step",
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
    assert found.unread == (
        "rank0.pipe: is no regular file",
        "rank1: is no regular file",
    )


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


def collective(number, state, group):
    frames = [
        {"name": "wait", "filename": "/site/torch/distributed/fsdp.py", "line": 7},
        {"name": "forward", "filename": "/home/me/train.py", "line": 123},
    ]
    return {
        "pg_id": 2,
        "process_group": (group, "mesh_fsdp"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "profiling_name": "nccl:_all_gather_base",
        "state": state,
        "frames": frames,
    }


def merged(folder, pipelines, behind):
    """A job of data times pipeline parallelism: its dumps by file name.

    Rank stage * pipelines + pipeline, as torchtitan's. `behind`: of the ranks of this stage, all
    but that of this pipeline have started the ninth all-gather of their FSDP group.
    """
    job = {}
    files = sorted((DUMPS / folder).glob("rank*.pkl"))
    for stage, file in enumerate(files):
        for pipeline in range(pipelines):
            dump = pickle.loads(file.read_bytes())
            across, along = f"fsdp{stage}", f"pp{pipeline}"
            ranks = {
                "0": range(len(files) * pipelines),
                along: [s * pipelines + pipeline for s in range(len(files))],
                across: [stage * pipelines + p for p in range(pipelines)],
            }
            for entry in dump["entries"]:
                entry.update(pg_id=1, process_group=(along, "mesh_pp"))
            for k in range(1, 9):
                dump["entries"].insert(9 * k, collective(k, "completed", across))
            waits = stage == behind[0] and pipeline != behind[1]
            if waits:
                dump["entries"].append(collective(9, "scheduled", across))
            dump["pg_config"] = {name: {"ranks": str(list(k))} for name, k in ranks.items()}
            dump["pg_status"] = {
                "1": dump["pg_status"]["0"],
                "2": {
                    "last_enqueued_collective": 8 + waits,
                    "last_completed_collective": 8,
                },
            }
            dump["entries"] = [dict(entry, record_id=k) for k, entry in enumerate(dump["entries"])]
            job[f"nccl_trace_rank_{stage * pipelines + pipeline}"] = dump
    return job


def pickled(dump):
    return pickle.dumps(dump, protocol=2)


def test_a_whole_job():
    """All pipelines hang, since a rank of one has not come to a collective of the others."""
    program = weft.Program.load(DUMPS / "sleeper" / "program.csv")
    job = merged("sleeper", 3, behind=(2, 1))
    found = hang.from_dumps({name: pickled(dump) for name, dump in job.items()}, program)
    assert (found.culprit, found.suspects, found.cycle) == (7, (), ())
    ranks = {rank.rank: rank for rank in found.ranks}
    assert ranks[7][-2:] == (1, 2) and ranks[7].file == "nccl_trace_rank_7"
    assert ranks[6].collectives[0].ranks == "[6, 7, 8]" and ranks[6].collectives[0].line == 123
    assert ranks[2] == hang.Rank(
        2, "waiting", "4RECV_F3", 3, 11, "nccl_trace_rank_2", ("4RECV_F3",), (), 2, 0
    )
    assert "rank 7 (nccl_trace_rank_7): is in 2F3, in step 3; 11 of 12 ranks wait" in found.message
    assert "group mesh_fsdp (train.py:123) for rank 7" in str(found)
    del job["nccl_trace_rank_7"]
    found = hang.from_dumps({name: pickled(dump) for name, dump in job.items()}, program)
    assert found.culprit is None and found.suspects == (7,)
    assert found.message.startswith("cannot tell: ") and "there is no dump of it" in found.message


@pytest.mark.parametrize("folder", ["fsdp", "fsdp-item"])
def test_recorded_jobs(folder):
    """What PyTorch 2.11 over NCCL wrote: 2 x 2 ranks, an all-gather in each forward.

    Rank 3 sleeps in 1F1, before its all-gather, or after it, where each rank reads a number of it.
    """
    program = weft.Program.load(DUMPS / folder / "program.csv")
    found = hang.from_flight_recorder(DUMPS / folder, program)
    assert found.culprit == 3 and "rank 3 (nccl_trace_rank_3): is in 1F1, in step 3" in str(found)
    waits = [k for rank in found.ranks for k in rank.collectives if k.group == "mesh_dp"]
    assert len(waits) == 3 and {(k.line, k.function) for k in waits} == {(22, "forward")}
    assert hang.from_dumps(
        {name: pickled(dump) for name, dump in recorded(folder).items() if name[-1] in "02"},
        program,
    ).message.startswith("cannot tell: ")


# What can be wrong with a dump: each changes one.


def lose_beginning(chance, dump):
    dump["entries"] = dump["entries"][chance.randrange(1, len(dump["entries"]) - 20) :]


def lose_end(chance, dump):
    dump["entries"] = dump["entries"][: -chance.randrange(1, 40)]


def be_early(chance, dump):
    lose_end(chance, dump)
    for group, status in dump["pg_status"].items():
        entries = [entry for entry in dump["entries"] if str(entry["pg_id"]) == group]
        numbers = [max(entry["p2p_seq_id"], entry["collective_seq_id"]) for entry in entries]
        status["last_enqueued_collective"] = max(numbers, default=0)


def change_state(chance, dump):
    states = ["scheduled", "started", "completed"]
    chance.choice(dump["entries"][-120:])["state"] = chance.choice(states)


def lose_entry(chance, dump):
    del dump["entries"][chance.randrange(len(dump["entries"]))]


def repeat_entry(chance, dump):
    k = chance.randrange(len(dump["entries"]))
    dump["entries"].insert(k, copy.deepcopy(dump["entries"][k]))


def exchange_entries(chance, dump):
    k = chance.randrange(len(dump["entries"]) - 1)
    dump["entries"][k : k + 2] = dump["entries"][k : k + 2][::-1]


def change_number(chance, dump):
    chance.choice(dump["entries"][-120:])["p2p_seq_id"] += chance.choice([-2, -1, 1, 2])


def change_ranks(chance, dump):
    name = chance.choice(dump["entries"])["profiling_name"]
    other = "".join(chance.choice("0123") if k.isdigit() else k for k in name)
    one = chance.random() < 0.5
    for entry in dump["entries"]:
        if entry["profiling_name"] == name and not (one and chance.random() < 0.9):
            entry["profiling_name"] = other


def change_group(chance, dump):
    group = chance.choice(sorted(dump["pg_config"]))
    ranks = sorted(chance.sample(range(10), chance.randrange(1, 8)))
    dump["pg_config"][group]["ranks"] = str(ranks)


def change_bytes(chance, data):
    data = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 5, 20])):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def cut(chance, data):
    return data[: chance.randrange(len(data))]


def noise(chance, data):
    return bytes(chance.randrange(256) for _ in range(chance.randrange(200)))


ENTRIES = [lose_beginning, lose_end, be_early, change_state, lose_entry, repeat_entry]
ENTRIES += [exchange_entries, change_number, change_ranks, change_group]
BYTES = [change_bytes, change_bytes, cut, noise]


def damage(chance, job):
    """Some dumps are lost, of another rank, changed or garbage. Also, whose dump each was."""
    job, whose = dict(job), {name: name for name in job}
    for _ in range(chance.choice([1, 1, 1, 2, 2, 3])):
        name, other = chance.choice(sorted(job)), chance.choice(sorted(job))
        kind = chance.random()
        if kind < 0.15 and len(job) > 1:
            del job[name]
        elif kind < 0.22:
            job[name], job[other] = job[other], job[name]
            whose[name], whose[other] = whose[other], whose[name]
        elif kind < 0.27:
            job[name], whose[name] = job[other], whose[other]
        elif kind < 0.65 and isinstance(job[name], dict) and len(job[name]["entries"]) > 60:
            job[name] = copy.deepcopy(job[name])
            chance.choice(ENTRIES)(chance, job[name])
        else:
            data = job[name] if isinstance(job[name], bytes) else pickled(job[name])
            job[name] = chance.choice(BYTES)(chance, data or b"0")
    return job, whose


def recorded(folder):
    """The dumps of a folder: a whole job as PyTorch has recorded it."""
    files = (DUMPS / folder).glob("nccl_trace_rank_*")
    return {file.name: pickle.loads(file.read_bytes()) for file in files}


def test_damaged_jobs():
    """A thousand folders: the right culprit, or none with the reason. Seeds: WEFT_TEST_SEEDS."""
    table = weft.Table.named("Interleaved1F1B", ranks=2, stages_per_rank=2, microbatches=6)
    small = weft.Program.load(DUMPS / "fsdp" / "program.csv")
    large = weft.Program.load(DUMPS / "sleeper" / "program.csv")
    jobs = [(merged("skewed", 2, behind=(1, 0)), table, 2)] * 5
    jobs += [(recorded("fsdp"), small, 3), (recorded("fsdp-item"), small, 3)] * 5
    jobs += [(merged("sleeper", 2, behind=(2, 1)), large, 5)]
    whole = {id(dump): pickled(dump) for job, _, _ in jobs for dump in job.values()}
    verdicts = collections.Counter()
    for seed in range(int(os.environ.get("WEFT_TEST_SEEDS", "1000"))):
        chance = random.Random(seed)
        job, program, culprit = jobs[seed % len(jobs)]
        damaged, whose = damage(chance, job)
        dumps = {
            name: dump if isinstance(dump, bytes) else whole.get(id(dump)) or pickled(dump)
            for name, dump in damaged.items()
        }
        try:
            found = hang.from_dumps(dumps, program)
        except weft.Error as error:
            assert str(error), seed
            verdicts["refused"] += 1
            continue
        verdicts[found.culprit is not None] += 1
        if found.culprit is None:
            assert found.message.startswith("cannot tell: ") and found.suspects, seed
            assert found.cycle == (), seed
        elif found.culprit != culprit:  # process groups may give that process another number
            file = next(rank.file for rank in found.ranks if rank.rank == found.culprit)
            assert whose[file] == f"nccl_trace_rank_{culprit}", (seed, found.message)
    assert verdicts[True] > sum(verdicts.values()) / 2, verdicts
    assert verdicts["refused"] < sum(verdicts.values()) / 4, verdicts
    print(verdicts)
