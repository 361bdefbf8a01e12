package sqs

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/schemas"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

func (s *Server) purgeQueue(ctx context.Context, c *call, in *queueRequest) error {
	q, err := s.queue(ctx, c, in.QueueUrl)
	if err != nil {
		return err
	}
	defer q.release()
	if err := s.moveSources(ctx, q, time.Now().Add(purgeWait)); err != nil { // for a client they are in the queue
		return err
	}
	version, err := s.version(ctx)
	if err != nil {
		return err
	}
	at, tried := s.options.Now().UnixMilli(), false
	r, err := s.changeRecord(ctx, q.Name(), func(r *record) error {
		if stored := tried && r.Purged == at; !stored && s.purgeAge(*r, version) < nameFreeAfter {
			return fail(schemas.PurgeQueueInProgress,
				"Only one PurgeQueue operation on %s is allowed every 60 seconds.", q.Name())
		}
		r.Purged, r.PurgedVersion, r.Purging, tried = at, version, true, true
		return nil
	})
	if err != nil {
		return err
	}
	purged := make(chan error, 1)
	s.alone(r.purge(), func() { purged <- s.purge(s.stopped, q.Name(), r, 0) })
	select {
	case err := <-purged:
		return err
	case <-time.After(purgeWait):
	case <-s.stopped.Done():
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil // the purge continues, also on another server
}

const (
	// purgeWait is how long a PurgeQueue waits for the end of the purge.
	purgeWait = 10 * time.Second
	// purgeAgain is how long after its begin a purge that has not ended is begun again by any server. It is not begun
	// again after nameFreeAfter, because it would remove messages that were sent since.
	purgeAgain = 15 * time.Second
)

// purge is the id of the last purge of a queue, for alone.
func (r record) purge() string { return fmt.Sprint("purge ", r.ID, r.Purged) }

// version is a version of the database that is not older than the call.
func (s *Server) version(ctx context.Context) (version int64, err error) {
	_, err = kv.Run(ctx, s.db, kv.TxOptions{Call: "read a version"}, func(tx kv.Tx, _ kv.Attempt) (err error) {
		version, err = tx.ReadVersion().Wait(ctx)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("read version: %w", err)
	}
	return version, nil
}

// purgeAge returns how long ago the last purge of a queue began. version is the present one of the database. The clock
// of the server that began the purge may differ from this one's. Versions, about a million in each second, are no
// server's clock, but may jump ahead. So the smaller age counts, unless that clock was ahead.
func (s *Server) purgeAge(r record, version int64) time.Duration {
	age, byVersions := s.since(r.Purged), time.Duration(version-r.PurgedVersion)*time.Microsecond
	if r.PurgedVersion > 0 && byVersions >= 0 && (age < 0 || byVersions < age) {
		return byVersions
	}
	return age
}

// purge empties the queue of a record that says so since age, and stores that it is done. It ends if it comes no
// further, for example because the database does not answer: another server may have purged the queue, and messages may
// have been sent since.
func (s *Server) purge(ctx context.Context, name string, asked record, age time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stuck := time.AfterFunc(nameFreeAfter-age, cancel)
	defer stuck.Stop()
	s.outdate(name) // the handle that is open may be that of an earlier queue of the name
	q, err := s.open(ctx, name)
	if err != nil {
		return ignoreNoQueue(err)
	}
	defer q.release()
	if q.record.ID != asked.ID {
		return nil // deleted, and created again
	}
	o := layer.PurgeOptions{
		All: true, Force: true, Progress: func(layer.PurgeReport) { stuck.Reset(nameFreeAfter) },
	}
	if _, err := q.Admin().Purge(ctx, o); err != nil {
		return err
	}
	return s.endPurge(ctx, name, asked)
}

// endPurge stores that the purge of a record has ended. A later one may be under way.
func (s *Server) endPurge(ctx context.Context, name string, asked record) error {
	_, err := s.changeRecord(ctx, name, func(r *record) error {
		r.Purging = r.Purging && (r.ID != asked.ID || r.Purged != asked.Purged)
		return nil
	})
	return ignoreNoQueue(err)
}

// tidyPurge begins a purge again that has not ended, or gives it up.
func (s *Server) tidyPurge(ctx context.Context, name string, r record) error {
	version, err := s.version(ctx)
	if err != nil {
		return err
	}
	switch age := s.purgeAge(r, version); {
	case age >= nameFreeAfter:
		s.options.Logger.Warn("sqs: a purge may have left messages", "queue", name)
		return s.endPurge(ctx, name, r)
	case age >= purgeAgain:
		s.alone(r.purge(), func() {
			if err := s.purge(ctx, name, r, age); err != nil && ctx.Err() == nil {
				s.options.Logger.Warn("sqs: a queue is not purged yet", "queue", name, "err", err)
			}
		})
	}
	return nil
}
