from __future__ import annotations

import json
from typing import Any

import pytest

from worker_service.jobs.follow_ups import fill_placeholders


@pytest.mark.parametrize(
    ("template", "facts", "expected"),
    [
        ("{document_id}", {"document_id": 7}, 7),
        ("{name} is read", {"name": "~$a.docx"}, "~$a.docx is read"),
        ("{error_code}/srv/bob/a.pdf", {"error_code": None}, "{error_code}/srv/bob/a.pdf"),
        ("{name}", {"name": " FILE:///srv/bob/a.pdf"}, "{name}"),
        ("/srv/{owner}", {"owner": "ann"}, "/srv/ann"),
    ],
)
def test_a_placeholder_cannot_turn_a_text_into_a_path(template: str, facts: dict[str, Any], expected: object) -> None:
    assert json.loads(fill_placeholders(json.dumps([template]), facts)) == [expected]
