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


SEE_ALL_PODS = Right("pods", ("list", "watch"), whole_cluster=True)
#: Without these no job runs.
NEEDED = (
    Right("pods", ("create", "get", "list", "watch", "delete", "patch")),
    Right("pods/binding", ("create",)),
    Right("nodes", ("get", "list", "watch"), whole_cluster=True),
)
#: Without these less is seen.
USEFUL = (SEE_ALL_PODS, Right("persistentvolumeclaims", ("get",)))
