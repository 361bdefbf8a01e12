//go:build !linux && !darwin

package embedded

import (
	"errors"
	"io/fs"
	"net"
	"os"
)

// Elsewhere a folder belongs to one process at a time.

const Sharable = false

const openFlags = 0

// mayWrite is answered by the modes alone.
func mayWrite(string) bool { return true }

// userOf is asked of nobody: files have no user that is a number everywhere.
func userOf(fs.FileInfo) int { return -1 }

func (d *dir) lock() (*os.File, error) { return nil, errors.ErrUnsupported }

func peerUser(net.Conn) (int, error) { return 0, errors.ErrUnsupported }
