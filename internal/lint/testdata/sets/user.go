package sets

import "fdbfifo/internal/lint/testdata/sets/kind"

func missing(k kind.Kind) bool {
	switch k {
	case kind.A:
		return true
	default:
		return false
	}
}

func whole(k kind.Kind) {
	switch k {
	case kind.A, kind.B:
	}
}
