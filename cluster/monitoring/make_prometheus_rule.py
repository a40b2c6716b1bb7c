"""Write kubernetes/prometheus-rule.yaml, the object of the Prometheus Operator, from rules.yaml."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
HEAD = """\
# Written by make_prometheus_rule.py from rules.yaml: change that, and run it again.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: fusionray
  labels: {release: kube-prometheus-stack}
spec:
"""


def build() -> str:
    """Put the groups of rules.yaml, with their comments, under `spec`."""
    groups = (HERE / "rules.yaml").read_text()
    lines = groups[groups.index("groups:") :].splitlines()
    return HEAD + "\n".join(f"  {line}".rstrip() for line in lines) + "\n"


if __name__ == "__main__":
    (HERE / "kubernetes" / "prometheus-rule.yaml").write_text(build())
