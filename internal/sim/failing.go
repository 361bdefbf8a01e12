package sim

import (
	"math/rand/v2"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
)

// The result of a call is true: a call that succeeds has had its effect, a call that is refused has had none, and a
// call of unknown outcome may have had its effect. The laws of the model hold each record of a commit to this rule: no
// refused call may have made the record (op.maybeAt, and compareEnqueues for messages). The profile here gives these
// laws work: calls whose attempts end in several ways, one after the other.

// failingProfiles are the profiles of stores that fail, which no seed draws by itself.
var failingProfiles = []string{"failing"}

// failing: commits of unknown outcome, reads and commits that fail for good, and errors whose code says nothing of the
// commit.
func (k *knobs) failing(rng *rand.Rand) {
	k.scarce(rng)
	k.faults[fault.UnknownApplied], k.faults[fault.UnknownLost] = 0.2, 0.1
	k.faults[fault.VersionChangedLate], k.faults[fault.Conflict] = 0.05, 0
	k.faults[fault.CommitFailed], k.faults[fault.UnnamedApplied] = 0.05, 0.05
	k.faults[fault.ReadFailed] = 0.005
	k.hold = 0.2 * rng.Float64()
}

// mayFail reports whether a call of the run may end with the error of a store that fails.
func (k *knobs) mayFail(err error) bool {
	return k.faults[fault.CommitFailed] > 0 && kv.Code(err) == kv.CodeIOError
}
