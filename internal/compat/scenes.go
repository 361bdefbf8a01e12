package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// upgrade: the old version writes, both versions work, and the new one drains.
func upgrade(s *scene) error { return s.roll(s.versions.old, s.versions.new, taken) }

// rollback: the new version writes, and the old one continues and drains.
func rollback(s *scene) error { return s.roll(s.versions.new, s.versions.old, refused) }

// roll goes from one version to another: the first writes, both work, the second drains.
func (s *scene) roll(from, to string, handles handles) error {
	if err := s.create(from, "archive=1h", "changes=1h", "dedup_for=window", "max_attempts=3", "shards=2"); err != nil {
		return err
	}
	if err := errors.Join(s.send(from, 20, 6), s.mark(from)); err != nil {
		return err
	}
	claim, err := s.call(from, "", "receive", "--queue", queue, "--group", "g00", "--max", "1", "--lease", "1h")
	if err != nil {
		return err
	}
	first, err := s.start(from, workArgs()...)
	if err != nil {
		return err
	}
	if err := s.await(30); err != nil {
		return err
	}
	second, err := s.start(to, workArgs()...)
	if err != nil {
		return err
	}
	if err := errors.Join(s.send(to, 20, 6), s.send(from, 20, 6)); err != nil {
		return err
	}
	if err := s.await(200); err != nil {
		return err
	}
	if err := first.stop(); err != nil { // the second takes over the folder, if the first has it
		return err
	}
	if err := s.send(to, 20, 6); err != nil {
		return err
	}
	if err := s.afterwards(from, to, claim); err != nil {
		return err
	}
	if err := s.await(s.sent); err != nil {
		return err
	}
	if err := second.stop(); err != nil {
		return err
	}
	if err := errors.Join(s.do(to, workArgs("--until-empty")...), s.verify(0)); err != nil {
		return err
	}
	if err := s.both("check", "--queue", queue); err != nil {
		return err
	}
	return s.serve(from, to, handles)
}

// mark leaves a paused group and a delayed message, which the other version finds.
func (s *scene) mark(version string) error {
	return errors.Join(
		s.do(version, "pause", "--queue", queue, "--group", "g01", "--reason", "looking"),
		s.do(version, "enqueue", "--queue", queue, "--group", "late", "--delay", "20s", "--dedup-id", "once", "--body",
			`{"group":"late","number":0}`))
}

// afterwards acks by the second version what the first has received, ends the pause, and sends a duplicate.
func (s *scene) afterwards(from, to, claim string) error {
	if _, err := s.call(to, claim, "extend", "--queue", queue, "--lease", "1m"); err != nil {
		return err
	}
	if _, err := s.call(to, claim, "nack", "--queue", queue, "--delay", "0s"); err != nil {
		return err
	}
	s.next["late"] = 1
	s.sent++
	return errors.Join(
		s.do(to, "resume", "--queue", queue, "--group", "g01"),
		s.do(to, "enqueue", "--queue", queue, "--group", "late", "--dedup-id", "once", "--body",
			`{"group":"late","number":9}`),
		s.do(from, "stats", "--queue", queue), s.do(to, "stats", "--queue", queue),
		s.both("sweep", "--queue", queue))
}

// mixed has two workers of each version at work while messages are sent, and kills one after the other.
func (s *scene) mixed(kills int, random *rand.Rand) error {
	if err := s.create(s.versions.old); err != nil {
		return err
	}
	all := []string{s.versions.old, s.versions.new, s.versions.old, s.versions.new}
	workers := make([]*process, len(all))
	for i, version := range all {
		var err error
		if workers[i], err = s.start(version, workArgs()...); err != nil {
			return err
		}
	}
	for n := range kills {
		if err := s.send(all[n%len(all)], 24, 4); err != nil {
			return err
		}
		select {
		case <-time.After(time.Duration(random.IntN(1500)) * time.Millisecond):
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
		i := random.IntN(len(workers))
		if err := workers[i].kill(); err != nil {
			return err
		}
		var err error
		if workers[i], err = s.start(all[i], workArgs()...); err != nil {
			return err
		}
	}
	if err := s.await(s.sent); err != nil {
		return err
	}
	for _, w := range workers {
		if err := w.stop(); err != nil {
			return err
		}
	}
	// The journal may have lines of messages that came twice: nothing is left after this.
	if err := s.do(s.versions.new, workArgs("--until-empty")...); err != nil {
		return err
	}
	if err := s.verify(4 * kills); err != nil { // a worker has four messages in flight
		return err
	}
	return s.both("check", "--queue", queue)
}

var errAnswer = errors.New("unexpected answer")

func answered(what string, got any) error { return fmt.Errorf("%w: %s: %v", errAnswer, what, got) }
