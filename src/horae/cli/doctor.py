"""`horae doctor`: what is wrong with a service, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horae.cli.backup import DatabaseOption, StateOption
from horae.cli.options import OutputOption
from horae.cli.output import Output, print_csv, print_json, print_rich
from horae.client.address import default_state

if TYPE_CHECKING:
    from horae.service.doctor import Finding


def command(
    state: StateOption = None,
    database: DatabaseOption = None,
    end_orphans: Annotated[
        bool,
        typer.Option("--end-orphans", help="Stop attempts that run and that the journal does not know (admins only)."),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Look at the journal, its mark, checkpoints, permissions and disk of a service, running or not. Changes nothing.

    Ends with exit code 1 if something is wrong.
    """
    from horae.service.doctor import examine

    folder = state or default_state()
    findings = [*examine(folder, database), *_running(folder, end_orphans)]
    records = [{"about": found.about, "ok": found.ok, "what": found.what} for found in findings]
    if output is Output.JSON:
        print_json({"ok": all(found.ok for found in findings), "findings": records})
    elif output is Output.CSV:
        print_csv(records)
    else:
        for found in findings:
            print_rich(f"{'ok   ' if found.ok else 'WRONG'}  {found.about}: {found.what}")
    if not all(found.ok for found in findings):
        raise typer.Exit(1)


def _running(state: Path, end_orphans: bool) -> list[Finding]:
    """What a service that runs on the folder says of itself."""
    from horae.core.errors import UserError
    from horae.service.doctor import Finding

    try:
        answer = _ask(state, "GET", "/healthz")
        if answer is None:
            if end_orphans:
                raise UserError("No service runs on this state folder: start it, and it lists what it finds running.")
            return [Finding("service", True, "No service runs on this folder now.")]
        orphans = (_ask(state, "GET", "/v1/orphans") or {}).get("orphans", [])
        if end_orphans and orphans:
            ended = (_ask(state, "POST", "/v1/orphans/end") or {}).get("ended", [])
            return [Finding("orphans", True, f"Told to stop: {', '.join(ended)}.")]
    except UserError as why:
        return [Finding("service", False, str(why))]
    found = [
        Finding(
            "orphan",
            False,
            f"Attempt {one['attempt']} of job {one['job']} runs on {', '.join(one['nodes'])}, and the journal does not "
            "know it: let it end, or end it with --end-orphans.",
        )
        for one in orphans
    ]
    wrong = str(answer.get("error", ""))
    return [Finding("service", not wrong, wrong or "It runs, and says that all is well."), *found]


def _ask(state: Path, verb: str, path: str) -> dict[str, Any] | None:
    """Ask the service of a state folder with the operator's own token; None if none runs there."""
    import json
    import ssl
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    from horae.client.address import is_alive
    from horae.core.errors import UserError

    try:
        address = json.loads((state / "address.json").read_bytes())
        token = (state / "token").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    if not is_alive(int(address["pid"])):
        return None
    request = Request(address["url"] + path, method=verb, headers={"Authorization": f"Bearer {token}"})
    context = ssl.create_default_context(cafile=address.get("ca")) if address["url"].startswith("https:") else None
    try:
        with urlopen(request, timeout=10, context=context) as answer:
            return dict(json.loads(answer.read(10**7)))
    except HTTPError as why:
        with why:
            try:
                return dict(json.loads(why.read(10**6)))
            except ValueError:
                raise UserError(f"The service answers {why.code} to {path}: look at what it prints.") from None
    except (URLError, OSError, ValueError) as why:
        raise UserError(
            f"The service does not answer ({why}): see whether its process {address['pid']} hangs."
        ) from None
