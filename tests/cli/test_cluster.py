"""`pagemill cluster`, and how other commands show nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from worker_service.jobs.attempts import Report
from worker_service.jobs.job import NewJob
from worker_service.jobs.workers import HandlerFacts, NodeState, Worker
from worker_service.runner.worker_identity import own_identity
from worker_service.store.opening import open_store
from worker_service.store.store import Store

OWN = own_identity()


@pytest.fixture
def store(database: Path) -> Iterator[Store]:
    """The store, with this process registered as its daemon."""
    facts = [HandlerFacts("ocr_pages", "node")]
    store = open_store(database)
    store.workers.register(Worker("w1", OWN.host, OWN.boot_id, OWN.pid, "0.1.0", 2, 4, facts))
    yield store
    store.close()


def has(store: Store, *nodes: NodeState) -> None:
    store.workers.set_nodes("w1", nodes)


UP = NodeState("n1", "up", 8, "0.1.0")
DOWN = NodeState("n2", "down", 0, "0.1.0", "Ray has given it up")
REFUSED = NodeState("n3", "refused", 0, "", "pagemill 0.0.9 is installed here and 0.1.0 on the head: install the same")


def test_cluster_shows_each_node_and_why_it_is_not_up(store: Store, run: Run) -> None:
    has(store, UP, DOWN, REFUSED)

    lines = run("cluster").stdout.splitlines()

    assert lines[0].split() == ["NODE", "STATE", "SLOTS", "RUNNING", "VERSION", "REASON"]
    assert lines[1].split()[:4] == ["n1", "up", "8", "0"]
    assert lines[2].rstrip().endswith("Ray has given it up")
    assert "install the same" in lines[3]
    assert run("cluster", "ls").stdout.splitlines() == lines
    [first, *_] = json.loads(run("cluster", "--json").stdout)["items"]
    assert (first["name"], first["slots"], first["jobs"]) == ("n1", 8, [])


def test_without_nodes_the_list_says_how_to_set_up_a_cluster(store: Store, run: Run) -> None:
    assert "pagemill cluster init ADDRESS" in run("cluster").stderr


def test_a_drained_node_stays_drained_until_use(store: Store, run: Run) -> None:
    has(store, UP, DOWN)

    assert run("cluster", "drain", "n1").stdout == "n1 gets no new attempts\n"
    has(store, UP, DOWN)

    assert [node.is_draining for node in store.overview.nodes()] == [True, False]
    assert run("cluster", "use", "n1").stdout == "n1 gets new attempts again\n"
    assert [node.is_draining for node in store.overview.nodes()] == [False, False]
    assert "did you mean n2" in run("cluster", "drain", "n22", fails=66).stderr


def test_why_names_a_node_and_its_reason(store: Store, run: Run) -> None:
    job = store.intake.enqueue(NewJob("ocr_pages")).job_id
    assert "NO_NODE worker w1 knows no node yet" in " ".join(run("why", job, fails=3).stdout.split())

    has(store, DOWN, REFUSED)
    sentence = " ".join(run("why", job, fails=3).stdout.split())

    assert "NO_NODE none of 2 nodes is up; n3 is refused (pagemill 0.0.9" in sentence
    assert "pagemill cluster" in sentence
    has(store, UP)
    assert [found.id for found in store.leases.claim("w1", 5, "node")] == [job]


def test_status_doctor_workers_and_top_show_nodes_that_are_down(store: Store, run: Run) -> None:
    has(store, UP, DOWN)

    assert "1 of 2 nodes up: n2 is down" in run("status", fails=1).stdout
    assert "node n2: down (Ray has given it up)" in run("doctor").stdout
    assert "n2" in run("workers").stdout
    assert [worker["name"] for worker in json.loads(run("workers", "--json").stdout)["nodes"]] == ["n1", "n2"]
    assert "n2" in run("top", "--once").stdout

    run("cluster", "drain", "n2")
    assert "nodes up" not in run("status", fails=0).stdout


def test_an_attempt_shows_its_node(store: Store, run: Run) -> None:
    has(store, UP)
    store.intake.enqueue(NewJob("ocr_pages"))
    [job] = store.leases.claim("w1", 1, "node")
    store.leases.report([Report(job.lease, node="n1")])

    attempts = run("show", job.id).stdout.partition("attempts\n")[2].splitlines()
    assert (attempts[0].split()[2], attempts[1].split()[2]) == ("NODE", "n1")
    assert json.loads(run("cluster", "--json").stdout)["items"][0]["jobs"] == [job.id]


def test_a_node_of_a_dead_daemon_is_down(store: Store, run: Run) -> None:
    has(store, UP)
    store.workers.deregister("w1")

    [node] = json.loads(run("cluster", "--json").stdout)["items"]
    assert (node["state"], node["slots"], node["reason"]) == ("down", 0, "its daemon is dead")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ("address = 'box2*8'", "is the address of a Ray head such as ray:10.0.0.1:6379, not 'box2*8'"),
        ("address = 'ssh:box2'", "is the address of a Ray head"),
        ("address = 'ray:head'", "is the address of a Ray head"),
        ("address = 'ray:head:99999'", "is the address of a Ray head"),
        ("patience = '9s'", "there is no setting 'patience': the settings are address, types, local, autoscale"),
        ("autoscale = 1001", "a number of attempts from 0 to 1000"),
        ("types = 5", "types is a list of job types, not 5"),
        ("local = -1", "a number of slots from 0 to 1000"),
    ],
)
def test_an_invalid_setting_of_the_cluster_is_refused(
    settings: str, sentence: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = "" if settings.startswith("address") else 'address = "ray:a:1"'
    (tmp_path / "cluster.toml").write_text(f"[cluster]\n{address}\n{settings}\n")
    monkeypatch.setenv("WORKER_CONFIG", "cluster.toml")

    assert sentence in run("cluster", "test", fails=78).stderr


def test_init_creates_one_token_and_prints_the_commands_that_start_ray(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    first, second = (run("cluster", "init", "10.0.0.1", "--slots", "8").stdout for _ in range(2))

    token = tmp_path / "pagemill" / "ray.token"
    assert token.stat().st_mode & 0o777 == 0o600
    assert first == second
    assert f"RAY_AUTH_TOKEN={token.read_text()}" in first
    lines = first.splitlines()
    assert lines[2].startswith("ray start --head --node-ip-address=10.0.0.1 --port=6379 ")
    assert lines[6].startswith("ray start --address=10.0.0.1:6379 --num-cpus=8 ")
    assert lines[-1] == 'cluster = "ray:10.0.0.1:6379"'


def test_the_variable_gives_the_address_and_the_file_the_other_settings(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "own.toml"
    file.write_text('[cluster]\naddress = "ray:a:1"\nautoscale = 4\n')
    monkeypatch.setenv("WORKER_CONFIG", str(file))
    monkeypatch.setenv("WORKER_CLUSTER", "ray:b:2")

    assert "ray:b:2" in run("config", "show").stdout
