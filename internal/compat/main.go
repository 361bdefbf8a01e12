// Command compat builds the command fdbfifo of an older commit, and runs it with today's on one folder:
//
//	upgrade   the old version writes, both work, the new one drains
//	rollback  the new version writes, the old one continues, and drains
//	mixed     workers of both versions work together, and are killed with SIGKILL
//
// All messages of a group must be handled in order, and none may be lost. A message that a killed worker had in flight
// may come again before the next one of its group. Servers of SQS take part in the first two.
//
//	go run ./internal/compat [-old COMMIT] [-kills N] [-seed N]
//
// It runs at the root of the module, and needs git, a Unix shell, and the commit in the history of the repository. In a
// clone without the usual commit, 20272d7, it prints one line that begins with SKIP, and exits with 0. A COMMIT that is
// not there is an error.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"fdbfifo/internal/seeds"
)

func main() {
	old := flag.String("old", usualOld, "the older `COMMIT`")
	kills := flag.Int("kills", 8, "kill `N` workers in the scene mixed")
	seed := flag.Uint64("seed", seeds.Of("compat"), "`SEED` of the kills")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, *old, *kills, *seed)
	if errors.Is(err, errNoCommit) {
		fmt.Println("SKIP: nothing is compared:", err)
		return
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "compat: %v\nreplay: go run ./internal/compat -old %s -kills %d -seed %d\n",
			err, *old, *kills, *seed)
		os.Exit(1)
	}
}

// sceneLimit bounds a scene, on a machine that has other work.
const sceneLimit = 10 * time.Minute

func run(ctx context.Context, old string, kills int, seed uint64) (err error) {
	scratch, err := os.MkdirTemp("", "compat")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	versions, err := build(ctx, old, scratch)
	if err != nil {
		return err
	}
	for _, s := range []struct {
		name string
		run  func(s *scene) error
	}{
		{"upgrade", upgrade}, {"rollback", rollback},
		{"mixed", func(s *scene) error { return s.mixed(kills, rand.New(rand.NewPCG(seed, 0))) }},
	} {
		begun := time.Now()
		sceneCtx, end := context.WithTimeoutCause(ctx, sceneLimit, errors.New("the scene took too long"))
		in := &scene{ctx: sceneCtx, versions: versions, folder: filepath.Join(scratch, s.name)}
		err := s.run(in)
		in.end()
		if cause := context.Cause(sceneCtx); err != nil && cause != nil {
			err = fmt.Errorf("%w (%w)", err, cause)
		}
		end()
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Printf("%-9s %5d messages, %3d of them twice, %.0f s\n",
			s.name, in.sent, in.repeated, time.Since(begun).Seconds())
	}
	return nil
}
