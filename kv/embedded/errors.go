package embedded

import (
	"errors"
	"fmt"

	"fdbfifo/kv"
)

var (
	// ErrLocked says that another process (or another DB of this one) has the folder open, and does not share it: one
	// of the two is exclusive, or the other does not answer. The error names that process if the system tells its
	// number. You must close that process first. OpenDisk says how long it waits before this error.
	ErrLocked = errors.New("embedded: in use by another process")

	// ErrCorrupt says that the file is not, or no longer, a database of this engine: its bytes were read, and they are
	// wrong. You must restore it from a copy; opening it again gives the same error. An error of the system is never
	// ErrCorrupt. Such an error names the call and the folder, and wraps the errno, for example syscall.ENOMEM.
	ErrCorrupt = errors.New("embedded: corrupt database file")

	// ErrNewerFormat says that a newer release wrote the file. You must open it with that release.
	ErrNewerFormat = errors.New("embedded: file format is newer than this release")

	// ErrOtherUser says that root has asked for the folder of another user, which no process of that user has open.
	// Root opens and serves only folders of its own. You must run the program as that user, or let that user's process
	// serve the folder.
	ErrOtherUser = errors.New("embedded: root does not open the folder of another user")

	// ErrReadOnly says that a transaction that writes was refused, because the folder is open for reading alone. It
	// comes as the cause of a *kv.Error with CodeTransactionReadOnly. Nothing was written.
	ErrReadOnly = errors.New("embedded: the folder is read-only")

	// ErrGone says that the open database is no longer at its path: the folder, or the file in it, was removed, moved,
	// replaced or overwritten. It comes as the cause of a *kv.Error with CodeIOError, and nothing more is
	// written. Commits that were confirmed are in the folder or file that was taken away, not in another one that is at
	// the path now. You must close the DB in all processes, put the folder back or restore a copy, and open it again.
	ErrGone = errors.New("embedded: the open database is no longer at its path")

	errClosed = fmt.Errorf("embedded: database is %w", kv.ErrClosed)
)

func codeError(code int) *kv.Error { return &kv.Error{Code: code} }
