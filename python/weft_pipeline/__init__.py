"""Weft for Python: plan, prove, predict and draw schedules of pipeline-parallel training.

import weft_pipeline as weft

table = weft.Table.named("Interleaved1F1B", ranks=4, stages_per_rank=2, microbatches=8)
program = table.lower()
assert program.verify().ok
sim = table.simulate(weft.Costs(f=1, i=1, w=1, hop=0.1))
"""

from ._compare import Comparison, Entry, compare
from ._costs import Costs, MeasuredStep
from ._errors import (
    CancelledError,
    DeviceError,
    Error,
    FileError,
    FormatError,
    HostLimitWarning,
    InternalError,
    InvalidError,
    LimitError,
    MissingError,
    OutOfMemoryError,
    PeerError,
    ProtocolError,
    RefusedError,
    StageError,
    StalledError,
    UnavailableError,
    UsageError,
    VerifyError,
)
from ._graph import Edge, Graph
from ._library import version as __version__
from ._plan import Candidate, Choice, Plan, Progress, choose, plan
from ._program import (
    Action,
    Diff,
    Difference,
    EdgeDifference,
    Explanation,
    Instruction,
    Program,
    Reference,
    ScheduleInfo,
    Table,
    schedules,
)
from ._report import CHANNEL_MODELS, SEND_MODELS, Finding, Report, Wait
from ._simulation import Event, RankTimes, Simulation

__all__ = [
    "CHANNEL_MODELS",
    "SEND_MODELS",
    "Action",
    "CancelledError",
    "Candidate",
    "Choice",
    "Comparison",
    "Costs",
    "DeviceError",
    "Diff",
    "Difference",
    "Edge",
    "EdgeDifference",
    "Entry",
    "Error",
    "Event",
    "Explanation",
    "FileError",
    "Finding",
    "FormatError",
    "Graph",
    "HostLimitWarning",
    "Instruction",
    "InternalError",
    "InvalidError",
    "LimitError",
    "MeasuredStep",
    "MissingError",
    "OutOfMemoryError",
    "PeerError",
    "Plan",
    "Program",
    "Progress",
    "ProtocolError",
    "RankTimes",
    "Reference",
    "RefusedError",
    "Report",
    "ScheduleInfo",
    "Simulation",
    "StageError",
    "StalledError",
    "Table",
    "UnavailableError",
    "UsageError",
    "VerifyError",
    "Wait",
    "__version__",
    "choose",
    "compare",
    "plan",
    "schedules",
]
