// Package soak keeps a queue under steady, mixed load in one process for as long as one likes, and fails if anything is
// left over: memory, goroutines, the engine's snapshots, transactions and watches, or rows.
//
// The load is all that a process does with a queue: messages large and small, kept back, de-duplicated; receives that
// take and that wait, with contexts that end early; claims acked, given back, rejected, abandoned; workers and handles
// opened and closed; an operator who redrives, purges, pauses, configures and looks; sweeps.
//
// From time to time the load stands still and the queues are worked off, and then everything is counted. What is counted
// then is what nobody needs any more, so the counts must stay where they are: the median of the last fifth of them is
// held to that of the second. (The first fifth warms up.)
package soak
