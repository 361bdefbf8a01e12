------------------------------- MODULE Waits -------------------------------
(* Who waits by template, or for a group that it names: requests, wakes, and *)
(* what a handle passes on that it cannot take. Every item is alone in its   *)
(* lane of the template, each in a group of its own, but for those of one    *)
(* group, of which the whole is asked for by name. What a lane goes through  *)
(* is Lanes.tla, and who waits for any group is Staging.tla.                 *)
EXTENDS Store

CONSTANTS
    Messages,   \* numbers from 1; each is enqueued once
    Together,   \* all of them in one transaction; otherwise each in one of its own
    Grouped,    \* those that are of the group which is asked for by name; the group is lane 0
    Sought,     \* those whose lane is of the template by which handles wait
    Pickers,    \* numbers; the handles that wait by the template, those with the oldest requests first
    Namers,     \* numbers; the handles that wait for the group that they name
    Faults,     \* how many nacks
    Removed     \* the guards that are left out, by their names in layer/internal/guard; none in the code

Guard(name, keys) == IF name \in Removed THEN {} ELSE keys
Has(name) == name \notin Removed

VARIABLES
    db,        \* the database
    tx,        \* of each process: its transaction in flight
    waiting,   \* the handles that have a receive that waits
    resting,   \* those of them that wait for their watch
    before,    \* of each handle: the transactions that were in flight when it wrote its request, and still are
    looks,     \* the handles that are to look again when those have ended
    touched,   \* the handles whose wake key was written since their last turn began
    holds,     \* of each handle: its claim
    faults,    \* how many more there may be
    \* What follows is seen by the invariants alone.
    finished   \* the messages whose ack has been committed

again == <<before, looks, touched>>
vars == <<db, tx, waiting, resting, again, holds, faults, finished>>

Handles == Pickers \cup Namers
Batches == IF Together THEN {Messages} ELSE {{m} : m \in Messages}
Producer(b) == <<"producer", b>>
Receiver(h) == <<"handle", h>>
Passer(h) == <<"passer", h>>
Processes == {Producer(b) : b \in Batches} \cup {Receiver(h) : h \in Handles} \cup {Passer(h) : h \in Handles}

-----------------------------------------------------------------------------
(* Keys: layer/subspace.go, layer/store_lane.go.                             *)

Lanes == Messages \cup (IF Grouped = {} THEN {} ELSE {0})
Intersect(a, b) == a = b \/ (a = 0 /\ b \in Grouped) \/ (b = 0 /\ a \in Grouped)
Inside(l) == IF l = 0 THEN Grouped ELSE {l}

Item(m) == <<"item", m>>
Lock(l) == <<"lock", l>>
Ready(l) == <<"ready", l>>
Aside(holder, l) == <<"kept", holder, l>>
Request(h) == <<"request", h>>
Wake(h) == <<"wake", h>>

There(k) == k \in DOMAIN db
Of(l) == {m \in Inside(l) : There(Item(m))}
Locks(l) == {Lock(o) : o \in {o \in Lanes : Intersect(o, l)}}
Under(holder) == {l \in Lanes : There(Aside(holder, l))}
NoClaim == [lane |-> 0, out |-> {}]

-----------------------------------------------------------------------------
(* Transactions. `opens` are the lanes that it leaves ready, `unlocks` those  *)
(* whose locks it clears, `saw` the requests at its read version.            *)

Tx(what, reads, sets, clears) ==
    [what |-> what, reads |-> reads, sets |-> sets, clears |-> clears, takes |-> NoClaim, opens |-> {}, unlocks |-> {},
     saw |-> {}, done |-> {}]

RECURSIVE FirstOf(_, _)
FirstOf(s, n) == IF n = 0 \/ s = {} THEN {} ELSE LET m == CHOOSE m \in s : \A o \in s : m <= o IN {m} \cup FirstOf(s \ {m}, n - 1)
Requests == {h \in Handles : There(Request(h))}

\* layer/tx_wake.go: wakeLanes, see. As many handles as there are lanes of the template, and whoever names the group.
Waking(t) ==
    LET byTemplate == IF Has("wake-template") THEN FirstOf(Requests \cap Pickers, Cardinality(t.opens \cap Sought)) ELSE {}
        named == 0 \in t.opens \/ (Has("wake-unlocked") /\ \E u \in t.unlocks : Intersect(u, 0))
    IN [t EXCEPT !.sets = @ @@ [k \in {Wake(h) : h \in byTemplate \cup (IF named THEN Requests \cap Namers ELSE {})} |-> 0],
                 !.saw = Requests]

\* layer/enqueue.go: joinLanes.
EnqueueTx(b) ==
    LET opens == b \cup (IF b \cap Grouped # {} /\ Of(0) = {} THEN {0} ELSE {})
    IN Waking([Tx("enqueue", IF 0 \in opens THEN {} ELSE {Item(m) : m \in Of(0)},
                  [k \in {Item(m) : m \in b} \cup {Ready(l) : l \in opens} |-> 0], {}) EXCEPT !.opens = opens])

\* layer/dequeue.go: take; layer/staging_request.go: clearWants.
Take(h, l) ==
    [Tx("turn", Locks(l), Lock(l) :> h, {Ready(l), Request(h)})
        EXCEPT !.takes = [lane |-> l, out |-> Of(l)]]

\* layer/staging_request.go: passOn, left. The requests behind the handle's own come first. seen are the hints that its search
\* has come upon; behind the oldest, there may be others.
PassOn(h, t, left) ==
    LET others == (Requests \cap Pickers) \ {h}
        later == FirstOf({o \in others : o > h}, left)
        woken == later \cup FirstOf({o \in others : o < h}, left - Cardinality(later))
    IN IF Has("pass-on") THEN [t EXCEPT !.sets = @ @@ [k \in {Wake(o) : o \in woken} |-> 0]] ELSE t

\* layer/staging.go: takeTurn. A look at the lane l, of the hints seen.
Look(h, l, seen, behind) ==
    LET left == Cardinality(seen) - 1
    IN CASE There(Lock(l)) -> Tx("turn", {Lock(l)}, None, {Ready(l)})
         [] ~There(Lock(l)) /\ Of(l) = {} -> Tx("turn", {Item(m) : m \in Inside(l)}, None, {Ready(l)})
         [] l \in Grouped /\ There(Lock(0)) /\ ~There(Lock(l)) /\ Of(l) # {} -> Tx("turn", {Lock(0)}, Aside(0, l) :> 0, {Ready(l)})
         [] OTHER -> PassOn(h, Take(h, l), IF left = 0 /\ behind /\ Has("nearby") THEN 1 ELSE left)

Turns(h) ==
    IF h \in Namers
    THEN IF Of(0) # {} /\ \A k \in Locks(0) : ~There(k) THEN {Take(h, 0)} ELSE {}
    ELSE LET found == {l \in Sought : There(Ready(l))}
         IN {Look(h, l, found, FALSE) : l \in found}
            \cup UNION {{Look(h, l, seen, TRUE) : l \in seen} : seen \in SUBSET found \ {{}, found}}

-----------------------------------------------------------------------------
Init ==
    /\ db = None /\ tx = [p \in Processes |-> NoTx]
    /\ waiting = {} /\ resting = {} /\ before = [h \in Handles |-> {}] /\ looks = {} /\ touched = {}
    /\ holds = [h \in Handles |-> NoClaim]
    /\ faults = Faults /\ finished = {}

Free(h) == tx[Receiver(h)].what = "none"

Enqueue(b) ==
    /\ tx[Producer(b)].what = "none" /\ \A m \in b : m \notin finished /\ ~There(Item(m))
    /\ tx' = [tx EXCEPT ![Producer(b)] = EnqueueTx(b)]
    /\ UNCHANGED <<db, waiting, resting, again, holds, faults, finished>>

Receive(h) ==
    /\ Free(h) /\ h \notin waiting /\ holds[h] = NoClaim /\ finished # Messages
    /\ waiting' = waiting \cup {h}
    /\ UNCHANGED <<db, tx, resting, again, holds, faults, finished>>

\* layer/staging.go: takeTurn, rest; layer/staging_request.go: stageWants. If there is nothing to write it rests.
Turn(h) ==
    /\ Free(h) /\ h \in waiting /\ h \notin resting
    /\ IF Turns(h) # {} THEN resting' = resting /\ \E t \in Turns(h) : tx' = [tx EXCEPT ![Receiver(h)] = t]
       ELSE IF There(Request(h)) THEN resting' = resting \cup {h} /\ tx' = tx
       ELSE resting' = resting /\ tx' = [tx EXCEPT ![Receiver(h)] = Tx("turn", {}, Request(h) :> 0, {})]
    /\ touched' = touched \ {h}
    /\ UNCHANGED <<db, waiting, before, looks, holds, faults, finished>>

\* layer/staging.go: rest. The poll.
Poll(h) ==
    /\ Has("poll") /\ h \in resting
    /\ resting' = resting \ {h}
    /\ UNCHANGED <<db, tx, waiting, again, holds, faults, finished>>

\* layer/staging_keep.go: lookSoon. Of its looks, the last that matters.
LookAgain(h) ==
    /\ Has("look-soon") /\ h \in resting /\ h \in looks /\ before[h] = {}
    /\ resting' = resting \ {h} /\ looks' = looks \ {h}
    /\ UNCHANGED <<db, tx, waiting, before, touched, holds, faults, finished>>

\* layer/staging.go: passWakeOn. Of a handle that waits no more.
PassWakeOn(h) ==
    /\ Has("gone-wake") /\ h \in touched /\ h \notin waiting /\ tx[Passer(h)].what = "none"
    /\ touched' = touched \ {h}
    /\ LET woken == IF h \in Pickers THEN FirstOf((Requests \cap Pickers) \ {h}, 1) ELSE (Requests \cap Namers) \ {h}
       IN tx' = IF woken = {} THEN tx ELSE [tx EXCEPT ![Passer(h)] = Tx("pass", {}, [k \in {Wake(o) : o \in woken} |-> 0], {})]
    /\ UNCHANGED <<db, waiting, resting, before, looks, holds, faults, finished>>

\* layer/settlement.go: take, finish; layer/settle_back.go: carryOut; layer/tx_wake.go: putBackKept.
Settle(h) ==
    /\ Free(h) /\ holds[h] # NoClaim
    /\ LET l == holds[h].lane
           out == holds[h].out
           back == Under(l)
           rest == Of(l) \ out
           reads == {Lock(l)} \cup {Aside(l, o) : o \in Lanes}
           clears == {Lock(l)} \cup {Aside(l, o) : o \in back}
           end(what, opens, more, gone) ==
                Waking([Tx(what, reads \cup more, [k \in {Ready(o) : o \in opens} |-> 0], clears \cup {Item(m) : m \in gone})
                       EXCEPT !.opens = opens, !.unlocks = {l}, !.done = gone])
       IN \/ /\ faults' = faults
             /\ tx' = [tx EXCEPT ![Receiver(h)] = end("ack", IF rest = {} THEN back ELSE back \cup {l},
                                                      IF rest = {} THEN {Item(m) : m \in Inside(l)} ELSE {}, out)]
          \/ /\ faults > 0 /\ faults' = faults - 1
             /\ tx' = [tx EXCEPT ![Receiver(h)] = end("nack", back \cup {l}, {}, {})]
    /\ UNCHANGED <<db, waiting, resting, again, holds, finished>>

Seekers(l) == IF l = 0 THEN Namers ELSE IF l \in Sought THEN Pickers ELSE {}

Commit(p) ==
    LET t == tx[p]
        woken == {h \in Handles : Wake(h) \in DOMAIN t.sets}
    IN /\ t.what # "none"
       /\ db' = Apply(db, t)
       /\ tx' = Without([tx EXCEPT ![p] = NoTx], t)
       /\ IF p[1] = "handle"
          THEN LET h == p[2]
               IN /\ holds' = CASE t.takes # NoClaim -> [holds EXCEPT ![h] = t.takes]
                                [] t.what \in {"ack", "nack"} -> [holds EXCEPT ![h] = NoClaim]
                                [] OTHER -> holds
                  /\ waiting' = IF t.takes # NoClaim THEN waiting \ {h} ELSE waiting
          ELSE UNCHANGED <<holds, waiting>>
       /\ resting' = resting \ woken
       /\ touched' = touched \cup woken
       /\ LET begins == {h \in Handles : Request(h) \in DOMAIN t.sets}
              flying == {q \in Processes : tx'[q].what # "none"}
          IN /\ before' = [h \in Handles |-> IF h \in begins THEN flying ELSE before[h] \cap flying]
             /\ looks' = (looks \cup begins) \ {h \in Handles : Request(h) \in t.clears}
       /\ finished' = finished \cup t.done
       /\ UNCHANGED faults

Next ==
    \/ \E b \in Batches : Enqueue(b)
    \/ \E h \in Handles : Receive(h) \/ Turn(h) \/ Poll(h) \/ LookAgain(h) \/ PassWakeOn(h) \/ Settle(h)
    \/ \E p \in Processes : Commit(p)

Spec == Init /\ [][Next]_vars

Fair ==
    /\ Spec
    /\ \A b \in Batches : WF_vars(Enqueue(b)) /\ WF_vars(Commit(Producer(b)))
    /\ \A h \in Handles :
        /\ WF_vars(Receive(h)) /\ WF_vars(Turn(h)) /\ WF_vars(Poll(h)) /\ WF_vars(Settle(h)) /\ WF_vars(Commit(Receiver(h)))
        /\ WF_vars(LookAgain(h)) /\ WF_vars(PassWakeOn(h)) /\ WF_vars(Commit(Passer(h)))

-----------------------------------------------------------------------------
(* What must hold.                                                           *)

Deliverable(l) == Of(l) # {} /\ (l = 0 \/ There(Ready(l))) /\ \A k \in Locks(l) : ~There(k)
\* Somebody who waits for it is about to look, or to be told by a handle that was woken and waits no more.
Noticed(l) ==
    \/ (waiting \cap Seekers(l)) \ resting # {}
    \/ Has("look-soon") /\ looks \cap resting \cap Seekers(l) # {}
    \/ Has("gone-wake") /\ \E h \in touched \cap Seekers(l) : h \notin waiting
    \/ \E h \in Seekers(l) : tx[Passer(h)].what # "none"

\* A hint is put aside under a lock that is there.
KeptUnderLock == \A l \in Lanes : Under(l) # {} => There(Lock(l))
\* I1.
Reachable == \A l \in Lanes : Of(l) # {} => There(Ready(l)) \/ There(Lock(l)) \/ \E o \in Lanes : There(Aside(o, l)) /\ There(Lock(o))

\* Nobody rests while there is a lane for it that nobody is about to look at.
Woken == \A l \in Lanes : Deliverable(l) /\ resting \cap Seekers(l) # {} => Noticed(l)

\* In the end all is delivered and acked.
Drains == <>(finished = Messages)
=============================================================================
