"""Prices of GPU types for the policies that go by prices."""

from __future__ import annotations

from horae.core.cluster import Cluster
from horae.simulator.scenario import PolicyChoice
from horae.workload.catalogue import find_gpu_type


def with_prices(chosen: PolicyChoice, cluster: Cluster) -> PolicyChoice:
    """A policy that goes by prices, with the catalogue's prices where nobody gave any.

    A policy that brings prices of its own for all of the cluster's GPU types keeps them, and so
    does one on a cluster with types that the catalogue has no price for.
    """
    own = next((parameter.default for parameter in chosen.parameters if parameter.name == "prices"), None)
    if own is None or "prices" in chosen.settings:
        return chosen
    covered = {part.partition(":")[0] for part in own.split(",")}
    listed = {name: listed_type.price_per_hour for name in cluster.gpu_types if (listed_type := find_gpu_type(name))}
    if covered >= set(cluster.gpu_types) or not all(listed.get(name) for name in cluster.gpu_types):
        return chosen
    prices = ",".join(f"{name}:{price:g}" for name, price in listed.items())
    return chosen._replace(settings={**chosen.settings, "prices": prices})
