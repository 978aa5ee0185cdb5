"""The rules for secrets, and the removal of secrets from text that people read.

`is_secret` is the only place that decides by a name whether a value is a secret. `tidegate config`,
the submissions that a JobManager stores, logs, errors and reports all use it. Some text has no
name, for example a message of a client library, or an exception of user code that quotes its
password. In such text, `masked_text` replaces the secrets that this process has seen. Code that
reads a configuration or a `Param(secret=True)` therefore calls `remember`.

The module keeps these values for the life of the process, because a log line may quote a secret at
any time. The module does no I/O, and no function here is called per record.
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
    "key.pem",  # ssl.key.pem, for example, holds the private key itself
    "oauthbearer.config",  # librdkafka: may hold a client secret or claims
    "jaas.config",  # Java's form of sasl.password, which users paste by mistake
)
"""Endings of names of secrets. The text before the ending does not matter."""
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
_ACCOUNT_KEY: Final = ".account.key."  # Hadoop's name of an Azure key: the account stands behind it
_SEPARATORS: Final = re.compile(r"[._-]")

SHORTEST: Final = 4
"""The length of the shortest value that `masked_text` replaces, in characters. A shorter value
would also hide parts of ordinary words, and hiding it protects nothing.
"""

_CREDENTIALS: Final = re.compile(r"(\w[\w+.-]*://)(?:[^\s'\"<>@/]*:[^\s'\"<>]*|[^\s'\"<>@/:]+)@")
"""`scheme://USER:PASSWORD@` or `scheme://TOKEN@`. The match extends to the last @, because people
paste passwords that contain `/` and `@` without escapes.
"""
_QUERY: Final = re.compile(r"([?&;])([\w.-]+)=([^\s&;'\"<>]+)")
_SIGNATURES: Final = ("sig", "signature", "x-amz-signature", "x-goog-signature", "code")
"""Parameters of a signed URL that are as good as a password."""

_seen: dict[str, None] = {}


def is_secret(name: str) -> bool:
    """Return whether the value under this name must not be shown."""
    lower = name.lower()
    if lower.endswith(_SECRET_ENDINGS):
        return True
    if _ACCOUNT_KEY in lower:
        return True
    words = _SEPARATORS.split(lower)
    return len(words) > 1 and words[-1] in _SECRET_WORDS and "_".join(words[-2:]) not in _NOT_SECRET


def masked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings (`Config.to_dict`) in a form that may be shown, with secrets replaced."""
    return {
        key: masked(value)
        if isinstance(value, Mapping)
        else (MASK if value and is_secret(key) else _without_credentials(value))
        for key, value in settings.items()
    }


def masked_text(text: str) -> str:
    """Return the text without credentials in URLs and without the secrets that this process has
    seen.
    """
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
    """Return the text without the credentials of the URLs in it."""
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
