//go:build !linux && !darwin

package embedded

import (
	"errors"
	"io"
)

// Elsewhere a folder belongs to one process at a time.

const Sharable = false

// mayWrite is answered by the modes alone.
func mayWrite(string) bool { return true }

func sharable(string) bool { return false }

func lockFolder(string) (io.Closer, error) { return nil, errors.ErrUnsupported }

func giveToOwner(string, string) error { return errors.ErrUnsupported }
