//go:build !linux && !darwin

package embedded

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"time"
)

// Elsewhere a folder belongs to one process at a time.

const Sharable = false

const openFlags = 0

// mayWrite is answered by the modes alone.
func mayWrite(string) bool { return true }

// userOf is asked of nobody: files have no user that is a number everywhere.
func userOf(fs.FileInfo) int { return -1 }

func (d *dir) lock() (*os.File, error) { return nil, errors.ErrUnsupported }

// lockFile leaves the lock to bbolt.
func lockFile(*os.File, bool, time.Duration) error { return nil }

// addressSpace is not known here.
func addressSpace(most int) int { return most }

func peer(net.Conn) (uid, pid int, err error) { return 0, 0, errors.ErrUnsupported }

func (d *dir) fileHeld() bool { return false }

// alive is not known here.
func alive(int) bool { return true }
