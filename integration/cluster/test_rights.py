"""A broker with authentication and ACLs. Before anything starts, an error names each missing right,
and no password appears anywhere.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exported by assignment
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from integration.support.brokers import TIMEOUT_S, create_topic, unique
from integration.support.txn_command import Answer, in_folder, normalised, opened
from integration.support.user_project import Folder, Outcome, assert_golden, paragraph
from tidegate.drivers.kafka.broker_config import HOST, choose_ports
from tidegate.drivers.kafka.embedded import ClusterFile, EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

PASSWORD = "s3cr3t-0f-the-j0b"
WRONG = "an0ther-0ne"
LITERAL, PREFIXED = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED


class Secured(NamedTuple):
    """The addresses of two listeners of one broker. Clients of `plain` have all rights."""

    plain: str
    sasl: str

    def grant(
        self, kind: ResourceType, name: str, what: AclOperation, pattern: ResourcePatternType
    ) -> None:
        """Give the user `job` a right."""
        admin = AdminClient({"bootstrap.servers": self.plain, "log_level": 0})
        right = AclBinding(kind, name, pattern, "User:job", "*", what, AclPermissionType.ALLOW)
        for future in admin.create_acls([right]).values():
            future.result(TIMEOUT_S)

    def take_away(
        self, kind: ResourceType, name: str, what: AclOperation, pattern: ResourcePatternType
    ) -> None:
        """Take a right from the user `job`."""
        admin = AdminClient({"bootstrap.servers": self.plain, "log_level": 0})
        which = AclBindingFilter(
            kind, name, pattern, "User:job", "*", what, AclPermissionType.ALLOW
        )
        for future in admin.delete_acls([which]).values():
            assert len(future.result(TIMEOUT_S)) == 1


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    (ports,), (extra,) = choose_ports(1), choose_ports(1)
    known = ClusterFile(
        version="4.3.0", cluster_id=uuid.uuid4().hex[:22], ports=[ports], archive=directory / "a"
    )
    (directory / "cluster.json").write_bytes(msgspec.json.encode(known, enc_hook=str))
    doors = f"PLAINTEXT://{HOST}:{ports.client},SASL://{HOST}:{extra.client}"
    properties = {
        "listeners": f"{doors},CONTROLLER://{HOST}:{ports.controller}",
        "advertised.listeners": doors,
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,"
        "SASL:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain."
        f'PlainLoginModule required user_job="{PASSWORD}";',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with EmbeddedKafka.start(
        "4.3.0", directory=directory, owned=True, properties=properties
    ) as started:
        assert started.bootstrap == f"{HOST}:{ports.client}", "another process took the port"
        yield Secured(started.bootstrap, f"{HOST}:{extra.client}")


def run(
    folder: Folder,
    secured: Secured,
    password: str = PASSWORD,
    config: Mapping[str, str] | None = None,
) -> Outcome:
    write_settings(folder, secured)
    return folder.run(kafka=False, environment=secret(password), config=config)


def write_settings(folder: Folder, secured: Secured) -> None:
    """Write the listener with authentication, and the user, to the folder's settings."""
    folder.write(
        "tidegate.toml",
        f"""
        [kafka]
        bootstrap_servers = "{secured.sasl}"
        [kafka.properties]
        "security.protocol" = "SASL_PLAINTEXT"
        "sasl.mechanism" = "PLAIN"
        "sasl.username" = "job"
        """,
    )


def secret(password: str) -> dict[str, str]:
    return {"TIDEGATE_KAFKA__PROPERTIES__SASL__PASSWORD": password}


def everything_in(folder: Folder) -> str:
    """Return the text of all files in a folder."""
    files = [path for path in folder.path.rglob("*") if path.is_file()]
    return "\n".join(path.read_text(errors="replace") for path in files)


def test_check_lists_every_missing_right_at_once(secured: Secured, tmp_path: Path) -> None:
    folder = Folder.make(tmp_path, secured.plain)
    write_settings(folder, secured)
    words = ("check", "job:Totals", "--brokers")
    refused = folder.command(*words, environment=secret(PASSWORD))
    assert refused.code == 2
    assert_golden("check-rights-missing", folder.normalised(refused.out.rstrip()))

    topic, ids = ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID
    secured.grant(topic, folder.topics["orders"], AclOperation.READ, LITERAL)
    secured.grant(topic, folder.topics["totals"], AclOperation.WRITE, LITERAL)
    secured.grant(ids, f"tidegate.{folder.job}.", AclOperation.WRITE, PREFIXED)
    accepted = folder.command(*words, environment=secret(PASSWORD))
    assert accepted.code == 0
    assert_golden("check-rights-for-settings-missing", folder.normalised(accepted.out.rstrip()))


@pytest.mark.slow
def test_run_names_each_missing_acl_until_the_job_has_all_it_needs(
    secured: Secured, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, secured.plain)
    folder.orders(30)
    orders, totals = folder.topics["orders"], folder.topics["totals"]
    topic, ids = ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID
    ours = f"tidegate.{folder.job}."
    steps = [
        ("source-topic-not-visible", (topic, orders, AclOperation.DESCRIBE, LITERAL)),
        ("source-topic-not-readable", (topic, orders, AclOperation.READ, LITERAL)),
        ("sink-topic-not-visible", (topic, totals, AclOperation.READ, LITERAL)),
        ("sink-topic-not-writable", (topic, totals, AclOperation.WRITE, LITERAL)),
        ("transactional-ids-not-visible", (ids, ours, AclOperation.DESCRIBE, PREFIXED)),
        ("transactional-ids-not-writable", (ids, ours, AclOperation.WRITE, PREFIXED)),
    ]
    for name, right in steps:
        refused = run(folder, secured)
        assert refused.code == 2, refused.err
        assert_golden(name, folder.normalised(refused.err.rstrip("\n")))
        assert not (tmp_path / ".tidegate" / "logs").exists(), "a process was started"
        secured.grant(*right)
    # The job has READ on the source, and WRITE on the sink and the transactional ids. It has no
    # right on consumer groups or on the cluster.
    refusal = "offsets could not be committed to the consumer group"
    with folder.started(kafka=False, bounded=False, environment=secret(PASSWORD)) as live:
        live.until(lambda: refusal in folder.logs(), "refused by the group")
        live.until(lambda: len(folder.read("totals")) == 30, "at the end of its input")
        done = live.stop()
    assert done.code == 0, f"{done.err}\n{folder.logs()}"
    assert " 0 restarts" in done.err
    folder.assert_exact(30)
    assert PASSWORD not in everything_in(folder)

    # Without a right on the cluster the job cannot read the brokers' maximum, so they refuse it.
    folder.orders(3, first=30)
    late = run(folder, secured, config={"checkpoint.tolerated_outage": "20min"})
    assert late.code == 2, late.err
    assert_golden("transaction-timeout-refused", folder.normalised(paragraph(late.err)))


@pytest.mark.slow
def test_job_survives_acls_that_are_removed_for_a_while(secured: Secured, tmp_path: Path) -> None:
    folder = Folder.make(tmp_path, secured.plain)
    orders, totals = folder.topics["orders"], folder.topics["totals"]
    topic, ids = ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID
    read = (topic, orders, AclOperation.READ, LITERAL)
    secured.grant(*read)
    secured.grant(topic, totals, AclOperation.WRITE, LITERAL)
    secured.grant(ids, f"tidegate.{folder.job}.", AclOperation.WRITE, PREFIXED)
    write_settings(folder, secured)
    settings = {"checkpoint.tolerated_outage": "4s"}
    folder.orders(30)
    with folder.started(
        kafka=False, bounded=False, environment=secret(PASSWORD), config=settings
    ) as live:
        live.until(lambda: len(folder.read("totals")) == 30, "at the end of its input")
        folder.orders(30, first=30)
        secured.take_away(*read)
        live.kill_slots()
        live.until(lambda: "asks Kafka again" in folder.logs(), "refused by Kafka")
        secured.grant(*read)
        live.until(lambda: len(folder.read("totals")) == 60, "at the end of its input")
        assert " 1 restart" in live.err.splitlines()[-1]
        secured.take_away(*read)
        folder.orders(3, first=60)
        live.kill_slots()  # the reader may already have failed because of the missing right
        named = "Grant the job's principal READ on it. Kafka has repeated this for 4 s"
        live.until(lambda: named in live.err, "told why it restarts")
        secured.grant(*read)
        live.until(lambda: len(folder.read("totals")) == 63, "at the end of its input")
        assert live.stop().code == 0
    folder.assert_exact(63)


@pytest.mark.slow
def test_run_with_a_wrong_password_is_refused_without_showing_it(
    secured: Secured, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, secured.plain)
    refused = run(folder, secured, WRONG)
    assert refused.code == 2, refused.err
    assert_golden("password-wrong", folder.normalised(refused.err.rstrip("\n")))
    assert not (tmp_path / ".tidegate" / "logs").exists(), "a process was started"
    assert WRONG not in everything_in(folder)


@pytest.mark.slow
def test_security_setting_that_only_one_kafka_client_knows_is_refused(
    secured: Secured, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, secured.plain)
    only = {"kafka.properties.sasl.oauthbearer.config": PASSWORD}
    refused = folder.run(config=only)
    assert refused.code == 2, refused.err
    assert_golden("security-setting-unknown", folder.normalised(refused.err.rstrip("\n")))


def as_user(secured: Secured, password: str = PASSWORD) -> list[str]:
    """Return the options with which a command authenticates as the user `job`."""
    properties = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "job",
        "sasl.password": password,
    }
    return [
        word for key, of in properties.items() for word in ("-c", f"kafka.properties.{key}={of}")
    ]


@pytest.mark.slow
def test_txn_names_each_missing_acl(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    topic, name = unique("orders"), unique("order-service")
    create_topic(secured.plain, topic, partitions=1)
    producer = opened(secured.plain, name, topic)
    run_txn = in_folder(monkeypatch, tmp_path)

    def txn(*words: str) -> Answer:
        return run_txn(*words, *as_user(secured), kafka=secured.sasl)

    def refused(golden: str, *words: str) -> None:
        answer = txn(*words)
        assert (answer.code, answer.out) == (2, ""), answer
        assert_golden(golden, normalised(answer.err.rstrip("\n"), secured.sasl))

    listed = txn("list", "--prefix", name, "--json")
    assert listed.json["transactions"] == [], "ids that one may not describe are left out"
    refused("txn-not-describable", "show", name)
    refused("txn-topic-not-visible", "why-stuck", topic)
    secured.grant(ResourceType.TOPIC, topic, AclOperation.DESCRIBE, LITERAL)
    refused("txn-topic-not-readable", "why-stuck", topic)
    secured.grant(ResourceType.TOPIC, topic, AclOperation.READ, LITERAL)
    secured.grant(ResourceType.TRANSACTIONAL_ID, name, AclOperation.DESCRIBE, LITERAL)
    (row,) = txn("list", "--prefix", name, "--json").json["transactions"]
    assert row["transactional_id"] == name
    (stuck,) = txn("why-stuck", topic, "--json").json["partitions"]
    assert stuck["blocked_by"]["transaction"]["transactional_id"] == name
    refused("txn-not-abortable", "abort", name, "--yes")
    (row,) = txn("list", "--prefix", name, "--json").json["transactions"]
    assert row["state"] == "Ongoing", "nothing was done"
    secured.grant(ResourceType.TRANSACTIONAL_ID, name, AclOperation.WRITE, LITERAL)
    done = txn("abort", name, "--yes", "--json")
    assert (done.code, done.json["outcome"]) == (0, "aborted"), done.err
    del producer


@pytest.mark.slow
def test_txn_with_a_wrong_password_fails_without_showing_it(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_txn = in_folder(monkeypatch, tmp_path)
    answer = run_txn("list", *as_user(secured, WRONG), kafka=secured.sasl)
    # The client library may see the end of the connection before the refusal that came with it.
    # Then it retries until its timeout, and the error can only say what to check.
    assert answer.code in {1, 2}
    assert answer.out == ""
    assert "credentials" in answer.err
    assert WRONG not in answer.err
