"""The manifests of KubeRay: valid for Kubernetes and KubeRay, complete, as few rights as possible, and they start what
they name."""

from __future__ import annotations

import copy
import shlex
import shutil
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from cluster.monitoring.make_prometheus_rule import build as build_rule
from fusionray.cli import parse
from fusionray.serving.config import ServeConfig
from tests.cluster.manifests import (
    KUBERAY,
    ROOT,
    Object,
    build,
    check,
    check_custom,
    check_monitoring,
    find_pods,
    find_values,
    needs_definitions,
    needs_kubectl,
)
from tests.support.child_python import run_python

pytestmark = needs_kubectl
# Name of a set of objects -> the overlay, and components on top of it.
SETS = {
    "base": ("base", ()),
    "cpu-demo": ("overlays/cpu-demo", ()),
    "single-gpu": ("overlays/single-gpu", ()),
    "multi-node-ib": ("overlays/multi-node-ib", ()),
    "gradual": ("overlays/single-gpu", ("components/incremental-upgrade",)),
    "redis": ("overlays/multi-node-ib", ("components/redis",)),
    "monitoring": ("overlays/single-gpu", ("../monitoring",)),
    "jobs": ("jobs", ()),
}
IMAGE_ROOT = "/opt/fusionray/"


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Object]]:
    shutil.copytree(KUBERAY.parent, tmp_path_factory.mktemp("built") / "cluster", dirs_exist_ok=True)
    copied = tmp_path_factory.getbasetemp() / "built0" / "cluster" / "kuberay"
    found = {}
    for name, (overlay, components) in SETS.items():
        folder = copied / f"built-{name}"
        folder.mkdir()
        wanted = {
            "resources": [f"../{overlay}"],
            **({"components": [f"../{component}" for component in components]} if components else {}),
        }
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(wanted))
        found[name] = build(folder)
    return found


def pick(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = (each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name)
    return found


def is_custom(found: Object) -> bool:
    return bool(found["apiVersion"] == "ray.io/v1")


def is_monitoring(found: Object) -> bool:
    return bool(found["apiVersion"] == "monitoring.coreos.com/v1")


@pytest.mark.parametrize("name", SETS)
def test_objects_and_pods_are_valid_for_kubernetes(sets: dict[str, list[Object]], name: str) -> None:
    pods = 0
    for each in sets[name]:
        if is_monitoring(each):
            check_monitoring(each)
        elif not is_custom(each):
            check(each)
        for spec in find_pods(each):
            check({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec})
            pods += 1
    assert pods or name == "jobs"


@needs_definitions
@pytest.mark.parametrize("name", SETS)
def test_clusters_services_and_jobs_are_valid_for_kuberay(sets: dict[str, list[Object]], name: str) -> None:
    custom = [each for each in sets[name] if is_custom(each)]
    assert custom
    for each in custom:
        check_custom(each)


@needs_definitions
def test_the_checkers_find_a_field_that_does_not_exist(sets: dict[str, list[Object]]) -> None:
    cluster = copy.deepcopy(pick(sets["base"], "RayCluster", "fusionray"))
    cluster["spec"]["headGroupSpec"]["template"]["spec"]["container"] = []
    with pytest.raises(jsonschema.ValidationError, match="container"):
        check_custom(cluster)
    cluster["spec"]["headGroupSpec"]["template"]["spec"].pop("container")
    cluster["spec"]["gcsFaultToleranceOptions"]["backend"] = "etcd"
    with pytest.raises(jsonschema.ValidationError, match="etcd"):
        check_custom(cluster)
    account = copy.deepcopy(pick(sets["base"], "ServiceAccount", "fusionray"))
    account["automountToken"] = False
    with pytest.raises(kubernetes_validate.ValidationError, match="automountToken"):
        check(account)
    monitor = copy.deepcopy(pick(sets["monitoring"], "PodMonitor", "fusionray"))
    monitor["spec"]["podMetricsEndpoints"][0]["intervall"] = "15s"
    with pytest.raises(AssertionError, match="intervall"):
        check_monitoring(monitor)


@pytest.mark.parametrize("name", [name for name in SETS if name != "jobs"])
def test_what_a_pod_names_is_there(sets: dict[str, list[Object]], name: str) -> None:
    objects = sets[name]
    there = {kind: {each["metadata"]["name"] for each in objects if each["kind"] == kind} for kind in ALL_KINDS}
    for key, kind in REFERENCES.items():
        assert set(find_values(objects, key)) <= there[kind], key
    # Secrets hold keys, so they are named here and made by hand: docs/cluster.md says how.
    secrets = {value["name"] for value in find_values(objects, "secretKeyRef")}
    assert secrets == {"fusionray-api-key"} | ({"fusionray-redis"} if name == "redis" else set())
    page = (ROOT / "docs" / "cluster.md").read_text()
    assert all(f"create secret generic {secret}" in page for secret in secrets)


@pytest.mark.parametrize("name", [name for name in SETS if name != "jobs"])
def test_every_object_is_in_the_namespace_of_the_cluster(sets: dict[str, list[Object]], name: str) -> None:
    everywhere = {"Namespace", "PriorityClass"}
    places = {each["metadata"].get("namespace") for each in sets[name] if each["kind"] not in everywhere}
    assert places == {"fusionray"}


def test_prometheus_finds_the_metrics_of_every_pod(sets: dict[str, list[Object]]) -> None:
    objects = sets["monitoring"]
    (endpoint,) = pick(objects, "PodMonitor", "fusionray")["spec"]["podMetricsEndpoints"]
    pods = [pod for each in objects if is_custom(each) for pod in find_pods(each)]
    assert len(pods) >= 5
    for pod in pods:
        ports = {port["name"]: port["containerPort"] for port in pod["containers"][0]["ports"]}
        assert ports[endpoint["port"]] == 8080, "where Ray serves them under KubeRay"
    (rule,) = pick(objects, "NetworkPolicy", "prometheus")["spec"]["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": 8080}]
    (relabeled,) = endpoint["relabelings"]
    rules = (ROOT / "cluster" / "monitoring" / "rules.yaml").read_text()
    assert relabeled["replacement"] in rules[rules.index("up{job=~") :].split('"')[1].split("|")


def test_rules_and_dashboards_are_those_of_every_prometheus(sets: dict[str, list[Object]]) -> None:
    monitoring = ROOT / "cluster" / "monitoring"
    assert (monitoring / "kubernetes" / "prometheus-rule.yaml").read_text() == build_rule()
    rule = pick(sets["monitoring"], "PrometheusRule", "fusionray")
    assert rule["spec"] == yaml.safe_load((monitoring / "rules.yaml").read_text())
    shown = pick(sets["monitoring"], "ConfigMap", "fusionray-dashboards")
    files = {path.name: path.read_text() for path in (monitoring / "dashboards").iterdir()}
    assert shown["data"] == files
    assert shown["metadata"]["labels"]["grafana_dashboard"] == "1"


ALL_KINDS = ("ServiceAccount", "PriorityClass", "PersistentVolumeClaim")
REFERENCES = {
    "serviceAccountName": "ServiceAccount",
    "priorityClassName": "PriorityClass",
    "claimName": "PersistentVolumeClaim",
}


@pytest.mark.parametrize("name", [name for name in SETS if name != "jobs"])
def test_every_pod_keeps_the_restricted_security_standard(sets: dict[str, list[Object]], name: str) -> None:
    for spec in find_pods(sets[name]):
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        # The head has the account that KubeRay makes for the autoscaler.
        if spec["containers"][0]["name"] != "ray-head":
            assert spec["automountServiceAccountToken"] is False
        for container in spec["containers"]:
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"]
            image, _, tag = container["image"].partition(":")
            assert (image == "fusionray" and tag in ("cpu", "cuda")) or image == "redis"
    labels = pick(sets[name], "Namespace", "fusionray")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert pick(sets[name], "NetworkPolicy", "deny-all")["spec"] == {
        "podSelector": {},
        "policyTypes": ["Ingress", "Egress"],
    }


@pytest.mark.parametrize("name", [name for name in SETS if name != "jobs"])
def test_object_stores_fit_into_shared_memory_and_that_into_the_pod(sets: dict[str, list[Object]], name: str) -> None:
    groups = [
        group
        for each in sets[name]
        if is_custom(each)
        for spec in [each["spec"].get("rayClusterConfig", each["spec"])]
        for group in [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    ]
    assert groups
    for group in groups:
        spec = group["template"]["spec"]
        (shared,) = (volume for volume in spec["volumes"] if volume["name"] == "shared-memory")
        size = parse_bytes(shared["emptyDir"]["sizeLimit"])
        assert int(group["rayStartParams"]["object-store-memory"]) <= size
        assert 2 * size <= parse_bytes(spec["containers"][0]["resources"]["limits"]["memory"])


def parse_bytes(text: str) -> int:
    return int(text.removesuffix("Gi")) * 2**30


def test_every_cluster_runs_the_ray_of_the_image_with_a_token(sets: dict[str, list[Object]]) -> None:
    for objects in sets.values():
        assert set(find_values(objects, "rayVersion")) <= {version("ray")}
        for each in filter(is_custom, objects):
            spec = each["spec"].get("rayClusterConfig", each["spec"])
            if "headGroupSpec" in spec:
                assert spec["authOptions"] == {"mode": "token"}


def test_gpu_workers_take_whole_gpus_and_trainings_may_have_none(sets: dict[str, list[Object]]) -> None:
    for name, gpus in (("single-gpu", 1), ("multi-node-ib", 8)):
        cluster = pick(sets[name], "RayCluster", "fusionray")
        (group,) = (group for group in cluster["spec"]["workerGroupSpecs"] if group["groupName"] == "gpu")
        (container,) = group["template"]["spec"]["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == gpus
        assert group["minReplicas"] == 0
        assert container["image"] == "fusionray:cuda"


def find_entrypoints(objects: list[Object]) -> list[str]:
    return list(find_values(objects, "entrypoint"))


def test_every_job_starts_a_verb_with_arguments_that_it_takes(sets: dict[str, list[Object]]) -> None:
    started = []
    for entrypoint in find_entrypoints(sets["jobs"]):
        python, script, *arguments = shlex.split(entrypoint)
        assert python == "python"
        path = ROOT / script.removeprefix(IMAGE_ROOT)
        verb = path.stem
        assert f'run_job("{verb}")' in path.read_text()
        given = [argument.replace(IMAGE_ROOT, f"{ROOT}/") for argument in arguments]
        parse([verb, *given])
        assert all(Path(argument).exists() for argument in given if argument.startswith(str(ROOT)))
        started.append(verb)
    assert sorted(started) == ["evaluate", "export", "prepare", "train", "tune"]


@pytest.mark.slow(seconds=20)
def test_the_training_job_takes_a_step(sets: dict[str, list[Object]]) -> None:
    (entrypoint,) = (each for each in find_entrypoints(sets["jobs"]) if "train.py" in each)
    _, script, *arguments = shlex.split(entrypoint.replace(IMAGE_ROOT, f"{ROOT}/"))
    printed = run_python(script, *arguments, "--dry-run")
    assert "one step" in printed


def test_the_service_is_one_that_the_product_starts(sets: dict[str, list[Object]]) -> None:
    for name in ("base", "cpu-demo", "single-gpu", "multi-node-ib"):
        service: Any = pick(sets[name], "RayService", "fusionray")["spec"]
        (application,) = yaml.safe_load(service["serveConfigV2"])["applications"]
        module, _, function = application["import_path"].partition(":")
        assert callable(getattr(import_module(module), function))
        config = ServeConfig.model_validate(application["args"])
        assert config.models[0].bundle == "/data/bundle"
        assert config.listen_on_every_node is False
