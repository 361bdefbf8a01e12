// Package sqs serves the queues of package layer to programs that speak Amazon SQS: a Server is an http.Handler.
//
// The server answers both protocols: JSON 1.0 of today's SDKs, and Query of older ones. The names of members on the
// wire come from the schemas of AWS's own SDK. Everything else is written here.
//
// A FIFO queue is a queue of the layer whose groups are the message group ids. A standard queue is one in which each
// message has a group of its own. The attributes and tags of a queue are in the queue's record (record.go), in the same
// database.
//
// Servers hold no state, so any number of them may serve one database. A receipt handle names all that a server needs
// to delete the message, so a client may delete it through any server. The handle is signed with a key that is kept in
// the database (receipt.go).
//
// In a FIFO queue each message in flight has a claim of its own (layer.Config.LeasePerItem). A queue that is made with
// the attribute fdbfifo.Visibility=claim is stricter than AWS, because its claims are on groups. All messages of a
// group that one receive has returned then share one visibility timeout. If a client returns one of them early, the
// messages behind it are returned too.
package sqs
