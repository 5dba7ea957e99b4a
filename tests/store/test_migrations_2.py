"""From each earlier schema to today's: every row keeps what it says, and both ways end in the same place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.store.kit import ByHand, MovableClock, claimed_ids, everything, new_worker, status_of
from tests.store.papers import publish, work_as
from tests.store.test_migrations import original_table
from worker_service.errors import SchemaMismatch
from worker_service.jobs.model import Status
from worker_service.store.database import create
from worker_service.store.migrations import SCHEMA_VERSION
from worker_service.store.opening import initialise, migrate, open_store, schema_version

EARLIER = Path(__file__).parent / "earlier"

# A job in every state: waiting in each way, running, ended in each way, in an action that can be undone.
JOBS = """
INSERT INTO worker (id, host, boot_id, pid, version, cpu_slots, io_slots, started_at, heartbeat_at)
VALUES ('w1', 'here', 'boot', 1, '0', 8, 8, '2026-11-18 10:00:00.000', '2026-11-18 10:00:00.000');
INSERT INTO worker_job_queue (job_type, platform) SELECT 'ocr_pages', 'local' FROM json_each('[1,2,3,4,5,6]');
INSERT INTO worker_job_queue (job_type, platform, run_at) VALUES ('ocr_pages', 'local', '2099-01-01');
INSERT INTO worker_job_queue (job_type, platform, concurrency_key) VALUES ('ocr_pages', 'local', 'k');
INSERT INTO worker_job_dependency (job_id, needs_id) VALUES (8, 7);
UPDATE worker_job_queue SET status = 'running', fence = 1, worker_id = 'w1', started_at = '2026-11-18 10:00:01.000',
       heartbeat_at = '2026-11-18 10:00:01.000' WHERE id IN (2, 3, 4);
UPDATE worker_job_attempt SET outcome = 'completed', ended_at = '2026-11-18 10:00:02.000' WHERE job_id = 3;
UPDATE worker_job_attempt SET outcome = 'failed', ended_at = '2026-11-18 10:00:02.000' WHERE job_id = 4;
UPDATE worker_job_queue SET status = 'completed', completed_at = '2026-11-18 10:00:02.000', result = '{}' WHERE id = 3;
UPDATE worker_job_queue SET status = 'failed', completed_at = '2026-11-18 10:00:02.000', error_code = 'X' WHERE id = 4;
UPDATE worker_job_queue SET status = 'cancelled' WHERE id IN (2, 5);
INSERT INTO worker_action (at, actor, verb) VALUES ('2026-11-18 10:00:03.000', 'ann', 'cancel'),
                                                   ('2026-11-18 10:00:03.000', 'ann', 'delete');
INSERT INTO worker_action_item (action_id, job_id, before, after)
SELECT 1, id, json_object('status', 'pending', 'priority', 5),
       json_object('status', status, 'fence', fence, 'priority', 5)
  FROM worker_job_queue WHERE id = 5;
INSERT INTO worker_action_item (action_id, job_id, before)
SELECT 2, id, json_object('job_type', job_type, 'platform', platform, 'status', status, 'fence', fence, 'priority', 5,
       'owner', '', 'source', '', 'created_at', created_at, 'retry_count', 0, 'max_retries', 3, 'requeue_count', 0,
       'progress_percent', 0) FROM worker_job_queue WHERE id = 6;
DELETE FROM worker_job_queue WHERE id = 6;
"""
# A document that was read, and one that nobody has asked for. From schema 2 on.
DOCUMENTS = """
INSERT INTO document (platform, source_key, name) VALUES ('local', '/srv/a.pdf', 'a.pdf'), ('local', '/srv/b.pdf', 'b');
UPDATE document SET index_generation = 1, index_status = 'queued', settings = '{"lang":"deu"}' WHERE id = 1;
INSERT INTO worker_job_queue (job_type, platform, document_id, generation) VALUES ('assemble', 'local', 1, 1);
UPDATE worker_job_queue SET status = 'running', fence = 1, worker_id = 'w1', started_at = '2026-11-18 10:00:01.000',
       heartbeat_at = '2026-11-18 10:00:01.000' WHERE document_id = 1;
INSERT INTO page_result (digest, text, method, created_at) VALUES ('d', 'climate risk', 'layer', '2026-11-18 10:00:01');
INSERT INTO page (document_id, generation, number, result_id) VALUES (1, 1, 1, 1);
UPDATE worker_job_attempt SET outcome = 'completed', ended_at = '2026-11-18 10:00:02.000'
 WHERE job_id = (SELECT id FROM worker_job_queue WHERE document_id = 1);
UPDATE worker_job_queue SET status = 'completed', completed_at = '2026-11-18 10:00:02.000' WHERE document_id = 1;
UPDATE document SET index_status = 'success', current_generation = 1, pages = 1 WHERE id = 1;
INSERT INTO file (job_id, fence, document_id, name, path, size, created_at)
SELECT id, 1, 1, 'a.pdf', '9-1/a.pdf', 7, '2026-11-18 10:00:02.000' FROM worker_job_queue WHERE document_id = 1;
"""
NEW = ("batch", "deferred_action")
"""Tables that earlier schemas had not, and that are filled from others."""
FILLED_WITH = {1: JOBS, 2: JOBS + DOCUMENTS, 3: JOBS + DOCUMENTS}


@pytest.fixture(params=FILLED_WITH)
def version(request: pytest.FixtureRequest) -> int:
    earlier: int = request.param
    return earlier


@pytest.fixture
def earlier(version: int, path: Path) -> ByHand:
    """A database of an earlier schema, filled as the pagemill of its day did it."""
    return _made(path, version)


@pytest.fixture(params=[0, *FILLED_WITH])
def any_earlier(request: pytest.FixtureRequest, path: Path) -> ByHand:
    """The original proposal's plain table, too."""
    return _made(path, request.param) if request.param else original_table(path)


def _made(path: Path, version: int) -> ByHand:
    connection = create(path)
    connection.execute((EARLIER / f"schema_{version}.sql").read_text() + FILLED_WITH[version]).fetchall()
    connection.close()
    return ByHand(path)


def _rows(hand: ByHand) -> dict[str, list[dict[str, object]]]:
    tables = hand(
        "SELECT name FROM pragma_table_list"
        " WHERE schema = 'main' AND type = 'table' AND name NOT IN ('sqlite_schema', 'pagemill_schema')"
    )
    return {str(row["name"]): hand(f'SELECT * FROM "{row["name"]}"') for row in tables}


def _schema(hand: ByHand) -> list[dict[str, object]]:
    rows = hand("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name")
    return [row for row in rows if "before_pagemill" not in str(row["tbl_name"])]


def test_an_earlier_schema_is_not_opened_before_it_is_migrated(any_earlier: ByHand, path: Path) -> None:
    with pytest.raises(SchemaMismatch, match="pagemill db migrate"):
        open_store(path)


def test_every_row_keeps_what_it_says(earlier: ByHand, path: Path) -> None:
    before = _rows(earlier)

    assert migrate(path)

    after = _rows(earlier)
    after["sqlite_sequence"] = [row for row in after["sqlite_sequence"] if row["name"] not in NEW]
    # What only the undo of a delete needed is gone.
    items = [(row["action_id"], row["job_id"]) for row in before.pop("worker_action_item")]
    assert [(row["action_id"], row["item_id"]) for row in after["worker_action_item"]] == items
    assert [row["left_as"] for row in after["worker_action_item"]] == ["cancelled 0 5", None]
    assert not before.pop("worker_action_document", None)
    for table, rows in before.items():
        kept = [{column: row[column] for column in columns} for row, columns in zip(after[table], rows, strict=True)]
        assert kept == rows, table
    assert {row["status"] for row in before["worker_job_queue"]} == {str(status) for status in Status}
    assert (schema_version(path), migrate(path)) == (SCHEMA_VERSION, [])


@pytest.mark.parametrize("version", [2, 3])
def test_what_was_remembered_to_follow_a_document_stands(version: int, path: Path) -> None:
    hand = _made(path, version)
    then = '[{"job_type":"hook","payload":{"url":"x"}},{"job_type":"b"}]'
    hand(f"""UPDATE document SET settings = '{{"lang":"deu","then":{then}}}' WHERE id = 1""")

    migrate(path)

    assert hand("SELECT job_type, payload, standing, fired_at IS NOT NULL AS fired FROM deferred_action") == [
        {"job_type": "hook", "payload": '{"url":"x"}', "standing": 1, "fired": 1},
        {"job_type": "b", "payload": "", "standing": 1, "fired": 1},
    ]
    assert hand("SELECT settings FROM document WHERE id = 1") == [{"settings": '{"lang":"deu"}'}]


def test_a_number_that_jobs_had_becomes_a_batch(earlier: ByHand, path: Path) -> None:
    insert = "INSERT INTO worker_job_queue (job_type, platform, owner, batch_id) VALUES ('ocr_pages', 'local', 'ann',"
    earlier(f"{insert} 7); {insert} 8); UPDATE worker_job_queue SET status = 'cancelled' WHERE batch_id = 8")

    migrate(path)

    assert earlier("SELECT id, owner, state FROM batch") == [
        {"id": 7, "owner": "ann", "state": "active"},
        {"id": 8, "owner": "ann", "state": "failed"},
    ]
    assert earlier("SELECT * FROM notice") == []


# Each breaks a bound that is newer than its schema.
WITHOUT_BOUNDS = """
INSERT INTO worker_job_queue (job_type, platform, created_at) VALUES ('first', 'local', '0000-01-01');
INSERT INTO worker_job_queue (job_type, platform, run_at) VALUES ('early', 'local', '0000-01-01');
INSERT INTO worker_job_queue (job_type, platform, timeout_seconds) VALUES ('long', 'local', 1000000000000000000);
INSERT INTO worker_job_queue (job_type, platform, max_retries) VALUES ('often', 'local', 9223372036854775807);
INSERT INTO worker_job_queue (job_type, platform, account, unique_key)
SELECT 'large', 'local', printf('%.*c', 400000, 'x'), printf('%.*c', 400000, 'x') || value FROM json_each('[1,2]');
INSERT INTO pause (scope, name, until) VALUES ('type', 'over', '0000-01-01 00:00:00.000');
INSERT INTO pause (scope, name, reason) VALUES ('type', 'large', printf('%.*c', 400000, 'x'));
INSERT INTO job_limit (kind, name, most) VALUES ('owner', printf('%.*c', 400000, 'x'), 1), ('owner', 'ann', 1);
INSERT INTO source_rest (source, until) VALUES ('', '2099-01-01 00:00:00.000'), ('s', '2099-01-01 00:00:00.000');
INSERT INTO worker (id, host, boot_id, pid, version, cpu_slots, io_slots, started_at, heartbeat_at)
VALUES ('../x', 'here', 'boot', 1, '0', 1, 1, 'then', 'now'),
       ('w2', 'here', 'boot', 1, '0', 1000000000000, 1, 'then', 'now');
INSERT INTO worker_job_log (job_id, fence, at, line) VALUES (1, 1, 'now', printf('%.*c', 400000, 'x'));
INSERT INTO pagemill_schema (version, created_at) VALUES (1, '2020-01-01 00:00:00.000');
"""
DOCUMENTS_WITHOUT_BOUNDS = """
INSERT INTO document (platform, source_key, updated_at, settings)
VALUES ('local', 'early', '0000-01-01 00:00:00.000', 'what');
INSERT INTO document (platform, source_key)
SELECT 'local', printf('%.*c', 400000, 'x') || value FROM json_each('[1,2]');
INSERT INTO file_gone (path) VALUES ('/etc/passwd'), ('../x'), ('objects/1-1/a.txt');
"""


@pytest.mark.parametrize("version", [1, 2])
def test_rows_that_break_a_new_bound_are_carried_over(path: Path, version: int) -> None:
    hand = _made(path, version)
    for statements in WITHOUT_BOUNDS, DOCUMENTS_WITHOUT_BOUNDS if version > 1 else "":
        hand.run(statements)

    assert "0003_bounds" in migrate(path)

    jobs = {
        row["job_type"]: row for row in hand("SELECT * FROM worker_job_queue WHERE id > 8 AND job_type <> 'assemble'")
    }
    assert jobs["first"]["created_at"] == jobs["early"]["run_at"] == "1970-01-01 00:00:00.000"
    assert (jobs["long"]["timeout_seconds"], jobs["often"]["max_retries"]) == (31_536_000, 1_000_000)
    assert jobs["large"]["account"] == "x" * 7500
    assert hand("SELECT count(DISTINCT unique_key) AS n FROM worker_job_queue WHERE job_type = 'large'") == [{"n": 2}]
    assert hand("SELECT name, length(reason) AS n FROM pause") == [{"name": "large", "n": 7500}]
    assert hand("SELECT name FROM job_limit WHERE kind = 'owner'") == [{"name": "ann"}]
    assert hand("SELECT source FROM source_rest") == [{"source": "s"}]
    assert hand("SELECT version FROM pagemill_schema") == [{"version": SCHEMA_VERSION}]
    assert hand("SELECT id, cpu_slots, heartbeat_at FROM worker WHERE id <> 'w1'") == [
        {"id": "w2", "cpu_slots": 100_000, "heartbeat_at": "1970-01-01 00:00:00.000"}
    ]
    assert hand("SELECT length(line) AS n FROM worker_job_log") == [{"n": 25_000}]
    if version > 1:
        assert hand("SELECT count(*) AS n FROM document WHERE source_key LIKE 'xxx% (cut off) %'") == [{"n": 2}]
        assert hand("SELECT path FROM file_gone") == [{"path": "objects/1-1/a.txt"}]
        assert hand("SELECT settings, updated_at FROM document WHERE source_key = 'early'") == [
            {"settings": "", "updated_at": "1970-01-01 00:00:00.000"}
        ]


def test_both_ways_end_in_the_same_schema(any_earlier: ByHand, path: Path, tmp_path: Path) -> None:
    initialise(tmp_path / "fresh.db")

    migrate(path)

    assert _schema(any_earlier) == _schema(ByHand(tmp_path / "fresh.db"))
    assert migrate(path) == []


def test_triggers_are_made_in_the_same_order(earlier: ByHand, path: Path, tmp_path: Path) -> None:
    # Of several for one event, the order in which they were made is the order in which they fire.
    initialise(tmp_path / "fresh.db")
    in_order = "SELECT name FROM sqlite_schema WHERE type = 'trigger' ORDER BY rowid"

    migrate(path)

    assert earlier(in_order) == ByHand(tmp_path / "fresh.db")(in_order)


def test_what_somebody_has_made_beside_our_tables_and_on_them_stays(earlier: ByHand, path: Path) -> None:
    earlier.run(
        "CREATE TABLE diary (entry TEXT);"
        "INSERT INTO diary VALUES ('dear');"
        "CREATE INDEX my_index ON worker_job_queue (platform, job_type);"
        "CREATE VIEW my_view AS SELECT count(*) AS count FROM worker_job_queue;"
        "CREATE TRIGGER my_trigger AFTER INSERT ON worker_job_queue BEGIN INSERT INTO diary VALUES (NEW.id); END;"
    )
    [count] = earlier("SELECT * FROM my_view")

    migrate(path)

    assert earlier("SELECT * FROM diary") == [{"entry": "dear"}]
    assert earlier("SELECT * FROM my_view") == [count]
    assert earlier("SELECT name FROM sqlite_schema WHERE name = 'my_index'")
    earlier("INSERT INTO worker_job_queue (job_type, platform) VALUES ('t', 'p')")
    assert len(earlier("SELECT * FROM diary")) == 2


def test_an_id_that_was_used_before_is_not_used_again(any_earlier: ByHand, path: Path, clock: MovableClock) -> None:
    any_earlier("INSERT INTO worker_job_queue (job_type, platform) VALUES ('t', 'p')")
    [last] = any_earlier("SELECT max(id) AS id FROM worker_job_queue")
    any_earlier(f"DELETE FROM worker_job_queue WHERE id = {last['id']}")

    migrate(path)

    any_earlier("INSERT INTO worker_job_queue (job_type, platform) VALUES ('t', 'p')")
    [new] = any_earlier("SELECT max(id) AS id FROM worker_job_queue")
    assert new["id"] == int(str(last["id"])) + 1


def test_the_jobs_go_on_where_they_were(earlier: ByHand, path: Path, clock: MovableClock) -> None:
    migrate(path)

    store = open_store(path, clock=clock)
    assert store.upkeep.audit() == []
    [deleted, cancelled] = store.reading.actions()
    assert (deleted.verb, deleted.jobs, cancelled.verb, cancelled.jobs) == ("delete", 1, "cancel", 1)
    assert store.steering.undo(cancelled.id, actor="ann").job_ids == [5]
    assert [job.id for job in store.leases.requeue("w1")] == [2]
    assert status_of(store, 2) is Status.CANCELLED
    store.leases.register(new_worker())
    earlier("UPDATE worker_job_queue SET status = 'pending' WHERE id = 4")
    assert claimed_ids(store) == [1, 4, 5]
    for job in everything(store).values():
        if job.status is Status.RUNNING:
            store.leases.complete(job.lease)
    work_as(store)
    publish(store, "report.pdf", "text")
    assert [hit.number for hit in store.library.search("text").hits] == [1]
    store.close()


def test_a_document_that_was_read_is_found_as_before(path: Path, clock: MovableClock) -> None:
    hand = _made(path, 2)

    migrate(path)

    store = open_store(path, clock=clock)
    assert [hit.document_id for hit in store.library.search("climate").hits] == [1]
    store.close()
    assert hand("SELECT status FROM v_documents ORDER BY id") == [{"status": "success"}, {"status": "not_indexed"}]


def test_a_dry_run_changes_nothing_and_says_what_a_run_will(any_earlier: ByHand, path: Path) -> None:
    before, content = any_earlier.dump(), path.read_bytes()

    told = migrate(path, dry_run=True)

    assert told
    assert any_earlier.dump() == before
    assert path.read_bytes() == content
    assert migrate(path) == told
