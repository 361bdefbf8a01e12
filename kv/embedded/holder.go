package embedded

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// pidName is the file in which the process that has the database file open to write leaves its number. Only the text
// of an error depends on it.
const pidName = "kv.pid"

// maxPid is the length of the longest number of a process.
const maxPid = 20

// leavePid writes the number of this process, which must have the database file open. If it cannot, errors do not have
// the number.
func (d *dir) leavePid() {
	f, err := d.openFile(pidName, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return
	}
	_, _ = fmt.Fprintln(f, os.Getpid())
	_ = f.Close()
}

// leftPid returns the number that the process with the database file has left, 0 if there is none.
func (d *dir) leftPid() int {
	f, err := d.openFile(pidName, os.O_RDONLY, 0)
	if err != nil {
		return 0
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxPid))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	return pid
}

// locked is ErrLocked for this folder. It names the process at the other end of the socket, if there is one, or the
// process that has the database file. It does not name a process that has ended.
func (d *dir) locked(peer int, cause error) error {
	text := d.path
	for _, pid := range []int{peer, d.leftPid()} {
		if pid > 0 && alive(pid) {
			text = fmt.Sprintf("%s is held by process %d", d.path, pid)
			break
		}
	}
	if cause == nil {
		return fmt.Errorf("%w: %s", ErrLocked, text)
	}
	return fmt.Errorf("%w: %s: %w", ErrLocked, text, cause)
}

// beatEvery is how often a process that opens the folder renews the time of its socket.
const beatEvery = time.Second

// beat renews the time of the socket until stop is called. So the processes that wait for an answer see that this
// process is at work.
func (l *listener) beat() (stop func()) {
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(beatEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				now := time.Now()
				_ = l.dir.Chtimes(socketName, now, now) // the others then wait less long
			case <-over:
				return
			}
		}
	}()
	return func() {
		close(over)
		<-ended
	}
}

// sign is the state of the folder's socket. A process that opens the folder makes the socket and renews its time, so a
// change is a sign of life. nil = there is no socket.
type sign struct{ fs.FileInfo }

func (f *folder) sign() sign {
	info, err := os.Lstat(filepath.Join(f.path, socketName))
	if err != nil {
		return sign{}
	}
	return sign{info}
}

func (s sign) equal(o sign) bool {
	if s.FileInfo == nil || o.FileInfo == nil {
		return s.FileInfo == o.FileInfo
	}
	return os.SameFile(s.FileInfo, o.FileInfo) && s.ModTime().Equal(o.ModTime())
}
