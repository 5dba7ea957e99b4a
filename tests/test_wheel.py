"""The wheel, installed in an environment of its own outside the checkout.

PAGEMILL_FULL=1 downloads what is pinned; otherwise it is linked from here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest

from tests.full_length import IS_FULL
from worker_service import VERSION

ROOT = Path(__file__).resolve().parent.parent

# Downloads may take a while.
pytestmark = pytest.mark.timeout(900)

# What only handlers and the daemon need, and what would make every command slow.
HEAVY = {"PIL", "fitz", "google", "googleapiclient", "pymupdf", "pytesseract", "structlog"}

# Runs `pagemill ls` in the way that the installed script does, and then tells what it imported.
LS_AND_TELL = """
import json, sys
from worker_service.cli import main
sys.argv = ["pagemill", "ls"]
try:
    code = main()
except SystemExit as end:
    code = end.code
modules = sorted({name.partition(".")[0] for name in sys.modules})
print(json.dumps({"code": code or 0, "modules": modules}), file=sys.stderr)
"""


@dataclass(frozen=True, slots=True)
class Installed:
    environment: Path
    directory: Path

    def run(self, database: Path, *command: str) -> subprocess.CompletedProcess[str]:
        # The person who runs the tests may have settings of their own in the configuration directory.
        settings = surroundings(WORKER_DATABASE=str(database), XDG_CONFIG_HOME=str(self.directory))
        program = str(self.environment / "bin" / command[0])
        return run([program, *command[1:]], directory=self.directory, settings=settings)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    # Not pytest's own directory, of which it keeps the last three: an installation has hundreds of megabytes.
    path = Path(tempfile.mkdtemp(prefix="pagemill-wheel-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def wheel(place: Path) -> Path:
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(place / "dist")]
    checked([sys.executable, "-m", "pip", "wheel", *options, str(ROOT)], directory=place)
    (built,) = (place / "dist").iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, place: Path) -> Installed:
    environment, directory = place / "environment", place / "elsewhere"
    directory.mkdir()
    # By the pip that is here: to put one there first takes as long as half of the rest.
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python")]
    pip += ["install", "--quiet", "--no-compile"]
    checked([sys.executable, "-m", "venv", "--without-pip", str(environment)], directory=directory)
    if IS_FULL:
        pins = ["--require-hashes", "--only-binary", ":all:", "-r", str(ROOT / "requirements" / "run.txt")]
        checked([*pip, *pins], directory=directory)
    else:
        link_pinned(next((environment / "lib").glob("python*")) / "site-packages")
    # Without an index: what the wheel needs and is not pinned is missed.
    checked([*pip, "--no-index", str(wheel)], directory=directory)
    return Installed(environment, directory)


def link_pinned(site: Path) -> None:
    """Link the pinned packages, and no others."""
    for name, version in pinned("run"):
        distribution = metadata.distribution(name)
        assert distribution.version == version, f"{name} {distribution.version} is here: ./run setup"
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(str(distribution.locate_file(top)))


def pinned(purpose: str) -> dict[tuple[str, str], list[str]]:
    """Names and versions, with the digests that may be installed of each."""
    text = (ROOT / "requirements" / f"{purpose}.txt").read_text()
    parts = re.split(r"^(\S+)==(\S+)", text, flags=re.MULTILINE)[1:]
    return {
        (name, version): re.findall(r"--hash=(\S+)", more)
        for name, version, more in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    }


def test_runtime_pins_are_those_of_development() -> None:
    run, setup = pinned("run"), pinned("dev")

    assert len(run) > 30
    assert {pin: setup.get(pin) for pin in run} == run


def test_the_wheel_contains_packages_schema_statements_and_units(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())

    sources = {
        str(path.relative_to(ROOT))
        for package in ("worker_service", "job_handlers")
        for path in (ROOT / package).rglob("*")
        if path.suffix in {".py", ".sql"}
    }
    units = {f"worker_service/systemd/{path.name}" for path in (ROOT / "systemd").iterdir()}
    assert sources | units | {"worker_service/schema.sql"} <= names
    assert {name.split("/")[0] for name in names} == {
        "worker_service",
        "job_handlers",
        f"pagemill-{VERSION}.dist-info",
    }


def test_the_wheel_has_no_module_called_cli(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    assert not [name for name in names if name.split("/")[0] in {"cli", "cli.py"}]


def test_the_schema_in_the_wheel_is_the_one_in_the_checkout(wheel: Path) -> None:
    carried = zipfile.ZipFile(wheel).read("worker_service/schema.sql")

    assert carried == (ROOT / "schema.sql").read_bytes()


def test_the_installed_command_creates_and_fills_a_queue(installed: Installed, tmp_path: Path) -> None:
    database = tmp_path / "pagemill.db"
    made = installed.run(database, "pagemill", "init")
    job = ["scrape_account", "--platform", "instagram", "--account", "user123", "--payload", '{"scrape_type":"full"}']
    enqueued = installed.run(database, "pagemill", "enqueue", *job)
    listed = installed.run(database, "pagemill", "ls", "--json")

    assert made.returncode == 0, made.stderr
    assert (enqueued.returncode, enqueued.stdout) == (0, "1\n"), enqueued.stderr
    assert listed.returncode == 0, listed.stderr
    (item,) = json.loads(listed.stdout)["items"]
    assert (item["id"], item["job_type"], item["status"]) == (1, "scrape_account", "pending")


def test_ls_imports_no_library_of_handlers_or_the_daemon(installed: Installed, tmp_path: Path) -> None:
    database = tmp_path / "pagemill.db"
    assert installed.run(database, "pagemill", "init").returncode == 0

    listed = installed.run(database, "python", "-c", LS_AND_TELL)

    report = json.loads(listed.stderr.splitlines()[-1])
    assert report["code"] == 0, listed.stderr
    assert HEAVY & set(report["modules"]) == set()


def checked(command: Sequence[str], *, directory: Path) -> None:
    done = run(command, directory=directory, settings=surroundings())
    if done.returncode:
        pytest.fail(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}", pytrace=False)


def run(command: Sequence[str], *, directory: Path, settings: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=directory, env=settings, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def surroundings(**settings: str) -> dict[str, str]:
    """Return the environment without variables that lead Python or pagemill back to the checkout."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "WORKER_", "VIRTUAL_ENV"))}
    return kept | settings
