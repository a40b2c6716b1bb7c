"""The supply chain: licences of what users install, an SBOM, known vulnerabilities of the lock. `make check-supply`.

`licences` reads the installed packages, `sbom` writes build/sbom.json, `audit` asks a vulnerability database. The exit
status is 1 if something is wrong, and 3 if the database could not be asked: then nothing is known.

The tools have an environment of their own: beside them, `import ray` takes a second longer in every process, since
jsonschema then imports a parser that builds its grammar (rfc3987-syntax).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
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
WRONG, UNKNOWN = 1, 3
CLASSIFIER = "License :: "


def list_installed(root: str = PRODUCT, extras: tuple[str, ...] = EXTRAS) -> dict[str, Distribution]:
    """Return what users install, by name: the product's dependencies and theirs, where their markers hold here."""
    found: dict[str, Distribution] = {}
    open_names = [(root, extras)]
    while open_names:
        name, wanted = open_names.pop()
        package = distribution(name)
        for text in package.requires or ():
            needed = Requirement(text)
            chosen = [{"extra": extra} for extra in ("", *wanted)]
            if needed.marker and not any(needed.marker.evaluate(environment) for environment in chosen):
                continue
            known = canonicalize_name(needed.name)
            if known in found or known == root:
                continue
            try:
                found[known] = distribution(needed.name)
            except PackageNotFoundError:
                continue  # for another platform
            open_names.append((needed.name, tuple(needed.extras)))
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
    command = [str(TOOLS), "-m", "cyclonedx_py", "environment", sys.executable, "--output-reproducible", "-o", "-"]
    described = ["--pyproject", str(ROOT / "pyproject.toml")]
    done = subprocess.run([*command, *described], capture_output=True, text=True, check=True)  # noqa: S603 - this Python
    document = json.loads(done.stdout)
    needed = list_installed()
    for part in (document["metadata"]["component"], *document["components"]):
        # Where a package lies on this machine concerns nobody.
        part["externalReferences"] = [
            each for each in part.get("externalReferences", []) if not each["url"].startswith("file:")
        ]
    for part in document["components"]:
        part["scope"] = "required" if canonicalize_name(part["name"]) in needed else "excluded"
    text = json.dumps(document, indent=1, sort_keys=True) + "\n"
    checked = subprocess.run([str(TOOLS), "-c", VALIDATE], input=text, capture_output=True, text=True, check=False)  # noqa: S603
    BUILD.mkdir(exist_ok=True)
    (BUILD / "sbom.json").write_text(text, encoding="utf-8")
    if checked.returncode != 0:
        print(f"sbom: build/sbom.json: {checked.stderr.strip()[-300:]}", file=sys.stderr)
        return WRONG
    print(f"sbom: {len(needed)} required of {len(document['components'])} components; build/sbom.json")
    return 0


def run_audit(options: argparse.Namespace) -> int:
    """Look up every package of the lock; a package that could not be looked up is not called safe."""
    command = [str(TOOLS), "-m", "pip_audit", "--requirement", str(options.lock), "--disable-pip", "--no-deps"]
    service = ["--vulnerability-service", "osv", *(["--osv-url", options.database] if options.database else [])]
    asked = [*command, *service, "--timeout", "10", "--progress-spinner", "off", "--format", "json"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)  # noqa: S603 - the lock of this project
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        reason = (done.stderr.strip() or "no answer").splitlines()[-1][-200:]
        print(
            f"audit: the database cannot be asked, so nothing is known of vulnerabilities ({reason})", file=sys.stderr
        )
        return UNKNOWN
    skipped = [each["name"] for each in found if "skip_reason" in each]
    vulnerable = [each for each in found if each.get("vulns")]
    for each in vulnerable:
        for fault in each["vulns"]:
            fixed = ", ".join(fault["fix_versions"]) or "no version yet"
            print(f"audit: {each['name']} {each['version']}: {fault['id']}, fixed in {fixed}", file=sys.stderr)
    print(f"audit: {len(found)} packages, {len(vulnerable)} vulnerable, {len(skipped)} not looked up")
    return WRONG if vulnerable else UNKNOWN if skipped or not found else 0


STEPS = {"licences": run_licences, "sbom": run_sbom, "audit": run_audit}


def main(arguments: list[str] | None = None) -> int:
    """Run the named steps, all by default; return the worst status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", choices=STEPS, default=list(STEPS), metavar="licences|sbom|audit")
    parser.add_argument("--lock", type=Path, default=LOCK, help="requirements to audit")
    parser.add_argument("--database", metavar="URL", help="an OSV server; default: api.osv.dev")
    options = parser.parse_args(arguments)
    statuses = [STEPS[step](options) for step in options.steps]
    return WRONG if WRONG in statuses else max(statuses)


if __name__ == "__main__":
    raise SystemExit(main())
