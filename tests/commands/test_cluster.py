"""`pagemill cluster`, and what the other commands tell of nodes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands.conftest import Run
from worker_service.cluster import place_of
from worker_service.jobs.model import HandlerFacts, NewJob, NodeState, Report, Worker
from worker_service.liveness import own_identity
from worker_service.store.opening import open_store
from worker_service.store.store import Store

OWN = own_identity()


@pytest.fixture
def store(database: Path) -> Iterator[Store]:
    """And a daemon that is this process."""
    facts = [HandlerFacts("ocr_pages", "node")]
    store = open_store(database)
    store.leases.register(Worker("w1", OWN.host, OWN.boot_id, OWN.pid, "0.1.0", 2, 4, facts, 0, 9.0))
    yield store
    store.close()


def has(store: Store, *nodes: NodeState) -> None:
    store.leases.set_nodes("w1", nodes)


UP = NodeState("n1", "up", 8, 3, 0.4, "0.1.0", "", 31_000_000, 2_000, 42.0)
DOWN = NodeState("n2", "down", 0, 0, 14.0, "0.1.0", "the line is closed")
REFUSED = NodeState("n3", "refused", 0, 0, 2.0, "", "it is pagemill 0.0.9, and the head 0.1.0: install the same")


def test_cluster_shows_each_node_and_why_it_is_not_up(store: Store, run: Run) -> None:
    has(store, UP, DOWN, REFUSED)

    shown = run("cluster").stdout.splitlines()

    assert shown[0].split() == ["NODE", "STATE", "SLOTS", "RUNNING", "HEARD", "RATE", "SENT", "VERSION", "WHY"]
    assert shown[1].split()[:4] == ["n1", "up", "8", "3"]
    assert "42" in shown[1]
    assert "31.0 MB" in shown[1]
    assert "14 s ago" in shown[2]
    assert shown[2].rstrip().endswith("the line is closed")
    assert "install the same" in shown[3]
    assert run("cluster", "ls").stdout.splitlines() == shown
    [first, *_] = json.loads(run("cluster", "--json").stdout)["items"]
    assert (first["name"], first["bytes_sent"], first["jobs"]) == ("n1", 31_000_000, [])


def test_where_there_is_no_node_it_says_how_to_have_one(store: Store, run: Run) -> None:
    assert "WORKER_CLUSTER=ssh:box2*8" in run("cluster").stderr


def test_a_wish_stands_until_it_is_taken_back(store: Store, run: Run) -> None:
    has(store, UP, DOWN)

    assert run("cluster", "drain", "n1").stdout == "n1 gets nothing new; it finishes the 3 that it runs\n"
    assert run("cluster", "remove", "n2").stdout == "n2 gets nothing new, then it is left alone\n"
    has(store, UP, DOWN)

    assert [node.wish for node in store.reading.nodes()] == ["drain", "remove"]
    assert run("cluster", "use", "n1").stdout == "n1 gets what is next\n"
    assert [node.wish for node in store.reading.nodes()] == ["", "remove"]
    assert "did you mean n2" in run("cluster", "drain", "n22", fails=66).stderr


def test_why_names_the_nodes_and_when_one_was_heard(store: Store, run: Run) -> None:
    job = store.intake.enqueue(NewJob("ocr_pages")).job_id
    assert "NO_NODE worker w1 knows no node yet" in " ".join(run("why", job, fails=3).stdout.split())

    has(store, DOWN, REFUSED)
    said = " ".join(run("why", job, fails=3).stdout.split())

    assert "NO_NODE none of 2 nodes is up; n3 is refused (it is pagemill 0.0.9" in said
    assert "and was heard 2 s ago" in said or "and was heard 3 s ago" in said
    assert "pagemill cluster" in said
    has(store, UP)
    assert [found.id for found in store.leases.claim("w1", 5, "node")] == [job]


def test_who_looks_hears_of_nodes_that_are_away(store: Store, run: Run) -> None:
    has(store, UP, DOWN)

    assert "1 of 2 nodes up: n2 is down" in run("status", fails=1).stdout
    assert "node n2: down (the line is closed)" in run("doctor").stdout
    assert "n2" in run("workers").stdout
    assert [one["name"] for one in json.loads(run("workers", "--json").stdout)["nodes"]] == ["n1", "n2"]
    assert "n2" in run("top", "--once").stdout

    run("cluster", "remove", "n2")
    assert "nodes up" not in run("status", fails=0).stdout


def test_an_attempt_says_on_which_node_it_was(store: Store, run: Run) -> None:
    has(store, UP)
    store.intake.enqueue(NewJob("ocr_pages"))
    [job] = store.leases.claim("w1", 1, "node")
    store.leases.report([Report(job.lease, node="n1")])

    attempts = run("show", job.id).stdout.partition("attempts\n")[2].splitlines()
    assert (attempts[0].split()[2], attempts[1].split()[2]) == ("NODE", "n1")
    assert json.loads(run("cluster", "--json").stdout)["items"][0]["jobs"] == [job.id]


def test_a_node_of_a_daemon_that_is_gone_is_down(store: Store, run: Run) -> None:
    has(store, UP)
    store.leases.deregister("w1")

    [node] = json.loads(run("cluster", "--json").stdout)["items"]
    assert (node["state"], node["slots"], node["reason"]) == ("down", 0, "its daemon is gone")


def test_test_says_of_each_machine_whether_it_could_be_a_node(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = f"{sys.executable} -P -m worker_service.nodes.pipes {tmp_path / 'n1'} 4"
    monkeypatch.setenv("WORKER_CLUSTER", f"pipe:n1={good}*2,n2=false,local*0")

    result = run("cluster", "test", "--json", fails=1)

    n1, n2 = json.loads(result.stdout)["items"]
    assert (n1["is_good"], n1["slots"], n1["reason"]) == (True, 2, "")
    assert (n2["is_good"], n2["reason"]) == (False, "the line is closed")


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ("box2*8", "is an engine and where, such as ssh:box2*8,box3*8"),
        ("mpi:box2", "the engines are ssh, ray, pipe"),
        ("ssh:", "names no machine: write ssh:box2*8"),
        ("ssh:a*1,a*2", "names two nodes alike"),
        ("ssh:a*1001", "'a*1001': a machine has 1 to 1000 slots"),
        ("ssh:a*0", "'a*0': a machine has 1 to 1000 slots"),
        ("ssh:*8", "'*8': give it a name: n2=…"),
        ("ssh:a b*2", "'a b*2': this is no machine that ssh could call"),
        ("ray:head", "say where Ray's head is, with its port: ray:head.example:6379"),
        ("ray:a:1,b:1", "names Ray's own head alone, which knows its nodes"),
        ("ssh:a*1,ssh:b*1", "'ssh:b*1': there is one engine, and it is named once: ssh:a*1,b*2"),
        ("pipe:n1=true*1,ssh:b*1", "there is one engine, and it is named once"),
        ("pipe:n1=sh -c 'exec*2", "a quotation mark in it is not closed"),
    ],
)
def test_a_cluster_that_is_none_is_refused_in_a_sentence(
    written: str, sentence: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKER_CLUSTER", written)

    assert sentence in run("cluster", "test", fails=78).stderr


@pytest.mark.parametrize(
    ("engine", "autoscale", "sentence"),
    [
        ("ssh:a*1", "64", "autoscale asks Ray for machines, and the engine is ssh: leave it out"),
        ("ray:a:1", "'many'", "autoscale"),
        ("ray:a:1", "1001", "a number of attempts at once from 0 to 1000"),
    ],
)
def test_machines_are_asked_for_of_ray_alone(
    engine: str, autoscale: str, sentence: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(f'[cluster]\nengine = "{engine}"\nautoscale = {autoscale}\n')
    monkeypatch.setenv("WORKER_CONFIG", str(file))

    assert sentence in run("cluster", "test", fails=78).stderr


@pytest.mark.usefixtures("store")
def test_where_machines_are_asked_for_no_node_is_no_fault(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text('[cluster]\nengine = "ray:a:1"\nautoscale = 8\n')
    monkeypatch.setenv("WORKER_CONFIG", str(file))

    assert "machines are asked for when something waits" in run("cluster").stderr


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("box2*8", "box2"),
        ("pagemill-node@box2*8", "box2"),
        ("n2=pagemill-node@box2", "n2"),
        ("ssh ann@box2 pagemill node*2", "ssh-ann-box2-pagemill-node"),
    ],
)
def test_a_machine_is_called_as_it_is_whoever_calls_there(written: str, name: str) -> None:
    assert place_of(written).name == name


def test_the_variable_says_where_and_the_file_how(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "own.toml"
    file.write_text('[cluster]\nengine = "ssh:a*1"\npatience = "4s"\n')
    monkeypatch.setenv("WORKER_CONFIG", str(file))
    monkeypatch.setenv("WORKER_CLUSTER", "ssh:b*2,local*0")

    assert "ssh:b*2,local*0" in run("config", "show").stdout
