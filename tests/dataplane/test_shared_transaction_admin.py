"""The tasks of a wave in one worker share a client of transaction control, and no others do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tidegate.dataplane.shared_transaction_admin import SharedTransactionAdmin
from tidegate.ids import Attempt, JobName
from tidegate.protocol.messages import Deploy


class Client:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def deploy(attempt: int, nonce: str = "n") -> Deploy:
    found = SimpleNamespace(
        job=JobName("a"), journal_id="j", attempt=Attempt(attempt), claim_nonce=nonce
    )
    return cast("Deploy", found)


def client_of(shared_admin: SharedTransactionAdmin, deployed: Deploy) -> Client:
    return cast("Client", shared_admin.of(deployed, cast("Any", Client)))


def test_tasks_of_one_attempt_share_a_client() -> None:
    shared_admin = SharedTransactionAdmin()
    first = client_of(shared_admin, deploy(1))
    assert client_of(shared_admin, deploy(1)) is first
    assert not first.closed


def test_another_attempt_gets_a_new_transaction_admin_client() -> None:
    """The old one remembers which cluster it reached."""
    shared_admin = SharedTransactionAdmin()
    first = client_of(shared_admin, deploy(1))
    second = client_of(shared_admin, deploy(2))
    assert second is not first
    assert first.closed
    assert not second.closed
    assert client_of(shared_admin, deploy(2, nonce="of another journal")) is not second


def test_closed_control_creates_a_new_transaction_admin_client() -> None:
    shared_admin = SharedTransactionAdmin()
    first = client_of(shared_admin, deploy(1))
    shared_admin.close()
    shared_admin.close()
    assert first.closed
    assert client_of(shared_admin, deploy(1)) is not first
