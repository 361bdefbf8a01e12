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
//  11. [Claim] is your right to a group, until you settle the claim or its lease expires.
//  12. [Item] is one delivered message.
//  13. [Queue.Ack] finishes items: they are never delivered again.
//  14. [Queue.Nack] returns items for another attempt, or rejects them.
//  15. [Queue.Close] ends the handle. You must close it before the database.
//
// # The other names, by subject
//
//   - Long work: [Queue.Extend]. Several settlements together: [Queue.Settle], [Settlement].
//   - Your transaction: [Queue.AckTx], [Queue.TakeTx], [Queue.ReceiveTx].
//   - Figures: [Queue.Stats], [Queue.Peek], [Hook].
//   - Operators: [Queue.Admin] returns an [Admin]. It cancels, edits, pauses, purges, redrives, replays, configures,
//     checks and lists.
//   - Stages of one queue: [Template]. Typed bodies: [Form]. Changes: [Queue.Subscribe].
//   - Constants: the limits of a message and of a call ([MaxBodySize], [MaxBatch] and others). The bounds and the
//     defaults of settings and options are in the comments of the fields.
//
// # Guarantees
//
//   - G1 order: the items of a group are delivered in key order. If enqueue A commits before enqueue B begins, the
//     items of B come behind those of A in their group.
//   - G2 exclusion: no item is in two live claims. A group has at most one live claim, except with templates, unordered
//     receives and claims of single items. Every ack, nack and extend checks the token of its claim in the same
//     transaction, so a holder that was overtaken changes nothing.
//   - G3 nothing lost, nothing doubled: an item is delivered until it is acked, taken or dead-lettered, is removed by
//     an operator, or is older than the retention (off by default). After a redrive a dead letter is delivered again.
//     An acked item is delivered again only after a replay of the archive. This also holds after crashes and after
//     commits of unknown outcome.
//   - G4 parallel groups: claims of different groups do not conflict. Two enqueues conflict only if they share a dedup
//     id, or go into one group and one has [Message.BehindAll].
//   - G5 reach: a receive costs the same for any number of waiting messages and of held groups.
//   - G6 composition: the operations of senders and workers have forms named …Tx, which run in your own transaction.
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
// A …Tx call may fail with an error that wraps a retryable *kv.Error. You must return it from the body of the
// transaction, wrapped with %w. If it is unknown whether your transaction was committed, your program must find out.
// [Queue.Once] does so for you.
package layer
