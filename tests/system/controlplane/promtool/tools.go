//go:build tools

// Package promtool pins promtool, which checks the metrics, the dashboard's queries and the alerts in the tests of the chart.
package promtool

import _ "github.com/prometheus/prometheus/cmd/promtool"
