package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"syscall"
)

// dir is a folder that is held open. Its files are named relative to the open folder. So a check stays true if another
// process puts another folder, or a link, at the path.
type dir struct {
	*os.Root
	path string // for errors and for the socket
	info fs.FileInfo
	uid  int // the folder's owner; -1 where files have none
}

// openDir opens the folder. The caller closes it.
func openDir(path string) (*dir, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("embedded: open %s: %w", path, err)
	}
	info, err := root.Stat(".")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("embedded: open %s: %w", path, err), root.Close())
	}
	return &dir{root, path, info, userOf(info)}, nil
}

// moved reports whether the opened folder is no longer at the path: nothing is there, or another folder.
func moved(path string, opened fs.FileInfo) bool {
	now, err := os.Stat(path)
	if err == nil {
		return !os.SameFile(opened, now)
	}
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// foreign reports whether this process is root's and the folder another user's. Root works in such a folder only as a
// client of the process that serves it: whatever root opens, makes or changes there, the owner could replace by a link
// to a file that only root may touch.
func (d *dir) foreign() bool { return os.Geteuid() == 0 && d.uid > 0 }

// mine reports whether this process may serve the folder to others.
func (d *dir) mine() bool { return d.uid == os.Geteuid() }

// otherUser returns the error that root gets if the folder is another user's and no process serves it.
func (d *dir) otherUser() error {
	name := fmt.Sprintf("#%d", d.uid)
	if u, err := user.LookupId(name[1:]); err == nil {
		name = u.Username
	}
	return fmt.Errorf("%w: %s belongs to %s, and no process of that user has it open: run this as that user "+
		"(sudo -u '%[3]s')", ErrOtherUser, d.path, name)
}

// checkFile returns an error unless info is of a regular file that this process may trust to be the folder's own. For
// root the file must belong to the folder's owner. Otherwise a user could put a hard link to a file of root's into the
// folder.
func (d *dir) checkFile(name string, info fs.FileInfo) error {
	name = filepath.Join(d.path, name)
	switch mode := info.Mode(); {
	case mode&fs.ModeSymlink != 0:
		return &fs.PathError{Op: "open", Path: name, Err: errLink}
	case !mode.IsRegular():
		return &fs.PathError{Op: "open", Path: name, Err: errors.New("not a regular file")}
	case os.Geteuid() == 0 && userOf(info) != d.uid:
		return &fs.PathError{Op: "open", Path: name, Err: fmt.Errorf(
			"it belongs to user %d, and its folder to user %d: change the owner of one of them", userOf(info), d.uid)}
	}
	return nil
}

var errLink = errors.New("is a symbolic link, which is not followed: move the file itself here")

// openFile opens a file of the folder, and never another one by a link.
func (d *dir) openFile(name string, flag int, mode fs.FileMode) (_ *os.File, err error) {
	if info, err := d.Lstat(name); err == nil {
		if err := d.checkFile(name, info); err != nil {
			return nil, err
		}
	}
	f, err := d.OpenFile(name, flag|openFlags, mode)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	// The opened file must be the file with this name, and not the target of a link that was made between the checks.
	opened, err := f.Stat()
	if err != nil {
		return nil, err
	}
	named, err := d.Lstat(name)
	if err != nil {
		return nil, err
	}
	if err := d.checkFile(name, named); err != nil {
		return nil, err
	}
	if !os.SameFile(opened, named) {
		return nil, &fs.PathError{Op: "open", Path: filepath.Join(d.path, name), Err: errors.New("replaced just now")}
	}
	return f, nil
}
