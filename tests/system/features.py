"""What the programs of the test bed switch on beyond the defaults of their version of Kubernetes.

Devices may be tainted by a DeviceTaintRule in 1.36 as in 1.37. Partitions, taints in ResourceSlices, consumable
capacity and extended resource names are on by default from 1.36 on, and stay off in older versions.
"""

from tests.system.controlplane.build import MINOR

OLDER = MINOR in {"1.34", "1.35"}
HAS_MUTATING_POLICIES = not OLDER
"""Whether the API server can change pods by a policy; else only our webhook holds them."""
GATES = {"1.36": ("--feature-gates=DRADeviceTaintRules=true",)}.get(MINOR, ())
"""Flags for kube-apiserver, kube-scheduler and kube-controller-manager."""
SERVED = {"1.36": ("--runtime-config=resource.k8s.io/v1beta2/devicetaintrules=true",)}.get(MINOR, ())
"""Flags for kube-apiserver."""
TAINT_RULES = f"/apis/resource.k8s.io/{'v1beta2' if MINOR == '1.36' else 'v1'}/devicetaintrules"
"""Where DeviceTaintRules are; versions before 1.36 have none here."""
HAS_DEVICE_FEATURES = not OLDER
"""Whether the devices of DRA may have partitions, taints, consumable capacity and extended resource names."""
WAITS_FOR_WHOLE_POOLS = MINOR != "1.34"
"""Whether kube-scheduler gives away no device of a pool while a ResourceSlice of it is missing."""
