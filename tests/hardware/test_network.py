from __future__ import annotations

import socket

import pytest

from fusionray.hardware.network import find_interface, list_addresses


def test_the_loopback_interface_has_the_loopback_address() -> None:
    assert find_interface("127.0.0.1") == "lo"


def test_the_address_by_which_this_machine_is_reached_has_an_interface() -> None:
    # The interface through which packets to the outside leave; a datagram socket sends nothing when it connects.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no route to the outside")
        address = probe.getsockname()[0]
    name = find_interface(address)
    assert name in {name for _, name in socket.if_nameindex()}
    assert (name == "lo") == address.startswith("127.")


def test_every_address_leads_back_to_an_interface_that_has_it() -> None:
    addresses = list(list_addresses())
    assert addresses
    for name, address in addresses:
        assert (find_interface(str(address)), address) in addresses, name


def test_an_address_of_another_machine_has_none() -> None:
    assert find_interface("192.0.2.1") is None
    assert find_interface("2001:db8::1") is None
