//go:build tools

// Package volcano pins the programs of Volcano, with its API module of the same minor version: its own is not served.
package volcano

import (
	_ "volcano.sh/volcano/cmd/controller-manager"
	_ "volcano.sh/volcano/cmd/scheduler"
)
