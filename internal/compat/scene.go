package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// scene is a folder, the processes that have it open, and the messages that were sent.
type scene struct {
	ctx       context.Context
	versions  versions
	folder    string
	processes []*process
	next      map[string]int // by group: the number of the next message to be sent
	sent      int
	repeated  int // set by verify
}

// queue is the queue of the scenes.
const queue = "orders"

// message is the body of a message.
type message struct {
	Group  string `json:"group"`
	Number int    `json:"number"`
}

// command is a call of a version's command on the folder.
func (s *scene) command(version string, args ...string) *exec.Cmd {
	c := exec.CommandContext(s.ctx, version, append(args, "--engine", "disk:"+filepath.Join(s.folder, "data"))...)
	c.WaitDelay = 10 * time.Second
	c.Env = append(os.Environ(), "JOURNAL="+s.journal())
	return c
}

// call runs a command to its end, and returns what it has printed to stdout.
func (s *scene) call(version, stdin string, args ...string) (string, error) {
	c := s.command(version, args...)
	c.Stdin = strings.NewReader(stdin)
	var out, stderr bytes.Buffer
	c.Stdout, c.Stderr = &out, &stderr
	if err := c.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %q: %w\n%s%s", filepath.Base(version), args, err, &out, &stderr)
	}
	return out.String(), nil
}

// do is call for a command of which the output does not matter.
func (s *scene) do(version string, args ...string) error {
	_, err := s.call(version, "", args...)
	return err
}

// process is a command that runs on.
type process struct {
	*exec.Cmd
	output bytes.Buffer
}

func (s *scene) start(version string, args ...string) (*process, error) {
	p := &process{Cmd: s.command(version, args...)}
	p.Stdout, p.Stderr = &p.output, &p.output
	if err := p.Start(); err != nil {
		return nil, err
	}
	s.processes = append(s.processes, p)
	return p, nil
}

// stop asks a process to end, and waits.
func (p *process) stop() error {
	if err := p.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	if err := p.Wait(); err != nil {
		return fmt.Errorf("%q: %w\n%s", p.Args, err, &p.output)
	}
	return nil
}

// kill ends a process with SIGKILL.
func (p *process) kill() error {
	if err := p.Process.Kill(); err != nil {
		return err
	}
	err := p.Wait()
	if state, ok := p.ProcessState.Sys().(syscall.WaitStatus); ok && state.Signaled() {
		return nil
	}
	return fmt.Errorf("%q ended by itself: %w\n%s", p.Args, err, &p.output)
}

// end kills the processes that are left.
func (s *scene) end() {
	for _, p := range s.processes {
		if p.ProcessState == nil {
			p.Process.Kill()
			p.Wait()
		}
	}
}

// lease is the queue's: so long the groups of a killed worker wait.
const lease = "3s"

func (s *scene) create(version string, settings ...string) error {
	if err := os.MkdirAll(filepath.Join(s.folder, "data"), 0o700); err != nil {
		return err
	}
	args := []string{"create", queue, "--set", "lease=" + lease}
	for _, setting := range settings {
		args = append(args, "--set", setting)
	}
	return s.do(version, args...)
}

// send enqueues each more messages for each of so many groups.
func (s *scene) send(version string, groups, each int) error {
	if s.next == nil {
		s.next = make(map[string]int)
	}
	var lines strings.Builder
	for range each {
		for g := range groups {
			m := message{Group: fmt.Sprintf("g%02d", g)}
			m.Number = s.next[m.Group]
			s.next[m.Group]++
			text, err := json.Marshal(m)
			if err != nil {
				return err
			}
			fmt.Fprintf(&lines, "%s\n", text)
		}
	}
	s.sent += groups * each
	_, err := s.call(version, lines.String(), "enqueue", "--queue", queue, "--file", "-", "--format", "jsonl",
		"--group-field", "group")
	return err
}

// handling appends the body to the journal in one write, and takes its time.
const handling = `printf '%s\n' "$(cat)" >> "$JOURNAL"; sleep 0.01`

func (s *scene) journal() string { return filepath.Join(s.folder, "journal") }

// workArgs are the arguments of a worker.
func workArgs(more ...string) []string {
	return append([]string{"work", "--queue", queue, "--exec", handling, "--workers", "4"}, more...)
}

// handled reads how many lines the journal has.
func (s *scene) handled() (int, error) {
	text, err := os.ReadFile(s.journal())
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	return bytes.Count(text, []byte("\n")), err
}

// await waits until the journal has at least n lines.
func (s *scene) await(n int) error {
	for {
		have, err := s.handled()
		if err != nil || have >= n {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-s.ctx.Done():
			return fmt.Errorf("%d of %d messages were handled: %w", have, n, context.Cause(s.ctx))
		}
	}
}

// verify holds the journal to the order of each group: no message is missing, and none comes behind a later one. A
// message may come again directly behind itself, at most so often in all.
func (s *scene) verify(repeats int) error {
	file, err := os.Open(s.journal())
	if err != nil {
		return err
	}
	defer file.Close()
	came := make(map[string]int)
	for lines := json.NewDecoder(file); ; {
		var m message
		if err := lines.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fmt.Errorf("read journal: %w", err)
		}
		switch m.Number {
		case came[m.Group]:
			came[m.Group]++
		case came[m.Group] - 1:
			s.repeated++
		default:
			return fmt.Errorf("group %s: message %d came, and %d was next", m.Group, m.Number, came[m.Group])
		}
	}
	for group, n := range s.next {
		if came[group] != n {
			return fmt.Errorf("group %s: %d of %d messages came", group, came[group], n)
		}
	}
	if s.repeated > repeats {
		return fmt.Errorf("%d messages came twice, %d may", s.repeated, repeats)
	}
	return nil
}

// both runs a command of each version.
func (s *scene) both(args ...string) error {
	return errors.Join(s.do(s.versions.old, args...), s.do(s.versions.new, args...))
}
