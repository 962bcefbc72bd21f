"""``mainspring completions``: complete jobs by their completion tokens, or by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import App, Parameter

from mainspring.api.completions import AnswerCompletion, CompleteJob, CompletionFailure, CompletionProgress
from mainspring.cli.calls import NOTHING, Given, takes
from mainspring.cli.display import EXIT_DONE, print_json
from mainspring.cli.operations import Handle  # noqa: TC001 - cyclopts reads the annotations
from mainspring.cli.options import LOCAL, Json, ServerOptions
from mainspring.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

Token = Annotated[
    str,
    Parameter(
        help="The completion token. - reads it from standard input, so that no list of processes shows it.",
        allow_leading_hyphen=True,
    ),
]
ResultOption = Annotated[str, Parameter(help="The result as JSON; null by default.")]
Message = Annotated[str, Parameter(help="Why the work failed.")]
TypeOption = Annotated[str, Parameter(name="--type", help="The type of the failure.")]
NoRetry = Annotated[bool, Parameter(name="--no-retry", negative="", help="Do not try the job again.")]

completions = App(name="completions", help="Complete jobs that await another system's answer.")


@completions.command
def complete(
    token: Token, /, *, result: ResultOption = "null", json: Json = False, server: ServerOptions = LOCAL
) -> int:
    """Let the job of a completion token succeed.

    EXAMPLES
      mainspring completions complete "$TOKEN" --result '{"approved": true}'

    EXIT CODES
      0 completed, 1 the answer is late, or another one came before, 3 no server, 4 no such token
    """
    return _answer(AnswerCompletion(_read(token), result=_value(result)), json=json, server=server)


@completions.command
def fail(
    token: Token,
    message: Message,
    /,
    *,
    kind: TypeOption = "ExternalFailure",
    no_retry: NoRetry = False,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Let the attempt of a completion token fail. The job is tried again by its retry policy.

    EXAMPLES
      mainspring completions fail "$TOKEN" "the document cannot be read" --no-retry

    EXIT CODES
      0 done, 1 the answer is late, or another one came before, 3 no server, 4 no such token
    """
    failure = CompletionFailure(message, kind, retry=not no_retry)
    return _answer(AnswerCompletion(_read(token), failure=failure), json=json, server=server)


@completions.command
def progress(
    token: Token,
    done: Annotated[int, Parameter(help="How much is done.")],
    total: Annotated[int, Parameter(help="How much there is.")],
    /,
    *,
    text: Annotated[str, Parameter(help="A text for people.")] = "",
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Report how far the work of a completion token is. It is a sign of life, too.

    EXIT CODES
      0 noted, 1 the token is not open any more, 3 no server, 4 no such token
    """
    report = CompletionProgress(done, total, text)
    return _answer(AnswerCompletion(_read(token), progress=report), json=json, server=server)


@completions.command
def heartbeat(token: Token, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Give a sign of life, for a completion token with a heartbeat.

    EXIT CODES
      0 noted, 1 the token is not open any more, 3 no server, 4 no such token
    """
    return _answer(AnswerCompletion(_read(token), heartbeat=True), json=json, server=server)


@completions.command
@takes(CompleteJob)
def finish(
    handle: Handle,
    /,
    *,
    result: Annotated[str | None, Parameter(help="The result as JSON; null by default.")] = None,
    error: Annotated[
        str | None, Parameter(help="Let the attempt fail with this message, in place of a result.")
    ] = None,
    no_retry: NoRetry = False,
    given: Given = NOTHING,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Complete a job by hand, in place of the system that has its token.

    EXAMPLES
      mainspring completions finish H:node:1000000000001 --result '{"approved": true}' --reason "the reviewer has called"

    EXIT CODES
      0 done, 1 the job awaits no completion, 3 no server, 4 no such job
    """
    if error is None and no_retry:
        raise UsageError("--no-retry is for a failure: give --error with its message, or leave it out")
    if error is not None:
        if result is not None:
            raise UsageError("a job either has a result or fails: give --result or --error")
        request = CompleteJob(handle, failure=CompletionFailure(error, retry=not no_retry), **given)
    else:
        request = CompleteJob(handle, result=_value("null" if result is None else result), **given)
    return _answer(request, json=json, server=server)


def _answer(request: AnswerCompletion | CompleteJob, *, json: bool, server: ServerOptions) -> int:
    """Send a request, and print the answer. The result is a value of its own, and no name as commands read them."""
    params = msgspec.json.decode(msgspec.json.encode(request))
    answer: dict[str, Any] = server.client().call(request.call, params)
    if json:
        print_json(answer)
    else:
        _print(answer)
    return EXIT_DONE


def _print(answer: Mapping[str, Any]) -> None:
    addition = ", as before" if answer["repeated"] else ""
    print(f"token {answer['number']}: {answer['state']}{addition}")


def _read(token: str) -> str:
    return input().strip() if token == "-" else token  # noqa: S105 - the name of standard input


def _value(text: str) -> msgspec.Raw:
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise UsageError(f"--result is no JSON: {error}; a text has quotes of its own, such as '\"done\"'") from None
    return msgspec.Raw(text.encode())
