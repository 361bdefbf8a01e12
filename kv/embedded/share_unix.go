//go:build linux || darwin

package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"

	berrors "go.etcd.io/bbolt/errors"
)

// Sharable says whether several processes can have a folder open on this system.
const Sharable = true

// openFlags are set for every file that is opened. They do not follow a link, and do not wait for a pipe that stands in
// the place of a file.
const openFlags = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

// lock locks the folder for this process, as long as that lives or the file is closed; errHeld if another has it.
func (d *dir) lock() (*os.File, error) {
	f, err := d.Open(".")
	if err != nil {
		return nil, fmt.Errorf("embedded: lock %s: %w", d.path, err)
	}
	if err := flock(f, syscall.LOCK_EX); err != nil {
		err = errors.Join(err, f.Close())
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errHeld
		}
		return nil, explained("embedded: lock "+d.path, err)
	}
	return f, nil
}

// flock locks a file, and does not wait for another process that has it: EWOULDBLOCK.
func flock(f *os.File, how int) error {
	err := uninterrupted(func() error { return syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB) })
	return os.NewSyscallError(callLock, err)
}

// lockFile locks the database file. If another process has it, wait bounds the time until ErrTimeout.
func lockFile(f *os.File, exclusive bool, wait time.Duration) error {
	how := syscall.LOCK_SH
	if exclusive {
		how = syscall.LOCK_EX
	}
	for begun := time.Now(); ; time.Sleep(firstRetry) {
		err := flock(f, how)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		if time.Since(begun) >= wait {
			return berrors.ErrTimeout
		}
	}
}

// unlock unlocks and closes the database file after a panic of bbolt. bbolt may hold locks of its own then, so that its
// Close could wait without end. After an error of bbolt the file is closed already. A file that is still mapped stays
// locked when it is closed.
func unlock(f *os.File) {
	_ = flock(f, syscall.LOCK_UN)
	_ = f.Close()
}

// addressSpace returns how many bytes of address space this process has for the file: most, or a half, a quarter, and
// so on, so that as much is left for the process itself.
func addressSpace(most int) int {
	for ; most > 0; most /= 2 {
		// Nothing is stored in these pages.
		if b, err := syscall.Mmap(-1, 0, 2*most, syscall.PROT_NONE, syscall.MAP_ANON|syscall.MAP_PRIVATE); err == nil {
			_ = syscall.Munmap(b)
			break
		}
	}
	return most
}

// mayWrite reports whether this process may write the file: by its user, and by the file system.
func mayWrite(name string) bool {
	const write = 2 // W_OK
	return syscall.Access(name, write) == nil
}

// userOf returns the user that a file belongs to.
func userOf(info fs.FileInfo) int {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(s.Uid)
	}
	return -1
}

// peer returns the user and the number of the process at the other end. The number is 0 if the system does not tell it.
func peer(c net.Conn) (uid, pid int, err error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return 0, 0, errors.ErrUnsupported
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { uid, pid, failed = peerOf(int(fd)) })
	return uid, pid, errors.Join(err, failed)
}

// fileHeld reports whether another process has the database file open to write, or for reading alone.
func (d *dir) fileHeld() bool {
	f, err := d.openFile(fileName, os.O_RDONLY, 0)
	if err != nil {
		return false // opening it says why
	}
	defer f.Close()
	return errors.Is(flock(f, syscall.LOCK_EX), syscall.EWOULDBLOCK)
}

// alive reports whether there is such a process.
func alive(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}
