package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"
)

// member is one process of a trial.
type member struct {
	name string
	args []string

	cmd     *exec.Cmd
	stdin   io.Closer
	stderr  *bytes.Buffer
	address atomic.Pointer[string] // URL of its HTTP server, after its first start
}

func (m *member) url() string { return *m.address.Load() }

// start starts the process, and returns when it answers. The process ends when its stdin does, also if this one dies.
// After each start it has another address: while no process listens on a port, any other may take it.
func (m *member) start() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	m.cmd, m.stderr = exec.Command(self, m.args...), new(bytes.Buffer)
	m.cmd.Env = append(os.Environ(), childMark+"=1")
	m.cmd.Stderr = m.stderr
	stdout, err := m.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if m.stdin, err = m.cmd.StdinPipe(); err != nil {
		return err
	}
	if err := m.cmd.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		err = errors.Join(err, m.stdin.Close(), m.cmd.Wait())
		return fmt.Errorf("%s has not begun: %w\n%s", m.name, err, m.stderr)
	}
	line = strings.TrimSpace(line)
	m.address.Store(&line)
	return nil
}

// kill ends the process with SIGKILL.
func (m *member) kill() error {
	if err := m.cmd.Process.Kill(); err != nil {
		return err
	}
	_ = m.cmd.Wait() // says that it was killed
	return nil
}

// stop ends the process in good order.
func (m *member) stop() error { return errors.Join(m.stdin.Close(), m.wait()) }

// wait waits for the end of a process that was told to stop.
func (m *member) wait() error {
	if err := m.cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w\n%s", m.name, err, m.stderr)
	}
	return nil
}

// health asks the process how it is.
func (m *member) health(ctx context.Context) (h health, err error) {
	return h, m.ask(ctx, "/healthz", &h)
}

// ask reads the JSON answer to a GET.
func (m *member) ask(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, m.url()+path, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", m.name, answer.Status)
	}
	return json.NewDecoder(answer.Body).Decode(into)
}

// childMark, in the environment of a test's binary, makes it the command.
const childMark = "ORDERS_CHILD"
