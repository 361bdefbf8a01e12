// Package linear checks histories of concurrent calls of a queue for linearizability, group by group, with porcupine.
//
// A history is the calls that the callers made: when each call began and returned, and its result. It is linearizable
// if the calls can be put into one order such that
//
//   - a call that returned before another began stands before it, and
//   - every result is the one that a group would give if it did the calls one at a time, in this order.
//
// To trust a verdict you need to believe only that group. It is one file, model.go, which shares no code with the layer.
//
// # The law
//
// The state of a group has four parts:
//
//   - the messages that wait, in the order of their keys;
//   - the live claim: its token, the messages outstanding under it, and the end of its lease;
//   - the greatest token so far;
//   - the end of a retry delay.
//
// The operations follow these rules:
//
//   - An enqueue puts messages in the place of their keys. That is behind every waiting message that was known to be there
//     before the enqueue was called, because its enqueue or a call that showed it had returned (G1). The place may be
//     before a message whose own enqueue overlapped it.
//   - A receive gives the first messages that wait, under a token greater than all before. The group must then be without a
//     claim, or the lease of its claim must have expired. A delay must have ended too (G1, G2). The receive leaves out no
//     message that was known to be there before it was called. It may leave out a message that lands while it looks, in
//     front of the messages that it finds. The reason is that a claim conflicts with no enqueue (G4): the receive gives the
//     head of the group as it was a moment before the claim. (Strictly, that is no linearization. Without this exception
//     some histories have no order. Example: a claim looks, an enqueue lands before the messages that the claim found, a
//     release finds no claim, and then the claim commits.)
//   - Ack, nack and extend succeed only for the live claim, and only for messages outstanding under it (G2). They fail with
//     ErrClaimLost only if the claim is not the live one, or its lease may have expired. They fail with ErrNotInClaim only
//     if a named message is not outstanding. An acked message never comes again (G3).
//   - A take removes the first messages that wait, if a receive could have had them. It leaves none out.
//   - A cancel removes a waiting message that is not in flight. It is refused only if there is no such message, or if the
//     message is in flight.
//   - A release ends the live claim, even if the lease has not expired. It is refused only if the group has no claim.
//   - A drop and a put are the effects of an outsider, a process whose calls are not in the history. A drop removed a
//     waiting message that was not in flight. By force it may have ended a claim too. A put put a message back in its
//     place. The checker learns of them from another source and believes that they happened. It still checks that the rest
//     of the history agrees with them.
//   - A peek shows the first messages that wait. At the end of a history a peek shows that no message waits. A lost message
//     is then missing from that peek or from an earlier receive (G3).
//   - A receive or take that gives nothing says that the group was empty, held or delayed at one moment of the call. This
//     rule applies only if the caller asks for it (Law.Empty), because some claims are never told to a caller. A grant to a
//     waiting receive holds a group too, and a claim may have ended before its receive returned. So ask for the rule only
//     if no receive waits and no lease expires. The same condition applies to a cancel that is refused as in flight.
//
// # Lanes
//
// In a queue with facets each operation is of one lane, the messages of the group that a template matches. Each lane has
// a claim, a greatest token and a delay of its own, and gives the first of its own messages. Lanes that could share a
// message exclude each other. Operations of lanes that cannot share a message commute. An advance is an ack after which
// the messages still wait in their places, in the lanes of their new facets. A receive may leave out a message that came
// into its lane while it looked.
//
// # Single messages
//
// In a queue with unordered consumers each message that is claimed by itself (a hold) is a lane of that message alone.
// While the hold lives, no other call gives the message. A receive of the group gives only the messages in front of a
// held message, and nothing if the head is held. No message can be held while a claim has its group as a whole. An
// unordered receive or take gives the first messages that are not held. It may pass over a message whose lease or retry
// delay has expired, until another call has ended that hold. It may also pass over a message whose hold ends while it
// looks, and over one that is suspect because the lease of a claim of it has ended. Outsiders may hold messages too:
// Busy says when.
//
// # In turn
//
// In a queue with a lease for each message, each message in flight is a lane with a token, a lease and a retry delay of
// its own. A receive gives the first messages of the group, each under such a claim, all with one token. It gives no
// message in flight, and none behind one in flight (G2). It leaves out no message that has ever been in flight, even if
// the end of that claim overlaps the receive: the transaction that ends the claim writes a key that every receive reads.
// One case differs. If the outcome of the receive's commit was first unknown, the receive returns the messages that it
// still has when it looks again. It may leave out those whose claims others have ended since.
//
// # Leases
//
// The end of a lease, Until, is a time of the holder's clock, which a receive and its extends return. It is not a moment
// of the history, because clocks differ. So each call has two times: Begin, the time of its own handle's clock when it
// was called, and End, the time of the fastest clock when it had returned.
//
//   - If Until is later than End, the claim was live by every clock when the call returned. No other call may have taken
//     over.
//   - If Until is not later than Begin, the lease had expired for that handle. The claim then does not excuse an empty
//     answer.
//   - Between the two, both are right.
//
// A claim with an expired lease stays valid until another call takes over. From then on the old token never becomes valid
// again. The answer of the call that takes over may be lost. So a claim with an expired lease may end at any moment
// without a trace in the history.
//
// # Unknown outcomes
//
// A call is open if it ended without saying whether it was done. It may take effect at any moment after it was called,
// or never. An open enqueue is left out of the check if none of its messages was ever shown. If one was shown, the whole
// enqueue had taken effect by then. An open receive may claim a group once, at any moment after its call, and no caller is
// told of the claim (a phantom). A receive whose claim a release ended before the receive returned may be a phantom too.
// Such a receive returns nothing although it had a claim, so its answer says nothing about other groups. The checker
// therefore leaves out empty receives that overlap the release of a claim that no caller was told of.
//
// A call with a known outcome may be a retry of a commit whose outcome its handle did not know (Doubted). Its answer is
// that of the one attempt that was done. The caller is told only of the claims that it still has. Others may have ended
// the rest since, because by their clocks its lease had expired. While such a receive of single messages runs, others may
// pass over the messages that it may have held.
//
// # Not checked
//
// Linearizability is local: if each group's history has an order, all groups together have one, provided that each
// operation is of one group. Calls of several groups are split. So the checker does not see whether one call takes effect
// in two groups at one moment, nor whether an open call was done in both groups or in neither. Order between groups is
// not promised and not checked. Attempts are not counted.
//
// In a loose history (Law.Loose) outsiders may make messages dead letters, purge and redrive. A receive may then pass over
// a message, and claims may end. The checker then says nothing about losses, but still checks order, exclusion, and that
// no acked message comes again.
//
// A group whose check does not end in time is undecided. That is neither right nor wrong, and is always counted.
package linear
