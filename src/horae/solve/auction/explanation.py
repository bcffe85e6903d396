"""Explanations: one or two sentences for each app, why it got its GPUs or none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from horae.solve.auction.bids import Bid, Offer, place_name
from horae.solve.auction.outcome import AuctionOutcome, Award, Counts, Displaced

#: Number of displaced apps that a sentence names.
_NAMED = 3


def explain(outcome: AuctionOutcome, bids: Sequence[Bid]) -> dict[str, str]:
    """Sentences by app: bidders first, then apps that were given leftovers."""
    by_app = {bid.app: bid for bid in bids}
    sentences = {app: [_of_award(outcome, award, by_app)] for app, award in outcome.awards.items()}
    for app, counts in outcome.leftover.items():
        sentences.setdefault(app, []).append(_of_leftover(outcome, app, counts))
    return {app: " ".join(of_app) for app, of_app in sentences.items()}


def explain_gap(outcome: AuctionOutcome) -> str:
    """How good the allocation is as a whole."""
    if outcome.log_gap == 0.0:
        return "No allocation has a larger product of values V = 1/rho before payments."
    below = f"at most {outcome.gap:.2%} below the best possible"
    return f"The geometric mean of the values V = 1/rho before payments is {below}."


def _of_award(outcome: AuctionOutcome, award: Award, bids: dict[str, Bid]) -> str:
    if award.bundle is None:
        return _of_loser(outcome, award, bids)
    won = f"{award.app} won {on_machines(outcome.offer, award.proportional)}"
    won += f" (rho {award.rho_of_nothing:.4g} with nothing, {award.rho:.4g} with this)."
    if award.fraction == 1.0:
        return f"{won} Nobody would have had more without it, so it keeps all."
    return f"{won} {_payment(outcome, award, bids)} {_rounding(outcome, award)}"


def _payment(outcome: AuctionOutcome, award: Award, bids: dict[str, Bid]) -> str:
    """The apps that a winner cost something, and how much it pays."""
    lost = sorted(
        (other for other in award.displaced if other.rho < other.actual_rho), key=lambda d: d.rho / d.actual_rho
    )
    gained = [other for other in award.displaced if other.rho > other.actual_rho]
    named = [_instead(outcome.offer, other, bids) for other in lost[:_NAMED]]
    if len(lost) > _NAMED:
        named.append(f"{len(lost) - _NAMED} more would have been better off")
    words = f"Without it, {_and(named)}"
    if gained:
        words += f" (and {_and([other.app for other in gained])} worse off)"
    return f"{words}; the others' product of values is {award.fraction:.4g} of what it would have been."


def _instead(offer: Offer, other: Displaced, bids: dict[str, Bid]) -> str:
    without, actual = (
        bundle_in_words(offer, bids[other.app], bundle) for bundle in (other.bundle, other.actual_bundle)
    )
    return f"{other.app} would have won {without} (rho {other.rho:.4g}) instead of {actual} ({other.actual_rho:.4g})"


def _rounding(outcome: AuctionOutcome, award: Award) -> str:
    """How the fraction became whole gangs."""
    exact = award.fraction * award.gangs
    gangs = "gang" if award.gangs == 1 else "gangs"
    size = "" if award.gang == 1 else f" of {award.gang} GPUs"
    kept = on_machines(outcome.offer, award.kept) if award.kept else "nothing"
    whole = round(exact) if abs(exact - round(exact)) < 1e-6 else int(exact)
    words = f"So {exact:.4g} of its {award.gangs} {gangs}{size} are its own"
    if abs(exact - whole) < 1e-6:
        return f"{words}: it keeps {kept}."
    fell = "below" if award.gangs_kept > whole else "not below"
    more = "one more" if award.gangs_kept > whole else "no more"
    return (
        f"{words}: {whole} for certain and {more}, as the number drawn for it, {award.drawn:.3f}, "
        f"is {fell} {exact - whole:.3f}. It keeps {kept}."
    )


def _of_loser(outcome: AuctionOutcome, award: Award, bids: dict[str, Bid]) -> str:
    if not len(bids[award.app].bundles):
        return f"{award.app} won nothing: its table is empty."
    if (bids[award.app].bundles.rho >= award.rho_of_nothing).all():
        better = f"no row of its table is better than nothing, which it says has a rho of {award.rho_of_nothing:.4g}"
        return f"{award.app} won nothing: {better}."
    first = f"{award.app} won nothing: what it bid for adds more to the product of values with other apps."
    for winner in outcome.awards.values():
        for other in winner.displaced:
            if other.app == award.app and other.bundle is not None:
                without = bundle_in_words(outcome.offer, bids[award.app], other.bundle)
                return f"{first} Without {winner.app} it would have won {without}."
    return first


def _of_leftover(outcome: AuctionOutcome, app: str, counts: Counts) -> str:
    gpus = on_machines(outcome.offer, counts)
    if app in outcome.awards:
        order = "in the order drawn before the bids were opened"
        return f"{app} was given {gpus} that no app without a bid could use, {order}."
    return f"{app} did not bid and was given {gpus} of what was left over, by lot."


def on_machines(offer: Offer, counts: Counts) -> str:
    """GPU count by machine, in words."""
    return _and([f"{_gpus(counts[m])} on {offer.machines[m]}" for m in sorted(counts)])


def bundle_in_words(offer: Offer, bid: Bid, row: int | None) -> str:
    """A row of a bid's table, in words; None is nothing."""
    if row is None:
        return "nothing"
    table, pieces = bid.bundles, []
    for piece in range(table.start[row], table.start[row + 1]):
        where, machines = place_name(offer, int(table.place[piece])), int(table.spread[piece])
        where = where if table.place[piece] < len(offer.machines) else f"{machines} machines of {where} each"
        pieces.append(f"{_gpus(int(table.gpus[piece]))} on {where}")
    return _and(pieces)


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def _and(phrases: Iterable[str]) -> str:
    *most, last = phrases
    return f"{', '.join(most)} and {last}" if most else last
