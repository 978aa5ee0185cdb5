"""What is a secret, and how text that people read is cleaned of secrets.

`is_secret` is the only place that decides by a name whether a value is a secret. `tidegate config`,
the submissions that a JobManager stores, logs, errors and reports all ask it. Where text has no
name (a message of a client library, an exception of user code that quotes its password),
`masked_text` replaces the secrets that this process has seen: whoever reads a configuration or a
`Param(secret=True)` calls `remember`.

The module keeps those values for the life of the process, because a log line may quote a secret at
any time. Nothing here does I/O, and nothing is called per record.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

MASK: Final = "********"

_SECRET_ENDINGS: Final = (
    "passphrase",
    "password",
    "passwd",
    "secret",
    "token",
    "apikey",
    "accesskey",
    "secretkey",
    "privatekey",
    "key.pem",  # ssl.key.pem and the like hold the private key itself
    "oauthbearer.config",  # librdkafka: may hold a client secret or claims
    "jaas.config",  # Java's form of sasl.password, which users paste by mistake
)
"""A name that ends like this is a secret, whatever precedes it."""
_SECRET_WORDS: Final = ("key", "assertion")
"""These are secret only behind a separator (`ssl_key`, `client.assertion`) ..."""
_NOT_SECRET: Final = (
    "record_key",
    "message_key",
    "partition_key",
    "primary_key",
    "routing_key",
    "state_key",
    "public_key",
)
"""... and not in these names, which say how data is addressed. A bare `key` is a record's key."""
_SEPARATORS: Final = re.compile(r"[._-]")

SHORTEST: Final = 4
"""Characters of the shortest value that `masked_text` replaces: a shorter one would blank out parts
of ordinary words, and it protects nothing."""

_CREDENTIALS: Final = re.compile(r"(\w[\w+.-]*://)(?:[^\s'\"<>@/]*:[^\s'\"<>]*|[^\s'\"<>@/:]+)@")
"""`scheme://USER:PASSWORD@` or `scheme://TOKEN@`: up to the last @, because people paste passwords
with `/` and `@` in them as they are."""
_QUERY: Final = re.compile(r"([?&;])([\w.-]+)=([^\s&;'\"<>]+)")
_SIGNATURES: Final = ("sig", "signature", "x-amz-signature", "x-goog-signature", "code")
"""Parameters of a signed URL that are as good as a password."""

_seen: dict[str, None] = {}


def is_secret(name: str) -> bool:
    """Whether the value under this name must not be shown."""
    lower = name.lower()
    if lower.endswith(_SECRET_ENDINGS):
        return True
    words = _SEPARATORS.split(lower)
    return len(words) > 1 and words[-1] in _SECRET_WORDS and "_".join(words[-2:]) not in _NOT_SECRET


def masked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings (`Config.to_dict`) as they may be shown: secrets replaced."""
    return {
        key: masked(value)
        if isinstance(value, Mapping)
        else (MASK if value and is_secret(key) else _without_credentials(value))
        for key, value in settings.items()
    }


def masked_text(text: str) -> str:
    """The text without credentials in URLs and without the secrets that this process has seen."""
    for value in tuple(_seen):  # a copy: another thread may read a configuration meanwhile
        if value in text:
            text = text.replace(value, MASK)
    return _cleaned(text)


def remember(settings: Mapping[str, Any]) -> None:
    """Let `masked_text` replace the secrets of these settings, nested or not."""
    for name, value in _flat(settings):
        if is_secret(name):
            remember_value(str(value))


def remember_value(value: str) -> None:
    """Let `masked_text` replace this secret, in the forms in which messages quote it."""
    quoted = repr(value)[1:-1]
    forms = {value, quoted, quoted.replace("\\", "\\\\"), *value.splitlines()}
    for form in sorted(forms, key=len, reverse=True):
        if len(form.strip()) >= SHORTEST and form != MASK:
            _seen[form] = None
    longest_first = sorted(_seen, key=len, reverse=True)
    _seen.clear()
    _seen.update(dict.fromkeys(longest_first))


def _without_credentials(value: Any) -> Any:
    return _cleaned(value) if isinstance(value, str) else value


def _cleaned(text: str) -> str:
    """The text without the credentials of the URLs in it."""
    if "://" not in text:
        return text
    return _QUERY.sub(_masked_parameter, _CREDENTIALS.sub(rf"\1{MASK}@", text))


def _masked_parameter(found: re.Match[str]) -> str:
    mark, name, _ = found.groups()
    hidden = is_secret(name) or name.lower() in _SIGNATURES
    return f"{mark}{name}={MASK}" if hidden else found[0]


def _flat(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        elif value:
            yield name, value
