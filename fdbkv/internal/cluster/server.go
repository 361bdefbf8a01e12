package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// Server is one fdbserver of a cluster. Its methods are not safe for concurrent use.
type Server struct {
	Class   string // storage, log or stateless; empty = it does everything
	Address string

	args   []string      // its program first
	run    *exec.Cmd     // the latest; nil = there was none
	exited chan struct{} // closed when run has ended
}

// newServer prepares server number n of a cluster. Each counts as a machine of its own, so that a cluster that keeps
// two copies keeps them in two servers.
func newServer(program, clusterFile, dir, class string, n int) (*Server, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	name := strconv.Itoa(n)
	data, logs := filepath.Join(dir, "data"+name), filepath.Join(dir, "logs"+name)
	for _, d := range []string{data, logs} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return nil, err
		}
	}
	s := &Server{Class: class, Address: address, args: []string{
		program, "--cluster-file", clusterFile, "--public-address", address, "--datadir", data, "--logdir", logs,
		"--locality-machineid", name, "--locality-zoneid", name, "--parentpid", strconv.Itoa(os.Getpid()),
	}}
	if class == "" {
		s.args = append(s.args, "--memory", "4GiB", "--storage-memory", "1GiB")
		return s, nil
	}
	// A cluster waits for an operator when the logs of more than 70 recoveries are still in use. Trouble makes more
	// recoveries than that.
	s.args = append(s.args, "--class", class, "--memory", "2GiB", "--storage-memory", "512MiB",
		"--cache-memory", "256MiB", "--knob_max_generations_override", "10000")
	return s, nil
}

// Start starts the server, on the data that it has.
func (s *Server) Start() error {
	run, exited := exec.Command(s.args[0], s.args[1:]...), make(chan struct{})
	if err := run.Start(); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	s.run, s.exited = run, exited
	go func() {
		_ = run.Wait() // its ProcessState says more
		close(exited)
	}()
	return nil
}

// Kill ends the server with SIGKILL, frozen or not. Its folder stays.
func (s *Server) Kill() error {
	if s.run == nil || s.ended() {
		return nil
	}
	err := s.run.Process.Kill()
	<-s.exited
	return err
}

// Freeze makes the server stand still until Thaw or Kill: to the others it looks like a machine or a disk that hangs.
func (s *Server) Freeze() error { return freeze(s.run.Process) }

// Thaw lets a frozen server go on.
func (s *Server) Thaw() error { return thaw(s.run.Process) }

func (s *Server) ended() bool {
	select {
	case <-s.exited:
		return true
	default:
		return false
	}
}

func (s *Server) String() string {
	return strings.TrimSpace(s.Class + " " + s.Address)
}
