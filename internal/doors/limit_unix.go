//go:build unix

package doors

import (
	"math"
	"syscall"
)

// limit returns how many files the process may open. 0 = there is no limit.
func limit() int {
	var r syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r) != nil || uint64(r.Cur) > math.MaxInt32 {
		return 0
	}
	return int(r.Cur)
}
