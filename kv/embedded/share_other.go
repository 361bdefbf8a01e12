//go:build !linux && !darwin

package embedded

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"time"
)

// On these systems a folder belongs to one process at a time.

const Sharable = false

const openFlags = 0

// mayWrite returns true: on these systems only the modes of the files decide.
func mayWrite(string) bool { return true }

// userOf returns -1, because files do not have a numeric user on every system.
func userOf(fs.FileInfo) int { return -1 }

func (d *dir) lock() (*os.File, error) { return nil, errors.ErrUnsupported }

// lockFile leaves the lock to bbolt.
func lockFile(*os.File, bool, time.Duration) error { return nil }

// unlock closes the database file after a panic of bbolt, whose Close could wait without end.
func unlock(f *os.File) { _ = f.Close() }

// addressSpace returns most, because the limit is not known here.
func addressSpace(most int) int { return most }

func peer(net.Conn) (uid, pid int, err error) { return 0, 0, errors.ErrUnsupported }

func (d *dir) fileHeld() bool { return false }

// alive returns true, because the processes are not known here.
func alive(int) bool { return true }
