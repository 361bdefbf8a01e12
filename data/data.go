// Package data holds the real departures that the demo runs on; README.md in this folder names their source.
package data

import _ "embed"

//go:embed flights-20k.csv
var flights string

// Flights returns flights-20k.csv: 20,000 departures in time order under a header line.
func Flights() string { return flights }
