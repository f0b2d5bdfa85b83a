"""The way to machines of a Ray cluster: all but Ray itself, whose place a small module takes that calls at once."""

import socket
import sys
import threading
from types import SimpleNamespace

import pytest

from coe import Inspector
from coe.cli import inspect
from coe.cluster import over_ray, ray_session
from coe.cluster.actor import BoxActor, BoxRefusal, versions
from coe.cluster.links import BoxGone, NotCarried
from coe.cluster.messages import BoxReport, Parcel
from coe.errors import ConfigError, StoreError
from coe.results.metrics import Recorder
from coe.runs.inspection import Notices
from coe.scheduler.events import Lost, PaceChanged

REPORT = BoxReport((), (), Recorder({}).metrics(), settled=True)


class RayError(Exception):
    pass


class GetTimeoutError(RayError):
    pass


class Handle:
    """The handle of an actor: each call gives a function that `Ray.get` calls."""

    def __init__(self, actor, machine):
        self.actor, self.machine = actor, machine

    def __getattr__(self, name):
        method = getattr(self.actor, name)
        return SimpleNamespace(remote=lambda *arguments: lambda: method(*arguments))


class Ray:
    """What this package asks of Ray."""

    exceptions = SimpleNamespace(RayError=RayError, GetTimeoutError=GetTimeoutError)
    full = False
    is_on = True
    __version__ = "2"

    def __init__(self, machines, make):
        self.machines, self.make, self.killed = machines, make, []

    def is_initialized(self):
        return self.is_on

    def get_runtime_context(self):
        return SimpleNamespace(gcs_address="here:1")

    def init(self, **options):
        self.is_on = True

    def shutdown(self):
        self.is_on = False

    def nodes(self):
        assert self.is_on, "Ray would connect anew"
        return [
            {"NodeID": name, "NodeManagerAddress": name, "Alive": True, "Resources": {"CPU": 1}}
            for name in self.machines
        ]

    def put(self, value):
        if self.full:
            raise RayError("the disk is full\nand more")
        return lambda: value

    def get(self, later, timeout=0):
        assert self.is_on, "Ray would connect anew"
        return [one() for one in later] if isinstance(later, list) else later()

    def wait(self, laters, num_returns, timeout):
        return laters, []

    def kill(self, actor):
        assert self.is_on, "Ray would connect anew"
        self.killed.append(actor.machine)

    def method(self, concurrency_group):
        return lambda function: function

    def remote(self, **options):
        def options_of(**options):
            machine = options["scheduling_strategy"].node_id
            return SimpleNamespace(remote=lambda: Handle(self.make(machine), machine))

        return lambda cls: SimpleNamespace(options=options_of)


def answer(value):
    """Return an answer, or raise it."""
    if isinstance(value, Exception):
        raise value
    return value


def machine(**says):
    """Return an actor that says, or raises, what a test wants."""
    usual = {"versions": versions(), "open": SimpleNamespace(costs=1), "report": REPORT, "take": None, "close": None}
    says = usual | says
    return SimpleNamespace(**{name: lambda *_, value=value: answer(value) for name, value in says.items()})


@pytest.fixture
def ray(monkeypatch):
    """Return a function that puts a Ray of some machines in the place of Ray."""

    def install(*machines, make=lambda name: machine()):
        ray = Ray(list(machines), make)
        strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda id, soft: SimpleNamespace(node_id=id))
        monkeypatch.setitem(sys.modules, "ray", ray)
        monkeypatch.setitem(sys.modules, "ray.util", SimpleNamespace())
        monkeypatch.setitem(sys.modules, "ray._private", SimpleNamespace(worker=None))
        monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", strategies)
        return ray

    return install


def boxes_of(said=None):
    return over_ray.ray_boxes("auto", None, (said if said is not None else []).append)


def test_without_ray_a_sentence_says_what_to_install(call, tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    (folder := tmp_path / "images" / "A").mkdir(parents=True)
    (folder / "one.png").write_bytes(b"")
    options = ("--board", tiny[0], "--store", tiny[1], "--images", folder.parent, "--out", tmp_path / "run")
    said = call(*options, "--cluster", "auto", command=inspect)
    assert (said.status, "several boxes need Ray" in said.words) == (2, True)
    assert "pip install 'coe-vision[cluster]'" in said.words


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense", "ray://host:10001", "host:99999", "host..name:1"])
def test_a_wrong_address_is_said_at_once(ray, tiny, address):
    ray().is_on = False
    with pytest.raises(ConfigError, match=f"'?{address}"):
        Inspector(tiny[0], store=tiny[1], cluster=address)


@pytest.mark.parametrize("said", [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH"])
def test_an_address_where_another_program_listens_is_said_within_seconds(ray, said, monkeypatch):
    ray().is_on = False
    monkeypatch.setattr(ray_session, "_CONNECT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reply():
            connection, _ = server.accept()
            with connection:
                if said is None:
                    connection.recv(1000)
                    connection.recv(1000)
                else:
                    connection.sendall(said)

        thread = threading.Thread(target=reply)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ConfigError, match=address):
            over_ray.ray_boxes(address, None, print)
        thread.join()


def test_lines_of_a_process_share_a_connection_that_the_last_ends(ray):
    here = ray("a")
    here.is_on = False
    first, second = boxes_of(), boxes_of()
    (link,) = second.open()
    first.close()
    first.close()
    assert here.is_initialized()
    assert link.next_report() is REPORT
    second.close()
    assert not here.is_initialized()
    with pytest.raises(BoxGone, match="has left"):
        link.next_report()
    assert second.open_new(0) == []
    assert link.close() is None


def test_ray_is_left_only_when_no_thread_uses_it(ray):
    """A machine that is being opened while the line ends must not use Ray after the line has left it."""
    opening, may_open = threading.Event(), threading.Event()

    def make(name):
        if name == "b":
            opening.set()
            assert may_open.wait(20)
        return machine()

    here = ray("a", make=make)
    here.is_on = False
    said = []
    boxes = boxes_of(said)
    boxes.open()
    here.machines += ["b", "c"]
    looking = threading.Thread(target=lambda: boxes.open_new(0))
    looking.start()
    assert opening.wait(20)
    closing = threading.Thread(target=boxes.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    assert here.is_initialized()
    may_open.set()
    closing.join(20)
    looking.join(20)
    assert not here.is_initialized()
    assert (sorted(set(here.killed)), said) == (["a", "b"], [])


def test_a_box_that_is_lost_or_gets_slower_is_named_during_a_run():
    notices = Notices()
    notices.observe(Lost("", "it was silent for 30 s", "box2@10.0.0.7"), [], 0.0)
    notices.observe(None, [PaceChanged("cpu", 1.5, "box1"), PaceChanged("cpu", 2.0)], 0.0)
    about, (lost, slow, alone) = zip(*notices.fetch(), strict=True)
    assert about == ("lost", "pace", "pace")
    assert all(word in lost for word in ("box2@10.0.0.7", "it was silent for 30 s"))
    assert all(word in slow for word in ("cpu of box1", "1.5 times"))
    assert "box" not in alone


def test_a_process_that_is_connected_with_another_cluster_and_a_full_object_store_say_so(ray):
    ray("a")
    over_ray.ray_boxes("here:1", None, print)
    with pytest.raises(ConfigError, match="here:1"):
        over_ray.ray_boxes("there:1", None, print)
    here = ray()
    boxes = boxes_of()
    here.full = True
    with pytest.raises(NotCarried, match=r"the disk is full.*--object-store-memory"):
        boxes.share(None)


def test_machines_become_boxes_in_the_order_of_their_names(ray):
    here = ray("b", "a")
    boxes = boxes_of()
    assert [link.id for link in boxes.open()] == ["box1@a", "box2@b"]
    assert boxes.open_new(0) == []
    here.machines.append("c")
    assert [link.id for link in boxes.open_new(0)] == ["box3@c"]
    boxes.close()
    assert sorted(here.killed) == ["a", "b", "c"]
    assert here.is_initialized(), "Ray was on before, and stays on"


def test_a_machine_that_refuses_has_other_versions_or_lacks_coe_ends_the_opening_and_is_named(ray):
    here = ray("a", "b", make=lambda name: machine(open=BoxRefusal("no store")) if name == "b" else machine())
    with pytest.raises(ConfigError, match=r"^box2@b: no store$"):
        boxes_of().open()
    assert here.killed == ["b"]
    ray("a", make=lambda name: machine(versions={**versions(), "Python": "3.9.1"}))
    with pytest.raises(ConfigError, match=r"^box1@a .*Python 3\.9\.1"):
        boxes_of().open()
    error = RayError("The actor died because of an error raised in its creation task: no module coe")
    error.actor_init_failed = True
    ray("a", make=lambda name: machine(versions=error))
    with pytest.raises(ConfigError, match=r"^box1@a .*no module coe"):
        boxes_of().open()


def test_a_machine_that_has_just_died_is_left_out(ray):
    def make(name):
        return machine(versions=RayError("its node has died")) if name == "a" else machine()

    ray("a", "b", make=make)
    said = []
    assert [link.id for link in boxes_of(said).open()] == ["box2@b"]
    assert ["box1@a" in sentence and "its node has died" in sentence for sentence in said] == [True]
    ray("a", make=make)
    with pytest.raises(ConfigError, match="answers"):
        boxes_of().open()
    ray()
    with pytest.raises(ConfigError, match="processors"):
        boxes_of().open()


def test_a_machine_whose_box_was_lost_is_left_alone_for_a_while(ray, monkeypatch):
    ray("a")
    clock = [1000.0]
    monkeypatch.setattr(over_ray.time, "monotonic", lambda: clock[0])
    boxes = boxes_of()
    (link,) = boxes.open()
    link.close()
    assert boxes.open_new(0) == []
    clock[0] += 61
    assert [link.id for link in boxes.open_new(0)] == ["box2@a"]


@pytest.mark.parametrize(
    ("error", "sentence"),
    [(GetTimeoutError("late"), "^it was silent for 0.1 s$"), (RayError("\n killed \n more"), "^killed$")],
)
def test_a_box_that_does_not_answer_is_gone(ray, error, sentence, monkeypatch):
    here = ray("a", make=lambda name: machine(report=error))
    monkeypatch.setattr(over_ray, "_SILENT_S", 0.1)
    (link,) = boxes_of().open()
    with pytest.raises(BoxGone, match=sentence) as gone:
        link.next_report()
    assert gone.value.crashed
    here.machines.clear()
    with pytest.raises(BoxGone, match=sentence) as gone:
        link.next_report()
    assert not gone.value.crashed


def test_a_box_that_loses_a_parcel_is_gone(ray):
    """It would wait for the parcel for ever, and say that it lives."""
    here = ray("a", make=lambda name: machine(take=RayError("the connection was cut")))
    (link,) = boxes_of().open()
    assert link.next_report() is REPORT
    link.take(Parcel(0, 0.0, ()))
    with pytest.raises(BoxGone, match="the connection was cut"):
        link.next_report()
    here.is_on = False
    link.take(Parcel(1, 0.0, ()))
    with pytest.raises(BoxGone, match="has left"):
        link.next_report()


def test_an_actor_takes_parcels_in_the_order_of_their_numbers_and_says_why_it_cannot_be_a_box():
    taken = []
    box = SimpleNamespace(facts="facts", take=lambda parcel: taken.append(parcel.number))
    actor = BoxActor()
    assert actor.open("box1", lambda *arguments: box, None) == "facts"
    for number in (1, 2, 0, 4, 3):
        actor.take(Parcel(number, 0.0, ()))
    assert taken == [0, 1, 2, 3, 4]

    def refuse(*arguments):
        raise StoreError("no weights")

    assert BoxActor().open("box1", refuse, None) == BoxRefusal("no weights")
    assert BoxActor().close() is None
