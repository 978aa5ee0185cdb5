"""What the ResourceManager's machine hears, and what it has done: events in, instructions out.

Of no behaviour; `resource_manager.py` is the machine, `service.py` makes the events and carries out
the instructions.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.ids import Attempt, JobName, SlotId, TaskManagerId
from tidegate.ports.processes import ExitStatus
from tidegate.protocol.messages import Message, SlotLost, SlotsReleased

# --- events -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRequestReceived:
    """A message that waits for a reply under the number `ask`."""

    ask: int
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStarted:
    """The TaskManager has answered StartSlot with Done."""

    slot: SlotId
    serial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotNotStarted:
    """StartSlot was refused, or its answer did not come."""

    slot: SlotId
    serial: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStopped:
    """The TaskManager has answered StopSlot with Done."""

    slot: SlotId
    serial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotNotStopped:
    """StopSlot was not answered; it is repeated at the next tick."""

    slot: SlotId
    serial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskManagerExited:
    """A local TaskManager's process ended."""

    id: TaskManagerId
    status: ExitStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReleased:
    """The JobMaster of the job died, or the job ended: its slots are free for others."""

    job: JobName


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceManagerTick:
    """Time has passed."""


Event = (
    ResourceRequestReceived
    | SlotStarted
    | SlotNotStarted
    | SlotStopped
    | SlotNotStopped
    | TaskManagerExited
    | JobReleased
    | ResourceManagerTick
)


# --- instructions -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Answer the message `ask`."""

    ask: int
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSlotAt:
    """Send StartSlot to a TaskManager; SlotStarted or SlotNotStarted follows."""

    address: str
    slot: SlotId
    serial: int
    ordinal: int
    job: JobName
    attempt: Attempt
    jobmaster_address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopSlotAt:
    """Send StopSlot to a TaskManager; SlotStopped or SlotNotStopped follows."""

    address: str
    slot: SlotId
    serial: int
    job: JobName
    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyJobMaster:
    """Tell a JobMaster of a slot it lost, or that those it has released are gone."""

    address: str
    message: SlotLost | SlotsReleased


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTaskManager:
    """Start a local TaskManager after a pause; TaskManagerExited follows its end."""

    id: TaskManagerId
    after_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DisconnectTaskManager:
    """Kill it if it is local; it would be refused from now on anyway."""

    id: TaskManagerId
    reason: str


Instruction = (
    Reply | StartSlotAt | StopSlotAt | NotifyJobMaster | StartTaskManager | DisconnectTaskManager
)
