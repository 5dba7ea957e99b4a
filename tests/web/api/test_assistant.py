from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.cli.stored_documents import Shelf
from tests.web.conftest import bearing, served, settings_for
from worker_service.jobs.tokens import TokenScope
from worker_service.services import tokens
from worker_service.services.session import open_session
from worker_service.settings.config import Settings

if TYPE_CHECKING:
    from mcp import Client

READING = {"search", "fetch", "list_documents", "read_pages", "tables", "page_image"}


@pytest.fixture
def address(settings: Settings) -> Iterator[str]:
    with served(settings_for(settings.database, web_endpoints="mcp")) as address:
        yield address


def token(settings: Settings, scope: TokenScope, owner: str | None = None) -> str:
    with closing(open_session(settings, actor="test")) as session:
        return tokens.create_token(session, f"{scope}-{owner}", [scope], owner=owner).text


@asynccontextmanager
async def connected(address: str, token: str) -> AsyncIterator[Client]:
    # Importing them takes most of a second, which each worker would pay when it collects the tests.
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=30) as http,
        Client(streamable_http_client(f"{address}/mcp", http_client=http)) as client,
    ):
        yield client


def ask(address: str, token: str, talk: Callable[[Client], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with connected(address, token) as client:
            return await talk(client)

    # In a thread: tests of the browser leave a running event loop in this one.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, main()).result()


async def names_of_tools(client: Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools()).tools}


def test_a_reading_token_searches_only_the_documents_of_its_owner(
    address: str, settings: Settings, shelf: Shelf
) -> None:
    shelf.read("ann.pdf", "the climate", owner="ann")
    others = shelf.read("bob.pdf", "the climate", owner="bob")

    async def talk(client: Client) -> tuple[Any, ...]:
        found = await client.call_tool("search", {"query": "climate"})
        pages = [await client.call_tool("fetch", {"id": f"{document_id}:1"}) for document_id in (others, 999)]
        return await names_of_tools(client), found.structured_content, *pages

    tools, found, page, unknown_page = ask(address, token(settings, TokenScope.READ, "ann"), talk)

    assert tools == READING
    assert [result["title"] for result in found["results"]] == ["ann.pdf, page 1"]
    assert page.is_error
    assert f"there is no document {others}" in page.content[0].text
    assert page.content[0].text == unknown_page.content[0].text.replace("999", str(others))


def test_concurrent_calls_keep_their_owners_and_scopes_apart(address: str, settings: Settings, shelf: Shelf) -> None:
    owners = ("ann", "bob")
    document_id_by_owner = {owner: shelf.read(f"{owner}.pdf", "the climate", owner=owner) for owner in owners}
    token_by_owner = {"ann": token(settings, TokenScope.READ, "ann"), "bob": token(settings, TokenScope.OPERATE, "bob")}
    both = asyncio.Barrier(len(owners))

    async def talk(owner: str) -> None:
        other = next(owner_name for owner_name in owners if owner_name != owner)
        async with connected(address, token_by_owner[owner]) as client:
            await both.wait()
            searches = [client.call_tool("search", {"query": "climate"}) for _ in range(12)]
            fetches = [client.call_tool("fetch", {"id": f"{document_id_by_owner[other]}:1"}) for _ in range(12)]
            found, fetched = await asyncio.gather(asyncio.gather(*searches), asyncio.gather(*fetches))
            tools = await names_of_tools(client)
        titles = {result["title"] for search in found for result in search.structured_content["results"]}
        assert (titles, all(fetch_result.is_error for fetch_result in fetched)) == ({f"{owner}.pdf, page 1"}, True)
        assert ("add_document" in tools) is (owner == "bob")

    async def main() -> None:
        await asyncio.gather(*(talk(owner) for owner in owners))

    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, main()).result()


def test_a_token_to_operate_adds_documents_but_an_owner_s_names_no_file_of_the_server(
    address: str, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "new.txt").write_text("new")

    async def add(client: Client) -> tuple[Any, ...]:
        return await names_of_tools(client), await client.call_tool("add_document", {"source": str(tmp_path)})

    tools, added = ask(address, token(settings, TokenScope.OPERATE), add)
    _, refused = ask(address, token(settings, TokenScope.OPERATE, "ann"), add)

    assert tools == READING | {"add_document"}
    assert (added.structured_content["batch"], added.structured_content["jobs"]) == (1, 1)
    assert refused.is_error
    assert "cannot read files on the server" in refused.content[0].text


def test_the_assistant_needs_a_token_and_the_setting(address: str, settings: Settings) -> None:
    assert httpx.post(f"{address}/mcp", json={}).status_code == 401
    headers = bearing(token(settings, TokenScope.READ))
    with served(settings) as other:
        assert httpx.post(f"{other}/mcp", json={}, headers=headers).status_code == 404
