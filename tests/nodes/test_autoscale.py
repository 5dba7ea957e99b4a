"""Machines that a real autoscaler of Ray starts when there is something to do, and ends when there is not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tests.nodes.lab import ROOT, command_of
from tests.nodes.ray_machines import Machines, needs_ray
from tests.nodes.test_ray import PAPER, Head
from tests.system.conftest import System, wait_until

pytestmark = [needs_ray, pytest.mark.timeout(240)]

SLOTS = 2
"""Of each machine."""
COMING_SECONDS = 90.0
HEAD_NODE, HEAD_TYPE = "f" * 51 + "00000", "ray.head.default"
"""As Ray's fake provider calls them."""
TYPES = {
    HEAD_TYPE: {"resources": {}, "node_config": {}, "max_workers": 0},
    "reader": {
        "resources": {"pagemill": SLOTS, "object_store_memory": 100 << 20},
        "node_config": {},
        "min_workers": 0,
        "max_workers": 4,
    },
}
SURROUNDINGS = {"AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_FAKE_CLUSTER": "1"}
OF_THE_SECOND = {
    "RAY_enable_autoscaler_v2": "1", "RAY_CLOUD_INSTANCE_ID": HEAD_NODE, "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_NODE,
}  # fmt: skip


def start(machines: Machines, *, is_second: bool) -> None:
    """Ray's head with an autoscaler, of its first kind or of its second."""
    provider = {
        "type": "external", "module": "tests.nodes.ray_provider.Provider", "gcs_address": machines.where,
        "use_node_id_as_ip": True, "disable_node_updaters": True, "disable_launch_config_check": True,
        "launch_multiple": is_second, "head_node_id": HEAD_NODE,
    }  # fmt: skip
    lists = (
        "cluster_synced_files", "setup_commands", "initialization_commands", "head_setup_commands",
        "worker_setup_commands", "head_start_ray_commands", "worker_start_ray_commands",
    )  # fmt: skip
    settings = {
        "cluster_name": "here", "max_workers": 4, "idle_timeout_minutes": 0.1, "upscaling_speed": 1.0, "auth": {},
        "provider": provider, "head_node_type": HEAD_TYPE, "available_node_types": TYPES, "file_mounts": {},
        "docker": {}, **{name: [] for name in lists},
    }  # fmt: skip
    file = machines.place / "autoscaling.json"
    file.write_text(json.dumps(settings))
    machines.start_head(f"--autoscaling-config={file}", **SURROUNDINGS | (OF_THE_SECOND if is_second else {}))


@pytest.fixture(params=[False, True], ids=["the first autoscaler", "the second autoscaler"])
def head(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Head]:
    system = System(tmp_path)
    system.install("paper", PAPER)
    machines = Machines(tmp_path / "ray", system.environment())
    try:
        start(machines, is_second=request.param)
        yield Head(system, machines, more=f"autoscale = {2 * SLOTS}")
    finally:
        system.close()
        machines.close()


def started(head: Head) -> int:
    """How many machines there are beside the head."""
    return sum(b"raylet/raylet" in command_of(pid).split(b"\0")[0] for pid in head.machines.pids("head")) - 1


def test_machines_are_started_for_what_waits_and_end_when_nothing_does(head: Head) -> None:
    system = head.system
    head.start()
    wait_until(lambda: started(head) == 0, "Ray's head is there, and nothing else")

    long, *short = [system.enqueue("sleep", seconds=seconds) for seconds in (3600, 1, 1, 1, 1)]
    wait_until(
        lambda: "asked for machines" in " ".join(gate.detail for gate in system.store.reading.explain(long)),
        "it says so",
    )
    assert [gate.code for gate in system.store.reading.explain(long)] == ["NO_NODE"]
    for job in short:
        head.ends(job)
    assert started(head) == 2
    wait_until(lambda: started(head) == 1, "the one that nobody needs has gone", seconds=COMING_SECONDS)
    assert system.outcomes(long) == [None]
    system.sqlite3(f"UPDATE worker_job_queue SET status = 'cancelled' WHERE id = {long}")
    wait_until(lambda: started(head) == 0, "both have gone", seconds=COMING_SECONDS)
    assert system.outcomes(long) == ["cancelled"]
    wait_until(lambda: not system.store.reading.nodes(), "nobody tells of a node any more")

    again = system.enqueue("paper")
    head.ends(again)
    assert [system.outcomes(job) for job in short] == [["completed"]] * len(short)
    system.assert_sound()
    system.close()
    wait_until(lambda: started(head) == 0, "nobody asks for it any more", seconds=COMING_SECONDS)


def test_ray_reads_of_the_manifest_for_kubernetes_what_it_is_to_say() -> None:
    """By the code with which its autoscaler reads what KubeRay's API server keeps."""
    reading = import_module("ray.autoscaler._private.kuberay.autoscaling_config")
    _, _, begun = (ROOT / "docs" / "cluster.md").read_text().partition("```yaml\n")
    manifest = import_module("yaml").safe_load(begun.partition("```")[0])
    manifest["metadata"]["namespace"] = "default"

    found = reading._derive_autoscaling_config_from_ray_cr(manifest)

    readers = found["available_node_types"]["readers"]
    assert (readers["min_workers"], readers["max_workers"], readers["resources"]["pagemill"]) == (0, 8, 8)
    assert found["idle_timeout_minutes"] == 2.0
