import pytest
from tiny_encoders import tiny_network

from onepass.encoders import efficientnet
from onepass.encoders.whole_numbers import freeze, weights_sha256


@pytest.fixture
def tiny(monkeypatch):
    """Puts small random networks in the place of the published ones, for images of 32 pixels."""
    networks = {f"efficientnet-lite{n}": tiny_network(seed=n) for n in range(3)}
    hashes = {name: weights_sha256(freeze(net, whole=True)) for name, net in networks.items()}
    monkeypatch.setattr(efficientnet, "pretrained", networks.__getitem__)
    monkeypatch.setattr(efficientnet, "DERIVED", hashes)
    return networks
