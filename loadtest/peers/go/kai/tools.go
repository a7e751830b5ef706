//go:build tools

// Package kai pins KAI-Scheduler's programs; its Kubernetes libraries differ from the control plane's.
package kai

import (
	_ "github.com/NVIDIA/KAI-scheduler/cmd/binder"
	_ "github.com/NVIDIA/KAI-scheduler/cmd/podgrouper"
	_ "github.com/NVIDIA/KAI-scheduler/cmd/scheduler"
)
