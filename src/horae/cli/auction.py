"""`horae auction`: one table of bids in, who wins, pays and keeps what out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horae.cli.options import OutputOption
from horae.cli.output import Output, print_csv, print_json, print_rich, table

if TYPE_CHECKING:
    from horae.solve.auction.outcome import AuctionOutcome

#: Nobody waits for a command as a scheduler waits for an auction: so many times more effort to be exact.
_PATIENCE = 100.0


def command(
    bids: Annotated[Path, typer.Option("--bids", metavar="FILE.json", help="Free GPUs by machine, and bids for them.")],
    explain: Annotated[bool, typer.Option("--explain", help="Say in words why each app got what it got.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Hold one auction of Themis: who wins which GPUs, pays with which part of them, keeps how many, who has the rest.

    The product of V = 1/rho is largest before payments; docs/reference/auctions.md describes the file.
    """
    from horae.solve.auction.auction import hold_auction
    from horae.solve.auction.explanation import explain as explained
    from horae.solve.auction.explanation import explain_gap
    from horae.solve.auction.winners import Effort
    from horae.workload.auction_files import load_auction

    auction = load_auction(bids)
    outcome = hold_auction(auction.offer, auction.bids, auction.others, auction.seed, effort=Effort().times(_PATIENCE))
    sentences = explained(outcome, auction.bids) if explain else {}
    match output:
        case Output.JSON:
            print_json({**_record(outcome), **({"explanation": sentences} if explain else {})})
        case Output.CSV:
            print_csv(_rows(outcome, sentences))
        case Output.TABLE:
            rows = _rows(outcome, {})
            if rows:
                print_rich(table(list(rows[0]), [list(row.values()) for row in rows]))
            print_rich(*sentences.values(), explain_gap(outcome))


def _record(outcome: AuctionOutcome) -> dict[str, Any]:
    """The outcome as JSON shows it."""
    named = outcome.offer.named
    apps = {
        app: {"proportional": named(award.proportional), "fraction": award.fraction, "kept": named(award.kept)}
        for app, award in outcome.awards.items()
    }
    return {"apps": apps, "leftover": {app: named(gpus) for app, gpus in outcome.leftover.items()}, "gap": outcome.gap}


def _rows(outcome: AuctionOutcome, sentences: dict[str, str]) -> list[dict[str, object]]:
    """A row for each app that bid or was given something."""
    record, rows = _record(outcome), []
    for app in dict.fromkeys((*record["apps"], *record["leftover"])):
        said = record["apps"].get(app, {"proportional": {}, "fraction": "", "kept": {}})
        row = {"app": app, "proportional": _cell(said["proportional"]), "fraction": said["fraction"]}
        row |= {"kept": _cell(said["kept"]), "leftover": _cell(record["leftover"].get(app, {}))}
        rows.append(row | ({"explanation": sentences[app]} if sentences else {}))
    return rows


def _cell(gpus: dict[str, int]) -> str:
    return " ".join(f"{machine}:{count}" for machine, count in gpus.items()) or "-"
