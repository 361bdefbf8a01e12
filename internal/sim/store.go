package sim

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/fault"
)

// store is the database. It crashes now and then, and is opened again with the durable data.
//
// In memory everything that was applied is durable: a crash ends the transactions and the watches, and versions jump as
// at the opening of a stored database. On disk the file is copied as it is at that moment, as a killed process leaves
// it, and the copy is opened.
type store struct {
	w      *world
	plan   *fault.Plan // its late commits never land after a crash
	folder string      // where the files are; "" = in memory
	opened int         // how often
	all    []*embedded.DB
	life   *life
}

// reopenJump is how far versions jump in a crash in memory: as far as at the opening of a file.
const reopenJump = 10_000_000

// life is the store between two crashes.
type life struct {
	raw *embedded.DB
	db  kv.DB // raw with faults
	ctx context.Context
	end context.CancelFunc
}

func (l *life) over() bool { return l.ctx.Err() != nil }

// open opens what is durable.
func (s *store) open() error {
	l := &life{}
	o := embedded.Options{Exclusive: true, Seed: s.w.o.Seed + 1 + uint64(s.opened)<<32, Hooks: embedded.Hooks{
		VersionGap:  s.w.versionGap,
		HoldWatches: s.w.holdWatches,
	}}
	if s.w.knobs.clocks {
		o.Clock = s.w.storeClock(s.opened)
	}
	var err error
	switch {
	case s.folder == "" && s.life != nil:
		l.raw = s.life.raw
	case s.folder == "":
		l.raw = embedded.OpenMemory(o)
	default:
		l.raw, err = embedded.OpenDisk(s.path(s.opened), o)
	}
	if err != nil {
		return fmt.Errorf("sim: open the store: %w", err)
	}
	if s.folder != "" || s.life == nil {
		s.all = append(s.all, l.raw)
	}
	l.db = fault.Wrap(l.raw, s.plan)
	l.ctx, l.end = context.WithCancel(context.Background())
	s.life, s.opened = l, s.opened+1
	return nil
}

func (s *store) path(n int) string { return filepath.Join(s.folder, fmt.Sprint(n)) }

// crash ends all that is in flight and opens the store again.
func (s *store) crash() error {
	old := s.life
	if s.folder != "" {
		if err := s.copyFile(); err != nil {
			return fmt.Errorf("sim: copy the store: %w", err)
		}
	}
	if err := s.open(); err != nil {
		return err
	}
	if s.folder == "" {
		s.w.jump = reopenJump
	}
	old.end()
	return nil
}

func (s *store) copyFile() error {
	from, err := filepath.Glob(filepath.Join(s.path(s.opened-1), "*"))
	if err != nil {
		return err
	}
	to := s.path(s.opened)
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	for _, name := range from {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		copied := filepath.Join(to, filepath.Base(name))
		written := bytes.TrimRight(data, "\x00") // the file grows by far more than it needs
		if err := os.WriteFile(copied, written, 0o600); err != nil {
			return err
		}
		if err := os.Truncate(copied, int64(len(data))); err != nil {
			return err
		}
	}
	return nil
}

// close closes all databases that were opened. Databases that died in a crash were kept until now, because a test
// cannot kill a part of itself.
func (s *store) close() error {
	s.life.end()
	for _, db := range s.all {
		if err := db.Close(); err != nil {
			return err
		}
	}
	return nil
}
