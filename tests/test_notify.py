from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from worker_service.base.errors import ConfigError
from worker_service.jobs.history import Notice
from worker_service.services.notification_messages import write_messages
from worker_service.settings.notifications import ADDRESSES, RULES, NotifyRule

OPS = {"name": "ops", "to": "mailto:ops@example.com"}


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def failed(number: int, code: str = "TIMEOUT", **more: Any) -> Notice:
    return Notice(
        number, "2026-11-19 06:00:00.000", "job.failed", job_id=number, code=code, message="no answer", **more
    )


def test_three_hundred_failures_are_one_message_with_numbers_by_code() -> None:
    notices = [failed(number, "TIMEOUT" if number % 3 else "HTTP_404") for number in range(300)]

    [message] = write_messages(NotifyRule("ops", "mailto:ops@example.com"), notices, {}, machine="box")

    assert message.subject == "pagemill on box: 300 jobs failed"
    assert "TIMEOUT: 200, HTTP_404: 100" in message.text
    assert "and 280 more" in message.text
    assert message.data["codes"] == {"TIMEOUT": 200, "HTTP_404": 100}
    assert len(message.text) < 2000


def test_each_owner_is_notified_of_their_own_jobs() -> None:
    notices = [failed(1, owner="alice"), failed(2, owner="bob"), failed(3, owner="alice"), failed(4)]

    sent = list(
        write_messages(
            NotifyRule("own", "owner"), notices, {"alice": "mailto:a@b.c", "bob": "apprise:bob"}, machine="box"
        )
    )

    assert [(message.to, message.subject) for message in sent] == [
        ("mailto:a@b.c", "pagemill on box: 2 jobs failed"),
        ("apprise:bob", "pagemill on box: 1 job failed"),
    ]


def test_an_unknown_batch_is_named_by_its_number() -> None:
    notice = Notice(1, "2026-11-19 06:00:00.000", "batch.done", batch_id=7)

    [message] = write_messages(NotifyRule("ops", "apprise:"), [notice], {}, machine="box")

    assert message.text == "Batches are done:\n  batch:7\n"


def test_a_message_names_the_file_and_links_to_its_page() -> None:
    notices = [failed(3), failed(4, document_id=7, generation=None)]

    [message] = write_messages(
        NotifyRule("ops", "mailto:ops@example.com"),
        notices,
        {},
        machine="box",
        names={3: "night run", 4: "empty.pdf"},
        web_address="http://box:8080",
    )

    assert message.text.splitlines()[2:] == [
        "  job 3 night run: TIMEOUT: no answer",
        "    http://box:8080/jobs/3",
        "  job 4 empty.pdf: TIMEOUT: no answer",
        "    http://box:8080/documents/7",
    ]


def test_a_documents_failure_is_not_reported_for_its_job_too() -> None:
    of_a_document = failed(1, document_id=7, generation=1)

    assert not NotifyRule("ops", "apprise:").concerns(of_a_document)
    assert NotifyRule("ops", "apprise:", ["job.failed"]).concerns(of_a_document)
    assert NotifyRule("ops", "apprise:").concerns(failed(1, document_id=7))


def test_notices_are_sent_after_the_group_time_and_outside_quiet_hours() -> None:
    rule = quiet_rule("22:00-07:00", "Europe/Zurich")

    def is_told(moment: str) -> bool:
        return rule.is_due(failed(1), at(moment), "UTC")

    assert not is_told("2026-11-19 06:00:30"), "it gathers, for a minute"
    assert is_told("2026-11-19 06:01:00")
    assert not is_told("2026-11-19 21:30"), "half past ten in Zürich"
    assert not is_told("2026-11-20 05:59"), "a minute to seven"
    assert is_told("2026-11-20 06:00")


def quiet_rule(hours: str, zone: str) -> NotifyRule:
    [rule] = RULES.read([{**OPS, "quiet": hours, "zone": zone}], "here")
    return rule


def test_quiet_hours_may_lie_within_a_day() -> None:
    rule = quiet_rule("12:00-13:00", "UTC")

    quiet = [rule.is_quiet(at(f"2026-11-19 {hour}"), "UTC") for hour in ("11:59", "12:00", "13:00")]
    assert quiet == [False, True, False]


def test_quiet_hours_without_a_zone_use_the_zone_of_the_settings() -> None:
    [rule] = RULES.read([{**OPS, "quiet": "22:00-07:00"}], "here")

    assert rule.is_quiet(at("2026-11-19 21:30"), "Europe/Zurich")
    assert not rule.is_quiet(at("2026-11-19 21:30"), "UTC")


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"to": "apprise:"}, "name is missing"),
        ({"name": "ops"}, "to is missing: it is an address"),
        ({**OPS, "to": "ops"}, "is an address such as"),
        ({**OPS, "when": ["job.fialed"]}, "when is a list of job.failed, .* not .*job.fialed"),
        ({**OPS, "when": []}, "when is a list of job.failed"),
        ({**OPS, "quiet": "late"}, "quiet is hours such as 22:00-07:00"),
        ({**OPS, "zone": "Mars/Base"}, "time zone"),
        ({**OPS, "group": "soon"}, "group"),
        ({**OPS, "every": "1h"}, "there is no setting 'every'"),
    ],
)
def test_an_invalid_rule_is_refused_with_its_name(table: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        RULES.read([table], "pagemill.toml")

    assert str(table.get("name", "notify[0]")) in str(caught.value)


def test_two_rules_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two tables"):
        RULES.read([OPS, OPS], "here")


def test_an_owners_address_is_checked() -> None:
    assert ADDRESSES.read({"alice": "mailto:a@b.c"}, "here") == {"alice": "mailto:a@b.c"}
    with pytest.raises(ConfigError, match=r"addresses\.alice"):
        ADDRESSES.read({"alice": 7}, "here")


def test_a_message_has_its_notices_as_data() -> None:
    [message] = write_messages(NotifyRule("ops", "apprise:"), [failed(3, owner="alice")], {}, machine="box")

    assert message.data["notices"] == [
        {
            "id": 3,
            "at": "2026-11-19 06:00:00.000",
            "kind": "job.failed",
            "owner": "alice",
            "job_id": 3,
            "code": "TIMEOUT",
            "message": "no answer",
        }
    ]
    assert msgspec.structs.asdict(message)["data"]["rule"] == "ops"
