// Package lanes knows the kind of the queue.
package lanes

// Plan has a question and two answers.
type Plan struct{ facets []string }

// IsPlain is a question.
func (p Plan) IsPlain() bool { return len(p.facets) == 0 }

// Intersect says what to do with two lanes. It is an answer that kindAnswers names.
func (p Plan) Intersect(a, b string) bool { return a == b || p.IsPlain() }

// Facets is asked by its length.
func (p Plan) Facets() []string { return p.facets }

// HoldOf is an answer: it returns more than a bool. It is a question where only the bool is used.
func HoldOf(lane string) (item string, ok bool) { return lane, IsHold(lane) }

// IsHold is a question.
func IsHold(lane string) bool { return lane == "hold" }
