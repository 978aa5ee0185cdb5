"""Security settings reach both clients, or the one that is missing is named; secrets never show."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path

import pytest

from tidegate.drivers.kafka.admin import KafkaClusterAdmin
from tidegate.drivers.kafka.settings import kafka_python, librdkafka
from tidegate.errors import ConfigError, RefusedError

BROKERS = {"bootstrap.servers": "a:1,b:2"}


def test_credentials_reach_kafka_python_and_librdkafka() -> None:
    given = {
        **BROKERS,
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "u",
        "sasl.password": "secret",
        "linger.ms": "7",
    }
    assert kafka_python(given) == {
        "bootstrap_servers": ["a:1", "b:2"],
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "u",
        "sasl_plain_password": "secret",
    }
    assert librdkafka(given, {"linger.ms": 5})["linger.ms"] == 5
    assert librdkafka(given, {})["linger.ms"] == "7"


@pytest.mark.parametrize(
    "name", ["sasl.oauthbearer.config", "ssl.keystore.location", "sasl.kerberos.keytab"]
)
def test_a_setting_that_only_one_client_has_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError) as raised:
        kafka_python({**BROKERS, name: "hidden-value"})
    assert name in str(raised.value)
    assert "sasl.password" in str(raised.value)
    assert "hidden-value" not in str(raised.value)


def test_missing_bootstrap_servers_are_refused_with_the_setting_name() -> None:
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap") as caught:
        kafka_python({})
    assert "that command has failed: run tidegate kafka up alone" in str(caught.value)


def test_a_setting_that_no_client_knows_is_refused_by_name() -> None:
    with pytest.raises(
        RefusedError, match=r"cannot be made: .*\"sasl\.passwrd\"\. Check kafka\.prop"
    ):
        KafkaClusterAdmin({**BROKERS, "sasl.passwrd": "x"})


class TestTls:
    def test_tls_verifies_certificate_and_hostname_by_default(self) -> None:
        given = kafka_python({**BROKERS, "security.protocol": "ssl"})
        context = given["ssl_context"]
        assert isinstance(context, ssl.SSLContext)
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert given["ssl_check_hostname"] is True

    def test_tls_verification_is_loosened_only_by_a_setting(self) -> None:
        asked = {"ssl.endpoint.identification.algorithm": "none"}
        given = kafka_python({**BROKERS, "security.protocol": "SASL_SSL", **asked})
        assert given["ssl_context"].verify_mode is ssl.CERT_REQUIRED
        assert given["ssl_check_hostname"] is False
        asked = {"enable.ssl.certificate.verification": "false"}
        given = kafka_python({**BROKERS, "security.protocol": "SSL", **asked})
        assert given["ssl_context"].verify_mode is ssl.CERT_NONE

    def test_tls_error_contains_the_unreadable_file_setting_and_no_password(
        self, tmp_path: Path
    ) -> None:
        with pytest.raises(ConfigError) as raised:
            kafka_python(
                {
                    **BROKERS,
                    "security.protocol": "ssl",
                    "ssl.certificate.location": str(tmp_path / "absent.pem"),
                    "ssl.key.password": "secret",
                }
            )
        assert "ssl.certificate.location" in str(raised.value)
        assert "secret" not in str(raised.value)

    def test_tls_refuses_a_ca_file_without_certificates(self, tmp_path: Path) -> None:
        (tmp_path / "empty.pem").write_text("")
        with pytest.raises(ConfigError, match=r"ssl\.ca\.location"):
            kafka_python(
                {
                    **BROKERS,
                    "security.protocol": "ssl",
                    "ssl.ca.location": str(tmp_path / "empty.pem"),
                }
            )


@pytest.mark.parametrize(
    "name", ["plugin.library.paths", "Plugin.Library.Paths", " plugin.library.paths\t"]
)
def test_no_client_is_made_with_a_setting_that_loads_a_library(name: str) -> None:
    with pytest.raises(ConfigError, match=r"plugin\.library\.paths is not allowed"):
        librdkafka({**BROKERS, name.lower(): "evil"}, {})
    with pytest.raises(ConfigError, match="is not allowed: librdkafka loads these libraries"):
        librdkafka({**BROKERS, name: "evil"}, {})


def test_no_client_is_made_with_a_value_that_a_shell_would_run() -> None:
    with pytest.raises(ConfigError, match=r"sasl\.kerberos\.principal is not allowed: .* a shell"):
        librdkafka({**BROKERS, "sasl.kerberos.principal": "x; id"}, {})


def test_file_of_a_setting_is_found_after_user_code_has_changed_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Path.cwd()
    monkeypatch.chdir(tmp_path)
    given = {"ssl.ca.location": "ca.pem", "ssl.key.location": "/keys/a.pem", "client.id": "ca.pem"}
    assert librdkafka({**BROKERS, **given}, {}) == {
        **BROKERS,
        "ssl.ca.location": str(before / "ca.pem"),
        "ssl.key.location": "/keys/a.pem",
        "client.id": "ca.pem",
    }
    of_context: dict[str, str] = {}

    def context(tls: Mapping[str, str]) -> ssl.SSLContext:
        of_context.update(tls)
        return ssl.create_default_context()

    monkeypatch.setattr("tidegate.drivers.kafka.settings._tls_context", context)
    kafka_python({**BROKERS, "security.protocol": "SSL", "ssl.ca.location": "ca.pem"})
    assert of_context == {"ssl.ca.location": str(before / "ca.pem")}
    for name, no_path in (
        ("ssl.ca.location", "probe"),
        ("ssl.ca.location", ""),
        ("sasl.kerberos.keytab", "FILE:/etc/kafka.keytab"),
    ):
        assert librdkafka({**BROKERS, name: no_path}, {})[name] == no_path
