"""`pagemill then`: follow-up jobs of documents."""

from __future__ import annotations

from collections.abc import Sequence

import click

from worker_service.cli import VerbGroup, output
from worker_service.cli.context import DocumentId, Function, Invocation, completes, verb
from worker_service.jobs.documents import DeferredAction, OnEnd
from worker_service.jobs.follow_ups import read_action
from worker_service.services import enqueue, follow_ups


def _rule(function: Function) -> Function:
    click.option("--on-failure", is_flag=True, help="Run it after a failure instead of after a success.")(function)
    click.option("--owner", required=True, metavar="NAME", shell_complete=completes("owner"), help="Their owner.")(
        function
    )
    return click.argument("action", metavar="TYPE[=JSON]")(function)


@verb
@click.argument("document", metavar="[DOCUMENT]", required=False, type=DocumentId())
def ls(call: Invocation, document: int | None) -> None:
    """\b
    pagemill then ls
    pagemill then ls document:7

    List the follow-up jobs of each owner's documents; or of one document, with the jobs that were started.
    """
    if document is None:
        rules = call.session.library.actions_of_owners()
        if not call.printed_json({"items": rules}):
            output.show_table(("OWNER", *_HEADINGS), [(one.owner, *_row(one)) for one in rules])
        return
    asked = follow_ups.actions_of_document(call.session, document)
    if not call.printed_json({"items": asked}):
        rows = [(one.generation, *_row(one), output.to_the_second(one.fired_at), one.job_id) for one in asked]
        output.show_table(("GENERATION", *_HEADINGS, "STARTED (UTC)", "JOB"), rows)


@verb
@_rule
def add(call: Invocation, action: str, owner: str, on_failure: bool) -> None:
    """\b
    pagemill then add --owner alice 'webhook={"url": "https://example.com/read"}'
    pagemill then add --owner alice --on-failure call_alice

    Enqueue this job each time that a document of this owner is read from now on.
    """
    is_new = follow_ups.add_standing_action(call.session, owner, action, on_failure=on_failure)
    for sentence in enqueue.unknown_type_warnings(call.session, [read_action(action)]):
        output.say(sentence)
    if not call.printed_json({"owner": owner, "is_new": is_new}) and not is_new:
        output.say("nothing was added: the owner has this rule already")


@verb
@_rule
def rm(call: Invocation, action: str, owner: str, on_failure: bool) -> None:
    """\b
    pagemill then rm --owner alice 'webhook={"url": "https://example.com/read"}'

    Remove a rule. Jobs that it has started continue.
    """
    follow_ups.remove_standing_action(call.session, owner, action, on_failure=on_failure)
    call.printed_json({"owner": owner})


_HEADINGS = ("AFTER", "TYPE", "PAYLOAD")


def _row(one: DeferredAction) -> Sequence[object]:
    return ("failure" if one.on_end is OnEnd.FAILURE else "success", one.job_type, one.payload)


then = VerbGroup(
    "then",
    "\b\npagemill then ls\npagemill then add --owner alice call_alice\n\n"
    "Manage the follow-up jobs of each owner's documents. For a single document, use `pagemill ingest … --then TYPE`.",
    ls,
    add,
    rm,
)
