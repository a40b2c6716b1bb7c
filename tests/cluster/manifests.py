"""Manifests as kubectl builds them, and what checks them: the schemas of Kubernetes and of KubeRay."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from cloudcoil.models.prometheus_operator import v1 as prometheus_operator

ROOT = Path(__file__).resolve().parents[2]
KUBERAY = ROOT / "cluster" / "kuberay"
# KubeRay's custom resource definitions, which are not part of this project.
DEFINITIONS = ROOT.parent / "shared" / "schemas"
VERSION = "1.37"

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is missing, which has kustomize")
needs_definitions = pytest.mark.skipif(
    not DEFINITIONS.is_dir(), reason="KubeRay's definitions are not in ../shared/schemas"
)

Object = dict[str, Any]


def build(folder: Path) -> list[Object]:
    """Build a folder with kustomize."""
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def check(found: Object) -> None:
    """Check an object of Kubernetes itself; an unknown field is an error.

    Raises: kubernetes_validate.ValidationError.
    """
    kubernetes_validate.validate(found, VERSION, strict=True)


@lru_cache
def load_definition(kind: str) -> Object:
    """Load the schema of a kind of KubeRay's, in which unknown fields are errors: the API server would drop them."""
    text = (DEFINITIONS / f"ray.io_{kind.lower()}s.yaml").read_text()
    versions = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))["spec"]["versions"]
    schema: Object = next(each for each in versions if each["name"] == "v1")["schema"]["openAPIV3Schema"]
    for name, part in schema["properties"].items():
        if name != "metadata":
            close(part)
    return schema


def close(schema: Any) -> None:
    """Allow no other fields than those named, in a schema and all parts of it."""
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema.setdefault("additionalProperties", False)
        for part in schema.values():
            close(part)


def check_custom(found: Object) -> None:
    """Check an object of KubeRay.

    Raises: jsonschema.ValidationError.
    """
    # Not `jsonschema.validate`, which would first check the schema itself, a megabyte, each time.
    jsonschema.Draft202012Validator(load_definition(found["kind"])).validate(found)


def check_monitoring(found: Object) -> None:
    """Check an object of the Prometheus Operator by its models; an unknown field is an error.

    Raises: pydantic.ValidationError, AssertionError naming the fields that the models do not have.
    """
    model = getattr(prometheus_operator, found["kind"])
    known = model.model_validate(found).model_dump(by_alias=True, exclude_unset=True, mode="json")
    unknown = find_keys(found["spec"]) - find_keys(known["spec"])
    assert not unknown, f"{found['kind']} has no {', '.join(sorted(unknown))}"


def find_keys(found: Any) -> set[str]:
    """Find all keys of an object and of its parts."""
    if isinstance(found, dict):
        return {*found, *(key for part in found.values() for key in find_keys(part))}
    return {key for part in found for key in find_keys(part)} if isinstance(found, list) else set()


def find_pods(found: Any) -> Iterator[Object]:
    """Find the templates of pods anywhere in an object."""
    if isinstance(found, dict):
        if "template" in found and "containers" in found["template"].get("spec", {}):
            yield found["template"]["spec"]
        for part in found.values():
            yield from find_pods(part)
    elif isinstance(found, list):
        for part in found:
            yield from find_pods(part)


def find_values(found: Any, key: str) -> Iterator[Any]:
    """Find the values of a key anywhere in an object."""
    if isinstance(found, dict):
        if key in found:
            yield found[key]
        for part in found.values():
            yield from find_values(part, key)
    elif isinstance(found, list):
        for part in found:
            yield from find_values(part, key)
