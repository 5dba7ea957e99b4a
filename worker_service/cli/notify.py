"""`pagemill notify`: list and test the notification rules in the settings."""

from __future__ import annotations

import click

from worker_service.cli import VerbGroup
from worker_service.cli.context import Invocation, name_completer, verb
from worker_service.services import notifications as operations


@verb
def ls(call: Invocation) -> None:
    """\b
    pagemill notify ls

    List the rules, with the number of events that each still collects or holds back during quiet hours.
    """
    call.show_items(
        operations.list_rules(call.session),
        ("NAME", "TO", "WAITING", "WHEN"),
        lambda rule: (rule.name, rule.to, rule.waiting, ", ".join(rule.when)),
        note_if_empty="there are no notification rules: see [[notify]] in docs/notify.md",
    )


@verb
@click.argument(
    "name",
    metavar="[NAME]",
    required=False,
    shell_complete=name_completer(lambda call, _: [rule.name for rule in call.settings.notify]),
)
def test(call: Invocation, name: str | None) -> None:
    """\b
    pagemill notify test
    pagemill notify test ops

    Send a test message to each address of a rule, or of all rules. Prints the id of each message's job; `pagemill wait
    ID` shows whether it was delivered.
    """
    sent = operations.send_test(call.session, name)
    call.show_result({"items": sent}, *(str(message.job_id) for message in sent))


notify = VerbGroup(
    "notify",
    "\b\npagemill notify ls\npagemill notify test ops\n\n"
    "List and test the notification rules: each [[notify]] in the settings. The daemon and `pagemill schedules tick` "
    "send the messages.",
    *(ls, test),
)
