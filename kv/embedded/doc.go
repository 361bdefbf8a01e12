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
//   - a commit pipeline that applies all waiting commits as one group, with one sync;
//   - watches.
//
// Reads run when they are called, against an immutable snapshot, and their futures are ready at once. A disk may take
// more than five seconds for a write. Until the write has ended, reads then fail with 1037, and a loop tries again.
//
// A cluster may reject a transaction without a conflict, may lose the acknowledgement of a commit, and has late and
// spurious watches. This engine does none of that while its store works. Package kv/fault adds such faults for tests.
// No key at or above "\xff" can be read or written.
//
// Package kv/kvtest/history holds the answers of a cluster (7.3) to random transactions. This engine gives the same
// answers. These differences are known:
//
//   - A range has a bound that is not the first key >= or > another (its offset is below or above 1), and the
//     transaction has a pending versionstamped key or value. This engine fails with 1036 if the way to the bound
//     crosses that key. A cluster's client often answers, because a limit was reached before, or the range is empty. At
//     times it fails where this engine answers. That depends on its cache.
//   - A watch that was not committed, of a transaction that was cancelled, has timed out or was given up by OnError,
//     ends at once with the transaction's error. A cluster's client leaves it pending until the transaction is reset or
//     collected, with 1025.
//   - A versionstamp still pending at a reset, by Reset or by OnError, ends with 1025. A cluster's client may say 1100.
//   - A read version that was set and that a commit has superseded is 1007 at the first read, unless another
//     transaction still reads at it. A cluster serves it for five seconds.
//
// # Several processes
//
// Any number of DBs, in any number of processes, can have a folder open (Linux and macOS). The process with the
// folder's lock opens the store, and serves the others over the Unix socket "kv.socket" in the folder. The socket has
// mode 0600, and serves only processes of the folder's owner or of root. The others are clients as FoundationDB's are:
// a transaction keeps its own writes and conflict ranges, and asks for reads at a version, commits and watches. It is
// the same transaction with one difference: each read waits in a goroutine of its own, so that reads that start
// together are sent together.
//
// When the serving process ends, the others race for the lock. The winner opens the store and serves, which takes
// milliseconds and the time to read the file. Reads in flight fail with 1007, watches continue, and commits in flight
// end with 1021. Such a commit has landed or never will, because the lock proves that the earlier process is gone. A
// server that is stopped (SIGSTOP) keeps the lock: calls end with their contexts and time-outs, and no process takes
// over. A commit that was given up then may land when the server continues. If the transaction has only written, it may
// do so at any later time, because the server gives it its read version. A commit that was given up while there was no
// connection to a server does not land.
//
// If no process is left that can open the file, as on a read-only file system or with too little address space, calls
// end with 1510 and the reason after two seconds, until a process can. The time in which another process has the
// folder, and perhaps fails, does not count. A damaged file ends the calls at once. If the folder itself is gone, its
// lock proves nothing: commits in flight then end with 1101 and InFlight. If a connection ends while its server lives,
// the client reconnects under the same client id. The server accepts the client when all its earlier messages are
// settled.
//
// A client continues only with the database that it knows (seen.go). It remembers the file, and the version of the
// newest commit that it knows to be there. The server tells that version with a snapshot, and when it ends. If another
// file is at the path, or none, or a copy with a smaller version, the calls of the client end with ErrGone. The client
// makes no file, and does not connect to a process that has opened the other file.
//
// Root serves only folders of its own. In the folder of another user root is a client of that user's process. If no
// such process serves, calls end with ErrOtherUser (dir.go), because the owner could replace files that root creates
// or opens there by links to files of root's.
//
// The protocol (frame.go) has a version in its handshake, and frames of a bounded length. The server checks all that a
// transaction checks. It cuts off a client that sends anything else, that does not say hello within two seconds, or
// that leaves answers unread for ten. Of the clients that have not said hello it keeps a hundred, the newest. The
// server keeps a bounded amount for each client (session.go), and frees it when the client goes.
//
// A process that opens the folder makes the socket first, and renews the socket's time each second until it serves
// (holder.go). So a process that waits for an answer sees that the other one is at work. The number of the process that
// has the file open to write is in "kv.pid", for the text of ErrLocked.
//
// A client that could not open the folder itself does not read the file again at once: it rests for 0.2 seconds, and
// four times as long after each further attempt, up to 30 seconds. It still connects to a process that serves. It does
// not rest if the file has changed.
//
// The name of a socket is short: for a long path a symbolic link in a private temporary folder stands in while the
// socket is made or connected to. As long as no socket can be made the folder belongs to its first process, as with
// Options.Exclusive. Each second the serving process looks for its socket in the folder. If the socket is missing, the
// process makes it again.
package embedded
