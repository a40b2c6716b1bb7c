from __future__ import annotations

from fusionray.serving.http.metrics_page import merge_pages

ONE = """# HELP ray_other_total not ours
# TYPE ray_other_total counter
ray_other_total{a="1"} 1.0
# HELP ray_fusionray_faces_total Faces fused.
# TYPE ray_fusionray_faces_total counter
ray_fusionray_faces_total{node="1"} 3.0
"""
OTHER = """# HELP ray_fusionray_faces_total Faces fused.
# TYPE ray_fusionray_faces_total counter
ray_fusionray_faces_total{node="2"} 4.0
# HELP ray_serve_num_requests Requests.
# TYPE ray_serve_num_requests gauge
ray_serve_num_requests{node="2"} 1.0
"""


def test_families_of_several_nodes_are_described_once_and_others_are_left_out() -> None:
    assert merge_pages([ONE, OTHER]).splitlines() == [
        "# HELP ray_fusionray_faces_total Faces fused.",
        "# TYPE ray_fusionray_faces_total counter",
        'ray_fusionray_faces_total{node="1"} 3.0',
        'ray_fusionray_faces_total{node="2"} 4.0',
        "# HELP ray_serve_num_requests Requests.",
        "# TYPE ray_serve_num_requests gauge",
        'ray_serve_num_requests{node="2"} 1.0',
    ]
