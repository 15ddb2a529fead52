"""Graphs of modules on Weft's runtime: losses and gradients are those of plain PyTorch."""

import json
import os
import random
import re
from pathlib import Path

import pytest
import test_launch
import weft_pipeline as weft
import weft_pipeline.torch as weft_torch

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

WIDTH, ROWS, MICROBATCHES = 4, 2, 4


def step_on(pipeline, batch):
    x, y = batch
    return pipeline.step(x, target=y)


def loss_of(output, target):
    return ((output - target) ** 2).sum()


def half_loss_of(output, target):
    return 0.5 * (output - target).abs().sum()


class Join(torch.nn.Module):
    """Takes any number of tensors, whose order matters; gives one, or one for each out-edge."""

    def __init__(self, widths, outputs=0, hidden=WIDTH):
        super().__init__()
        self.inputs = torch.nn.ModuleList(torch.nn.Linear(width, hidden) for width in widths)
        self.last = torch.nn.Linear(hidden, WIDTH)
        self.outputs = outputs

    def forward(self, *xs):
        assert len(xs) == len(self.inputs)
        y = sum((k + 1) * torch.tanh(part(x)) for k, (part, x) in enumerate(zip(self.inputs, xs)))
        y = self.last(y)
        return tuple(y * (k + 1) for k in range(self.outputs)) if self.outputs else y


def modules_for(graph, widths=None, tuples=(), hidden=WIDTH):
    torch.manual_seed(3)
    return [
        Join(
            [WIDTH] * len(graph.inputs_of(k)) or [(widths or {}).get(k, WIDTH)],
            len(graph.outputs_of(k)) if k in tuples else 0,
            hidden,
        )
        for k in range(graph.stages)
    ]


def reference(modules, graph, xs, targets, losses):
    """Losses by head and gradients, microbatch by microbatch, without a pipeline."""
    heads = {k: [] for k in graph.losses}
    outputs = {k: [] for k in graph.losses}
    for n in range(MICROBATCHES):
        edges, total = {}, 0
        for k, module in enumerate(modules):
            if k in xs:
                y = module(xs[k].tensor_split(MICROBATCHES)[n])
            else:
                y = module(*(edges[f, k] for f in graph.inputs_of(k)))
            out = [edge for edge in graph.edges if edge.from_stage == k]
            for j, edge in enumerate(out):
                part = y[j] if isinstance(y, tuple) else y
                edges[k, edge.to_stage] = part if edge.gradient else part.detach()
            if k in heads:
                outputs[k].append(y.detach())
                loss = losses[k](y, targets[k].tensor_split(MICROBATCHES)[n])
                heads[k].append(loss.item())
                total = total + loss
        total.backward()
    gradients = [[weight.grad for weight in module.parameters()] for module in modules]
    for module in modules:
        module.zero_grad()
    return heads, gradients, {k: torch.cat(parts) for k, parts in outputs.items()}


def close(found, expected):
    if expected is None or found is None:
        return found is expected
    return torch.allclose(found, expected, rtol=1e-5, atol=1e-6)


def batches_for(graph, widths):
    random_of = torch.Generator().manual_seed(5)
    rows = ROWS * MICROBATCHES
    xs = {k: torch.randn(rows, widths.get(k, WIDTH), generator=random_of) for k in graph.sources}
    return xs, {k: torch.randn(rows, WIDTH, generator=random_of) for k in graph.losses}


def compare(modules, graph, schedule, widths=None, losses=None):
    """Run a step and an eval of a pipeline, and compare them with plain PyTorch."""
    losses = losses or dict.fromkeys(graph.losses, loss_of)
    xs, targets = batches_for(graph, widths or {})
    heads, gradients, outputs = reference(modules, graph, xs, targets, losses)
    pipeline = weft_torch.Pipeline(
        modules,
        schedule,
        list(losses.values()),
        graph=graph if isinstance(schedule, str) else None,
        microbatches=MICROBATCHES,
        scale_grads=False,
        stall_limit=60,
    )
    found = pipeline.step(*xs.values(), target=list(targets.values()), return_outputs=True)
    assert sorted(found.heads) == list(graph.losses)
    for k, expected in heads.items():
        assert found.heads[k] == pytest.approx(expected, rel=1e-5)
    assert found.losses == pytest.approx([sum(each) for each in zip(*heads.values())], rel=1e-5)
    for module, expected in zip(modules, gradients):
        for weight, want in zip(module.parameters(), expected):
            assert close(weight.grad, want)
    again = pipeline.eval(*xs.values()).output
    for made in (found.output, again):
        made = made if len(outputs) > 1 else (made,)
        assert all(close(one, want) for one, want in zip(made, outputs.values()))
    pipeline.step(*xs.values(), target=list(targets.values()))  # gradients add up
    for module, expected in zip(modules, gradients):
        for weight, want in zip(module.parameters(), expected):
            assert close(weight.grad, None if want is None else 2 * want)
    pipeline.close()


GRAPHS = {
    "skip": "0>1,0>2,1>2",
    "encoders": "0>2,1>2",
    "frozen": "0>1F,1>2",
    "frozen-skip": "0>1F,0>3F,1>2,2>3",
    "heads": "0>1,0>2",
    "unet": "0>1,1>2,2>3,3>4,1>3,0>4",
    "half": "0>1,0>2F,1>2",
}


@pytest.mark.parametrize("name", ["1F1B", "GPipe", "ZBH1"])
@pytest.mark.parametrize("edges", GRAPHS.values(), ids=GRAPHS)
def test_graphs_compute_the_same(edges, name):
    graph = weft.Graph(edges)
    compare(modules_for(graph), graph, name)


def test_a_tensor_for_each_edge():
    graph = weft.Graph(GRAPHS["unet"])
    for name in ("1F1B", "ZBH1"):
        compare(modules_for(graph, tuples=(0, 1)), graph, name)
    half = weft.Graph(GRAPHS["half"])
    compare(modules_for(half, tuples=(0,)), half, "ZBH1")


def test_encoders_and_heads_have_data_of_their_own():
    graph = weft.Graph("0>2,1>2,2>3,2>4")
    widths = {0: 3, 1: 7}
    losses = {3: loss_of, 4: half_loss_of}
    compare(modules_for(graph, widths), graph, "1F1B", widths, losses)


def test_large_stages_split_their_backward():
    graph = weft.Graph(GRAPHS["skip"])
    modules = modules_for(graph, hidden=7400)
    pipeline = weft_torch.Pipeline(modules, "ZBH1", loss_of, graph=graph, microbatches=4)
    assert all(stage.visits_graph for stage in pipeline._stages)
    compare(modules, graph, "ZBH1")


def random_graph(choose, stages):
    edges = {
        (k - 1, k) if choose.random() < 0.5 else (choose.randrange(k), k) for k in range(1, stages)
    }
    edges |= {tuple(sorted(choose.sample(range(stages), 2))) for _ in range(stages // 2)}
    return [weft.Edge(*edge, choose.random() < 0.8) for edge in sorted(edges)]


def test_random_graphs_on_any_placement():
    choose = random.Random(11)
    made = 0
    while made < 12:
        edges = random_graph(choose, choose.randint(3, 7))
        try:
            graph = weft.Graph(edges)
        except weft.InvalidError:  # a gradient that nobody can send
            continue
        ranks = choose.randint(2, 3)
        placed = [k % ranks for k in range(graph.stages)]
        choose.shuffle(placed)
        plan = weft.plan(
            ranks=ranks,
            microbatches=MICROBATCHES,
            graph=graph,
            stage_ranks=placed,
            effort=0.02,
            threads=1,
        )
        tuples = [k for k in range(graph.stages) if choose.random() < 0.5]
        tuples = [k for k in tuples if len(graph.outputs_of(k)) > 1]
        compare(modules_for(graph, tuples=tuples), graph, plan)
        made += 1


class Tokens(torch.nn.Module):
    """Gives an embedding, and the tokens themselves, which have no gradient."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(10, WIDTH)

    def forward(self, tokens):
        return self.table(tokens), tokens


class Use(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(10, WIDTH)

    def forward(self, tokens, x):
        return x * self.table(tokens)


def test_integers_and_halves_over_an_edge():
    graph = weft.Graph("0>1,0>2,1>2")
    for kind, name in ((torch.float32, "ZBH1"), (torch.bfloat16, "1F1B")):
        torch.manual_seed(1)
        modules = [Tokens(), torch.nn.Linear(WIDTH, WIDTH), Use()]
        for module in modules:
            module.to(kind)
        x = torch.arange(8) % 10
        target = torch.randn(8, WIDTH).to(kind)
        pipeline = weft_torch.Pipeline(
            modules, name, loss_of, graph=graph, microbatches=4, scale_grads=False
        )
        losses = pipeline.step(x, target=target).losses
        found = [weight.grad.clone() for module in modules for weight in module.parameters()]
        for module in modules:
            module.zero_grad()
        for n, (rows, want) in enumerate(zip(x.tensor_split(4), target.tensor_split(4))):
            y, tokens = modules[0](rows)
            loss = loss_of(modules[2](tokens, modules[1](y)), want)
            loss.backward()
            assert losses[n] == loss.item()
        expected = [weight.grad for module in modules for weight in module.parameters()]
        assert all(torch.equal(got, want) for got, want in zip(found, expected))


def test_a_shared_output_of_halves():
    graph = weft.Graph("0>1,0>2,1>2")
    modules = [module.to(torch.bfloat16) for module in modules_for(graph)]
    x, y = (torch.randn(8, WIDTH).to(torch.bfloat16) for _ in range(2))
    pipeline = weft_torch.Pipeline(modules, "1F1B", loss_of, graph=graph, microbatches=4)
    assert len(pipeline.step(x, target=y).losses) == 4
    assert all(weight.grad is not None for weight in modules[0].parameters())


def test_one_batch_for_all():
    graph = weft.Graph("0>2,1>2")
    modules = modules_for(graph)
    x, y = torch.randn(8, WIDTH), torch.randn(8, WIDTH)
    pipeline = weft_torch.Pipeline(modules, "1F1B", loss_of, graph=graph, microbatches=4)
    assert pipeline.step(x, target=y).losses == pipeline.step((x, x), target=[y]).losses
    larger, targets = torch.cat([x, x]), torch.cat([y, y])  # new buffers
    assert len(pipeline.step((larger, larger), target=targets).losses) == 4


def test_refused_with_a_hint():
    graph = weft.Graph("0>1,0>2,1>2")
    modules = modules_for(graph)
    x, y = torch.randn(8, WIDTH), torch.randn(8, WIDTH)
    table = weft.Table.named("1F1B", graph=graph, microbatches=4)
    chain = weft.Table.named("1F1B", ranks=3, microbatches=4)
    for arguments, options in (
        ((modules[:2], "1F1B", loss_of), {"graph": graph, "microbatches": 4}),
        ((modules, "1F1B", loss_of), {"graph": graph}),
        ((modules, chain, loss_of), {"graph": graph}),
        ((modules, table, loss_of), {"graph": weft.Graph("0>1,1>2")}),
        ((modules, table, [loss_of, loss_of]), {}),
    ):
        with pytest.raises(weft.UsageError) as caught:
            weft_torch.Pipeline(*arguments, **options)
        assert caught.value.hint
    for loss, options in (("loss", {}), (["loss"], {}), (loss_of, {"graph": "0>1"})):
        with pytest.raises(TypeError):
            weft_torch.Pipeline(modules, table, loss, **options)
    pipeline = weft_torch.Pipeline(modules, table, loss_of)
    for wrong in (((x, x), y), (x, (y, y)), (x, None)):
        with pytest.raises((weft.UsageError, TypeError)):
            step_on(pipeline, wrong)
    torch.manual_seed(0)
    three = [Join([WIDTH], 3), *modules[1:]]
    with pytest.raises(
        weft.UsageError, match=r"tuple of 3 \(tensor, tensor, tensor\); expected a tensor"
    ):
        weft_torch.Pipeline(three, table, loss_of).step(x, target=y)
    heads = weft.Graph("0>1,0>2")
    pipeline = weft_torch.Pipeline(
        modules_for(heads), "1F1B", [loss_of, None], graph=heads, microbatches=4
    )
    with pytest.raises(weft.UsageError, match="stage 2 has not both"):
        pipeline.step(x, target=y)
    found = pipeline.eval(x, target=y)
    assert list(found.heads) == [1] and len(found.output) == 2


def test_page():
    """docs/pytorch.md: its example runs."""
    page = Path(__file__).parent.parent.parent / "docs" / "pytorch.md"
    section = page.read_text(encoding="utf-8").split("### Graphs of modules\n")[1]
    source = re.search(r"```python\n(.*?)```\n", section, re.S)[1]
    exec(compile(source, str(page), "exec"), {})


def test_pytorchs_runtime_refuses_a_graph():
    table = weft.Table.named("1F1B", graph=weft.Graph("0>1,0>2,1>2"), microbatches=4)
    with pytest.raises(weft.InvalidError, match="form a graph, 0>1,0>2,1>2"):
        weft_torch.runtime([object()], table)


# ---- Between processes ----

MPI_GRAPH, MPI_PLACED = weft.Graph("0>2,1>2,2>3,2>4,0>4"), (0, 1, 1, 2, 0)

JOB = """\
import json, sys
sys.path[:0] = [FOLDER]
from weft_pipeline import launch
launch.begin()
import torch
import weft_pipeline as weft
import weft_pipeline.torch as weft_torch
from test_torch_graphs import *

torch.set_num_threads(1)
me = launch.info()
plan = weft.plan(ranks=3, microbatches=4, graph=MPI_GRAPH, stage_ranks=MPI_PLACED, threads=1)
mine = weft_torch.stages_of(plan, me.rank)
modules = [m if k in mine else None for k, m in enumerate(modules_for(MPI_GRAPH))]
xs, targets = (
    [tensor if k in mine else None for k, tensor in each.items()]
    for each in batches_for(MPI_GRAPH, {})
)
pipeline = weft_torch.Pipeline(modules, plan, loss_of, scale_grads=False, transport="mpi")
found = pipeline.step(xs, target=targets, return_outputs=True)
gradients = {k: [w.grad.tolist() for w in modules[k].parameters()] for k in mine}
outputs = [None if one is None else one.tolist() for one in found.output or ()]
with open(f"rank{me.rank}.json", "w") as file:
    json.dump([found.heads, gradients, outputs], file)
"""


@pytest.mark.parametrize("mpi", test_launch.MPIS[:1])
def test_graph_over_mpi(mpi, tmp_path, monkeypatch):
    file = tmp_path / "job.py"
    file.write_text(JOB.replace("FOLDER", repr(os.path.dirname(os.path.abspath(__file__)))))
    monkeypatch.setenv("WEFT_BUILD_DIR", os.path.abspath(test_launch.BUILD))
    monkeypatch.chdir(tmp_path)
    status, said = test_launch.mpirun(mpi, 3, file)
    assert status == 0, said
    found = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(3)]
    modules = modules_for(MPI_GRAPH)
    losses = dict.fromkeys(MPI_GRAPH.losses, loss_of)
    heads, gradients, outputs = reference(modules, MPI_GRAPH, *batches_for(MPI_GRAPH, {}), losses)
    assert [sorted(got[0]) for got in found] == [["4"], [], ["3"]]
    for k, rank in ((3, 2), (4, 0)):
        assert found[rank][0][str(k)] == pytest.approx(heads[k], rel=1e-5)
        assert close(torch.tensor(found[rank][2][k - 3]), outputs[k])
    assert [len(got[2]) for got in found] == [2, 0, 2] and found[0][2][0] is None
    together = {int(k): each for got in found for k, each in got[1].items()}
    for k, expected in enumerate(gradients):
        assert all(close(torch.tensor(got), want) for got, want in zip(together[k], expected))
