"""What the programs of the test bed switch on beyond the defaults of their version of Kubernetes.

Devices may be tainted by a DeviceTaintRule in 1.36 as in 1.37. Partitions, taints in ResourceSlices, consumable
capacity and extended resource names are on by default from 1.36 on, and stay off in older versions.
"""

from tests.system.controlplane.build import MINOR

GATES = {"1.36": ("--feature-gates=DRADeviceTaintRules=true",)}.get(MINOR, ())
"""Flags for kube-apiserver, kube-scheduler and kube-controller-manager."""
SERVED = {"1.36": ("--runtime-config=resource.k8s.io/v1beta2/devicetaintrules=true",)}.get(MINOR, ())
"""Flags for kube-apiserver."""
TAINT_RULES = f"/apis/resource.k8s.io/{'v1beta2' if MINOR == '1.36' else 'v1'}/devicetaintrules"
"""Where DeviceTaintRules are; versions before 1.36 have none here."""
HAS_DEVICE_FEATURES = MINOR not in {"1.34", "1.35"}
"""Whether the devices of DRA may have partitions, taints, consumable capacity and extended resource names."""
