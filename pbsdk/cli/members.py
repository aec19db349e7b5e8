"""`pbsdk members`: who may ask at a gate, and how much."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pbsdk.cli._common import AsJson, say, show
from pbsdk.cli._help import Command, Group, new_app

__all__ = ["members"]

members = new_app(name="members", cls=Group)

File = Annotated[Path, typer.Argument(help="The file of members, for `pbsdk serve --members`.", show_default=False)]
Name = Annotated[str, typer.Argument(help="The member's name, as the audit shows it.", show_default=False)]
Passes = Annotated[
    int | None, typer.Option(min=0, help="Forward passes in all; no limit if left out.", show_default=False)
]
Tokens = Annotated[int | None, typer.Option(min=0, help="Tokens read in all.", show_default=False)]
Money = Annotated[float | None, typer.Option(min=0, help="Money in all, at the server's prices.", show_default=False)]
PerMinute = Annotated[int | None, typer.Option(min=1, help="Requests in any 60 seconds.", show_default=False)]


@members.callback()
def _about() -> None:
    """Make, list and revoke the tokens of a team that shares one model and one budget (`pbsdk serve --members`).

    Examples:
        pbsdk members add team.json ana --passes 5000 --per-minute 60
        pbsdk members list team.json
        pbsdk members change team.json ana --passes 8000
        pbsdk members revoke team.json ana
    """


@members.command(cls=Command)
def add(  # noqa: PLR0913 - a command's options are its parameters
    file: File,
    name: Name,
    *,
    passes: Passes = None,
    tokens: Tokens = None,
    money: Money = None,
    per_minute: PerMinute = None,
    as_json: AsJson = False,
) -> None:
    """Give a member a token and an allowance, and print the token: it is shown only now.

    The file keeps the token's hash. A name that was revoked gets a new token; what it had used stays used.

    Examples:
        pbsdk members add team.json ana --passes 5000 --per-minute 60
        pbsdk members add team.json ben --tokens 1000000 --json
    """
    from pbsdk.metering.members import MembersFile

    token = MembersFile(file).add(name, passes=passes, tokens=tokens, money=money, per_minute=per_minute)
    if not as_json:
        say(f"{name} sets PBSDK_API_KEY to this token; it can't be shown again:", err=True)
    show(token, {"name": name, "token": token}, as_json=as_json)


@members.command("list", cls=Command)
def show_list(file: File, *, as_json: AsJson = False) -> None:
    """List members and their limits. What they have used is in the run's audit.

    Examples:
        pbsdk members list team.json
        pbsdk members list team.json --json
    """
    from pbsdk.formatting import aligned, limit
    from pbsdk.metering.members import MembersFile

    entries = MembersFile.of(file).entries().values()
    lines = [["member", "passes", "tokens", "money", "requests a minute", "made", "revoked"]]
    lines += [
        [
            entry.name,
            *(limit(most) for most in (entry.passes, entry.tokens, entry.money, entry.per_minute)),
            entry.made,
            entry.revoked or "-",
        ]
        for entry in entries
    ]
    show(aligned(lines), [entry.model_dump(exclude={"token_sha256"}) for entry in entries], as_json=as_json)


@members.command(cls=Command)
def change(  # noqa: PLR0913 - a command's options are its parameters
    file: File,
    name: Name,
    *,
    passes: Passes = None,
    tokens: Tokens = None,
    money: Money = None,
    per_minute: PerMinute = None,
    as_json: AsJson = False,
) -> None:
    """Set limits of a member; those left out stay. A running server takes them from the next request on.

    Examples:
        pbsdk members change team.json ana --passes 8000
    """
    from pbsdk.metering.members import MembersFile

    given = {"passes": passes, "tokens": tokens, "money": money, "per_minute": per_minute}
    entry = MembersFile.of(file).change(name, **{key: value for key, value in given.items() if value is not None})
    show(f"changed {entry.name}", entry.model_dump(exclude={"token_sha256"}), as_json=as_json)


@members.command(cls=Command)
def revoke(file: File, name: Name, *, as_json: AsJson = False) -> None:
    """Take a member's token away; a running server refuses it from the next request on.

    Examples:
        pbsdk members revoke team.json ana
    """
    from pbsdk.metering.members import MembersFile

    entry = MembersFile.of(file).revoke(name)
    show(f"revoked {entry.name}", entry.model_dump(exclude={"token_sha256"}), as_json=as_json)
