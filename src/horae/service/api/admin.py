"""Endpoints for the cluster and for admins: nodes, shares, settings, tokens, audit trail, journal."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response

from horae.core.codec import encode
from horae.core.engine import Engine
from horae.core.limits import Limits, of_user
from horae.service.api import schemas
from horae.service.api.auth import CallerGiven, Service, ServiceGiven
from horae.service.daemon import Change
from horae.service.roles import Caller, Forbidden, Role, Scope
from horae.service.store.stored_records import Act

router = APIRouter(prefix="/v1", tags=["operators"])

NodeName = Annotated[str, Path(max_length=200)]


# ------------------------------------------------------------------ the cluster


@router.get("/share", response_model=schemas.ShareList)
def share(service: ServiceGiven, caller: CallerGiven) -> dict[str, Any]:
    """The queue tree: entitlement and usage of each queue, in GPUs and normalised by GPU speed."""
    return {"queues": service.views().shares()}


@router.get("/nodes", response_model=schemas.NodeList)
def nodes(service: ServiceGiven, caller: CallerGiven) -> dict[str, Any]:
    """Every node: its GPUs and how many are used. Jobs of other users are counted, not named.

    `trouble` says in a sentence what is wrong with the backend.
    """
    return {"nodes": _nodes(service, caller), "trouble": service.daemon.backend.trouble}


def _nodes(service: Service, caller: Caller) -> list[dict[str, Any]]:
    records, sight = service.views().nodes(), service.daemon.backend.sight()
    whys = {seen.name: seen.why for seen in sight.nodes} if sight else {}
    for record in records:
        record["why"] = "" if record["state"] == "up" else whys.get(record["node"], "")
        record["jobs"] = {job: gpus for job, gpus in record["jobs"].items() if service.may_see_job(caller, job)}
    return records


@router.post("/nodes/{node}/drain", response_model=schemas.NodeRecord)
def drain(service: ServiceGiven, caller: CallerGiven, node: NodeName, body: schemas.Drain) -> dict[str, Any]:
    """Start no new jobs on a node; with `evict`, also stop its jobs, to run elsewhere."""
    service.operations.drain(caller, node, body.evict)
    return _node(service, caller, node)


@router.post("/nodes/{node}/lost", response_model=schemas.NodeRecord)
def lose(service: ServiceGiven, caller: CallerGiven, node: NodeName, body: schemas.Lose) -> dict[str, Any]:
    """Take a node out of service on which surely nothing runs any more: its jobs have ended, and run elsewhere."""
    service.operations.lose(caller, node)
    return _node(service, caller, node)


@router.post("/nodes/{node}/resume", response_model=schemas.NodeRecord)
def resume(service: ServiceGiven, caller: CallerGiven, node: NodeName) -> dict[str, Any]:
    """Start jobs on a drained node again."""
    service.operations.resume(caller, node)
    return _node(service, caller, node)


def _node(service: Service, caller: Caller, name: str) -> dict[str, Any]:
    return next(node for node in _nodes(service, caller) if node["node"] == name)


@router.get("/settings", response_model=schemas.SettingsRecord)
def settings(service: ServiceGiven, caller: CallerGiven) -> schemas.SettingsRecord:
    """The policy, its settings, and the configured queues."""
    status = service.daemon.status
    queues = [
        schemas.QueueForm.model_construct(
            path=queue.path,
            weight=queue.weight,
            rule=queue.rule,
            gpus_min=queue.gpus_min,
            gpus_max=queue.gpus_max,
            members=list(queue.members),
            admins=list(queue.admins),
        )
        for queue in status.queues.values()
    ]
    return schemas.SettingsRecord.model_construct(
        policy=status.policy, settings=dict(status.settings), queues=queues, unknown_queues=status.unknown_queues
    )


@router.put("/settings", response_model=schemas.NewSettings, response_model_exclude_unset=True)
def change_settings(service: ServiceGiven, caller: CallerGiven, body: schemas.SettingsForm) -> schemas.NewSettings:
    """Change the policy, its settings, or queues."""
    queues = [queue.queue() for queue in body.queues]
    note = service.operations.configure(caller, body.policy, body.settings, queues, body.unknown_queues)
    answer = dict(settings(service, caller))
    return schemas.NewSettings.model_construct(**(answer | {"note": note} if note else answer))


@router.get("/limits", response_model=schemas.LimitList)
def limits(service: ServiceGiven, caller: CallerGiven) -> schemas.LimitList:
    """Limits of users and queues. Users see those of queues, of each user, and their own."""
    shown = [
        _limits(whom, found)
        for whom, found in sorted(service.daemon.status.limits.items())
        if caller.lists_all or not whom.startswith("user:") or whom == of_user(caller.user)
    ]
    yours = _limits(of_user(caller.user), service.operations.rights.limits_of(caller))
    return schemas.LimitList.model_construct(limits=shown, yours=yours)


def _limits(whom: str, limits: Limits) -> schemas.LimitsRecord:
    return schemas.LimitsRecord.model_construct(whom=whom, **asdict(limits))


@router.put("/limits", response_model=schemas.LimitList)
def change_limits(service: ServiceGiven, caller: CallerGiven, body: schemas.LimitsForm) -> schemas.LimitList:
    """Change the limits of each user, a user, a queue, or all users together. Admins of a queue: of queues below it."""
    service.operations.set_limits(caller, body.whom, body.change())
    return limits(service, caller)


# ----------------------------------------------------------------------- tokens


@router.get("/tokens", response_model=schemas.TokenList)
def tokens(service: ServiceGiven, caller: CallerGiven) -> dict[str, Any]:
    """All tokens ever made: user, role, expiry."""
    caller.require_admin("see tokens")
    timestamp = service.views().timestamp
    return {
        "tokens": [
            {
                "id": token.id,
                "user": token.user,
                "role": token.role,
                "scope": token.scope,
                "created": timestamp(token.created_s),
                "expires": None if token.expires_s is None else timestamp(token.expires_s),
                "revoked": token.revoked,
            }
            for token in service.tokens.all()
        ]
    }


@router.post("/tokens", response_model=schemas.TokenMade)
def make_token(service: ServiceGiven, caller: CallerGiven, body: schemas.TokenAsked) -> schemas.TokenMade:
    """Make a token. It is shown only now: the service keeps only its hash."""
    caller.require_admin("make tokens")
    token, record = service.tokens.draft(body.user, Role(body.role), body.expires, Scope.read(body.scope))
    # Write the audit trail first: an entry without a token is better than a token without an entry.
    _record_act(
        service, caller, "make token", record.id, " ".join(filter(None, (record.role, record.user, record.scope)))
    )
    service.tokens.add(record)
    return schemas.TokenMade(token=token, id=record.id)


@router.delete("/tokens/{number}", response_model=schemas.TokenList)
def revoke_token(
    service: ServiceGiven, caller: CallerGiven, number: Annotated[str, Path(max_length=100)]
) -> dict[str, Any]:
    """Revoke a token. It becomes invalid at once."""
    caller.require_admin("revoke tokens")
    record = service.tokens.find(number)
    _record_act(service, caller, "revoke token", record.id, f"{record.role} {record.user}")
    service.tokens.revoke(record)
    return tokens(service, caller)


def _record_act(service: Service, caller: Caller, action: str, target: str, detail: str) -> None:
    """Write a line into the audit trail."""

    def prepare(engine: Engine, now_s: float) -> tuple[Change, None]:
        return Change(acts=(Act(now_s, caller.user, action, target, detail),)), None

    service.daemon.ask(prepare)


# ------------------------------------------------------------------- orphans


@router.get("/orphans", response_model=schemas.OrphanList)
def orphans(service: ServiceGiven, caller: CallerGiven) -> dict[str, Any]:
    """Attempts that run and that the journal does not know, since it lost records or was restored."""
    caller.require_admin("see attempts that the journal does not know")
    found = service.daemon.orphans.attempts
    return {"orphans": [{"job": job, "attempt": number, "nodes": nodes} for (job, number), nodes in found.items()]}


@router.post("/orphans/end", response_model=schemas.EndedOrphans)
def end_orphans(service: ServiceGiven, caller: CallerGiven) -> dict[str, Any]:
    """Stop these attempts: each gets its stop signal, and is killed after its grace period."""
    return {"ended": service.operations.end_orphans(caller)}


# ----------------------------------------------------------------- what happened


@router.get("/audit", response_model=schemas.Audit)
def audit(
    service: ServiceGiven, caller: CallerGiven, limit: Annotated[int, Query(ge=1, le=10_000)] = 100
) -> dict[str, Any]:
    """Acts of users and admins, newest last."""
    caller.require_admin("read the audit trail")
    timestamp = service.views().timestamp
    return {
        "acts": [
            {
                "at": timestamp(act.at_s),
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
    caller: CallerGiven,
    after: Annotated[int, Query(ge=0, le=2**62)] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> Response:
    """Records of the journal after number `after`, for replays and reports."""
    _require_reads_all(caller, "read the journal")
    records = [{"seq": seq, **encode(record)} for seq, record in islice(service.daemon.store.tail(after), limit)]
    following = records[-1]["seq"] if records else after
    # Python's JSON, as in the journal: older decisions hold policy memory, which may have infinite numbers.
    return Response(json.dumps({"records": records, "next": following}), media_type="application/json")


@router.get("/beginning")
def beginning(service: ServiceGiven, caller: CallerGiven) -> dict[str, Any]:
    """The initial settings of the service and its current time; with the journal, enough for a replay."""
    _require_reads_all(caller, "read the journal")
    daemon = service.daemon
    return {**daemon.initial_settings.as_dict(), "epoch": daemon.store.epoch, "now_s": daemon.clock()}


def _require_reads_all(caller: Caller, to: str) -> None:
    if not caller.reads_all:
        raise Forbidden(
            f"This token may not {to}, since it shows everybody's jobs: use one with the role admin or viewer."
        )
