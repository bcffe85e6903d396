"""`horae serve`: the service that runs jobs, on this machine or on a cluster."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import threading
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from horae.cli.options import OutputOption
from horae.cli.output import Output, note, print_csv
from horae.client.address import default_state

if TYPE_CHECKING:
    from horae.backends.local.isolation.accounts import AccountHelper
    from horae.service.server import Server

#: Least bytes of `--max-log`.
LEAST_LOG_BYTES = 10_000


class LocalRole(StrEnum):
    """Roles of accounts of this machine that have no token."""

    NONE = "none"
    MEMBER = "member"
    USER = "user"
    VIEWER = "viewer"
    ADMIN = "admin"


def command(
    state: Annotated[
        Path | None,
        typer.Option(
            "--state", metavar="DIR", help="Folder for journal, logs and token (default: ~/.local/state/horae)."
        ),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(
            "--database",
            metavar="URL",
            envvar="HORAE_DATABASE",
            show_envvar=True,
            help="Keep the journal in this PostgreSQL database, such as postgresql://user@host/name.",
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            "--port", metavar="N", min=0, max=65535, help="Port to listen on; 0: the last port, or any free one."
        ),
    ] = 8642,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            "--tls-cert",
            metavar="FILE",
            help="Serve HTTPS with this certificate (PEM, with intermediate ones). Renewed files need no restart.",
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option("--tls-key", metavar="FILE", help="Key of --tls-cert (default: in the same file)."),
    ] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            "--tls-ca", metavar="FILE", help="CA of --tls-cert, which jobs verify it by (default: the system's CAs)."
        ),
    ] = None,
    allow_plain_http: Annotated[
        bool,
        typer.Option("--allow-plain-http", help="Let tokens cross the network without encryption (no --tls-cert)."),
    ] = False,
    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus",
            metavar="TYPE:N,...",
            help="Use virtual GPUs, such as v100:4 (default: the real GPUs, or those of last time).",
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="NAME",
            help="Scheduling policy (default: the last one, at first fifo-backfill), or a class of yours, such as "
            "./mine.py:MyPolicy.",
        ),
    ] = None,
    set: Annotated[  # noqa: A002, the option is called so
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a parameter of the policy; repeatable.")
    ] = None,
    placement: Annotated[
        str | None,
        typer.Option(
            "--placement", metavar="NAME", help="Placement rule: how jobs are put on nodes (default: best-effort)."
        ),
    ] = None,
    queues: Annotated[
        Path | None, typer.Option("--queues", metavar="FILE", help="Weights and quotas of the queues (YAML).")
    ] = None,
    secrets: Annotated[
        Path | None,
        typer.Option(
            "--secrets",
            metavar="DIR",
            help="Folder of secrets, which jobs ask for by name: users/USER/NAME, queues/QUEUE/NAME, all/NAME.",
        ),
    ] = None,
    isolation: Annotated[
        str | None,
        typer.Option(
            "--isolation",
            metavar="MODE",
            help="Keep jobs apart: account (each under its user's account; started as root), sandbox (bubblewrap) or "
            "none (default: as last time, at first none, for one user).",
        ),
    ] = None,
    user: Annotated[
        str,
        typer.Option("--user", metavar="NAME", help="Account of the service itself, for --isolation account."),
    ] = "",
    job_group: Annotated[
        str,
        typer.Option(
            "--job-group", metavar="GROUP", help="Jobs run only under accounts in this group, with --isolation account."
        ),
    ] = "horae-jobs",
    accounts: Annotated[
        Path | None,
        typer.Option(
            "--accounts",
            metavar="FILE",
            help="Accounts of users whose names differ (YAML: `ann: ann_lab`), for --isolation account.",
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            "--keep",
            metavar="TIME",
            help="Delete ended jobs with their logs and folders after this time, such as 30d (default: forget jobs "
            "after 90d, keep their files).",
        ),
    ] = None,
    max_log: Annotated[
        str,
        typer.Option(
            "--max-log",
            metavar="SIZE",
            help="Keep at most this much of what an attempt prints on a node: its beginning and its end, a half each.",
        ),
    ] = "100MB",
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend",
            metavar="NAME",
            help="What runs the jobs: local, slurm, ray, kubernetes, or one that an installed package offers.",
        ),
    ] = None,
    partition: Annotated[
        str | None, typer.Option("--partition", metavar="NAME", help="Slurm partition, for Horae's jobs alone.")
    ] = None,
    adopt: Annotated[
        str | None,
        typer.Option(
            "--adopt",
            metavar="NAME",
            help="Order the jobs that users give to this Slurm partition, or the pods in these Kubernetes namespaces.",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="URL", help="Dashboard of a Ray cluster, for Horae alone: http://head:8265."),
    ] = None,
    shared: Annotated[
        Path | None,
        typer.Option("--shared", metavar="DIR", help="Folder that this machine and all nodes have, same path."),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option("--context", metavar="NAME", help="Kubernetes: context of the kubeconfig file."),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", metavar="NAME", help="Kubernetes: namespace of the jobs' pods.")
    ] = None,
    image: Annotated[
        str | None, typer.Option("--image", metavar="IMAGE", help="Kubernetes: image of the jobs' pods, with Python.")
    ] = None,
    volume: Annotated[
        str | None,
        typer.Option(
            "--volume",
            metavar="CLAIM:PATH",
            help="Kubernetes: the shared folder, same path here and in pods: claim:/mnt/horae, host:/mnt/horae.",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="Where jobs on other machines reach the service: https://head:8642."),
    ] = None,
    server_name: Annotated[
        list[str] | None,
        typer.Option(
            "--server-name",
            metavar="NAME",
            help="Another name by which clients call the service (default: those of --host, --url and this machine); "
            "repeatable.",
        ),
    ] = None,
    socket: Annotated[
        Path | None,
        typer.Option(
            "--socket",
            metavar="FILE",
            help="Unix socket for people on this machine, such as /run/horae/horae.sock (default: in the state "
            "folder, for its owner alone).",
        ),
    ] = None,
    local_users: Annotated[
        LocalRole,
        typer.Option(
            "--local-users",
            help="Role of other accounts of this machine that come by the socket without a token. Root and the account "
            "of the service are admins there.",
        ),
    ] = LocalRole.NONE,
    access_log: Annotated[
        Path | None,
        typer.Option(
            "--access-log", metavar="FILE", help="Write a line on each request to this file, refused ones too."
        ),
    ] = None,
    standby: Annotated[
        bool,
        typer.Option(
            "--standby",
            help="If another service uses the same --database, answer what reads, and take over when it ends.",
        ),
    ] = False,
    more: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="KEY=VALUE",
            help="Further settings of a cluster: fence=COMMAND, storage-away=TIME, launch-limit=TIME; python=PATH on "
            "nodes or in the image; Slurm's account, qos; trust-annotations=yes to adopt its pods; repeatable.",
        ),
    ] = None,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Go on with what is left of a journal that is damaged or lost records; no used number is given again.",
        ),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Start the service, which runs jobs on this machine's GPUs or on a cluster until Ctrl-C or SIGTERM.

    Running jobs go on when the service ends, and the next service follows them.

    With --isolation account or sandbox a job can neither read the token, the secrets and other people's files nor use
    GPUs that it was not given. Without, jobs run as the user who runs this command, and can read everything that this
    user can; CUDA_VISIBLE_DEVICES tells a job which GPUs it may use, but does not stop it from using others. So a
    second user gets no token before you have chosen.
    """
    stop = _stop_on_signals()
    names = _read_accounts(accounts) if accounts else {}
    helper = _become_service(isolation, user, job_group, state)
    _excuse_slow_start()
    from horae.cli.setup.duration_options import read_size, read_span
    from horae.cli.setup.inputs import read_pairs, read_queue_file
    from horae.service.roles import Role
    from horae.service.server import ServeOptions, Server

    asked = ServeOptions(
        state=state or default_state(),
        database=database,
        host=host,
        port=port,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_ca=tls_ca,
        allow_plain_http=allow_plain_http,
        gpus=gpus,
        policy=policy,
        settings=read_pairs("--set quantum=600", set or ()),
        placement=placement,
        queues=() if queues is None else read_queue_file(queues, named_by_jobs=True),
        secrets=secrets,
        keep_s=read_span("--keep", keep) if keep is not None else None,
        max_log_bytes=read_size("--max-log", max_log, LEAST_LOG_BYTES),
        backend=backend,
        partition=partition,
        adopt=adopt,
        address=address,
        shared=shared,
        context=context,
        namespace=namespace,
        image=image,
        volume=volume,
        backend_settings=read_pairs("--with storage-away=5m", more or ()),
        url=url,
        server_names=tuple(server_name or ()),
        socket=socket,
        local_users=None if local_users is LocalRole.NONE else Role(local_users.value),
        access_log=access_log,
        isolation=isolation,
        helper=helper,
        account_names=names,
        standby=standby,
        accept_loss=accept_loss,
    )
    server = Server(asked, note, stop)
    try:
        _announce(server, output, is_default=state is None)
        for sentence in (*server.journal_notes, server.policy_note, *server.notes):
            if sentence:
                note(sentence)
        server.wait(stop, note)
    finally:
        server.close()
    if _is_main_thread():
        _leave_at_once()


def _become_service(isolation: str | None, user: str, job_group: str, state: Path | None) -> AccountHelper | None:
    """With --isolation account: start the root helper, and give up root's rights before anything else is done."""
    if isolation != "account":
        if user:
            from horae.core.errors import UserError

            raise UserError("--user is for --isolation account: leave it out, or start the service as that user.")
        return None
    from horae.backends.local.isolation.accounts import become_service

    return become_service(user, job_group, state)


def _read_accounts(path: Path) -> dict[str, str]:
    """Accounts by user."""
    import yaml

    from horae.core.errors import UserError

    try:
        names = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read ({error}): write lines such as `ann: ann_lab`.") from None
    if not isinstance(names, dict) or not all(isinstance(word, str) for pair in names.items() for word in pair):
        raise UserError(f"{path} does not name accounts: write lines such as `ann: ann_lab`, user and account.")
    return names


def _excuse_slow_start() -> None:
    """Say at a terminal why the first start after an installation takes long."""
    from horae import prepare_compilation

    prepare_compilation()
    if sys.stderr.isatty() and not Path(os.environ["NUMBA_CACHE_DIR"]).is_dir():
        note("Compiling, this once: it takes half a minute or so.")


def _leave_at_once() -> None:
    """End the process: all is closed, and to take the interpreter apart, with all that was compiled, takes seconds."""
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(0)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _stop_on_signals() -> threading.Event:
    """An event that SIGTERM and SIGINT set; a service leaves in good order, and that is no error."""
    stop = threading.Event()
    if _is_main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
    return stop


def _announce(server: Server, output: Output, is_default: bool) -> None:
    """Say where the service is, and what to do next."""
    at = server.daemon.status
    record = {
        "url": server.url,
        "pid": os.getpid(),
        "state": str(server.state),
        "token_file": str(server.token_file),
        "standby": server.stands_by,
        "policy": at.policy,
        "isolation": server.isolation or "none",
        "gpus": {kind: int(n) for kind, n in zip(at.cluster.gpu_types, at.open_by_type, strict=True)},
    }
    match output:
        case Output.JSON:
            typer.echo(json.dumps(record))
        case Output.CSV:
            print_csv([record])
        case Output.TABLE:
            typer.echo("\n".join(_lines(server, record, is_default)))
    # Whoever waits for the announcement in a pipe must not wait for a buffer to fill.
    sys.stdout.flush()


def _lines(server: Server, record: dict[str, object], is_default: bool) -> list[str]:
    at = server.daemon.status
    counts = zip(at.cluster.gpu_types, at.open_by_type.tolist(), strict=True)
    gpus = ", ".join(f"{count} {kind}" for kind, count in counts) or "no GPUs yet"
    ca = f" HORAE_CA={shlex.quote(server.ca)}" if server.ca else ""
    plain = " HORAE_ALLOW_PLAIN_HTTP=1" if server.is_plain else ""
    where = (
        []
        if is_default
        else [f"export HORAE_URL={record['url']}{ca}{plain} HORAE_TOKEN_FILE={shlex.quote(str(record['token_file']))}"]
    )
    if server.stands_by:
        return [
            f"Horae stands by at {record['url']}, and takes over when the active service ends.",
            f"State: {record['state']}",
            "Ctrl-C ends the standby; the active service goes on.",
        ]
    jobs = server.daemon.backend.submit_with or "horae submit -- python train.py"
    steps = [*where, jobs, "horae queue", "horae token create NAME"]
    return [
        f"Horae listens at {record['url']}: {gpus}, under {record['policy']}.",
        f"State: {record['state']}",
        f"Token: {record['token_file']} (an admin's: keep it to yourself)",
        "Next, in another terminal:",
        *(f"  {step}" for step in steps),
        "Ctrl-C ends the service; running jobs stay, and the next `horae serve` takes them up.",
    ]
