//go:build linux || darwin

package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
)

// Sharable says whether several processes can have a folder open on this system.
const Sharable = true

// openFlags are for every file that is opened: a link is not followed, and a pipe in its place not waited for.
const openFlags = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

// lock locks the folder for this process, as long as that lives or the file is closed; errHeld if another has it.
func (d *dir) lock() (*os.File, error) {
	f, err := d.Open(".")
	if err != nil {
		return nil, fmt.Errorf("embedded: lock %s: %w", d.path, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		err = errors.Join(&fs.PathError{Op: "lock", Path: d.path, Err: err}, f.Close())
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = errHeld
		}
		return nil, err
	}
	return f, nil
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
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	return errors.Is(err, syscall.EWOULDBLOCK)
}

// alive reports whether there is such a process.
func alive(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}
