package embedded

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"
)

// seen is the database that a DB has used as a client. If the DB takes over, or connects to the next process, it must
// find the same database again. An operator may have removed, moved, replaced or overwritten the file.
//
// Example: an operator moves a copy of yesterday to the path of the open file. The serving process refuses each commit,
// and is restarted. If a client took over the copy, messages that it has acked today would come again, and messages
// that it has enqueued today would be lost.
//
// One goroutine at a time uses it: the goroutine of OpenDisk, then link.run.
type seen struct {
	connected bool
	// file is the database file. It stays open so that no later file gets its number (inode). It is nil if this process
	// could not open it. is describes it.
	file *os.File
	is   fs.FileInfo
	// version is that of the newest commit that a server has told this DB of. A server tells a commit when it is in the
	// file, so the version in the file of this database is never smaller.
	version int64
	// older is the error of the last attempt to take over, if the file had a smaller version. The next process moves
	// the version up when it opens such a file, so this DB must not connect to that process.
	older error
}

// note notes a commit that is in the file.
func (s *seen) note(version int64) { s.version = max(s.version, version) }

// enter notes a connection to the process that has the folder open.
func (s *seen) enter(d *dir) {
	s.connected = true
	if s.file != nil {
		return
	}
	f, err := d.openFile(fileName, os.O_RDONLY, 0)
	if err != nil {
		return // check then compares the versions alone
	}
	if s.is, err = f.Stat(); err != nil {
		_ = f.Close()
		return
	}
	s.file = f
}

// find returns ErrGone if the file of the folder is missing, or is another one.
func (s *seen) find(d *dir) error {
	if !s.connected {
		return nil
	}
	now, err := d.Lstat(fileName)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return d.removedError()
	case err == nil && s.file != nil && !os.SameFile(s.is, now):
		return d.replacedError()
	}
	return nil // another error says nothing about the file
}

// check returns ErrGone if the opened file is another one, or an older copy. meta is of that file. Nothing was written
// yet.
func (s *seen) check(d *dir, opened *os.File, meta *bbolt.Bucket) error {
	if s.file != nil {
		now, err := opened.Stat()
		if err != nil {
			return err
		}
		if !os.SameFile(s.is, now) {
			return d.replacedError()
		}
	}
	s.older = nil
	if stored := int64(binary.BigEndian.Uint64(meta.Get(versionKey))); stored < s.version {
		s.older = fmt.Errorf("%w: %s was overwritten while it was open, by an older copy of version %d "+
			"(version %d was committed): close the database and open it again",
			ErrGone, filepath.Join(d.path, fileName), stored, s.version)
	}
	return s.older
}

func (s *seen) close() {
	if s.file != nil {
		_ = s.file.Close() // it was only read
	}
}

// removedError is ErrGone for a database file that is missing.
func (d *dir) removedError() error {
	return fmt.Errorf("%w: %s was removed while it was open: nothing more is written to it",
		ErrGone, filepath.Join(d.path, fileName))
}

// replacedError is ErrGone for another file in the place of the database file.
func (d *dir) replacedError() error {
	return fmt.Errorf("%w: %s was replaced while it was open: close the database and open it again",
		ErrGone, filepath.Join(d.path, fileName))
}
