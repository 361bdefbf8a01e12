// Package soak keeps a queue under steady, mixed load in one process for as long as one likes, and fails if anything is
// left over: memory, goroutines, the engine's snapshots, transactions and watches, or rows.
//
// The load is all that a process does with a queue:
//
// - it enqueues messages, large and small, delayed and with dedup ids;
//
// - it takes and receives, with waits and with contexts that end early;
//
// - it acks, returns, rejects and abandons claims;
//
// - it opens and closes workers and handles;
//
// - it acts as an operator that redrives, purges, pauses, configures and inspects;
//
// - it sweeps.
//
// From time to time the load stops, the queues are drained, and then everything is counted. All that is left is not
// needed any more, so the counts must not grow. The test compares the median of the last fifth of the counts with that
// of the second fifth. (The first fifth warms up.)
package soak
