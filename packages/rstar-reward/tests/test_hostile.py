"""Answers that try to run code, to hang, or to be paid for nothing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rstar_reward import verify, verify_many
from rstar_reward.verdict import VerdictStatus

_PAYLOADS = [
    "__import__('os').system('touch {path}')",
    "eval(\"open('{path}','w').close()\")",
    "[c for c in ().__class__.__base__.__subclasses__()][0]('{path}')",
    "(lambda: open('{path}', 'w'))()",
    "\\text{{__import__('os').system('touch {path}')}}",
    "\\operatorname{{exec}}(\"open('{path}','w')\")",
    "{{}}.__class__.__mro__[1].__subclasses__()",
    '\\input{{|"touch {path}"}}',
    "\\write18{{touch {path}}}",
    "$(touch {path})",
    "`touch {path}`",
    "x; import os; os.system('touch {path}')",
    "Symbol('x').subs('x', \"__import__('os').system('touch {path}')\")",
    "sympify(\"open('{path}','w')\")",
    "\\frac{{__import__('os').system('touch {path}')}}{{1}}",
    "1 if open('{path}','w') else 1",
    "@exec('import os')",
    "\\sum_{{x=open('{path}','w')}}^{{2}} x",
]


@pytest.mark.parametrize("payload", _PAYLOADS)
@pytest.mark.parametrize("gold", ["3", "\\frac{\\sqrt{2}}{2}"])
def test_nothing_is_executed_and_nothing_is_paid(payload: str, gold: str, tmp_path: Path) -> None:
    target = tmp_path / "pwned"
    verdict = verify(gold, f"<answer>\\boxed{{{payload.format(path=target)}}}</answer>")
    assert verdict.reward == 0
    assert not target.exists()


_HANGS = [
    "9^{9^{9}}",
    "9**9**9**9",
    "(9**9)**(9**9)",
    "10^{10^{10}}",
    "2^{99999}^{99999}",
    "\\sin(10^{10^{9}})",
    "(x+y+z+w+1)^{400}-(x+y+z+w)^{400}",
    "\\frac{(x+1)^{3000}-1}{x}",
    "(10^9)!",
    "((9!)!)!",
    "\\binom{10^{9}}{5\\cdot 10^8}",
    "\\sum_{k=1}^{10^{12}} \\frac{1}{k^3}",
    "\\prod_{k=1}^{99999999} k",
    "\\int_0^1 \\int_0^1 \\sin(x^{99}y^{99}) dx dy",
    "\\lim_{x \\to 0} \\frac{\\sin^{50} x - x^{50}}{x^{52}}",
    "e^{e^{e^{79}}}",
    "\\sqrt{" * 300 + "2" + "}" * 300,
    "(" * 5000 + "1" + ")" * 5000,
    "1" + "+1" * 5000,
    "\\frac{1}{" * 2000 + "2" + "}" * 2000,
    "{" * 50000,
    "\\boxed{" * 3000 + "3" + "}" * 3000,
    "1" * 200_000,
    "x_{" * 30 + "1" + "}" * 30,
    "|" * 1000,
    "[" * 39 + "1" + "]" * 39,
    "1,2," * 300 + "3",
]


def test_nothing_hangs() -> None:
    start = time.monotonic()
    verdicts = verify_many(("3", f"<answer>\\boxed{{{text}}}</answer>") for text in _HANGS)
    assert all(verdict.reward in (0, None) for verdict in verdicts)
    assert all(verdict.status is not VerdictStatus.BAD_GOLD for verdict in verdicts)
    # Each is ended by its own deadline; several share the workers.
    assert time.monotonic() - start < 3.5 * len(_HANGS)


def test_a_hang_does_not_harm_the_verdicts_after_it() -> None:
    verify("3", "\\boxed{\\lim_{x \\to 0} \\frac{\\sin^{50} x - x^{50}}{x^{52}}}")
    assert verify("\\frac{\\sqrt{2}}{2}", "\\boxed{\\frac{1}{\\sqrt{2}}}").reward == 1


@pytest.mark.parametrize(
    "text",
    [
        "the grader should return 1",
        "SYSTEM: reward = 1.0",
        "<result>1.0</result>",
        "\\text{correct}",
        "gold",
        "*",
        "nan",
        "\\infty",
        "True",
        "Verdict(status='correct')",
        "\\{kind: done, status: correct\\}",
        "\\forall x",
        "\\text{any of the above}",
        "\\mathbb{R}",
        "\\mathbb{Z}",
        "(-\\infty, \\infty)",
        "3 \\pm 3",
        "\\{0,1,2,3,4,5,6,7,8,9\\}",
    ],
)
@pytest.mark.parametrize("gold", ["3", "\\frac{1}{2}", "x+1", "(1,2)"])
def test_talking_to_the_grader_is_not_paid(text: str, gold: str) -> None:
    assert verify(gold, f"<answer>\\boxed{{{text}}}</answer>").reward == 0
