"""Two connected VIs in one process, for tests of what programs do with VIs."""

from __future__ import annotations

import threading
from typing import Any

from waiting import LIMIT_S

from viakit import via


def connected(nic: via.Nic, other: via.Nic | None = None, **attributes: Any) -> tuple[via.Vi, via.Vi]:
    """Return a VI of *nic* and one of *other* (default: *nic*), with these attributes. The second is the client."""
    a, b = nic.create_vi(**attributes), (other or nic).create_vi(**attributes)
    asking = threading.Thread(target=lambda: b.connect(nic.address / "pair", LIMIT_S, retry=True))
    asking.start()
    nic.connect_wait("pair", LIMIT_S).accept(a)
    asking.join(LIMIT_S)
    assert b.state is via.ViState.CONNECTED
    return a, b
