"""A data pipeline: raw sign-ups become clean rows for a warehouse. A sign-up that is not valid goes
to a topic of its own with the reason, and none is lost.

`python pipelines/clean_signups.py` runs it until Ctrl-C.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

import msgspec

from tidegate import Json, KafkaSink, KafkaSource, Pipeline


class RawSignup(msgspec.Struct, frozen=True):
    email: str
    country: str
    at: str
    """The time in ISO 8601, with a zone."""


class Signup(msgspec.Struct, frozen=True):
    email_hash: str
    domain: str
    country: str
    at: datetime


def clean(raw: RawSignup) -> Signup:
    """Return the row of a sign-up. ValueError if a field is not valid."""
    email = raw.email.strip().lower()
    name, at, domain = email.partition("@")
    if not (name and at and "." in domain):
        raise ValueError("the email address has no domain")
    when = datetime.fromisoformat(raw.at)
    if when.tzinfo is None:
        raise ValueError("the time has no zone")
    hashed = hashlib.sha256(email.encode()).hexdigest()
    return Signup(hashed, domain, raw.country.upper(), when.astimezone(UTC))


class CleanSignups(Pipeline, name="clean-signups"):
    """One row for each valid sign-up, with a hash in place of the address."""

    raw = KafkaSource(
        "signups-raw",
        value=Json(RawSignup),
        on_bad_record="dead_letter",
        dead_letter_topic="signups-bad",
    )
    rows = KafkaSink("signups", value=Json(Signup), record_key=lambda row: row.email_hash)

    def define(self) -> None:
        cleaned = self.raw.map(clean, on_error="dead_letter", dead_letter_topic="signups-bad")
        cleaned.to(self.rows)


if __name__ == "__main__":
    result = CleanSignups().run()
    print(f"{result.records_out} rows, {result.dead_letters} refused, {result.ended}")
