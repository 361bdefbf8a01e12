// Package advice has the knowledge that a handle gains from its transactions: where to look, which groups to leave
// alone, how much to do at once, and when to wake. Nothing here reads or writes a key, or imports a package that could.
// A wrong guess costs time, never order, exclusion or a message.
package advice

// Outcome is how a transaction has ended, with all its attempts.
type Outcome int

// The outcomes.
const (
	Applied Outcome = iota
	Failed          // without effect
	Unknown         // perhaps applied, perhaps not, perhaps later
)

// Random is a source of random numbers.
type Random interface {
	N(below int) int
	Float() float64 // in [0, 1)
}
