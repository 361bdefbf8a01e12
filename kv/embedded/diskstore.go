package embedded

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/bbolt"

	"fdbfifo/kv"
)

// diskStore keeps pairs in a bbolt file. A bbolt read transaction is a snapshot; one update is a commit group.
type diskStore struct {
	file *bbolt.DB
	at   timeline
	torn bool // a page could not be read while bbolt held its locks: they stay held. See tornError

	// Of a store that is open to write, for as long as it is open; else nil.
	dir    *dir
	opened *os.File    // the file itself, which bbolt closes
	is     fs.FileInfo // the file when it was last looked at
	newest []byte      // newestPages after the last write of this process
	seen   []byte      // newestPages when the file was last looked at
}

const (
	fileName = "kv.bbolt"
	// newMark is a part of the name of a file that is being made.
	newMark = ".new-"

	// formatVersion is the layout of the file: bucket "kv" holds keyMark + key -> value, bucket "meta" holds
	// formatKey, versionKey and, since the first write by a version that knows it, aheadKey (see timeline), big-endian.
	formatVersion = 1

	// keyMark stands before each key, for bbolt has no empty key.
	keyMark = 'k'

	// readWait is how long a DB that only reads waits for a process that has the file open to write.
	readWait = 200 * time.Millisecond
)

var (
	dataBucket = []byte("kv")
	metaBucket = []byte("meta")
	formatKey  = []byte("format")
	versionKey = []byte("version")
	aheadKey   = []byte("ahead")
)

// mapSize is the address space reserved for the file: 16 GiB, or 256 MiB where addresses have 32 bits, or less where
// there is less (openMapped). bbolt cannot grow its map while a snapshot is open, and a reserved page costs nothing
// until the file reaches it. Windows would make the file that large, so there the map grows as it must.
func mapSize() int {
	if runtime.GOOS == "windows" {
		return 0
	}
	return 1 << (28 + 6*(strconv.IntSize/64))
}

// OpenDisk opens the database in the folder at path, which it creates if it is missing. The caller must Close the DB.
// On Linux and macOS any number of DBs, in any number of processes, can have the folder open. The first one has the
// file, and serves the others over a socket in the folder. When it ends, another takes its place. With
// Options.Exclusive, and elsewhere, the folder belongs to one DB at a time; for another the error is ErrLocked. Root
// uses the folder of another user only as a client of that user's process; if there is none, the error is ErrOtherUser.
// ErrCorrupt and ErrNewerFormat say that the file cannot be used as it is. Any other error says nothing about the data:
// it names the call of the system that has failed and wraps the errno. Opening the file reads the whole of it once, to
// check it and to find its free pages.
//
// The file is mapped into memory with room to grow: 16 GiB of address space, or less if the process has less (ulimit
// -v), so that as much is left for the process itself. A file that outgrows a smaller map is mapped again: a commit
// then waits up to six seconds, also if no transaction reads. Reads may fail with 1007 and 1037 at that time.
//
// OpenDisk waits while the folder changes hands:
//
//   - Another process opens the folder: until that process serves it, however long the opening takes. A process that
//     opens the folder shows a sign of life each second. If that process is killed, OpenDisk opens the folder itself,
//     or waits for the next process that does.
//   - A process has the folder and shows no sign of life, because it is stopped or cannot make a socket: ten seconds
//     after the last sign, then ErrLocked.
//   - A DB has the file alone, with Exclusive or ReadOnly: two seconds, then ErrLocked. Exclusive waits as long for a
//     folder that is in use, ReadOnly 0.2 seconds.
//   - Root finds no process that serves the folder of another user: two seconds, then ErrOtherUser.
//
// ErrLocked comes with the number of the process that has the folder, if the system tells it and that process did not
// open the folder with ReadOnly.
func OpenDisk(path string, o Options) (*DB, error) { return openDisk(path, o, mapSize()) }

func openDisk(path string, o Options, mapped int) (*DB, error) {
	if o.ReadOnly {
		return openReadOnly(path, o.withDefaults(), mapped)
	}
	err := makeFolder(path)
	if err == nil {
		path, err = filepath.Abs(path) // the program may change its working directory later
	}
	if err != nil {
		return nil, fmt.Errorf("embedded: folder for the database: %w", err)
	}
	d, err := openDir(path)
	if err != nil {
		return nil, err
	}
	o = o.withDefaults()
	db, f := newDB(o), &folder{path: path, is: d.info, options: o, mapped: mapped}
	if d.foreign() && o.Exclusive {
		return nil, errors.Join(d.otherUser(), d.Close())
	}
	if !o.Exclusive && Sharable && (d.mine() || d.foreign()) {
		defer d.Close()
		if err := db.join(f); err != nil {
			return nil, err
		}
		return db, nil
	}
	e, err := f.open(context.Background(), d, new(seen))
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	e.lock = d
	db.local.Store(e)
	return db, nil
}

func boltOptions() *bbolt.Options {
	return &bbolt.Options{
		Timeout: unservedLimit,
		// The free list is rebuilt on opening: writing it with every group would cost more than that.
		NoFreelistSync: true,
		FreelistType:   bbolt.FreelistMapType,
		NoStatistics:   true,
	}
}

// createDatabase makes the file if there is none. It makes the file under another name and then renames it in one step,
// so that a crash leaves no half-made file.
func (d *dir) createDatabase() error {
	d.removeStale()
	if _, err := d.Lstat(fileName); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	temp := fileName + newMark + rand.Text()
	f, err := d.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer d.Remove(temp)
	if err := f.Close(); err != nil {
		return err
	}
	db, _, err := d.openBolt(temp, boltOptions())
	if err != nil {
		return err
	}
	err = update(db, func(tx *bbolt.Tx) error {
		if _, err := tx.CreateBucket(dataBucket); err != nil {
			return err
		}
		meta, err := tx.CreateBucket(metaBucket)
		if err != nil {
			return err
		}
		if err := meta.Put(formatKey, binary.BigEndian.AppendUint32(nil, formatVersion)); err != nil {
			return err
		}
		return putVersion(meta, firstVersion)
	})
	if err := errors.Join(err, db.Close()); err != nil {
		return err
	}
	// A link fails if another process was faster; then that one's file is the database.
	err = d.Link(temp, fileName)
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil
	case errors.Is(err, fs.ErrNotExist):
		_, err = d.Lstat(fileName) // another process has removed our file as stale, and made the database
	case err != nil:
		err = d.renameNew(temp) // a file system without links
	}
	return err
}

// renameNew gives the file its name, unless there is a database. A rename replaces a database that another process has
// made in the meantime, so the processes take turns. A lock shows whose turn it is, and ends with its process.
func (d *dir) renameNew(temp string) error {
	const turn = fileName + ".turn"
	f, err := d.OpenFile(turn, os.O_RDWR|os.O_CREATE|openFlags, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := lockFile(f, true, unservedLimit); err != nil {
		return err
	}
	_, err = d.Lstat(fileName)
	if errors.Is(err, fs.ErrNotExist) {
		err = d.Rename(temp, fileName)
	}
	if err == nil {
		_ = d.Remove(turn) // there is a database now, so no process needs a turn; the file would do no harm
	}
	return err
}

// staleAfter is the age of a file in the making from which on its process must have been killed, because making the
// file takes only a few syncs.
const staleAfter = 10 * time.Second

// removeStale removes files that were being made when their process was killed. A file that cannot be removed does no
// harm.
func (d *dir) removeStale() {
	entries, err := fs.ReadDir(d.FS(), ".")
	if err != nil {
		return
	}
	for _, one := range entries {
		if !strings.HasPrefix(one.Name(), fileName+newMark) {
			continue
		}
		if info, err := one.Info(); err == nil && time.Since(info.ModTime()) > staleAfter {
			_ = d.Remove(one.Name())
		}
	}
}

// makeFolder makes the folder, and those above it that are missing. Their names are then durable, except for a name in
// a folder that this process may not read, or that is read-only. A process that was killed here leaves at most the name
// of the lowest folder that is not durable, because a folder is made when the names above it are. A folder with a
// database has a durable name.
func makeFolder(path string) error {
	parent := filepath.Dir(path) // the root is its own
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) && parent != path {
		if err := makeFolder(parent); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	if _, err := os.Lstat(filepath.Join(path, fileName)); err == nil {
		return nil
	}
	err := synced(os.Open(parent))
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return nil
	}
	return err
}

// sync makes the names in the folder durable.
func (d *dir) sync() error { return synced(d.Open(".")) }

// synced makes the names in a folder durable, and closes the folder. Windows cannot sync a folder, and no more can a
// file system that says EINVAL.
func synced(folder *os.File, err error) error {
	if err != nil {
		return err
	}
	if runtime.GOOS != "windows" {
		err = folder.Sync()
	}
	if errors.Is(err, syscall.EINVAL) {
		err = nil
	}
	return errors.Join(err, folder.Close())
}

// openDatabase opens the verified file for writing and moves its version up: see timeline. It writes nothing if the
// file is another one than that of past, or an older copy. The file's name is then durable: the process that has made
// it may have been killed before it synced the folder, and an operator may have put the file there.
func (d *dir) openDatabase(clock Clock, mapped int, past *seen) (s *diskStore, version int64, err error) {
	defer recoverCorrupt(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	db, file, err := d.openMapped(boltOptions(), mapped)
	if err != nil {
		return nil, 0, err
	}
	defer func() {
		if s == nil {
			unlock(file)
		}
	}()
	var at timeline
	err = update(db, func(tx *bbolt.Tx) error {
		meta := tx.Bucket(metaBucket)
		if err := past.check(d, file, meta); err != nil {
			return err
		}
		at, version = reopen(meta, clock)
		return at.put(meta, version)
	})
	if err != nil {
		return nil, 0, errors.Join(err, db.Close())
	}
	opened := &diskStore{file: db, at: at, dir: d, opened: file}
	if err := errors.Join(opened.look(), d.sync()); err != nil {
		return nil, 0, errors.Join(err, db.Close())
	}
	d.leavePid()
	return opened, version, nil
}

// openReadOnly opens the database in the folder without leaving anything there.
func openReadOnly(path string, o Options, mapped int) (db *DB, err error) {
	if path != "" { // which is no folder, and not the working directory
		if path, err = filepath.Abs(path); err != nil { // the program may change its working directory later
			return nil, fmt.Errorf("embedded: folder for the database: %w", err)
		}
	}
	d, err := openDir(path)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	if err := d.verifyDatabase(context.Background(), readWait); err != nil {
		return nil, d.openError(err)
	}
	defer recoverCorrupt(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	settings := boltOptions()
	settings.ReadOnly, settings.Timeout = true, readWait
	bolt, file, err := d.openMapped(settings, mapped)
	if err != nil {
		return nil, d.openError(err)
	}
	defer func() {
		if db == nil {
			unlock(file)
		}
	}()
	var version int64
	err = bolt.View(func(tx *bbolt.Tx) error {
		_, version = reopen(tx.Bucket(metaBucket), o.Clock)
		return nil
	})
	if err != nil {
		return nil, errors.Join(d.openError(err), bolt.Close())
	}
	db = newDB(o)
	db.refuses = &kv.Error{Code: kv.CodeTransactionReadOnly, Cause: fmt.Errorf("%w: %s", ErrReadOnly, path)}
	// This engine commits nothing. Its versions need not be stored, and cannot be.
	db.local.Store(newEngine(&diskStore{file: bolt}, o, version, false))
	return db, nil
}

// ReadOnly reports whether the folder at path has a database that must not be written: this process may not write the
// file, or the modes of the file or the folder allow no user to write. For root the modes count, too. The caller must
// open such a folder with Options.ReadOnly. written is the time of the last write of the file; for a copy that may be
// the time when it was made.
func ReadOnly(path string) (written time.Time, ok bool) {
	name := filepath.Join(path, fileName)
	file, err := os.Lstat(name)
	if err != nil || !file.Mode().IsRegular() {
		return time.Time{}, false
	}
	folder, err := os.Stat(path)
	if err != nil {
		return time.Time{}, false
	}
	const write = 0o222
	ok = file.Mode()&write == 0 || folder.Mode()&write == 0 || !mayWrite(name)
	return file.ModTime(), ok
}

func putVersion(meta *bbolt.Bucket, version int64) error {
	return meta.Put(versionKey, binary.BigEndian.AppendUint64(nil, uint64(version)))
}

func diskKey(key string) []byte {
	b := make([]byte, 1+len(key))
	b[0] = keyMark
	copy(b[1:], key)
	return b
}

func (s *diskStore) snapshot() (_ view, err error) {
	if s.dir != nil { // else no process writes, and this is the only snapshot
		if err := s.inPlace(); err != nil {
			return nil, err
		}
	}
	if s.torn {
		return nil, s.tornError()
	}
	defer recoverCorrupt(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	s.torn = true
	tx, err := s.file.Begin(false)
	s.torn = false
	if err != nil {
		return nil, err
	}
	v := &diskView{tx: tx}
	if err := v.findData(); err != nil {
		v.close()
		return nil, err
	}
	return v, nil
}

// tornError is the error of each call of a torn store: a call of bbolt would wait for its locks without end.
func (s *diskStore) tornError() error {
	return fmt.Errorf("%s stays locked until this process ends: a page of it could not be read", s.file.Path())
}

// inPlace returns an error if the open file is no longer the whole file of the folder at the path, as this process has
// written it. Commits to such a file are lost when the file is closed, or destroy the data that was put there. The
// pages that were cut off cannot be read.
func (s *diskStore) inPlace() error {
	now, err := s.dir.Lstat(fileName)
	if errors.Is(err, fs.ErrNotExist) {
		return s.dir.removedError()
	}
	if moved(s.dir.path, s.dir.info) {
		return fmt.Errorf("%w: %s was moved or replaced while it was open: nothing more is written to it",
			ErrGone, s.dir.path)
	}
	switch {
	case err != nil: // it says nothing about the file
		return nil
	case !os.SameFile(s.is, now):
		return s.dir.replacedError()
	case now.Size() < s.is.Size():
		return fmt.Errorf("%w: %s was truncated while it was open, from %d bytes to %d",
			ErrCorrupt, s.file.Path(), s.is.Size(), now.Size())
	}
	s.is = now
	if s.seen, err = s.newestPages(s.seen); err != nil {
		return err
	}
	if !bytes.Equal(s.seen, s.newest) {
		return fmt.Errorf("%w: %s was overwritten while it was open: close the database and open it again",
			ErrGone, s.file.Path())
	}
	return nil
}

// look notes the file as it is after a write of this process.
func (s *diskStore) look() error {
	is, err := s.opened.Stat()
	if err != nil {
		return err
	}
	s.is = is
	s.newest, err = s.newestPages(s.newest)
	return err
}

// newestPages reads the first two pages of the file into b, which it may replace. They name the newest transaction and
// the one before. bbolt writes one of them at the end of each commit, so their bytes change if another process writes
// to the file.
func (s *diskStore) newestPages(b []byte) ([]byte, error) {
	if b == nil {
		b = make([]byte, 2*s.file.Info().PageSize)
	}
	_, err := s.opened.ReadAt(b, 0)
	return b, err
}

// unwritten is an error of a write that has changed nothing, and will change nothing.
type unwritten struct{ error }

func (u *unwritten) Unwrap() error { return u.error }

func (s *diskStore) apply(version int64, batch []mutation) error {
	if err := s.inPlace(); err != nil {
		return &unwritten{err}
	}
	if s.torn {
		return &unwritten{s.tornError()}
	}
	err := s.update(func(tx *bbolt.Tx) error {
		if err := execute(diskWriter{tx.Bucket(dataBucket)}, batch); err != nil {
			return err
		}
		return s.at.put(tx.Bucket(metaBucket), version)
	})
	if err != nil {
		err = explained("write "+s.file.Path(), err)
	}
	return err
}

// update is bbolt's Update for a file that may have been damaged since it was opened. After a page that cannot be read
// it does not roll back, and leaves the store torn: for a rollback bbolt reads the whole file in a goroutine of its
// own, where a fault ends the process. If the commit has failed, the error is unwritten where the file proves it.
func (s *diskStore) update(fn func(tx *bbolt.Tx) error) (err error) {
	defer recoverCorrupt(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	s.torn = true
	tx, err := s.file.Begin(true)
	if err == nil {
		id := tx.ID()
		if err = fn(tx); err == nil {
			err = tx.Commit()
		} else {
			err = errors.Join(err, tx.Rollback())
		}
		if err == nil {
			err = s.look()
		}
		if err != nil && s.isBefore(id) {
			err = &unwritten{named(callSync, err)}
		}
	}
	s.torn = false
	return named(callSync, err)
}

// isBefore reports whether the newest transaction in the file is older than the one with this number. The page that
// names the newest is written last, and into the same memory that bbolt reads.
func (s *diskStore) isBefore(id int) bool {
	tx, err := s.file.Begin(false)
	if err != nil {
		return false
	}
	older := tx.ID() < id
	_ = tx.Rollback() // it fails only on a transaction that has ended
	return older
}

func (s *diskStore) close() error {
	if s.dir != nil {
		_ = s.dir.Remove(pidName) // a failure does no harm: this process has the file no more
	}
	if s.torn {
		return s.tornError()
	}
	return s.file.Close()
}

// diskWriter writes inside an update.
type diskWriter struct{ data *bbolt.Bucket }

func (w diskWriter) get(key string) value {
	if v := w.data.Get(diskKey(key)); v != nil {
		return value{string(v), true}
	}
	return value{}
}

func (w diskWriter) set(key, value string) error { return w.data.Put(diskKey(key), []byte(value)) }

func (w diskWriter) clearRange(r keyRange) error {
	if r.isSingle() {
		return w.data.Delete(diskKey(r.begin))
	}
	// Deleting under a cursor moves it, so the keys are collected first.
	var doomed [][]byte
	end := string(diskKey(r.end))
	c := w.data.Cursor()
	for k, _ := c.Seek(diskKey(r.begin)); k != nil && string(k) < end; k, _ = c.Next() {
		doomed = append(doomed, append([]byte(nil), k...))
	}
	for _, k := range doomed {
		if err := w.data.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// diskView is a bbolt read transaction. Its cursors share nothing that they change, so they may run side by side. A
// page that cannot be read into memory, because another process has cut it off or because the disk fails, is an error
// of the read, and not the end of the process.
type diskView struct {
	tx   *bbolt.Tx
	data *bbolt.Bucket
}

// findData looks for the pairs of the snapshot.
func (v *diskView) findData() (err error) {
	defer recoverCorrupt(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	if v.data = v.tx.Bucket(dataBucket); v.data == nil {
		return fmt.Errorf("%w: no data bucket", ErrCorrupt)
	}
	return nil
}

func (v *diskView) get(key string) (_ value, err error) {
	defer recoverCorrupt(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	if b := v.data.Get(diskKey(key)); b != nil {
		return value{string(b), true}, nil
	}
	return value{}, nil
}

func (v *diskView) ascend(r keyRange, keysOnly bool, fn func(key, value string) bool) (err error) {
	defer recoverCorrupt(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	c := v.data.Cursor()
	for k, b := c.Seek(diskKey(r.begin)); k != nil; k, b = c.Next() {
		key := string(k[1:])
		if r.end != "" && key >= r.end {
			return nil
		}
		if !fn(key, diskValue(b, keysOnly)) {
			return nil
		}
	}
	return nil
}

func (v *diskView) descend(r keyRange, keysOnly bool, fn func(key, value string) bool) (err error) {
	defer recoverCorrupt(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	c := v.data.Cursor()
	k, b := c.Last()
	if r.end != "" {
		if at, _ := c.Seek(diskKey(r.end)); at != nil {
			k, b = c.Prev()
		} else {
			k, b = c.Last()
		}
	}
	for ; k != nil; k, b = c.Prev() {
		key := string(k[1:])
		if key < r.begin || !fn(key, diskValue(b, keysOnly)) {
			return nil
		}
	}
	return nil
}

func diskValue(b []byte, keysOnly bool) string {
	if keysOnly {
		return ""
	}
	return string(b)
}

func (v *diskView) close() {
	// Rollback fails only on a transaction that has ended.
	_ = v.tx.Rollback()
}
