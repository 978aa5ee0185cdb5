"""The exchange over real sockets, slots in one process: order, early birds, strangers, ends."""

from __future__ import annotations

import random
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.exchange.mailbox import Slot
from tidegate.drivers.exchange import addresses
from tidegate.drivers.exchange.wire import FrameReader, Hello, Refused, own_frame, read_own
from tidegate.errors import ExchangeError, InternalError
from tidegate.ports.exchange import MAX_FRAME_BYTES

MakeSlot = Callable[..., Slot]
HOSTS = [None, "127.0.0.1"]


@pytest.fixture
def make_slot() -> Iterator[MakeSlot]:
    """Makes slots, closes them, and sees that no thread and no open file is left."""
    threads, files = threading.active_count(), _open_files()
    slots: list[Slot] = []

    def make(*args: object, **options: object) -> Slot:
        slot = Slot(*args, **options)  # type: ignore[arg-type]  # as the test says
        slots.append(slot)
        return slot

    yield make
    for slot in slots:
        slot.exchange.close()
    assert threading.active_count() == threads
    assert _open_files() == files


def pair(make_slot: MakeSlot, host: str | None = None) -> tuple[Slot, Slot]:
    low, high = make_slot(0, host=host), make_slot(1, host=host)
    low.connect({1: high.address})
    high.connect({0: low.address})
    return low, high


@pytest.mark.parametrize("host", HOSTS)
def test_frames_arrive_whole_and_in_order_both_ways(make_slot: MakeSlot, host: str | None) -> None:
    low, high = pair(make_slot, host)
    dice = random.Random(5)
    sent: dict[int, list[tuple[int, bytes]]] = {0: [], 1: []}
    for number in range(600):
        size = dice.choice([0, 1, 100, 5_000, 70_000])
        parts = [b"%06d" % number, b"", dice.randbytes(size)]
        channel = dice.randrange(5)
        low.exchange.send(1, channel, parts)
        high.exchange.send(0, channel, tuple(parts))
        sent[0].append((channel, b"".join(parts)))
    low.run_until(lambda: len(low.frames[1]) == 600)
    high.run_until(lambda: len(high.frames[0]) == 600)
    assert low.frames[1] == sent[0]
    assert high.frames[0] == sent[0]


@pytest.mark.parametrize("host", HOSTS)
def test_many_slots_have_one_connection_each_way(make_slot: MakeSlot, host: str | None) -> None:
    slots = [make_slot(ordinal, host=host) for ordinal in range(5)]
    addresses_by_ordinal = {n: slot.address for n, slot in enumerate(slots)}
    order = list(enumerate(slots))
    random.Random(3).shuffle(order)
    for number, slot in order:
        slot.connect({n: a for n, a in addresses_by_ordinal.items() if n != number})
        for peer in range(5):
            if peer != number:
                slot.exchange.send(peer, number, (b"from %d" % number,))
    for number, slot in enumerate(slots):
        others = [n for n in range(5) if n != number]
        slot.run_until(lambda slot=slot: len(slot.frames) == 4)  # type: ignore[misc]  # bound now
        assert {n: slot.frames[n] for n in others} == {n: [(n, b"from %d" % n)] for n in others}
        assert not slot.lost


def test_the_largest_frame_passes_and_a_larger_one_is_our_bug(make_slot: MakeSlot) -> None:
    low, high = pair(make_slot)
    low.exchange.send(1, 0, (b"x" * (MAX_FRAME_BYTES - 1), b"y"))
    with pytest.raises(InternalError, match="limit"):
        low.exchange.send(1, 0, (b"x" * MAX_FRAME_BYTES, b"y"))
    with pytest.raises(InternalError, match="channel"):
        low.exchange.send(1, 2**32 - 1, (b"x",))
    high.run_until(lambda: bool(high.frames[0]))
    assert len(high.frames[0][0][1]) == MAX_FRAME_BYTES


def test_frames_that_come_before_connect_wait(make_slot: MakeSlot) -> None:
    low, high = make_slot(0), make_slot(1)
    low.connect({1: high.address})
    low.exchange.send(1, 4, (b"early",))
    time.sleep(0.1)
    assert high.mailbox.empty()
    high.connect({0: low.address})
    high.run_until(lambda: high.frames[0] == [(4, b"early")])


def test_a_reader_that_does_not_read_does_not_stop_the_sender(make_slot: MakeSlot) -> None:
    low, high = pair(make_slot)
    began = time.monotonic()
    for _ in range(100):
        low.exchange.send(1, 0, (b"x" * 100_000,))  # far more than a socket buffers
    assert time.monotonic() - began < 2.0
    high.run_until(lambda: len(high.frames[0]) == 100)


def test_many_small_frames_are_few_wake_ups(make_slot: MakeSlot) -> None:
    low, high = make_slot(0), make_slot(1)
    low.connect({1: high.address})
    for _ in range(1000):
        low.exchange.send(1, 0, (b"small",))
    high.connect({0: low.address})
    high.run_until(lambda: len(high.frames[0]) == 1000)
    assert high.posts <= 20


@pytest.mark.parametrize("host", HOSTS)
def test_a_peer_that_goes_without_goodbye_is_lost_once(
    make_slot: MakeSlot, host: str | None
) -> None:
    low, high = pair(make_slot, host)
    low.exchange.send(1, 0, (b"hello",))
    high.run_until(lambda: bool(high.frames[0]))
    link = low.exchange._links[1].socket
    assert link is not None
    link.shutdown(socket.SHUT_RDWR)
    high.run_until(lambda: 0 in high.lost, 1.0)
    low.run_until(lambda: 1 in low.lost, 1.0)
    assert "slot 1 lost slot 0 in attempt 1 of job 'job'" in str(high.lost[0])
    for _ in range(10):
        low.exchange.send(1, 0, (b"into the void",))


@pytest.mark.parametrize("linked", [True, False])
def test_a_goodbye_is_no_loss_and_what_was_sent_before_arrives(
    make_slot: MakeSlot, linked: bool
) -> None:
    low, high = make_slot(0), make_slot(1)
    low.connect({1: high.address})
    if linked:
        high.connect({0: low.address})
        high.exchange.send(0, 0, (b"here",))
        low.run_until(lambda: bool(low.frames[1]))
    for number in range(50):
        low.exchange.send(1, number, (b"x" * 100_000,))
    closer = threading.Thread(target=low.exchange.close)
    closer.start()
    if not linked:
        time.sleep(0.05)
        high.connect({0: low.address})
    high.run_until(lambda: len(high.frames[0]) == 50)
    high.exchange.send(0, 0, (b"credit that nobody needs",))
    closer.join()  # so the peer has hung up, and posted what it had to
    for slot in (low, high):
        slot.run_rest()
        assert not slot.lost


def test_closing_does_not_wait_for_a_peer_to_which_nothing_was_said(make_slot: MakeSlot) -> None:
    waiting = make_slot(1)
    waiting.connect({0: "unix:/never"})
    began = time.monotonic()
    waiting.exchange.close()
    assert time.monotonic() - began < 1.0


def test_both_may_leave_at_once_and_twice(make_slot: MakeSlot) -> None:
    low, high = pair(make_slot)
    low.exchange.send(1, 0, (b"linked",))
    high.run_until(lambda: bool(high.frames[0]))
    closers = [threading.Thread(target=slot.exchange.close) for slot in (low, high)]
    began = time.monotonic()
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join()
    low.exchange.close()
    assert time.monotonic() - began < 1.5
    for slot in (low, high):
        slot.run_rest()
        assert not slot.lost


def test_closing_before_anything_happened_frees_everything(make_slot: MakeSlot) -> None:
    make_slot(0).exchange.close()
    early = make_slot(1)
    dialling = make_slot(0)
    dialling.connect({1: early.address})
    early.exchange.close()
    dialling.run_until(lambda: 1 in dialling.lost)


@pytest.mark.parametrize(
    ("host", "missing"),
    [(None, "unix:/nowhere/x"), ("127.0.0.1", "127.0.0.1:1")],
)
def test_a_peer_that_cannot_be_reached_is_lost(
    make_slot: MakeSlot, host: str | None, missing: str
) -> None:
    slot = make_slot(0, host=host)
    slot.connect({1: missing})
    slot.exchange.send(1, 0, (b"x",))
    slot.run_until(lambda: 1 in slot.lost)
    assert "cannot be reached" in str(slot.lost[1])


def test_a_peer_that_never_dials_is_lost(
    make_slot: MakeSlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.drivers.exchange.sockets.LINKING_S", 0.1)
    slot = make_slot(1)
    slot.connect({0: "unix:/nowhere/x"})
    slot.run_until(lambda: 0 in slot.lost, 2.0)
    assert "did not connect" in str(slot.lost[0])


@pytest.mark.parametrize("early", [True, False], ids=["before connect", "after connect"])
@pytest.mark.parametrize(
    "stale", [{"attempt": 2}, {"job": "other"}], ids=["another attempt", "another job"]
)
def test_a_connection_of_another_attempt_is_refused(
    make_slot: MakeSlot, stale: dict[str, object], early: bool
) -> None:
    target = make_slot(1)
    if not early:
        target.connect({0: "unix:/nobody/needs/this"})
    zombie = make_slot(0, **stale)
    zombie.connect({1: target.address})
    zombie.exchange.send(1, 0, (b"must not arrive",))
    zombie.run_until(lambda: 1 in zombie.lost)
    assert "refused" in str(zombie.lost[1])
    # The true peer still gets in, and nothing of the zombie's came.
    true = make_slot(0)
    true.connect({1: target.address})
    true.exchange.send(1, 0, (b"the true one",))
    if early:
        target.connect({0: true.address})
    target.run_until(lambda: target.frames[0] == [(0, b"the true one")])
    assert not target.lost


@pytest.mark.parametrize("early", [True, False], ids=["before connect", "after connect"])
def test_a_second_connection_of_a_slot_is_refused(make_slot: MakeSlot, early: bool) -> None:
    # A third peer is still to come, so the listener is open.
    low, high = make_slot(0), make_slot(2)
    low.connect({2: high.address})
    if early:
        low.run_until(lambda: low.exchange._links[2].socket is not None)
    else:
        high.connect({0: low.address, 1: "unix:/later"})
        low.exchange.send(2, 0, (b"first",))
        high.run_until(lambda: bool(high.frames[0]))
    for hello in (
        Hello(job="job", attempt=1, sender=0, receiver=2),  # once more
        Hello(job="job", attempt=1, sender=7, receiver=2),  # the higher one does not dial
        Hello(job="job", attempt=1, sender=1, receiver=9),  # meant for somebody else
    ):
        assert isinstance(_say(high.address, own_frame(hello)), Refused)


@pytest.mark.parametrize(
    "noise",
    [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100, own_frame(Refused(reason="?")), b""],
    ids=["http", "zeros", "wrong message", "nothing"],
)
def test_strangers_are_closed_and_hurt_nobody(make_slot: MakeSlot, noise: bytes) -> None:
    low, high = make_slot(0), make_slot(1)
    assert _say(high.address, noise, then_close=not noise) is None
    high.connect({0: low.address})
    low.connect({1: high.address})
    low.exchange.send(1, 0, (b"fine",))
    high.run_until(lambda: bool(high.frames[0]))
    assert not high.lost


def test_a_silent_stranger_is_closed_in_time(
    make_slot: MakeSlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.drivers.exchange.sockets.GREETING_S", 0.1)
    assert _say(make_slot(1).address, b"") is None


def test_the_folder_of_a_unix_socket_goes_when_all_are_linked(make_slot: MakeSlot) -> None:
    low, high = make_slot(0), make_slot(1)
    folders = [Path(s.address.removeprefix("unix:")).parent for s in (low, high)]
    assert all(folder.stat().st_mode & 0o777 == 0o700 for folder in folders)
    low.connect({1: high.address})
    high.connect({0: low.address})
    low.exchange.send(1, 0, (b"x",))
    high.exchange.send(0, 0, (b"x",))
    low.run_until(lambda: bool(low.frames[1]))
    high.run_until(lambda: bool(high.frames[0]))
    assert not any(folder.exists() for folder in folders)
    alone = make_slot(0)
    folder = Path(alone.address.removeprefix("unix:")).parent
    assert folder.exists()
    alone.exchange.close()
    assert not folder.exists()


def test_a_long_temporary_folder_is_not_used(
    make_slot: MakeSlot, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    slot = make_slot(0)
    assert len(slot.address.removeprefix("unix:")) <= addresses.UNIX_PATH_BYTES_MAX
    assert not list(long.iterdir())


def test_an_address_that_is_not_ours_is_an_error() -> None:
    with pytest.raises(ExchangeError, match=r"203\.0\.113\.1"):
        addresses.listen("203.0.113.1")


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _say(address: str, data: bytes, *, then_close: bool = False) -> object:
    """Speak to a listener as anybody could; its answer, None if it hangs up."""
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(10)
        stranger.connect(address.removeprefix("unix:"))
        stranger.sendall(data)
        if then_close:
            return None
        reader = FrameReader()
        try:
            received = stranger.recv_into(reader.space())
        except ConnectionResetError:
            return None
        frames = reader.take(received) if received else []
        return read_own(frames[0][1]) if frames else None
