// Package crash kills processes that work on a queue on disk, and holds what is left to what they were told.
//
// A child works on the queue: many goroutines on two handles enqueue, receive, ack, give back, park, redrive, purge and
// configure. It writes a line into a pipe before each operation and one after it, so what it was told outlives it. At a
// moment that a seed picks it is killed with SIGKILL: after some time, after so many acknowledged operations, or by
// itself at a point inside of a commit of the engine. Then the parent opens the file and reads all of the queue, row by
// row and without the layer's code. What was acknowledged must be there; what was begun and not acknowledged is there or
// not, but whole: all messages of an enqueue or none, an ack with its effect or neither. The next child goes on with
// that file, and with a retry of the enqueues whose outcome was unknown, which must not double anything.
//
// Some kills are power cuts: the parent puts a file in the place of the child's that has some of the pages of the last
// commit, whole and torn, as a disk may leave them that lost power before or while it was told to sync.
//
// Where several processes have the folder open, the child is one of them. Others serve it, and work on a queue of their
// own; they are killed under it, one after the other, by the parent or inside of a commit, and are stopped for a while.
// The child goes on with who takes over, or takes over itself, until it is killed too. What it was told holds as
// before.
package crash
