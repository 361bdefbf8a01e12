// Package linear checks histories of concurrent calls of a queue for linearizability, group by group, with porcupine.
//
// A history is what callers saw: when each call began and returned, and what it returned. It is linearizable if there
// is an order of the calls that keeps the order of those that did not overlap, and in which every result is what a
// group that does one thing at a time would have answered. Whoever reads the result needs to believe that group alone,
// which is one file, model.go, and shares no code with the layer.
//
// # The law
//
// A group is the messages that wait, in the order of their keys; the live claim: its token, what is outstanding under
// it, and the end of its lease; the greatest token so far; and the end of a retry delay. Of its operations it says:
//
//   - enqueue puts messages in the place of their keys, which is behind every message that waits and was known to be there
//     before the enqueue was called: to its enqueuer, or to anybody who was shown it (G1). Before a message whose own
//     enqueue overlapped it may come.
//   - receive gives the first messages that wait, under a token greater than all before; nobody holds the group, or its
//     holder's lease has ended, and so has a delay (G1, G2). None is left out that was known to be there before the receive
//     was called. One that lands while the receive looks, before those that it finds, may be: a claim conflicts with no
//     enqueue (G4), so what it gives is the head of the group as it was a moment before it holds the group. (Strictly
//     taken that is no linearization. Without it some histories have no order: a claim that looked, then an
//     enqueue that came before what it found, then a release that found nobody, then the commit of that claim.)
//   - ack, nack and extend succeed for the live claim alone, and for what is outstanding under it (G2). They are refused
//     with ErrClaimLost only if the claim is not the live one, or its lease may have ended; with ErrNotInClaim only if
//     something named is not outstanding. What is acked never comes again (G3).
//   - take removes the first messages that wait, if a receive could have had them; it leaves none out.
//   - cancel removes a message that waits and is in nobody's hands; it is refused only if there is none, or if it is.
//   - release ends the live claim, whatever its lease; it is refused only if nobody holds the group.
//   - drop and put are what somebody has done whose calls are not in the history: a message was removed that waited and was
//     in nobody's hands, if not by force, which may end a claim of others, too; or it was put back in its place. That he
//     did is known otherwise, and taken for granted; that the rest of the history goes with it is not.
//   - peek shows the first messages that wait. At the end of a history one shows that nothing does: what was lost on the
//     way is missing from it, or from a receive before (G3).
//   - a receive or take that gives nothing says that the group was, at one moment of the call, empty, held or delayed. This
//     is part of the law only if the caller asks for it (Law.Empty): a grant to a waiting receive holds a group too, and so
//     does a claim that has ended before its receive returned, and nobody is told of them. So it is asked for where no
//     receive waits and no lease ends. The same goes for a cancel that is refused as in hand.
//
// # Lanes
//
// In a queue with facets an operation is of a lane: what a template sees of the group. Each lane has a claim, a
// greatest token and a delay of its own, and gives the first of its own messages. Lanes that could share a message
// exclude each other, and operations of lanes that share none commute. An advance is an ack after which the messages
// are still there, in their places, in the lanes of their new facets. A receive may leave out what came into its lane
// while it looked.
//
// # Single messages
//
// In a queue with unordered consumers a message that is claimed by itself is a lane, too, of that message alone. Nobody
// gives it to others while its claim lives; who claims the group gets what stands before it, and nothing if it is the
// head. A message of a group that somebody holds is not claimed by itself. An unordered receive or take gives the first
// of the messages that nobody holds; it may pass over one whose lease or retry delay has ended, as long as nobody has
// let go of it, and over one that somebody lets go of while it looks. Somebody may hold messages whose claims are not
// in the history: Busy says when.
//
// # In turn
//
// In a queue with a lease for each message, too, a message in hand is a lane, with a token, a lease and a retry delay
// of its own. A receive is given the first messages of the group, each under such a claim, all under one token: none
// that is in hand, nor any behind one that is (G2). So it leaves out none that has ever been in hand, whatever
// overlaps the receive: whoever lets go of a message writes what each receive reads. If the outcome of its commit was
// in doubt at first it gives what is still in its hands when it looks again; what others may have ended meanwhile it
// may leave out.
//
// # Leases
//
// The end of a lease is a number of the holder's clock that the claim and its extends return. Until is not a moment of
// the history: clocks differ. So each call carries what its own handle's clock showed when it was called (Begin), and
// what the fastest clock of all showed when it had returned (End). A claim whose end is later than End was live when
// the call returned, by everybody's clock, and nobody may have taken over; one whose end is not later than Begin had
// run out for that handle, and does not excuse an empty answer. Between the two, both are right. A lease that has run
// out harms nothing until somebody takes over; from then on the old token is dead for good. Who takes over may be
// somebody whose answer was lost, so a claim that has run out may end at any moment without a trace in the history.
//
// # Unknown outcomes
//
// A call that ended without saying whether it was done is open: it may take effect at any moment after it was called,
// or never. An enqueue whose messages nobody was ever shown is left out; one whose messages were shown had taken effect
// by then, and all of it. An open receive may hold a group from its call on, once, for nobody; and so may a receive
// whose claim a release ended before it returned. Such a receive gives nothing, though it had something, and says
// nothing of the other groups: those that overlap the release of a claim that nobody was told of are left out.
//
// A call that did say so may have been tried before, by a commit whose outcome its handle did not know (Doubted). Its
// answer is that of the one attempt that was done; but of what that attempt claimed the caller is told only what it has
// still. What others have ended since, because by their clocks its lease was over, was held for nobody: as long as such
// a receive of single messages is under way, others may pass over what it may have held.
//
// # What is left out
//
// Linearizability is local: if each group's history has an order, there is one for all, provided that an operation is
// of one group. Calls of several groups are split, so it is not checked that what one call does to two groups happens
// at one moment, nor that an open call was done in both groups or in neither. Order between groups is not promised, nor
// looked at. Attempts are not counted. In a loose history (Law.Loose), in which messages may be parked, purged and
// redriven by others than those in it, a message may be passed over, and claims may be ended; then nothing is said of
// losses, but all the more of order, of exclusion and of what is delivered after it was acked.
//
// A group whose check does not end in time is undecided, which is neither right nor wrong and is always counted.
package linear
