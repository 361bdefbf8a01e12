package embedded

import (
	"bytes"
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

// maxPid bounds the content of that file, in bytes.
const maxPid = 100

// leavePid writes the number of this process, which must have the database file open, and its identity. If it cannot,
// errors do not have the number.
func (d *dir) leavePid() {
	f, err := d.openFile(pidName, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return
	}
	_, _ = fmt.Fprintln(f, os.Getpid(), identity(os.Getpid()))
	_ = f.Close()
}

// identity distinguishes the process with this number from a later process with the same number, and from one in
// another container. It is the number's namespace and the time when the process started; "" if the system has no /proc.
func identity(pid int) string {
	space, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	const start = 22 - 3 // proc(5) counts from 1, and the third field is the first behind the name in brackets
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) <= start {
		return ""
	}
	return space + " " + fields[start]
}

// leftPid returns the number that the process with the database file has left, 0 if there is none, or if the number is
// that of another process by now.
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
	number, rest, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	pid, err := strconv.Atoi(number)
	if err != nil || rest != identity(pid) {
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

// sign is the state of a file in the folder. A process that opens the folder makes the socket and renews its time, so a
// change of the socket is a sign of life. nil = there is no such file.
type sign struct{ fs.FileInfo }

func (f *folder) sign(name string) sign {
	info, err := os.Lstat(filepath.Join(f.path, name))
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
