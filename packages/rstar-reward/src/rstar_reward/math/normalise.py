r"""One spelling for many: Unicode, spacing macros, delimiters and styles of LaTeX, without changing what is meant.

The result is ordinary LaTeX with ASCII operators. All steps are linear in the length of the text.
"""

# ruff: noqa: RUF001 - these characters are what the module is about

from __future__ import annotations

import re
import unicodedata

__all__ = ["normalise"]

_SYMBOLS = {
    "−": "-", "–": "-", "—": "-", "﹣": "-", "－": "-", "‐": "-", "‑": "-", "‒": "-",
    "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "∗": "*", "÷": r"\div ", "∕": "/", "⁄": "/",
    "±": r"\pm ", "∓": r"\mp ", "≤": r"\leq ", "≦": r"\leq ", "⩽": r"\leq ", "≥": r"\geq ", "≧": r"\geq ",
    "⩾": r"\geq ", "≠": r"\neq ", "≈": r"\approx ", "∞": r"\infty ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ",
    "∅": r"\emptyset ", "∖": r"\setminus ", "°": r"^{\circ}", "º": r"^{\circ}", "˚": r"^{\circ}", "√": r"\sqrt ",
    "∛": r"\sqrt[3]", "∜": r"\sqrt[4]", "…": r"\ldots ", "⋯": r"\ldots ", "′": "'", "’": "'", "‘": "'", "“": '"',
    "”": '"', "⟨": r"\langle ", "⟩": r"\rangle ", "→": r"\to ", "⇒": r"\Rightarrow ", "∨": r"\lor ", "∧": r"\land ",
    "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}", "ℯ": "e",
    "ⅈ": "i", "π": r"\pi ", "𝜋": r"\pi ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta ",
    "ε": r"\epsilon ", "θ": r"\theta ", "λ": r"\lambda ", "μ": r"\mu ", "ρ": r"\rho ", "σ": r"\sigma ", "τ": r"\tau ",
    "φ": r"\phi ", "ϕ": r"\phi ", "ψ": r"\psi ", "ω": r"\omega ", "η": r"\eta ", "ξ": r"\xi ", "ζ": r"\zeta ",
    "κ": r"\kappa ", "ν": r"\nu ", "χ": r"\chi ", "Δ": r"\Delta ", "Γ": r"\Gamma ", "Ω": r"\Omega ", "Φ": r"\Phi ",
    "Θ": r"\Theta ", "Σ": r"\Sigma ", "，": ",", "；": ";", "：": ":", "（": "(", "）": ")", "％": "%", "。": ".",
    "\u200b": "", "\u2060": "", "\ufeff": "", "\u200e": "", "\u200f": "", "、": ",",
}  # fmt: skip

_SUPERSCRIPTS = {ord(mark): plain for mark, plain in zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱˣ⁽⁾", "0123456789+-nix()", strict=True)}
_SUBSCRIPTS = {ord(mark): plain for mark, plain in zip("₀₁₂₃₄₅₆₇₈₉₊₋ₙₓ", "0123456789+-nx", strict=True)}
_SUPERSCRIPT_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱˣ⁽⁾]+")
_SUBSCRIPT_RUN = re.compile("[₀₁₂₃₄₅₆₇₈₉₊₋ₙₓ]+")
_ROOT = re.compile(r"√ ?([0-9]+(?:\.[0-9]+)?|[a-zA-Z])")
_VULGAR = re.compile("[¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞]")

_RENAMED = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "nicefrac": "frac", "sfrac": "frac", "dbinom": "binom",
    "tbinom": "binom", "geqslant": "geq", "leqslant": "leq", "ge": "geq", "le": "leq", "ne": "neq", "gt": ">",
    "lt": "<", "dots": "ldots", "cdots": "ldots", "dotsc": "ldots", "dotsb": "ldots", "varnothing": "emptyset",
    "land": "land", "wedge": "land", "vee": "lor", "rightarrow": "to", "lbrace": "{", "rbrace": "}",
    "lbrack": "[", "rbrack": "]", "lparen": "(", "rparen": ")", "degree": "^{\\circ}", "degrees": "^{\\circ}",
    "varphi": "phi", "varepsilon": "epsilon", "vartheta": "theta", "backslash": "setminus", "iff": "iff",
    "textdegree": "^{\\circ}", "colon": ":", "lvert": "|", "rvert": "|", "vert": "|", "mid": "|",
    "log_e": "ln", "textbackslash": "setminus", "bmod": "mod", "varpi": "varpi", "ast": "*",
}  # fmt: skip
_SPACES = frozenset({"quad", "qquad", "enspace", "thinspace", "medspace", "thickspace", "hfill", "nobreakspace"})
_DROPPED = frozenset({
    "left", "right", "big", "Big", "bigg", "Bigg", "bigl", "bigr", "Bigl", "Bigr", "biggl", "biggr", "Biggl", "Biggr",
    "displaystyle", "textstyle", "scriptstyle", "limits", "nolimits", "rm", "bf", "it", "mathstrut", "strut",
    "nonumber", "boldmath", "boxed", "fbox", "framebox", "mathopen", "mathclose", "middle",
    # Wrappers around mathematics that change its look only.
    "mathbf", "boldsymbol", "mathit", "mathsf", "bm", "pmb", "ensuremath", "mathnormal", "emph", "underline",
})  # fmt: skip
_MACRO = re.compile(r"\\([a-zA-Z]+)[ \t]*|\\([,;:! ])|\\([()\[\]])|\\([$\\])")
# Separators that can only be meant to group digits: 14{,}916 and 1\\,234.
_THIN_THOUSANDS = re.compile(r"(?<=[0-9])(?:\{,\}|\\[,!:;]|\{\\,\})(?=[0-9]{3}(?![0-9]))")
_DELIMITER = re.compile(r"(?<!\\)\$|~")


def normalise(text: str) -> str:
    """The same answer in one spelling."""
    text = _unicode(text)
    text = _THIN_THOUSANDS.sub("", text)
    text = _MACRO.sub(_macro, text)
    text = _DELIMITER.sub(" ", text)
    text = text.replace("{-}", "-").replace("{+}", "+").replace("{=}", "=")
    text = text.replace(">=", r"\geq ").replace("<=", r"\leq ").replace("!=", r"\neq ").replace("**", "^")
    return " ".join(text.split())


def _unicode(text: str) -> str:
    if text.isascii():
        return text
    text = _ROOT.sub(r"\\sqrt{\1}", text)
    text = _SUPERSCRIPT_RUN.sub(lambda run: "^{" + run.group().translate(_SUPERSCRIPTS) + "}", text)
    text = _SUBSCRIPT_RUN.sub(lambda run: "_{" + run.group().translate(_SUBSCRIPTS) + "}", text)
    text = _VULGAR.sub(_vulgar_fraction, text)
    return "".join(_character(character) for character in text)


def _vulgar_fraction(found: re.Match[str]) -> str:
    above, below = unicodedata.normalize("NFKC", found.group()).split("⁄")
    return rf"\frac{{{above}}}{{{below}}}"


def _character(character: str) -> str:
    if character.isascii():
        return character
    known = _SYMBOLS.get(character)
    if known is not None:
        return known
    if character.isspace():
        return " "
    if character.isdecimal():
        return str(unicodedata.decimal(character))
    plain = unicodedata.normalize("NFKC", character)
    if plain.isascii():
        return plain
    return "".join(_SYMBOLS.get(part, part) for part in plain)


def _macro(found: re.Match[str]) -> str:
    name, space, _delimiter, kept = found.groups()
    if kept:
        # A currency sign, or the end of a matrix row.
        return found.group()
    if space:
        return "" if space == "!" else " "
    if name is None:
        return " "
    if name in _SPACES:
        return " "
    if name in _DROPPED:
        return " "
    renamed = _RENAMED.get(name)
    if renamed is None:
        return f"\\{name} "
    if renamed in ("{", "}"):
        return f"\\{renamed}"
    return renamed if not renamed.isalpha() else f"\\{renamed} "
