"""What latex2sympy would hand to Python's evaluation never gets there."""

from __future__ import annotations

import subprocess
import sys

import pytest
import sympy

from rstar_reward.math._no_evaluation import number

# Fails at the first text that is compiled while the pair is compared; SymPy writes functions of its own for the
# exponents of polynomials, from nothing but their number.
_PROGRAM = """
import sys
from rstar_reward.math.equivalence import compare
from rstar_reward.verifiers import load_verifier

load_verifier("math").warm_up()
def hook(event, arguments):
    if event == "compile" and not str(arguments[1]).endswith(".py") and b"def monomial_" not in arguments[0]:
        raise SystemExit(f"compiled {arguments}")
sys.addaudithook(hook)
compare(sys.argv[1], sys.argv[2])
"""


@pytest.mark.parametrize(
    ("gold", "candidate"),
    [
        (r"\sum_{k=1}^{3} k^2", "14"),
        (r"\int_0^1 0.5 dx", r"0.5 \cdot \mathcal{1}"),
        (r"\sum_{k=1}^{3} f(k)", r"f(exit(0)) + \sum_{k=1}^{2} 1"),
        (r"\gcd(4, 6) + \sum_{k=1}^{2} k", r"\gcd(exit(0), 6) + \int_0^1 1 dx"),
        (r"\log_{-2261}(8851)", r"\log_{exit}(0) + \int_0^1 2 dx"),
        (r"12\% + \int_0^1 1 dx", r"12.5\% + \int_0^1 1 dx"),
    ],
)
def test_no_text_is_compiled(gold: str, candidate: str) -> None:
    command = [sys.executable, "-c", _PROGRAM, gold, candidate]
    result = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_sympify_refuses_text() -> None:
    program = (
        "import sympy, rstar_reward.math.symbolic\n"
        "try: sympy.sympify('1+1')\n"
        "except sympy.SympifyError: print('refused')"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=800, check=True)
    assert result.stdout == "refused\n"


@pytest.mark.parametrize(
    ("text", "value"),
    [("12", sympy.Integer(12)), ("-3", sympy.Integer(-3)), ("1,234", sympy.Integer(1234)), ("0.5", sympy.Float("0.5"))],
)
def test_numbers_are_made_without_evaluation(text: str, value: object) -> None:
    assert number(text) == value


@pytest.mark.parametrize("text", ["", "x", "exit(0)", "1+1", "0x10"])
def test_what_is_no_literal_is_no_number(text: str) -> None:
    with pytest.raises(ValueError, match="could not convert"):
        number(text)
