"""Timelines by matplotlib: on an axis, and as files of kinds that the library does not write."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Optional
from xml.etree import ElementTree

from ._data import optional
from ._errors import FileError
from ._library import c, lib

if TYPE_CHECKING:
    from ._simulation import Simulation

_LANE, _THIN = 0.8, 0.1  # heights of a rank's lane, and of transfers under it
_NUMBERS_MAX = 400  # cells with the number of their microbatch, and seams between them
_STEP = re.compile(r"([MHVLz])([^MHVLz]*)")
_PER_INCH = 100  # pixels of an SVG
_DPI = 200
_ANCHORS = {"start": "left", "middle": "center", "end": "right"}


class _Look:
    """How an op is drawn."""

    def __init__(self, op: str) -> None:
        """Take its colour, and what stands in the legend."""
        infos = (lib.weft_op_info(k)[0] for k in range(c.WEFT_OP_COUNT))
        info = next(info for info in infos if info.text.decode() == op)
        self.colour = f"#{info.colour[0]:06x}"
        self.is_group = info.kind == c.WEFT_KIND_GROUP
        self.is_compute = info.kind == c.WEFT_KIND_COMPUTE
        self.is_drawn = info.kind not in (c.WEFT_KIND_IDLE, c.WEFT_KIND_SEND)  # RECV has the time
        words = info.legend.decode()
        self.label = f"{op} {words}" if self.is_compute else words
        self.ink = "white" if info.terminal_colour.endswith(b";231") else "black"
        self.bars: list[Any] = []  # corners


def plot(simulation: Simulation, ax: Any, name: str) -> Any:
    """Draw a timeline on an axis (Simulation.plot())."""
    collections = optional("matplotlib.collections", "plot()")
    ticker = optional("matplotlib.ticker", "plot()")
    if ax is None:
        ax = optional("matplotlib.pyplot", "plot()").gca()
    elif not hasattr(ax, "add_collection"):
        raise TypeError(f"ax must be an axis of matplotlib, not {type(ax).__name__}")
    looks: dict[str, _Look] = {}
    numbers: list[tuple[float, float, str, str]] = []
    origin = min((event.begin for event in simulation), default=0.0)
    parts: list[Optional[int]] = []  # of an overlap, one above the other: those to come
    for rank, action, begin, end in simulation:
        if action is None:
            continue
        look = looks.setdefault(action.op, _Look(action.op))
        if look.is_group:
            parts = list(range(len(action.parts)))
            share = _LANE / max(len(parts), 1)
            continue
        top, height = rank - _LANE / 2, _LANE
        if parts:
            top, height = top + share * (parts.pop(0) or 0), share
        elif not look.is_compute:
            top, height = rank + _LANE / 2, _THIN
        if end > begin and look.is_drawn:
            left, right, bottom = begin - origin, end - origin, top + height
            look.bars.append([(left, top), (right, top), (right, bottom), (left, bottom)])
            if look.is_compute:
                place = (left + right) / 2, top + height / 2
                numbers.append((*place, str(action.microbatch), look.ink))
    is_short = len(numbers) <= _NUMBERS_MAX
    for look in looks.values():
        if look.bars:
            seam = 0.5 if look.is_compute and is_short else 0
            style = {"facecolors": look.colour, "linewidths": seam}
            style["edgecolors"] = ax.get_facecolor()
            ax.add_collection(collections.PolyCollection(look.bars, label=look.label, **style))
    for x, y, text, ink in numbers if is_short else ():
        ax.text(x, y, text, ha="center", va="center", size=7, color=ink, clip_on=True)
    unit = simulation.costs.unit
    ax.set_xlim(0, max(simulation.makespan, 1e-12))
    ax.set_ylim(simulation.program.ranks - 0.5 + _THIN, -0.5)
    ax.set_xlabel(f"time ({unit})" if unit else "time")
    ax.set_ylabel("rank")
    ax.yaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    if name:
        ax.set_title(name)
    return ax


# ---- An SVG of the library as another kind of file ----


def _number(element: Any, name: str) -> float:
    return float(element.get(name, 0))


def _corners(path: str) -> list[tuple[float, float]]:
    """The corners of a path whose steps are M, L, H, V and z."""
    found: list[tuple[float, float]] = []
    for letter, text in _STEP.findall(path):
        values = [float(value) for value in text.split()]
        if letter in "ML":
            found.append((values[0], values[1]))
        elif letter == "H":
            found.append((values[0], found[-1][1]))
        elif letter == "V":
            found.append((found[-1][0], values[0]))
    return found


def save_svg(svg: str, name: str, kind: str) -> None:
    """Write an SVG of the library as a file of a kind that matplotlib knows.

    Such an SVG has rectangles, paths of straight lines, and texts, and later ones lie on top.
    """
    figures = optional("matplotlib.figure", f"a .{kind} file")
    patches = optional("matplotlib.collections", f"a .{kind} file")
    root = ElementTree.fromstring(svg)
    width, height = _number(root, "width"), _number(root, "height")
    figure = figures.Figure(figsize=(width / _PER_INCH, height / _PER_INCH))
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, width), ylim=(height, 0))
    ax.set_axis_off()
    shapes: list[Any] = []  # that have no other element between them
    colours: list[str] = []
    order = 0
    for element in [*root, None]:
        tag = "" if element is None else element.tag.rsplit("}", 1)[-1]
        if tag == "rect":
            x, y = _number(element, "x"), _number(element, "y")
            right, bottom = x + _number(element, "width"), y + _number(element, "height")
            shapes.append([(x, y), (right, y), (right, bottom), (x, bottom)])
        elif tag == "path" and element.get("fill"):
            shapes.append(_corners(element.get("d")))
        elif shapes:
            order += 1
            drawn = patches.PolyCollection(
                shapes, facecolors=colours, linewidths=0, zorder=order, antialiaseds=kind != "png"
            )
            ax.add_collection(drawn)
            shapes, colours = [], []
        if shapes:
            colours.append(element.get("fill"))
        order += 1
        if tag == "path" and not element.get("fill"):
            xs, ys = zip(*_corners(element.get("d")))
            ax.plot(xs, ys, color=element.get("stroke"), linewidth=0.72, zorder=order)
        elif tag == "text":
            size = _number(element, "font-size") * 72 / _PER_INCH
            style = {"size": size, "color": element.get("fill"), "zorder": order}
            place = _number(element, "x"), _number(element, "y"), (element.text or "")
            anchor = _ANCHORS[element.get("text-anchor", "start")]
            ax.text(*place, ha=anchor, va="baseline", parse_math=False, **style)
    try:
        figure.savefig(name, format=kind, dpi=_DPI)
    except OSError as error:
        raise FileError(f"{name} cannot be written: {error}") from error
