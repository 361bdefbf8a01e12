package cli

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"fdbfifo/layer"
)

// witness sees every delivery of the demo and compares it with the file: it shares no code with the queue.
type witness struct {
	mu      sync.Mutex
	flights []departure
	at      map[int]int              // a line of the file -> its place in flights
	seen    []bool                   // by place; guarded by mu
	groups  map[string]*witnessGroup // the map is fixed, its elements are guarded by mu
	busiest []*witnessGroup          // all groups, the largest first

	count    int64 // deliveries; guarded by mu, as are all below
	inHand   int   // groups
	most     int   // groups in flight at once
	finished int   // groups
	twoHands int64
	disorder int64
	doubled  int64
	strange  int64 // deliveries that were never enqueued, or not with this body
}

type witnessGroup struct {
	name   string
	places []int // of its messages in flights, in order
	next   int   // how many of places have come, if they come in order
	hands  int   // that hold it now
}

func newWitness(flights []departure) *witness {
	w := &witness{
		flights: flights, at: make(map[int]int, len(flights)), seen: make([]bool, len(flights)),
		groups: make(map[string]*witnessGroup),
	}
	for place, d := range flights {
		w.at[d.line] = place
		g := w.groups[d.group]
		if g == nil {
			g = &witnessGroup{name: d.group}
			w.groups[d.group] = g
			w.busiest = append(w.busiest, g)
		}
		g.places = append(g.places, place)
	}
	slices.SortStableFunc(w.busiest, func(a, b *witnessGroup) int { return cmp.Compare(len(b.places), len(a.places)) })
	return w
}

// begin sees an item come into a worker's hands.
func (w *witness) begin(item layer.Item) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count++
	line, err := strconv.Atoi(item.Headers[lineHeader])
	place, known := w.at[line]
	g := w.groups[item.ID.Group]
	if g == nil {
		w.strange++
		return
	}
	g.hands++
	if g.hands == 1 {
		w.inHand++
		w.most = max(w.most, w.inHand)
	} else {
		w.twoHands++
	}
	switch {
	case err != nil || !known || w.flights[place].group != g.name || !bytes.Equal(w.flights[place].body, item.Body):
		w.strange++
	case w.seen[place]:
		w.doubled++
	default:
		w.seen[place] = true
		if g.next == len(g.places) || g.places[g.next] != place {
			w.disorder++
		}
		// The next delivery is compared with the place after this one, so that one gap is one violation.
		i, _ := slices.BinarySearch(g.places, place)
		g.next = i + 1
		if g.next == len(g.places) {
			w.finished++
		}
	}
}

// end sees it go.
func (w *witness) end(item layer.Item) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.groups[item.ID.Group]
	if g == nil {
		return
	}
	g.hands--
	if g.hands == 0 {
		w.inHand--
	}
}

func (w *witness) delivered() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count
}

// Of the live picture.
const (
	busiestNamed = 3  // groups in the first line
	busiestShown = 10 // groups with a bar each
	busiestBar   = 30 // columns
)

// details returns the state in a line, and below it a bar for each of the busiest groups.
func (w *witness) details() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	left := slices.Clone(w.busiest)
	slices.SortStableFunc(left, func(a, b *witnessGroup) int {
		return cmp.Compare(len(b.places)-b.next, len(a.places)-a.next)
	})
	var most []string
	for _, g := range left[:min(busiestNamed, len(left))] {
		most = append(most, fmt.Sprintf("%s %s", display(g.name), commas(int64(len(g.places)-g.next))))
	}
	lines := []string{fmt.Sprintf("%s in flight, %s of %s finished, most left: %s",
		plural(int64(w.inHand), "group"), commas(int64(w.finished)), commas(int64(len(w.groups))), strings.Join(most, ", "))}
	for _, g := range w.busiest[:min(busiestShown, len(w.busiest))] {
		full := busiestBar * g.next / len(g.places)
		mark := ""
		if g.hands > 0 {
			mark = "  in flight"
		}
		lines = append(lines, fmt.Sprintf("  %-6s %s%s %6s of %s%s", oneLine([]byte(display(g.name)), 6),
			strings.Repeat("█", full), strings.Repeat("░", busiestBar-full),
			commas(int64(g.next)), commas(int64(len(g.places))), mark))
	}
	return lines
}

// report sums up. Call it when all deliveries have ended.
func (w *witness) report() demoReport {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := demoReport{
		Messages: len(w.flights), Groups: len(w.groups), MostGroupsInHand: w.most, TwoHands: w.twoHands,
		Disorder: w.disorder, Doubled: w.doubled + w.strange,
	}
	for _, seen := range w.seen {
		if !seen {
			r.Lost++
		}
	}
	return r
}
