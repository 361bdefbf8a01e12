// Package layer provides grouped FIFO queues on a transactional key-value database: FoundationDB, or an engine with
// the same semantics (package kv).
//
// A message belongs to a group. One worker at a time handles the messages of a group, in order. Groups run in parallel,
// on any number of processes that share nothing but the database.
//
//	q, _, err := layer.Ensure(ctx, db, prefix, "orders", layer.Options{})
//	sent, err := q.Enqueue(ctx, layer.Message{Group: "customer-7", Body: body})
//	claims, err := q.Receive(ctx, layer.ReceiveOptions{})
//	err = q.Ack(ctx, claims[0])
//
// # The first fifteen names
//
// A first service needs these names, in this order. Package worker calls those from Receive on for you.
//
//  1. [Ensure] opens a queue, and creates it if it is not there.
//  2. [Options] are the options of the handle, with the configuration for a new queue.
//  3. [Config] has the settings that are stored with the queue.
//  4. [Queue] is the handle. Goroutines may share it.
//  5. [Message] is one message to send: group, body, headers.
//  6. [Queue.Enqueue] sends messages in a transaction of its own.
//  7. [Queue.EnqueueTx] sends messages in your transaction.
//  8. [Queue.Once] runs your transaction, so that its effect happens once.
//  9. [Queue.Receive] claims ready groups, and waits for them if you like.
//  10. [ReceiveOptions] say how many items, from which groups, and how long to wait.
//  11. [Claim] is a group in your hands until you settle it or the lease expires.
//  12. [Item] is one delivered message.
//  13. [Queue.Ack] finishes items: they are never delivered again.
//  14. [Queue.Nack] returns items for another attempt, or rejects them.
//  15. [Queue.Close] ends the handle. Close it before the database.
//
// # The other names, by subject
//
//   - Long work: [Queue.Extend]. Several settlements together: [Queue.Settle], [Settlement].
//   - Your transaction: [Queue.AckTx], [Queue.TakeTx], [Queue.ReceiveTx].
//   - Figures: [Queue.Stats], [Queue.Peek], [Hook].
//   - Operators: [Queue.Admin] returns an [Admin]. It cancels, edits, pauses, purges, redrives, replays, configures,
//     checks and lists.
//   - Stages of one queue: [Template]. Typed bodies: [Form]. Changes: [Queue.Subscribe].
//   - Constants: the limits ([MaxBatch], [MaxBodySize] and others), and the defaults ([DefaultLease] and others).
//
// # Guarantees
//
//   - G1 order: the items of a group are delivered in key order. An item comes behind all items of its group that
//     were committed before its enqueue began.
//   - G2 exclusion: a group never has two live claims with an item in common. Without templates, unordered receives
//     and claims of single items it never has two live claims. Every ack, nack and extend checks the token of its claim
//     in the same transaction, so a holder that was overtaken changes nothing.
//   - G3 nothing lost, nothing doubled: an item is delivered until it is acked, taken or dead-lettered. After a redrive
//     a dead letter is delivered again. An acked item is never delivered again. Unknown commits and crashes change
//     nothing of this.
//   - G4 parallel groups: claims of different groups do not conflict, and enqueues do not conflict with enqueues.
//   - G5 reach: finding a ready group costs the same at any depth, and with any number of held groups.
//   - G6 composition: an operation of senders and workers that can run in your own transaction has a form that does so,
//     named …Tx.
//
// # Not promised
//
//   - An order between groups. A receive prefers the oldest head, but not under contention.
//   - That a handler runs only once: its lease can expire while it runs. Its effect happens once if it is written in
//     the transaction of the ack ([Queue.Once], or HandleTx of package worker).
//
// # Errors
//
// The error of a call reads "layer: CALL: …". It matches one of these:
//
//   - a sentinel, for example ErrClaimLost or ErrLimit
//   - a type, for example *FormatError or *UnknownSettingError
//   - the error of the engine, *kv.Error
//   - the cause of the caller's context
//
// # Transactions of the caller
//
// A …Tx call may fail with an error that wraps a retryable *kv.Error. Return it from the body of the transaction,
// wrapped with %w. If a commit of your own transaction is of unknown outcome, your program must find the answer.
// [Queue.Once] does so for you.
package layer
