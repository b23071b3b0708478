"""What identifies a set of problems, so that a resumed run notices changed data."""

import hashlib
import json
from collections.abc import Iterable

from rstar_trainer.data.problem import TrainProblem


def fingerprint(problems: Iterable[TrainProblem]) -> str:
    """SHA-256 (hexadecimal) over ids, texts and answers, in order."""
    digest = hashlib.sha256()
    for problem in problems:
        record = json.dumps([problem.problem_id, problem.text, problem.answer])
        digest.update(record.encode() + b"\n")
    return digest.hexdigest()
