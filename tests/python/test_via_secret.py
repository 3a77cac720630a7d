"""VIs with a secret from Python: they connect only with VIs of the same secret, and errors give the reason."""

import secrets
import threading

import pytest
from waiting import LIMIT_S

from viakit import errors, via

KEY = secrets.token_bytes(32)


@pytest.fixture
def nic():
    with via.Nic("loop:test-secret") as nic:
        yield nic


def test_same_secret_connects(nic):
    with nic.create_vi(secret=KEY) as one, nic.create_vi(secret=bytearray(KEY)) as other:
        assert one.secret is True
        one.request_peer(nic.address / "other", local="one", timeout_s=LIMIT_S)
        other.connect_peer(nic.address / "one", local="other", timeout_s=LIMIT_S)
        while one.peer_done() is None:
            pass
        assert one.state is other.state is via.ViState.CONNECTED
        with pytest.raises(errors.InvalidStateError):
            one.secret = None
        assert one.secret is True


def test_another_secret_is_refused(nic):
    with nic.create_vi(secret=KEY) as client, nic.create_vi(secret=secrets.token_bytes(16)) as server:
        refused = []

        def serve():
            request = nic.connect_wait("name", timeout_s=LIMIT_S)
            with pytest.raises(ConnectionRefusedError, match="secret") as caught:
                request.accept(server)
            refused.append(caught.value)
            request.reject()

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(errors.RejectedError):
            client.connect(nic.address / "name", timeout_s=LIMIT_S, retry=True)
        thread.join()
        assert len(refused) == 1
        assert server.state is client.state is via.ViState.IDLE


@pytest.mark.parametrize("length", [0, 1, 15, 33, 1000])
def test_wrong_length(nic, length):
    with pytest.raises(ValueError, match=f"16 to 32 bytes, got {length}"):
        nic.create_vi(secret=b"x" * length)
    with nic.create_vi() as vi:
        assert vi.secret is False
        with pytest.raises(ValueError, match="16 to 32 bytes"):
            vi.secret = b"x" * length
        assert vi.secret is False


def test_secret_is_bytes(nic):
    with nic.create_vi() as vi, pytest.raises(TypeError):
        vi.secret = "a text"
