package layer

import "time"

// RetryPolicy says how long a group waits after its head has failed. Only this group waits: other groups run on, and no
// worker is blocked.
type RetryPolicy struct {
	Kind RetryKind
	// Base is the wait after the first failure: MinRetry to MaxDelay; 0 = DefaultRetryBase.
	Base time.Duration
	// Max is the longest wait of RetryExponential: Base to MaxDelay; 0 = DefaultRetryMax, or Base if longer.
	Max time.Duration
}

// RetryKind is how a wait grows with the failures of an item.
type RetryKind int

// The kinds.
const (
	// RetryExponential doubles the wait with each failure, from Base to Max. The wait is random between half and whole,
	// because otherwise groups failing together would all come back together.
	RetryExponential RetryKind = iota
	// RetryConstant waits for Base each time.
	RetryConstant
	// RetryAtOnce does not wait.
	RetryAtOnce
)

var retryNames = []string{"exponential", "constant", "at_once"}

func (k RetryKind) String() string { return nameOf(k, retryNames) }

// Defaults and limits of a retry policy.
const (
	DefaultRetryBase = 100 * time.Millisecond
	DefaultRetryMax  = time.Minute
	MinRetry         = time.Millisecond
)

// delay returns the wait after the given number of failures, 1 or more. random is in [0, 1).
func (p RetryPolicy) delay(failures int, random float64) time.Duration {
	switch p.Kind {
	case RetryAtOnce:
		return 0
	case RetryConstant:
		return p.Base
	}
	d := p.Base
	for ; failures > 1 && d < p.Max; failures-- {
		d *= 2
	}
	d = min(d, p.Max)
	return d/2 + time.Duration(random*float64(d-d/2))
}
