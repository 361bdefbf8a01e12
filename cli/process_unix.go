//go:build unix

package cli

import (
	"io/fs"
	"os"
	"os/exec"
	"syscall"
)

// ownGroup starts cmd in a process group of its own: Ctrl-C on the terminal then reaches fdbfifo alone, which
// lets the command finish, and a kill reaches what the command has started too.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}

// userOf returns the user that a file belongs to.
func userOf(info fs.FileInfo) int {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(s.Uid)
	}
	return -1
}

func freeze(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }
func thaw(p *os.Process) error   { return p.Signal(syscall.SIGCONT) }
