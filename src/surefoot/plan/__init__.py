"""The planner: what speculation gains, before anything is run.

``plan(alpha=0.7, c=0.1)`` or ``plan(log=read_log(file), cost=read_cost(file))`` gives a :class:`Plan` with tables, figures and
JSON. ``plan_cascade`` looks for the best schedule of a cascade, ``plan_ssr`` for the time at which a thinking request is to
draft its answer. Every number comes from :mod:`surefoot.theory`.
"""

from .cascades import CascadePlan, plan_cascade
from .costs import Cost, Source, described, of_curve, read_cost
from .inputs import Acceptance, Inputs
from .logs import Log, read_log
from .measured import read_measured
from .run import Plan, plan
from .ssr import SsrPlan, plan_ssr
from .tables import Section

__all__ = [
    "Acceptance",
    "CascadePlan",
    "Cost",
    "Inputs",
    "Log",
    "Plan",
    "Section",
    "Source",
    "SsrPlan",
    "described",
    "of_curve",
    "plan",
    "plan_cascade",
    "plan_ssr",
    "read_cost",
    "read_log",
    "read_measured",
]
