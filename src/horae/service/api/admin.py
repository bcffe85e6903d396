"""The cluster and the service itself: nodes, shares, settings, tokens, the audit trail, the journal."""

from __future__ import annotations

import json
from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response

from horae.core.codec import encode
from horae.core.engine import Engine
from horae.service.api import schemas
from horae.service.api.auth import PersonGiven, Service, ServiceGiven
from horae.service.daemon import Change
from horae.service.roles import Caller, Forbidden, Role
from horae.service.store.stored_records import Act

router = APIRouter(prefix="/v1", tags=["operators"])

NodeName = Annotated[str, Path(max_length=200)]


# ------------------------------------------------------------------ the cluster


@router.get("/share", response_model=schemas.ShareList)
def share(service: ServiceGiven, who: PersonGiven) -> dict[str, Any]:
    """The queue tree: what each queue is entitled to and uses, raw and normalised by GPU speed."""
    return {"queues": service.views().shares()}


@router.get("/nodes", response_model=schemas.NodeList)
def nodes(service: ServiceGiven, who: PersonGiven) -> dict[str, Any]:
    """Every node: what it has and what is taken. Jobs of others are counted, not named."""
    return {"nodes": _nodes(service, who)}


def _nodes(service: Service, who: Caller) -> list[dict[str, Any]]:
    records = service.views().nodes()
    for record in records:
        record["jobs"] = {job: gpus for job, gpus in record["jobs"].items() if service.sees(who, job)}
    return records


@router.post("/nodes/{node}/drain", response_model=schemas.NodeRecord)
def drain(service: ServiceGiven, who: PersonGiven, node: NodeName, asked: schemas.Drain) -> dict[str, Any]:
    """Let a node take no new jobs; with `evict`, stop those it runs, to run elsewhere."""
    service.operations.drain(who, node, asked.evict)
    return _node(service, who, node)


@router.post("/nodes/{node}/resume", response_model=schemas.NodeRecord)
def resume(service: ServiceGiven, who: PersonGiven, node: NodeName) -> dict[str, Any]:
    """Let a node that was drained take jobs again."""
    service.operations.resume(who, node)
    return _node(service, who, node)


def _node(service: Service, who: Caller, name: str) -> dict[str, Any]:
    return next(one for one in _nodes(service, who) if one["node"] == name)


@router.get("/settings", response_model=schemas.SettingsRecord)
def settings(service: ServiceGiven, who: PersonGiven) -> schemas.SettingsRecord:
    """The policy, its settings, and the queues that were set."""
    at = service.daemon.standing
    queues = [
        schemas.QueueForm.model_construct(
            path=one.path, weight=one.weight, rule=one.rule, gpus_min=one.gpus_min, gpus_max=one.gpus_max
        )
        for one in at.queues.values()
    ]
    return schemas.SettingsRecord.model_construct(policy=at.policy, settings=dict(at.settings), queues=queues)


@router.put("/settings", response_model=schemas.SettingsRecord)
def change_settings(service: ServiceGiven, who: PersonGiven, asked: schemas.SettingsForm) -> schemas.SettingsRecord:
    """Change the policy, its settings, or queues."""
    queues = [one.queue() for one in asked.queues]
    service.operations.configure(who, asked.policy, asked.settings, queues)
    return settings(service, who)


# ----------------------------------------------------------------------- tokens


@router.get("/tokens", response_model=schemas.TokenList)
def tokens(service: ServiceGiven, who: PersonGiven) -> dict[str, Any]:
    """Every token there was: whose, what it allows, until when."""
    who.must_be_admin("see tokens")
    moment = service.views().moment
    return {
        "tokens": [
            {
                "id": one.id,
                "user": one.user,
                "role": one.role,
                "created": moment(one.created_s),
                "expires": None if one.expires_s is None else moment(one.expires_s),
                "revoked": one.revoked,
            }
            for one in service.tokens.all()
        ]
    }


@router.post("/tokens", response_model=schemas.TokenMade)
def make_token(service: ServiceGiven, who: PersonGiven, asked: schemas.TokenAsked) -> schemas.TokenMade:
    """Make a token. It is shown this once: only its hash is kept."""
    who.must_be_admin("make tokens")
    token, record = service.tokens.draft(asked.user, Role(asked.role), asked.expires)
    # What is done is in the audit trail first: better an act without a deed than a deed without a trace.
    _note(service, who, "make token", record.id, f"{record.role} {record.user}")
    service.tokens.add(record)
    return schemas.TokenMade(token=token, id=record.id)


@router.delete("/tokens/{number}", response_model=schemas.TokenList)
def revoke_token(
    service: ServiceGiven, who: PersonGiven, number: Annotated[str, Path(max_length=100)]
) -> dict[str, Any]:
    """Revoke a token: from now on it is good for nothing."""
    who.must_be_admin("revoke tokens")
    record = service.tokens.find(number)
    _note(service, who, "revoke token", record.id, f"{record.role} {record.user}")
    service.tokens.revoke(record)
    return tokens(service, who)


def _note(service: Service, who: Caller, action: str, target: str, detail: str) -> None:
    """Write a line into the audit trail."""

    def prepare(engine: Engine, now_s: float) -> tuple[Change, None]:
        return Change(acts=(Act(now_s, who.user, action, target, detail),)), None

    service.daemon.ask(prepare)


# ----------------------------------------------------------------- what happened


@router.get("/audit", response_model=schemas.Audit)
def audit(
    service: ServiceGiven, who: PersonGiven, limit: Annotated[int, Query(ge=1, le=10_000)] = 100
) -> dict[str, Any]:
    """What people did, the newest last."""
    who.must_be_admin("read the audit trail")
    moment = service.views().moment
    return {
        "acts": [
            {
                "at": moment(act.at_s),
                "actor": act.actor,
                "action": act.action,
                "target": act.target,
                "detail": act.detail,
            }
            for act in reversed(service.daemon.store.acts(limit))
        ]
    }


@router.get("/journal", response_model=schemas.Journal)
def journal(
    service: ServiceGiven,
    who: PersonGiven,
    after: Annotated[int, Query(ge=0, le=2**62)] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> Response:
    """Records as they are in the journal, for replays and reports."""
    _must_see_all(who, "read the journal")
    records = [{"seq": seq, **encode(record)} for seq, record in islice(service.daemon.store.tail(after), limit)]
    following = records[-1]["seq"] if records else after
    # Python's JSON, as in the journal itself: a policy's memory may hold numbers that are not finite.
    return Response(json.dumps({"records": records, "next": following}), media_type="application/json")


@router.get("/beginning")
def beginning(service: ServiceGiven, who: PersonGiven) -> dict[str, Any]:
    """What the service was started with on its first day, and its time now; with the journal, enough to replay all."""
    _must_see_all(who, "read the journal")
    daemon = service.daemon
    return {**daemon.beginning.as_dict(), "epoch": daemon.store.epoch, "now_s": daemon.clock()}


def _must_see_all(who: Caller, to: str) -> None:
    if not who.sees_all:
        raise Forbidden(f"A user may not {to}, which tells of everybody's jobs: use a token of role admin or viewer.")
