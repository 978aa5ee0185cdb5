"""The events that the ResourceManager's machine receives, and the instructions that it returns.

The classes have no behaviour. `resource_manager.py` is the machine; `service.py` makes the events
and carries out the instructions.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.ids import Attempt, JobName, SlotId, TaskManagerId
from tidegate.ports.processes import ExitStatus
from tidegate.protocol.messages import Message, SlotLost, SlotsReleased

# --- events -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRequestReceived:
    """A message arrived. It waits for a reply under the number `request_id`."""

    request_id: int
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStarted:
    """The TaskManager has answered StartSlot with Acknowledge."""

    slot: SlotId
    allocation_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotNotStarted:
    """StartSlot was refused, or no answer came."""

    slot: SlotId
    allocation_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStopped:
    """The TaskManager has answered StopSlot with Acknowledge."""

    slot: SlotId
    allocation_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotNotStopped:
    """StopSlot was refused, or no answer came. It is repeated at the next tick."""

    slot: SlotId
    allocation_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskManagerExited:
    """The process of a local TaskManager ended, or could not be started."""

    id: TaskManagerId
    status: ExitStatus
    reason: str = ""
    """The reason why no process was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReleased:
    """The JobMaster of the job died, or the job ended. The job no longer needs its slots."""

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
    """Reply to the request `request_id`."""

    request_id: int
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSlotAt:
    """Send StartSlot to a TaskManager. SlotStarted or SlotNotStarted follows."""

    address: str
    slot: SlotId
    allocation_id: int
    ordinal: int
    job: JobName
    attempt: Attempt
    jobmaster_address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopSlotAt:
    """Send StopSlot to a TaskManager. SlotStopped or SlotNotStopped follows."""

    address: str
    slot: SlotId
    allocation_id: int
    job: JobName
    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyJobMaster:
    """Notify a JobMaster that it lost a slot, or that all slots that it released are free."""

    address: str
    message: SlotLost | SlotsReleased


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTaskManager:
    """Start a local TaskManager after a pause. TaskManagerExited follows when it ends."""

    id: TaskManagerId
    after_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DisconnectTaskManager:
    """Kill the TaskManager if it is local. The ResourceManager refuses its messages from now on."""

    id: TaskManagerId
    reason: str


Instruction = (
    Reply | StartSlotAt | StopSlotAt | NotifyJobMaster | StartTaskManager | DisconnectTaskManager
)
