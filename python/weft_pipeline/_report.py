"""The result of a check: a report with findings."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterable
from html import escape
from typing import Any, NamedTuple, Optional, Union

from ._data import dataframe, fields
from ._errors import VerifyError
from ._library import Handle, c, call, choice, default_of, integer, lib, text_of
from ._program import Action, Program, action_at

_ReportPointer = ctypes.POINTER(c.weft_report)
_default = default_of(lib.weft_verify_options_default)

# What to do about a finding, by the first word of its rule.
_HINTS = {
    "shape": "write at least one F",
    "range": "give the numbers of stages and microbatches that it has, or correct the action",
    "placement": "compute a stage on one rank, and put its communication there",
    "overlap": "overlap one F with one B of another stage",
    "duplicate": "remove one of them",
    "coverage": "give every stage one F, and one B or one I and one W, for every microbatch",
    "order": "move the action behind the one that it needs; Table.lower() puts SEND and RECV",
    "comm": "let Table.lower() write the communication",
    "pair": "add the other end, or let Table.lower() write the communication",
    "channel": "receive in the order of the sends",
    "shard": "let Table.lower() write UNSHARD and RESHARD",
    "reduce": "put one REDUCE_GRAD behind the last backward of every stage",
    "tie": "lower with tie_grad=True",
}


class Wait(NamedTuple):
    """A member of a deadlock's cycle: the action that a rank is in, and what it waits for."""

    rank: int
    step: int
    action: Optional[Action]
    waits_for: str

    def __str__(self) -> str:
        """Give the place and what it waits for."""
        return f"rank {self.rank} step {self.step} {self.action} waits for {self.waits_for}"


class Finding(NamedTuple):
    """Something that is wrong: the rule, the place, a sentence, and what to do.

    `action` is text ("0SEND_F1"), and None where the finding is about a whole row. A deadlock has
    the `cycle`: each member waits for the next, the last for the first.
    """

    rule: str
    rank: int
    step: int
    action: Optional[str]
    message: str
    hint: str
    cycle: tuple[Wait, ...] = ()

    def __str__(self) -> str:
        """Give the place, the message and the rule, and the cycle on lines of its own."""
        place = f"rank {self.rank}"
        if self.action is not None:
            place += f" step {self.step} {self.action}"
        lines = [f"{place}: {self.message} [{self.rule}]"]
        lines += [f"    {wait}" for wait in self.cycle]
        return "\n".join(lines)


class Report(NamedTuple):
    """What verify() found; true when it found nothing wrong.

    `liveness_checked` is False where findings made the question whether it can hang meaningless.
    After a deadlock `least_comm` is the weakest `comm` without one, or None where there is none.
    """

    ok: bool
    findings: tuple[Finding, ...]
    findings_left_out: int
    liveness_checked: bool
    has_backward: bool
    stages: int
    microbatches: int
    comm: str
    channel: str
    least_comm: Optional[str]
    program: Program

    @property
    def notes(self) -> tuple[str, ...]:
        """Give what is no fault, but seldom meant: ranks without an action."""
        note = text_of(lib.weft_program_note, self.program._handle.pointer, fails=False)
        return (note,) if note else ()

    def __bool__(self) -> bool:
        """Tell whether nothing is wrong."""
        return self.ok

    def raise_if_bad(self) -> Report:
        """Raise a VerifyError with the first finding, if there is one; else return the report."""
        if not self.ok:
            raise VerifyError(self)
        return self

    def grid(self) -> str:
        """Draw the steps round the first deadlock, or else round the first finding, as text."""
        if self.ok:
            return ""
        drawn = next((finding for finding in self.findings if finding.cycle), self.findings[0])
        if drawn.action is None:
            return ""
        places = [(wait.rank, wait.step) for wait in drawn.cycle] or [(drawn.rank, drawn.step)]
        return _grid(self.program, places[:12])

    def to_dict(self) -> dict[str, Any]:
        """Give all of it as JSON has it, but for the program."""
        return {**fields(self, ("program",)), "notes": list(self.notes)}

    def to_dataframe(self) -> Any:
        """Give a pandas DataFrame with a row for each finding."""
        return dataframe(Finding._fields[:-1], (finding[:-1] for finding in self.findings))

    def __str__(self) -> str:
        """Give what `weft verify` prints."""
        notes = [f"note: {note}" for note in self.notes]
        if self.ok:
            return "\n".join([f"ok: {self._shape()}; {self._proof()}", *notes])
        count = len(self.findings) + self.findings_left_out
        lines = [str(finding) for finding in self.findings]
        if self.findings_left_out:
            lines.append(f"and {self.findings_left_out} more; max_findings shows them")
        lines += ["", self.grid().rstrip("\n"), "", f"{count} finding{'s' if count > 1 else ''}"]
        if self.findings[0].hint:
            lines.append(f"  hint: {self.findings[0].hint}")
        return "\n".join(lines + notes)

    def __repr__(self) -> str:
        """Give the verdict."""
        if self.ok:
            return f"<weft_pipeline.Report: ok, {self._shape()}>"
        return (
            f"<weft_pipeline.Report: {len(self.findings) + self.findings_left_out} findings, "
            f"first {self.findings[0].rule}>"
        )

    def _shape(self) -> str:
        return f"{self.program.ranks} ranks, {self.stages} stages, {self.microbatches} microbatches"

    def _proof(self) -> str:
        forward = "" if self.has_backward else " (forward only)"
        if not self.program.has_communication:
            return f"complete{forward}, in order, every input is there in time on all ranks"
        return (
            f"complete{forward}, in order, cannot hang ({self.comm} sends, channel {self.channel})"
        )

    def _repr_html_(self) -> str:
        """Show it in a notebook."""
        if self.ok:
            return f"<p><b>ok</b>: {escape(self._shape())}; {escape(self._proof())}</p>"
        rows = "".join(
            f"<tr><td>{escape(finding.rule)}</td><td>{finding.rank}</td><td>{finding.step}</td>"
            f"<td>{escape(finding.action or '')}</td><td>{escape(finding.message)}</td>"
            f"<td>{escape(finding.hint)}</td></tr>"
            for finding in self.findings
        )
        return (
            "<table><tr><th>rule</th><th>rank</th><th>step</th><th>action</th><th>finding</th>"
            f"<th>hint</th></tr>{rows}</table><pre>{escape(self.grid())}</pre>"
        )


def _grid(program: Program, places: Iterable[tuple[int, int]]) -> str:
    marks = [place for place in places if place[0] < program.ranks]
    if not marks:
        return ""
    first = min(step for _, step in marks)
    last = min(max(step for _, step in marks), first + 24)
    near = {rank + k for rank, _ in marks for k in (-1, 0, 1)}
    ranks = sorted(rank for rank in near if 0 <= rank < program.ranks)[:12]
    options = c.weft_grid_options()
    options.step_first = max(first - 3, 0)
    options.step_count = last - options.step_first + 4
    columns = (ctypes.c_uint32 * len(ranks))(*ranks)
    cells = (c.weft_location * len(marks))()
    for cell, (rank, step) in zip(cells, marks):
        # The cell counts, not which action it is; NULL would mark the whole row.
        cell.rank, cell.step, cell.action = rank, step, program._c.actions
    options.ranks, options.rank_count = columns, len(ranks)
    options.marks, options.mark_count = cells, len(marks)
    return text_of(lib.weft_grid_print, program._handle.pointer, ctypes.byref(options))


def _names(info: Any) -> tuple[str, ...]:
    """Give the names of all models, which the library counts from 0."""
    models = itertools.takewhile(bool, map(info, itertools.count()))
    return tuple(model[0].name.decode() for model in models)


#: What one channel may carry, the default first: values of `channel`.
CHANNEL_MODELS = _names(lib.weft_channel_model_info)
#: When a SEND may be done: values of `comm`, where "slots:K" stands for any number.
SEND_MODELS = _names(lib.weft_send_model_info)


def comm_model(comm: object) -> Any:
    """Check a communication model; return it as the library has it."""
    model = c.weft_comm_model()
    if isinstance(comm, str):
        send, capacity = ctypes.c_int(), ctypes.c_uint32()
        call(lib.weft_send_model_parse, comm.encode(), ctypes.byref(send), ctypes.byref(capacity))
        model.capacity = capacity.value
        model.posted = not lib.weft_send_model_info(send.value)[0].row_waits
    else:
        model.capacity = integer(comm, "comm", 0, c.WEFT_CAPACITY_UNLIMITED - 1)
    return model


def comm_name(model: Any) -> str:
    """Name a communication model."""
    return text_of(lib.weft_comm_model_print, ctypes.byref(model), fails=False)


def verify(
    program: Program,
    comm: Union[str, int],
    channel: str,
    stages: int,
    microbatches: int,
    max_findings: int,
) -> Report:
    """Check a program (Program.verify())."""
    options = _default()
    options.model = comm_model(comm)
    options.model.channel = choice(channel, "channel", CHANNEL_MODELS)
    options.stage_count = integer(stages, "stages", 0, c.WEFT_STAGES_MAX)
    options.microbatch_count = integer(microbatches, "microbatches", 0, c.WEFT_MICROBATCHES_MAX)
    options.findings_max = integer(max_findings, "max_findings", 1, 2**31)
    out = _ReportPointer()
    call(lib.weft_verify, None, program._handle.pointer, ctypes.byref(options), ctypes.byref(out))
    handle = Handle(out, lib.weft_report_destroy, program._handle)
    report = handle.pointer[0]
    least = None
    if report.least_capacity != c.WEFT_CAPACITY_UNLIMITED or options.model.capacity == (
        c.WEFT_CAPACITY_UNLIMITED
    ):
        least = comm_name(
            c.weft_comm_model(capacity=report.least_capacity, posted=options.model.posted)
        )
    findings = tuple(
        _finding(report.findings[k], program, report.least_capacity)
        for k in range(report.finding_count)
    )
    return Report(
        report.ok,
        findings,
        report.findings_left_out,
        report.liveness_checked,
        report.has_backward,
        report.stage_count,
        report.microbatch_count,
        comm_name(options.model),
        channel,
        least,
        program,
    )


def _finding(finding: Any, program: Program, least: int) -> Finding:
    rule = lib.weft_rule_id(finding.rule).decode()
    cycle = tuple(
        Wait(
            finding.cycle[k].rank,
            finding.cycle[k].step,
            action_at(finding.cycle[k].action),
            _without(finding.cycle_waits[k].decode("utf-8", "replace"), "waits for "),
        )
        for k in range(finding.cycle_length)
    )
    action = action_at(finding.location.action)
    return Finding(
        rule,
        finding.location.rank,
        finding.location.step,
        None if action is None else str(action),
        finding.message.decode("utf-8", "replace"),
        _hint(rule, bool(cycle) and program.has_communication, least),
        cycle,
    )


def _without(text: str, prefix: str) -> str:
    return text[len(prefix) :] if text.startswith(prefix) else text


def _hint(rule: str, has_capacity: bool, least: int) -> str:
    if rule != "deadlock":
        return _HINTS.get(rule.split(".")[0], "")
    if not has_capacity:
        return "change the order of the actions on one of the ranks"
    if least == c.WEFT_CAPACITY_UNLIMITED:
        return "no number of buffers helps, not even comm='eager': change the order"
    name = comm_name(c.weft_comm_model(least))
    return f"comm='{name}' is the smallest without a deadlock; or change the order"
