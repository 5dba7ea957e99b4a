from __future__ import annotations

import re
import tomllib
from pathlib import Path

import httpx
import pytest

from tests.web.conftest import PAGE, by_unix_socket, served
from worker_service.base.errors import ConfigError
from worker_service.jobs.job import NewJob
from worker_service.services.session import Session
from worker_service.settings.config import Settings
from worker_service.settings.loading import load_settings


def with_proxy(settings: Settings, table: str) -> Settings:
    file = settings.database.with_name("pagemill.toml")
    file.write_text(f'database = "{settings.database}"\nlog_format = "json"\n{table}')
    return load_settings(environ={"WORKER_CONFIG": str(file)})


def status(site: httpx.Client, path: str, *users: str) -> int:
    headers = [*PAGE.items(), *(("X-Forwarded-User", user) for user in users)]
    return site.get(path, headers=headers).status_code


def test_the_example_in_the_manual_gives_each_user_their_role_and_owner(settings: Settings, session: Session) -> None:
    manual = Path("docs/http.md").read_text("utf-8")
    [example] = [block for block in re.findall(r"```toml\n(.*?)```", manual, re.DOTALL) if "[proxy]" in block]
    tables = example[example.index("[proxy]") :]
    assert tomllib.loads(example)["web_listen"].startswith("/run/")
    of_bob = session.store.intake.enqueue(NewJob("ocr_pages", owner="bob")).job_id
    socket_path = settings.database.with_name("web.sock")

    with (
        served(with_proxy(settings, tables), socket_path) as _,
        by_unix_socket(socket_path) as site,
    ):
        assert [status(site, "/system", user) for user in ("alice@example.org", "bob@example.org")] == [200, 403]
        assert status(site, f"/jobs/{of_bob}", "bob@example.org") == 200
        assert status(site, f"/jobs/{of_bob}", "carol@example.org") == 404
        assert status(site, "/jobs/new", "carol@example.org") == 403
        assert status(site, "/", "alice@example.org", "mallory") == 303
        assert "carol@example.org" in site.get("/session/me", headers={"X-Forwarded-User": "carol@example.org"}).text


def test_the_header_counts_only_from_the_address_of_the_proxy_and_for_known_users(settings: Settings) -> None:
    with (
        served(with_proxy(settings, '[proxy]\naddress = "10.9.9.9"\nusers = {"*" = "admin"}')) as address,
        httpx.Client(base_url=address) as site,
    ):
        assert status(site, "/", "alice") == 303

    with (
        served(with_proxy(settings, '[proxy]\naddress = "127.0.0.1"\nusers = {alice = "admin"}')) as address,
        httpx.Client(base_url=address) as site,
    ):
        assert [status(site, "/", user) for user in ("alice", "bob", "")] == [200, 403, 303]


def test_a_form_needs_its_csrf_token_behind_a_trusted_proxy_too(settings: Settings) -> None:
    with (
        served(with_proxy(settings, '[proxy]\naddress = "127.0.0.1"\nusers = {alice = "admin"}')) as address,
        httpx.Client(base_url=address, headers={"X-Forwarded-User": "alice", **PAGE}) as site,
    ):
        form = {"scope": "type", "name": "ocr_pages"}
        assert site.post("/workers/pause", data=form).status_code == 403
        token = re.search(r'name="csrf" value="([^"]+)"', site.get("/workers").text)
        assert token is not None
        assert site.post("/workers/pause", data=form | {"csrf": token[1]}).status_code == 303


@pytest.mark.parametrize(
    "table", ['users = {alice = "admin"}', 'address = "here"\nusers = {}', 'address = "::1"\nusers = {alice = "root"}']
)
def test_a_proxy_that_is_half_configured_is_refused(settings: Settings, table: str) -> None:
    with pytest.raises(ConfigError):
        with_proxy(settings, f"[proxy]\n{table}")
