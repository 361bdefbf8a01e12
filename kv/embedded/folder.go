package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
)

// folder is where a database lies, and how it is opened.
type folder struct {
	path    string
	options Options // with defaults
	mapped  int     // bytes of address space
}

// socketName is the socket of the process that has the database open.
const socketName = "kv.socket"

// errHeld says that another process has the folder's lock.
var errHeld = errors.New("embedded: the folder is locked")

// open opens the store alone.
func (f *folder) open() (*engine, error) {
	name := filepath.Join(f.path, fileName)
	if err := createFile(f.path, name); err != nil {
		return nil, fmt.Errorf("embedded: create %s: %w", name, err)
	}
	if err := verifyFile(name); err != nil {
		return nil, openError(f.path, err)
	}
	s, version, err := openFile(name, f.mapped)
	if err != nil {
		return nil, openError(f.path, err)
	}
	return newEngine(s, f.options, version, true), nil
}

// serve opens the store, and serves it. The engine gives the lock back.
func (f *folder) serve(lock io.Closer) (*engine, error) {
	// The socket is there first: who finds the folder locked waits for an answer, and does not give up. Where there can
	// be no socket, the folder belongs to this process alone.
	var s *server
	if listener, err := listen(f.path); err == nil {
		s = newServer(listener, func(c net.Conn) error { return checkPeer(c, f.path) })
	}
	e, err := f.open()
	if err != nil {
		if s != nil {
			s.close()
		}
		return nil, errors.Join(err, lock.Close())
	}
	e.server, e.lock = s, lock
	if s != nil {
		s.start(e)
	}
	return e, nil
}

// unservable is why this process, which had the folder's lock, could not open the store.
type unservable struct{ error }

func (u *unservable) Unwrap() error { return u.error }

// join opens the database, or connects to the process that has it. If neither can be done now, the error is ErrLocked.
func (f *folder) join(ctx context.Context, l *link) (*conn, *engine, error) {
	lock, err := lockFolder(f.path)
	if err == nil {
		e, err := f.serve(lock)
		if err != nil {
			err = &unservable{err}
		}
		return nil, e, err
	}
	if !errors.Is(err, errHeld) {
		return nil, nil, err
	}
	c, err := connect(ctx, f.path)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %s: %w", ErrLocked, f.path, err)
	}
	n, err := handshake(ctx, c, l)
	if err != nil {
		_ = c.Close()
		return nil, nil, fmt.Errorf("%w: %s: %w", ErrLocked, f.path, err)
	}
	return n, nil, nil
}

// connect connects to the process that has the folder open.
func connect(ctx context.Context, path string) (net.Conn, error) {
	var c net.Conn
	err := short(path, func(path string) (err error) {
		var d net.Dialer
		c, err = d.DialContext(ctx, "unix", filepath.Join(path, socketName))
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := checkPeer(c, path); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// maxSocketPath is the longest path of a folder whose socket, and the place where that is made, a system can name:
// the whole may have 104 bytes on macOS, 108 on Linux.
const maxSocketPath = 70

// short calls fn with a path of the folder that is short enough to name a socket in it. If the folder's own is not, fn
// gets that of a symbolic link in a private temporary folder, which exists as long as fn runs.
func short(path string, fn func(path string) error) (err error) {
	if len(path) <= maxSocketPath {
		return fn(path)
	}
	whole, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	temp, err := os.MkdirTemp("", "fdbfifo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	link := filepath.Join(temp, "d")
	if err := os.Symlink(whole, link); err != nil {
		return err
	}
	return fn(link)
}

// listener is the folder's socket. Close takes its name away: the folder is still locked then.
type listener struct {
	net.Listener
	name string
}

func (l *listener) Close() error { return errors.Join(l.Listener.Close(), os.Remove(l.name)) }

// listen makes the folder's socket. The socket is made aside, where nobody else comes, and moved into place when its
// mode is right: that also replaces what a killed process has left.
func listen(path string) (net.Listener, error) {
	var l *net.UnixListener
	err := short(path, func(path string) (err error) {
		left, err := os.ReadDir(path) // not Glob: the path may have a bracket in it
		if err != nil {
			return err
		}
		for _, entry := range left {
			if !strings.HasPrefix(entry.Name(), socketName+"-") {
				continue
			}
			if err := os.RemoveAll(filepath.Join(path, entry.Name())); err != nil {
				return err
			}
		}
		aside, err := os.MkdirTemp(path, socketName+"-")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(aside)) }()
		name := filepath.Join(aside, "s")
		if l, err = net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"}); err != nil {
			return err
		}
		l.SetUnlinkOnClose(false)
		if err := os.Chmod(name, 0o600); err != nil {
			return err
		}
		if err := giveToOwner(name, path); err != nil {
			return err
		}
		return os.Rename(name, filepath.Join(path, socketName))
	})
	if err != nil {
		if l != nil {
			err = errors.Join(err, l.Close())
		}
		return nil, err
	}
	return &listener{l, filepath.Join(path, socketName)}, nil
}
