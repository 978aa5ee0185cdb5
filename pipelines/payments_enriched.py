"""Payments with the account they belong to, from a second topic, by account id; in Avro.

Both streams are mapped to one union type and united, so that one keyed function sees an account's
records of both kinds in order. A payment that comes before its account waits in state; a later
version of an account holds for the payments that follow it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from tidegate import (
    Avro,
    Context,
    KafkaSink,
    KafkaSource,
    KeyedProcess,
    ListState,
    Pipeline,
    SideOutput,
    ValueState,
)


class Tier(enum.Enum):
    STANDARD = "standard"
    GOLD = "gold"


@dataclass(frozen=True, slots=True)
class Account:
    account_id: str
    owner: str
    country: str | None
    tier: Tier = Tier.STANDARD


@dataclass(frozen=True, slots=True)
class Payment:
    payment_id: str
    account_id: str
    amount: Decimal
    paid_at_ms: int


@dataclass(frozen=True, slots=True)
class EnrichedPayment:
    payment_id: str
    account_id: str
    owner: str
    country: str | None
    tier: Tier
    amount: Decimal
    paid_at_ms: int


class JoinAccount(KeyedProcess[str, Account | Payment, EnrichedPayment]):
    """Joins each payment with the newest version of its account."""

    MAX_WAITING = (
        1_000  # payments of one account, so that an account that never comes cannot fill the disk
    )

    account = ValueState(Account | None, default=None)
    waiting = ListState(Payment)
    unmatched = SideOutput(Payment)

    def process(self, record: Account | Payment, ctx: Context[str]) -> Iterable[EnrichedPayment]:
        if isinstance(record, Account):
            self.account.value = record
            for payment in self.waiting:
                yield enriched(payment, record)
            self.waiting.clear()
            return
        account = self.account.value
        if account is not None:
            yield enriched(record, account)
        elif len(self.waiting) < self.MAX_WAITING:
            self.waiting.append(record)
        else:
            ctx.output(self.unmatched, record)


def enriched(payment: Payment, account: Account) -> EnrichedPayment:
    """A payment with what is known of its account."""
    return EnrichedPayment(
        payment_id=payment.payment_id,
        account_id=payment.account_id,
        owner=account.owner,
        country=account.country,
        tier=account.tier,
        amount=payment.amount,
        paid_at_ms=payment.paid_at_ms,
    )


def from_account(account: Account) -> Account | Payment:
    """One of the two kinds; the annotation is what tells the framework the type of the united
    stream.
    """
    return account


def from_payment(payment: Payment) -> Account | Payment:
    """The other of the two."""
    return payment


class PaymentsEnriched(Pipeline, name="payments-enriched"):
    """Each payment once, with owner, country and tier of its account."""

    payments = KafkaSource("payments", value=Avro(Payment, schema="schemas/payment.avsc"))
    accounts = KafkaSource("accounts", value=Avro(Account, schema="schemas/account.avsc"))
    enriched = KafkaSink(
        "payments-enriched",
        value=Avro(EnrichedPayment, schema="schemas/enriched_payment.avsc"),
        record_key=lambda payment: payment.account_id,
    )
    unmatched = KafkaSink("payments-unmatched", value=Avro(Payment, schema="schemas/payment.avsc"))

    def define(self) -> None:
        joined = (
            self.accounts.map(from_account)
            .union(self.payments.map(from_payment))
            .key_by(lambda record: record.account_id, returns=str)
            .process(JoinAccount(), uid="join-account")
        )
        joined.to(self.enriched)
        joined.side_output(JoinAccount.unmatched).to(self.unmatched)
