"""Problems: from files and generators, checked, fingerprinted and drawn in a seeded order that can be resumed."""

from rstar_trainer.data.fingerprint import fingerprint
from rstar_trainer.data.problem import TrainProblem, integer_answer
from rstar_trainer.data.reader import read_problems
from rstar_trainer.data.sampler import ProblemSampler
from rstar_trainer.data.source import HeldoutProblems, load_heldout_problems, load_training_problems

__all__ = [
    "HeldoutProblems",
    "ProblemSampler",
    "TrainProblem",
    "fingerprint",
    "integer_answer",
    "load_heldout_problems",
    "load_training_problems",
    "read_problems",
]
