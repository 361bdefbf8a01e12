// Package embedded is a key-value engine in pure Go with FoundationDB's transaction semantics (API version 730):
// strict serialisability, the same conflict ranges, the same read-your-writes rules, atomic operations,
// versionstamps, watches, limits and error codes.
//
// OpenMemory keeps everything in memory. OpenDisk keeps it in a bbolt file: a commit that was acknowledged has
// been synced. Both share everything above a small store interface:
//
//   - a version clock: one 64-bit version, about a million a second, that also advances while idle;
//   - an overlay of a transaction's own writes, cut into segments as FoundationDB's client does it;
//   - a conflict history of the last five million versions;
//   - a commit pipeline that applies whatever is waiting as one group, and so with one sync;
//   - watches.
//
// Reads run when they are called, against an immutable snapshot, and their futures are ready at once.
//
// What a cluster does and this engine does not: it never rejects a transaction that conflicts with nothing, it
// never loses an acknowledgement of a store that works, and its watches are neither late nor spurious. Package
// kv/fault adds such faults for tests. No key at or above "\xff" can be read or written.
package embedded
