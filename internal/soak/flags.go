package soak

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"fdbfifo/internal/seeds"
	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// Open opens an engine. arg is what follows its name and a colon.
type Open func(arg string) (kv.DB, error)

// Embedded returns the engines that need nothing else.
func Embedded() map[string]Open {
	return map[string]Open{
		"memory": func(string) (kv.DB, error) { return embedded.OpenMemory(embedded.Options{}), nil },
		"disk":   func(folder string) (kv.DB, error) { return embedded.OpenDisk(folder, embedded.Options{}) },
	}
}

// Main runs a soak as the arguments of a command line say, and returns the exit code.
func Main(args []string, out io.Writer, engines map[string]Open) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	report, err := fromArgs(ctx, args, out, engines)
	if report != nil {
		fmt.Fprintln(out, report)
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 2
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		return 1
	case len(report.Grown) > 0:
		return 1
	}
	return 0
}

func fromArgs(ctx context.Context, args []string, out io.Writer, engines map[string]Open) (_ *Report, err error) {
	flags := flag.NewFlagSet("soak", flag.ContinueOnError)
	minutes := flags.Float64("minutes", 1, "how long")
	engine := flags.String("engine", "memory", "memory, disk, disk:FOLDER (disk alone: a new one, removed at the end), or what else there is")
	interval := flags.Duration("interval", 0, "between two counts; 0 = a sixtieth of all, 1s to 30s")
	seed := flags.Uint64("seed", seeds.Number(), "of the load's choices; their order in time is the machine's")
	if err := flags.Parse(args); err != nil {
		return nil, errors.Join(flag.ErrHelp, err)
	}
	o := Options{Duration: time.Duration(*minutes * float64(time.Minute)), Interval: *interval, Seed: *seed, Out: out}
	if o.Duration >= 3*time.Minute {
		o.Settle = 6 * time.Second
	}
	if o.Interval == 0 {
		o.Interval = min(max(o.Duration/60, time.Second), 30*time.Second)
	}
	name, arg, _ := strings.Cut(*engine, ":")
	open := engines[name]
	if open == nil {
		return nil, fmt.Errorf("soak: there is no engine %q", name)
	}
	if name == "disk" && arg == "" {
		if arg, err = os.MkdirTemp("", "soak"); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(arg)) }()
	}
	db, err := open(arg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	fmt.Fprintf(out, "engine %s, %s, a count every %s, seed %d\n", *engine, o.Duration, o.Interval, o.Seed)
	return Run(ctx, db, o)
}
