from __future__ import annotations

import hashlib
import io
import json
import re
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from tests.cli.stored_documents import Shelf
from tests.web.conftest import PAGE, bearing, site_of
from tests.web.pages.conftest import AddJob
from tests.web.pages.html_page import Page, open_page
from worker_service.jobs.attempts import Report
from worker_service.jobs.batches import NewBatch
from worker_service.jobs.job import NewJob
from worker_service.jobs.selector import Selector
from worker_service.jobs.tokens import TokenScope
from worker_service.jobs.workers import NodeState, Worker
from worker_service.runner.worker_identity import own_host
from worker_service.services import job_control, tokens
from worker_service.services.session import Session
from worker_service.settings.config import Settings
from worker_service.settings.loading import load_settings
from worker_service.web.views import NAVIGATION, QUEUE_TABS, STATIC

EVERYWHERE = ["/", "/system", *dict(NAVIGATION + QUEUE_TABS)]
PATHS_WITH_NAMES = [
    "/jobs/4", "/jobs/5", "/jobs/change?verb=delete&id=4", "/batches/1", "/batches/1/cancel", "/documents/3?q=climate",
    "/search?q=climate",
]  # fmt: skip
HOSTILE = '<script>alert(1)</script>" onload="x \u202egnp.exe\x1b[2J'


# ── Every page ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", EVERYWHERE)
def test_every_page_of_the_navigation_works_with_and_without_data(
    site: httpx.Client, add_failed: AddJob, path: str
) -> None:
    empty = open_page(site, path)
    add_failed(name="report.pdf", owner="ann")
    full = open_page(site, path)

    for page in (empty, full):
        assert len([tag for tag, _ in page.tags if tag == "h1"]) == 1
        assert sum(attributes.get("aria-current") == "page" for _, attributes in page.tags) == (path != "/system")
    assert_loads_nothing_from_other_hosts_or_inline(full)
    assert_each_field_has_a_label(full.answer.text)


def assert_loads_nothing_from_other_hosts_or_inline(page: Page) -> None:
    for tag, attributes in page.tags:
        assert not (tag == "script" and not attributes.get("src", "").startswith("/static/"))
        assert tag != "style"
        assert "style" not in attributes
        for name in ("src", "href", "action", "hx-get"):
            assert not re.match(r"(\w+:)?//", attributes.get(name, "")), attributes
    assert "'unsafe-inline'" not in page.answer.headers["content-security-policy"]


def assert_each_field_has_a_label(raw: str) -> None:
    for field in re.findall(r"<(?:input|select|textarea)\b[^>]*>", raw):
        if 'type="hidden"' in field or "aria-label" in field:
            continue
        if (name := re.search(r' id="([^"]+)"', field)) and f'<label for="{name[1]}"' in raw:
            continue
        assert re.search(rf"<label[^>]*>[^<]*(<span[^>]*>[^<]*</span>)?[^<]*{re.escape(field)}", raw), field


@pytest.mark.parametrize("path", EVERYWHERE + PATHS_WITH_NAMES)
def test_hostile_text_is_harmless_on_every_page(
    site: httpx.Client,
    session: Session,
    add_failed: AddJob,
    add_running: AddJob,
    shelf: Shelf,
    documents: None,
    path: str,
) -> None:
    names: dict[str, Any] = dict.fromkeys(("owner", "name", "account", "source", "concurrency_key"), HOSTILE)
    shelf.read(HOSTILE, f"{HOSTILE} climate", content="c3")
    add_failed(HOSTILE, HOSTILE, **names)
    job = add_running(message=HOSTILE, payload=json.dumps({"a": "<img src=x onerror=alert(1)>"}), **names)
    session.store.leases.report([Report(job.lease, lines=[HOSTILE])])
    batch = NewBatch(owner=HOSTILE, name=HOSTILE.replace("\x1b", ""), asked=json.dumps({"of": HOSTILE}))
    session.store.batches.add(batch, [NewJob("ocr_pages", **names)])
    job_control.pause(session, "owner", HOSTILE, reason=HOSTILE)
    hostile = replace(session, actor=HOSTILE)
    job_control.apply_plan(hostile, job_control.make_plan(hostile, "priority", Selector(owners=(HOSTILE,)), priority=2))

    answer = site.get(path, params={"terms": HOSTILE, "owner": HOSTILE} if path == "/keywords" else None)

    assert answer.status_code == 200, answer.text
    for dangerous in ("\u202e", "\x1b", "<script>alert", '" onload'):
        assert dangerous not in answer.text
    for tag, attributes in open_page(site, path).tags:
        assert tag != "img" or attributes["src"].startswith("/documents/")
        assert not any(name.startswith("on") for name in attributes)


def test_a_visitor_who_may_only_read_sees_no_buttons_and_changes_nothing(
    site: httpx.Client, session: Session, add_failed: AddJob
) -> None:
    job = add_failed()
    token = tokens.create_token(session, "screen", scopes=[TokenScope.READ])
    site.headers["Authorization"] = f"Bearer {token.text}"

    for path in ("/", "/jobs", f"/jobs/{job.id}", "/queue", "/failures", "/workers"):
        assert all(form.method == "get" for form in open_page(site, path).forms), path
    assert site.post(f"/jobs/{job.id}/retry").status_code == 403
    assert session.store.job_queries.get(job.id).status == "failed"


def test_htmx_is_the_published_file() -> None:
    notice = (STATIC / "htmx.txt").read_text("utf-8")

    assert hashlib.sha256((STATIC / "htmx.js").read_bytes()).hexdigest() in notice
    assert "Zero-Clause BSD" in notice


# ── Workers and pauses ──────────────────────────────────────────────────────────────────────────────────────────


def test_each_node_is_shown_with_its_jobs_and_its_problem(
    site: httpx.Client, session: Session, add_running: AddJob
) -> None:
    job = add_running()
    session.store.leases.report([Report(job.lease, node="n1")])
    up = NodeState("n1", "up", 8, "0.1.0")
    session.store.workers.set_nodes("w1", [up, NodeState("n2", "refused", reason=HOSTILE)])

    page = open_page(site, "/workers")

    assert f"1 of 8 slots busy: job {job.id}" in page.text
    assert "version 0.1.0" in page.text
    assert page.links[f"job {job.id}"] == f"/jobs/{job.id}"
    assert "n2 Refused" in page.text
    assert "<script>alert(1)</script>" in page.text
    assert not {"\x1b", "\u202e"} & {*page.answer.text}
    assert "on n1, for w1" in open_page(site, f"/jobs/{job.id}").text
    metrics = site.get("/metrics").text
    assert 'pagemill_node_info{node="n1",state="up",version="0.1.0"} 1' in metrics
    assert 'pagemill_node_running{node="n1"} 1' in metrics
    assert 'pagemill_node_up{node="n2"} 0' in metrics


def test_each_worker_is_shown_with_its_state(site: httpx.Client, session: Session, add_running: AddJob) -> None:
    add_running()
    session.store.workers.register(Worker("w0", own_host(), "an earlier life", 1, "0", 1, 1))

    page = open_page(site, "/workers")

    assert "w1 Alive" in page.text
    assert "1 of 8 slots busy" in page.text
    assert "w0 Dead" in page.text


def test_jobs_are_paused_and_resumed(site: httpx.Client, session: Session) -> None:
    paused = open_page(site, "/workers").press(
        site, "Pause", scope="owner", name="ann", length="2h", reason="she is away"
    )

    assert "Owner ann" in paused.text
    assert "she is away" in paused.text
    [pause] = session.store.job_queries.pauses()
    assert (pause.scope, pause.name, pause.until is not None) == ("owner", "ann", True)
    paused.press(site, "Resume")
    assert session.store.job_queries.pauses() == []


# ── Schedules ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_schedule_can_be_run_now(settings: Settings, session: Session, tmp_path: object) -> None:
    file = settings.database.with_name("pagemill.toml")
    file.write_text('[[schedule]]\nname = "nightly"\ncron = "30 2 * * *"\njob = { type = "noop" }\n')
    database = str(settings.database)
    scheduled = load_settings({"database": database}, environ={"WORKER_CONFIG": str(file), "WORKER_LOG_FORMAT": "json"})

    with site_of(scheduled) as site:
        page = open_page(site, "/schedules")
        assert "nightly" in page.text
        assert "nightly will not start" in page.text
        started = page.press(site, "Run now")

    assert "Started" in started.text
    [job] = session.store.job_queries.list(Selector())
    assert (job.job_type, job.name) == ("noop", "nightly")


# ── Keywords ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def documents(shelf: Shelf) -> None:
    shelf.read("ann.pdf", "climate risk, and climate change", owner="ann")
    shelf.read("bob.pdf", "nothing about it", owner="bob", content="c2")


def test_terms_are_counted_in_each_document_zeros_included(site: httpx.Client, documents: None) -> None:
    page = open_page(site, "/keywords?terms=climate%0D%0Aclimate+risk%0D%0Anowhere")

    assert "ann.pdf 1 · ann 2 1 0" in page.text
    assert "bob.pdf 2 · bob 0 0 0" in page.text
    attributes = open_page(site, "/keywords?terms=climate&owner=bob")
    assert "ann.pdf" not in attributes.text


def test_counts_are_downloaded_as_csv_and_as_a_workbook(site: httpx.Client, documents: None) -> None:
    page = open_page(site, "/keywords?terms=climate%0D%0Anowhere")

    assert site.get(page.links["CSV .csv"]).text == "DOCUMENT,NAME,climate,nowhere\n1,ann.pdf,2,0\n2,bob.pdf,0,0\n"
    workbook = site.get(page.links["Excel .xlsx"])
    assert workbook.content[:2] == b"PK"
    assert "keywords.xlsx" in workbook.headers["content-disposition"]
    assert io.BytesIO(workbook.content).getbuffer().nbytes > 1000


# ── Activity ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_actions_are_listed_and_undone(site: httpx.Client, session: Session, add_pending: AddJob) -> None:
    job = add_pending()
    job_control.apply_plan(session, job_control.make_plan(session, "cancel", Selector(ids=(job.id,))))

    page = open_page(site, "/activity")
    assert "1 job cancelled" in page.text
    assert "test ·" in page.text
    undone = page.press(site, "Undo")

    assert "undone" in undone.text
    assert session.store.job_queries.get(job.id).status == "pending"


def test_created_and_removed_tokens_are_listed_as_actions(site: httpx.Client, session: Session) -> None:
    token = tokens.create_token(session, "root", scopes=[TokenScope.ADMIN])
    tokens.create_token(session, "alice", owner="alice")
    tokens.remove_tokens(session, ["alice"])
    for _ in range(3):
        tokens.create_link(session, "bob")

    shown = site.get("/activity", headers=PAGE | bearing(token.text)).text

    assert "Token alice (read, only of alice) removed" in shown
    assert "Token alice (read, only of alice) created" in shown
    assert shown.count("Link bob") == 1
    assert "3 times" in shown
    assert shown.count("/undo") == 0
