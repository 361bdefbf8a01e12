package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// process is another run of this command line. Wait must be called, once.
type process interface {
	// Write writes to its stdin.
	io.Writer
	// Stop asks it to come to an end, by the end of its stdin. That comes by itself when this process dies.
	Stop() error
	// Freeze makes it stand still until Thaw or Kill: SIGSTOP and SIGCONT. Where there are no signals it goes on.
	Freeze() error
	Thaw() error
	// Kill ends it on the spot: SIGKILL, where there are signals.
	Kill() error
	// Wait waits for its end.
	Wait() error
}

// spawnFunc starts a process with args. It is killed when ctx ends.
type spawnFunc func(ctx context.Context, args []string, stdout, stderr io.Writer) (process, error)

// selfProcess is the running program's file, started once more.
type selfProcess struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
}

func spawnSelf(ctx context.Context, args []string, stdout, stderr io.Writer) (process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the program's own file: %w", err)
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	ownGroup(cmd) // Ctrl-C is for this process, which stops the others
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &selfProcess{cmd, stdin}, nil
}

func (p *selfProcess) Write(b []byte) (int, error) { return p.stdin.Write(b) }

func (p *selfProcess) Stop() error   { return p.stdin.Close() }
func (p *selfProcess) Freeze() error { return freeze(p.cmd.Process) }
func (p *selfProcess) Thaw() error   { return thaw(p.cmd.Process) }
func (p *selfProcess) Kill() error   { return p.cmd.Process.Kill() }
func (p *selfProcess) Wait() error   { return p.cmd.Wait() }
