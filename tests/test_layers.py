"""The imports of the repository obey the rules of the layers.

An edge is an import anywhere: inside a function, under ``TYPE_CHECKING``, or by ``import_module("…")``. Each rule is
also tested on a small repository that breaks it, so that a rule which finds nothing cannot pass unnoticed.
"""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# From the bottom up. A package imports from layers below its own: never from above, nor from beside.
LAYERS = (
    ("worker_service", "base"),
    ("jobs",),
    ("settings",),
    ("store", "handlers"),
    ("workspace",),
    ("runner",),
    ("cluster",),
    ("services", "testing"),
    ("daemon", "web"),
    ("cli",),
    ("verbs",),
    ("__main__",),
)
LEVEL = {package: level for level, layer in enumerate(LAYERS) for package in layer}

# What the layers alone would allow.
NEVER = {
    ("runner", "store"): "a child holds no database",
    ("cluster", "store"): "what speaks with other machines holds no database",
}
PACKAGE_OF_LIBRARY = {"apsw": "worker_service.store", "ray": "worker_service.cluster"}
SURFACES = {"cli", "web"}
ABOVE_SERVICES = {*SURFACES, "verbs"}

SHIPPED = {"worker_service", "job_handlers", "cli"}
OURS = SHIPPED | {"tests", "benchmarks"}
MAY_IMPORT_SQLITE3 = re.compile(r"^(?=.*import).*sqlite3", re.MULTILINE)

SQL = r"""
      SELECT \s .+? \s FROM \s
    | (?: INSERT | REPLACE ) \s+ (?: OR \s+ \w+ \s+ )? INTO \s
    | UPDATE \s+ \w+ \s+ SET \s
    | DELETE \s+ FROM \s
    | (?: CREATE | ALTER | DROP ) \s+ (?: UNIQUE \s+ | TEMP \s+ )? (?: TABLE | INDEX | VIEW | TRIGGER ) \s
    | BEGIN \s+ (?: IMMEDIATE | EXCLUSIVE )
    | PRAGMA \s+ \w
"""
SQL_CLAUSE = r"| (?: ORDER | GROUP ) \s+ BY \s | WHERE \s+ [\w.]+ \s* (?: [=<>] | IN \b | IS \b | LIKE \b )"
# In capitals wherever it stands; in small letters, where it might be prose, only as the beginning.
SQL_IN_CAPITALS = re.compile(rf"\b (?: {SQL} {SQL_CLAUSE} )", re.VERBOSE | re.DOTALL)
SQL_AT_THE_START = re.compile(rf"\s* (?: {SQL} )", re.VERBOSE | re.DOTALL | re.IGNORECASE)
# A line that a person is shown, to be typed at a prompt, is talk and not a statement of ours.
SHOWN_LINE = re.compile(r'\b (?: pagemill[ ]db[ ]shell | sqlite3 ) \b [^"\n]* "[^"\n]*"', re.VERBOSE)

SQLITE = re.compile(r"\b wal \b | \b data_version \b | -shm \b | sqlite", re.VERBOSE | re.IGNORECASE)
# Texts for people, about what it is or which program to type.
TEXTS_FOR_PEOPLE = (
    "path of the SQLite file",
    "this version speaks SQLite only",
    "a job queue in one SQLite file",
    "sqlite3 program",
    'words = ["sqlite3"',
    "sqlite3 pagemill.db",
    "look for a sqlite3 session",
)


@dataclass(frozen=True, slots=True)
class Source:
    path: Path
    module: str
    is_package: bool
    tree: ast.Module


@dataclass(frozen=True, slots=True)
class ImportEdge:
    place: str
    origin: str
    target: str
    is_lazy: bool
    """The import is inside a function."""

    def __str__(self) -> str:
        return f"{self.place}: {self.origin} -> {self.target}"


@dataclass(frozen=True, slots=True)
class Codebase:
    root: Path
    sources: tuple[Source, ...]
    edges: tuple[ImportEdge, ...]


Rule = Callable[[Codebase], Iterator[str]]


# --- the rules: each yields one sentence for each thing that breaks it -----------------------------


def every_package_has_a_layer(codebase: Codebase) -> Iterator[str]:
    for source in codebase.sources:
        if top(source.module) == "worker_service" and package_of(source.module) not in LEVEL:
            yield f"{source.path}: the package {package_of(source.module)} has no layer; give it one in LAYERS"


def imports_point_down(codebase: Codebase) -> Iterator[str]:
    for edge in codebase.edges:
        if top(edge.origin) != "worker_service" or top(edge.target) != "worker_service":
            continue
        below, above = package_of(edge.target), package_of(edge.origin)
        if below == above or above not in LEVEL:
            continue
        if below not in LEVEL:
            yield f"{edge} leads to a package without a layer"
        elif LEVEL[below] > LEVEL[above]:
            yield f"{edge} points up"
        elif LEVEL[below] == LEVEL[above]:
            yield f"{edge} points to a package of its own layer"
        elif (above, below) in NEVER:
            yield f"{edge}: {NEVER[above, below]}"


def only_services_speak_to_the_store(codebase: Codebase) -> Iterator[str]:
    for edge in codebase.edges:
        if is_above_services(edge.origin) and is_within(edge.target, "worker_service.store"):
            yield f"{edge} goes past the services"
    for source in codebase.sources:
        if is_above_services(source.module):
            for node in ast.walk(source.tree):
                if isinstance(node, ast.Attribute) and node.attr == "store":
                    yield f"{source.path}:{node.lineno}: reaches through to the store; call a service or a query"


def is_above_services(module: str) -> bool:
    return top(module) == "job_handlers" or (top(module) == "worker_service" and package_of(module) in ABOVE_SERVICES)


def pages_and_api_share_only_resources(codebase: Codebase) -> Iterator[str]:
    sides = ("worker_service.web.api", "worker_service.web.views")
    for edge in codebase.edges:
        for origin, target in (sides, sides[::-1]):
            if is_within(edge.origin, origin) and is_within(edge.target, target):
                yield f"{edge}: what a page and the API share is in web/resources"


def handlers_know_only_their_contract(codebase: Codebase) -> Iterator[str]:
    for edge in codebase.edges:
        is_ours = top(edge.target) in OURS - {"job_handlers"}
        allowed = ["worker_service.handlers", "worker_service.base"]
        if edge.origin.endswith(".requests"):
            allowed.append("worker_service.jobs")
        if (
            top(edge.origin) == "job_handlers"
            and is_ours
            and not any(is_within(edge.target, package) for package in allowed)
        ):
            yield f"{edge}: a handler imports {', '.join(allowed)}, and nothing else of ours"


def the_service_imports_nothing_outside(codebase: Codebase) -> Iterator[str]:
    for edge in codebase.edges:
        may_know = package_of(edge.origin) in SURFACES or (edge.is_lazy and package_of(edge.origin) == "services")
        known = {"worker_service", "job_handlers"} if may_know else {"worker_service"}
        if top(edge.origin) == "worker_service" and top(edge.target) in OURS - known:
            yield f"{edge} leads out of the service"
        if edge.origin == "cli" and top(edge.target) in OURS and edge.target != "worker_service.cli":
            yield f"{edge}: cli.py imports worker_service.cli alone"


def libraries_are_imported_by_their_package(codebase: Codebase) -> Iterator[str]:
    for edge in codebase.edges:
        if top(edge.origin) not in SHIPPED:
            continue
        package = PACKAGE_OF_LIBRARY.get(top(edge.target))
        if package is not None and not is_within(edge.origin, package):
            yield f"{edge}: only {package} imports this library"
        if edge.target == "worker_service.cluster.ray_driver":
            yield f"{edge}: the Ray driver is a process of its own, started by its name"


def nobody_imports_sqlite3(codebase: Codebase) -> Iterator[str]:
    for edge in codebase.edges:
        if top(edge.target) in {"sqlite3", "_sqlite3", "pysqlite3"}:
            yield f"{edge}: two SQLite libraries on one file drop each other's locks; use apsw or the sqlite3 program"


def sql_stays_in_the_store(codebase: Codebase) -> Iterator[str]:
    for source in codebase.sources:
        if top(source.module) in SHIPPED and not is_within(source.module, "worker_service.store"):
            for line, written in strings(source.tree):
                text = SHOWN_LINE.sub("", written)
                if SQL_IN_CAPITALS.search(text) or SQL_AT_THE_START.match(text):
                    yield f"{source.path}:{line}: SQL outside worker_service/store: {' '.join(written.split())[:60]}"
    store = codebase.root / "worker_service" / "store"
    for name in ("worker_service", "job_handlers"):
        for path in sorted((codebase.root / name).rglob("*.sql")):
            if not path.is_relative_to(store):
                yield f"{path.relative_to(codebase.root)}: SQL outside worker_service/store"


def the_store_alone_knows_sqlite(codebase: Codebase) -> Iterator[str]:
    for source in codebase.sources:
        if top(source.module) in SHIPPED and not is_within(source.module, "worker_service.store"):
            for number, line in enumerate((codebase.root / source.path).read_text("utf-8").splitlines(), 1):
                if SQLITE.search(line) and not any(text in line for text in TEXTS_FOR_PEOPLE):
                    yield f"{source.path}:{number}: outside worker_service/store: {line.strip()[:80]}"


RULES: tuple[Rule, ...] = (
    every_package_has_a_layer,
    imports_point_down,
    only_services_speak_to_the_store,
    pages_and_api_share_only_resources,
    handlers_know_only_their_contract,
    the_service_imports_nothing_outside,
    libraries_are_imported_by_their_package,
    nobody_imports_sqlite3,
    sql_stays_in_the_store,
    the_store_alone_knows_sqlite,
)


# --- the tests ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def codebase() -> Codebase:
    return read_codebase(ROOT)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_codebase_follows_the_rule(rule: Rule, codebase: Codebase) -> None:
    broken = list(rule(codebase))

    if broken:
        pytest.fail("\n".join(broken), pytrace=False)


def test_the_imports_of_the_repository_are_found(codebase: Codebase) -> None:
    drawn = {(edge.origin, edge.target) for edge in codebase.edges}

    assert ("cli", "worker_service.cli") in drawn
    assert ("worker_service.store.connection", "apsw") in drawn


SOUND = {
    "cli.py": "from worker_service.cli import main",
    "worker_service/__init__.py": '"""SELECT id FROM a docstring is prose."""',
    "worker_service/base/errors.py": "",
    "worker_service/base/clock.py": "from worker_service.base.errors import BadTime",
    "worker_service/settings/config.py": "from . import clock, errors",
    "worker_service/jobs/__init__.py": "from worker_service import errors",
    "worker_service/store/__init__.py": "",
    "worker_service/store/queue.py": "from ..jobs import Job",
    "worker_service/store/sqlite.py": "import apsw\nBEGIN = 'BEGIN IMMEDIATE'",
    "worker_service/store/leases.py": "",
    "worker_service/store/leases.sql": "SELECT 1;",
    "worker_service/handlers/__init__.py": "from worker_service.jobs import Job",
    "worker_service/runner/__init__.py": "from worker_service.handlers import Handler",
    "worker_service/cluster/__init__.py": "",
    "worker_service/cluster/ray_driver.py": "import ray",
    "worker_service/services/job_control.py": "def opened():\n    from worker_service.store.opening import open_store",
    "worker_service/services/schedules.py": "def crawl():\n    from job_handlers import download",
    "worker_service/daemon/__init__.py": "from worker_service import runner, services",
    "worker_service/web/__init__.py": "import worker_service.services.job_control",
    "worker_service/cli/__init__.py": "from importlib import import_module\nimport_module(f'{__name__}.{1}')",
    "worker_service/cli/database.py": """HELP = 'pagemill db shell --write "DELETE FROM job"'""",
    "worker_service/cli/running.py": "from worker_service import daemon\nfrom worker_service import services",
    "job_handlers/__init__.py": "",
    "job_handlers/download.py": "from job_handlers.drive import file\nfrom worker_service.handlers import Done",
    "job_handlers/drive.py": "import googleapiclient.discovery",
    "tests/test_store.py": "import apsw\nfrom worker_service.store.sqlite import Store\nSQL = 'SELECT id FROM job'",
}

# Where it stands, on which line (0: on none; -1: it is of no one file), what is written there, and what is said of it:
# of an edge, where it leads.
# fmt: off
FLAWS: dict[str, tuple[str, int, str, str]] = {
    "an import that points up": ("worker_service/jobs/retries.py", 1, "from worker_service.store import Store",
        "-> worker_service.store points up"),
    "inside a function, of a module by its package": ("worker_service/services/job_control.py", 3,
        "def start():\n    if True:\n        from worker_service import daemon", "-> worker_service.daemon points up"),
    "relative": ("worker_service/jobs/retries.py", 1, "from ..services.job_control import plan",
        "-> worker_service.services.job_control points up"),
    "relative, in a package's own file": ("worker_service/handlers/__init__.py", 1, "from .. import runner",
        "-> worker_service.runner points up"),
    "by name": ("worker_service/base/clock.py", 2,
        "import importlib\nimportlib.import_module('worker_service.settings.config')",
        "-> worker_service.settings.config points up"),
    "by a name that is put together": ("worker_service/base/clock.py", 3,
        "from importlib import import_module\nfor n in 'ab':\n    import_module(f'worker_service.cli.{n}')",
        "-> worker_service.cli points up"),
    "for types only": ("worker_service/jobs/retries.py", 3,
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import worker_service.services.job_control as q",
        "-> worker_service.services.job_control points up"),
    "in one layer": ("worker_service/web/pages.py", 1, "from worker_service.daemon import run",
        "-> worker_service.daemon points to a package of its own"),
    "a child at the store": ("worker_service/runner/child.py", 1, "import worker_service.store.queue",
        "-> worker_service.store.queue: a child holds"),
    "a package without a layer": ("worker_service/attic.py", 0, "", "the package attic has no layer"),
    "a command inside the store": ("worker_service/cli/ls.py", 1, "from worker_service.store import queue",
        "-> worker_service.store.queue goes past"),
    "a page at the API": ("worker_service/web/views/jobs.py", 1, "from worker_service.web.api import jobs",
        "-> worker_service.web.api: what a page and the API share"),
    "a command that reaches through": ("worker_service/cli/ls.py", 2,
        "def ls(call):\n    return call.session.store.job_queries.list()", "reaches through to the store"),
    "a handler at the operations": ("job_handlers/ocr.py", 1, "from worker_service.services import job_control",
        "-> worker_service.services.job_control: a handler imports"),
    "a handler at something called like its contract": ("job_handlers/ocr.py", 1,
        "import worker_service.handlers_of_mine", "-> worker_service.handlers_of_mine: a handler imports"),
    "the service at its handlers": ("worker_service/daemon/loop.py", 1, "import job_handlers.drive",
        "-> job_handlers.drive leads out"),
    "a service at a handler before it is called": ("worker_service/services/job_control.py", 1,
        "import job_handlers.drive", "-> job_handlers.drive leads out"),
    "cli.py at another package": ("cli.py", 2,
        "from worker_service.cli import main\nimport worker_service.services.job_control",
        "-> worker_service.services.job_control: cli.py imports"),
    "apsw outside the store": ("worker_service/services/job_control.py", 1, "from apsw import Connection",
        "-> apsw: only worker_service.store imports"),
    "Ray in the daemon": ("worker_service/daemon/__init__.py", 3, "def f():\n    if 1:\n        import ray.util",
        "-> ray.util: only worker_service.cluster imports"),
    "the Ray driver in the daemon": ("worker_service/daemon/__init__.py", 1,
        "from worker_service.cluster import ray_driver", "-> worker_service.cluster.ray_driver: the Ray driver is a"),
    "sqlite3 in a test": ("tests/test_store.py", 2, "def test_it():\n    import sqlite3",
        "-> sqlite3: two SQLite libraries"),
    "a daemon that knows the store's files": ("worker_service/daemon/chores.py", 2,
        "def log_of(path):\n    return f'{path}-wal'", "outside worker_service/store: return f'{path}-wal'"),
    "a statement in small letters that is put together": ("worker_service/services/job_control.py", 2,
        "table = 'job'\ntext = f'update {table} set status = 1'",
        "SQL outside worker_service/store: update x set status = 1"),
    "a statement beside a line that is only shown": ("worker_service/cli/database.py", 1,
        'HELP = \'sqlite3 pagemill.db "SELECT 1 FROM a"; DELETE FROM job\'',
        "SQL outside worker_service/store: sqlite3 pagemill.db"),
    "a file of statements beside the operations": ("worker_service/services/job_control.sql", 0, "SELECT 1;",
        "SQL outside worker_service/store"),
}
# fmt: on


def test_a_correct_codebase_passes(tmp_path: Path) -> None:
    build(tmp_path, SOUND)

    assert complaints(tmp_path) == []


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_violation_is_reported_with_its_place(flaw: str, tmp_path: Path) -> None:
    path, line, text, complaint = FLAWS[flaw]
    build(tmp_path, {**SOUND, path: text})

    reported = complaints(tmp_path)

    module = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    place = "" if line < 0 else f"{path}:{line}: " if line else f"{path}: "
    assert len(reported) == 1, reported
    origin = f"{module} " if complaint.startswith("->") else ""
    assert reported[0].startswith(f"{place}{origin}{complaint}")


def build(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def complaints(root: Path) -> list[str]:
    codebase = read_codebase(root)
    return [sentence for rule in RULES for sentence in rule(codebase)]


# --- reading the source --------------------------------------------------------------------------------------


_LEAVES = (ast.Name, ast.Constant, ast.expr_context, ast.operator, ast.cmpop)


def read_codebase(root: Path) -> Codebase:
    # Syntax trees are no garbage, and the collector would take most of the time to find that out.
    gc.disable()
    sources = tuple(read(root))
    known = {source.module for source in sources}
    # A folder is a module too, with or without an __init__.py.
    known |= {module.rpartition(".")[0] for module in known if "." in module}
    edges = dict.fromkeys(edge for source in sources for edge in edges_from(source, known))
    gc.enable()
    return Codebase(root, sources, tuple(edges))


def read(root: Path) -> Iterator[Source]:
    for name in sorted(OURS):
        for path in sorted([*(root / name).rglob("*.py"), *root.glob(f"{name}.py")]):
            inside = path.relative_to(root)
            is_package = inside.name == "__init__.py"
            module = ".".join(inside.parent.parts if is_package else inside.with_suffix("").parts)
            text = path.read_text("utf-8")
            # One rule is about tests and benchmarks, and to parse them all takes two seconds.
            if name in SHIPPED or MAY_IMPORT_SQLITE3.search(text):
                yield Source(inside, module, is_package, ast.parse(text, str(path)))


def edges_from(source: Source, known: set[str]) -> Iterator[ImportEdge]:
    nodes: list[tuple[ast.AST, bool]] = [(source.tree, False)]
    while nodes:
        node, in_function = nodes.pop()
        for target in targets(node, source, known):
            yield ImportEdge(f"{source.path}:{getattr(node, 'lineno', 0)}", source.module, target, in_function)
        is_inside = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        # Names and constants, most of all nodes, have nothing inside.
        nodes += [(child, is_inside) for child in ast.iter_child_nodes(node) if not isinstance(child, _LEAVES)]


def targets(node: ast.AST, source: Source, known: set[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = absolute("." * node.level + (node.module or ""), source)
        for alias in node.names:
            member = f"{base}.{alias.name}"
            yield member if member in known else base
    elif isinstance(node, ast.Call) and node.args and called(node) in {"import_module", "__import__"}:
        name = beginning(node.args[0])
        if name:
            yield absolute(name, source).rstrip(".")


def absolute(name: str, source: Source) -> str:
    """Return the full name of a module that `source` imports by a relative one, such as ``..jobs.job``."""
    relative = name.lstrip(".")
    level = len(name) - len(relative)
    if level == 0:
        return name
    package = source.module.split(".")
    steps = level - 1 if source.is_package else level
    parents = package[: len(package) - steps]
    return ".".join(filter(None, [*parents, relative]))


def called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def beginning(node: ast.expr) -> str:
    """Return the text, or the part before its first placeholder."""
    if isinstance(node, ast.JoinedStr):
        return beginning(node.values[0]) if node.values else ""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield every string but docstrings."""
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            skipped.add(node.value)
        if node in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            skipped.update(node.values)
            yield node.lineno, "".join(beginning(value) or "x" for value in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def top(module: str) -> str:
    return module.partition(".")[0]


def package_of(module: str) -> str:
    """Return the package of `worker_service` that the module is in; the top file counts as one."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")
