"""Graphs of stages: which stage feeds which."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from ctypes import POINTER, byref, c_char_p
from typing import Any, NamedTuple, Optional, Union

from ._errors import InvalidError, UsageError
from ._library import (
    Handle,
    Immutable,
    Path,
    boolean,
    c,
    call,
    content,
    integer,
    json_of,
    lib,
    path_name,
    read_file,
    real,
    set_once,
    string,
    write_file,
)

_GraphPointer = POINTER(c.weft_graph)
_TEXT = re.compile(r"\s*(\d+)\s*>\s*(\d+)(F?)\s*", re.ASCII)


class Edge(NamedTuple):
    """An edge: one stage feeds another; `gradient` says whether a gradient comes back.

    `bytes` and `gradient_bytes` are the sizes of its messages, in the unit of the costs'
    hop_bytes; None where they are those of the hop. The text form is that of a table's row
    `#graph`: "0>2", and "0>2F" without a gradient.
    """

    from_stage: int
    to_stage: int
    gradient: bool = True
    bytes: Optional[float] = None
    gradient_bytes: Optional[float] = None

    def __str__(self) -> str:
        """Give the text form."""
        return f"{self.from_stage}>{self.to_stage}{'' if self.gradient else 'F'}"


AnyEdge = Union[Edge, str, Sequence[int]]


class Graph(Immutable):
    """A graph of stages, for models that are no chain: skip connections, encoders, heads.

    `edges` is a text like "0>1,0>2,1>2" or a sequence of edges: Edge, text, or (from, to).
    Stages are numbered so that an edge goes from a lower to a higher one. `names` names the
    stages. Graph.load() and Graph.parse() read the JSON form. It does not change.
    """

    __slots__ = ("_handle", "edges", "names", "stages")
    _handle: Handle
    edges: tuple[Edge, ...]  #: ascending by the stages that they come from, then go to
    names: Optional[tuple[Optional[str], ...]]  #: of the stages, or None
    stages: int  #: their number

    def __init__(
        self,
        edges: Union[str, Iterable[AnyEdge]],
        *,
        names: Optional[Sequence[Optional[str]]] = None,
    ) -> None:
        """Make a graph of edges."""
        listed = [_edge(edge, k) for k, edge in enumerate(_items(edges))]
        found = max((max(edge.from_stage, edge.to_stage) for edge in listed), default=-1) + 1
        count = found if names is None else _count(names)
        called = None
        if names is not None:
            called = (c_char_p * count)(
                *(None if n is None else string(n, f"names[{k}]") for k, n in enumerate(names))
            )
        records = (c.weft_edge * len(listed))(*map(_record, listed))
        out = _GraphPointer()
        call(lib.weft_graph_create, None, count, records, len(listed), called, byref(out))
        self._own(out)

    def _own(self, pointer: Any) -> None:
        graph = pointer[0]
        names = None
        if graph.names:
            names = tuple(
                None if name is None else name.decode("utf-8", "replace")
                for name in graph.names[: graph.stage_count]
            )
        set_once(
            self,
            _handle=Handle(pointer, lib.weft_graph_destroy),
            edges=tuple(_read_edge(graph.edges[k]) for k in range(graph.edge_count)),
            names=names,
            stages=int(graph.stage_count),
        )

    @classmethod
    def _adopt(cls, pointer: Any) -> Graph:
        """Make an object that is a holder of a struct weft_graph."""
        self = cls.__new__(cls)
        self._own(pointer)
        return self

    @classmethod
    def parse(cls, text: Union[str, bytes], name: str = "input") -> Graph:
        """Read the JSON form, "weft-graph/1". Errors call it `name`."""
        data = content(text, "text")
        out = _GraphPointer()
        call(lib.weft_graph_parse, None, data, len(data), string(name, "name"), byref(out))
        return cls._adopt(out)

    @classmethod
    def load(cls, path: Path) -> Graph:
        """Read a graph file."""
        return cls.parse(read_file(path), path_name(path).replace("\0", ""))

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Graph:
        """Make a graph of what to_dict() gives."""
        if not isinstance(document, Mapping):
            raise TypeError(f"document must be a mapping, not {type(document).__name__}")
        try:
            text = json.dumps(dict(document))
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"the graph is no JSON object: {error}") from None
        return cls.parse(text, "the graph")

    def to_dict(self) -> dict[str, Any]:
        """Give the JSON form as a dict."""
        return json_of(lib.weft_graph_print, self._handle.pointer)

    def save(self, path: Path) -> None:
        """Write a graph file."""
        write_file(path, json.dumps(self.to_dict(), indent=2) + "\n")

    def inputs_of(self, stage: int) -> tuple[int, ...]:
        """List the stages that feed a stage, ascending."""
        stage = integer(stage, "stage", 0, self.stages - 1)
        return tuple(edge.from_stage for edge in self.edges if edge.to_stage == stage)

    def outputs_of(self, stage: int) -> tuple[int, ...]:
        """List the stages that a stage feeds, ascending."""
        stage = integer(stage, "stage", 0, self.stages - 1)
        return tuple(edge.to_stage for edge in self.edges if edge.from_stage == stage)

    @property
    def sources(self) -> tuple[int, ...]:
        """The stages without in-edges, ascending: they take the batch."""
        fed = {edge.to_stage for edge in self.edges}
        return tuple(stage for stage in range(self.stages) if stage not in fed)

    @property
    def losses(self) -> tuple[int, ...]:
        """The stages without out-edges, ascending: each computes a loss."""
        feeds = {edge.from_stage for edge in self.edges}
        return tuple(stage for stage in range(self.stages) if stage not in feeds)

    @property
    def is_chain(self) -> bool:
        """Whether every stage feeds the next one alone, with gradients."""
        return bool(lib.weft_graph_is_chain(self._handle.pointer))

    def _fields(self) -> tuple[Any, ...]:
        return self.stages, self.edges, self.names

    def __eq__(self, other: object) -> bool:
        """Compare edges, sizes and names; a program's edges are compared by its own ==."""
        if not isinstance(other, Graph):
            return NotImplemented
        return self._fields() == other._fields()

    def __hash__(self) -> int:
        """Hash edges, sizes and names."""
        return hash(self._fields())

    def __reduce__(self) -> Any:
        """Pickle as JSON."""
        return Graph.parse, (json.dumps(self.to_dict()),)

    def __str__(self) -> str:
        """Give the edges as text."""
        return ",".join(map(str, self.edges))

    def __repr__(self) -> str:
        """Give the edges, as far as they fit."""
        text = str(self)
        edges = text if len(text) <= 60 else f"{text[:57].rsplit(',', 1)[0]},..."
        return f"<weft_pipeline.Graph: {self.stages} stages, {edges}>"


def refuse_graph(program: Any, who: str, hint: str) -> None:
    """Refuse a program whose stages form no chain, for someone who knows nothing else."""
    graph = program.graph
    if graph is not None and not graph.is_chain:
        raise InvalidError(f"the stages form a graph, {graph}; {who} has chains of stages", hint)


def chain_edges(stages: int) -> tuple[Edge, ...]:
    """List the edges of stages without a graph."""
    return tuple(Edge(k, k + 1) for k in range(stages - 1))


def graph_pointer(graph: object) -> Any:
    """Check a graph that may be None, for C."""
    if graph is not None and not isinstance(graph, Graph):
        raise TypeError(f"graph must be a Graph, not {type(graph).__name__}")
    return None if graph is None else graph._handle.pointer


def _count(names: object) -> int:
    if isinstance(names, (str, bytes)) or not hasattr(names, "__len__"):
        raise TypeError(f"names must be a sequence of names, not {type(names).__name__}")
    return integer(len(names), "the number of names", 0, c.WEFT_STAGES_MAX)


def _items(edges: object) -> list[Any]:
    if isinstance(edges, str):
        return edges.split(",")
    if isinstance(edges, (bytes, Mapping)) or not hasattr(edges, "__iter__"):
        raise TypeError(f"edges must be a text or a sequence, not {type(edges).__name__}")
    items = list(edges)
    if len(items) > c.WEFT_EDGES_MAX:
        raise UsageError(f"there are {len(items)} edges; expected at most {c.WEFT_EDGES_MAX}")
    return items


def _edge(edge: object, k: int) -> Edge:
    """Check an edge of any form."""
    if isinstance(edge, str):
        match = _TEXT.fullmatch(edge)
        if match is None:
            raise UsageError(
                f"edges[{k}] is {edge!r}; expected 0>2, say",
                "0>2F is an edge without a gradient",
            )
        edge = (int(match[1]), int(match[2]), match[3] == "")
    if isinstance(edge, (bytes, Mapping)) or not isinstance(edge, Sequence):
        raise TypeError(f"edges[{k}] must be an Edge, a text or a pair, not {type(edge).__name__}")
    if not 2 <= len(edge) <= len(Edge._fields):
        raise UsageError(f"edges[{k}] has {len(edge)} items; expected the two stages")
    given = Edge(*edge)
    last = c.WEFT_STAGES_MAX - 1

    def size(value: Optional[float], name: str) -> Optional[float]:
        if value is None:
            return None
        return real(value, f"{name} of edges[{k}]", 0, c.WEFT_EDGE_BYTES_MAX)

    return Edge(
        integer(given.from_stage, f"from_stage of edges[{k}]", 0, last),
        integer(given.to_stage, f"to_stage of edges[{k}]", 0, last),
        boolean(given.gradient, f"gradient of edges[{k}]"),
        size(given.bytes, "bytes"),
        size(given.gradient_bytes, "gradient_bytes"),
    )


def _record(edge: Edge) -> Any:
    size = -1 if edge.bytes is None else edge.bytes
    back = size if edge.gradient_bytes is None else edge.gradient_bytes
    return c.weft_edge(*edge[:3], size, back)


def _read_edge(record: Any) -> Edge:
    size = None if record.bytes < 0 else record.bytes
    back = None if record.gradient_bytes < 0 or not record.gradient else record.gradient_bytes
    from_stage = getattr(record, "from")
    return Edge(from_stage, record.to, record.gradient, size, None if back == size else back)
