// Package sim runs the queue in a simulated world: producers, workers, takers and operators over the embedded engine,
// in virtual time, under faults, with a scheduler that a seed drives. The same seed gives the same run, byte for byte.
//
// Every call of the engine parks its goroutine: the begin of a transaction, the wait for a read, the commit before it
// is sent and again before its result is known, the end of a backoff. So does every goroutine of a handle that another
// one or a timer has just woken (layer.TestOptions.Yield), and every actor between its calls. When all goroutines of
// the bubble (testing/synctest) are blocked, the driver picks one that is parked and lets it run alone to its next
// park. When none is parked, or by a whim of the seed, virtual time goes on.
//
// What is deterministic is the order of these steps, what each transaction reads and writes, the faults, and every
// result. Not so, because it changes none of these, is the order in which goroutines woken in the same step get to
// their next park: parked goroutines have names, and the driver picks among the names in their order.
//
// Each transaction that writes leaves a record of what it writes under a versionstamped key, in itself. After the run
// the records are replayed in commit order against a small model that knows the keys and nothing of the layer's code,
// and compared with every result that an actor got and with what is left in the database. The calls, as the actors saw
// them, are checked by package linear, too, which knows no commit order.
//
// Half of the seeds have a queue with facets (lane.go): receives, takes and workers by template, advances, and all else
// beside them. The model then knows lanes (lanemodel.go): a lane is held to what a group is held to, claims that could
// share an item exclude each other, an advance leaves place and id alone, and a hint that is put aside is under a lock.
// When the faults have stopped, everything is received by the templates of one view, so each lane must be found.
//
// Half of the others have an unordered queue (plain.go): receives and workers that take any item which nobody holds,
// beside those of whole groups. The claim of one item is a lane of the model, too: its token, its lease and its timer
// are held to what those of groups are. No item is in two hands, whoever claims groups passes over nothing, and an
// unordered receive gets the first of what is free. When the faults have stopped, groups alone, items alone or both
// drain the queue.
//
// What a queue may have is drawn with the rest: batches, leases, delays, shards, windows, retention, an archive, a rate
// of the groups that stewards change all the time. The rate is held to by the clocks of those who deliver, in the order
// of the commits (rate.go). Stewards also sweep in turns and pause the queue at the same time, workers ack what they do
// not hold (turn.go), and handlers panic. Workers of every kind are held to laws of progress (law.go, TestWorkers), and
// so are handles that wait for one group beside others that ack and at once receive again (owing.go, TestOwing). No
// receive waits for a poll, whatever is in flight when it begins to wait (waking.go, TestWaking). No ack waits for
// receives that lose conflicts, and no call hides a claim that it has made (contended.go, TestContended). The
// archive is replayed, a few times at most, and each replay held to what had been finished when it began (replay.go).
// Owners reschedule and replace their waiting messages and look for them (owner.go); subscribers share subscriptions of
// the queue's changes, held to the order and the completeness of these and, with SubscribeTx, to effects that happen
// once (subscriber.go, feed.go); and the rate of the whole queue is held to over every time (total.go). Some runs end
// with a drop of the queue amid other work, after everything else was verified; then none of its keys may be left
// (drop.go). In all runs an attempt is counted by evidence alone (blame.go).
package sim
