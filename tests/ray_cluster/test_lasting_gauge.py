from __future__ import annotations

import pickle
from unittest.mock import Mock, call

from fusionray.ray_cluster.lasting_gauge import GAUGES, LastingGauge
from tests.support.waiting import wait_for


def test_a_value_that_is_set_once_is_exported_again_and_again() -> None:
    gauge = LastingGauge("fusionray_test", "A gauge.", ("kind",))
    gauge.gauge = Mock()
    gauge.set(1.0, {"kind": "a"})
    gauge.set(2.0, {"kind": "a"})
    gauge.set(3.0, {"kind": "b"})
    gauge.gauge.reset_mock()
    wait_for(lambda: gauge.gauge.set.call_count >= 4)
    assert gauge.gauge.set.call_args_list[:2] == [call(2.0, {"kind": "a"}), call(3.0, {"kind": "b"})]


def test_a_gauge_that_is_gone_is_exported_no_more_and_a_copy_has_no_values() -> None:
    gauge = LastingGauge("fusionray_gone", "A gauge.")
    gauge.set(1.0)
    copy = pickle.loads(pickle.dumps(gauge))
    assert copy.described == gauge.described
    assert not copy.values
    del gauge
    wait_for(lambda: [each for each in GAUGES if each.described[0] == "fusionray_gone"] == [copy])
