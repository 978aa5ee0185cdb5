"""The translation of Kafka settings: users write librdkafka's names, and this module maps them.

Data goes through librdkafka, transaction control through kafka-python, and both must connect with
the same credentials. So users give security settings once, under librdkafka's names, and this
module maps them for kafka-python. If kafka-python has no counterpart for a security setting, the
setting is refused, and the error names it. To omit the setting would be worse: the job would read
and write but could not commit. Settings without a security prefix are only for librdkafka.

Messages contain only the names of settings, never their values.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tidegate.config import foreign_code
from tidegate.errors import ConfigError

CLIENT_LOG: Final = logging.getLogger("tidegate.kafka.client")
"""The logger for librdkafka's own log lines, which would otherwise go to the process's stderr."""
CLIENT_LOG.addHandler(logging.NullHandler())
# Without the handler, Python prints the lines in a process without a log: the command line.

_SECURITY_PREFIXES: Final = ("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.")
_FILES: Final = frozenset(
    {
        "sasl.kerberos.keytab",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.crl.location",
        "ssl.key.location",
        "ssl.keystore.location",
    }
)
"""The settings that are paths."""
_KAFKA_PYTHON: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "security.protocol": ("security_protocol", str.upper),
    "sasl.mechanism": ("sasl_mechanism", str),
    "sasl.mechanisms": ("sasl_mechanism", str),
    "sasl.username": ("sasl_plain_username", str),
    "sasl.password": ("sasl_plain_password", str),
    "sasl.kerberos.service.name": ("sasl_kerberos_service_name", str),
    "client.id": ("client_id", str),
}
_CONTEXT: Final = frozenset(
    {
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.crl.location",
        "ssl.cipher.suites",
        "ssl.endpoint.identification.algorithm",
        "enable.ssl.certificate.verification",
    }
)
"""The settings that become part of the TLS context and have no name in kafka-python."""


def _start_folder() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:  # it was removed: no relative path leads anywhere
        return ""


_START_FOLDER: Final = _start_folder()
"""The working folder when this module was imported, which is before user code is."""


def bootstrap_servers(settings: Mapping[str, str]) -> str:
    """Return the brokers to connect to first. ConfigError if none are given."""
    servers = settings.get("bootstrap.servers") or settings.get("metadata.broker.list")
    if not servers:
        raise ConfigError(
            "No Kafka brokers are configured: kafka.bootstrap_servers is empty. Set it to the "
            "HOST:PORT of at least one broker. If a line such as "
            "TIDEGATE_KAFKA__BOOTSTRAP_SERVERS=$(tidegate kafka up) sets it, that command has "
            "failed: run tidegate kafka up alone, and read its message."
        )
    return servers


def librdkafka(settings: Mapping[str, str], ours: Mapping[str, object]) -> dict[str, Any]:
    """Return the user's settings, overridden by `ours`, because a user must not change the settings
    on which exactly-once depends. ConfigError for a setting that would load foreign code.
    """
    bootstrap_servers(settings)
    for name, value in settings.items():
        how = foreign_code(name, value)
        if how is not None:
            raise ConfigError(
                f"The Kafka setting {name.strip()} is not allowed: {how}. Remove it from the "
                "pipeline or the configuration."
            )
    # `ours` come last: librdkafka has two names for some settings, and the last one is used.
    return {n: value for n, value in _with_files(settings).items() if n not in ours} | dict(ours)


def kafka_python(settings: Mapping[str, str]) -> dict[str, Any]:
    """Return settings with the same cluster and credentials for kafka-python. ConfigError for a
    security setting that kafka-python lacks.
    """
    settings = _with_files(settings)
    given: dict[str, Any] = {"bootstrap_servers": bootstrap_servers(settings).split(",")}
    tls = {name: settings[name] for name in settings if name in _CONTEXT}
    for name, value in settings.items():
        if name in _KAFKA_PYTHON:
            theirs, convert = _KAFKA_PYTHON[name]
            given[theirs] = convert(value)
        elif name.startswith(_SECURITY_PREFIXES) and name not in _CONTEXT:
            known = ", ".join(
                sorted(n for n in (*_KAFKA_PYTHON, *_CONTEXT) if n.startswith(_SECURITY_PREFIXES))
            )
            raise ConfigError(
                f"kafka.properties sets {name}, which tidegate cannot apply to the connection that "
                f"commits transactions. The security settings that work for both are: {known}."
            )
    if given.get("security_protocol", "PLAINTEXT") in {"SSL", "SASL_SSL"}:
        given["ssl_context"] = _tls_context(tls)
        given["ssl_check_hostname"] = given["ssl_context"].check_hostname
    return given


def _with_files(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with absolute paths of files. A client is made after user code was
    imported, which may have changed the working folder.
    """
    return {n: _absolute(value) if n in _FILES else value for n, value in settings.items()}


def _absolute(path: str) -> str:
    """Return an absolute path. No path are an empty text, `probe`, and a keytab behind its type, as
    in `FILE:/etc/kafka.keytab`.
    """
    is_path = path not in {"", "probe"} and ":" not in path.partition("/")[0]
    return str(Path(_START_FOLDER, path)) if is_path else path


def _tls_context(tls: Mapping[str, str]) -> ssl.SSLContext:
    """Return a TLS context that verifies as librdkafka does with the same settings."""
    try:
        file, folder, text = _authorities(tls)
        context = ssl.create_default_context(cafile=file, capath=folder, cadata=text)
        certificate = tls.get("ssl.certificate.location")
        if certificate is not None:
            context.load_cert_chain(
                certificate, tls.get("ssl.key.location"), tls.get("ssl.key.password")
            )
        if "ssl.crl.location" in tls:
            context.load_verify_locations(tls["ssl.crl.location"])
            context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
        if "ssl.cipher.suites" in tls:
            context.set_ciphers(tls["ssl.cipher.suites"])
    except (OSError, ValueError) as error:  # SSLError is an OSError
        names = ", ".join(sorted(tls))
        raise ConfigError(
            f"The TLS settings of kafka.properties ({names}) cannot be applied: "
            f"{type(error).__name__}, {_reason(error)}. Check that the files exist, are PEM, and "
            "that the key belongs to the certificate."
        ) from None
    if tls.get("ssl.endpoint.identification.algorithm", "https") == "none":
        context.check_hostname = False
    if tls.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _authorities(tls: Mapping[str, str]) -> tuple[str | None, str | None, str | None]:
    """Return the trusted certificate authorities as file, folder or text. If all are None, the
    authorities of the operating system are trusted.
    """
    location = tls.get("ssl.ca.location", "probe")
    text = tls.get("ssl.ca.pem")
    if location == "probe":
        return None, None, text
    return (None, location, text) if Path(location).is_dir() else (location, None, text)


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "no reason given"
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror or 'no reason given'}{where}"
    return "a value is not of the form that is asked for"
