"""`pagemill mcp`, called by the client of the package mcp."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.cli.conftest import Run
from tests.cli.stored_documents import Shelf

if TYPE_CHECKING:
    from mcp import Client

READING = {"search", "fetch", "list_documents", "read_pages", "tables", "page_image"}

Ask = Callable[..., Awaitable[Any]]


def ask(talk: Callable[[Client, Ask], Awaitable[Any]], *options: str) -> Any:
    """Run `talk` with a function that calls a tool and returns its structured content, or its error message."""
    # The import takes half a second, which each worker of pytest would need to collect the tests.
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters

    command = StdioServerParameters(
        command=sys.executable, args=["-m", "worker_service.cli", "mcp", *options], env={**os.environ}
    )

    async def call(client: Client, tool: str, **arguments: object) -> Any:
        answer = await client.call_tool(tool, arguments)
        return answer.content[0].text if answer.is_error else answer.structured_content  # type: ignore[union-attr]

    async def main() -> Any:
        async with Client(command) as client:
            return await talk(client, lambda tool, **arguments: call(client, tool, **arguments))

    # Tests of the browser leave a running event loop in this thread.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, main()).result()


def test_an_assistant_searches_and_fetches_pages_documents_and_tables(shelf: Shelf) -> None:
    shelf.read("climate.pdf", "the climate is a risk", "another page")
    shelf.with_tables("sales.pdf", [["EUR", "2024"], ["Sales", "310"]])

    async def talk(_: Client, tool: Ask) -> list[Any]:
        return [
            await tool("search", query="is the climate a risk"),
            await tool("fetch", id="1:2"),
            await tool("fetch", id="1"),
            await tool("list_documents", name="sales"),
            await tool("read_pages", document=2, first=1, last=5),
            await tool("tables", document=2, first=1, last=1),
        ]

    hits, page, document, listed, pages, tables = ask(talk)

    [best] = [document for document in hits["results"] if document["id"] == "1:1"]
    assert (best["title"], best["has_all_words"]) == ("climate.pdf, page 1", True)
    assert best["url"].endswith("/documents/1?page=1")
    assert (page["title"], page["text"]) == ("climate.pdf, page 2", "another page")
    assert document["text"] == "the climate is a risk\fanother page"
    assert [(item["id"], item["name"]) for item in listed["documents"]] == [(2, "sales.pdf")]
    assert [item["page"] for item in pages["pages"]] == [1]
    assert tables["tables"] == [{"page": 1, "rows": [["EUR", "2024"], ["Sales", "310"]]}]


def test_an_assistant_of_an_owner_sees_only_that_owner_and_adds_only_with_operate(shelf: Shelf, tmp_path: Path) -> None:
    shelf.read("ann.pdf", "the climate", owner="ann")
    shelf.read("bob.pdf", "the climate", owner="bob")
    (tmp_path / "new.txt").write_text("new")

    async def talk(client: Client, tool: Ask) -> tuple[Any, ...]:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        return tools, await tool("search", query="climate"), await tool("fetch", id="2"), await tool("fetch", id="x")

    tools, hits, other_document, invalid_id = ask(talk, "--owner", "ann")
    assert tools == READING
    assert [document["id"] for document in hits["results"]] == ["1:1"]
    assert "there is no document 2" in other_document
    assert "use 7 for document 7" in invalid_id

    async def add(client: Client, tool: Ask) -> tuple[Any, Any]:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        return tools, await tool("add_document", source=str(tmp_path / "new.txt"))

    tools, added = ask(add, "--owner", "ann", "--operate")
    assert tools == READING | {"add_document"}
    assert (added["batch"], added["jobs"]) == (1, 1)


def test_without_the_package_mcp_says_what_to_install(run: Run, monkeypatch: Any) -> None:
    monkeypatch.delitem(sys.modules, "worker_service.services.assistant_tools", raising=False)
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)

    assert "pip install 'pagemill[mcp]'" in run("mcp", fails=69).stderr
