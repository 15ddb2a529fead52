"""A model of PyTorch as modules for the stages of a pipeline: torch.export's graph, cut."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, Optional, Union

from ._costs import Costs, CostsLike, costs_given
from ._errors import UsageError
from ._graph import Edge, Graph
from ._library import boolean, c, choice, integer, real, string
from ._plan import Plan, plan
from ._traced import Traced

_EFFORT = 0.05  # of the planner, which has one thread: all processes of a job find the same cuts


class Split(NamedTuple):
    """A model that is cut into stages, for Pipeline(split.modules, ..., graph=split.graph).

    `modules` has a module for each stage. Their weights and buffers are those of the model, under
    the same names. `graph` has the edges between stages; None: they form a chain. `parts` names the
    layers of each stage, in the order in which the model calls them; `costs` are those of all
    layers, for plan(). `values` says what goes over each edge: names of torch.export, or of a
    weight that a later stage uses, too.
    """

    modules: list[Any]
    graph: Optional[Graph]
    parts: tuple[tuple[str, ...], ...]
    costs: Costs
    values: dict[tuple[int, int], tuple[str, ...]]

    def __repr__(self) -> str:
        """List the stages and edges."""
        lines = [f"<weft_pipeline.torch.Split: {len(self.modules)} stages"]
        work = [part["f"] for part in self.costs.to_dict()["parts"]]
        for k, (module, parts) in enumerate(zip(self.modules, self.parts)):
            mine, work = work[: len(parts)], work[len(parts) :]
            names = f"{parts[0]} to {parts[-1]}" if len(parts) > 1 else parts[0]
            weights = sum(weight.numel() for weight in module.parameters())
            cost = f"{sum(mine):.3g} {self.costs.unit}".strip()
            lines.append(f"  stage {k}: {names} (forward {cost}, {weights:,} weights)")
        for (a, b), values in self.values.items():
            listed = ", ".join(values[:6]) + f" and {len(values) - 6} more" * (len(values) > 6)
            lines.append(f"  {a}>{b}: {listed or 'nothing'}")
        return "\n".join(lines) + ">"


def split(
    module: Any,
    example: Any,
    *,
    kwargs: Optional[Mapping[str, Any]] = None,
    stages: Union[int, Plan, None] = None,
    costs: Union[CostsLike, Sequence[float], None] = None,
    cuts: Optional[Sequence[str]] = None,
    skips: str = "edges",
    check: bool = True,
) -> Split:
    """Cut a model into the stages of a Pipeline.

    `example` is what the model takes, a tensor or a tuple, and `kwargs` what it takes by name: a
    microbatch of two rows or more. torch.export traces the model with it. Microbatches of step()
    may have other numbers of rows; all other sizes, and what is no tensor, are as in the example.

    `stages` is a number of stages, which the planner makes of the model's layers so that a step is
    short, or a plan for such costs: then its stages are taken. Costs are counted (floating-point
    operations of a forward); `costs` has measured ones: a number for each layer, or Costs with as
    many parts. Or `cuts` names the layers that stages begin with.

    What is needed beyond the next stage goes over an edge of its own; with skips="relay" from
    stage to stage, so that the stages form a chain, for schedules and plans without a graph.

    torch.export keeps what is computed with tensors, and neither hooks nor backward functions of
    one's own. So the model and the stages run the example twice, and split() raises an error if
    they give other outputs or gradients; check=False saves the time.
    """
    torch = import_module("torch")
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module must be a module of PyTorch, not {type(module).__name__}")
    choice(skips, "skips", ("edges", "relay"))
    if (stages is None) == (cuts is None):
        raise UsageError(
            "split() needs stages or cuts, and not both",
            'stages=4, stages=plan(...), or cuts=["layers.4", "layers.8"]',
        )
    args = example if isinstance(example, tuple) else (example,)
    options = dict(kwargs or {})
    model = Traced(torch, module, args, options)
    names = [part.name for part in model.parts]
    if costs is None:
        found = _costs_of(model.part_work(), "Mflop")
    elif isinstance(costs, (Costs, Mapping)):
        found = costs_given(costs)
        _check_count(len(found.to_dict().get("parts", ())), "costs", "parts", names)
    else:
        times = [real(t, f"costs[{k}]", 0, c.WEFT_COST_MAX) for k, t in enumerate(costs)]
        _check_count(len(times), "costs", "numbers", names)
        found = _costs_of(times, "")
    counts = _cuts_of(cuts, names) if cuts is not None else _counts_of(stages, found, names)
    made = _Cutter(model, counts, skips == "relay").split(found)
    if boolean(check, "check"):
        _check(torch, model, made, args, options)
    return made


# ---- Where to cut ----


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + ", ..." * (len(names) > 20)


def _costs_of(times: Sequence[float], unit: str) -> Costs:
    parts = [{"f": t, "i": t, "w": t} for t in times]
    return Costs.from_dict({"schema": "weft-costs/1", "unit": unit, "stages": [{}], "parts": parts})


def _check_count(count: int, what: str, items: str, names: Sequence[str]) -> None:
    if count != len(names):
        raise UsageError(
            f"{what} has {count} {items}; the model has {len(names)} layers: {_listed(names)}",
            "give one for each of them; split(module, example, stages=1).parts lists all",
        )


def _cuts_of(cuts: Sequence[str], names: Sequence[str]) -> list[int]:
    """How many layers each stage has, by those that stages begin with."""
    if isinstance(cuts, str):
        raise TypeError("cuts must be a sequence of names, not a str")
    begins = [0]
    for k, cut in enumerate(cuts):
        string(cut, f"cuts[{k}]")
        where = next((j for j, name in enumerate(names) if (name + ".").startswith(cut + ".")), -1)
        if where <= begins[-1]:
            wrong = "no layer" if where < 0 else "not behind the cut before it"
            raise UsageError(
                f"cuts[{k}] is {cut!r}: {wrong}; the model can be cut before: "
                f"{_listed(names[1:]) or 'no layer'}",
                "name the layers that stages begin with, in the order in which they are called",
            )
        begins.append(where)
    return [b - a for a, b in zip(begins, [*begins[1:], len(names)])]


def _counts_of(stages: Union[int, Plan, None], costs: Costs, names: Sequence[str]) -> list[int]:
    """How many layers each stage has, as the planner says."""
    if isinstance(stages, Plan):
        if stages.stage_parts is None:
            raise UsageError(
                "the plan has no partition of layers",
                "plan(costs=split(module, example, stages=1).costs, ...) makes one",
            )
        _check_count(sum(stages.stage_parts), "the plan", "layers", names)
        return list(stages.stage_parts)
    count = integer(stages, "stages", 1, c.WEFT_STAGES_MAX)
    if count > len(names):
        raise UsageError(
            f"{count} stages are wanted; the model can be cut into {len(names)}: {_listed(names)}",
            "make layers modules: elements of a ModuleList or Sequential, or attributes of the "
            "model; a layer that works in place on what the one before gives stays with it",
        )
    if count == 1:
        return [len(names)]
    found = plan(
        ranks=count,
        microbatches=4 * count,
        costs=costs,
        stages_per_rank=1,
        threads=1,
        effort=_EFFORT,
    )
    return list(found.stage_parts or ())


# ---- Cutting ----


class _Cutter:
    """Makes the modules of the stages."""

    def __init__(self, model: Traced, counts: list[int], is_relay: bool) -> None:
        """Find which stage has which node, and what goes over the edges."""
        self.model, self.torch = model, model.torch
        self.counts, self.is_relay = counts, is_relay
        self.stages = len(counts)
        self.stage_of = self._stages_of()
        self.carried = self._carried()

    def _stages_of(self) -> dict[Any, int]:
        first, begins = 0, []
        for count in self.counts:
            begins.append(self.model.parts[first].begin)
            first += count
        stage, found = 0, {}
        for k, node in enumerate(self.model.nodes):
            while stage + 1 < self.stages and k >= begins[stage + 1]:
                stage += 1
            found[node] = stage
            if node.op == "placeholder" or node.target == "_guards_fn":
                found[node] = 0
            elif node.op == "output":
                found[node] = self.stages - 1
            elif node.target is operator.getitem:
                found[node] = found[node.args[0]]
        for node in self.model.nodes:
            if node.op == "get_attr":  # a weight of several stages is sent by the first
                found[node] = min((found[user] for user in node.users), default=0)
        return found

    def _carried(self) -> dict[tuple[int, int], list[Any]]:
        """What goes over each edge."""
        model = self.model
        found: dict[tuple[int, int], list[Any]] = {}
        for node in model.nodes:
            is_local = node.op == "get_attr" and not model.is_trained(node)
            if is_local or node in model.constants:
                continue
            a = self.stage_of[node]
            to = sorted({self.stage_of[user] for user in node.users} - {a})
            pairs = [(a, b) for b in to]
            if self.is_relay and to:
                pairs = [(k, k + 1) for k in range(a, to[-1])]
            for pair in pairs:
                found.setdefault(pair, []).append(node)
        for k in range(self.stages - 1):  # only the first takes the batch, the last gives a loss
            if not any(a == k for a, _ in found) or not any(b == k + 1 for _, b in found):
                found.setdefault((k, k + 1), [])
        return dict(sorted(found.items()))

    def _learns(self) -> set[Any]:
        """Nodes whose value may need a gradient: what follows from weights."""
        found = set()
        for node in self.model.nodes:
            value = node.meta.get("val")
            if isinstance(value, self.torch.Tensor) and not (
                value.is_floating_point() or value.is_complex()
            ):
                continue
            is_weight = node.op == "get_attr" and isinstance(
                self.model.state(node), self.torch.nn.Parameter
            )
            if is_weight or any(used in found for used in node.all_input_nodes):
                found.add(node)
        return found

    def _edges(self) -> list[Edge]:
        """The edges of the graph, and whether gradients come back: to what a loss learns from."""
        learns, found = self._learns(), []
        has_backward = {self.stages - 1}
        for (a, b), nodes in reversed(self.carried.items()):
            comes = b in has_backward and any(node in learns for node in nodes)
            found.append(Edge(a, b, self.is_relay or comes))
            if comes:
                has_backward.add(a)
        return found[::-1]

    def split(self, costs: Costs) -> Split:
        """Make the modules and their graph."""
        model, first, parts = self.model, 0, []
        for count in self.counts:
            parts.append(tuple(part.name for part in model.parts[first : first + count]))
            first += count
        edges = self._edges()
        is_chain = all(edge.to_stage == edge.from_stage + 1 and edge.gradient for edge in edges)
        names = [f"{p[0]}..{p[-1]}" if len(p) > 1 else p[0] for p in parts]
        return Split(
            [self._module(k) for k in range(self.stages)],
            None if is_chain else Graph(edges, names=names),
            tuple(parts),
            costs,
            {edge: tuple(map(model.name_of, nodes)) for edge, nodes in self.carried.items()},
        )

    def _module(self, k: int) -> Any:
        """Make the module of a stage."""
        model = self.model
        graph = self.torch.fx.Graph()
        root = self.torch.nn.Module()
        here: dict[Any, Any] = dict(model.constants)
        if k == 0:
            for node, name in zip(model.leaves, model.inputs):
                if node not in model.constants:
                    here[node] = graph.placeholder(name)
        for (_, b), nodes in self.carried.items():
            if b == k:
                for node in nodes:
                    here[node] = graph.placeholder(f"_from_{node.name}")
                if not nodes:
                    graph.placeholder("_from_nothing")
        for node in model.nodes:
            if node.op == "get_attr" and node not in here:
                if self.stage_of[node] == k or any(self.stage_of[u] == k for u in node.users):
                    name = model.name_of(node)
                    _put(self.torch, root, name, model.state(node), model.module)
                    here[node] = graph.create_node("get_attr", name)
            elif self.stage_of[node] == k and node.op in ("call_function", "call_module"):
                if node.op == "call_module":  # what torch.export found that inputs must be
                    root._fits = _Fits(model.state(node))
                    given = [here[leaf] for leaf in node.args]
                    graph.call_function(_call, (graph.get_attr("_fits"), given))
                else:
                    here[node] = graph.node_copy(node, here.__getitem__)
        self._give(k, graph, root, here)
        made = self.torch.fx.GraphModule(root, graph, class_name=type(model.module).__name__)
        _keep_persistence(made, root)
        training = model.module.training
        for part in made.modules():
            part.training = training
        made.train = functools.partial(_stay, made, type(model.module).__name__)
        return made

    def _give(self, k: int, graph: Any, root: Any, here: dict[Any, Any]) -> None:
        if k < self.stages - 1:
            given = [
                tuple(here[node] for node in nodes) or (None,)
                for (a, _), nodes in self.carried.items()
                if a == k
            ]
            graph.output(given[0] if len(given) == 1 else tuple(given))
            return
        output = next(node for node in self.model.nodes if node.op == "output")
        leaves = [
            here[leaf] if isinstance(leaf, self.torch.fx.Node) else leaf for leaf in output.args[0]
        ]
        if self.model.out_spec.is_leaf():
            graph.output(leaves[0])
            return
        root._unflatten = _Unflatten(self.model.out_spec)
        graph.output(graph.call_function(_call, (graph.get_attr("_unflatten"), leaves)))


class _Constant:
    """Something of a stage that copies of it share."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Constant:
        """It does not change."""
        return self


class _Unflatten(_Constant):
    """Makes the model's output of its tensors."""

    def __init__(self, spec: Any) -> None:
        """Take PyTorch's description of the output."""
        self.spec = spec

    def __call__(self, leaves: list[Any]) -> Any:
        """Make the output."""
        return import_module("torch.utils._pytree").tree_unflatten(leaves, self.spec)


class _Fits(_Constant):
    """Refuses inputs that the traced model is not for."""

    def __init__(self, guards: Any) -> None:
        """Take what torch.export found."""
        self.guards = guards

    def __call__(self, inputs: list[Any]) -> None:
        """Look at inputs."""
        try:
            self.guards(*inputs)
        except AssertionError as error:
            raise UsageError(
                f"the batch is not like the example of split(): {error}",
                "split() the model with an example like a microbatch: its rows may be any number "
                "from two, or one; all other sizes stay",
            ) from error


def _call(function: Any, leaves: list[Any]) -> Any:
    return function(leaves)


def _put(torch: Any, root: Any, path: str, value: Any, module: Any) -> None:
    """Put a part of the model into a stage, under its own name."""
    *above, name = path.split(".")
    owner: Any = module
    for step in above:
        if not hasattr(root, step):
            root.add_module(step, torch.nn.Module())
        root = getattr(root, step)
        owner = getattr(owner, step, None)
    if isinstance(value, torch.nn.Parameter) or not isinstance(value, torch.Tensor):
        setattr(root, name, value)
    else:
        is_own = name in getattr(owner, "_buffers", {})
        lasts = is_own and name not in owner._non_persistent_buffers_set
        root.register_buffer(name, value, persistent=lasts)


def _keep_persistence(made: Any, root: Any) -> None:
    """Buffers that are in no state_dict of the model are in none of the stage's."""
    for path, part in root.named_modules():
        kept = part._non_persistent_buffers_set
        if kept:
            made.get_submodule(path)._non_persistent_buffers_set.update(kept)


def _stay(made: Any, name: str, mode: bool = True) -> Any:
    """Stand for train() and eval() of a stage: what torch.export traced holds for one of them."""
    if mode != made.training:
        now, other = ("train()", "eval()") if made.training else ("eval()", "train()")
        raise UsageError(
            f"the stages of {name} were split in {now}, and dropout, say, is traced so",
            f"split(module.{other}, ...) makes stages for the other, with the same weights",
        )
    return made


# ---- Whether the stages compute what the model does ----


def _run(modules: list[Any], edges: Sequence[tuple[int, int]], args: Sequence[Any]) -> Any:
    """Run the stages one after the other."""
    values: dict[tuple[int, int], Any] = {}
    y = None
    for k, module in enumerate(modules):
        y = module(*(x for a, b in edges if b == k for x in values[a, b]) if k else args)
        outs = [edge for edge in edges if edge[0] == k]
        values.update(zip(outs, (y,) if len(outs) == 1 else y))
    return y


def _check(
    torch: Any, model: Traced, made: Split, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Refuse stages that compute something else; the model and its random numbers stay."""
    tree = import_module("torch.utils._pytree")
    named = [(n, w) for n, w in model.module.named_parameters() if w.requires_grad]
    weights = [w for _, w in named]

    def shared() -> dict[int, Any]:
        return {id(w): w for w in model.module.parameters()}

    def own(x: Any) -> Any:
        return x.detach().clone() if isinstance(x, torch.Tensor) else x

    try:
        whole = copy.deepcopy(model.module, shared())
        stages = copy.deepcopy(made.modules, shared())
    except Exception as error:
        raise UsageError(
            f"{type(model.module).__name__} cannot be copied for a check: {error}",
            "check=False leaves it out",
        ) from error

    def as_model() -> Any:
        return whole(*tree.tree_map(own, args), **tree.tree_map(own, kwargs))

    def as_stages() -> Any:
        given = [own(x) for x in model.inputs.values() if isinstance(x, torch.Tensor)]
        return _run(stages, tuple(made.values), given)

    devices = {w.device.index for w in model.module.parameters() if w.is_cuda}
    found: list[list[tuple[str, Any]]] = []
    with torch.random.fork_rng(sorted(devices)), torch.enable_grad():
        for run in (as_model, as_stages):
            torch.manual_seed(0)
            mine: list[tuple[str, Any]] = []
            for _ in range(2):  # what a forward counts shows in the second
                outputs = [y for y in tree.tree_leaves(run()) if isinstance(y, torch.Tensor)]
                mine += [(f"output {k}", y.detach()) for k, y in enumerate(outputs)]
                roots = [y for y in outputs if y.requires_grad]
                grads = [torch.linspace(0.5, 1.5, y.numel()).to(y).view(y.shape) for y in roots]
                back = (
                    torch.autograd.grad(roots, weights, grads, allow_unused=True)
                    if roots and weights
                    else ()
                )
                mine += [(f"a gradient of {name}", g) for (name, _), g in zip(named, back)]
            found.append(mine)
    for (what, a), (_, b) in zip(*found):
        if not _is_near(torch, a, b):
            raise UsageError(
                f"the stages of {type(model.module).__name__} give {what} that is not the model's",
                "torch.export leaves out hooks, backward functions (autograd.Function), and what "
                "a forward changes in Python: make such stages by hand, as modules for Pipeline",
            )


def _is_near(torch: Any, a: Any, b: Any) -> bool:
    """Whether two tensors are equal, up to what the order of sums makes on some devices."""
    if a is None or b is None:
        return a is b
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if torch.equal(a, b) or not (a.is_floating_point() or a.is_complex()):
        return bool(torch.equal(a, b))
    most = float(a.abs().nan_to_num(0, 0, 0).max())
    slack = most * float(torch.finfo(a.dtype).eps ** 0.5)
    return bool(torch.allclose(a, b, rtol=0, atol=slack, equal_nan=True))
