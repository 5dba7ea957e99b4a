"""Machines behind a real ssh: the faults that a network and a node can have, and what is lost by them: nothing.

Each test ends with the books: every job took effect once, and on no machine is a process that works for nobody.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from tests.nodes.conftest import TYPES, Nodes, gateway_of
from tests.nodes.lab import DISK, ROOT, Lab, Machine, reason_against, tree
from tests.system import readers
from tests.system.conftest import System, is_running, wait_until
from tests.system.test_reading import Desk, leaf, slips
from worker_service.clock import as_text, wall_clock
from worker_service.jobs.documents import IndexStatus
from worker_service.jobs.model import Status

PAGES = 16
NEVER_SECONDS = 60.0
TESSDATA = ("/usr/share/tesseract-ocr", "/usr/share/tessdata", "/usr/share/tesseract", "/usr/local/share/tessdata")

pytestmark = pytest.mark.skipif(reason_against() is not None, reason=f"no lab: {reason_against()}")


class Cluster(Nodes):
    """A head in the lab, and nodes behind ssh."""

    def __init__(self, system: System, *, patience_seconds: float) -> None:
        super().__init__(system, {}, patience_seconds=patience_seconds)
        self.lab = Lab(system.place)
        system.before = self.lab.head

    def add(self, *names: str, **more: object) -> list[Machine]:
        made = [self.lab.add(name, **more) for name in names]  # type: ignore[arg-type]
        self.write()
        return made

    def write(self, **more: object) -> None:
        if hasattr(self, "lab"):
            more = {"engine": f"ssh:{','.join(f'{name}*1' for name in self.lab.machines)},local*0"} | more
        super().write(**{"types": [*TYPES, "fetch"]} | more)

    def wait_for_all(self) -> None:
        for name in self.lab.machines:
            self.wait_for(name)

    def node_that_runs(self, job_id: int) -> Machine:
        return self.lab.machines[self.node_of(job_id)]

    def when_gone_and_given_up(self, machine: Machine, job_id: int) -> tuple[float, float]:
        """When nothing worked there any more, and when the head gave up what it ran."""
        gone_at = given_up_at = 0.0
        while not (gone_at and given_up_at):
            # In this order: what is seen to be given up was gone at the look before.
            given_up = self.system.job(job_id).fence > 1 or self.system.status(job_id) is Status.PENDING
            now = time.monotonic()
            gone_at = gone_at or (0.0 if machine.children() else now)
            given_up_at = given_up_at or (now if given_up else 0.0)
            time.sleep(0.005)
        return gone_at, given_up_at

    def assert_nothing_is_left(self) -> None:
        """The head has gone: nobody works for it any more."""
        for machine in self.lab.machines.values():
            wait_until(partial(_is_left, machine), f"no node on {machine.name}")
            assert machine.children() == {}

    def close(self) -> None:
        self.system.close()
        self.lab.close()


def _is_left(machine: Machine) -> bool:
    return not machine.agents()


def _named(name: str, pids: Iterable[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}/comm").read_text().strip() == name]


MakeCluster = Callable[..., Cluster]


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[MakeCluster]:
    made: list[Cluster] = []

    def make(system: System | None = None, *, patience_seconds: float = 20.0) -> Cluster:
        made.append(Cluster(system or System(tmp_path, shipped=()), patience_seconds=patience_seconds))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_document_is_read_over_ssh_and_a_power_cut_costs_only_the_pages_in_flight(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    desk = Desk(tmp_path)
    system = desk.system
    cluster = make_cluster(system, patience_seconds=4.0)
    first, _ = cluster.add("n1", "n2")
    cluster.write(types=["ocr_pages"])
    cluster.start()
    desk.run("ingest", slips(desk.papers / "long.pdf", PAGES))
    wait_until(lambda: len(desk.stored().get((1, 1), ())) > PAGES // 4, "some pages", seconds=NEVER_SECONDS)
    stored = desk.stored()[1, 1]
    first.power_off()

    document = desk.ended(1)

    assert (document.status, document.pages, document.error_message) == (IndexStatus.SUCCESS, PAGES, None)
    assert desk.texts(1) == [leaf(number, "climate") for number in range(1, PAGES + 1)]
    houses = [folder for machine in cluster.lab.machines.values() for folder in machine.state.iterdir()]
    recognised = sum(map(readers.given_to_the_engine, houses), Counter[int]())
    assert {number: recognised[number] for number in stored} == dict.fromkeys(stored, 1)
    attempts = [a for job in desk.jobs(1, "ocr_pages") for a in system.store.reading.attempts(job.id)]
    assert {attempt.node for attempt in attempts} == {"n1", "n2"}
    assert sum(job.retry_count for job in desk.jobs(1, "ocr_pages")) == 0
    assert system.store.upkeep.audit() == []
    system.close()
    cluster.assert_nothing_is_left()


def test_a_cut_that_is_shorter_than_the_fence_costs_nothing(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    system = cluster.system
    cluster.add("n1")
    cluster.start()
    job = system.enqueue("sleep", seconds=3)
    machine = cluster.node_that_runs(job)
    system.pids_of(job)

    machine.cut()
    time.sleep(2)  # as long as the cut is
    machine.heal()

    system.wait_for(job, Status.COMPLETED)
    assert system.outcomes(job) == ["completed"]
    system.close()
    cluster.assert_nothing_is_left()


WRONG_CLOCK = (
    f"sed 's/return datetime.now(UTC)/return datetime.now(UTC) - timedelta(days=3650)/;"
    f" s/return time.clock_gettime(time.CLOCK_BOOTTIME)/return 7e6 + 0.98 * time.clock_gettime(time.CLOCK_BOOTTIME)/'"
    f" {ROOT}/worker_service/clock.py >{DISK}/clock.py",
    f"mount --bind {DISK}/clock.py {ROOT}/worker_service/clock.py",
)
"""Ten years behind, started at another time, and 2 % too slow, so that it ends what it has later than it should."""


@pytest.mark.parametrize("more", [(), WRONG_CLOCK], ids=["right clocks", "wrong clocks"])
def test_a_node_that_is_cut_off_ends_its_children_before_the_head_gives_them_up_and_comes_back_empty(
    more: Sequence[str], make_cluster: MakeCluster
) -> None:
    cluster = make_cluster(patience_seconds=3.0)
    system = cluster.system
    cluster.add("n1", "n2", more=more)
    cluster.start()
    cluster.wait_for_all()
    job = system.enqueue("sleep")
    system.pids_of(job)
    first = cluster.node_that_runs(job)
    [pid] = [pid for pid in first.children() if is_running(pid)][:1]

    first.cut()
    gone_at, given_up_at = cluster.when_gone_and_given_up(first, job)

    assert gone_at < given_up_at
    assert not is_running(pid)
    wait_until(lambda: cluster.node_that_runs(job) is not first, "it goes on elsewhere")
    assert (system.job(job).retry_count, system.outcomes(job)[0]) == (0, "requeued")
    first.heal()
    cluster.wait_for(first.name)
    assert first.children() == {}
    assert system.outcomes(job)[1:] == [None]
    # What is told of it has the times of the head.
    since = as_text(wall_clock() - timedelta(minutes=10))
    attempts = system.store.reading.attempts(job)
    assert all(since < moment for one in attempts for moment in (one.started_at, one.ended_at) if moment is not None)
    assert all(since < line.at for line in system.store.reading.logs(job))
    system.close()
    cluster.assert_nothing_is_left()


def test_a_long_and_lossy_wire_is_slow_and_no_more(make_cluster: MakeCluster) -> None:
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        pytest.skip("this kernel has no TAP devices: a bad wire cannot be made")
    cluster = make_cluster()
    system = cluster.system
    [machine] = cluster.add("n1", wire=True)
    machine.is_bad(delay=0.1, loss_in=0.01, loss_out=0.01)
    cluster.start()

    jobs = [system.enqueue("chaos") for _ in range(5)]

    for job in jobs:
        system.wait_for(job, Status.COMPLETED)
        assert system.outcomes(job) == ["completed"]
        [file] = system.store.library.job_files(job)
        assert (system.workspace / file.path).read_text() == str(job)
    system.close()
    cluster.assert_nothing_is_left()


def test_after_a_kill_of_the_daemon_no_child_is_left_and_its_jobs_run_again(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(patience_seconds=60.0)
    system = cluster.system
    [machine] = cluster.add("n1")
    daemon = cluster.start()
    job = system.enqueue("sleep")
    system.pids_of(job)
    [pid, *_] = machine.children()

    for one in (gateway_of(daemon), daemon.pid):
        os.kill(one, signal.SIGKILL)
    daemon.ends()
    wait_until(lambda: not machine.children(), "what it had on the node has ended")
    cluster.start()
    system.pids_of(job, 2)

    assert not is_running(pid)
    assert system.outcomes(job)[1:] == [None]
    system.close()
    cluster.assert_nothing_is_left()


def test_nodes_that_are_not_fit_are_refused_in_words_and_the_others_work(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    desk = Desk(tmp_path)
    system = desk.system
    cluster = make_cluster(system)
    cluster.add("good")
    version = f"{ROOT}/worker_service/__init__.py"
    other = f"{DISK}/other.py"
    written = f"sed 's/VERSION = .*/VERSION = \"0.0.9\"/' {version} >{other}"
    cluster.add("older", more=[written, f"mount --bind {other} {version}"])
    data = [f"mount -t tmpfs tmpfs {place}" for place in TESSDATA if Path(place).is_dir()]
    cluster.add("mute", more=data)
    # What a nursery needs goes in, and a document does not.
    cluster.add("full", more=[f"mount -t tmpfs -o size=64k tmpfs {DISK}/state"])
    cluster.write(types=["ocr_pages"])
    cluster.start()
    cluster.wait_for("older", "refused")
    cluster.wait_for("mute", "refused")
    cluster.wait_for("full")

    desk.run("ingest", slips(desk.papers / "long.pdf", PAGES))
    wait_until(desk.stored, "some pages", seconds=NEVER_SECONDS)
    document = desk.ended(1)

    assert (document.status, document.error_message) == (IndexStatus.SUCCESS, None)
    rows = cluster.rows()
    assert "0.0.9" in rows["older"].reason
    assert "install the same" in rows["older"].reason
    assert "ocr_pages" in rows["mute"].reason
    assert "takes no file" in rows["full"].reason
    attempts = [a for job in desk.jobs(1, "ocr_pages") for a in system.store.reading.attempts(job.id)]
    assert {a.node for a in attempts if a.outcome == "completed"} == {"good"}
    assert sum(job.retry_count + job.requeue_count for job in desk.jobs(1, "ocr_pages")) == 0
    assert system.store.upkeep.audit() == []
    system.close()
    cluster.assert_nothing_is_left()


def test_what_was_running_where_the_disk_fills_up_goes_elsewhere_and_costs_no_retry(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    system = cluster.system
    first, _ = cluster.add("n1", "n2", more=[f"mount -t tmpfs -o size=40m tmpfs {DISK}/state"])
    cluster.start()
    cluster.wait_for_all()
    jobs = [system.enqueue("chaos", seconds=2) for _ in range(2)]
    [on_first] = [job for job in jobs if cluster.node_that_runs(job) is first]

    with suppress(OSError), Path(f"/proc/{first.init}/root{DISK}/state/full").open("wb") as file:
        while True:
            file.write(bytes(1 << 20))

    for job in jobs:
        system.wait_for(job, Status.COMPLETED)
        assert system.job(job).retry_count == 0
    assert system.outcomes(on_first) == ["requeued", "completed"]
    assert cluster.node_of(on_first) == "n2"
    wait_until(lambda: "its disk is full: no room" in cluster.rows()["n1"].reason, "why it rests")
    system.close()
    cluster.assert_nothing_is_left()


@pytest.mark.parametrize("who", ["ssh here", "sshd there"])
def test_a_line_that_is_killed_costs_what_ran_behind_it_and_is_there_again(who: str, make_cluster: MakeCluster) -> None:
    cluster = make_cluster(patience_seconds=60.0)
    system = cluster.system
    [machine] = cluster.add("n1")
    daemon = cluster.start()
    job = system.enqueue("sleep")
    system.pids_of(job)
    before = set(machine.children())
    lines = _named("ssh", tree(daemon.pid)) if who == "ssh here" else _named("sshd", machine.pids()[1:])

    for pid in lines:
        os.kill(pid, signal.SIGKILL)
    system.pids_of(job, 2)

    assert lines
    assert not any(map(is_running, before))
    assert (system.outcomes(job), system.job(job).retry_count) == (["requeued", None], 0)
    system.close()
    cluster.assert_nothing_is_left()


def test_a_node_that_is_cut_off_for_ever_is_taken_leave_of_and_nobody_waits_for_it(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(patience_seconds=3.0)
    system = cluster.system
    first, second = cluster.add("n1", "n2")
    cluster.start()
    cluster.wait_for_all()
    jobs = [system.enqueue("chaos", seconds=1) for _ in range(2)]
    for job in jobs:
        cluster.node_of(job)

    first.cut()
    for job in jobs:
        system.wait_for(job, Status.COMPLETED)
    assert system.store.steering.wish_of_node("n1", "remove")
    cluster.wait_for("n1", "removed")
    later = system.enqueue("chaos")

    system.wait_for(later, Status.COMPLETED)
    assert {cluster.node_of(one) for one in (*jobs, later)} == {"n2"}
    assert [system.job(job).retry_count for job in jobs] == [0, 0]
    assert first.children() == {}
    system.close()
    wait_until(lambda: not second.agents(), "no node on n2")


def test_who_lies_over_ssh_or_is_held_back_there_is_told_of_and_the_others_work(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    system = cluster.system
    # All of them, by pipes: test_liars.py.
    told = ("a path that leaves its place", "ten gigabytes")
    liars = {f"liar{number}": lie for number, lie in enumerate(told)}
    for name, lie in liars.items():
        cluster.add(name, program=f"tests.nodes.liars --job-type noop --lie '{lie}'")
    cluster.add("slow", more=[f"sed -i '2i read _' {DISK}/node"])
    cluster.add("chatty", more=[f"sed -i '2i echo Welcome to this machine' {DISK}/node"])
    # The last by its name, so that liars come first.
    cluster.add("well")
    cluster.write(types=["noop"])
    cluster.start()
    for name in (*liars, "well"):
        cluster.wait_for(name)

    jobs = [system.enqueue("noop") for _ in range(2 * len(liars))]

    for job in jobs:
        system.wait_for(job, Status.COMPLETED)
        assert cluster.node_of(job) == "well"
        assert set(system.outcomes(job)[:-1]) <= {"requeued"}
    for name in liars:
        cluster.wait_for(name, "refused")
        assert "it says what no node of ours would" in cluster.rows()[name].reason
    assert list(system.place.rglob("*stolen*")) == []
    assert list(system.workspace.rglob("page.txt")) == []
    assert system.store.upkeep.audit() == []
    assert "it talks nonsense: 'Welcome to this machine'. Does ~/.bashrc there print" in cluster.rows()["chatty"].reason
    wait_until(lambda: "`pagemill node` has not said a word" in cluster.rows()["slow"].reason, "why it is slow")
    system.close()
    cluster.assert_nothing_is_left()
