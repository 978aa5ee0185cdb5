"""The payment pipeline's own tests: what joins, what waits, and how much may wait."""

from decimal import Decimal

from pipelines.payments_enriched import (
    Account,
    EnrichedPayment,
    JoinAccount,
    Payment,
    PaymentsEnriched,
    Tier,
)
from tidegate.testing import FunctionHarness, PipelineTest

ANN = Account("a-1", "Ann", "CH", Tier.GOLD)


def payment(number: int, account_id: str = "a-1") -> Payment:
    return Payment(f"p-{number}", account_id, Decimal("12.50"), paid_at_ms=1_000 + number)


def joined(number: int, account: Account) -> EnrichedPayment:
    return EnrichedPayment(
        payment_id=f"p-{number}",
        account_id=account.account_id,
        owner=account.owner,
        country=account.country,
        tier=account.tier,
        amount=Decimal("12.50"),
        paid_at_ms=1_000 + number,
    )


def test_payment_is_joined_with_its_account() -> None:
    with PipelineTest(PaymentsEnriched) as test:
        test.source(PaymentsEnriched.accounts).push(ANN)
        test.source(PaymentsEnriched.payments).push(payment(1))
        assert test.sink(PaymentsEnriched.enriched).read() == [joined(1, ANN)]


def test_payment_waits_for_its_account_and_keeps_its_order() -> None:
    with PipelineTest(PaymentsEnriched) as test:
        test.source(PaymentsEnriched.payments).push(payment(1), payment(2), payment(9, "a-2"))
        assert test.sink(PaymentsEnriched.enriched).read() == []
        test.source(PaymentsEnriched.accounts).push(ANN)
        test.source(PaymentsEnriched.payments).push(payment(3))
        expected = [joined(1, ANN), joined(2, ANN), joined(3, ANN)]
        assert test.sink(PaymentsEnriched.enriched).read() == expected


def test_new_version_of_an_account_is_joined_with_later_payments_only() -> None:
    moved = Account("a-1", "Ann", None)
    with PipelineTest(PaymentsEnriched) as test:
        accounts, payments = PaymentsEnriched.accounts, PaymentsEnriched.payments
        test.source(accounts).push(ANN)
        test.source(payments).push(payment(1))
        test.source(accounts).push(moved)
        test.source(payments).push(payment(2))
        assert test.sink(PaymentsEnriched.enriched).read() == [joined(1, ANN), joined(2, moved)]


def test_waiting_payments_are_limited() -> None:
    with FunctionHarness(JoinAccount()) as harness:
        for number in range(JoinAccount.MAX_WAITING + 1):
            assert harness.push("a-1", payment(number)) == []
        assert harness.side_output(JoinAccount.unmatched) == [payment(JoinAccount.MAX_WAITING)]
        assert len(harness.push("a-1", ANN)) == JoinAccount.MAX_WAITING
        assert harness.items(JoinAccount.waiting, "a-1") == []
