// Package layer is grouped FIFO queues on a transactional key-value database: FoundationDB, or an engine with
// its semantics (see kv).
//
// A message belongs to a group. Within a group messages are handled in order and by one worker at a time;
// different groups run in parallel, on any number of processes that share nothing but the database.
//
//	q, err := layer.Create(ctx, db, prefix, "orders", layer.Options{})
//	sent, err := q.Enqueue(ctx, layer.Message{Group: "customer-7", Body: body})
//	claims, err := q.Receive(ctx, layer.ReceiveOptions{})
//	err = q.Ack(ctx, claims[0])
//
// # Guarantees
//
//   - G1 order: a group's items are delivered in key order; an enqueue begun after another had committed comes
//     behind the other.
//   - G2 exclusion: a group never has two live claims with an item in common, and without templates, unordered receives
//     and claims of single items never two live claims. Every ack, nack and extend checks the claim's token in the same
//     transaction, so a holder whose lease ran out can do no harm.
//   - G3 nothing lost, nothing doubled: an enqueued item is delivered until acked or taken, or dead-lettered because
//     the item has failed for good, and then from its redrive on; an acked item is never delivered again. This holds
//     under unknown commits and crashes.
//   - G4 parallel groups: claims of different groups do not conflict, and enqueues do not conflict with enqueues.
//   - G5 reach: the cost of finding a ready group does not grow with the depth of the queue, nor with the number of
//     groups held by others.
//   - G6 composition: what can run in the caller's own transaction has a form which does so, named …Tx.
//
// # Not promised
//
//   - An order between groups: the oldest head first is the aim, given up under contention.
//   - Running a handler only once: a lease can end while a handler still runs. The effect happens once when written in
//     the transaction of the ack (Once, HandleTx).
//
// # Two sides
//
// Queue is what a program calls: produce, receive, settle, state, Once. Admin (Queue.Admin) is what an operator does
// with the same queue: cancel, edit, pause, purge, redrive, replay, configure, check, and the lists.
//
// # Errors
//
// The error of a call reads "layer: CALL: …" and matches a sentinel (ErrClaimLost, ErrLimit, …), a type (*FormatError,
// *UnknownSettingError), the engine's error (*kv.Error), or the cause of the caller's context.
//
// # Transactions of the caller
//
// A …Tx call may fail with an error which wraps a retryable *kv.Error: return the error, wrapped with %w, from the
// transaction's body. An unknown commit of a caller's own transaction is the caller's to answer; Once does so.
package layer
