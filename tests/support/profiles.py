"""What a profile says of a kind, for tests of what lines and searches make of it."""

from coe.inspector.profile import KindProfile
from coe.runtime.cost_fit import LatencyLine

MB = 1_000_000


def kind_profile(threads=1, *, per_image_s=0.02, base_s=0.01, **more):
    """Return the figures of a kind `k` on a CPU: 10 MB of weights that load in 50 ms, batches of at most 4 images."""
    usual = {
        **{"kind": "k", "input_size": 8, "device": "cpu", "backend": "torch", "precision": "fp32", "batches": ()},
        **{"max_batch": 4, "weights_bytes": 10 * MB, "activation_bytes": MB, "workspace_bytes": 0, "load_s": 0.05},
    }
    line = LatencyLine(per_image_s=per_image_s, base_s=base_s, error=0.0)
    return KindProfile(**usual | {"threads": threads, "line": line} | more)
