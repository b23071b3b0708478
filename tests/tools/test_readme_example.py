"""Reading install lines and examples out of READMEs."""

import pytest
from readme_example import first_example, install_extras

README = """\
# Thing

```bash
pip install --find-links wheelhouse "rstar-model[torch, extra]"
pip install rstar-model[other]
```

```python
print("first")
```

```python
print("second")
```
"""


def test_the_first_python_block_is_the_example() -> None:
    assert first_example(README) == 'print("first")\n'


def test_a_readme_without_example_is_refused() -> None:
    with pytest.raises(ValueError, match="no ```python block"):
        first_example("# Thing\n\n```bash\nls\n```\n")


def test_extras_come_from_the_first_install_line() -> None:
    assert install_extras(README, "rstar-model") == ["torch", "extra"]


def test_a_plain_install_line_names_no_extras() -> None:
    assert install_extras("pip install rstar-sandbox\n", "rstar-sandbox") == []


def test_extras_of_another_distribution_do_not_count() -> None:
    assert install_extras("pip install rstar-model[torch] rstar-eval\n", "rstar-eval") == []
