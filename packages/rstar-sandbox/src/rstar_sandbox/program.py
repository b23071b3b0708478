"""Running one program's source: compile, execute, value of the last expression, traceback of what it raised.

Runs in the child. Pure Python semantics only: processes, limits and pipes are `child.py`'s.
"""

from __future__ import annotations

import ast
import contextlib
import linecache
import sys
import traceback
import types
from dataclasses import dataclass
from typing import Any, cast

__all__ = ["MAX_TRACEBACK_CHARACTERS", "MAX_VALUE_CHARACTERS", "Ending", "fresh_main", "run_source"]

MAX_VALUE_CHARACTERS = 64 * 1024
MAX_TRACEBACK_CHARACTERS = 16 * 1024
_MAX_LINE_CHARACTERS = 400


@dataclass
class Ending:
    """How the program's main code ended."""

    kind: str
    """"ok", "error", "memory" (an uncaught MemoryError) or "exit" (SystemExit)."""
    value: str | None = None
    traceback: str | None = None
    exit_code: int = 0


def fresh_main() -> types.ModuleType:
    """A new, empty `__main__` module, put in place of the interpreter's own."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = module
    return module


def run_source(source: str, filename: str, namespace: dict[str, Any]) -> Ending:
    """Executes source in a namespace.

    Args:
        source: the program.
        filename: its name in tracebacks.
        namespace: the globals; kept by the caller when the state has to live on.
    """
    # Lets tracebacks, inspect and warnings show the program's lines although no file holds them.
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    try:
        statements, last = _compile(source, filename)
    except (SyntaxError, ValueError, OverflowError) as error:
        return Ending("error", traceback=_clip(_syntax_text(error, source, filename)), exit_code=1)
    except (RecursionError, MemoryError):
        return Ending("error", traceback=_too_deep(source, filename), exit_code=1)
    try:
        if statements is not None:
            exec(statements, namespace)  # noqa: S102 - this is what a sandbox is for
        value = eval(last, namespace) if last is not None else None  # noqa: S307 - as above
        return Ending("ok", value=None if value is None else _clip(_utf8(repr(value)), MAX_VALUE_CHARACTERS))
    except BaseException as error:
        return _from_exception(error, filename)


def _compile(source: str, filename: str) -> tuple[types.CodeType | None, types.CodeType | None]:
    """Code of all statements, and apart from it of a last expression whose value is shown."""
    if "\0" in source:
        line = source[: source.index("\0")].count("\n") + 1
        raise SyntaxError("source code cannot contain null bytes", (filename, line, 1, None))
    return _compile_split(source, filename) or _compile_tree(source, filename)


def _compile_tree(source: str, filename: str) -> tuple[types.CodeType | None, types.CodeType | None]:
    """The same for any source."""
    tree = ast.parse(source, filename)
    if not (tree.body and isinstance(tree.body[-1], ast.Expr)) or _ends_with_semicolon(source, tree.body[-1]):
        return compile(tree, filename, "exec", dont_inherit=True), None
    final = tree.body.pop()
    assert isinstance(final, ast.Expr)
    body = compile(tree, filename, "exec", dont_inherit=True) if tree.body else None
    return body, compile(ast.Expression(final.value), filename, "eval", dont_inherit=True)


def _compile_split(source: str, filename: str) -> tuple[types.CodeType | None, types.CodeType] | None:
    """The same for a source whose last line is a whole expression, without making Python objects of its tree.

    Where all before the line is complete, and the line is a complete expression that begins in the first column, the
    two together mean what they mean apart: no bracket, string or backslash is open in between, and no expression goes
    on with a compound statement. None: it is not so, or not for sure; the tree will tell.
    """
    end = len(source.rstrip())
    start = source.rfind("\n", 0, end) + 1
    last = source[start:end]
    # A backslash may be warned about, which must not happen twice.
    if not last or last[0] in " \t\f#" or "\\" in last or "\r" in source or source[:start].endswith("\\\n"):
        return None
    try:
        value = compile("\n" * source.count("\n", 0, start) + last, filename, "eval", dont_inherit=True)
        body = compile(source[:start], filename, "exec", dont_inherit=True) if start else None
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        return None
    return body, value


def _ends_with_semicolon(source: str, statement: ast.stmt) -> bool:
    """As in IPython, a semicolon after the last expression keeps its value quiet."""
    if statement.end_lineno is None or statement.end_col_offset is None:
        return False
    # Not `splitlines`, for which a form feed and others end a line too.
    lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    line = lines[statement.end_lineno - 1].encode("utf-8", "surrogatepass")
    return line[statement.end_col_offset :].lstrip().startswith(b";")


def _from_exception(error: BaseException, filename: str) -> Ending:
    # By type(), which no class can lie about; isinstance asks the object too.
    if issubclass(type(error), SystemExit):
        return _from_exit(cast("SystemExit", error))
    kind = "memory" if issubclass(type(error), MemoryError) else "error"
    try:
        if kind == "memory":
            # What the frames hold may be all the memory there is.
            traceback.clear_frames(error.__traceback__)
        text = _utf8("".join(traceback.format_exception(type(error), error, _user_frames(error, filename))))
    except BaseException as second:  # a hostile exception, or no memory to format it
        text = f"{_name_of(error)} (its traceback cannot be shown: {_name_of(second)})"
    return Ending(kind, traceback=_clip(text), exit_code=1)


def _name_of(error: BaseException) -> str:
    """The name of an exception's class, whatever its metaclass says."""
    return str(type.__dict__["__name__"].__get__(type(error)))


def _from_exit(error: SystemExit) -> Ending:
    """The exit code as the interpreter would give it: None is 0, an integer itself, anything else is text and 1."""
    code = error.code
    if code is None:
        return Ending("exit", exit_code=0)
    if isinstance(code, int):
        return Ending("exit", exit_code=int(code) & 0xFF)
    with contextlib.suppress(BaseException):  # the text is the program's own; the exit code stands without it
        print(code, file=sys.stderr)
    return Ending("exit", exit_code=1)


def _user_frames(error: BaseException, filename: str) -> types.TracebackType | None:
    """The traceback without the sandbox's own frames at its start."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != filename:
        trace = trace.tb_next
    return trace


def _syntax_text(error: Exception, source: str, filename: str) -> str:
    if isinstance(error, SyntaxError):
        return _utf8("".join(traceback.format_exception_only(type(error), error)))
    return f'  File "{filename}", line {_longest_line(source)}\n{type(error).__name__}: {_utf8(str(error))}\n'


def _too_deep(source: str, filename: str) -> str:
    return (
        f'  File "{filename}", line {_longest_line(source)}\n'
        "SyntaxError: the source is nested too deeply to be compiled\n"
    )


def _longest_line(source: str) -> int:
    """The compiler gives no line for what overwhelms it; the longest one is the best guess."""
    lines = source.split("\n")
    return max(range(len(lines)), key=lambda index: len(lines[index])) + 1


def _utf8(text: str) -> str:
    """The text with lone surrogates escaped, so that it can leave the process as UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _clip_line(line: str) -> str:
    """One line of a traceback, which may quote a source line of any length."""
    half = _MAX_LINE_CHARACTERS // 2
    return line if len(line) <= _MAX_LINE_CHARACTERS else f"{line[:half].rstrip()} ... {line[-half:].lstrip()}"


def _clip(text: str, limit: int = MAX_TRACEBACK_CHARACTERS) -> str:
    """At most `limit` characters: the start and the end, which hold what matters, and a count of the rest."""
    text = "\n".join(_clip_line(line) for line in text.split("\n")) if limit == MAX_TRACEBACK_CHARACTERS else text
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... [{len(text) - 2 * half} characters left out] ...\n{text[-half:]}"
