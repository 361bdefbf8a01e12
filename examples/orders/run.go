package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

// trial is the proof. It runs the service as processes, places orders as clients, and kills processes at the same time.
type trial struct {
	orders, customers, kills, restarts int
	lease                              time.Duration
	folder                             string
	log                                io.Writer

	crew    []*member // an API, and workers
	clients *clients
	killed  []string // what was killed
}

// result is what a trial has come to.
type result struct {
	verdict
	Customers  int      `json:"customers"`
	Killed     int      `json:"killed"`
	Victims    []string `json:"victims"`
	Retries    int64    `json:"retries"`    // requests that were sent again
	Duplicates int64    `json:"duplicates"` // of those: the order had been accepted, and the answer was lost
	Seconds    float64  `json:"seconds"`
}

func runCommand(ctx context.Context, flags *flag.FlagSet, args []string, stdout, stderr io.Writer) error {
	t := trial{log: stderr}
	flags.IntVar(&t.orders, "orders", 5000, "orders to place")
	flags.IntVar(&t.customers, "customers", 300, "customers who place them")
	flags.IntVar(&t.kills, "kills", 4, "processes to kill on the way, with SIGKILL")
	flags.IntVar(&t.restarts, "restarts", 0, "processes to stop in good order after that, and start anew")
	flags.DurationVar(&t.lease, "lease", 6*time.Second, "what a dead worker had in flight waits for so long")
	asJSON := flags.Bool("json", false, "print the result as JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if t.customers < 1 {
		return fmt.Errorf("%d customers: there must be one at least", t.customers)
	}
	r, err := t.run(ctx)
	if err != nil {
		return err
	}
	if *asJSON {
		err = json.NewEncoder(stdout).Encode(r)
	} else {
		_, err = fmt.Fprintf(stdout, "%d orders of %d customers in %.1f s, %d processes killed: %s\n"+
			"%d requests were sent again, %d of them had been done\n%d missing, %d doubled, %d out of order\n",
			r.Orders, r.Customers, r.Seconds, r.Killed, strings.Join(r.Victims, ", "), r.Retries, r.Duplicates,
			r.Missing, r.Doubled, r.OutOfOrder)
	}
	return errors.Join(err, r.err())
}

// run runs the trial in a folder of its own.
func (t *trial) run(ctx context.Context) (r result, err error) {
	if t.folder, err = os.MkdirTemp("", "orders-"); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(t.folder)) }()
	begun := time.Now()
	if err := t.drive(ctx); err != nil {
		return r, err
	}
	seconds := time.Since(begun).Seconds()
	// The processes have ended; what they have left is what counts.
	db, err := embedded.OpenDisk(t.folder, embedded.Options{})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	s, err := openShop(ctx, db)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, s.queue.Close(ctx)) }()
	report, err := s.queue.Admin().Check(ctx, layer.CheckOptions{})
	if err != nil {
		return r, err
	}
	if len(report.Violations) > 0 {
		return r, fmt.Errorf("the queue breaks its rules: %v", report.Violations)
	}
	l, err := s.audit(ctx)
	if err != nil {
		return r, err
	}
	return result{
		verdict: l.prove(t.clients.told), Customers: t.customers, Killed: len(t.killed), Victims: t.killed,
		Retries: t.clients.retries, Duplicates: t.clients.duplicates, Seconds: float64(int(seconds*10)) / 10,
	}, nil
}

// drive starts the processes. It places all orders while it kills and restarts processes. Then it waits until all
// orders are booked, and lets the processes end.
func (t *trial) drive(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, m := range []*member{
		{name: "api", args: []string{"api"}},
		{name: "worker 1", args: []string{"worker"}},
		{name: "worker 2", args: []string{"worker"}},
	} {
		m.args = append(m.args, "-child", "-folder", t.folder, "-lease", t.lease.String())
		if err := m.start(); err != nil {
			return errors.Join(err, t.stop())
		}
		t.crew = append(t.crew, m)
	}
	defer func() { err = errors.Join(err, t.stop()) }()
	t.clients = newClients(t.crew[0].url)
	placed := make(chan error, 1)
	go func() {
		err := t.clients.place(ctx, t.orders, t.customers)
		if err != nil {
			cancel(err)
		}
		placed <- err
	}()
	events := t.kills + t.restarts
	for n := range events {
		if err := t.clients.reach(ctx, (n+1)*t.orders/(events+1)); err != nil {
			return err
		}
		if n < t.kills {
			err = t.kill(ctx, n)
		} else {
			err = t.restart(n)
		}
		if err != nil {
			return err
		}
	}
	if err := <-placed; err != nil {
		return err
	}
	return t.drained(ctx)
}

// kill kills a process and restarts it. Each time it takes another one, and each fourth time the one that serves the
// folder.
func (t *trial) kill(ctx context.Context, n int) error {
	victim, what := t.crew[n%len(t.crew)], ""
	for _, m := range t.crew {
		h, err := m.health(ctx)
		if serving := err == nil && h.Serving; serving && (n%4 == 3 || m == victim) {
			victim, what = m, " (it served the folder)"
		}
	}
	if err := victim.kill(); err != nil {
		return fmt.Errorf("kill %s: %w", victim.name, err)
	}
	t.killed = append(t.killed, victim.name+what)
	fmt.Fprintf(t.log, "orders: killed %s%s\n", victim.name, what)
	return victim.start()
}

// restart stops a process in good order, and starts it again.
func (t *trial) restart(n int) error {
	m := t.crew[n%len(t.crew)]
	if err := m.stop(); err != nil {
		return err
	}
	fmt.Fprintf(t.log, "orders: stopped %s\n", m.name)
	return m.start()
}

// drained waits until the queue is empty.
func (t *trial) drained(ctx context.Context) error {
	for {
		var s struct{ Depth int64 }
		if err := t.crew[0].ask(ctx, "/admin/stats", &s); err == nil && s.Depth == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// stop lets the processes end; they have to do so in good order.
func (t *trial) stop() (err error) {
	for _, m := range t.crew {
		err = errors.Join(err, m.stdin.Close()) // all at once
	}
	for _, m := range t.crew {
		err = errors.Join(err, m.wait())
	}
	return err
}
