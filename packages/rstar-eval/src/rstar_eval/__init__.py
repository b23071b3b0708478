"""Benchmarks, statistics and reports of agentic reasoners."""

from rstar_eval.evaluate import evaluate
from rstar_eval.problems import EvalProblem, load_problems
from rstar_eval.report import PartSummary, Report
from rstar_eval.sample import SampleRecord
from rstar_eval.sample_log import read_samples
from rstar_eval.settings import EvalSettings
from rstar_eval.statistics import Estimate, pass_at_1, wilson_interval

__all__ = [
    "Estimate",
    "EvalProblem",
    "EvalSettings",
    "PartSummary",
    "Report",
    "SampleRecord",
    "evaluate",
    "load_problems",
    "pass_at_1",
    "read_samples",
    "wilson_interval",
]
