"""What other frameworks need to run a plan, and DeepSpeed's schedules."""

import pytest
import weft_pipeline as weft
from weft_pipeline import frameworks


def planned(layers, **options):
    part = {"f": 1, "i": 1, "w": 1, "activation": 1}
    costs = weft.Costs.from_dict(
        {"schema": "weft-costs/1", "stages": [{}], "parts": [part] * (layers + 2)}
    )
    return weft.plan(ranks=2, microbatches=4, costs=costs, threads=1, effort=0.05, **options)


def test_torchtitan(tmp_path):
    plan = planned(6, stages_per_rank=2, placement="v")
    made = frameworks.torchtitan(plan, tmp_path / "plan.csv", tokens_per_microbatch=4096)
    assert made.settings["parallelism.pipeline_parallel_degree"] == 2
    assert made.settings["training.disable_cuda_graphs"] is True
    assert "rank r has stages r and 3 - r" in made.notes
    flags = " ".join(made.flags)
    assert "--parallelism.pipeline_parallel_degree 2 " in flags
    assert "--parallelism.pipeline_parallel_schedule ZBVZeroBubble " in flags
    assert "--parallelism.num_pp_microbatches 4 " in flags
    assert "--training.num_tokens_per_microbatch_per_dp_rank 4096" in flags
    assert "--training.disable_cuda_graphs" in made.flags
    assert weft.Table.load(tmp_path / "plan.csv") == plan.table
    lists = made.module_fqns_per_model_part
    assert len(lists) == 4
    assert [name for part in lists for name in part] == [
        "tok_embeddings",
        *(f"layers.{k}" for k in range(6)),
        "norm",
        "lm_head",
    ]
    own = frameworks.torchtitan(plan, tmp_path / "plan.csv", modules=[f"m{k}" for k in range(8)])
    assert own.settings["parallelism.module_fqns_per_model_part"][0][0] == "m0"
    with pytest.raises(weft.UsageError):
        frameworks.torchtitan(plan, tmp_path / "plan.csv", modules=["one"])


def test_torchtitan_takes_no_reduce_grad(tmp_path):
    table = weft.Table.named("1F1B", ranks=2, microbatches=4)
    made = frameworks.torchtitan(table, tmp_path / "table.csv")
    assert "PipelineScheduleSingle" in made.flags
    assert made.module_fqns_per_model_part is None
    assert "REDUCE_GRAD" in str(table)
    assert "REDUCE_GRAD" not in (tmp_path / "table.csv").read_text()
    with pytest.raises(weft.InvalidError):
        odd = weft.Table.from_rows([["1F0", "1B0"], ["0F0", "0B0"]])
        frameworks.torchtitan(odd, tmp_path / "table.csv")
    with pytest.raises(TypeError):
        frameworks.torchtitan(table.lower(), tmp_path / "table.csv")


def test_pytorch(tmp_path):
    table = weft.Table.named("ZBH1", ranks=2, microbatches=4)
    made = frameworks.pytorch(table, tmp_path / "table.csv")
    assert "n_microbatches=4" in made.code and "_load_csv" in made.code
    compile(made.code, "code", "exec")
    assert any("torch.compile" in note for note in made.notes)
    assert weft.Table.load(tmp_path / "table.csv") == table.for_pytorch()
    with pytest.raises(TypeError):
        frameworks.pytorch("table.csv", tmp_path / "table.csv")


def test_megatron():
    plan = planned(6, stages_per_rank=2, placement="loop")
    made = frameworks.megatron(plan)
    assert made.layout.replace("|", "") == "EttttttL"
    assert [len(stage) for stage in made.layout.split("|")] == list(plan.stage_parts)
    assert made.flags[-1] == "2"
    assert frameworks.megatron([2, 3, 0, 2], ranks=2, parts="EtttmmL").layout == "Et|ttm||mL"
    assert frameworks.megatron([2, 2], ranks=2).flags[:2] == ("--pipeline-model-parallel-size", "2")
    for wrong, kind in (
        (planned(6, stages_per_rank=2, placement="v"), weft.InvalidError),
        (weft.plan(ranks=2, microbatches=2), weft.UsageError),
        ("2,2", TypeError),
        (3, TypeError),
    ):
        with pytest.raises(kind):
            frameworks.megatron(wrong, ranks=2)
    with pytest.raises(weft.UsageError):
        frameworks.megatron([1, 1, 1], ranks=2)
    with pytest.raises(weft.UsageError):
        frameworks.megatron([2, 2], ranks=2, parts="Ex?L")


def command(name, buffer=None):
    made = type(name, (), {})()
    if buffer is not None:
        made.buffer_id = buffer
    return made


class OneByOne:
    """A schedule in DeepSpeed's words: every microbatch goes to the end and back."""

    buffers = 2

    def __init__(self, microbatches, ranks, rank):
        self.shape = microbatches, ranks, rank

    def steps(self):
        microbatches, ranks, rank = self.shape
        for k in range(microbatches):
            b = k % self.buffers
            arrive = [command("RecvActivation", b)] if rank else [command("LoadMicroBatch", b)]
            leave = [command("SendActivation", b)] if rank < ranks - 1 else []
            yield [*arrive, command("ForwardPass", b), *leave]
            arrive = [command("RecvGrad", b)] if rank < ranks - 1 else []
            leave = [command("SendGrad", b)] if rank else []
            yield [*arrive, command("BackwardPass", b), *leave]
        yield [command("ReduceTiedGrads"), command("ReduceGrads"), command("OptimizerStep")]


class Crossed(OneByOne):
    """The first rank wants a gradient before it sends what that is made of."""

    def steps(self):
        for commands in super().steps():
            if self.shape[2] == 0 and type(commands[-1]).__name__ == "SendActivation":
                commands.insert(-1, command("RecvGrad", commands[-1].buffer_id))
            elif self.shape[2] == 0 and type(commands[0]).__name__ == "RecvGrad":
                del commands[0]
            yield commands


def test_deepspeed():
    program = frameworks.deepspeed(OneByOne, ranks=3, microbatches=4)
    assert program.verify().raise_if_bad().has_backward
    assert str(program).splitlines()[2].startswith("2RECV_F0,2F0,2B0,2SEND_B0,2RECV_F1")
    found = frameworks.deepspeed(Crossed, ranks=2, microbatches=2).verify()
    assert [finding.rule for finding in found.findings] == ["deadlock"]

    class Empty(OneByOne):
        def steps(self):
            yield [command("BackwardPass", 0)]

    with pytest.raises(weft.InvalidError):
        frameworks.deepspeed(Empty, ranks=2, microbatches=2)
    for wrong in (None, 3):
        with pytest.raises(TypeError):
            frameworks.deepspeed(wrong, ranks=2, microbatches=2)
