"""Runs `pagemill` commands from JSON lines: `python -m tests.systemd.shell_server`

The answer is a JSON line with the exit code and the output. Each command runs in a fork as the user of the service:
to start a Python costs a tenth of a second.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import sys

import apsw
import click
from click.testing import CliRunner

from worker_service.cli import pagemill


def main() -> None:
    for line in sys.stdin:
        what = json.loads(line)
        if "words" in what:
            # Each verb is imported once, and not by each child.
            pagemill.get_command(click.Context(pagemill), what["words"][0])
        answers, for_answer = os.pipe()
        child = os.fork()
        if child == 0:
            _become_the_services_user()
            with os.fdopen(for_answer, "w") as out:
                json.dump(_done(**what), out)
            os._exit(0)
        os.close(for_answer)
        with os.fdopen(answers) as pipe:
            answer = pipe.read()
        os.waitpid(child, 0)
        print(answer, flush=True)


def _become_the_services_user() -> None:
    user = pwd.getpwnam("pagemill")
    os.setgroups([grp.getgrnam("pagemill").gr_gid])
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
    # As the unit's own.
    os.umask(0o007)


def _done(words: list[str] | None = None, question: str = "") -> tuple[int, str, str]:
    """Run a command of pagemill, or a statement, whose rows are printed as `sqlite3` does."""
    if words is not None:
        result = CliRunner().invoke(pagemill, words)
        return result.exit_code, result.stdout, result.output
    connection = apsw.Connection(os.environ["WORKER_DATABASE"])
    connection.set_busy_timeout(5000)
    rows = ["|".join("" if value is None else str(value) for value in row) for row in connection.execute(question)]
    connection.close()
    return 0, "\n".join(rows), ""


if __name__ == "__main__":
    main()
