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
	{"base", "errors, limits, guards, words: what knows nothing of a queue.", []string{
		"doc.go", "errors.go", "guard.go", "guard_broken.go", "guard_whole.go", "limits.go", "message.go",
		"words.go", "entropy.go",
	}},
	{"settings", "what a queue can be told, with names, bounds and defaults.", []string{
		"config.go", "config_choices.go", "config_delay.go", "config_facets.go", "config_rate.go", "config_retry.go",
		"config_setting.go",
	}},
	{"stored form", "the keys, and the values as bytes.", []string{
		"subspace.go", "store_archive.go", "store_beat.go",
		"store_change.go", "store_item.go", "store_hold.go", "store_lane.go",
		"store_lock.go",
		"store_row.go", "store_shard.go",
		"store_values.go",
	}},
	{"transaction", "a handle, and one attempt of a transaction on its queue.", []string{
		"claim.go", "handle.go", "counters.go", "tx.go", "tx_beat.go", "tx_chores.go", "tx_wake.go", "tx_budget.go",
		"tx_change.go", "tx_config.go",
		"tx_hook.go", "tx_lane.go", "tx_once.go", "tx_read.go", "tx_receipt.go",
	}},
	{"group", "what keeps a group, and what becomes of its head.", []string{
		"group.go", "group_beat.go", "group_delay.go", "group_failure.go", "group_hold.go", "group_lane.go",
		"group_mark.go", "group_rate.go",
		"group_retention.go", "group_total.go", "group_turn.go", "group_verdict.go",
	}},
	{"verbs", "enqueue, receive, take, ack, nack, extend, state, each in one transaction.", []string{
		"advance.go", "enqueue.go", "enqueue_dedup.go", "enqueue_lane.go", "enqueue_room.go", "dequeue.go",
		"claim_beat.go", "claim_grant.go", "claim_inflight.go", "claim_repeat.go", "claim_search.go", "claim_spread.go",
		"claim_strategy.go", "claim_hold.go", "claim_template.go", "take.go", "settle.go",
		"settle_archive.go", "settle_state.go",
	}},
	{"many callers", "the callers of one handle in shared transactions, and the waiting line.", []string{
		"pipeline.go", "pipeline_tx.go", "staging.go", "staging_line.go", "staging_request.go", "staging_lane.go",
		"staging_keep.go", "staging_poll.go",
	}},
	{"large work", "what takes many transactions: sweep, purge, redrive, replay, archive, drop.", []string{
		"job.go", "job_archive.go", "job_deadletters.go", "job_drop.go", "job_page.go",
		"job_purge.go", "job_purge_lane.go", "job_purge_whole.go", "job_raise.go",
		"job_redrive.go", "job_replay.go", "job_sweep.go", "job_sweep_changes.go", "job_sweep_dead.go",
		"job_sweep_dedup.go", "job_sweep_hints.go", "job_sweep_overdue.go", "job_sweep_rate.go",
	}},
	{"operator and inspection", "what people do to a queue, and look at.", []string{
		"admin.go", "admin_config.go", "admin_force.go", "admin_items.go", "admin_lane.go", "admin_lists.go",
		"admin_pause.go",
		"admin_reschedule.go", "admin_state.go", "admin_subscriptions.go",
		"inspect_blocked.go", "inspect_check.go", "inspect_check_lane.go", "inspect_describe.go", "inspect_find.go",
		"inspect_groups.go", "inspect_holders.go",
		"inspect_marked.go", "inspect_peek.go",
		"inspect_stats.go", "inspect_why.go",
	}},
	{"face", "what a program begins with: opening a queue, and workers.", []string{
		"queue.go", "subscribe.go", "subscription.go", "worker_form.go",
		"worker.go", "worker_delivery.go", "worker_event.go", "worker_hand.go", "worker_hands.go",
		"worker_handler.go", "worker_source.go",
		"worker_stage.go",
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
