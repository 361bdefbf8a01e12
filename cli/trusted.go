package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// isOpen reports whether all users of this machine can read or write a file.
func isOpen(info fs.FileInfo) bool {
	return runtime.GOOS != "windows" && info.Mode().Perm()&0o007 != 0
}

// trusted returns the path of a file that is about to be made or written, with all links in it resolved but the last
// one. If this process is root's, it returns an error if another user can replace the file or a folder on its path.
// That user could lead root to another file, such as one in /etc, by a link. shared reports whether other users can
// make files in the folder, but replace none of root's (as in /tmp).
func trusted(name string) (path string, shared bool, err error) {
	if os.Geteuid() != 0 {
		return name, false, nil
	}
	if name, err = filepath.Abs(name); err != nil {
		return "", false, err
	}
	folder, rest := filepath.Split(name)
	resolved, err := filepath.EvalSymlinks(folder)
	for errors.Is(err, fs.ErrNotExist) { // a folder that is not there yet is made by root
		rest = filepath.Join(filepath.Base(folder), rest)
		folder = filepath.Dir(filepath.Clean(folder))
		resolved, err = filepath.EvalSymlinks(folder)
	}
	if err != nil {
		return "", false, err
	}
	path = filepath.Join(resolved, rest)
	for at := resolved; ; at = filepath.Dir(at) {
		info, err := os.Lstat(at)
		if err != nil {
			return "", false, err
		}
		open := info.Mode().Perm()&0o022 != 0
		if uid := userOf(info); uid > 0 || open && info.Mode()&fs.ModeSticky == 0 {
			return "", false, fmt.Errorf("other users can change the folder %s, so root writes nothing there: "+
				"run this as the user of the folder, or name a folder that only root can change", at)
		}
		shared = shared || open && at == resolved
		if at == filepath.Dir(at) {
			return path, shared, nil
		}
	}
}

// checkFolderOfRoot returns an error if this process is root's, and another user leads it to the folder of the queues
// by a link: that user would choose on which folder a command of root's acts, or where it makes one. The folder of
// another user may be named: see the operations page.
func checkFolderOfRoot(folder string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	path, err := filepath.Abs(folder)
	if err != nil {
		return err
	}
	for at := path; ; at = filepath.Dir(at) {
		info, err := os.Lstat(at)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err == nil && info.Mode()&fs.ModeSymlink != 0 && userOf(info) > 0 {
			return fmt.Errorf("%s is a link of another user, so root does not follow it: name the folder itself", at)
		}
		if at == filepath.Dir(at) {
			return nil
		}
	}
}
