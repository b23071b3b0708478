"""What the fuzzer tries: grammatical answers, mutations of them, token soup, raw Unicode, payloads."""

# ruff: noqa: RUF001, SIM905 - the fuzzer means these characters; a table of tokens reads better as one text

from __future__ import annotations

from hypothesis import strategies as st

__all__ = ["strategies"]

_TOKENS = (
    r"1 2 3 10 0 12 5 . , ; : + - * / ^ _ = < > ! ( ) [ ] { } | \{ \} x y n a b e i \pi \frac \sqrt \sqrt[3] "
    r"\frac{1}{2} \binom \sin \cos \log \ln \log_2 \cdot \times \div \pm \mp \leq \geq \neq \in \cup \cap "
    r"\setminus \infty \emptyset \mathbb{R} \text{and} \text{or} \text{cm} \text{not} \% ^\circ ^{2} _{3} ^{-1} "
    r"\ldots \begin{pmatrix} \end{pmatrix} & \\ \lfloor \rfloor \left( \right) \boxed{ \sum \int_0^1 \lim_{x\to0} "
    r"' $ \$ # @ ~ \overline{3} f(x) f(2) 1,234 1e5 ** == abs( exp( gcd(2,4) max(1,2) \equiv \pmod{7} \angle A B "
    r"C \approx \prod_{k=1}^{5} \sum_{k=1}^{n} \begin{cases} \end{cases} \mathrm{e} \operatorname{ker} \det \arg "
    r"\Re \overrightarrow{AB} \sqrt{-1} 999999 10^{6} 7! 20! \tan \arcsin \sec(1) \coth \exp(9) \max \partial \nabla"
).split(" ")
_FORMS = (
    "{0}+{1}", "{0}-{1}", r"{0} \cdot {1}", r"\frac{{{0}}}{{{1}}}", "({0})^{{{1}}}", r"\sqrt{{{0}}}", "|{0}|",
    r"\sqrt[{0}]{{{1}}}", r"\sin({0})", r"\ln({0})", r"\log_{{{0}}}({1})", r"\binom{{{0}}}{{{1}}}", "({0})!",
    r"\lfloor {0} \rfloor", r"{0} \pm {1}", r"e^{{{0}}}", r"\sum_{{k=1}}^{{{0}}} {1}", r"\int_0^{{{0}}} {1} dx",
    r"\lim_{{x \to {0}}} {1}", r"\arctan({0})", r"\overline{{{0}}}", r"{0} \text{{ cm}}", r"{0}\%", r"{0}^\circ",
    r"\begin{{pmatrix}} {0} & {1} \\ {1} & {0} \end{{pmatrix}}", "{0}_{{{1}}}", "f({0})",
)  # fmt: skip
_LISTS = (
    "{0}, {1}", "({0}, {1})", "[{0}, {1})", r"\{{{0}, {1}\}}", "{0} < x < {1}", "x = {0}", "{0} = {1}",
    r"{0} \text{{ or }} {1}", r"({0}, {1}) \cup ({1}, \infty)", "{0}:{1}", r"x \in [{0}, {1}]", r"{0} \geq {1}",
    "x={0}, y={1}", r"\mathbb{{R}} \setminus \{{{0}\}}", "{0}, {1}, \\ldots",
)  # fmt: skip
_PAYLOADS = (
    "__import__('os').system('touch /tmp/rstar-fuzz-ran')",
    "eval('1')",
    "exec('import os')",
    "().__class__.__base__.__subclasses__()",
    "open('/tmp/rstar-fuzz-ran','w')",
    "lambda: 0",
    "\\input{|id}",
    "S('x')",
)
_GOLDS = (
    "5", r"\frac{1}{2}", "x^2+1", "(1,2)", r"\{1,2\}", "[0,1)", "x=2", r"\sqrt{2}", r"\pi", "B", r"\text{yes}",
    "1,234", r"\pm 3", "2:3", r"30^\circ", r"25\%", "110_2", r"\begin{pmatrix}1&2\end{pmatrix}", r"\sum_{k=1}^{n} k",
    r"\int_0^1 x dx",
)  # fmt: skip
_OPENINGS = ("(", "{", "\\sqrt{", "^", "-", "\\frac1", "|", "x_", "1,", "!", "\\boxed{", "[", "\\{", "'")
_CLOSINGS = {"(": ")", "[": "]", "\\{": "\\}"}


def strategies() -> st.SearchStrategy[tuple[str, str]]:
    """Pairs of (gold, candidate)."""
    soup = st.lists(st.sampled_from([*_TOKENS, " "]), min_size=1, max_size=24).map("".join)
    atoms = st.one_of(
        st.integers(-(10**9), 10**9).map(str),
        st.decimals(-1000, 1000, places=4).map(str),
        st.sampled_from(["x", "y", r"\pi", "e", "i", r"\infty", "n", r"\theta", "½", "√2", "x²", "−3"]),
        st.tuples(st.integers(-30, 30), st.integers(-9, 30)).map(lambda pair: rf"\frac{{{pair[0]}}}{{{pair[1]}}}"),
    )
    expressions = st.recursive(
        atoms,
        lambda inner: st.tuples(st.sampled_from(_FORMS), inner, inner).map(_filled),
        max_leaves=6,
    )
    lists = st.tuples(st.sampled_from(_LISTS), expressions, expressions).map(_filled)
    grammatical = st.one_of(expressions, lists)
    strange = st.one_of(soup, st.sampled_from(_PAYLOADS), st.text(max_size=4))
    mutated = st.tuples(grammatical, st.integers(0, 200), st.integers(0, 6), strange).map(
        lambda part: part[0][: part[1]] + part[3] + part[0][part[1] + part[2] :]
    )
    repeated = st.tuples(st.sampled_from(_OPENINGS), st.integers(1, 3000), grammatical, st.booleans()).map(_repeated)
    payloads = st.sampled_from(_PAYLOADS)
    texts = st.one_of(grammatical, grammatical, mutated, mutated, soup, repeated, payloads, st.text(max_size=60))
    golds = st.one_of(grammatical, st.sampled_from(_GOLDS))
    same = st.tuples(grammatical, st.integers(0, 200)).map(
        lambda part: (part[0], part[0][: part[1]] + " " + part[0][part[1] :])
    )
    return st.one_of(st.tuples(golds, texts), st.tuples(golds, texts), same)


def _filled(part: tuple[str, str, str]) -> str:
    form, one, other = part
    return form.format(one, other)


def _repeated(part: tuple[str, int, str, bool]) -> str:
    opening, times, inner, closed = part
    return opening * times + inner + (_CLOSINGS.get(opening, "}") * times if closed else "")
