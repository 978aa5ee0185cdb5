"""Fields of record classes are read once, and what may still change is read again.

Method: a name that annotations use is defined only after the first question.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pydantic
import pytest

from tidegate.api.records.record_fields import fields_of
from tidegate.errors import PipelineError


@dataclass(frozen=True)
class Parcel:
    """Its label is defined by a test."""

    label: Label  # type: ignore[name-defined]  # noqa: F821


class Letter(pydantic.BaseModel):
    """Its stamp is defined by a test."""

    stamp: Stamp  # type: ignore[name-defined]  # noqa: F821


def test_record_class_is_refused_until_its_annotations_can_be_resolved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(PipelineError, match="Label"):
        fields_of(Parcel)
    monkeypatch.setitem(globals(), "Label", str)
    (field,) = fields_of(Parcel) or ()
    assert field.type is str
    assert fields_of(Parcel) is fields_of(Parcel)


def test_fields_of_a_pydantic_model_are_read_again_after_model_rebuild() -> None:
    def types() -> list[Any]:
        return [field.type for field in fields_of(Letter) or ()]

    assert types() != [int]
    Letter.model_rebuild(_types_namespace={"Stamp": int})
    assert types() == [int]
