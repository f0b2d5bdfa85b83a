"""The enumerations of the service; their values stand in the database and in messages, and code compares members."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any


class BoardState(StrEnum):
    """Where a board stands on its way: accepted, located, running, decided, verified; or aborted."""

    ACCEPTED = "accepted"
    """Its images and its row are on the disk."""
    LOCATED = "located"
    """Its components are found in its pictures."""
    RUNNING = "running"
    """The experts look at it."""
    DECIDED = "decided"
    """It has its verdict; calls may wait for a person."""
    VERIFIED = "verified"
    """A person has answered every call; a board that is OK and has no calls is verified once it is decided."""
    ABORTED = "aborted"
    """Somebody took it back before it was decided; it has no verdict."""


NEXT: Mapping[BoardState | None, Mapping[BoardState, str]] = MappingProxyType(
    {
        None: {BoardState.ACCEPTED: "handed in"},
        BoardState.ACCEPTED: {
            BoardState.LOCATED: "whole board: found",
            BoardState.RUNNING: "begun",
            BoardState.DECIDED: "due",
            BoardState.VERIFIED: "OK, no call",
            BoardState.ABORTED: "taken back",
        },
        BoardState.LOCATED: {
            BoardState.RUNNING: "begun",
            BoardState.DECIDED: "due, or not to be located",
            BoardState.VERIFIED: "OK, no call",
            BoardState.ABORTED: "taken back",
        },
        BoardState.RUNNING: {
            BoardState.DECIDED: "all is known, or due",
            BoardState.VERIFIED: "OK, no call",
            BoardState.ABORTED: "taken back",
        },
        BoardState.DECIDED: {BoardState.VERIFIED: "each call is answered"},
        BoardState.VERIFIED: {},
        BoardState.ABORTED: {},
    }
)
"""What may follow each state of a board, and when; `docs/img/states.svg` is drawn from this table."""

UNDECIDED = (BoardState.ACCEPTED, BoardState.LOCATED, BoardState.RUNNING)
"""The states of a board that still needs a decision; after a crash the worker takes up boards in these states."""


class CallReason(StrEnum):
    """Why a component is not OK, for programs; people read `Call.detail`."""

    EXPERT = "expert"
    """The rules said NG or REVIEW of what an expert found."""
    LATE = "late"
    """There was no finding when the board was due."""
    FAILED = "failed"
    """The component could not be inspected."""
    NOT_REGISTERED = "not registered"
    """The board could not be found in its picture, or not precisely enough."""
    OUTSIDE = "outside"
    """Its crop lies partly outside of the picture of the board."""
    SKIPPED = "skipped"
    """It stands for a unit of a panel that was not inspected, because it is marked, or was named, as bad."""
    MISSING_VIEW = "missing view"
    """The recipe expects the component, and no picture shows it."""


class Outcome(StrEnum):
    """The word of a person on a call."""

    CONFIRMED = "confirmed"
    """The defect is real."""
    FALSE_CALL = "false call"
    """The component is good."""
    ACCEPTED = "accepted"
    """There is a defect, and the board may pass with it."""


class By(StrEnum):
    """What calls have in common, for statistics and stop rules."""

    COMPONENT = "component"
    EXPERT = "expert"
    LABEL = "label"
    REFDES = "refdes"
    """The place on the board; on a panel that of every unit."""
    UNIT = "unit"
    """The position on the panel."""
    FEEDER = "feeder"
    """What the part was placed from, by `feeders` of the recipe."""

    def of(self, call: Any) -> str:
        """Return the value of a call, of which it is a field; empty where it has none."""
        unit, _, refdes = call.refdes.rpartition("/")
        return str({By.REFDES: refdes, By.UNIT: unit}.get(self, getattr(call, self, "")))


class RepairOutcome(StrEnum):
    """What became of a confirmed defect, by the word of the person who had the board in hands."""

    REPAIRED = "repaired"
    SCRAPPED = "scrapped"
    NO_DEFECT = "no defect"
    """There is none; the part is good."""


class Dimension(StrEnum):
    """What counts of calls and of findings are told apart by; the words are the names of columns."""

    HOUR = "hour_us"
    RECIPE = "recipe_id"
    COMPONENT = "component"
    EXPERT = "expert"
    LABEL = "label"


class Role(StrEnum):
    """What the holder of a key may do; each role may do what the roles before it may, except that feeders only feed."""

    FEEDER = "feeder"
    """Hand boards in, and read their decisions."""
    VIEWER = "viewer"
    """Read what a screen on the wall shows; its session lasts."""
    OPERATOR = "operator"
    """Read everything but the audit; answer calls; report escapes."""
    ENGINEER = "engineer"
    """Everything: recipes, exports, drain and resume, faults, the audit; feed boards too."""


class Intake(StrEnum):
    """Whether the gate takes in boards; the newest `state_change` of the subject `intake` says it."""

    OPEN = "open"
    DRAINING = "draining"
    HELD = "held"
    """A stop rule holds the line until an engineer clears its alarm."""


class LineState(StrEnum):
    """What the line does; the newest `state_change` of the subject `line` says it."""

    STARTING = "starting"
    WAITING = "waiting"
    """It is ready, and no board waits."""
    RUNNING = "running"
    CHANGING = "changing"
    """It opens another recipe."""
    DRAINED = "drained"
    """It was told to drain, and no begun board is left."""
    HELD = "held"
    """A stop rule holds it, and no begun board is left."""
    DOWN = "down"


class Subject(StrEnum):
    """Whose state a `state_change` is about."""

    INTAKE = "intake"
    LINE = "line"


class Process(StrEnum):
    """The processes of the service: whose fault it is, and whose heartbeat."""

    WEB = "web"
    WORKER = "worker"


class FaultKind(StrEnum):
    """What has gone wrong, for programs; people read `Fault.message`."""

    PROCESS_DIED = "process died"
    PROCESS_SILENT = "process silent"
    """A process gives no sign of life, and has not ended."""
    INSPECTOR_FAILED = "inspector failed"
    """The line cannot be opened, or cannot go on, with a recipe."""
    EXPERT_HANGS = "expert hangs"
    """An expert does not return from a batch; the worker ends, and is started again."""
    BOARD_FAILED = "board failed"
    """A board was decided without findings, because the line failed on it repeatedly."""
    RECIPE_REFUSED = "recipe refused"
    """A recipe that was activated cannot be opened; the version before it came back."""
    DATABASE = "database"
    DISK_FULL = "disk full"
    DISK_FAILED = "disk failed"
    """The folder of pictures refuses what is written, or does not answer."""
    DISK_LOW = "disk low"
    """Less of the disk is free than the config asks for; nothing has failed yet."""
    IMAGE_LOST = "image lost"
    """The file of an accepted view is missing or damaged."""
    FOLDER = "folder"
    """Something of a folder that fills cannot be handed in, or the folder does not answer."""
    CERTIFICATE = "certificate"
    """A certificate of ours, or one that we trust, is over, or will be soon."""
    RETENTION = "retention"
    """Pictures whose time is over cannot be removed."""
    CLOCK = "clock"
    """The wall clock jumped."""
    SINK = "sink"
    """Another machine cannot be told."""
    STOP_RULE = "stop rule"
    """The last boards have in common what a stop rule of the config names."""
    LINE_HELD = "line held"
    """The same, and the rule holds the line."""


class ActivationState(StrEnum):
    """What became of the wish to make a version of a recipe the active version."""

    ASKED = "asked"
    ACTIVE = "active"
    """The line has opened it; the newest activation in this state names the active version."""
    FAILED = "failed"


class TrialState(StrEnum):
    """What became of a trial."""

    ASKED = "asked"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    DROPPED = "dropped"


class EventKind(StrEnum):
    """What an event tells; its body is described in docs/integration.md."""

    BOARD_ACCEPTED = "board.accepted"
    BOARD_STARTED = "board.started"
    BOARD_ENDANGERED = "board.endangered"
    """The board will probably be late; said before it is."""
    BOARD_DECIDED = "board.decided"
    BOARD_AMENDED = "board.amended"
    """A finding that came after the decision raised its severity."""
    BOARD_VERIFIED = "board.verified"
    BOARD_ABORTED = "board.aborted"
    BOARD_REPAIRED = "board.repaired"
    """Each confirmed defect has a word of the repair station."""
    CALL_VERIFIED = "call.verified"
    ESCAPE_REPORTED = "escape.reported"
    RECIPE_STAGED = "recipe.staged"
    RECIPE_ACTIVATED = "recipe.activated"
    RECIPE_FAILED = "recipe.failed"
    STATE_CHANGED = "state.changed"
    FAULT_RAISED = "fault.raised"
    FAULT_CLEARED = "fault.cleared"
