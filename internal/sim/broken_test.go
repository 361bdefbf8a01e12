//go:build broken

package sim_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/internal/sim"
	"fdbfifo/layer"
)

// This file is of the build that can leave a guard of the layer out (layer/internal/guard): whether the simulation
// finds what then goes wrong. A guard is left out of a whole process, so the test runs itself again for each.

var (
	huntFlag    = flag.Bool("hunt", false, "look for a violation, from -seed on; print it as JSON")
	profileFlag = flag.String("profile", "", "kind of the runs, see sim.Profiles; none = as each seed draws")
	guardsFlag  = flag.String("guards", "", "the guards to leave out, with commas between them; none = all that the simulation has to find")
	aloneFlag   = flag.Bool("alone", false, "look for what porcupine finds, and for nothing else")
	boundFlag   = flag.Int("bound", 1000, "seeds of a hunt whose known seed does not find the violation any more")
)

// found is what a hunt has come to.
type found struct {
	Guard      string
	Profile    string
	Seed       uint64
	Seeds      int // it took
	Operations int // in all of them
	Violation  string
}

// TestHunt is one process's part of TestBroken.
func TestHunt(t *testing.T) {
	if !*huntFlag {
		t.Skip("without -hunt")
	}
	f := found{Guard: os.Getenv(layer.WithoutVariable), Profile: *profileFlag}
	for f.Seeds < *seedsFlag && f.Violation == "" {
		f.Seed = *seedFlag + uint64(f.Seeds)
		fmt.Printf("\n%s%d\n", seedMark, f.Seed)
		r := runAs(t, sim.Options{Seed: f.Seed, Operations: *operationsFlag, Profile: f.Profile, Linear: *aloneFlag})
		f.Seeds, f.Operations = f.Seeds+1, f.Operations+r.Operations
		switch found := r.Linear.Violations; {
		case *aloneFlag && len(found) > 0:
			f.Violation = found[0].Text
		case !*aloneFlag && len(r.Violations) > 0:
			f.Violation = r.Violations[0]
		}
	}
	b, err := json.Marshal(f)
	require.NoError(t, err)
	fmt.Printf("\n%s%s\n", huntMark, b)
}

// The lines that a hunt is read by: what it has come to, and each of its seeds before that runs.
const (
	huntMark = "found: "
	seedMark = "seed: "
)

// start runs a hunt in a process of its own. A panic of a queue that lacks a guard is a violation, too.
func start(t *testing.T, guard, profile string, seed uint64, seeds int, more ...string) (f found) {
	t.Helper()
	c := exec.Command(os.Args[0], "-test.run", "^TestHunt$", "-test.timeout", "10m", "-hunt", "-profile", profile,
		"-seed", strconv.FormatUint(seed, 10), "-seeds", strconv.Itoa(seeds), "-operations", strconv.Itoa(*operationsFlag))
	c.Args = append(c.Args, more...)
	c.Env = append(os.Environ(), layer.WithoutVariable+"="+guard)
	out, err := c.CombinedOutput()
	_, line, ok := bytes.Cut(out, []byte(huntMark))
	line, _, _ = bytes.Cut(line, []byte("\n"))
	if _, what, panicked := bytes.Cut(out, []byte("\npanic: ")); !ok && panicked && guard != "" {
		what, _, _ = bytes.Cut(what, []byte("\n"))
		f = found{Guard: guard, Profile: profile, Violation: "panic: " + string(what)}
		last := out[bytes.LastIndex(out, []byte(seedMark))+len(seedMark):]
		last, _, _ = bytes.Cut(last, []byte("\n"))
		f.Seed, err = strconv.ParseUint(string(last), 10, 64)
		require.NoError(t, err)
		f.Seeds = int(f.Seed-seed) + 1
		return f
	}
	require.True(t, ok, "%v\n%s", err, out)
	require.NoError(t, json.Unmarshal(line, &f))
	return f
}

// TestBroken: the simulation finds a violation in a queue that lacks a guard, for every guard that it can reach; the
// others are those of TestBrokenByTests in layer. The seed that is known to find it comes first, and when the code has
// changed so that it does not, a bounded number of others.
func TestBroken(t *testing.T) {
	begun := time.Now()
	var mu sync.Mutex
	all := make(map[string]found)
	names := chosen(t)
	t.Run("without", func(t *testing.T) {
		for _, name := range names {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				k := caught[name]
				f := found{}
				if k.seed != 0 {
					f = start(t, name, k.profile, k.seed, 1)
				}
				if f.Violation == "" {
					first := f
					f = start(t, name, k.profile, 1, *boundFlag)
					f.Seeds, f.Operations = f.Seeds+first.Seeds, f.Operations+first.Operations
				}
				if f.Violation != "" && (f.Seed != k.seed || f.Profile != k.profile) {
					whole := start(t, "", f.Profile, f.Seed, 1)
					require.Empty(t, whole.Violation, "the queue that lacks nothing fails in the same run")
				}
				mu.Lock()
				defer mu.Unlock()
				all[name] = f
				if f.Violation == "" {
					t.Errorf("without %q: no violation in %d seeds, %d operations; search on: FDBFIFO_WITHOUT=%s go test -tags broken "+
						"-overlay=$(go run ./internal/mutants/overlay bin/broken) ./internal/sim -run TestHunt -v -args -hunt -profile %q -seeds 10000", name, f.Seeds, f.Operations, name, k.profile)
				}
			})
		}
	})
	var s strings.Builder
	operations := 0
	for _, name := range names {
		f := all[name]
		operations += f.Operations
		what := f.Violation
		if len(what) > 110 {
			what = what[:107] + "..."
		}
		fmt.Fprintf(&s, "%-18s %-9s %5d %5d %7d  %s\n", name, f.Profile, f.Seed, f.Seeds, f.Operations, what)
	}
	t.Logf("%d guards, %d operations, %s\n%-18s %-9s %5s %5s %7s  %s\n%s", len(names), operations, time.Since(begun).Round(time.Second),
		"without", "profile", "seed", "seeds", "calls", "first violation", &s)
}

// chosen are the guards that TestBroken is asked for.
func chosen(t *testing.T) []string {
	if *guardsFlag != "" {
		names := strings.Split(*guardsFlag, ",")
		for _, name := range names {
			require.Contains(t, layer.Guards(), name)
		}
		return names
	}
	var names []string
	for _, name := range layer.Guards() {
		if _, ok := caught[name]; ok {
			names = append(names, name)
		}
	}
	return names
}

// TestCanary: with all guards the known seeds find nothing. So without a guard they find the missing guard.
func TestCanary(t *testing.T) {
	require.Empty(t, os.Getenv(layer.WithoutVariable))
	seen := make(map[known]bool)
	for _, name := range layer.Guards() {
		k, ok := caught[name]
		if !ok || seen[k] {
			continue
		}
		seen[k] = true
		t.Run(fmt.Sprintf("%s/%d", k.profile, k.seed), func(t *testing.T) {
			t.Parallel()
			r := runAs(t, sim.Options{Seed: k.seed, Operations: *operationsFlag, Profile: k.profile, Linear: true})
			require.Empty(t, r.Violations)
			require.Zero(t, r.Ambiguous)
		})
	}
}

// TestNoOtherGuards: each guard has a run that finds that it is missing, or a reason why there is none. The lists name
// nothing else.
func TestNoOtherGuards(t *testing.T) {
	for name, k := range caught {
		require.Contains(t, layer.Guards(), name)
		require.Contains(t, append(sim.Profiles(), ""), k.profile)
	}
	var missed []string
	for _, name := range layer.Guards() {
		if _, ok := caught[name]; !ok {
			missed = append(missed, name)
			require.NotEmpty(t, uncaught[name], name)
		}
	}
	require.Len(t, uncaught, len(missed), "reasons for guards that the simulation finds")
	page, err := os.ReadFile("../../docs/guarantees.md")
	require.NoError(t, err)
	require.Contains(t, strings.Join(strings.Fields(string(page)), " "),
		fmt.Sprintf("For %d of the %d guards the simulation finds", len(caught), len(layer.Guards())))
}
