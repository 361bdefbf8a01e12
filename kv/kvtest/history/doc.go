// Package history turns a seed into random interleaved transactions, runs them on an engine, and records all answers:
// each result and error code, each commit's outcome, and each transaction's conflict ranges. Two engines that keep the
// same promises write the same history, byte for byte.
//
// testdata holds the histories of a real FoundationDB cluster. Their first lines, which begin with '#', say which
// cluster, and when. The tests of this package run the same seeds on the embedded engine and compare, so they need no
// cluster. With a cluster, the tests of fdbkv run the seeds on it again.
//
// After a change of the streams, record the histories again. fdbserver and fdbcli must be in FDB_BIN or on the PATH:
//
//	cd fdbkv && go run ./testcluster -- go test -run '^TestHistories$' -count 1 . -record
//
// It records a seed only if the cluster answers the same twice in a row.
//
// # What a history leaves out
//
// Versions and versionstamps differ from run to run: a history counts commits, and shows "#7" for the seventh. The
// keys' common prefix is cut off. The range where a versionstamped key may come to lie is shown for the read version.
//
// One client runs a stream, one operation after the other, and no fault is injected. A stream has no operation that a
// cluster may answer in more than one way:
//
//   - reads in flight when their transaction is reset or cancelled: they may have ended before;
//   - versionstamps pending at a reset: 1025, or 1100 if nothing was in flight;
//   - watches of a cancelled transaction, and whether a watch fires whose key changed and changed back;
//   - range bounds with far offsets after an own versionstamped value: whether the client steps on it, which is 1036,
//     depends on what it happens to have cached;
//   - reads that begin at a version which another commit has superseded, which engines may refuse with 1007;
//   - reads of keys stamped at exactly the read version while another stamp is pending: a commit follows each that
//     stamped;
//   - the index in a versionstamp, for commits of the cluster's own may share the batch.
package history
