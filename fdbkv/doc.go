// Package fdbkv is FoundationDB behind the interface of package kv: an adapter over the official Go binding.
//
// The promises of kv are FoundationDB's own, so the adapter adds nothing to them: commits, conflicts, backoff and the
// set of retried errors are the C client's. It adds two things that the binding lacks. Every wait ends with its
// context. A transaction stays alive for as long as one of its futures is held (the binding's finalizers would cancel
// them with error 1025).
//
// # Opening
//
// FoundationDB's API version belongs to the process and can be chosen once, so this package never chooses it. The
// program must choose it, before anything else:
//
//	fdb.MustAPIVersion(730)
//	db, err := fdbkv.Open("") // FDB_CLUSTER_FILE, ./fdb.cluster, or the system's default file
//
// A program that has an fdb.Database or fdb.Tenant already gives it to From or FromTenant; one that is inside a
// transaction of its own gives that to Wrap.
//
// Open does not talk to the cluster. If the cluster is not there, a transaction waits without an end, as FoundationDB's
// do. Use DB.Ping to find out, or give the transaction a context or a time-out.
//
// # Building
//
// The binding needs cgo, FoundationDB's C header and libfdb_c (7.3). If they are not installed under the system's own
// directories, CGO_CFLAGS and CGO_LDFLAGS must name their place.
package fdbkv
