"""The enumerations of the service; their values stand in the database and in messages, and code compares members."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any


class BoardState(StrEnum):
    """Where a board stands on its way: accepted, located, running, decided, verified; or aborted."""

    ACCEPTED = "accepted"  # its images and its row are on the disk
    LOCATED = "located"  # its components are found in its pictures
    RUNNING = "running"  # the experts look at it
    DECIDED = "decided"  # it has its verdict; calls may wait for a person
    VERIFIED = "verified"  # a person has answered every call, or there is none and the board is OK
    ABORTED = "aborted"  # somebody took it back before it was decided; it has no verdict


NEXT: Mapping[BoardState | None, Mapping[BoardState, str]] = MappingProxyType(
    {
        None: {BoardState.ACCEPTED: "submitted"},
        BoardState.ACCEPTED: {
            BoardState.LOCATED: "whole board: found",
            BoardState.RUNNING: "begun",
            BoardState.DECIDED: "due",
            BoardState.VERIFIED: "OK, no call",
            BoardState.ABORTED: "withdrawn",
        },
        BoardState.LOCATED: {
            BoardState.RUNNING: "begun",
            BoardState.DECIDED: "due, or cannot be located",
            BoardState.VERIFIED: "OK, no call",
            BoardState.ABORTED: "withdrawn",
        },
        BoardState.RUNNING: {
            BoardState.DECIDED: "all is known, or due",
            BoardState.VERIFIED: "OK, no call",
            BoardState.ABORTED: "withdrawn",
        },
        BoardState.DECIDED: {BoardState.VERIFIED: "each call is answered"},
        BoardState.VERIFIED: {},
        BoardState.ABORTED: {},
    }
)  # what may follow each state of a board, and when; `docs/img/states.svg` is drawn from this table

UNDECIDED = (BoardState.ACCEPTED, BoardState.LOCATED, BoardState.RUNNING)  # after a crash the worker takes them up


class CallReason(StrEnum):
    """Why a component is not OK, for programs; people read `Call.detail`."""

    EXPERT = "expert"  # the rules said NG or REVIEW of what an expert found
    LATE = "late"  # there was no finding when the board was due
    FAILED = "failed"  # the component could not be inspected
    NOT_REGISTERED = "not registered"  # the board could not be found in its picture, or not precisely enough
    OUTSIDE = "outside"  # its crop lies partly outside of the picture of the board
    SKIPPED = "skipped"  # it stands for a unit that was not inspected, because it is bad
    MISSING_VIEW = "missing view"  # the recipe expects the component, and no picture shows it


class Outcome(StrEnum):
    """The word of a person on a call."""

    CONFIRMED = "confirmed"  # the defect is real
    FALSE_CALL = "false call"  # the component is good
    ACCEPTED = "accepted"  # there is a defect, and the board may pass with it


class By(StrEnum):
    """What calls have in common, for statistics and stop rules."""

    COMPONENT = "component"
    EXPERT = "expert"
    LABEL = "label"
    REFDES = "refdes"  # the place on the board; on a panel that of every unit
    UNIT = "unit"  # the position on the panel
    FEEDER = "feeder"  # what the part was placed from, by `feeders` of the recipe

    def of(self, call: Any) -> str:
        """Return the value of a call, of which it is a field; empty where it has none."""
        unit, _, refdes = call.refdes.rpartition("/")
        return str({By.REFDES: refdes, By.UNIT: unit}.get(self, getattr(call, self, "")))


class RepairOutcome(StrEnum):
    """What became of a confirmed defect, by the word of the person who had the board in hands."""

    REPAIRED = "repaired"
    SCRAPPED = "scrapped"
    NO_DEFECT = "no defect"  # there is none; the part is good


class Dimension(StrEnum):
    """What counts of calls are told apart by; the words are the names of columns."""

    RECIPE = "recipe_id"
    COMPONENT = "component"
    EXPERT = "expert"
    LABEL = "label"
    REFDES = "refdes"


class Role(StrEnum):
    """What the holder of a key may do; each role may do what the roles before it may, except that feeders only feed."""

    FEEDER = "feeder"  # hand boards in, and read their decisions
    VIEWER = "viewer"  # read what a screen on the wall shows; its session lasts
    OPERATOR = "operator"  # read everything but the audit; answer calls; report escapes
    ENGINEER = "engineer"  # everything: recipes, exports, drain and resume, faults, the audit; feed boards too


class Intake(StrEnum):
    """Whether the gate takes in boards; the newest `state_change` of the subject `intake` says it."""

    OPEN = "open"
    DRAINING = "draining"
    HELD = "held"  # a stop rule holds the line until an engineer clears its alarm


class LineState(StrEnum):
    """What the line does; the newest `state_change` of the subject `line` says it."""

    STARTING = "starting"
    WAITING = "waiting"  # it is ready, and no board waits
    RUNNING = "running"
    CHANGING = "changing"  # it opens another recipe
    DRAINED = "drained"  # it was told to drain, and no begun board is left
    HELD = "held"  # a stop rule holds it, and no begun board is left
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
    PROCESS_SILENT = "process silent"  # a process gives no sign of life, and has not ended
    INSPECTOR_FAILED = "inspector failed"  # the line cannot be opened, or cannot go on, with a recipe
    EXPERT_HANGS = "expert hangs"  # an expert does not return from a batch; the worker ends, and is started again
    BOARD_FAILED = "board failed"  # a board was decided without findings, because the line failed on it repeatedly
    RECIPE_REFUSED = "recipe refused"  # a recipe that was activated cannot be opened; the version before it came back
    DATABASE = "database"
    DISK_FULL = "disk full"
    DISK_FAILED = "disk failed"  # the folder of pictures refuses what is written, or does not answer
    DISK_LOW = "disk low"  # less of the disk is free than the config asks for; nothing has failed yet
    IMAGE_LOST = "image lost"  # the file of an accepted view is missing or damaged
    FOLDER = "folder"  # something of a folder that fills cannot be handed in, or the folder does not answer
    CERTIFICATE = "certificate"  # a certificate of ours, or one that we trust, is over, or will be soon
    RETENTION = "retention"  # pictures whose time is over cannot be removed
    CLOCK = "clock"  # the wall clock jumped
    SINK = "sink"  # another machine cannot be told
    STOP_RULE = "stop rule"  # the last boards have in common what a stop rule of the config names
    LINE_HELD = "line held"  # the same, and the rule holds the line


class ActivationState(StrEnum):
    """What became of the wish to make a version of a recipe the active version."""

    ASKED = "asked"
    ACTIVE = "active"  # the line has opened it; the newest activation in this state names the active version
    FAILED = "failed"


class TrialState(StrEnum):
    """What became of a trial."""

    ASKED = "asked"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    DROPPED = "dropped"


class Truth(StrEnum):
    """What people have said of a part."""

    DEFECT = "defect"  # a person confirmed it, or a later test found it
    GOOD = "good"  # a person called it good
    ACCEPTED = "accepted"  # there is a defect, and the board may pass with it: neither an escape nor a false call
    OPEN = "open"  # it is a call that nobody has answered
    UNASKED = "unasked"  # the line said OK, and nobody was asked


class EventKind(StrEnum):
    """What an event tells; its body is described in docs/integration.md."""

    BOARD_ACCEPTED = "board.accepted"
    BOARD_STARTED = "board.started"
    BOARD_ENDANGERED = "board.endangered"  # the board will probably be late; said before it is
    BOARD_DECIDED = "board.decided"
    BOARD_AMENDED = "board.amended"  # a finding that came after the decision raised its severity
    BOARD_VERIFIED = "board.verified"
    BOARD_ABORTED = "board.aborted"
    BOARD_REPAIRED = "board.repaired"  # each confirmed defect has a word of the repair station
    CALL_VERIFIED = "call.verified"
    ESCAPE_REPORTED = "escape.reported"
    RECIPE_STAGED = "recipe.staged"
    RECIPE_ACTIVATED = "recipe.activated"
    RECIPE_FAILED = "recipe.failed"
    STATE_CHANGED = "state.changed"
    FAULT_RAISED = "fault.raised"
    FAULT_CLEARED = "fault.cleared"
