//go:build broken

package layer

import "fdbfifo/layer/internal/guard"

// WithoutVariable is the environment variable which names the guard to leave out; empty = no guard is left out.
const WithoutVariable = guard.WithoutVariable

// Guards returns the names of all guards, for package sim.
func Guards() []string {
	var names []string
	for _, g := range guard.All() {
		names = append(names, string(g))
	}
	return names
}

// Lacks reports whether this process leaves out the guard with a name. The mutants of the guards call it: see package
// mutants.
func Lacks(name string) bool { return string(guard.LeftOut()) == name }
