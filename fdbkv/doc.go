// Package fdbkv is FoundationDB behind the interface of package kv: an adapter over the official Go binding.
//
// The promises of kv are FoundationDB's own, so the adapter adds nothing to them: commits, conflicts, backoff and
// the set of retried errors are the C client's. What it adds is what the binding lacks: every wait ends with its
// context, and a transaction stays alive for as long as one of its futures is held (the binding's finalizers would
// cancel them with error 1025).
//
// # Opening
//
// FoundationDB's API version belongs to the process and can be chosen once, so this package never chooses it. The
// program does, before anything else:
//
//	fdb.MustAPIVersion(730)
//	db, err := fdbkv.Open("") // FDB_CLUSTER_FILE, ./fdb.cluster, or the system's default file
//
// A program that has an fdb.Database or fdb.Tenant already gives it to From or FromTenant; one that is inside a
// transaction of its own gives that to Wrap.
//
// Open does not talk to the cluster, and a cluster that is not there makes transactions wait for ever, as
// FoundationDB's do: use DB.Ping to find out, or bound the transaction by its context or time-out.
//
// # Building
//
// The binding needs cgo, FoundationDB's C header and libfdb_c (7.3). Where they are not installed under the
// system's own directories, CGO_CFLAGS and CGO_LDFLAGS say where they are.
package fdbkv
