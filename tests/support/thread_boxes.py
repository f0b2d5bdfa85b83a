"""Boxes of this process in the place of actors: real boxes and real networks, and all messages are pickled."""

from __future__ import annotations

import pickle
import queue
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count

import pytest

from coe import Inspector
from coe.cluster.box import BoxWorker
from coe.cluster.links import BoxGone, NotCarried
from coe.cluster.messages import NewRules, Parcel, RunStage
from coe.errors import CoeError, ConfigError, sentence_of


@dataclass(frozen=True)
class Token:
    number: int


@dataclass(eq=False)
class ThreadLink:
    """The way to a box of this process. A box that is cut off is never heard again, though it goes on."""

    box: BoxWorker
    heard: list[Parcel] = field(default_factory=list)
    is_cut_off: bool = False
    is_closed: bool = False
    deadly: Callable[[RunStage], bool] = lambda stage: False
    """Tells whether a stage ends the process of the box."""
    has_crashed: bool = False

    @property
    def id(self):
        return self.box.id

    @property
    def facts(self):
        return self.box.facts

    def take(self, parcel):
        parcel = pickle.loads(pickle.dumps(parcel))
        assert parcel.number == len(self.heard)
        self.heard.append(parcel)
        if any(isinstance(message, RunStage) and self.deadly(message) for message in parcel.messages):
            self.has_crashed = self.is_cut_off = True
        if not self.is_cut_off:
            self.box.take(parcel)

    def next_report(self):
        if not self.is_cut_off:
            report = pickle.loads(pickle.dumps(self.box.report(0.05)))
            if not self.is_cut_off:
                return report
        if self.has_crashed:
            raise BoxGone("its process died", crashed=True)
        raise BoxGone("its cable was pulled")

    def close(self):
        self.is_closed = True
        report = self.box.close()
        return None if self.is_cut_off else report

    @property
    def experts(self):
        """The experts that it was let run at last."""
        rules = [message for parcel in self.heard for message in parcel.messages if isinstance(message, NewRules)]
        return {*rules[-1].placement.on(self.id), *rules[-1].also} if rules else set()

    @property
    def stages(self):
        return [message for parcel in self.heard for message in parcel.messages if isinstance(message, RunStage)]


class ThreadBoxes:
    """A cluster in this process; call it as `make_boxes`. `come` lets a machine come, `cut_off` takes a box away."""

    def __init__(self, machines):
        self.links = []
        self.fetched = Counter()
        self.room = 1 << 40
        self.before_open = lambda id: None
        self.after_open = lambda link: None
        self.deadly = lambda stage: False
        self.is_closed = False
        self._machines, self._numbers = machines, count()
        self._coming = queue.SimpleQueue()
        self._images = {}
        self._lock = threading.Lock()

    def __call__(self, address, open_box, say):
        self.address, self._open_box, self._say = address, pickle.dumps(open_box), say
        return self

    def open(self):
        return [self._opened(f"box{number + 1}") for number in range(self._machines)]

    def open_new(self, wait_s):
        try:
            name = self._coming.get(timeout=0.02)
        except queue.Empty:
            return []
        try:
            return [self._opened(name)]
        except CoeError as error:
            self._say(f"warning: {sentence_of(error)}")
            return []

    def come(self):
        self._coming.put(f"box{len(self.links) + 1}")

    def cut_off(self, number):
        self.links[number].is_cut_off = True

    def share(self, image):
        data = pickle.dumps(image)
        if len(data) > self.room:
            raise NotCarried("there is no room")
        number = next(self._numbers)
        self._images[number] = data
        return Token(number)

    def close(self):
        with self._lock:
            self.is_closed = True
            for link in self.links:
                if not link.is_closed:
                    link.close()

    def _opened(self, id):
        def fetch(tokens):
            numbers = [token.number for token in tokens if isinstance(token, Token)]
            self.fetched.update((id, number) for number in numbers)
            return [pickle.loads(self._images[number]) for number in numbers]

        try:
            self.before_open(id)
            costs = self.links[0].facts.costs if self.links else None
            link = ThreadLink(pickle.loads(self._open_box)(id, costs, fetch), deadly=self.deadly)
            self.after_open(link)
        except CoeError as error:
            raise ConfigError(f"{id}: {sentence_of(error)}") from None
        with self._lock:
            self.links.append(link)
            if self.is_closed:
                link.close()
        return link


@pytest.fixture
def thread_boxes():
    """Return a function that makes a cluster of so many machines; each must be closed, with all its boxes."""
    made = []

    def make(machines):
        made.append(ThreadBoxes(machines))
        return made[-1]

    yield make
    for boxes in made:
        assert boxes.is_closed
        assert all(link.is_closed for link in boxes.links)


@pytest.fixture(scope="session")
def alone(tiny, pictures):
    with Inspector(tiny[0], store=tiny[1]) as line:
        return {result.request.image: result for result in line.stream(pictures)}


def same(results, alone):
    assert set(results) == set(alone)
    for name, result in results.items():
        one = alone[name]
        assert (result.verdict, result.failure) == (one.verdict, one.failure)
        assert replace(result.request, id=0) == replace(one.request, id=0)
        assert [_said(finding) for finding in result.findings] == [_said(finding) for finding in one.findings]


def _said(finding):
    return (finding.expert, finding.variant, finding.label, pytest.approx(finding.score, abs=1e-4))
