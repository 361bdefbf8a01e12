// Package sqs serves the queues of package layer to programs that speak Amazon SQS: a Server is an http.Handler.
//
// Both protocols are answered: JSON 1.0, which the SDKs of today speak, and Query, of the older ones. The names of
// members on the wire come from the schemas of AWS's own SDK; everything else is written here.
//
// A FIFO queue is a queue of the layer whose groups are the message group ids. A standard queue is one in which
// each message has a group of its own. What SQS keeps of a queue beside that, its attributes and tags, is the
// queue's record (record.go), in the same database.
//
// Servers hold no state: any number of them may serve one database, and a receipt handle names all that is needed to
// delete its message, through any server. It is signed with a key that is kept in the database (receipt.go).
//
// In a FIFO queue each message in flight has a claim of its own (layer.LeasePerItem). One thing is stricter than with
// AWS in queues that are made with the attribute fdbfifo.Visibility=claim: a claim is on a group. So all messages of a
// group that one receive has returned share one visibility timeout, and giving one back gives back those behind it too.
package sqs
