// Package crash kills processes that work on a queue on disk, and compares the file with the answers that they got.
//
// A child works on the queue: many goroutines on two handles enqueue, receive, ack, nack, reject, redrive, purge and
// configure. The child writes a line into a pipe before each operation and one after it, so its answers outlive it. The
// seed picks the moment of its death by SIGKILL: after some time, after a number of acknowledged operations, or by
// itself at a point inside of a commit of the engine. The parent then opens the file and reads all of the queue, row by
// row and without the layer's code. Each acknowledged operation must be there. An operation without an answer is there
// whole or not at all: all messages of an enqueue or none, an ack with its effect or neither. No child may lose a claim
// before its lease ends, except in the groups that are purged. The next child continues with that file. It repeats the
// enqueues of unknown outcome, and the repetition must double nothing.
//
// A failed run prints the history of each message and group that is wrong: each operation with its process, begin,
// duration, versions, arguments and answer. Its test keeps the folder.
//
// Some kills are power cuts: the parent replaces the child's file by one that has some of the pages of the last commit,
// whole and torn. A disk may leave such a file when it loses power before or during a sync.
//
// Several processes may have the folder open. The child is then one of them. The others serve the folder and work on a
// queue of their own. The parent kills them one after the other, or they die inside of a commit, or they are stopped for
// a while. The child continues with the process that takes over, or takes over itself, until it is killed too. The same
// rules hold for its answers.
package crash
