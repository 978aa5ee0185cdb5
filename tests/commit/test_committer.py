"""The errors of the committer name the system that holds the transaction.

`test_procedures.py` tests what the committer does in a world with Kafka only.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.checkpoint.examples import described, txn
from tests.commit.quiet import ProcedureRunner
from tidegate.commit import effects
from tidegate.commit.committer import end_transactions
from tidegate.commit.effects import Effect
from tidegate.commit.retry import RetryPolicy
from tidegate.errors import KafkaError, KafkaUnavailableError, TransactionSystemError
from tidegate.ids import TransactionalId
from tidegate.ports.kafka import EndTxnResult, TransactionState

ONCE = RetryPolicy(pause_s=0.01, timeout_s=0.0)
ID = "tidegate.job.j1.1.sink.0.0"


def error_of(outcome: EndTxnResult, *ids: str) -> TransactionSystemError:
    """The error of a commit that every coordinator answers with `outcome`."""

    def answer(effect: Effect) -> Any:
        match effect:
            case effects.EndTransaction():
                return outcome
            case effects.Describe():
                return described(effect.transaction, TransactionState.ONGOING)
            case _:
                return NotImplemented

    transactions = [
        msgspec.structs.replace(txn(1), transactional_id=TransactionalId(each)) for each in ids
    ]
    with pytest.raises(TransactionSystemError) as raised:
        ProcedureRunner().run(
            end_transactions(transactions, settled=False, retry_policy=ONCE), answer
        )
    return raised.value


def test_refused_right_names_kafka_and_its_rights() -> None:
    error = error_of(EndTxnResult.NOT_AUTHORISED, ID)
    assert type(error) is KafkaError
    assert "rights Describe and Write" in str(error)


def test_refused_right_of_another_system_names_that_system() -> None:
    error = error_of(EndTxnResult.NOT_AUTHORISED, f"folder:{ID}")
    assert type(error) is TransactionSystemError
    assert f"The system 'folder' does not authorise ending transaction folder:{ID}" in str(error)
    assert "Kafka" not in str(error)


@pytest.mark.parametrize(
    ("ids", "kind"),
    [
        ([ID], KafkaUnavailableError),
        ([f"folder:{ID}"], TransactionSystemError),
        ([f"folder:{ID}", ID], KafkaUnavailableError),
    ],
)
def test_error_after_the_timeout_is_an_error_of_the_system(
    ids: list[str], kind: type[TransactionSystemError]
) -> None:
    error = error_of(EndTxnResult.RETRY, *ids)
    assert type(error) is kind
    assert f"did not complete {len(ids)} published transaction" in str(error)
