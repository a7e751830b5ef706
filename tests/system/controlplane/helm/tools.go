//go:build tools

// Package helm pins Helm, which renders the chart for the tests and for `make manifests`.
package helm

import _ "helm.sh/helm/v3/cmd/helm"
