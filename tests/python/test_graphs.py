"""Graphs of stages: objects, tables, plans; what keeps a graph, and what has to refuse one."""

import copy
import pickle

import pytest
import weft_pipeline as weft
from weft_pipeline import frameworks

SKIP = weft.Graph("0>1,0>2,1>2", names=["down", "middle", "up"])
FROZEN = weft.Graph("0>1F,1>2")
SIZED = weft.Graph([weft.Edge(0, 1, bytes=4), (1, 2), weft.Edge(0, 2, True, 16, 8)])


def test_edges():
    assert str(SKIP) == "0>1,0>2,1>2"
    assert repr(SKIP) == "<weft_pipeline.Graph: 3 stages, 0>1,0>2,1>2>"
    assert SKIP.stages == 3 and SKIP.names == ("down", "middle", "up")
    assert (SKIP.inputs_of(2), SKIP.outputs_of(0)) == ((0, 1), (1, 2))
    assert (SKIP.sources, SKIP.losses) == ((0,), (2,))
    assert FROZEN.edges == (weft.Edge(0, 1, gradient=False), weft.Edge(1, 2))
    assert SIZED.edges[1] == weft.Edge(0, 2, True, 16, 8)
    assert weft.Graph([(1, 2), "0>1"]).is_chain and not FROZEN.is_chain
    many = weft.Graph([(k, k + 1) for k in range(99)])
    assert repr(many).endswith("...>") and len(repr(many)) < 120


def test_equality_is_of_edges_sizes_and_names():
    assert weft.Graph(["1>2", (0, 1), weft.Edge(0, 2)], names=["down", "middle", "up"]) == SKIP
    others = [SIZED, FROZEN, weft.Graph("0>1,1>2"), weft.Graph("0>1,0>2,1>2"), "0>1,0>2,1>2"]
    assert all(other != SKIP for other in others)
    assert len({SKIP, SIZED, FROZEN, copy.copy(SKIP)}) == 3


@pytest.mark.parametrize("graph", [SKIP, FROZEN, SIZED])
def test_graph_copies(graph, tmp_path):
    assert pickle.loads(pickle.dumps(graph)) == graph
    assert weft.Graph.from_dict(graph.to_dict()) == graph
    graph.save(tmp_path / "graph.json")
    assert weft.Graph.load(tmp_path / "graph.json") == graph
    table = weft.Table.named("1F1B", graph=graph, microbatches=4)
    for made in (table, table.lower(), table.lower().dry_run()):
        assert made.graph == graph
        for again in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
            assert again == made and again.graph == graph
    table.save(tmp_path / "table.csv")  # which has no names and sizes
    assert weft.Table.load(tmp_path / "table.csv") == table
    assert weft.Table.load(tmp_path / "table.csv", graph).graph == graph


@pytest.mark.parametrize(
    ("edges", "options", "said"),
    [
        ("0>1,1>0", {}, "the edge 1>0 goes back"),
        ("0>1,2>1", {}, "the edge 2>1 goes back"),
        ("0>1", {"names": ["a", "a"]}, "stage 1 'a' has the name of stage 0"),
        ("0>1", {"names": ["a", ""]}, "the name of stage 1 is empty"),
        ("0>0", {}, "stage 0"),
        ("0>1,0>1", {}, "0>1"),
        ("0>2", {}, "stage 1 has no edge"),
        ("0>1,1>2F", {}, "0>1"),
        ("0-1", {}, "edges[0] is '0-1'; expected 0>2, say"),
        ("", {}, "edges[0] is ''"),
        ([], {}, ""),
        ("0>300", {}, ""),
        ([(0, 70000)], {}, "to_stage of edges[0] is 70000"),
        ([(0, 1, True, -1)], {}, "bytes of edges[0] is -1"),
        ([(0, 1, True, float("nan"))], {}, "bytes of edges[0]"),
        ([(0,)], {}, "edges[0] has 1 items"),
        ("0>1", {"names": ["a"]}, "there are 1 stages"),
        ("0>1", {"names": ["a", "b", "c"]}, "no edge"),
    ],
)
def test_no_graph(edges, options, said):
    with pytest.raises(weft.Error) as caught:
        weft.Graph(edges, **options)
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("edges", "options"),
    [
        (None, {}),
        (7, {}),
        (b"0>1", {}),
        ({0: 1}, {}),
        ([None], {}),
        ([{0: 1}], {}),
        ([(0, "1")], {}),
        ([(0, 1, 1)], {}),
        ("0>1", {"names": "ab"}),
        ("0>1", {"names": [1, 2]}),
        ("0>1", {"names": 2}),
    ],
)
def test_wrong_types(edges, options):
    with pytest.raises(TypeError):
        weft.Graph(edges, **options)


def test_graph_is_immutable():
    with pytest.raises(AttributeError):
        SKIP.stages = 4
    for wrong in (-1, 3):
        with pytest.raises(weft.UsageError):
            SKIP.inputs_of(wrong)


def test_diff_has_the_edges():
    table = weft.Table.named("1F1B", graph=SKIP, microbatches=4)
    chain = weft.Table.from_rows(table)
    assert table != chain
    found = table.diff(chain)
    assert found and found.edges == (weft.EdgeDifference(0, 2, True, None),)
    assert str(found) == "edge 0>2: with gradient -> none"
    assert str(chain.diff(table)) == "edge 0>2: none -> with gradient"
    frozen = weft.Table.from_rows(table, graph=weft.Graph("0>1,0>2F,1>2"))
    assert str(table.diff(frozen, 0)) == "edge 0>2: with gradient -> without gradient"
    assert not table.diff(weft.Table.parse(str(table)))
    assert not chain.diff(weft.Table.from_rows(chain, graph=weft.Graph("0>1,1>2")))


def test_rows_keep_the_graph_that_is_given():
    table = weft.Table.named("ZBH1", graph=SKIP, microbatches=4)
    for made in (table, table.lower()):
        again = type(made).from_rows(made, graph=made.graph)
        assert again == made and again.graph == made.graph and not again.diff(made)
        assert again.verify().ok
        assert "a graph" in repr(again)
    assert weft.Table.named("1F1B", ranks=2, microbatches=2).graph is None
    with pytest.raises(weft.UsageError, match=r"row #graph of input is 0>1,0>2,1>2"):
        weft.Table.parse(str(table), graph=FROZEN)
    with pytest.raises(weft.UsageError, match="3 stages, and a graph of 2"):
        weft.Table.from_rows(table, graph=weft.Graph("0>1"))
    with pytest.raises(TypeError):
        weft.Table.from_rows(table, graph="0>1,1>2")


def test_everything_follows_the_graph():
    table = weft.Table.named("1F1B", graph=SIZED, microbatches=4)
    program = table.lower()
    assert "0SEND_F0>2" in str(program) and program.verify().ok
    costs = weft.Costs(hop_bytes=4, hop_bytes_per_unit=4)
    plain = weft.Table.parse(str(table))  # every edge carries the bytes of the hop
    assert table.simulate(costs).makespan > plain.simulate(costs).makespan
    assert table.simulate(costs).ranks[2].message_bytes >= 16
    assert plain.simulate().ranks[2].message_bytes == 0
    send = next(entry for entry in program.explain(0) if str(entry.action) == "0SEND_F0>2")
    assert str(send.peer.action) == "2RECV_F0<0"
    frozen = weft.Table.named("1F1B", graph=FROZEN, microbatches=2)
    assert frozen.verify().ok and "0B" not in str(frozen)
    with pytest.raises(weft.UsageError):
        weft.Table.named("1F1B", ranks=2, graph=SKIP, microbatches=2)


def test_plan_of_a_graph():
    encoders = weft.Graph("0>2,2>4,1>3,3>4,4>5,0>5")
    found = weft.plan(ranks=6, microbatches=8, graph=encoders, threads=1)
    assert found.optimal and found.makespan == 27 and found.table.graph == encoders
    placed = (0, 1, 0, 1, 2, 2)
    found = weft.plan(ranks=3, microbatches=8, graph=encoders, stage_ranks=placed, threads=1)
    assert found.makespan == 25 and found.table.rank_of_stage == placed
    assert found.table.simulate().makespan == found.simulate().makespan == 25
    assert found.table.lower().verify().ok
    assert found.placement == "as given" and "6 stages of a graph" in repr(found)
    slow = weft.plan(ranks=6, microbatches=8, graph=encoders, rank_factors=[1] * 5 + [2], threads=1)
    assert slow.makespan > 27 and slow.simulate().makespan == slow.makespan
    wrong = [
        {"stage_ranks": placed},
        {"graph": encoders, "stage_ranks": (0, 1, 2)},
        {"graph": encoders, "stage_ranks": (0, 1, 0, 1, 2, 3)},
        {"graph": encoders, "stage_ranks": placed, "placement": "v"},
        {"graph": encoders, "stages_per_rank": 2},
    ]
    for options in wrong:
        with pytest.raises(weft.UsageError):
            weft.plan(ranks=3, microbatches=8, **options)
    for options in ({"graph": "0>1"}, {"graph": encoders, "stage_ranks": "010122"}):
        with pytest.raises(TypeError):
            weft.plan(ranks=3, microbatches=8, **options)


def test_choose_for_a_graph():
    graph = weft.Graph("0>2,1>2,2>3")
    found = weft.choose(ranks=4, global_batch=8, costs=weft.Costs(), graph=graph, threads=1)
    plans = [each.plan for each in found.candidates if each.plan is not None]
    assert plans and all(plan.table.graph == graph for plan in plans)
    assert found.candidates[0].replicas * found.candidates[0].ranks == 4


def test_compare_ranks_the_schedules_of_a_graph():
    encoders = weft.Graph("0>2,2>4,1>3,3>4,4>5,0>5")
    found = weft.compare(graph=encoders, microbatches=8)
    names = ["ZBH1", "InterleavedZeroBubble", "1F1B", "Eager1F1B", "GPipe"]  # docs/graphs.md
    assert [entry.name for entry in found.entries[:5]] == names
    assert not found.per_stage and found.best.makespan == 27 and found.best.table.graph == encoders
    fast = weft.plan(ranks=6, microbatches=8, graph=encoders, threads=1).table
    again = weft.compare(fast, found.entries[2].table, costs=weft.Costs(f=[1] * 6, hop=0.5))
    assert {entry.table.graph for entry in again.entries} == {encoders}
    assert len(again.entries) == len(found.entries) + 2
    placed = (0, 1, 2, 3, 0, 0)
    uneven = weft.plan(ranks=4, microbatches=8, graph=encoders, stage_ranks=placed, threads=1)
    assert len(weft.compare(uneven.table, costs=weft.Costs(f=[1] * 6)).entries) == 1
    for programs, options in (
        ((fast, weft.Table.named("GPipe", ranks=6, microbatches=8)), {}),
        ((fast,), {"graph": SKIP}),
        ((), {"graph": encoders, "ranks": 4, "microbatches": 8}),
        ((), {"graph": encoders, "stages_per_rank": 4, "microbatches": 8}),
    ):
        with pytest.raises(weft.UsageError):
            weft.compare(*programs, **options)


def test_frameworks_with_chains_alone_say_so(tmp_path):
    table = weft.Table.named("1F1B", graph=SKIP, microbatches=4)
    with pytest.raises(weft.InvalidError, match="form a graph, 0>1,0>2,1>2"):
        frameworks.torchtitan(table, tmp_path / "x.csv")
    assert not (tmp_path / "x.csv").exists()
