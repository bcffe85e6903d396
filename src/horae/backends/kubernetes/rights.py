"""The rights that the service needs in a cluster.

`horae kubernetes manifests` writes them, and `site_checks.py` checks them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Right:
    """Verbs on a resource, such as `pods` or `pods/binding`, in the service's namespace or in the whole cluster."""

    resource: str
    verbs: tuple[str, ...]
    whole_cluster: bool = False
    #: Group of the API; empty for the core.
    group: str = ""


SEE_ALL_PODS = Right("pods", ("list", "watch"), whole_cluster=True)
#: Without these no job runs.
NEEDED = (
    Right("pods", ("create", "get", "list", "watch", "delete", "patch")),
    Right("pods/binding", ("create",)),
    Right("nodes", ("get", "list", "watch"), whole_cluster=True),
)
#: Without these no pod of a user is ordered; they are for the namespaces of these pods, which Horae does not make.
NEEDED_TO_ADOPT = (
    Right("pods", ("get", "list", "watch", "delete", "patch")),
    Right("pods/binding", ("create",)),
    Right("jobs", ("list", "watch"), group="batch"),
    Right("leases", ("get", "create", "patch", "delete"), group="coordination.k8s.io"),
    Right("nodes", ("get", "list", "watch"), whole_cluster=True),
)
#: Without this users are not told why their pods wait.
TELL_USERS = Right("events", ("create",))
#: Without these less is seen.
USEFUL = (SEE_ALL_PODS, Right("persistentvolumeclaims", ("get",)))
