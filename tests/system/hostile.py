"""Hostile rows, as statements for the sqlite3 program: each column of each table with each odd value.

The table refuses most of them, which is one way to stop them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw

MIB = 1 << 20

VALUES = {
    "empty": "''",
    "text": "'what'",
    "NUL": "'a' || char(0) || 'b'",
    "not UTF-8": "CAST(x'61ff62' AS TEXT)",
    "half a pair": "CAST(x'eda080' AS TEXT)",
    "control characters": "char(27) || '[2J' || char(10) || 'x'",
    "minus one": "-1",
    "a month": "2592000",
    "huge": "1000000000000000000",
    "most": "9223372036854775807",
    "least": "-9223372036854775808",
    "a fraction": "1.5",
    "infinite": "9e999",
    "minus infinite": "-9e999",
    "no number": "9e999 - 9e999",
    "bytes": "x'00ff'",
    # As large as the largest bound but those of what is large by its nature.
    "3 MB": "'x' || hex(zeroblob(1500000))",
    "20 kB": "printf('%.*c', 20000, 'x')",
    "year 0": "'0000-01-01 00:00:00.000'",
    "year 1": "'0001-01-01 00:00:00.000'",
    "before": "'-4713-11-24 12:00:00.000'",
    "year 9999": "'9999-12-31 23:59:59.999'",
    "no day": "'2026-02-30 10:00:00.000'",
    "a number of days": "'2461363.5'",
    "deep JSON": "replace(printf('%.*c', 900, 'x'), 'x', '[') || replace(printf('%.*c', 900, 'x'), 'x', ']')",
    "other JSON": '\'{"pages":"x","status":7,"source":{}}\'',
    "JSON that is not UTF-8": "CAST(x'7b2261223a22ff227d' AS TEXT)",
    "half a pair in JSON": '\'{"a":"\\ud800","\\udfff":1e999}\'',
    "out of the workspace": "'../../../hostile'",
}

NOW = "strftime('%Y-%m-%d %H:%M:%f', 'now')"

# What makes a row of each table that is in order. {n} is another number each time.
INSERTS: dict[str, dict[str, str]] = {
    "worker_job_queue": {"job_type": "'noop'", "platform": "'local'", "payload": "'{{}}'"},
    "worker_job_event": {
        "job_id": "{plain}", "fence": "1", "from_status": "'pending'", "to_status": "'running'", "at": NOW,
    },
    "worker_job_log": {"job_id": "{plain}", "fence": "1", "at": NOW, "line": "'a line'"},
    "worker_job_dependency": {"job_id": "{waiting}", "needs_id": "{plain}"},
    "worker_job_settled": {"job_id": "{n}"},
    "worker_action": {"at": NOW, "actor": "'ann'", "verb": "'cancel'"},
    "worker_action_item": {"action_id": "{n}", "item_id": "{plain}", "left_as": "'pending 0 5'"},
    "worker": {
        "id": "'w{n}'", "host": "'here'", "boot_id": "'boot'", "pid": "1", "version": "'1'", "cpu_slots": "1",
        "io_slots": "1", "started_at": NOW, "heartbeat_at": NOW,
    },
    "handler": {"worker_id": "'w{n}'", "job_type": "'noop'", "class": "'cpu'"},
    "job_limit": {"kind": "'owner'", "name": "'o{n}'", "most": "5"},
    "pause": {"scope": "'type'", "name": "'t{n}'"},
    "source_rest": {"source": "'s{n}'", "until": "'2099-01-01 00:00:00.000'"},
    "owner_served": {"owner": "'o{n}'", "served": "1"},
    "document": {"platform": "'local'", "source_key": "'/k{n}'", "name": "'d'"},
    "file": {
        "job_id": "{plain}", "fence": "1", "document_id": "{document}", "role": "'text'", "name": "'f'",
        "path": "'objects/p{n}'", "size": "1", "created_at": NOW,
    },
    "document_gone": {"document_id": "{n}"},
    "file_gone": {"path": "'objects/g{n}'"},
    "page_result": {"digest": "'d{n}'", "text": "'climate'", "method": "'layer'", "created_at": NOW},
    "page": {"document_id": "{document}", "generation": "1", "number": "{n}", "result_id": "1"},
    "checkpoint": {"job_id": "{running}", "fence": "1", "at": NOW, "state": "'[]'"},
    "crawl": {"key": "'c{n}'", "updated_at": NOW},
    "crawl_item": {"crawl": "'c'", "id": "'i{n}'", "seen_at": NOW},
    "pagemill_schema": {"version": "3"},
}  # fmt: skip


def columns(database: Path) -> dict[str, list[str]]:
    connection = apsw.Connection(str(database))
    found = {
        table: [str(name) for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]
        for table in INSERTS
    }
    connection.close()
    return found


def inserts(database: Path, **ids: int) -> Iterator[tuple[str, str]]:
    """Yield what is wrong, and the statement."""
    number = 1_000_000
    for table, names in columns(database).items():
        base = INSERTS[table]
        for column in names:
            for what, value in VALUES.items():
                number += 1
                row = {name: given.format(n=number, **ids) for name, given in base.items()} | {column: value}
                yield (
                    f"{table}.{column}: {what}",
                    f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join(row.values())});",
                )


def updates(database: Path, *, running: int, waiting: int) -> Iterator[tuple[str, str]]:
    """Yield updates of a running job, of its attempt, and of a waiting job."""
    of_attempt = ("error_code", "error_message", "pid", "pid_started", "sandbox", "cpu_seconds", "heard_at")
    of_job = [column for column in columns(database)["worker_job_queue"] if column != "cancel_requested_at"]
    rows = {f"id = {running}": of_job, f"id = {waiting}": of_job, f"job_id = {running}": of_attempt}
    for where, names in rows.items():
        table = "worker_job_attempt" if where.startswith("job_id") else "worker_job_queue"
        for column in names:
            for what, value in VALUES.items():
                yield (
                    f"{table}.{column} of {where} = {what}",
                    f"UPDATE {table} SET {column} = {value} WHERE {where} AND ({column}) IS NOT ({value});",
                )
