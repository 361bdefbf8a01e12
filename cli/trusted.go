package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// isOpen reports whether all users of this machine can read or write a file.
func isOpen(info fs.FileInfo) bool {
	return runtime.GOOS != "windows" && info.Mode().Perm()&0o007 != 0
}

// trusted returns the path of a file that is about to be made or written, with all links in it resolved but the last
// one. If this process is root's, it returns an error if another user can replace the file, or a folder or a link on
// the way to it. That user could lead root to another file, such as one in /etc, by a link. shared reports whether
// other users can make files in the folder, but replace none of root's (as in /tmp).
func trusted(name string) (path string, shared bool, err error) {
	if os.Geteuid() != 0 {
		return name, false, nil
	}
	if name, err = filepath.Abs(name); err != nil {
		return "", false, err
	}
	folder, err := resolve(filepath.Dir(name), func(at string, info fs.FileInfo) error {
		isLink := info.Mode()&fs.ModeSymlink != 0
		open := !isLink && info.Mode().Perm()&0o022 != 0
		if userOf(info) > 0 || open && info.Mode()&fs.ModeSticky == 0 {
			return fmt.Errorf("other users can change %s, so root writes nothing there: run this as the user of "+
				"the folder, or name a folder that only root can change", at)
		}
		if !isLink {
			shared = open
		}
		return nil
	})
	return filepath.Join(folder, filepath.Base(name)), shared, err
}

// maxLinks bounds the links on the way to a file, as Linux does.
const maxLinks = 40

// resolve returns the place to which an absolute path leads, which has no links. It calls visit for each folder and
// each link on the way, also for those to which links lead, until visit returns an error. A part that is not there yet
// is taken for a folder that is made later.
func resolve(path string, visit func(at string, info fs.FileInfo) error) (string, error) {
	const slash = string(filepath.Separator)
	at, links := slash, 0
	for parts := strings.Split(path, slash); len(parts) > 0; {
		next := filepath.Join(at, parts[0]) // also if that part is empty, or two dots: at has no links
		parts = parts[1:]
		info, err := os.Lstat(next)
		if errors.Is(err, fs.ErrNotExist) {
			at = next
			continue
		}
		if err == nil {
			err = visit(next, info)
		}
		if err != nil {
			return "", err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("%s leads over more than %d links", path, maxLinks)
		}
		target, err := os.Readlink(next)
		if err != nil {
			return "", err
		}
		if filepath.IsAbs(target) {
			at = slash
		}
		parts = append(strings.Split(target, slash), parts...)
	}
	return at, nil
}

// checkFolderOfRoot returns an error if this process is root's, and another user leads it to the folder of the queues
// by a link, also by one to which a link of root's leads: that user would choose on which folder a command of root's
// acts, or where it makes one. The folder of another user may be named: see the operations page.
func checkFolderOfRoot(path string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	_, err := resolve(path, func(at string, info fs.FileInfo) error {
		if info.Mode()&fs.ModeSymlink != 0 && userOf(info) > 0 {
			return fmt.Errorf("%s is a link of another user, so root does not follow it: name the folder itself", at)
		}
		return nil
	})
	return err
}
