"""Formats: codecs between values and Kafka bytes that also carry the value's type.

`Json(Order)` is a `Format[Order]`, for the type checker and at run time. A type that a format
cannot encode is refused where the format is declared. Schema files are read when the graph is
built, not at import. Sources and sinks get a decoder or an encoder once per subtask; it is a plain
function for the hot path. A decoder or encoder may raise any exception. The data plane catches it,
names the record's topic, partition and offset, and applies the policy of the source or sink.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, get_args

import msgspec
from typing_extensions import TypeForm

from tidegate.api.declarations.location import at_user_location, refuse_unsupported
from tidegate.api.records.finite import FiniteCheck, holds
from tidegate.api.records.record_fields import fields_of, is_model, plain_type, type_name
from tidegate.api.records.types import AvroSchema, type_info
from tidegate.errors import PipelineError

if TYPE_CHECKING:
    from tidegate.api.records.avro import AvroCodec
    from tidegate.api.records.model_json import ModelJson

T = TypeVar("T")


Validate = Literal["sample", "all"]
"""Share of the records whose fields a sink checks: some ("sample") or every one ("all")."""


class Format(Generic[T]):
    """A codec, and the type `of` of its values.

    A sink checks the values that user code made against `of`. It checks the class of each value,
    and the fields of some records (`validate="sample"`, the default) or of every record (`"all"`).
    Decoders always check every field.

    The constructor raises PipelineError if the type has no schema.
    """

    def __init__(self, of: TypeForm[T], *, validate: Validate = "sample") -> None:
        if validate not in get_args(Validate):
            raise PipelineError(f'validate={validate!r} is unknown. Give "sample" or "all".')
        self.declared_type = of
        self.value_type: Any = plain_type(of)
        self.validate = validate
        with at_user_location():
            self.schema: AvroSchema = type_info(of).avro

    def describe(self) -> dict[str, object]:
        """Return the format's name and schema, for the graph's fingerprint.

        It reads the schema file, where one is given; PipelineError if the type does not fit it.
        """
        return {"format": type(self).__name__, "schema": self.schema}

    def decoder(self) -> Callable[[bytes], T]:
        """Return a function from Kafka bytes to a value.

        It raises an exception whose text gives the reason if the bytes are not such a value.
        """
        raise NotImplementedError

    def encoder(self) -> Callable[[T], bytes]:
        """Return a function from a value to Kafka bytes."""
        raise NotImplementedError


class Json(Format[T]):
    """JSON, encoded by msgspec, or by pydantic if the type is or holds a pydantic model.

    Decimals are written as strings. A JSON number is read as a Decimal without rounding.
    NaN and infinity are no JSON: a sink refuses such a record, and a source refuses such bytes.
    The constructor raises PipelineError for a type that JSON cannot represent.
    """

    def __init__(self, of: TypeForm[T], *, validate: Validate = "sample") -> None:
        super().__init__(of, validate=validate)
        try:
            self.decoder()
        except (
            TypeError,
            RuntimeError,
        ) as error:  # for example, a union whose branches JSON cannot tell apart
            raise PipelineError(f"Json({type_name(of)}): {error}") from None

    def decoder(self) -> Callable[[bytes], T]:
        """Return a function from JSON bytes to a value; it checks every field."""
        if self._model is not None:
            return self._model.decoder()
        decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(self.declared_type)
        return decoder.decode

    def encoder(self) -> Callable[[T], bytes]:
        """Return a function from a value to JSON bytes; it raises ValueError for NaN."""
        if self._model is not None:
            return self._model.encoder()
        encode = msgspec.json.Encoder(decimal_format="string").encode
        if not holds(self.value_type, float, Decimal, Any):
            return encode
        return FiniteCheck(self.value_type).guarded(encode)

    @cached_property
    def _model(self) -> ModelJson | None:
        """The codec of a type that is or holds a pydantic model."""
        if not _holds_model(self.value_type):
            return None
        from tidegate.api.records.model_json import ModelJson

        return ModelJson(self.declared_type)


class Avro(Format[T]):
    """Avro without a header, encoded by fastavro.

    The writer's schema is derived from the type, or is the `.avsc` file `schema`, a path relative
    to the module search path or the working folder. The type is checked against the file field by
    field when the graph is built; PipelineError if it does not fit.
    """

    def __init__(
        self, of: TypeForm[T], *, schema: str | None = None, validate: Validate = "sample"
    ) -> None:
        super().__init__(of, validate=validate)
        self.file = schema

    def describe(self) -> dict[str, object]:
        """Return the format's name, the type's schema and the writer's schema.

        PipelineError if the schema file does not exist or the type does not fit it.
        """
        return {**super().describe(), "writer": self._codec.schema}

    def decoder(self) -> Callable[[bytes], T]:
        """Return a function from Avro bytes to a value.

        It raises ValueError if there are too few or too many bytes for the value.
        """
        return self._codec.decode

    def encoder(self) -> Callable[[T], bytes]:
        """Return a function from a value to Avro bytes."""
        return self._codec.encode

    @cached_property
    def _codec(self) -> AvroCodec:
        from tidegate.api.records.avro import avro_codec  # fastavro costs 30 ms

        return avro_codec(self.value_type, self.file)


class Utf8(Format[str]):
    """Text in UTF-8."""

    def __init__(self) -> None:
        super().__init__(str)

    def decoder(self) -> Callable[[bytes], str]:
        """Return a function from UTF-8 bytes to text; it raises UnicodeDecodeError for others."""
        return bytes.decode

    def encoder(self) -> Callable[[str], bytes]:
        """Return a function from text to UTF-8 bytes."""
        return str.encode


class Raw(Format[bytes]):
    """Bytes, written and read unchanged."""

    def __init__(self) -> None:
        super().__init__(bytes)

    def decoder(self) -> Callable[[bytes], bytes]:
        """Return a function that returns the record's bytes unchanged."""
        return bytes

    def encoder(self) -> Callable[[bytes], bytes]:
        """Return a function that returns the value's bytes unchanged."""
        return bytes


class Protobuf(Format[T]):
    """Not supported in this version: the constructor raises PipelineError."""

    def __init__(self, of: type[T]) -> None:
        refuse_unsupported(f"Protobuf({type_name(of)})", "use Raw() and parse the message in a map")


def _holds_model(of: object) -> bool:
    """Check whether a type is a pydantic model, or has one at any depth."""
    if is_model(of):
        return True
    parts = [field.type for field in fields_of(of) or ()]
    return any(_holds_model(part) for part in (*parts, *get_args(of)))
