"""The parts of a download that need no network: names, digests, references, retries, credentials."""

from __future__ import annotations

import hashlib
import os
import struct
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from job_handlers.fetch.error_rules import RULES, FetchError, Restart, RetryPolicy, Timeouts
from job_handlers.fetch.partial_file import FileFacts, PartialFile
from job_handlers.fetch.sources import read_reference
from job_handlers.fetch.sources.drive import credentials as drive_credentials
from worker_service.handlers import HandlerError, PauseSource, Permanent, Retryable, Snooze, Stopped, safe_name

FACTS = FileFacts("a.pdf", "application/pdf", None, "revision 1")

# --- names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("Report.pdf", "Report.pdf"),
        ("Report", "Report.pdf"),
        ("REPORT.PDF", "REPORT.PDF"),
        ("../../etc/passwd", "_.._etc_passwd.pdf"),
        ("/", "_.pdf"),
        ("", "file.pdf"),
        (".", "file.pdf"),
        ("..", "file.pdf"),
        (".hidden", "hidden.pdf"),
        ("a\0b\nc\x1b[31m", "ab c[31m.pdf"),
        ("gnp.\u202efdp.exe", "gnp.fdp.exe.pdf"),
        ("zero\u200bwidth\ufeff", "zerowidth.pdf"),
        ("a\u2215b\uff0fc\\d", "a_b_c_d.pdf"),
        ("con.pdf", "file con.pdf"),
        ("  spaces \u3000 everywhere  ", "spaces everywhere.pdf"),
        ("Zu\u0308rich", "Zürich.pdf"),
        ("half \ud800", "half _.pdf"),
    ],
)
def test_a_name_is_made_safe(name: str, safe: str) -> None:
    assert safe_name(name, (".pdf",)) == safe


@given(st.text(), st.sampled_from([(), (".pdf",), (".tif", ".tiff")]))
def test_any_name_becomes_one_plain_file_name(name: str, suffixes: tuple[str, ...]) -> None:
    safe = safe_name(name, suffixes)

    assert 0 < len(safe.encode()) <= 200
    assert Path("/x", safe).resolve().parent == Path("/x")
    assert not safe.startswith(".")
    assert not suffixes or safe.lower().endswith(suffixes)
    assert all(unicodedata.category(one)[0] != "C" for one in safe)
    assert not set("/\\\0") & set(safe)


def test_a_name_keeps_a_suffix_of_its_format() -> None:
    endings = (".tif", ".tiff")
    assert [safe_name(name, endings) for name in ("fax.tiff", "FAX.TIF", "fax")] == ["fax.tiff", "FAX.TIF", "fax.tif"]
    assert safe_name("ü" * 300 + ".pdf", (".pdf",)) == "ü" * 98 + ".pdf"


# --- digests ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_md5", [True, False])
def test_digests_include_the_bytes_of_an_earlier_attempt(tmp_path: Path, has_md5: bool) -> None:
    content = os.urandom(3_000_001)

    for half in (content[:2_000_000], content[2_000_000:]):
        with PartialFile(tmp_path) as part:
            part.begin(FACTS, has_md5=has_md5)
            for begin in range(0, len(half), 70_001):
                part.append(half[begin : begin + 70_001])
            found = part.digests(lambda done: None)

    assert found.sha256 == hashlib.sha256(content).hexdigest()
    assert found.md5 == (hashlib.md5(content).hexdigest() if has_md5 else "")


@given(steps=st.lists(st.one_of(st.none(), st.integers(1, 1_500_000)), max_size=8))
def test_digests_start_again_when_the_file_is_cleared(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int | None]
) -> None:
    content = b""
    with PartialFile(tmp_path_factory.mktemp("keep")) as part:
        part.begin(FACTS)
        for number, step in enumerate(steps):
            if step is None:
                part.clear()
                content = b""
            else:
                part.append(bytes([number]) * step)
                content += bytes([number]) * step
        found = part.digests(lambda done: None)

    assert found.sha256 == hashlib.sha256(content).hexdigest()


def test_bytes_that_cannot_be_read_back_have_no_digest(tmp_path: Path) -> None:
    with PartialFile(tmp_path) as part:
        part.begin(FACTS)
        part.append(b"a" * 5_000)
        os.truncate(part.path, 1_000)

        with pytest.raises(Retryable, match="cannot be read"):
            part.digests(lambda done: None)


def test_a_stop_ends_the_wait_for_digests(tmp_path: Path) -> None:
    def stop(_: int) -> None:
        raise Stopped

    with PartialFile(tmp_path) as part:
        part.begin(FACTS)
    os.truncate(part.path, 4 << 30)

    with PartialFile(tmp_path) as part:
        part.begin(FACTS, has_md5=True)
        with pytest.raises(Stopped):
            part.digests(stop)


# --- references ---------------------------------------------------------------------------------------

ID = "1AbC-dEf_GhIjKlMnOpQ"


@pytest.mark.parametrize(
    "link",
    [
        ID,
        f"  {ID}\n",
        f"https://drive.google.com/file/d/{ID}/view?usp=sharing",
        f"https://drive.google.com/open?id={ID}",
        f"https://drive.google.com/uc?id={ID}&export=download",
        f"https://drive.usercontent.google.com/download?id={ID}",
        f"https://docs.google.com/document/d/{ID}/edit#heading=h.1",
        f"https://docs.google.com/spreadsheets/d/{ID}/edit?gid=0",
    ],
)
def test_each_form_of_a_drive_address_is_recognised(link: str) -> None:
    found = read_reference(link)[1]

    assert (found.platform, found.key, found.is_folder) == ("gdrive", ID, False)


def test_folders_resource_keys_urls_and_paths_are_distinguished() -> None:
    folder = read_reference(f"https://drive.google.com/drive/u/0/folders/{ID}?resourcekey=0-x_Y")[1]

    assert (folder.key, folder.resource_key, folder.is_folder) == (ID, "0-x_Y", True)
    assert read_reference("https://example.com/a.pdf?x=1")[1].platform == "https"
    assert read_reference("file:///srv/a%20b.pdf")[1].key == "/srv/a b.pdf"
    assert read_reference("file:///srv/latin%E9.pdf")[1].key == "file:///srv/latin%E9.pdf"
    # A host that only looks like Google's.
    assert read_reference(f"https://drive.google.com.example.com/file/d/{ID}")[1].platform == "https"


# --- retries ------------------------------------------------------------------------------------------


def test_every_rule_has_a_text_without_open_placeholders() -> None:
    for code, rule in RULES.items():
        assert "{" not in FetchError(code).detail, code
        assert rule.detail


def final_error(policy: RetryPolicy, code: str) -> HandlerError:
    for _ in range(20):
        try:
            policy.decide_after(FetchError(code))
        except HandlerError as error:
            return error
    raise AssertionError(code)


@pytest.mark.parametrize("code", RULES)
def test_every_error_ends_the_attempt_as_its_rule_says(code: str) -> None:
    rule = RULES[code]
    expected = {
        "RETRY": PauseSource if code == "RATE_LIMITED" else Retryable,
        "DEFER": Snooze,
        "PAUSE": PauseSource,
        "PERMANENT": Permanent,
        "RESTART": Permanent if rule.then == "PERMANENT" else Retryable,
    }[rule.kind]

    assert isinstance(final_error(RetryPolicy(Timeouts()), code), expected)


def test_a_changing_file_is_restarted_three_times() -> None:
    policy = RetryPolicy(Timeouts())

    answers = [policy.decide_after(FetchError("CHANGED")) for _ in range(3)]

    assert answers == [Restart(), Restart(), Restart(is_last=True)]
    with pytest.raises(Retryable):
        policy.decide_after(FetchError("CHANGED"))


def test_a_deferral_grows_from_an_hour_to_a_day() -> None:
    waits = []
    for deferrals in (0, 1, 2, 4, 5, 30):
        error = final_error(RetryPolicy(Timeouts(), deferrals), "QUOTA_USED_UP")
        assert isinstance(error, Snooze)
        waits.append((error.after or 0) / 3600)

    assert waits == [1, 2, 4, 16, 24, 24]


# --- credentials --------------------------------------------------------------------------------------


def test_an_access_list_for_this_user_exposes_no_credential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    key = tmp_path / "drive"
    key.write_text("{}")
    key.chmod(0o600)
    undefined = 0xFFFFFFFF

    def access(*entries: tuple[int, int, int]) -> bytes:
        return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)

    def rights(user: int) -> bytes:
        return access((1, 6, undefined), (2, 4, user), (4, 0, undefined), (16, 4, undefined), (32, 0, undefined))

    try:
        os.setxattr(key, "system.posix_acl_access", rights(os.geteuid()))
    except OSError:
        pytest.skip("this file system keeps no access lists")

    assert key.stat().st_mode & 0o070
    assert drive_credentials.read_credential("drive") == {}

    os.setxattr(key, "system.posix_acl_access", rights(os.geteuid() + 1))
    with pytest.raises(Permanent, match="other users can read"):
        drive_credentials.read_credential("drive")
