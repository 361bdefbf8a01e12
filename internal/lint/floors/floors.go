package main

import (
	"fmt"
	"slices"
)

// floor is files of package layer that stand at one height: a file may use what stands on its own floor or below.
type floor struct {
	name  string
	what  string
	files []string
}

// floors is the layer from the bottom to the top. Every file of the package, but for tests, stands on one of them.
var floors = []floor{
	{"base", "errors, limits, guards: what knows nothing of a queue.", []string{
		"doc.go", "errors.go", "guard.go", "guard_broken.go", "guard_whole.go", "limits.go",
	}},
	{"settings", "what a queue can be told, with names, bounds and defaults.", []string{
		"config.go", "rate.go", "retry.go", "setting.go", "strategy.go",
	}},
	{"stored form", "the keys, and the values as bytes.", []string{
		"attempt.go", "dead.go", "envelope.go", "lock.go", "message.go", "subspace.go",
	}},
	{"transaction", "a handle, and one attempt of a transaction on its queue.", []string{
		"follow.go", "once.go", "open.go", "read.go", "rest.go", "work.go",
	}},
	{"group", "what keeps a group, and what becomes of its head.", []string{
		"early.go", "failure.go", "mark.go", "pace.go", "retention.go",
	}},
	{"verbs", "enqueue, receive, take, ack, nack, extend, state, each in one transaction.", []string{
		"ack.go", "dedup.go", "dequeue.go", "enqueue.go", "extend.go", "flights.go", "repeat.go", "room.go", "search.go",
		"spread.go", "state.go", "take.go",
	}},
	{"many callers", "the callers of one handle in shared transactions, and the waiting line.", []string{
		"pipeline.go", "staging.go",
	}},
	{"large work", "what takes many transactions: sweep, purge, redrive, replay, archive, drop.", []string{
		"archive.go", "archivelist.go", "deadletters.go", "drop.go", "purge.go", "redrive.go", "replay.go", "sweep.go",
	}},
	{"operator and inspection", "what people do to a queue, and look at.", []string{
		"check.go", "describe.go", "force.go", "groupcount.go", "groups.go", "operate.go", "pause.go", "peek.go",
		"stats.go", "why.go",
	}},
	{"face", "what stands on the exported methods alone.", []string{
		"worker.go",
	}},
}

// floorsOf is the height of each file. A file without a floor, on two, or that is not there, is an error.
func floorsOf(table []floor, files []string) (map[string]int, error) {
	heights := map[string]int{}
	for height, f := range table {
		for _, name := range f.files {
			if other, twice := heights[name]; twice {
				return nil, fmt.Errorf("%s stands on two floors: %s and %s", name, table[other].name, f.name)
			}
			if !slices.Contains(files, name) {
				return nil, fmt.Errorf("%s, of floor %s, is not there: take the name out of floors.go", name, f.name)
			}
			heights[name] = height
		}
	}
	for _, name := range files {
		if _, ok := heights[name]; !ok {
			return nil, fmt.Errorf("%s stands on no floor: give the file a place in floors.go", name)
		}
	}
	return heights, nil
}
