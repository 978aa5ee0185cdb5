"""Formats turn values into Kafka bytes and carry the value's type: `Json(Order)` is a
`Format[Order]`, for the checker and at run time.

A type that a format cannot carry is refused where the format is written. Schema files are read when
the graph is built, not at import. Sources and sinks ask once per subtask for a decoder or an
encoder, a plain function for the hot path. What it raises is not ours: the data plane catches it,
names the record's topic, partition and offset, and applies the source's policy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, get_args

import msgspec
from typing_extensions import TypeForm

from tidegate.api.location import refuse_unsupported
from tidegate.api.record_fields import fields_of, is_model, type_name
from tidegate.api.types import AvroSchema, type_info
from tidegate.errors import PipelineError

if TYPE_CHECKING:
    from tidegate.api.avro import AvroCodec

T = TypeVar("T")


Validate = Literal["sample", "all"]
"""Of how many records a sink has the fields checked."""


class Format(Generic[T]):
    """A codec and the type it carries, `of`.

    A sink has what user code made checked against `of`: the class of each value, and with
    `validate="sample"` the fields of some records, with `"all"` those of each. Decoders always
    check every field.
    """

    def __init__(self, of: TypeForm[T], *, validate: Validate = "sample") -> None:
        if validate not in get_args(Validate):
            raise PipelineError(f'validate={validate!r} is unknown. Give "sample" or "all".')
        self.of = of
        self.validate = validate
        self.schema: AvroSchema = type_info(of).avro

    def describe(self) -> dict[str, object]:
        """Name and schema, for the fingerprint. Reads files; PipelineError if they do not fit."""
        return {"format": type(self).__name__, "schema": self.schema}

    def decoder(self) -> Callable[[bytes], T]:
        """A function from Kafka bytes to a value; it raises an exception whose text says the
        reason.
        """
        raise NotImplementedError

    def encoder(self) -> Callable[[T], bytes]:
        """A function from a value to Kafka bytes."""
        raise NotImplementedError


class Json(Format[T]):
    """JSON: by msgspec, or by pydantic where the type is or holds a pydantic model. Decimals are
    strings; numbers are read as Decimals exactly.
    """

    def __init__(self, of: TypeForm[T], *, validate: Validate = "sample") -> None:
        super().__init__(of, validate=validate)
        try:
            self.decoder()
        except (
            TypeError,
            RuntimeError,
        ) as error:  # a union that JSON cannot tell apart, and the like
            raise PipelineError(f"Json({type_name(of)}): {error}") from None

    def decoder(self) -> Callable[[bytes], T]:
        if _holds_model(self.of):
            validate: Callable[[bytes], T] = self._adapter.validate_json
            return validate
        decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(self.of)
        return decoder.decode

    def encoder(self) -> Callable[[T], bytes]:
        if _holds_model(self.of):
            dump = self._adapter.dump_json
            # pydantic checks the fields of what it writes, and would only warn.
            return lambda value: dump(value, by_alias=True, warnings="error")
        return msgspec.json.Encoder(decimal_format="string").encode

    @cached_property
    def _adapter(self) -> Any:
        from pydantic import TypeAdapter  # 100 ms, and the user has imported it already

        return TypeAdapter(self.of)


class Avro(Format[T]):
    """Avro without a header, by fastavro.

    The writer's schema is derived from the type, or is the `.avsc` file, which is looked for from
    the working folder; the type is checked against it field by field when the graph is built.
    """

    def __init__(
        self, of: TypeForm[T], *, schema: str | None = None, validate: Validate = "sample"
    ) -> None:
        super().__init__(of, validate=validate)
        self.file = schema

    def describe(self) -> dict[str, object]:
        return {**super().describe(), "writer": self._codec.schema}

    def decoder(self) -> Callable[[bytes], T]:
        return self._codec.decode

    def encoder(self) -> Callable[[T], bytes]:
        return self._codec.encode

    @cached_property
    def _codec(self) -> AvroCodec:
        from tidegate.api.avro import avro_codec  # fastavro costs 30 ms

        return avro_codec(self.of, self.file)


class Utf8(Format[str]):
    """Text."""

    def __init__(self) -> None:
        super().__init__(str)

    def decoder(self) -> Callable[[bytes], str]:
        return bytes.decode

    def encoder(self) -> Callable[[str], bytes]:
        return str.encode


class Raw(Format[bytes]):
    """Bytes, untouched."""

    def __init__(self) -> None:
        super().__init__(bytes)

    def decoder(self) -> Callable[[bytes], bytes]:
        return bytes

    def encoder(self) -> Callable[[bytes], bytes]:
        return bytes


class Protobuf(Format[T]):
    """Refused in this version."""

    def __init__(self, of: type[T]) -> None:
        refuse_unsupported(f"Protobuf({type_name(of)})", "use Raw() and parse the message in a map")


def _holds_model(of: object) -> bool:
    """Whether a type is a pydantic model, or has one anywhere inside."""
    if is_model(of):
        return True
    parts = [field.of for field in fields_of(of) or ()]
    return any(_holds_model(part) for part in (*parts, *get_args(of)))
