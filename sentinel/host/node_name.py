"""The name of this node in reports, metrics and notifications."""

from __future__ import annotations

import os
import socket

#: In a pod, the name of the host is that of the pod, which changes; Kubernetes gives the node's in
#: a variable (the downward API). dcgm-exporter reads the same one.
VARIABLE = "NODE_NAME"


def node_name() -> str:
    """Read the name of this node: `$NODE_NAME`, or else the name of the host."""
    return os.environ.get(VARIABLE, "").strip() or socket.gethostname()
