//go:build !broken

package layer

// lacks reports whether this build leaves a guard out: never.
func lacks(guard) bool { return false }

// The guards of package worker are used by the broken build alone.
var _ = [...]guard{guardExtendApart, guardTxBound}
