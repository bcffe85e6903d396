"""What `horae kubernetes manifests` prints. Tests backends/kubernetes/rights.py, too."""

from __future__ import annotations

from typing import Any

import yaml

from horae.backends.kubernetes.manifests import as_yaml, rights_objects, service_objects
from horae.backends.kubernetes.shared_volume import read_volume


def test_the_rights_are_the_least_with_which_it_works() -> None:
    objects = rights_objects("train")
    rules = {
        (made["kind"], resource, verb)
        for made in objects
        for rule in made.get("rules", ())
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert rules == {
        *(("Role", "pods", verb) for verb in ("create", "get", "list", "watch", "delete", "patch")),
        ("Role", "pods/binding", "create"),
        ("Role", "persistentvolumeclaims", "get"),
        *(("ClusterRole", "nodes", verb) for verb in ("get", "list", "watch")),
        *(("ClusterRole", "pods", verb) for verb in ("list", "watch")),
    }


def test_the_account_of_the_namespace_has_them() -> None:
    bindings = [made for made in rights_objects("train") if made["kind"].endswith("RoleBinding")]
    assert [made["kind"] for made in bindings] == ["RoleBinding", "ClusterRoleBinding"]
    for made in bindings:
        assert made["subjects"] == [{"kind": "ServiceAccount", "name": "horae", "namespace": "train"}]


def test_the_service_runs_once_with_the_shared_folder_and_a_folder_of_its_own() -> None:
    objects = {(made["kind"], made["metadata"]["name"]): made for made in _service("team:/mnt/horae")}
    assert {*objects} == {
        ("PersistentVolumeClaim", "horae-state"),
        ("PersistentVolumeClaim", "team"),
        ("Deployment", "horae"),
        ("Service", "horae"),
    }
    assert objects["PersistentVolumeClaim", "team"]["spec"]["accessModes"] == ["ReadWriteMany"]
    deployment = objects["Deployment", "horae"]["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    command = deployment["template"]["spec"]["containers"][0]["command"]
    assert command[:4] == ["horae", "serve", "--backend", "kubernetes"]
    assert command[command.index("--volume") + 1] == "team:/mnt/horae"
    assert command[command.index("--url") + 1] == "http://horae.train:8642"


def test_with_a_certificate_the_service_speaks_https_and_without_it_says_that_it_does_not() -> None:
    for secret, word, url in (("horae-tls", "--tls-cert", "https"), ("", "--allow-plain-http", "http")):
        made = service_objects("train", "horae:1", read_volume("team:/mnt/horae"), "1Ti", secret)
        (pod,) = [each["spec"]["template"]["spec"] for each in made if each["kind"] == "Deployment"]
        command = pod["containers"][0]["command"]
        assert word in command
        assert command[command.index("--url") + 1] == f"{url}://horae.train:8642"
        assert ("tls" in [volume["name"] for volume in pod["volumes"]]) is bool(secret)


def test_a_folder_of_the_nodes_needs_no_claim() -> None:
    claims = [made["metadata"]["name"] for made in _service("host:/data") if made["kind"] == "PersistentVolumeClaim"]
    assert claims == ["horae-state"]


def test_the_yaml_is_read_as_the_same_objects_and_has_no_references() -> None:
    objects = [*rights_objects("train"), *_service("team:/mnt/horae")]
    text = as_yaml(objects)
    assert list(yaml.safe_load_all(text)) == objects
    assert "&" not in text


def _service(volume: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = service_objects("train", "horae:1", read_volume(volume), "1Ti")
    return found


def test_to_adopt_there_are_no_rights_to_make_pods_and_none_in_other_namespaces() -> None:
    objects = rights_objects("horae", ["team-a", "team-b"])
    roles = [made for made in objects if made["kind"] == "Role"]
    assert [made["metadata"]["namespace"] for made in roles] == ["team-a", "team-b"]
    rules = {
        (group, resource, verb)
        for rule in roles[0]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert rules == {
        *(("", "pods", verb) for verb in ("get", "list", "watch", "delete", "patch")),
        ("", "pods/binding", "create"),
        ("", "events", "create"),
        *(("batch", "jobs", verb) for verb in ("list", "watch")),
        *(("coordination.k8s.io", "leases", verb) for verb in ("get", "create", "patch", "delete")),
    }
    bindings = [made for made in objects if made["kind"] == "RoleBinding"]
    assert [made["metadata"]["namespace"] for made in bindings] == ["team-a", "team-b"]
    assert {made["subjects"][0]["namespace"] for made in bindings} == {"horae"}


def test_a_service_that_adopts_needs_no_shared_folder() -> None:
    objects = service_objects("horae", "horae:1", None, "", adopt="team-a,team-b")
    assert [made["kind"] for made in objects] == ["PersistentVolumeClaim", "Deployment", "Service"]
    (pod,) = [made["spec"]["template"]["spec"] for made in objects if made["kind"] == "Deployment"]
    command = pod["containers"][0]["command"]
    assert command[:6] == ["horae", "serve", "--backend", "kubernetes", "--adopt", "team-a,team-b"]
    assert "--image" not in command
