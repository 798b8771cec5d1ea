"""The planner: what speculation gains, before anything is run.

``plan(alpha=0.7, c=0.1)`` or ``plan(log=read_log(file), cost=read_cost(file))`` gives a :class:`Plan` with tables, figures and
JSON. Every number comes from :mod:`surefoot.theory`.
"""

from .costs import Cost, Source, described, of_curve, read_cost
from .inputs import Acceptance, Inputs
from .logs import Log, read_log
from .run import Plan, plan
from .tables import Section

__all__ = [
    "Acceptance",
    "Cost",
    "Inputs",
    "Log",
    "Plan",
    "Section",
    "Source",
    "described",
    "of_curve",
    "plan",
    "read_cost",
    "read_log",
]
