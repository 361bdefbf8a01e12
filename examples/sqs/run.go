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
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// visibility is for how long what a killed worker had in flight waits.
	visibility = 4 * time.Second
	// patience bounds a trial.
	patience = 5 * time.Minute
)

// trial is the proof: processes that speak SQS, and some of them killed.
type trial struct {
	customers, each       int // each = orders of a customer
	binary, node, scripts string
	victims               string // whom to kill: names of processes, with commas
	log                   io.Writer

	folder           string
	endpoint         string
	shop             string // where orders are sent to
	orders, shipping string // URLs of the queues
	crew             map[string]*process
	accepted         atomic.Int64
	retries          atomic.Int64
}

// result is what a trial has come to.
type result struct {
	proof
	Killed  int      `json:"killed"`
	Victims []string `json:"victims"`
	Retries int64    `json:"retries"` // requests of customers that were sent again
	Seconds float64  `json:"seconds"`
}

func (r result) String() string {
	return fmt.Sprintf("%d orders of %d customers through %d stages: %d missing, %d doubled, %d out of order\n"+
		"killed: %s; %d deliveries and %d requests again; %.1f s\n", r.Orders, r.Customers, len(stages), r.Missing,
		r.Doubled, r.OutOfOrder, strings.Join(r.Victims, ", "), r.Again, r.Retries, r.Seconds)
}

// run runs the trial in a folder of its own.
func (t *trial) run(ctx context.Context) (r result, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if t.folder, err = os.MkdirTemp("", "sqs-"); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(t.folder)) }()
	begun := time.Now()
	defer t.stop()
	if err := t.start(ctx); err != nil {
		return r, err
	}
	work, working := errgroup.WithContext(ctx)
	for _, c := range t.names() {
		work.Go(func() error { return t.buy(working, c) })
	}
	var victims []string
	work.Go(func() (err error) { victims, err = t.harm(working); return err })
	if err := work.Wait(); err != nil {
		return r, err
	}
	// In this order: a worker deletes an order when it has sent the shipment.
	for _, url := range []string{t.orders, t.shipping} {
		if err := until(ctx, func() (bool, error) { return empty(ctx, newClient(t.endpoint), url) }); err != nil {
			return r, err
		}
	}
	seconds := time.Since(begun).Seconds()
	t.stop()
	for _, queue := range []string{ordersQueue, shippingQueue} {
		check := exec.CommandContext(ctx, t.binary, "--engine", "disk:"+t.database(), "--queue", queue, "check")
		if out, err := check.CombinedOutput(); err != nil {
			return r, fmt.Errorf("the queue %s breaks its rules: %w\n%s", queue, err, out)
		}
	}
	p, err := prove(filepath.Join(t.folder, "books"), t.names(), t.each)
	return result{
		proof: p, Killed: len(victims), Victims: victims, Retries: t.retries.Load(),
		Seconds: float64(int(seconds*10)) / 10,
	}, err
}

const ordersQueue, shippingQueue = "orders.fifo", "shipments.fifo"

func (t *trial) database() string { return filepath.Join(t.folder, "database") }

func (t *trial) names() []string {
	names := make([]string, t.customers)
	for i := range names {
		names[i] = fmt.Sprintf("customer-%d", i+1)
	}
	return names
}

// until waits until done is true. An error of done is tried again: the server may be away.
func until(ctx context.Context, done func() (bool, error)) error {
	for {
		ok, err := done()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// buy sends the orders of a customer, each until it is accepted.
func (t *trial) buy(ctx context.Context, customer string) error {
	for n := 1; n <= t.each; n++ {
		body, err := json.Marshal(order{Customer: customer, Number: n})
		if err != nil {
			return err
		}
		err = until(ctx, func() (bool, error) {
			answer, err := http.Post(t.shop, "application/json", bytes.NewReader(body))
			if err == nil {
				err = answer.Body.Close()
			}
			if err != nil || answer.StatusCode != http.StatusCreated {
				t.retries.Add(1)
				return false, err
			}
			return true, nil
		})
		if err != nil {
			return err
		}
		t.accepted.Add(1)
	}
	return nil
}

// harm kills the victims, spread over the time in which orders are shipped, and starts each again.
func (t *trial) harm(ctx context.Context) (killed []string, err error) {
	victims := strings.FieldsFunc(t.victims, func(r rune) bool { return r == ',' })
	for i, name := range victims {
		// At a seventh of the way, two sevenths and so on, if there are six.
		least := (i + 1) * t.customers * t.each / (len(victims) + 1)
		err := until(ctx, func() (bool, error) {
			p, err := prove(filepath.Join(t.folder, "books"), t.names(), t.each)
			return 2*p.Orders-p.Missing >= 2*least, err
		})
		if err != nil {
			return killed, err
		}
		p := t.crew[name]
		if p == nil {
			return killed, fmt.Errorf("no process %q", name)
		}
		p.kill()
		killed = append(killed, name)
		fmt.Fprintf(t.log, "sqs: killed %s\n", name)
		if _, err := p.start(); err != nil {
			return killed, err
		}
	}
	return killed, nil
}

// start starts the server, makes the queues, and starts the others.
func (t *trial) start(ctx context.Context) error {
	t.crew = make(map[string]*process)
	begin := func(name, says string, args ...string) (string, error) {
		t.crew[name] = &process{name: name, says: says, args: args}
		return t.crew[name].start()
	}
	const serving = "serving SQS at "
	serve := []string{t.binary, "serve", "--engine", "disk:" + t.database(), "--sqs"}
	at, err := begin("server", serving, append(serve, "127.0.0.1:0")...)
	if err != nil {
		return err
	}
	t.endpoint = at
	t.crew["server"].args = append(serve, strings.TrimPrefix(at, "http://")) // the next one listens there too
	c := newClient(t.endpoint)
	if t.orders, err = create(ctx, c, ordersQueue, visibility); err != nil {
		return err
	}
	if t.shipping, err = create(ctx, c, shippingQueue, visibility); err != nil {
		return err
	}
	shop := []string{"node", filepath.Join(t.scripts, "shop.mjs"), t.endpoint, t.orders, t.node}
	port, err := begin("shop", "listening ", append(shop, "0")...)
	if err != nil {
		return err
	}
	t.crew["shop"].args = append(shop, port)
	t.shop = "http://127.0.0.1:" + port + "/orders"
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, stage := range stages {
		books := filepath.Join(t.folder, "books", stage)
		if err := os.MkdirAll(books, 0o700); err != nil {
			return err
		}
		for _, n := range []string{"-1", "-2"} {
			args := []string{self, "ship", t.endpoint, t.shipping, books, stage + n}
			if stage == "pack" {
				args = []string{
					"python3", filepath.Join(t.scripts, "pack.py"), t.endpoint, t.orders, t.shipping, books, stage + n,
				}
			}
			if _, err := begin(stage+n, "working", args...); err != nil {
				return err
			}
		}
	}
	return nil
}

// process is a process of the crew.
type process struct {
	name, says string // says = what begins the line in which it says that it has begun
	args       []string
	cmd        *exec.Cmd
	stdin      io.Closer
}

// start starts the process, and returns the rest of the line in which it says that it has begun. The process ends when
// its stdin does, also if this one dies; the server is told to.
func (p *process) start() (string, error) {
	p.cmd = exec.Command(p.args[0], p.args[1:]...)
	p.cmd.Env = append(os.Environ(), childMark+"=1", "AWS_EC2_METADATA_DISABLED=true")
	from, to, err := os.Pipe()
	if err != nil {
		return "", err
	}
	p.cmd.Stdout, p.cmd.Stderr = to, to
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return "", errors.Join(err, from.Close(), to.Close())
	}
	if err := errors.Join(p.cmd.Start(), to.Close()); err != nil {
		return "", errors.Join(err, from.Close())
	}
	var said strings.Builder
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		if _, rest, ok := strings.Cut(lines.Text(), p.says); ok {
			go func() {
				_, _ = io.Copy(io.Discard, from)
				_ = from.Close()
			}()
			return rest, nil
		}
		fmt.Fprintln(&said, lines.Text())
	}
	err = errors.Join(p.cmd.Wait(), from.Close())
	p.cmd = nil
	return "", fmt.Errorf("%s has not begun: %w\n%s", p.name, err, &said)
}

// kill ends the process by SIGKILL.
func (p *process) kill() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait() // says that it was killed
		p.cmd = nil
	}
}

// stop ends all processes.
func (t *trial) stop() {
	for _, p := range t.crew {
		p.kill()
	}
}

// childMark, in the environment of a test's binary, makes it the command.
const childMark = "SQS_CHILD"
