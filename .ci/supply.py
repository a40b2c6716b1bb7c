"""The supply chain: licences of what users install, an SBOM, known vulnerabilities of the lock. `make check-supply`.

`licences` reads the installed packages, `sbom` writes build/sbom.json, `audit` asks a vulnerability database. The exit
status is 1 if something is wrong (a vulnerability, a licence), and 3 if not every package could be looked up.

The tools have an environment of their own: beside them, `import ray` takes a second longer in every process, since
jsonschema then imports a parser that builds its grammar (rfc3987-syntax).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
RULES = Path(__file__).with_name("licences.yaml")
LOCK = ROOT / "requirements.lock"
TOOLS = ROOT / ".venv-supply" / "bin" / "python"
PRODUCT = "fusionray"
VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read())
raise SystemExit(f"not valid CycloneDX 1.6: {fault}" if fault else 0)
"""
# What users may ask for; `dev` is for who works on the product.
EXTRAS = ("openvino", "postgres")
# What they install next to the product, without its dependencies (docs/installation.md).
BESIDE = ("mediapipe",)
WRONG, UNKNOWN = 1, 3
OSV = "https://api.osv.dev/v1/query"
LONGEST = 200
CLASSIFIER = "License :: "


def list_installed(
    root: str = PRODUCT, extras: Sequence[str] = EXTRAS, beside: Sequence[str] = BESIDE
) -> dict[str, Distribution]:
    """Return what users install, by name: the product's dependencies and theirs, where their markers hold here."""
    found = {name: distribution(name) for name in beside}
    seen: dict[str, set[str]] = {}
    open_names: list[tuple[str, set[str]]] = [(root, set(extras))]
    while open_names:
        name, wanted = open_names.pop()
        # One may want `uvicorn`, and another one later `uvicorn[standard]`, which brings more.
        if name in seen and wanted <= seen[name]:
            continue
        seen[name] = seen.get(name, set()) | wanted
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue  # for another platform
        for text in found[name].requires or ():
            needed = Requirement(text)
            chosen = [{"extra": extra} for extra in ("", *seen[name])]
            if not needed.marker or any(needed.marker.evaluate(environment) for environment in chosen):
                open_names.append((canonicalize_name(needed.name), needed.extras))
    del found[root]
    return dict(sorted(found.items()))


def read_licence(package: Distribution) -> str:
    """Return the licence that a package states, as an SPDX expression if it does so, else in its own words."""
    metadata = package.metadata
    if metadata.get("License-Expression"):
        return str(metadata["License-Expression"])
    classifiers = [text for text in metadata.get_all("Classifier") or () if text.startswith(CLASSIFIER)]
    named = [last for text in classifiers if (last := text.split(" :: ")[-1]) not in ("OSI Approved", "DFSG approved")]
    if named:
        return " AND ".join(sorted(named))
    # Some paste the whole text: its first line names it.
    return (metadata.get("License") or "").strip().split("\n")[0].strip() or "not stated"


def check_licences(packages: Mapping[str, Distribution], rules: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each package whose licence is neither allowed nor explained."""
    allowed = {spelling for spdx, spellings in rules["allowed"].items() for spelling in (spdx, *spellings)}
    for name, package in packages.items():
        stated, explained = read_licence(package), find_explained(name, rules)
        if explained:
            if explained["stated"] not in (stated, None):
                was = explained["stated"]
                yield f"{name}: states '{stated}' now, not '{was}'; look again, and correct {RULES.name}"
            continue
        parts = [part.strip() for part in re.split(r"\s(?:AND|OR)\s", stated)]
        strange = [part for part in parts if part not in allowed and part.strip("()") not in allowed]
        if strange:
            yield f"{name}: licence '{strange[0]}' is not allowed; replace the package, or explain it in {RULES.name}"
    for name in rules["explained"]:
        if name not in packages and "*" not in name:
            yield f"{name}: is explained in {RULES.name}, but not installed any more; delete the entry"


def find_explained(name: str, rules: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Find the entry of a package, which may be a pattern such as `nvidia-*`."""
    return next((entry for pattern, entry in rules["explained"].items() if fnmatch(name, pattern)), None)


def write_licences(packages: Mapping[str, Distribution], rules: Mapping[str, Any]) -> None:
    """Write build/licences.md: each package with version and licence, and why an unusual one is there."""
    rows = ["| package | version | licence | why |", "|---|---|---|---|"]
    for name, package in packages.items():
        why = (find_explained(name, rules) or {}).get("why", "")
        rows.append(f"| {name} | {package.version} | {read_licence(package)} | {why} |")
    BUILD.mkdir(exist_ok=True)
    (BUILD / "licences.md").write_text(
        "# Licences of what users install\n\n" + "\n".join(rows) + "\n", encoding="utf-8"
    )


def run_licences(_: argparse.Namespace) -> int:
    packages, rules = list_installed(), yaml.safe_load(RULES.read_text(encoding="utf-8"))
    faults = list(check_licences(packages, rules))
    write_licences(packages, rules)
    for fault in faults:
        print(f"licences: {fault}", file=sys.stderr)
    print(f"licences: {len(packages)} packages, {len(faults)} not allowed; build/licences.md")
    return WRONG if faults else 0


def run_sbom(_: argparse.Namespace) -> int:
    """Write the bill of materials in CycloneDX; what only development needs is `excluded`."""
    # Validated below, after the changes: each validation takes 15 s.
    options = ["--no-validate", "--output-reproducible", "--pyproject", str(ROOT / "pyproject.toml"), "-o", "-"]
    done = run_tool("-m", "cyclonedx_py", "environment", sys.executable, *options)
    if done.returncode != 0:
        print(f"sbom: cyclonedx-py failed: {last_line(done.stderr)}", file=sys.stderr)
        return WRONG
    needed = list_installed()
    document = complete_sbom(json.loads(done.stdout), needed)
    text = json.dumps(document, indent=1, sort_keys=True) + "\n"
    checked = run_tool("-c", VALIDATE, text=text)
    BUILD.mkdir(exist_ok=True)
    (BUILD / "sbom.json").write_text(text, encoding="utf-8")
    if checked.returncode != 0:
        print(f"sbom: build/sbom.json: {last_line(checked.stderr)}", file=sys.stderr)
        return WRONG
    print(f"sbom: {len(needed)} required of {len(document['components'])} components; build/sbom.json")
    return 0


def complete_sbom(document: dict[str, Any], needed: Mapping[str, Distribution]) -> dict[str, Any]:
    """Name the product once, with its version, give each component a scope, and remove the paths of this machine."""
    product = document["metadata"]["component"]
    # Installed from a checkout, it is found a second time, as a dependency that nothing depends on.
    twins = {part["bom-ref"] for part in document["components"] if canonicalize_name(part["name"]) == PRODUCT}
    document["components"] = [part for part in document["components"] if part["bom-ref"] not in twins]
    document["dependencies"] = [entry for entry in document["dependencies"] if entry["ref"] not in twins]
    product["version"] = distribution(PRODUCT).version
    for part in (product, *document["components"]):
        part["externalReferences"] = [
            each for each in part.get("externalReferences", []) if not each["url"].startswith("file:")
        ]
    for part in document["components"]:
        part["scope"] = "required" if canonicalize_name(part["name"]) in needed else "excluded"
    return document


def run_audit(options: argparse.Namespace) -> int:
    """Look up every package of the lock; a package that could not be looked up is not called safe."""
    command = ["-m", "pip_audit", "--requirement", str(options.lock), "--disable-pip", "--no-deps"]
    service = ["--vulnerability-service", "osv", "--osv-url", options.database, "--timeout", "10"]
    done = run_tool(*command, *service, "--progress-spinner", "off", "--format", "json")
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        print(
            f"audit: vulnerabilities were NOT checked: no answer from {options.database} ({last_line(done.stderr)}); "
            "run this where it can be reached, or name another OSV server with --database",
            file=sys.stderr,
        )
        return UNKNOWN
    skipped = [each["name"] for each in found if "skip_reason" in each]
    vulnerable = [each for each in found if each.get("vulns")]
    for each in vulnerable:
        for fault in each["vulns"]:
            fixed = ", ".join(fault["fix_versions"]) or "no version yet"
            print(f"audit: {each['name']} {each['version']}: {fault['id']}, fixed in {fixed}", file=sys.stderr)
    if skipped or not found:
        which = ", ".join(skipped) or f"{options.lock} names no package"
        print(f"audit: NOT checked: {which}; pin exact versions in the lock", file=sys.stderr)
    print(f"audit: {len(found)} packages, {len(vulnerable)} vulnerable, {len(skipped)} not looked up")
    return WRONG if vulnerable else UNKNOWN if skipped or not found else 0


def run_tool(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run a Python of the tools' environment.

    Raises: SystemExit if the tools are not installed.
    """
    if not TOOLS.exists():
        raise SystemExit(f"{TOOLS}: the tools are not installed; run `make supply-tools`")
    return subprocess.run([str(TOOLS), *arguments], input=text, capture_output=True, text=True, check=False)  # noqa: S603 - this project's tools


def last_line(text: str) -> str:
    """Return the last line of what a tool says; of a long one, its end, where the reason stands."""
    line = (text.strip() or "it said nothing").splitlines()[-1]
    return line if len(line) <= LONGEST else f"...{line[-LONGEST:]}"


STEPS = {"licences": run_licences, "sbom": run_sbom, "audit": run_audit}


def main(arguments: list[str] | None = None) -> int:
    """Run the named steps, all by default; return the worst status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", choices=STEPS, default=list(STEPS), metavar="licences|sbom|audit")
    parser.add_argument("--lock", type=Path, default=LOCK, help="requirements to audit")
    parser.add_argument("--database", metavar="URL", default=OSV, help="an OSV server (%(default)s)")
    options = parser.parse_args(arguments)
    statuses = [STEPS[step](options) for step in options.steps]
    return WRONG if WRONG in statuses else max(statuses)


if __name__ == "__main__":
    raise SystemExit(main())
