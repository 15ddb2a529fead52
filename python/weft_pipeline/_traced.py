"""What torch.export makes of a model: its layers, and where it can be cut between them."""

from __future__ import annotations

import itertools
import operator
import re
from importlib import import_module
from typing import Any, NamedTuple

from ._errors import UsageError


class Part(NamedTuple):
    """A layer of a model: the first of its nodes, and those after it up to the next part."""

    name: str
    begin: int


class Traced:
    """What torch.export makes of a model: nodes in the order in which it computes."""

    def __init__(
        self, torch: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Trace a model."""
        self.torch, self.module = torch, module
        self.inputs = _inputs_of(torch, module, args, kwargs)
        ordered = {name: x for name, x in self.inputs.items() if name in kwargs}
        exported = _export(torch, module, args, ordered)
        self.traced = exported.module()
        self.out_spec = exported.call_spec.out_spec
        self.tensors: dict[str, Any] = {}
        self.first_names: dict[int, str] = {}  # of tensors with several
        for named in (module.named_parameters, module.named_buffers):
            for name, tensor in named(remove_duplicate=False):
                self.tensors[name] = tensor
                self.first_names.setdefault(id(tensor), name)
        self._unify()
        self.nodes = self._ordered()
        self.index = {node: k for k, node in enumerate(self.nodes)}
        self.leaves = [node for node in self.nodes if node.op == "placeholder"]
        self.constants = {
            node: value
            for node, value in zip(self.leaves, self.inputs.values())
            if not isinstance(value, torch.Tensor)
        }
        self.work, self.bytes = _measured(self)
        self.parts = self._parts()

    def state(self, node: Any) -> Any:
        """What a node of attributes stands for: the model's own tensor, or a constant."""
        found = self.tensors.get(node.target)
        return operator.attrgetter(node.target)(self.traced) if found is None else found

    def _unify(self) -> None:
        """Let one node stand for a tensor with several names."""
        firsts: dict[int, Any] = {}
        for node in self.traced.graph.nodes:
            if node.op == "get_attr" and node.target in self.tensors:
                first = firsts.setdefault(id(self.tensors[node.target]), node)
                if first is not node:
                    node.replace_all_uses_with(first)
                    self.traced.graph.erase_node(node)

    def name_of(self, node: Any) -> str:
        """How a stage calls what a node stands for: as the model does."""
        if node.op != "get_attr":
            return str(node.name)
        own = f"_traced_{node.target}"  # of torch.export; the model may have such a name, too
        return self.first_names.get(id(self.state(node)), own)

    def is_trained(self, node: Any) -> bool:
        """Whether a node stands for a weight that gets a gradient."""
        if node.op != "get_attr":
            return False
        found = self.state(node)
        return isinstance(found, self.torch.nn.Parameter) and found.requires_grad

    def is_sent(self, node: Any) -> bool:
        """Whether the value of a node can go over an edge."""
        torch = self.torch
        plain = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, int, float, type(None))
        return isinstance(node.meta.get("val"), plain)

    def _ordered(self) -> list[Any]:
        """All nodes. A buffer gets its new value right where that is known and the old is not used,
        not at the end.
        """
        nodes = list(self.traced.graph.nodes)
        index = {node: k for k, node in enumerate(nodes)}
        moved: dict[int, list[Any]] = {}
        late = set()
        for node in nodes:
            if str(node.target) == "aten.copy_.default" and node.args[0].op == "get_attr":
                others = [index[user] for user in node.args[0].users if user is not node]
                if not node.users and max(others, default=0) < index[node]:
                    where = max([index[node.args[1]], *others])
                    moved.setdefault(where, []).append(node)
                    late.add(node)
        found = []
        for k, node in enumerate(nodes):
            found += [node] * (node not in late) + moved.get(k, [])
        return found

    def _writes(self, node: Any) -> list[Any]:
        """The arguments that a node changes in place."""
        schema = getattr(node.target, "_schema", None)
        if schema is not None:
            found: list[Any] = []
            for k, argument in enumerate(schema.arguments):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    given = node.args[k] if k < len(node.args) else node.kwargs.get(argument.name)
                    found += given if isinstance(given, (list, tuple)) else [given]
            return [one for one in found if hasattr(one, "users")]
        bodies = [arg for arg in node.all_input_nodes if self._body(arg) is not None]
        if any(self._writes(inner) for arg in bodies for inner in self._body(arg).nodes):
            return [arg for arg in node.all_input_nodes if arg not in bodies]
        return []

    def _body(self, node: Any) -> Any:
        """The graph that a node of attributes stands for: what no_grad() encloses, say."""
        found = self.state(node) if node.op == "get_attr" else None
        return getattr(found, "graph", None)

    def _memory(self, node: Any) -> Any:
        """What nodes that share memory have in common."""
        value = node.meta.get("val")
        if not isinstance(value, self.torch.Tensor):
            return node
        try:
            return value.untyped_storage()._cdata
        except (RuntimeError, NotImplementedError):
            return node

    def _whole(self) -> list[bool]:
        """Whether nodes and those before them must be in one stage."""
        spans = []
        users: dict[Any, list[int]] = {}
        kept = set()
        for k, node in enumerate(self.nodes):
            memory = self._memory(node)
            if node.op == "get_attr":
                kept.add(memory)
            else:
                users.setdefault(memory, []).append(k)
            for used in node.all_input_nodes:
                users.setdefault(self._memory(used), []).append(k)
                is_local = used.op == "get_attr" or self.is_sent(used)
                if not is_local and node.target is not operator.getitem:
                    spans.append((self.index[used], k))
        for k, node in enumerate(self.nodes):
            for used in self._writes(node):
                memory = self._memory(used)
                spans.append((users[memory][0], users[memory][-1] if memory in kept else k))
        whole = [False] * (len(self.nodes) + 1)
        for first, last in spans:
            whole[first + 1 : last + 1] = [True] * (last - first)
        return whole

    def _parts(self) -> list[Part]:
        """The layers, in the order in which they are called."""
        whole, crossing = self._whole(), self._crossing()
        found: list[Part] = []
        last, after, times = "", 0, dict[str, int]()
        for k, node in enumerate(self.nodes):
            name = self._layer_of(node)
            if not name or node.op in ("placeholder", "get_attr", "output"):
                continue
            if name != last:
                # What stands between two layers goes where the least crosses.
                places = [at for at in range(after, k + 1) if not whole[at]]
                times[name] = times.get(name, 0) + 1
                called = f"{name}@{times[name] - 1}" if times[name] > 1 else name
                if not found:
                    found.append(Part(called, 0))
                elif places:
                    found.append(Part(called, min(places, key=crossing.__getitem__)))
                else:
                    found[-1] = Part(f"{found[-1].name}+{called}", found[-1].begin)
            last, after = name, k + 1
        return found or [Part(type(self.module).__name__, 0)]

    def _crossing(self) -> list[float]:
        """How many bytes come from before each node and are used there or later."""
        changes = [0.0] * (len(self.nodes) + 1)
        for k, node in enumerate(self.nodes):
            if node.op != "get_attr" and node.users:
                changes[k + 1] += self.bytes[k]
                changes[max(self.index[user] for user in node.users) + 1] -= self.bytes[k]
        return list(itertools.accumulate(changes))

    def _layer_of(self, node: Any) -> str:
        """The layer that a node is of; "" where it stands between layers."""
        stack = node.meta.get("nn_module_stack")
        path = re.sub(r"@\d+", "", next(reversed(stack.values()))[0]) if stack else ""
        return self._layer_at(path)

    def _layer_at(self, path: str) -> str:
        """Elements of lists are layers, and modules without lists."""
        nn = self.torch.nn
        lists = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
        at = self.module
        done: list[str] = []
        for name in path.split(".") if path else ():
            is_element = isinstance(at, lists)
            at = getattr(at, name, None)
            if at is None:
                return ""
            done.append(name)
            has_lists = any(isinstance(part, lists) for part in at.modules())
            if not isinstance(at, lists) and (is_element or not has_lists):
                return ".".join(done)
        return ""

    def part_work(self) -> list[float]:
        """The work of each part, in millions: floating-point operations, and numbers made."""
        begins = [part.begin for part in self.parts]
        ends = [*begins[1:], len(self.nodes)]
        return [sum(self.work[a:b]) / 1e6 for a, b in zip(begins, ends)]


def _inputs_of(
    torch: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """What the model takes, by its names; refuses what step() could not give."""
    inspect = import_module("inspect")
    try:
        signature = inspect.signature(module.forward)
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise UsageError(
            f"{type(module).__name__} does not take the example: {error}",
            'split(module, (x, y), kwargs={"use_cache": False}, stages=4), say',
        ) from error
    known = [p.name for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    found: dict[str, Any] = {}
    for k, value in enumerate(args):
        name = known[k] if k < len(known) else f"{known[-1]}_{k}"
        if not isinstance(value, torch.Tensor):
            raise UsageError(
                f"{name} of the example is a {type(value).__name__}; expected a tensor",
                "give each tensor as an argument of its own, and constants by name "
                '(kwargs={"use_cache": False}): they stay as they are, and step() does not take '
                "them",
            )
        found[name] = value
    tree = import_module("torch.utils._pytree")
    for name in sorted(kwargs, key=lambda n: known.index(n) if n in known else len(known)):
        value = found[name] = kwargs[name]
        if not isinstance(value, torch.Tensor) and not tree.tree_structure(value).is_leaf():
            raise UsageError(
                f"{name} of the example is a {type(value).__name__}; expected a tensor or a "
                f"constant",
                "give each tensor as an argument of its own",
            )
    if not any(isinstance(value, torch.Tensor) for value in found.values()):
        raise UsageError("the example has no tensor", "split(module, x, stages=4)")
    return found


def _export(torch: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Trace a model by torch.export; rows of the batch may be any number."""
    shapes = torch.export.ShapesCollection()
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor) and value.dim():
            shapes[value] = {0: torch.export.Dim.AUTO}
    try:
        return torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        text = str(error).strip().split("\n")[0]
        raise UsageError(
            f"torch.export cannot trace {type(module).__name__}: {type(error).__name__}: {text}",
            "what depends on values of tensors (if x.sum() > 0) cannot be traced: make the stages "
            "by hand, as modules for Pipeline; a model of Hugging Face needs "
            'kwargs={"use_cache": False}',
        ) from error


def _measured(model: Traced) -> tuple[list[float], list[float]]:
    """Count the operations of each node of a forward, and the bytes it gives, without data."""
    torch = model.torch
    counter = import_module("torch.utils.flop_counter")
    fake = import_module("torch._subclasses.fake_tensor").FakeTensorMode(
        allow_non_fake_inputs=True,
        static_shapes=True,
        shape_env=import_module("torch.fx.experimental.symbolic_shapes").ShapeEnv(),
    )

    def like(x: Any) -> Any:
        return fake.from_tensor(x) if isinstance(x, torch.Tensor) else x

    given = {node: like(x) for node, x in zip(model.leaves, model.inputs.values())}
    values: dict[Any, Any] = {}
    work, sizes = [], []
    for node in model.nodes:
        count = 0.0
        if node.op == "placeholder":
            values[node] = given[node]
        elif node.op == "get_attr":
            values[node] = like(model.state(node))
        elif node.op == "call_function":
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
            with fake, torch.no_grad(), counter.FlopCounterMode(display=False) as mode:
                y = values[node] = node.target(*args, **kwargs)
            count = _number(mode.get_total_flops())
            if isinstance(y, torch.Tensor) and node.target is not operator.getitem:
                count += _number(y.numel())
        work.append(count)
        y = values.get(node)
        sizes.append(_number(y.numel()) * y.itemsize if isinstance(y, torch.Tensor) else 0.0)
    return work, sizes


def _number(count: Any) -> float:
    """What a count is; 0 where it depends on values."""
    return float(count) if isinstance(count, (int, float)) else 0.0
