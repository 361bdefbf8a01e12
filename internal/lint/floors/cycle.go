package main

import (
	"cmp"
	"slices"
)

// largestCycle returns the files of the largest cycle of uses, sorted: each uses each of the others, directly or by way
// of files of the cycle. nil = there is no cycle. Of two cycles of one size the first by name counts.
func largestCycle(uses []use) []string {
	reach := map[string]map[string]bool{} // which files a file uses, directly or not
	to := map[string][]string{}
	for _, u := range uses {
		to[u.from] = append(to[u.from], u.to)
	}
	var visit func(seen map[string]bool, file string)
	visit = func(seen map[string]bool, file string) {
		for _, next := range to[file] {
			if !seen[next] {
				seen[next] = true
				visit(seen, next)
			}
		}
	}
	for file := range to {
		reach[file] = map[string]bool{}
		visit(reach[file], file)
	}
	var largest []string
	for file, seen := range reach {
		var cycle []string
		for other := range seen {
			if reach[other][file] {
				cycle = append(cycle, other)
			}
		}
		slices.Sort(cycle)
		if cmp.Or(cmp.Compare(len(cycle), len(largest)), slices.Compare(largest, cycle)) > 0 {
			largest = cycle
		}
	}
	return largest
}
