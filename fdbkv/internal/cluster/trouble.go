package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Harm counts what Trouble did, by kind.
type Harm map[string]int

func (h Harm) String() string {
	var kinds []string
	for _, kind := range slices.Sorted(maps.Keys(h)) {
		kinds = append(kinds, fmt.Sprintf("%s %d", kind, h[kind]))
	}
	return strings.Join(kinds, ", ")
}

// The kinds of harm.
const (
	harmKill      = "killed"      // SIGKILL, and a restart after at most maxDown
	harmFreeze    = "frozen"      // SIGSTOP, and SIGCONT after at most maxFrozen
	harmExclude   = "excluded"    // an operator takes a server's work away, and includes it again
	harmConfigure = "configured"  // another number of proxies and of resolvers
	harmPower     = "power cuts"  // all at once killed and restarted
	harmEnded     = "ended alone" // a server that ended by itself, and was restarted
	harmRefused   = "refused"     // a command of an operator: a cluster that moves its data may not exclude
)

// harms is the kinds by how often each is drawn.
var harms = []string{
	harmKill, harmKill, harmKill, harmKill, harmFreeze, harmFreeze, harmFreeze, harmExclude, harmConfigure, harmPower,
}

const (
	maxDown   = 4 * time.Second
	maxFrozen = 8 * time.Second
	maxCalm   = 4 * time.Second // between two harms, that work gets done
)

// trouble is a run of Trouble.
type trouble struct {
	*Cluster
	seed    uint64
	rng     *rand.Rand
	harm    Harm
	tellFor time.Duration // how long an operator repeats a command
}

func newTrouble(c *Cluster, seed uint64) *trouble {
	return &trouble{c, seed, rand.New(rand.NewPCG(seed, 0)), Harm{}, 2 * startTimeout}
}

// Trouble does harm to a cluster of several, one kind at a time, as seed draws it: servers are killed, frozen and
// excluded, and the configuration changes. Each time it waits until the cluster answers before it goes on. It ends
// with ctx, and then all servers run and do their work, or with an error if the cluster did not come back.
func (c *Cluster) Trouble(ctx context.Context, seed uint64) (Harm, error) {
	return newTrouble(c, seed).until(ctx)
}

// until does harm until ctx ends: see Trouble.
func (t *trouble) until(ctx context.Context) (Harm, error) {
	for {
		t.pause(ctx, maxCalm)
		if ctx.Err() != nil {
			return t.harm, t.mended(context.WithoutCancel(ctx), "include all", "configure "+roles(2, 2))
		}
		kind := harms[t.rng.IntN(len(harms))]
		t.harm[kind]++
		// Finish the harm that has begun. Otherwise the next would meet a cluster that two servers are missing from.
		what, err := t.do(ctx, kind)
		if err == nil {
			err = t.mended(context.WithoutCancel(ctx))
		}
		if err != nil {
			return t.harm, fmt.Errorf("cluster: trouble, seed %d, after %s (%s): %w", t.seed, what, t.harm, err)
		}
	}
}

// pause waits some of most, and less if ctx ends.
func (t *trouble) pause(ctx context.Context, most time.Duration) {
	select {
	case <-time.After(time.Duration(t.rng.Int64N(int64(most)))):
	case <-ctx.Done():
	}
}

// do does one kind of harm, and undoes it. what says which.
func (t *trouble) do(ctx context.Context, kind string) (what string, err error) {
	victim := t.Servers[t.rng.IntN(len(t.Servers))]
	what = kind + " " + victim.String()
	switch kind {
	case harmKill:
		err = victim.Kill()
		t.pause(ctx, maxDown)
	case harmFreeze:
		err = victim.Freeze()
		t.pause(ctx, maxFrozen)
		err = errors.Join(err, victim.Thaw())
	case harmExclude:
		t.try(ctx, "exclude no_wait "+victim.Address)
		t.pause(ctx, maxDown)
		err = t.tell(context.WithoutCancel(ctx), "include "+victim.Address)
	case harmConfigure:
		t.try(ctx, "configure "+roles(1+t.rng.IntN(3), 1+t.rng.IntN(3)))
	case harmPower:
		err = t.Kill()
	}
	return what, err
}

// try executes a command that may be refused, or cut short by ctx.
func (t *trouble) try(ctx context.Context, command string) {
	if err := t.tell(ctx, command); err != nil && ctx.Err() == nil {
		t.harm[harmRefused]++
	}
}

// tell executes a command of an operator, while the cluster may be recovering. An fdbcli that is connected to a killed
// server may hang, and then tell runs another one. It also repeats the question whether the cluster answers, if that
// fails: a read version may be from a server that has been replaced since (1009).
func (t *trouble) tell(ctx context.Context, command string) (err error) {
	for until := time.Now().Add(t.tellFor); ; {
		begun, cancel := context.WithTimeout(ctx, startTimeout/2)
		err = t.run(begun, command)
		again := (begun.Err() != nil || command == answers) && time.Now().Before(until)
		cancel()
		if err == nil || !again || ctx.Err() != nil {
			return err
		}
		t.pause(ctx, time.Second)
	}
}

// mended starts the servers that do not run, executes commands, and waits until the cluster answers.
func (t *trouble) mended(ctx context.Context, commands ...string) error {
	for _, s := range t.Servers {
		if !s.ended() {
			continue
		}
		if s.run.ProcessState.ExitCode() >= 0 { // by itself: not by a signal
			t.harm[harmEnded]++
		}
		if err := s.Start(); err != nil {
			return err
		}
	}
	for _, command := range append(commands, answers) {
		if err := t.tell(ctx, command); err != nil {
			return err
		}
	}
	return nil
}
