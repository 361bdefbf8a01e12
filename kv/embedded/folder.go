package embedded

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// folder is where a database lies, and how it is opened.
type folder struct {
	path    string      // absolute
	is      fs.FileInfo // the folder itself: another one at the path has another database
	options Options     // with defaults
	mapped  int         // bytes of address space
}

// socketName is the socket of the process that has the database open.
const socketName = "kv.socket"

// errHeld says that another process has the folder's lock.
var errHeld = errors.New("embedded: the folder is locked")

// open opens the store alone. past is the database that this DB has used before.
func (f *folder) open(ctx context.Context, d *dir, past *seen) (*engine, error) {
	if err := past.find(d); err != nil {
		return nil, err
	}
	if !past.connected { // else the database exists, and no other file may take its place
		if err := uninterrupted(d.createDatabase); err != nil {
			return nil, explained("embedded: create "+filepath.Join(f.path, fileName), err)
		}
	}
	if err := d.verifyDatabase(ctx, unservedLimit); err != nil {
		return nil, d.openError(err)
	}
	var s *diskStore
	var version int64
	err := uninterrupted(func() (err error) {
		s, version, err = d.openDatabase(f.options.Clock, f.mapped, past)
		return err
	})
	if err != nil {
		return nil, d.openError(err)
	}
	return newEngine(s, f.options, version, true), nil
}

// await waits until no other process has the file, for unservedLimit or until ctx ends. The file of a process that has
// just ended is free a moment later.
func (d *dir) await(ctx context.Context) error {
	for begun := time.Now(); d.fileHeld(); {
		if time.Since(begun) >= unservedLimit {
			return d.locked(0, nil)
		}
		select {
		case <-time.After(firstRetry):
		case <-ctx.Done():
			return d.locked(0, context.Cause(ctx))
		}
	}
	return nil
}

// serve opens the store, and serves it. The engine releases the lock. The end of ctx ends serve before the whole file
// is read. serve then releases the lock itself.
func (f *folder) serve(ctx context.Context, lock *folderLock, past *seen) (*engine, error) {
	// A socket is a sign of life. This process makes none while another process has the file for itself. Otherwise
	// several processes that want the folder would wait for each other.
	if err := lock.dir.await(ctx); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	// The socket is there before the file is read: a process that finds the folder locked waits for an answer, and does
	// not give up. As long as there can be no socket, the folder belongs to this process alone.
	stop := func() {}
	listener, err := lock.dir.listen()
	if err == nil {
		stop = listener.beat()
	}
	s := newServer(lock.dir, listener, checkClient)
	e, err := f.open(ctx, lock.dir, past)
	stop()
	if err != nil {
		s.close()
		return nil, errors.Join(err, lock.Close())
	}
	e.server, e.lock = s, lock
	s.start(e)
	return e, nil
}

// unservable is why this process, which had the folder's lock, could not open the store.
type unservable struct{ error }

func (u *unservable) Unwrap() error { return u.error }

// ownError is why this process can use no socket. It says nothing about the process that has the folder.
type ownError struct{ error }

func (o *ownError) Unwrap() error { return o.error }

// folderLock is the lock of a folder. Close gives it back, and closes the folder.
type folderLock struct {
	file *os.File
	dir  *dir
}

func (l *folderLock) Close() error { return errors.Join(l.file.Close(), l.dir.Close()) }

// join opens the database, or connects to the process that has it open. If neither is possible now, the error is
// ErrLocked. It is ErrOtherUser if no process has the database open and this process must not open it. It is ErrGone if
// the folder, or the file that the link has seen, is no longer at the path.
func (f *folder) join(ctx context.Context, l *link) (*conn, *engine, error) {
	d, err := f.find()
	if err != nil {
		return nil, nil, err
	}
	file, err := d.lock()
	if err == nil {
		var e *engine
		lock := &folderLock{file, d}
		switch {
		case d.foreign():
			err = errors.Join(d.otherUser(), lock.Close())
		case l.rest.lasts(f.sign(fileName)):
			err = errors.Join(l.rest.err, lock.Close())
		default:
			e, err = f.serve(ctx, lock, &l.seen)
			l.rest.after(err, f.sign(fileName))
		}
		if err != nil {
			err = &unservable{err}
		}
		return nil, e, err
	}
	defer d.Close()
	if !errors.Is(err, errHeld) {
		return nil, nil, err
	}
	if err := cmp.Or(l.seen.find(d), l.seen.older); err != nil {
		return nil, nil, err
	}
	n, err := d.reach(ctx, l)
	return n, nil, err
}

// find opens the folder. The error is ErrGone if the folder is no longer at the path.
func (f *folder) find() (*dir, error) {
	d, err := openDir(f.path)
	switch {
	case err != nil && moved(f.path, f.is):
		return nil, fmt.Errorf("%w: the folder was removed or moved while it was open: %w", ErrGone, err)
	case err != nil:
		return nil, err
	case !os.SameFile(f.is, d.info):
		err := fmt.Errorf("%w: another folder is at the path now: close the database and open it again: %s",
			ErrGone, f.path)
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// reach connects to the process that has the folder open, and says hello.
func (d *dir) reach(ctx context.Context, l *link) (*conn, error) {
	c, err := d.connect(ctx)
	var own *ownError
	if errors.As(err, &own) {
		return nil, explained("embedded: connect to "+filepath.Join(d.path, socketName), err)
	}
	if err != nil {
		return nil, d.locked(0, err)
	}
	_, pid, err := peer(c)
	if err == nil {
		var n *conn
		if n, err = handshake(ctx, c, l); err == nil {
			// The process has opened its file by now. If that is another one than before, this client must not use it.
			if err := l.seen.find(d); err != nil {
				n.end(err)
				return nil, err
			}
			l.seen.enter(d)
			return n, nil
		}
	}
	_ = c.Close()
	return nil, d.locked(pid, err)
}

// connect connects to the process that has the folder open. It checks the user of that process before it sends
// anything.
func (d *dir) connect(ctx context.Context) (net.Conn, error) {
	info, err := d.Lstat(socketName)
	if err != nil {
		return nil, err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("embedded: connect to %s: it is not a socket: remove it",
			filepath.Join(d.path, socketName))
	}
	var c net.Conn
	err = short(d.path, func(path string) (err error) {
		var dialer net.Dialer
		c, err = dialer.DialContext(ctx, "unix", filepath.Join(path, socketName))
		for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM} {
			if errors.Is(err, errno) {
				return &ownError{err}
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := d.checkServer(c); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// checkServer returns an error unless the process at the other end belongs to the folder's owner. A user other than
// root accepts a process of root's too. Root does not, because a link in the place of the socket could lead root to
// another folder of root's.
func (d *dir) checkServer(c net.Conn) error {
	uid, _, err := peer(c)
	if err != nil {
		return fmt.Errorf("embedded: peer: %w", err)
	}
	if uid != d.uid && (uid != 0 || os.Geteuid() == 0) {
		return fmt.Errorf("embedded: %s is served by user %d and belongs to user %d: %w",
			d.path, uid, d.uid, fs.ErrPermission)
	}
	return nil
}

// checkClient returns an error unless the process at the other end is this user's, or root's.
func checkClient(c net.Conn) error {
	uid, _, err := peer(c)
	if err != nil {
		return fmt.Errorf("embedded: peer: %w", err)
	}
	if uid != os.Geteuid() && uid != 0 {
		return fmt.Errorf("embedded: peer is user %d: %w", uid, fs.ErrPermission)
	}
	return nil
}

// maxSocketPath is the longest path, in bytes, of a folder in which a socket can be made and named. The whole name may
// have 103 bytes on macOS and 107 on Linux. The private folder in which the socket is made adds 21 to the path. The
// symbolic link of short adds 21 to that of the temporary folder, which has 48 bytes on macOS.
const maxSocketPath = 82

// short calls fn with a path of the folder that is short enough to name a socket in it. If the folder's own is not, fn
// gets that of a symbolic link in a private temporary folder, which exists as long as fn runs.
func short(path string, fn func(path string) error) error {
	if len(path) <= maxSocketPath {
		return fn(path)
	}
	whole, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	temp, err := os.MkdirTemp("", "fdbfifo-")
	if err != nil {
		return &ownError{fmt.Errorf("a path of more than %d bytes needs a temporary folder (TMPDIR): %w",
			maxSocketPath, err)}
	}
	defer func() { _ = os.RemoveAll(temp) }() // a link that stays does no harm: what fn has made is in use
	link := filepath.Join(temp, "d")
	if err := os.Symlink(whole, link); err != nil {
		return &ownError{err}
	}
	return fn(link)
}

// listener is the folder's socket. Close removes its name from this folder, not from a folder that was made under the
// same path since. The folder must still be locked at that time.
type listener struct {
	net.Listener
	dir *dir
	is  fs.FileInfo // the socket in the folder
}

// inPlace reports whether the name in the folder still leads to this socket.
func (l *listener) inPlace() bool {
	now, err := l.dir.Lstat(socketName)
	return err == nil && os.SameFile(l.is, now)
}

func (l *listener) Close() error {
	err := l.dir.Remove(socketName)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // the folder was removed
	}
	return errors.Join(l.Listener.Close(), err)
}

// listen makes the folder's socket, which must not be closed after the folder. It makes the socket in a private folder,
// and moves it to its place when its mode is right. The move also replaces the socket that a killed process has left.
func (d *dir) listen() (*listener, error) {
	if err := d.removeAside(); err != nil {
		return nil, err
	}
	aside := socketName + "-" + rand.Text()[:8] // short, because the path of a socket must be
	if err := d.Mkdir(aside, 0o700); err != nil {
		return nil, err
	}
	// If this fails, the next listen removes the folder. The socket is in its place then, and must be accepted from.
	defer func() { _ = d.RemoveAll(aside) }()
	name := filepath.Join(aside, "s")
	var l *net.UnixListener
	err := short(d.path, func(path string) (err error) {
		l, err = net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(path, name), Net: "unix"})
		return err
	})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	// Only the call that makes the socket uses the path. If the path leads to another folder by now, the socket is not
	// found here, and Chmod fails.
	err = d.Chmod(name, 0o600)
	var is fs.FileInfo
	if err == nil {
		is, err = d.Lstat(name)
	}
	if err == nil {
		err = d.Rename(name, socketName)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &listener{l, d, is}, nil
}

// removeAside removes the private folders that killed processes have left while they made a socket.
func (d *dir) removeAside() error {
	left, err := fs.ReadDir(d.FS(), ".") // not Glob: the path may have a bracket in it
	if err != nil {
		return err
	}
	for _, entry := range left {
		if !strings.HasPrefix(entry.Name(), socketName+"-") {
			continue
		}
		if err := d.RemoveAll(entry.Name()); err != nil {
			return err
		}
	}
	return nil
}
