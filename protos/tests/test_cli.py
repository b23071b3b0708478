"""How command lines end."""

from __future__ import annotations

import pytest

from rstar_protos import cli
from rstar_protos.errors import InfrastructureError, UserInputError


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (UserInputError("--listen", "x", "give an address"), 2),
        (InfrastructureError("the disk\nis gone"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_our_own_errors_are_one_line_and_an_exit_code(
    raised: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def app() -> None:
        raise raised

    with pytest.raises(SystemExit) as ended:
        cli.run(app)
    assert ended.value.code == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1


def test_a_fault_of_ours_is_not_hidden() -> None:
    def app() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cli.run(app)
