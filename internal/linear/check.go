package linear

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// CheckOptions bound a check.
type CheckOptions struct {
	// Timeout bounds the check of one group; one that takes longer is undecided. 0 = DefaultTimeout.
	Timeout time.Duration
	// Dir is where the pictures of failed groups go; "" = a new folder among the temporary files, made when there is one.
	Dir string
}

// DefaultTimeout bounds the check of one group.
const DefaultTimeout = 10 * time.Second

// Result is what became of one history or of several.
type Result struct {
	Histories  int // of one group each
	Operations int // in them, of known outcome
	Open       int // and of unknown outcome
	Longest    int // operations of the longest history
	Undecided  []string
	Violations []Violation
}

// Violation is a group whose history has no order.
type Violation struct {
	Group   string
	Text    string // what could not be put into an order
	Picture string // path of the HTML file; the whole history is in the same folder, as text
}

func (v Violation) String() string {
	return fmt.Sprintf("group %q: %s\npicture: %s", v.Group, v.Text, v.Picture)
}

// Add adds another's figures.
func (r *Result) Add(o Result) {
	r.Histories, r.Operations, r.Open = r.Histories+o.Histories, r.Operations+o.Operations, r.Open+o.Open
	r.Longest = max(r.Longest, o.Longest)
	r.Undecided, r.Violations = append(r.Undecided, o.Undecided...), append(r.Violations, o.Violations...)
}

func (r Result) String() string {
	s := fmt.Sprintf("%d histories of one group, %d operations of known outcome, %d of unknown, %d in the longest; %d undecided, %d violations",
		r.Histories, r.Operations, r.Open, r.Longest, len(r.Undecided), len(r.Violations))
	for _, v := range r.Violations {
		s += "\nVIOLATION " + v.String()
	}
	for _, u := range r.Undecided {
		s += "\nUNDECIDED " + u
	}
	return s
}

// Check checks what was done to each group by itself.
func Check(l Law, groups map[string][]Operation, o CheckOptions) (Result, error) {
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	var r Result
	groups = silence(groups)
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		g := prepare(l, groups[name])
		r.Histories++
		r.Open += g.open
		for _, p := range g.operations {
			if o := p.Input.(*step); o.Outcome != Unknown && o.Kind != end {
				r.Operations++
			}
		}
		r.Longest = max(r.Longest, len(g.operations))
		switch verdict, info := g.check(g.operations, o.Timeout); verdict {
		case porcupine.Ok:
		case porcupine.Unknown:
			r.Undecided = append(r.Undecided, fmt.Sprintf("group %q: %d operations, %d open, not decided in %s", name, len(g.operations), g.open, o.Timeout))
		default:
			v, err := g.violation(name, groups[name], info, &o)
			if err != nil {
				return r, err
			}
			r.Violations = append(r.Violations, v)
		}
	}
	return r, nil
}

func (g *group) model() porcupine.Model { return model(g.law, g.names, g.known) }

func (g *group) check(ops []porcupine.Operation, timeout time.Duration) (porcupine.CheckResult, porcupine.LinearizationInfo) {
	return porcupine.CheckOperationsVerbose(g.model(), ops, timeout)
}

// violation describes a history that has no order, and draws it.
func (g *group) violation(name string, history []Operation, info porcupine.LinearizationInfo, o *CheckOptions) (Violation, error) {
	ops := g.operations
	text, stuck := g.explain(ops, info)
	// Calls after the first operation that fits nowhere cannot explain it.
	if stuck != nil {
		early := slices.DeleteFunc(slices.Clone(ops), func(p porcupine.Operation) bool {
			return p.Call > stuck.Return && p.Input.(*step).Kind != end
		})
		if verdict, shorter := g.check(early, o.Timeout); verdict == porcupine.Illegal {
			ops, info = early, shorter
			text, _ = g.explain(ops, info)
		}
	}
	if o.Dir == "" {
		dir, err := os.MkdirTemp("", "fdbfifo-linear-")
		if err != nil {
			return Violation{}, fmt.Errorf("linear: %w", err)
		}
		o.Dir = dir
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return Violation{}, fmt.Errorf("linear: %w", err)
	}
	shownUntil := slices.MaxFunc(ops, func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) }).Return
	for _, p := range g.phantoms {
		info.AddAnnotations([]porcupine.Annotation{{
			Tag: "unknown", Start: p.Call, End: max(p.Call, shownUntil), Description: p.String(), Details: fmt.Sprintf("client %d", p.Client),
		}})
	}
	path := filepath.Join(o.Dir, fileName(name)+".html")
	if err := porcupine.VisualizePath(g.model(), info, path); err != nil {
		return Violation{}, fmt.Errorf("linear: picture: %w", err)
	}
	if err := os.WriteFile(strings.TrimSuffix(path, "html")+"txt", []byte(historyText(history)), 0o644); err != nil {
		return Violation{}, fmt.Errorf("linear: history: %w", err)
	}
	return Violation{name, text, path}, nil
}

// explain is the longest order found, its last operations, and the first that does not go on from there.
func (g *group) explain(ops []porcupine.Operation, info porcupine.LinearizationInfo) (string, *porcupine.Operation) {
	var longest []porcupine.Operation
	for _, partial := range info.PartialLinearizationsOperations()[0] {
		if c := cmp.Compare(len(partial), len(longest)); c > 0 || c == 0 && slices.CompareFunc(partial, longest, byCall) < 0 {
			longest = partial
		}
	}
	placed := make(map[*step]bool)
	s := state{waiting: g.known}
	for _, p := range longest {
		placed[p.Input.(*step)] = true
		s, _ = s.follow(g.law, p.Input.(*step))
	}
	var stuck *porcupine.Operation
	for i, p := range ops {
		if !placed[p.Input.(*step)] && (stuck == nil || p.Return < stuck.Return) {
			stuck = &ops[i]
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "no order of its %d operations explains what they returned; the longest has %d.\n", len(ops), len(longest))
	const most = 6
	for _, p := range longest[max(0, len(longest)-most):] {
		fmt.Fprintf(&b, "  %s\n", line(p))
	}
	fmt.Fprintf(&b, "then the group is: %s\n", s.describe(g.law, g.names))
	if stuck != nil {
		fmt.Fprintf(&b, "and this, by then, must have come, but cannot: %s", line(*stuck))
	}
	return b.String(), stuck
}

// historyText is the whole history of a group, a line for each operation, in the order of their calls.
func historyText(history []Operation) string {
	sorted := slices.Clone(history)
	slices.SortStableFunc(sorted, func(a, b Operation) int { return cmp.Compare(a.Call, b.Call) })
	var b strings.Builder
	for _, o := range sorted {
		returned := ms(o.Return)
		if o.Outcome == Unknown {
			returned += "?"
		}
		fmt.Fprintf(&b, "%d-%s client %d, clock %d-%d: %s\n", o.Call, returned, o.Client, o.Begin, o.End, &o)
	}
	return b.String()
}

func byCall(a, b porcupine.Operation) int {
	return cmp.Or(cmp.Compare(a.Call, b.Call), cmp.Compare(a.Return, b.Return), cmp.Compare(a.ClientId, b.ClientId))
}

func line(p porcupine.Operation) string {
	s := p.Input.(*step)
	return fmt.Sprintf("%d-%s client %d: %s", p.Call, ms(p.Return), s.Client, s)
}

// fileName returns a name for the files of a group. A long name of a group has only its beginning in there, and a hash.
func fileName(group string) string {
	const most = 64
	if len(group) <= most {
		return fmt.Sprintf("%x", group)
	}
	return fmt.Sprintf("%x-%x", group[:most], sha256.Sum256([]byte(group)))
}
