//go:build broken

package sim_test

// known is a run that finds a violation.
type known struct {
	profile string
	seed    uint64
}

// caught are the guards that the simulation misses when they are left out, with a run that does.
var caught = map[string]known{}
