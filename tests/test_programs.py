from __future__ import annotations

import json
import tomllib
from pathlib import Path

import msgspec
import pytest

from worker_service.base.errors import ConfigError
from worker_service.jobs.payloads import PayloadCheck
from worker_service.settings.commands import PlaceholderError, Program, read_program

ROOT = Path(__file__).resolve().parent.parent


def fault_of(arguments: list[object], payload: dict[str, object]) -> str | None:
    program = read_program({"argv": ["/bin/x", *arguments]}, "commands.x")
    return PayloadCheck(json.dumps(program.schema())).fault(json.dumps(payload))


def filled(arguments: list[object], payload: object) -> list[str]:
    program = read_program({"argv": ["/bin/x", *arguments]}, "commands.x")
    job = {"payload": payload, "account": "ann", "platform": "web", "job_type": "x", "job_id": "7"}
    return program.arguments(job)[1:]


@pytest.mark.parametrize(
    ("arguments", "payload", "argv"),
    [
        (["{}", "{a: 1}", "${}", "%{ x}", "[{.id}]"], {}, ["{}", "{a: 1}", "${}", "%{ x}", "[{.id}]"]),
        (["%{{http_code}}", "{{payload.a}}"], {"a": 1}, ["%{http_code}", "{payload.a}"]),
        (["{job_type} on {platform}: {job_id} of {account}"], {}, ["x on web: 7 of ann"]),
        (["{payload.a.b}", "{payload.y}", "{payload.n}"], {"a": {"b": ""}, "y": True, "n": 1.5}, ["", "true", "1.5"]),
        (["{payload.a}"], {"a": "x; rm -rf $HOME"}, ["x; rm -rf $HOME"]),
        (["{payload.a:option}", "-{payload.b}", "x{payload.a}"], {"a": "--a", "b": "-v"}, ["--a", "--v", "x--a"]),
        # One or none.
        (["a{payload.a?}", "b{payload.b?}", "c{payload.c?}"], {"a": 1, "b": None}, ["a1"]),
        ([["--limit", "{payload.limit?}"], "end"], {"limit": 3}, ["--limit", "3", "end"]),
        ([["--limit", "{payload.limit?}"], "end"], {"limit": None}, ["end"]),
        # Lists.
        (["{payload.ids*}", "end"], {"ids": [1, "two", True]}, ["1", "two", "true", "end"]),
        (["--id={payload.ids+}"], {"ids": [1, 2]}, ["--id=1", "--id=2"]),
        ([["--ids", "{payload.ids*}"]], {"ids": [1, 2]}, ["--ids", "1", "2"]),
        ([["--ids", "{payload.ids*}"]], {"ids": []}, []),
        ([["--ids", "{payload.ids*}"]], {"ids": None}, []),
        ([["--ids", "{payload.ids*}"]], {}, []),
        (["{payload.ids+}"], {"ids": "one"}, ["one"]),
        (["{payload.kind}-{payload.ids+}"], {"kind": "k", "ids": [1, 2]}, ["k-1", "k-2"]),
        # JSON, in which null and absent differ.
        (["{payload}"], {"a": [1, None], "b": "ü"}, ['{"a":[1,null],"b":"ü"}']),
        (["{payload.a:json}", "{payload.b:json?}", "{payload.c:json?}"], {"a": [{}], "b": None}, ["[{}]", "null"]),
        (["{payload.all:json*}"], {"all": [{"k": 1}, "x"]}, ['{"k":1}', '"x"']),
    ],
)  # fmt: skip
def test_placeholders_are_replaced(arguments: list[object], payload: dict[str, object], argv: list[str]) -> None:
    assert filled(arguments, payload) == argv
    # Nothing is refused where it is enqueued that the program takes.
    assert fault_of(arguments, payload) is None


@pytest.mark.parametrize(
    ("argument", "value", "sentence"),
    [
        ("{payload.a}", "--output=/etc/passwd", "would become the option"),
        ("{payload.a}", -1, "would become the option"),
        ("{payload.a*}", ["ok", "-x"], "would become the option"),
        ("{payload.a?}{payload.a?}", "-x", "would become the option"),
        ("{payload.a}", None, "payload.a is null"),
        ("{payload.b}", 1, "payload.b is absent"),
        ("{payload.b+}", 1, "payload.b is absent"),
        ("{payload.b:json}", 1, "payload.b is absent"),
        ("{payload.a+}", [], "at least one"),
        ("{payload.a}", ["two", "values"], "is a list"),
        ("{payload.a}", {"k": 1}, "is an object"),
        ("{payload.a*}", [["deep"]], "is a list"),
        ("{payload.a*}", [None], "is null"),
        ("{payload.a}", "nul\0", "cannot be passed"),
        ("{payload.a.b}", "no table", "payload.a.b is absent"),
    ],
)
def test_a_job_that_does_not_fit_is_refused(argument: str, value: object, sentence: str) -> None:
    with pytest.raises(PlaceholderError, match=sentence):
        filled([argument], {"a": value})
    # What is not there is missed before the job is.
    assert fault_of([argument], {"a": value}) is not None or not sentence.startswith("payload.b is")
    assert fault_of([argument], {"a": value}) is not None or sentence != "payload.a is null"


def test_values_that_a_program_needs_are_required_by_the_schema() -> None:
    arguments: list[object] = ["{payload.who}", ["--of", "{payload.at.home}"]]

    assert fault_of(arguments, {"who": "ann", "at": {"home": 1}}) is None
    assert "who" in str(fault_of(arguments, {"at": {"home": 1}}))
    assert "home" in str(fault_of(arguments, {"who": "ann", "at": {}}))
    assert fault_of(["{account}", "{payload}"], {}) is None


def test_a_list_on_standard_input_has_a_line_for_each_item() -> None:
    program = read_program({"argv": ["/bin/x"], "stdin": "{payload.urls*}"}, "commands.x")

    assert program.input({"payload": {"urls": ["-a", "b"]}}) == "-a\nb\n"
    assert program.input({"payload": {}}) == ""


WRONG: list[tuple[dict[str, object], str]] = [
    ({}, "commands.x: argv is missing: it is a list"),
    ({"argv": []}, "commands.x.argv is a list"),
    ({"argv": "/bin/ls"}, "commands.x.argv is a list"),
    ({"argv": ["ls"]}, "the program's full path"),
    ({"argv": [["/bin/ls"]]}, "the program's full path"),
    ({"argv": ["/opt/{payload.program}"]}, "without placeholders"),
    ({"argv": ["/bin/ls", 3]}, "3 is no argument"),
    ({"argv": ["/bin/ls", []]}, "is no argument"),
    ({"argv": ["/bin/ls", ["-a", ["-b"]]]}, "is no argument"),
    ({"argv": ["/bin/ls", "{acount}"]}, "{acount} is not known: did you mean {account}?"),
    ({"argv": ["/bin/ls", "{paylod.id}"]}, "did you mean {payload.id}?"),
    ({"argv": ["/bin/ls", "{user}"]}, "{user} is not known: there are {payload}"),
    ({"argv": ["/bin/ls", "%{http_code}"]}, "To pass it as it is: {{http_code}}"),
    ({"argv": ["/bin/ls", "{account.name}"]}, "is not known"),
    ({"argv": ["/bin/ls", "{payload.id:int}"]}, "is no placeholder"),
    ({"argv": ["/bin/ls", "{payload.id**}"]}, "is no placeholder"),
    ({"argv": ["/bin/ls", "{payload.}"]}, "is no placeholder"),
    ({"argv": ["/bin/ls", "{payload*}"]}, "always there"),
    ({"argv": ["/bin/ls", "{payload.a*}{payload.b*}"]}, "only one can be spread"),
    ({"stdin": True}, "commands.x.stdin is what the program reads"),
    ({"stdin": "{acount}"}, "commands.x.stdin: {acount} is not known"),
    ({"cwdd": "/srv"}, "there is no setting 'cwdd': did you mean cwd?"),
    ({"timout": "2h"}, "there is no setting 'timout': did you mean timeout?"),
    ({"colour": 1}, "the settings are argv, stdin, timeout"),
    ({"timeout": "soon"}, "commands.x.timeout is a length of time"),
    ({"timeout": 0}, "commands.x.timeout is a length of time"),
    ({"memory": "much"}, "commands.x.memory is a size such as 512 MiB"),
    ({"memory": "1 MiB"}, "at least 16 MiB"),
    ({"memory": 512}, "commands.x.memory is a size"),
    ({"files": "*.json"}, "commands.x.files is a list of patterns"),
    ({"files": ["../x"]}, "a list of patterns of files in the job's directory"),
    ({"files": ["a/.."]}, "a list of patterns"),
    ({"files": ["/srv/x"]}, "a list of patterns"),
    ({"files": ["x"], "cwd": "/srv"}, "leave one of them out"),
    ({"done": 0}, "commands.x.done is a list of exit codes"),
    ({"retry": [True]}, "commands.x.retry is a list of exit codes"),
    ({"permanent": [256]}, "commands.x.permanent is a list of exit codes"),
    ({"done": [0, 3], "permanent": [3]}, "exit code 3 is done"),
    ({"env": "PATH"}, "commands.x.env is a list of names"),
    ({"env": ["KEY=secret"]}, "commands.x.env is a list of names"),
    ({"cwd": "var"}, "commands.x.cwd is a full path such as /srv/media, not 'var'"),
    ({"write": ["var"], "sandbox": "strict"}, "commands.x.write is a list of full paths"),
    ({"write": ["/var"]}, "commands.x.write is for a program in a sandbox"),
    ({"network": False}, "commands.x.network is for a program in a sandbox"),
    ({"network": "yes", "sandbox": "strict"}, "commands.x.network is true or false"),
    ({"sandbox": "loose"}, "commands.x.sandbox is off or strict"),
    ({"class": "gpu"}, "commands.x.class is io or cpu"),
    ({"max_running": "2"}, "commands.x.max_running is a number of jobs"),
    ({"at_most_once": 1}, "commands.x.at_most_once is true or false"),
]


@pytest.mark.parametrize(("table", "sentence"), WRONG)
def test_an_invalid_table_is_refused(table: dict[str, object], sentence: str) -> None:
    whole = table if "argv" in table or not table else {"argv": ["/bin/ls"], **table}

    with pytest.raises(ConfigError) as refused:
        read_program(whole, "commands.x")

    assert sentence in str(refused.value)


def test_the_example_settings_have_every_key_with_a_valid_value() -> None:
    example = (
        (ROOT / "systemd/pagemill.toml").read_text().split("# [commands.scrape_account]")[1].split("# [retries.")[0]
    )
    table = tomllib.loads("\n".join(line.removeprefix("# ") for line in example.splitlines()[1:]))

    # Each of the two says where files are, and only one can.
    in_its_own, elsewhere = table | {"sandbox": "strict"}, table | {"sandbox": "strict"}
    del in_its_own["cwd"], elsewhere["files"]

    assert table.keys() == {field.encode_name for field in msgspec.structs.fields(Program)}
    assert read_program(in_its_own, "commands.x").files == ("*.json", "media/*")
    assert read_program(elsewhere, "commands.x").cwd == Path("/srv/media")
