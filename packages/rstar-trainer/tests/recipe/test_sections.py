"""What the sections accept."""

from typing import Any

import pytest
from pydantic import ValidationError

from rstar_trainer.recipe import DataSource, EvaluationSettings, ServiceEndpoint


@pytest.mark.parametrize("endpoint", ["embedded", "grpc://host:1", "grpcs://h.example:443", "unix:/run/s.sock"])
def test_endpoints(endpoint: str) -> None:
    assert ServiceEndpoint(endpoint=endpoint).embedded == (endpoint == "embedded")


@pytest.mark.parametrize(
    "endpoint", ["", "host:1", "http://host:1", "grpc://host", "grpc://:1", "unix:", "unix:relative"]
)
def test_other_endpoints_are_refused(endpoint: str) -> None:
    with pytest.raises(ValidationError, match="embedded"):
        ServiceEndpoint(endpoint=endpoint)


@pytest.mark.parametrize("alone", ["certificate", "private_key"])
def test_certificate_and_key_come_together(alone: str) -> None:
    with pytest.raises(ValidationError, match="certificate and private_key"):
        ServiceEndpoint.model_validate({alone: "x.pem"})


@pytest.mark.parametrize(
    "values",
    [
        {"generator": "quickstart", "path": "x.jsonl", "count": 1},
        {"generator": "quickstart"},
        {"path": "x.jsonl", "families": ["a"]},
        {"count": -1},
        {"count": 5, "answers": "text"},
    ],
)
def test_data_sources_that_say_nothing_clear_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        DataSource.model_validate(values)


def test_a_source_without_a_name_is_the_quickstart_generator() -> None:
    assert DataSource.model_validate({"count": 5}).generator == "quickstart"


def test_a_subset_is_part_of_the_problems() -> None:
    with pytest.raises(ValidationError, match=r"problems \(10\), not 11"):
        EvaluationSettings(problems=10, subset=11)


def test_several_equal_samples_are_refused() -> None:
    with pytest.raises(ValidationError, match="temperature 0"):
        EvaluationSettings(samples=2, temperature=0)
