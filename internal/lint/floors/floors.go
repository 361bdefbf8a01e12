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

// settingsFloor is the name of the floor that says what may be set together.
const settingsFloor = "settings"

// floors is the layer from the bottom to the top. Every file of the package except the tests stands on one of them.
var floors = []floor{
	{"base", "errors, limits, words: what knows nothing of a queue.", []string{
		"doc.go", "errors.go", "guard_broken.go", "limits.go", "message.go",
	}},
	{settingsFloor, "what a queue can be told, with names, bounds and defaults.", []string{
		"config.go", "config_facets.go", "config_setting.go",
	}},
	{"stored form", "the keys, and the values that layer/internal/rec leaves.", []string{
		"inspect_describe.go", "subspace.go", "store_hold.go", "store_lane.go", "store_values.go",
	}},
	{"transaction", "a handle, and one attempt of a transaction on its queue.", []string{
		"claim.go", "handle.go", "tx.go", "tx_beat.go", "tx_wake.go", "tx_config.go", "tx_hook.go",
		"tx_read.go",
	}},
	{"group", "what keeps a group, and what becomes of its head.", []string{
		"group.go", "group_beat.go", "group_hold.go", "group_lane.go", "group_mark.go",
		"group_verdict.go",
	}},
	{"verbs", "enqueue, receive, take, ack, nack, extend, state, each in one transaction.", []string{
		"advance.go", "enqueue.go", "enqueue_dedup.go", "dequeue.go", "join.go", "claim_beat.go", "claim_search.go",
		"claim_hold.go", "take.go", "settle.go", "settle_archive.go", "settle_back.go", "settle_keep.go",
		"settlement.go",
	}},
	{"many callers", "the callers of one handle in shared transactions, and the waiting line.", []string{
		"claim_orphan.go", "operation.go", "pipeline_tx.go", "trip.go", "tx_perform.go",
		"staging.go", "staging_request.go", "staging_keep.go",
	}},
	{"large work", "what takes many transactions: sweep, purge, redrive, replay, archive, drop.", []string{
		"job.go", "job_archive.go", "job_purge.go", "job_redrive.go", "job_sweep.go",
	}},
	{"operator and inspection", "what people do to a queue, and look at.", []string{
		"admin_config.go", "admin_items.go", "admin_pause.go", "inspect_blocked.go", "inspect_check.go",
		"inspect_find.go", "inspect_groups.go", "inspect_stats.go", "inspect_why.go",
	}},
	{"face", "what a program begins with: opening a queue, and subscriptions.", []string{
		"form.go", "queue.go", "subscription.go",
	}},
}

// filesOn returns the files of the floor with a name.
func filesOn(table []floor, name string) []string {
	for _, f := range table {
		if f.name == name {
			return f.files
		}
	}
	return nil
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
