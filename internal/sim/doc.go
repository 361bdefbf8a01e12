// Package sim runs the queue in a simulated world: producers, workers, takers and operators over the embedded engine,
// in virtual time, under faults, with a scheduler that a seed drives. The same seed gives the same run, byte for byte.
//
// Every call of the engine parks its goroutine: the begin of a transaction, the wait for a read, the commit before it
// is sent and again before its result is known, the end of a backoff. So does every goroutine of a handle that another
// one or a timer has just woken (layer.TestOptions.Yield), and every actor between its calls. When all goroutines of
// the bubble (testing/synctest) are blocked, the driver picks one that is parked and lets it run alone to its next
// park. When none is parked, or when the seed draws it, virtual time advances.
//
// The order of these steps, the reads and writes of each transaction, the faults, and every result are deterministic.
// The order in which goroutines woken in the same step reach their next park is not. It changes none of these, because
// parked goroutines have names, and the driver picks among the names in their order.
//
// Each transaction that writes also writes a record of its writes, under a versionstamped key. After the run the
// records are replayed in commit order against a small model, which knows the keys and shares no code with the layer.
// The model is compared with every result that an actor got, and with the rows that are left in the database. Package
// linear also checks the calls as the actors saw them. It does not know the commit order.
//
// Half of the seeds have a queue with facets (lane.go), with receives, takes and workers by template, with advances,
// and with all other operations. The model then knows lanes (lanemodel.go). A lane must keep the laws of a group,
// claims that could share an item exclude each other, an advance changes neither place nor id, and a hint that is put
// aside is under a lock. When the faults have stopped, everything is received by the templates of one view, so each
// lane must be found.
//
// Half of the others have an unordered queue (plain.go), with receives and workers of free items, and others of whole
// groups. The claim of one item is also a lane of the model: its token, lease and timer must keep the laws of groups.
// No item has two holders, a receive of groups passes over nothing, and an unordered receive passes over suspect items
// only. When the faults have stopped, receives of groups, of items or of both drain the queue.
//
// The seed also draws the settings of the queue: batches, leases, delays, shards, windows, retention, an archive, and a
// rate of the groups that stewards change all the time. Further parts of a run, each with its laws:
//
// - The rate of the groups holds by the clocks of the handles that deliver, in the order of the commits (rate.go). The
// rate of the whole queue holds over every time (total.go).
//
// - Stewards sweep in turns and pause the queue at the same time, workers ack items that they do not hold (turn.go),
// and handlers panic.
//
// - Workers of every kind keep laws of progress (law.go, TestWorkers), also with slow limiters and hooks (slow.go), and
// with functions of their options and of the handle's that panic, hang or end their goroutine (hooks.go).
// So do handles that wait for one group while others ack and at once receive again (owing.go, TestOwing).
//
// - Handlers kill their process. The message that always does becomes the only dead letter (lethal.go, TestLethal).
//
// - The contexts of calls end early, half of them because another call has failed. A call that does not say that it may
// have had an effect had none (actor.go). That includes a receive with a receive id (recall.go, TestTwinned).
//
// - No receive waits for a poll, whatever is in flight when it begins to wait (waking.go, TestWaking). No ack waits for
// receives that lose conflicts, and no call hides a claim that it has made (contended.go, TestContended).
//
// - The archive is replayed, a few times at most. Each replay has the items that were finished when it began
// (replay.go).
//
// - Messages pass to another queue and back, in one transaction each, while that queue is full, refuses messages, is
// dropped and created again (mover.go, moverlaw.go, TestMovers).
//
// - Owners reschedule and replace their waiting messages and look for them (owner.go).
//
// - Subscribers share subscriptions of the queue's changes. The changes are complete and in order, and with SubscribeTx
// effects happen once (subscriber.go, feed.go).
//
// - In one of 16 runs the groups, dedup ids, headers and bodies have sizes near the limits of the layer (sizes.go).
//
// - Some runs end with a drop of the queue during other work, after everything else was verified. Then none of its keys
// may be left (drop.go).
//
// - Processes have clocks that are wrong by up to two years (clocks.go, TestClocks). Some share dedup ids and receive
// ids, and purge (recall.go, TestClockIDs).
//
// - Two operators pause and resume a group in steps, each between the steps of the other (stepped.go,
// TestOperatorsInSteps).
//
// - In all runs an attempt counts only by evidence (blame.go).
package sim
