from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

from fusionray.safety.signing import Signer, build_signer
from tests.safety.certificates import Authority, write_files


@pytest.fixture(scope="session")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="session")
def signer(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Signer:
    """The signer of an operator whose certificate a CA has issued."""
    key = generate_private_key(SECP256R1())
    return build_signer(write_files(tmp_path_factory.mktemp("operator"), key, authority.issue(key)))
