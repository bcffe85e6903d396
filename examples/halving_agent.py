"""Bids for an app of its own in the auctions of Themis; the app halves its trials.

horae submit --app search --app-scheduler halving:eta=2 --grid lr=0.1,0.05,0.02,0.01 -- \\
    python examples/train_numpy.py --step-ms 20 --lr {lr}
python examples/halving_agent.py search --eta 2

The built-in agent takes every trial for one that runs to its end. This one knows that most will not: trials in the
worse half are given up at their next rung, so their work counts only up to there, and what is left is overstated less.
It needs nothing but Python: the service is asked over HTTP.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: How long one question for an offer waits, and how long to wait before asking a service again that did not answer.
WAIT_S, PAUSE_S = 5.0, 0.5


class Refused(Exception):
    """What the service did not accept, with its own words."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True)
class Service:
    """A running `horae serve`."""

    url: str
    token: str

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """One question, and its answer."""
        request = urllib.request.Request(f"{self.url}{path}", method=method)
        request.add_header("Authorization", f"Bearer {self.token}")
        data = None
        if body is not None:
            request.add_header("Content-Type", "application/json")
            data = json.dumps(body).encode()
        try:
            with urllib.request.urlopen(request, data, timeout=WAIT_S + 10, context=self._tls()) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise Refused(error.code, _words(error)) from None

    def _tls(self) -> ssl.SSLContext | None:
        """By which CA to verify the service: that in the file HORAE_CA, or those that the system trusts."""
        is_tls = self.url.startswith("https:")
        return ssl.create_default_context(cafile=os.environ.get("HORAE_CA")) if is_tls else None


def _words(error: urllib.error.HTTPError) -> str:
    """What a service said beside an error's number."""
    try:
        return str(json.load(error)["error"])
    except (ValueError, KeyError):
        return error.reason


@dataclass(frozen=True)
class Trial:
    """A trial as the service tells of it."""

    progress: float
    gpu_seconds: float
    loss: float | None

    def total(self, guess: float) -> float:
        """GPU-seconds it takes to its end, by how it went so far; a guess for one that has not begun."""
        return self.gpu_seconds / self.progress if self.progress > 0 and self.gpu_seconds > 0 else guess


@dataclass(frozen=True)
class Agent:
    """Speaks for an app whose trials are halved."""

    service: Service
    app: str
    eta: int
    rungs: int

    @property
    def _path(self) -> str:
        return f"/v1/apps/{urllib.parse.quote(self.app, safe='')}"

    def run(self) -> None:
        """Bid until the app has ended."""
        self.service.ask("PUT", f"{self._path}/agent")
        try:
            while trials := self.trials():
                offer = self.service.ask("GET", f"{self._path}/offer?wait={WAIT_S:g}")["offer"]
                if offer:
                    self.answer(offer, trials)
        finally:
            self._leave()

    def _leave(self) -> None:
        try:
            self.service.ask("DELETE", f"{self._path}/agent")
        except Refused as refused:
            # An app that has ended has taken its agent with it.
            if refused.status != 404:
                raise

    def trials(self) -> list[Trial]:
        """The trials that have not ended."""
        query = urllib.parse.urlencode({"app": self.app, "limit": 1000})
        jobs = self.service.ask("GET", f"/v1/jobs?{query}")["jobs"]
        return [Trial(job["progress"], job["gpu_seconds"], job["loss"]) for job in jobs]

    def answer(self, offer: dict[str, Any], trials: list[Trial]) -> None:
        """Bid for every number of gangs that the app can use and that are free together on one GPU type."""
        bid = self.bid(offer, trials)
        try:
            self.service.ask("POST", f"{self._path}/bids", bid)
        except Refused as refused:
            print(f"auction {offer['auction']}: {refused}", file=sys.stderr)
            return
        best = min((row["rho"] for row in bid["table"]), default=bid["rho"])
        print(f"auction {offer['auction']}: rho {bid['rho']:.2f}, with all it can use {best:.2f}", flush=True)

    def bid(self, offer: dict[str, Any], trials: list[Trial]) -> dict[str, Any]:
        """The rho of winning nothing, and that of each bundle."""
        left, longest = self.expected(offer, trials)
        gang, holds = offer["gang"], offer["holds"]

        def rho(gpus: int) -> float:
            done_s = max(left / gpus, longest / gang)
            return float(max((offer["elapsed_s"] + done_s) / offer["alone_s"], 1e-6))

        table = [
            {"gpus": bundle, "rho": rho(holds + sum(bundle.values()))}
            for bundle in bundles(offer["machines"], gang, offer["gangs"])
        ]
        return {"auction": offer["auction"], "rho": rho(holds) if holds else offer["rho"], "table": table}

    def expected(self, offer: dict[str, Any], trials: list[Trial]) -> tuple[float, float]:
        """GPU-seconds left of the app, if the worse half ends at its next rung, and those of its longest trial."""
        # A trial of which nothing is known takes what the app would have had for it, alone on its share.
        known = [trial.total(0.0) for trial in trials if trial.total(0.0) > 0]
        guess = sum(known) / len(known) if known else offer["alone_s"] * offer["gang"]
        ranked = sorted(trials, key=lambda trial: float("inf") if trial.loss is None else trial.loss)
        going_on = max(1, len(ranked) // self.eta)
        left = []
        for place, trial in enumerate(ranked):
            until = 1.0 if place < going_on else self.next_rung(trial.progress)
            left.append(max(until - trial.progress, 1e-6) * trial.total(guess))
        return sum(left), max(left)

    def next_rung(self, progress: float) -> float:
        """The share of its work at which a trial is compared next; all of it, after the last rung."""
        return next((rung for rung in self._rungs if rung > progress), 1.0)

    @property
    def _rungs(self) -> list[float]:
        return [self.eta**-k for k in range(self.rungs, 0, -1)]


def bundles(machines: dict[str, dict[str, Any]], gang: int, gangs: int) -> Iterator[dict[str, int]]:
    """For each GPU type and number of gangs, machines that have them: those with most free GPUs first."""
    for kind in sorted({machine["type"] for machine in machines.values()}):
        free = {name: machine["gpus"] for name, machine in machines.items() if machine["type"] == kind}
        roomiest = sorted(free, key=lambda name: (-free[name], name))
        for count in range(1, min(gangs, sum(free.values()) // gang) + 1):
            bundle, wanted = {}, count * gang
            for name in roomiest:
                taken = min(free[name], wanted)
                if taken:
                    bundle[name] = taken
                    wanted -= taken
            yield bundle


def token() -> str:
    """From the environment, or from a file, as the commands find it."""
    if os.environ.get("HORAE_TOKEN"):
        return os.environ["HORAE_TOKEN"]
    path = os.environ.get("HORAE_TOKEN_FILE") or Path.home() / ".config" / "horae" / "token"
    return Path(path).read_text(encoding="utf-8").strip()


def main() -> None:
    """Speak for the app that the command line names."""
    parser = argparse.ArgumentParser(description="Bid for an app that halves its trials.")
    parser.add_argument("app", help="its name")
    parser.add_argument("--url", default=os.environ.get("HORAE_URL", "http://127.0.0.1:8642"), help="of the service")
    parser.add_argument("--eta", type=int, default=3, help="the best 1/eta of the trials go on at each rung")
    parser.add_argument("--rungs", type=int, default=3, help="how many rungs there are")
    chosen = parser.parse_args()
    agent = Agent(Service(chosen.url, token()), chosen.app, chosen.eta, chosen.rungs)
    while True:
        try:
            agent.run()
            return
        except Refused as refused:
            sys.exit(f"The service says: {refused}")
        except (OSError, http.client.HTTPException) as error:
            # It is not there, or went away in the middle of an answer.
            print(f"{chosen.url} does not answer ({error}); asking again", file=sys.stderr)
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
