// Command peers measures queues side by side: the same work, in the same run, each as durable as it can be.
//
//	go run . -out ../docs/benchmarks/peers.md
//
// If a program that a peer needs is missing (of PostgreSQL or Redis, for example), the command says so and leaves the
// peer out.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func run() error {
	var w work
	only := flag.String("only", "", "the peers to measure, separated by commas; all by default")
	out := flag.String("out", "", "a page to put the table into, between its lines for that, and the plot beside")
	asJSON := flag.Bool("json", false, "print the figures as JSON")
	flag.IntVar(&w.single, "single", 2000, "messages sent one by one in a round")
	flag.IntVar(&w.batched, "batched", 10_000, "messages sent ten by ten in a round, and then handled")
	flag.IntVar(&w.groups, "groups", 200, "groups that the messages belong to")
	flag.IntVar(&w.callers, "callers", 8, "goroutines that send, and workers")
	flag.IntVar(&w.rate, "rate", 100, "messages a second while the time from send to handler is measured")
	flag.DurationVar(&w.period, "period", 10*time.Second, "how long that time is measured in a round")
	flag.IntVar(&w.rounds, "rounds", 3, "rounds; the figures are the medians")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	folder, err := os.MkdirTemp("", "peers")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)

	all, skipped, err := open(ctx, folder, *only)
	if err != nil {
		return err
	}
	defer func() {
		for _, p := range all {
			p.close()
		}
	}()
	for _, s := range skipped {
		fmt.Fprintln(os.Stderr, "SKIP", s)
	}
	if len(all) == 0 {
		return errors.New("there is no peer to measure")
	}
	results, err := w.measure(ctx, all, os.Stderr)
	if err != nil {
		return err
	}
	if *asJSON {
		return json.NewEncoder(os.Stdout).Encode(results)
	}
	table := markdown(w, results)
	if *out == "" {
		fmt.Print(table)
		return nil
	}
	if err := insert(*out, table); err != nil {
		return err
	}
	return draw(strings.TrimSuffix(*out, filepath.Ext(*out))+".svg", results)
}

// open opens the peers named in only, or all; skipped says which are not to be had here, and why.
func open(ctx context.Context, folder, only string) (all []peer, skipped []string, err error) {
	wanted := func(name string) bool {
		for n := range strings.SplitSeq(only, ",") {
			if only == "" || strings.TrimSpace(n) == name {
				return true
			}
		}
		return false
	}
	for _, o := range openers {
		if !wanted(o.name) {
			continue
		}
		own := filepath.Join(folder, o.name)
		if err := os.Mkdir(own, 0o755); err != nil {
			return all, nil, err
		}
		p, err := o.open(ctx, own)
		if missing := (*missingError)(nil); errors.As(err, &missing) {
			skipped = append(skipped, fmt.Sprintf("%s: %v", o.name, missing))
			continue
		} else if err != nil {
			return all, nil, fmt.Errorf("%s: %w", o.name, err)
		}
		all = append(all, p)
	}
	return all, skipped, nil
}

// openers are the peers, in the order of the table.
var openers = []struct {
	name string
	open func(ctx context.Context, folder string) (peer, error)
}{
	{"fdbfifo", openFdbfifo},
	{"table", openTable},
	{"recipe", openRecipe},
	{"river", openRiver},
	{"redis", openRedis},
}

// missingError says which program a peer lacks, and how to get it.
type missingError struct{ what, how string }

func (e *missingError) Error() string { return e.what + " is not here; " + e.how }
