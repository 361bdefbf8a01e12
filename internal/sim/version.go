package sim

import (
	"math/rand/v2"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
)

// drawVersions draws how often a commit ends with 1039, which a client of several versions retries while the commit may
// still land: with half of the seeds, and by itself, so that a seed keeps its other choices.
func (k *knobs) drawVersions(rng *rand.Rand) {
	if rng.IntN(2) > 0 {
		return
	}
	k.faults[fault.VersionChangedLate], k.faults[fault.VersionChangedLost] = 0.05*rng.Float64(), 0.02*rng.Float64()
}

// landsLate are the faults that let a commit land later than its outcome was told.
var landsLate = []fault.Kind{fault.TimedOutLate, fault.VersionChangedLate}

// mayLandLate reports whether a commit that ended so may have been applied later.
func mayLandLate(code int) bool {
	return code == kv.CodeTransactionTimedOut || code == kv.CodeClusterVersionChanged
}

// mayHaveLanded reports whether a commit with that code is in the database, perhaps.
func mayHaveLanded(code int) bool {
	return code == 0 || code == kv.CodeCommitUnknownResult || mayLandLate(code)
}
