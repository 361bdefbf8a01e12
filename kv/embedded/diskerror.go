package embedded

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// Errors of the file and of the system. ErrCorrupt is a verdict on bytes: they were read, and they are wrong. Every
// other error names the call and carries the errno, and says nothing about the data.

// openError returns the error for a file that could not be opened, by the cause.
func (d *dir) openError(err error) error {
	var unread *pageFault
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return d.locked(0, nil)
	case errors.Is(err, ErrGone):
		return err
	case errors.Is(err, ErrNewerFormat):
		return fmt.Errorf("%w (in %s)", err, d.path)
	case errors.Is(err, ErrCorrupt), errors.As(err, &unread):
		// bbolt reports a page that it cannot read as a corrupt one.
		if failed := d.readWhole(fileName); failed != nil {
			return explained("embedded: read "+d.path, failed)
		}
		if unread == nil {
			return fmt.Errorf("%w (in %s)", err, d.path)
		}
	}
	return explained("embedded: open "+d.path, err)
}

// readWhole reads a file, and returns the error of the system if that fails.
func (d *dir) readWhole(name string) error {
	f, err := d.openFile(name, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, io.NewSectionReader(f, 0, math.MaxInt64))
	return errors.Join(err, f.Close())
}

// explained says where an error of the system came from and, if that is known, what to do about it.
func explained(where string, err error) error {
	if cure := cureOf(err); cure != "" {
		return fmt.Errorf("%s: %w: %s", where, err, cure)
	}
	return fmt.Errorf("%s: %w", where, err)
}

func cureOf(err error) string {
	var call *os.SyscallError
	_ = errors.As(err, &call)
	is := func(name string, err error) bool {
		return call != nil && call.Syscall == name && errors.Is(call.Err, err)
	}
	switch {
	case is(callMap, syscall.ENOMEM):
		return "this process may not use enough address space for the file: raise the limit (ulimit -v)"
	case is(callMap, syscall.EAGAIN):
		return "this process may not lock enough memory for the file: raise the limit (ulimit -l)"
	case is(callMap, syscall.ENODEV):
		return "this file system cannot map files into memory: use a folder on a local disk"
	case is(callLock, syscall.ENOLCK), is(callLock, errors.ErrUnsupported):
		return "this file system gives no locks: use a folder on a local disk"
	case errors.Is(err, syscall.EDQUOT):
		return "the disk quota is used up: free space, or raise the quota"
	case errors.Is(err, syscall.ENOSPC):
		return "the disk is full: free space"
	}
	return ""
}

// The calls that bbolt does not name in its errors.
const (
	callLock = "flock"
	callMap  = "mmap"
	callSync = "fdatasync"
)

// named returns err with the name of the call if bbolt has returned a bare errno, and with the errno if bbolt has kept
// only its text.
func named(call string, err error) error {
	if errno, bare := err.(syscall.Errno); bare {
		return os.NewSyscallError(call, errno)
	}
	var errno syscall.Errno
	if err == nil || errors.As(err, &errno) {
		return err
	}
	for _, errno := range []syscall.Errno{
		syscall.ENOMEM, syscall.EAGAIN, syscall.ENODEV, syscall.EOVERFLOW, // mmap, madvise
		syscall.EIO, syscall.EINTR, syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG, syscall.EROFS, // ftruncate, fsync
	} {
		if text, ok := strings.CutSuffix(err.Error(), ": "+errno.Error()); ok {
			return fmt.Errorf("%s: %w", text, errno)
		}
	}
	return err
}

// update is bbolt's Update, with errors that name the call.
func update(file *bbolt.DB, fn func(tx *bbolt.Tx) error) error {
	return named(callSync, file.Update(fn))
}

// openBolt opens a bbolt file of the folder. Where flock locks files, the file is locked before bbolt has it, so that
// the error of a lock has a name; bbolt then locks it again, which changes nothing. file is the open file of db, and is
// closed with db.
func (d *dir) openBolt(name string, o *bbolt.Options) (db *bbolt.DB, file *os.File, err error) {
	o.OpenFile = func(path string, flag int, mode os.FileMode) (*os.File, error) {
		// The file exists: createDatabase makes it. bbolt must not make one in the place of a file that was removed.
		f, err := d.openFile(filepath.Base(path), flag&^os.O_CREATE, mode)
		if err != nil {
			return nil, err
		}
		if err := lockFile(f, !o.ReadOnly, o.Timeout); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if info, err := f.Stat(); o.ReadOnly && err == nil && info.Size() == 0 {
			// bbolt would take it for a new file, and write to it.
			return nil, errors.Join(fmt.Errorf("%w: empty", ErrCorrupt), f.Close())
		}
		file = f
		return f, nil
	}
	defer func() {
		if db == nil && file != nil {
			unlock(file)
		}
	}()
	err = uninterrupted(func() error {
		db, err = bbolt.Open(filepath.Join(d.path, name), 0o600, o)
		return err
	})
	if err == nil {
		return db, file, nil
	}
	for _, wrong := range []error{berrors.ErrInvalid, berrors.ErrVersionMismatch, berrors.ErrChecksum} {
		if errors.Is(err, wrong) {
			return nil, nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
	}
	if strings.HasPrefix(err.Error(), "file size too small") { // bbolt has no variable for this error
		return nil, nil, fmt.Errorf("%w: truncated: %w", ErrCorrupt, err)
	}
	return nil, nil, named(openingCall(err), err)
}

// openingCall names the call that gives an errno while bbolt opens a file. No two of these calls share an errno, by
// their manual pages, except EINTR.
func openingCall(err error) string {
	switch err {
	case syscall.ENOMEM, syscall.EAGAIN, syscall.ENODEV, syscall.EOVERFLOW, syscall.EACCES, syscall.EPERM,
		syscall.EINVAL, syscall.ENFILE:
		return callMap
	case syscall.EIO, syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS:
		return callSync // of a new file
	case syscall.ENOLCK:
		return callLock
	}
	if errors.Is(err, errors.ErrUnsupported) {
		return callLock
	}
	return callLock + ", " + callMap + " or " + callSync
}

// openMapped opens the file with address space for growth: as much as mapped, or less where this process, or the file
// system, gives less. bbolt maps at least the file.
func (d *dir) openMapped(o *bbolt.Options, mapped int) (*bbolt.DB, *os.File, error) {
	for size := addressSpace(mapped); ; size /= 2 {
		o.InitialMmapSize = size
		db, file, err := d.openBolt(fileName, o)
		less := errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.EAGAIN) || // of the process
			errors.Is(err, syscall.EOVERFLOW) // more than a file of this file system can have
		if !less || size == 0 {
			return db, file, err
		}
	}
}

// uninterrupted calls fn again if a signal has interrupted a call of the system in it, for unservedLimit at most.
func uninterrupted(fn func() error) error {
	for begun := time.Now(); ; {
		err := fn()
		if !errors.Is(err, syscall.EINTR) || time.Since(begun) >= unservedLimit {
			return err
		}
	}
}

// pageFault is a page that the system could not bring into memory. If the page lies outside the file, the file is
// damaged, because another page points there. If it lies in the file, the fault says nothing about the data.
type pageFault struct{ address uintptr }

func (f *pageFault) Error() string { return "the system could not read a page of the file into memory" }

// recoverCorrupt turns a panic of bbolt over a damaged page into ErrCorrupt. In such a panic bbolt says what is wrong
// with the page, or uses a number from the page that points out of it. It does not turn other panics, which say nothing
// about the data.
func recoverCorrupt(err *error) {
	switch r := recover().(type) {
	case nil:
	case interface{ Addr() uintptr }:
		*err = &pageFault{r.Addr()}
	case runtime.Error:
		if strings.Contains(r.Error(), "out of range") {
			*err = fmt.Errorf("%w: %w", ErrCorrupt, r)
		} else {
			*err = fmt.Errorf("embedded: read the file: %w", r)
		}
	default:
		*err = fmt.Errorf("%w: %v", ErrCorrupt, r)
	}
}
