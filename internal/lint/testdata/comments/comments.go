package comments

const secretBound = 3

// Options are bounded by secretBound.
type Options struct {
	hidden int // up to secretBound
}

// Bound is secretBound, for users.
func Bound() int { return secretBound }
