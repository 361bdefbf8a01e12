//go:build linux || darwin

package embedded

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// Sharable says whether several processes can have a folder open on this system.
const Sharable = true

// lockFolder locks the folder for this process, as long as that lives or the lock is closed; errHeld if another has it.
func lockFolder(path string) (io.Closer, error) {
	d, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("embedded: lock %s: %w", path, err)
	}
	if err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		err = errors.Join(&fs.PathError{Op: "lock", Path: path, Err: err}, d.Close())
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = errHeld
		}
		return nil, err
	}
	return d, nil
}

// mayWrite reports whether this process may write the file: by its user, and by the file system.
func mayWrite(name string) bool {
	const write = 2 // W_OK
	return syscall.Access(name, write) == nil
}

// owner returns the user that a file belongs to.
func owner(path string) (int, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, err
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, fmt.Errorf("embedded: owner of %s: %w", path, errors.ErrUnsupported)
	}
	return int(s.Uid), nil
}

// sharable reports whether this process may serve the folder to others: it is the owner's, or root's.
func sharable(path string) bool {
	info, err := os.Stat(path)
	if err != nil {
		return false
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && (int(s.Uid) == os.Geteuid() || os.Geteuid() == 0)
}

// giveToOwner makes a file of root's that of the folder's owner.
func giveToOwner(name, path string) error {
	uid, err := owner(path + "/.")
	if err != nil || uid == os.Geteuid() {
		return err
	}
	return os.Lchown(name, uid, -1)
}
