package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"fdbfifo/internal/bench"
	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// benchFlags are the flags of bench.
type benchFlags struct {
	run  []string
	list bool
	plot string
}

const benchHelp = `Measure the queue on the engine, and the engine beside it. Each benchmark works in a database of its own, in
memory unless --engine says otherwise; with disk:PATH in new folders in PATH, which are removed afterwards.

The figures that count are ratios: both sides of one are measured in the same run, in turns, so that a busy
machine meets both. A figure short of its target is marked; the exit code is 0 all the same.`

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
			return s.bench(c.Context(), bench.All(bench.Full()), f)
		},
	}
	c.Flags().StringArrayVar(&f.run, "run", nil, "run this benchmark only; `NAME` as in --list, may be given more than once")
	c.Flags().BoolVar(&f.list, "list", false, "list the benchmarks and run none")
	c.Flags().StringVar(&f.plot, "plot", "", "measure claimers on each path instead, and write an SVG to `FILE.svg` and a table to FILE.md")
	c.MarkFlagsMutuallyExclusive("plot", "run")
	c.MarkFlagsMutuallyExclusive("plot", "list")
	return c
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
				return err
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
	shown, of := "", int64(0)
	defer func() {
		if p != nil {
			p.close()
		}
	}()
	return b.Run(ctx, bench.Env{
		Open: s.openBenchSpace,
		Progress: func(step string, done, total int64) {
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

// openBenchSpace opens the engine for one benchmark, at a place that nothing else uses.
func (s *session) openBenchSpace(ctx context.Context) (bench.Space, error) {
	space := bench.Space{Prefix: tuple.Tuple{"fdbfifo-bench", rand.Text()}.Pack()}
	name, arg, _ := strings.Cut(s.engine, ":")
	var err error
	switch name {
	case "memory":
		space.DB, err = s.openEngine(ctx, true)
	case "disk":
		space.DB, err = s.openBenchFolder(ctx, arg)
	default:
		// A database of others: what was written is cleared.
		if space.DB, err = s.openEngine(ctx, true); err == nil {
			space.DB = clearedDB{space.DB, space.Prefix}
		}
	}
	return space, err
}

// openBenchFolder opens the disk engine in a new folder in parent, or in the system's folder for what is
// temporary if that is "".
func (s *session) openBenchFolder(ctx context.Context, parent string) (kv.DB, error) {
	made := "" // parent, if it was not there
	if parent != "" {
		if _, err := os.Stat(parent); errors.Is(err, os.ErrNotExist) {
			made = parent
		}
		if err := os.MkdirAll(parent, 0o755); err != nil {
			return nil, err
		}
	}
	folder, err := os.MkdirTemp(parent, "fdbfifo-bench-")
	if err != nil {
		return nil, err
	}
	remove := func() error {
		err := os.RemoveAll(folder)
		if made != "" {
			// Only if it is empty: the folder of another space may be in it, which removes it then.
			_ = os.Remove(made)
		}
		return err
	}
	db, err := s.app.Engines["disk"](ctx, EngineOptions{Arg: filepath.Join(folder, "db"), Create: true, Notice: func(string, ...any) {}})
	if err != nil {
		return nil, errors.Join(err, remove())
	}
	return removedDB{db, remove}, nil
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

// significant rounds v to four digits: no figure here is more exact.
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
