//go:build tools

// Package kwok pins the simulated kubelet of the real test bed; its Kubernetes libraries differ from the control plane's.
package kwok

import _ "sigs.k8s.io/kwok/cmd/kwok"
