package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"fdbfifo/internal/bench"
	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/tuple"
)

// benchFlags are the flags of bench.
type benchFlags struct {
	run  []string
	list bool
	plot string
}

const benchHelp = `Measure the queue on the engine, and the engine without a queue. Each benchmark works in a database
of its own, in memory unless --engine says otherwise. With disk:PATH it works in new folders in PATH, and removes them
afterwards. The benchmarks whose names begin with "shared", and takeover_ms, always use the disk engine, and start
processes.

The most important figures are ratios. Both sides of a ratio are measured in the same run, in turns, so that a busy
machine slows both. A figure that misses its target is marked; the exit code is 0 nevertheless.`

func newBenchCmd(s *session) *cobra.Command {
	var f benchFlags
	c := &cobra.Command{
		Use:     "bench [flags]",
		Short:   "Measure the queue and its engine, as ratios in one run",
		Long:    benchHelp,
		Example: "  fdbfifo bench --run engine_ratio --run depth_ratio --json",
		RunE: func(c *cobra.Command, _ []string) error {
			if !c.Flags().Changed("engine") {
				s.engine = "memory"
			}
			if f.plot != "" {
				return s.plotBench(c.Context(), bench.Full(), f.plot)
			}
			all := bench.All(fullBench())
			if f.list || len(f.run) > 0 {
				all = append(all, bench.ByHand(fullBench())...)
			}
			return s.bench(c.Context(), all, f)
		},
	}
	c.Flags().StringArrayVar(&f.run, "run", nil, "run only this benchmark, by its `NAME` in --list (repeatable)")
	c.Flags().BoolVar(&f.list, "list", false, "list the benchmarks and run none")
	c.Flags().StringVar(&f.plot, "plot", "", "measure claimers on each path instead, and write an SVG to `FILE.svg` and a table to FILE.md")
	c.MarkFlagsMutuallyExclusive("plot", "run")
	c.MarkFlagsMutuallyExclusive("plot", "list")
	return c
}

// fullBench returns the sizes. If only one process can have the engine open, it leaves out the figures of several
// processes.
func fullBench() bench.Sizes {
	sizes := bench.Full()
	if !embedded.Sharable {
		sizes.SharedRounds = 0
	}
	return sizes
}

// bench runs those of all that the flags name.
func (s *session) bench(ctx context.Context, all []bench.Benchmark, f benchFlags) error {
	chosen, err := chooseBenchmarks(all, f.run)
	if err != nil {
		return err
	}
	if f.list {
		return s.listBenchmarks(chosen)
	}
	s.notice("engine %s, a fresh database for each benchmark", s.engine)
	var results []bench.Result
	for _, b := range chosen {
		r, err := s.runBenchmark(ctx, b)
		if err != nil {
			if ctx.Err() != nil {
				err = fmt.Errorf("%w: %w", errInterrupted, err)
			}
			return err
		}
		if s.json {
			if err := s.printFigures(r); err != nil {
				return &Error{Text: err.Error(), Hint: "The benchmarks behind " + b.Name + " were not run.", Err: err}
			}
		}
		results = append(results, r...)
	}
	if s.json {
		return nil
	}
	return s.printTable(s.benchTable(results))
}

func chooseBenchmarks(all []bench.Benchmark, names []string) ([]bench.Benchmark, error) {
	if len(names) == 0 {
		return all, nil
	}
	var chosen []bench.Benchmark
	for _, name := range names {
		i := slices.IndexFunc(all, func(b bench.Benchmark) bool { return b.Name == name })
		if i < 0 {
			known := make([]string, len(all))
			for i, b := range all {
				known[i] = b.Name
			}
			return nil, usagef("there is no benchmark %q: there are %s", name, strings.Join(known, ", "))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

type jsonBenchmark struct {
	Name  string `json:"name"`
	Means string `json:"means"`
}

func (s *session) listBenchmarks(all []bench.Benchmark) error {
	if s.json {
		for _, b := range all {
			if err := printJSON(s.stdout, jsonBenchmark{b.Name, b.Means}); err != nil {
				return err
			}
		}
		return nil
	}
	t := newTable("name", "what it means")
	for _, b := range all {
		t.AppendRow(tableRow{b.Name, b.Means})
	}
	return s.printTable(t)
}

// runBenchmark runs one benchmark and shows its steps.
func (s *session) runBenchmark(ctx context.Context, b bench.Benchmark) ([]bench.Result, error) {
	var p *progress
	var mu sync.Mutex // several goroutines of a worker may tell their progress
	shown, of := "", int64(0)
	defer func() {
		if p != nil {
			p.close()
		}
	}()
	return b.Run(ctx, bench.Env{
		Open:   s.openBenchSpace,
		Folder: s.benchFolder,
		Memory: s.inMemory(),
		Progress: func(step string, done, total int64) {
			mu.Lock()
			defer mu.Unlock()
			if step != shown || total != of {
				if p != nil {
					p.close()
				}
				p, shown, of = s.newProgress(b.Name+": "+step, "step", total), step, total
			}
			p.set(done)
		},
	})
}

// openBenchSpace opens the engine for one benchmark, in a folder or under a prefix of its own.
func (s *session) openBenchSpace(ctx context.Context) (bench.Space, error) {
	space := bench.Space{Prefix: tuple.Tuple{"fdbfifo-bench", rand.Text()}.Pack()}
	name, arg := s.engineParts()
	var err error
	switch name {
	case "memory":
		space.DB, err = s.openEngine(ctx, true)
	case "disk":
		space.DB, err = s.openBenchFolder(ctx, arg)
	default:
		// The database belongs to others too, so the rows of the benchmark are cleared at the end.
		if space.DB, err = s.openEngine(ctx, true); err == nil {
			space.DB = clearedDB{space.DB, space.Prefix}
		}
	}
	return space, err
}

// openBenchFolder opens the disk engine in a new folder in parent.
func (s *session) openBenchFolder(ctx context.Context, parent string) (kv.DB, error) {
	folder, remove, err := makeBenchFolder(parent)
	if err != nil {
		return nil, err
	}
	db, err := s.openBenchDisk(ctx, folder)
	if err != nil {
		return nil, errors.Join(err, remove())
	}
	return removedDB{db, remove}, nil
}

func (s *session) openBenchDisk(ctx context.Context, folder string) (kv.DB, error) {
	return s.app.Engines["disk"](ctx, EngineOptions{Arg: folder, Create: true, Notice: func(string, ...any) {}})
}

// makeBenchFolder makes a new folder in parent, or in the system's temporary folder if parent is "". remove removes the
// folder. It also removes parent if makeBenchFolder made it and it is empty.
func makeBenchFolder(parent string) (folder string, remove func() error, err error) {
	made := "" // parent, if it was not there
	if parent != "" {
		path, _, err := trusted(filepath.Join(parent, "db"))
		if err != nil {
			return "", nil, err
		}
		parent = filepath.Dir(path)
		if _, err := os.Stat(parent); errors.Is(err, os.ErrNotExist) {
			made = parent
		}
		if _, readOnly := embedded.ReadOnly(parent); readOnly {
			return "", nil, fmt.Errorf("%w: %s", embedded.ErrReadOnly, parent)
		}
		if err := os.MkdirAll(parent, 0o755); err != nil {
			return "", nil, err
		}
	}
	temp, err := os.MkdirTemp(parent, "fdbfifo-bench-")
	if err != nil {
		return "", nil, err
	}
	return filepath.Join(temp, "db"), func() error {
		err := os.RemoveAll(temp)
		if made != "" {
			// This fails if it still has the folder of another space. The remove of that space removes it then.
			_ = os.Remove(made)
		}
		return err
	}, nil
}

// benchFolder makes a folder for a benchmark of several processes. It is in PATH if --engine is disk:PATH.
func (s *session) benchFolder(context.Context) (bench.Folder, error) {
	parent := ""
	if name, arg := s.engineParts(); name == "disk" {
		parent = arg
	}
	folder, remove, err := makeBenchFolder(parent)
	if err != nil {
		return bench.Folder{}, err
	}
	return bench.Folder{
		Open: func(ctx context.Context, exclusive bool) (kv.DB, error) {
			if exclusive {
				return embedded.OpenDisk(folder, embedded.Options{Exclusive: true})
			}
			return s.openBenchDisk(ctx, folder)
		},
		Start: func(ctx context.Context, stdout io.Writer) (bench.Process, error) {
			return s.app.spawn(ctx, []string{benchPeerName, "--engine", "disk:" + folder}, stdout, s.stderr)
		},
		Remove: remove,
	}, nil
}

// benchPeerName is the command that the benchmarks of several processes start. It is not for users.
const benchPeerName = "bench-peer"

func newBenchPeerCmd(s *session) *cobra.Command {
	return &cobra.Command{
		Use:    benchPeerName,
		Short:  "One process of bench, until its stdin ends",
		Hidden: true,
		RunE: func(c *cobra.Command, _ []string) error {
			_, folder := s.engineParts()
			db, err := s.openBenchDisk(c.Context(), folder)
			if err != nil {
				return err
			}
			err = bench.Peer(c.Context(), db, untilInterrupted(c.Context(), s.stdin), s.stdout)
			closeEngine(db, &err)
			return err
		},
	}
}

// removedDB is a database that is removed when it is closed.
type removedDB struct {
	kv.DB
	remove func() error
}

func (d removedDB) Close() error { return errors.Join(d.DB.Close(), d.remove()) }

// clearedDB is a database in which a prefix is cleared before it is closed.
type clearedDB struct {
	kv.DB
	prefix []byte
}

func (d clearedDB) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_, err := kv.Run(ctx, d.DB, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		tx.ClearRange(kv.PrefixRange(d.prefix))
		return nil
	})
	return errors.Join(err, d.DB.Close())
}

type jsonFigure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

func (s *session) printFigures(results []bench.Result) error {
	for _, r := range results {
		if err := printJSON(s.stdout, jsonFigure{r.Name, significant(r.Value), r.Unit}); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) benchTable(results []bench.Result) table.Writer {
	t := newTable("name", "value", "unit", "target", "what it means")
	rows := make([][]string, len(results))
	taken := 0
	for i, r := range results {
		rows[i] = []string{r.Name, figure(r.Value), r.Unit, verdict(r)}
		width := 0
		for _, cell := range rows[i] {
			width += len(cell)
		}
		taken = max(taken, width)
	}
	rest := max(40, s.width()-taken-10)
	t.SetColumnConfigs([]table.ColumnConfig{
		{Number: 2, Align: text.AlignRight, AlignHeader: text.AlignRight},
		{Number: 5, WidthMax: rest, WidthMaxEnforcer: text.WrapSoft},
	})
	for i, r := range results {
		means := r.Means
		if r.Detail != "" {
			means += " (" + r.Detail + ")"
		}
		if r.Target.Exists() && i > 0 {
			t.AppendSeparator()
		}
		t.AppendRow(tableRow{rows[i][0], rows[i][1], rows[i][2], rows[i][3], means})
	}
	return t
}

func verdict(r bench.Result) string {
	switch {
	case !r.Target.Exists():
		return ""
	case r.Target.Met(r.Value):
		return r.Target.String() + " met"
	}
	return r.Target.String() + " MISSED"
}

// significant rounds v to four digits, because no figure here is more exact.
func significant(v float64) float64 {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return v
	}
	return round(v, 3-int(math.Floor(math.Log10(math.Abs(v)))))
}

// figure writes v as a table shows it.
func figure(v float64) string {
	v = significant(v)
	if v >= 1000 {
		return commas(int64(v))
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}
