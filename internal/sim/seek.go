package sim

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"time"

	"fdbfifo/kv"
)

// seekMost is how many commits of others a held one waits for at most.
const seekMost = 3

// footprint has the reads of one attempt of a transaction, at any isolation, and its writes. A commit is held until
// others have written to its reads. Then it conflicts, or the queue lacks a guard.
type footprint struct {
	on      bool // else no run seeks conflicts, and nothing is noted
	read    []kv.KeyRange
	written []kv.KeyRange
	groups  []string // that any of the keys are of
}

// reads notes a key, or a range up to, without, end.
func (f *footprint) reads(begin, end []byte) {
	if !f.on {
		return
	}
	if end == nil {
		end = kv.KeyAfter(begin)
	}
	f.read = append(f.read, kv.KeyRange{Begin: bytes.Clone(begin), End: bytes.Clone(end)})
	f.about(begin)
}

// writes is the same as reads, for writes and for write conflicts.
func (f *footprint) writes(begin, end []byte) {
	if !f.on {
		return
	}
	if end == nil {
		end = kv.KeyAfter(begin)
	}
	f.written = append(f.written, kv.KeyRange{Begin: bytes.Clone(begin), End: bytes.Clone(end)})
	f.about(begin)
}

func (f *footprint) about(key []byte) {
	if group, ok := groupOf(key); ok && !slices.Contains(f.groups, group) {
		f.groups = append(f.groups, group)
	}
}

// groupAt is where in a key's tuple its group stands.
var groupAt = map[string]int{
	"mark": 0, "lane": 0, "kept": 0,
	"hold": 0, "item": 0, "part": 0, "lock": 0, "ready": 2, "timer": 1, "state": 0, "pace": 0, "attempt": 0, "dead": 0, "archive": 0, "grant": 1, "purged": 0,
}

func groupOf(key []byte) (string, bool) {
	name, rest := keyOf(key)
	if name == "" && len(key) > 0 { // the begin of a range of keys
		name, rest = keyOf(key[:len(key)-1])
	}
	if (name == "open" || name == "due") && len(rest) > 2 {
		group, ok := rest[len(rest)-1].(string)
		return group, ok
	}
	at, ok := groupAt[name]
	if !ok || at >= len(rest) {
		return "", false
	}
	group, ok := rest[at].(string)
	return group, ok
}

// meets reports whether what o has written is what f has read, or writes too; own: whether f writes it too.
func (f *footprint) meets(o *footprint, own bool) bool {
	return slices.ContainsFunc(o.written, func(w kv.KeyRange) bool {
		in := func(r kv.KeyRange) bool {
			return bytes.Compare(r.Begin, w.End) < 0 && bytes.Compare(w.Begin, r.End) < 0
		}
		return !own && slices.ContainsFunc(f.read, in) || slices.ContainsFunc(f.written, in)
	})
}

// near reports whether both are about the same group.
func (f *footprint) near(o *footprint) bool {
	return slices.ContainsFunc(f.groups, func(g string) bool { return slices.Contains(o.groups, g) })
}

// seek keeps a goroutine that is about to send a commit until others were applied that wrote where it has read, or for
// as long as a transaction lasts.
func (s *scheduler) seek(p *parked) bool {
	if s.knobs.seek == 0 || p.what != "commit" || !p.until.IsZero() || p.foot == nil || s.rng.Float64() >= s.knobs.seek {
		return false
	}
	p.until = time.Now().Add(holdMost)
	p.seeks = 1
	for p.seeks < seekMost && s.rng.IntN(3) == 0 {
		p.seeks++
	}
	p.own = s.knobs.own > 0 && s.rng.Float64() < s.knobs.own
	s.trace.note("seeks", p.place, p.seeks)
	return true
}

// applied tells those that seek what a commit has written.
func (s *scheduler) applied(f *footprint) {
	if s.knobs.seek == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.parked {
		if p.seeks > 0 && p.foot.meets(f, p.own) {
			if p.seeks--; p.seeks == 0 {
				p.until, p.found = time.Now(), true
			}
		}
	}
}

// prefer narrows the goroutines that can continue, now and then, to those that work on a group for which another seeks
// a conflict. A goroutine that has found one continues at once. The caller must hold the mutex.
func (s *scheduler) prefer(can []*parked) []*parked {
	if s.knobs.seek == 0 {
		return can
	}
	if i := slices.IndexFunc(can, func(p *parked) bool { return p.found }); i >= 0 {
		return can[i : i+1]
	}
	var seeking *parked
	for _, p := range s.parked {
		if p.seeks > 0 {
			seeking = p
			break
		}
	}
	if seeking == nil || s.rng.IntN(3) == 0 {
		return can
	}
	var near []*parked
	for _, p := range can {
		if p.foot != nil && p.foot.near(seeking.foot) {
			near = append(near, p)
		}
	}
	if len(near) == 0 {
		return can
	}
	return near
}

// drawSeek draws whether the runs of no other profile seek conflicts.
func (k *knobs) drawSeek(seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 7))
	if rng.IntN(4) == 0 {
		k.seek = 0.5 * rng.Float64()
	}
}
