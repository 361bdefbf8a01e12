------------------------------ MODULE Singles ------------------------------
(* Who waits in an unordered queue: for any message that nobody holds, or,   *)
(* by name, for the group as a whole. One group. Unlike a lane of Waits.tla, *)
(* what is ready stays ready for others when a handle takes of it: a message *)
(* at a time. What claims do to each other is Holds.tla.                     *)
EXTENDS Store

CONSTANTS
    Messages,   \* numbers from 1, in the order of the group; each is enqueued once
    Together,   \* all of them in one transaction; otherwise each in one of its own
    Pickers,    \* numbers; the handles that wait for any message, those with the oldest requests first
    Namers,     \* numbers; the handles that wait for the group, which they name
    Faults,     \* how many nacks
    Removed     \* the guards that are left out, by their names in layer/internal/guard; none in the code

Has(name) == name \notin Removed
Guard(name, keys) == IF Has(name) THEN keys ELSE {}

VARIABLES
    db,        \* the database
    tx,        \* of each process: its transaction in flight
    waiting,   \* the handles that have a receive that waits
    resting,   \* those of them that wait for their watch
    holds,     \* of each handle: its claim
    faults,    \* how many more there may be
    \* What follows is seen by the invariants alone.
    finished,  \* the messages whose ack has been committed
    missed     \* what was made ready by who, reading at snapshot, did not see those who rest, or saw who is gone by now

vars == <<db, tx, waiting, resting, holds, faults, finished, missed>>

Handles == Pickers \cup Namers
Batches == IF Together THEN {Messages} ELSE {{m} : m \in Messages}
Producer(b) == <<"producer", b>>
Receiver(h) == <<"handle", h>>
Processes == {Producer(b) : b \in Batches} \cup {Receiver(h) : h \in Handles}

-----------------------------------------------------------------------------
(* Keys: layer/subspace.go, layer/store_hold.go. What is locked is the group, *)
(* 0, or a message. The hint is that of the free messages.                    *)

Item(m) == <<"item", m>>
Free(m) == <<"lane", m>>
Lock(l) == <<"lock", l>>
Ready == <<"ready">>
Aside == <<"kept">>
Request(h) == <<"request", h>>
Wake(h) == <<"wake", h>>

There(k) == k \in DOMAIN db
Items == {m \in Messages : There(Item(m))}
Frees == {m \in Messages : There(Free(m))}
AllFree == {Free(m) : m \in Messages}
First(s) == CHOOSE m \in s : \A o \in s : m <= o
Last(s) == CHOOSE m \in s : \A o \in s : m >= o
\* What a claim of the group gets: up to the first that is held.
Prefix == {m \in Items : \A o \in Items : o <= m => ~There(Lock(o))}
NoClaim == [lock |-> 0, out |-> {}]

-----------------------------------------------------------------------------
(* Transactions. `opens` is what it leaves ready, "group" or "free", `unlocks`*)
(* that it clears a lock, `saw` the requests at its read version.             *)

Tx(what, reads, sets, clears) ==
    [what |-> what, reads |-> reads, sets |-> sets, clears |-> clears, takes |-> NoClaim, opens |-> {}, unlocks |-> FALSE,
     saw |-> {}, done |-> {}]

Requests == {h \in Handles : There(Request(h))}
Oldest == IF Requests \cap Pickers = {} THEN {} ELSE {First(Requests \cap Pickers)}

\* layer/tx_wake.go: wakeLanes, see. The free messages are one lane, however many: it wakes one handle.
Waking(t) ==
    LET picks == IF "free" \in t.opens /\ Has("wake-template") THEN Oldest ELSE {}
        named == "group" \in t.opens \/ (Has("wake-unlocked") /\ t.unlocks)
    IN [t EXCEPT !.sets = @ @@ [k \in {Wake(h) : h \in picks \cup (IF named THEN Requests \cap Namers ELSE {})} |-> 0],
                 !.saw = Requests]

\* layer/enqueue.go: joinLanes.
EnqueueTx(b) ==
    LET opens == (IF Items = {} THEN {"group"} ELSE {}) \cup (IF Frees = {} THEN {"free"} ELSE {})
        tails == (IF Items = {} THEN {} ELSE {Item(Last(Items))}) \cup (IF Frees = {} THEN {} ELSE {Free(Last(Frees))})
    IN Waking([Tx("enqueue", Guard("lane-tail", tails),
                  [k \in {Item(m) : m \in b} \cup {Free(m) : m \in b} \cup (IF Frees = {} THEN {Ready} ELSE {}) |-> 0], {})
                EXCEPT !.opens = opens])

\* layer/staging_request.go: passOn, left. Free messages that are left are for the next that waits.
PassOn(h) ==
    LET others == (Requests \cap Pickers) \ {h}
        later == {o \in others : o > h}
    IN IF others = {} \/ ~Has("pass-on") THEN {} ELSE {Wake(First(IF later # {} THEN later ELSE others))}

\* layer/claim_hold.go: takeHolds; layer/staging.go: takeTurn; layer/staging_request.go: clearWants.
Pick(h) ==
    LET m == First(Frees)
        left == Frees \ {m}
    IN CASE There(Lock(0)) -> Tx("turn", {Lock(0)}, Aside :> 0, {Ready})
         [] ~There(Lock(0)) /\ Frees = {} -> Tx("turn", Guard("stale-empty", AllFree), None, {Ready})
         [] OTHER ->
            [Tx("turn", {Lock(0), Lock(m)} \cup (IF left = {} THEN Guard("hold-empty", AllFree \ {Free(m)}) ELSE {}),
                [k \in {Lock(m)} \cup (IF left = {} THEN {} ELSE {Ready} \cup PassOn(h)) |-> 0], {Free(m), Request(h), Ready})
                EXCEPT !.takes = [lock |-> m, out |-> {m}]]

\* layer/dequeue.go: take; layer/group_hold.go: meetHold.
Name(h) ==
    [Tx("turn", {Lock(0)} \cup {Lock(m) : m \in 1..Last(Prefix)}, Lock(0) :> 0, {Request(h)})
        EXCEPT !.takes = [lock |-> 0, out |-> Prefix]]

Turns(h) ==
    IF h \in Namers THEN IF Prefix # {} /\ ~There(Lock(0)) THEN {Name(h)} ELSE {}
    ELSE IF There(Ready) THEN {Pick(h)} ELSE {}

-----------------------------------------------------------------------------
Init ==
    /\ db = None /\ tx = [p \in Processes |-> NoTx]
    /\ waiting = {} /\ resting = {} /\ holds = [h \in Handles |-> NoClaim]
    /\ faults = Faults /\ finished = {} /\ missed = {}

Idle(h) == tx[Receiver(h)].what = "none"

\* Behind all that its read version shows; what it does not show it may land before.
Enqueue(b) ==
    /\ tx[Producer(b)].what = "none" /\ \A m \in b : m \notin finished /\ \A o \in Items : o < m
    /\ tx' = [tx EXCEPT ![Producer(b)] = EnqueueTx(b)]
    /\ UNCHANGED <<db, waiting, resting, holds, faults, finished, missed>>

Receive(h) ==
    /\ Idle(h) /\ h \notin waiting /\ holds[h] = NoClaim /\ finished # Messages
    /\ waiting' = waiting \cup {h}
    /\ UNCHANGED <<db, tx, resting, holds, faults, finished, missed>>

\* layer/staging.go: takeTurn, rest; layer/staging_request.go: stageWants. If there is nothing to write it rests.
Turn(h) ==
    /\ Idle(h) /\ h \in waiting /\ h \notin resting
    /\ IF Turns(h) # {} THEN resting' = resting /\ \E t \in Turns(h) : tx' = [tx EXCEPT ![Receiver(h)] = t]
       ELSE IF There(Request(h)) THEN resting' = resting \cup {h} /\ tx' = tx
       ELSE resting' = resting /\ tx' = [tx EXCEPT ![Receiver(h)] = Tx("turn", {}, Request(h) :> 0, {})]
    /\ UNCHANGED <<db, waiting, holds, faults, finished, missed>>

\* layer/staging.go: rest. The poll.
Poll(h) ==
    /\ Has("poll") /\ h \in resting
    /\ resting' = resting \ {h}
    /\ UNCHANGED <<db, tx, waiting, holds, faults, finished, missed>>

\* layer/settlement.go: take, finish; layer/settle_back.go: carryOut; layer/tx_wake.go: putBackKept.
SettleAll(out, back) ==
    LET kept == There(Aside)
        gone == IF back THEN {} ELSE out
        left == Items \ gone
        opens == (IF kept THEN {"free"} ELSE {}) \cup (IF left # {} THEN {"group"} ELSE {})
        empty == IF left = {} THEN {Item(m) : m \in Messages} ELSE {}
    IN Waking([Tx("settle", {Lock(0)} \cup Guard("kept", {Aside}) \cup empty, IF kept THEN Ready :> 0 ELSE None,
                  {Lock(0)} \cup (IF kept THEN {Aside} ELSE {}) \cup {Item(m) : m \in gone} \cup {Free(m) : m \in gone})
                EXCEPT !.opens = opens, !.unlocks = TRUE, !.done = gone])

\* layer/settlement.go: apply; layer/group_hold.go: letGo.
SettleOne(m, back) ==
    Waking([Tx("settle", {Lock(m)}, IF back THEN Free(m) :> 0 @@ Ready :> 0 ELSE None,
               {Lock(m)} \cup (IF back THEN {} ELSE {Item(m)}))
             EXCEPT !.opens = IF back THEN {"free"} ELSE {}, !.unlocks = TRUE, !.done = IF back THEN {} ELSE {m}])

Settle(h) ==
    /\ Idle(h) /\ holds[h] # NoClaim
    /\ \E back \in BOOLEAN :
        /\ back => faults > 0
        /\ faults' = IF back THEN faults - 1 ELSE faults
        /\ tx' = [tx EXCEPT ![Receiver(h)] = IF holds[h].lock = 0 THEN SettleAll(holds[h].out, back) ELSE SettleOne(holds[h].lock, back)]
    /\ UNCHANGED <<db, waiting, resting, holds, finished, missed>>

Seekers(l) == IF l = "group" THEN Namers ELSE Pickers

Commit(p) ==
    LET t == tx[p]
        woken == {h \in Handles : Wake(h) \in DOMAIN t.sets}
        made == t.opens \cup (IF t.unlocks THEN {"group"} ELSE {})
        \* A turn in which a handle takes something, and which goes on.
        busy == {h \in Handles : Receiver(h) # p /\ tx[Receiver(h)].what = "turn" /\ tx[Receiver(h)].takes # NoClaim}
        oldest == IF t.saw \cap Pickers = {} THEN {} ELSE {First(t.saw \cap Pickers)}
    IN /\ t.what # "none"
       /\ db' = Apply(db, t)
       /\ tx' = Without([tx EXCEPT ![p] = NoTx], t)
       /\ IF p[1] = "handle"
          THEN LET h == p[2]
               IN /\ holds' = CASE t.takes # NoClaim -> [holds EXCEPT ![h] = t.takes]
                                [] t.what = "settle" -> [holds EXCEPT ![h] = NoClaim]
                                [] OTHER -> holds
                  /\ waiting' = IF t.takes # NoClaim THEN waiting \ {h} ELSE waiting
          ELSE UNCHANGED <<holds, waiting>>
       /\ resting' = resting \ woken
       /\ finished' = finished \cup t.done
       /\ missed' = (missed \ made) \cup
            {l \in made : LET asked == IF l = "group" THEN t.saw \cap Namers ELSE oldest
                          IN \/ (resting \cap Seekers(l)) \ t.saw # {}
                             \/ asked # {} /\ asked \cap (waiting \ busy) = {}}
       /\ UNCHANGED faults

Next ==
    \/ \E b \in Batches : Enqueue(b)
    \/ \E h \in Handles : Receive(h) \/ Turn(h) \/ Poll(h) \/ Settle(h)
    \/ \E p \in Processes : Commit(p)

Spec == Init /\ [][Next]_vars

Fair ==
    /\ Spec
    /\ \A b \in Batches : WF_vars(Enqueue(b)) /\ WF_vars(Commit(Producer(b)))
    /\ \A h \in Handles :
        WF_vars(Receive(h)) /\ WF_vars(Turn(h)) /\ WF_vars(Poll(h)) /\ WF_vars(Settle(h)) /\ WF_vars(Commit(Receiver(h)))

-----------------------------------------------------------------------------
(* What must hold.                                                           *)

Deliverable(l) ==
    IF l = "group" THEN Prefix # {} /\ ~There(Lock(0))
    ELSE Frees # {} /\ There(Ready) /\ ~There(Lock(0))
\* Somebody who waits for it is about to look.
Noticed(l) == (waiting \cap Seekers(l)) \ resting # {}

\* A hint is put aside under a lock that is there.
KeptUnderLock == There(Aside) => There(Lock(0))
\* What nobody holds is free, and nothing else is.
FreeItems == Frees = {m \in Items : ~There(Lock(m))}
\* I1, of the free messages.
Reachable == Frees # {} => There(Ready) \/ There(Aside)

\* Nobody rests while there is something for it that nobody is about to look at: but for what the poll is there for.
Woken == \A l \in {"group", "free"} \ missed : Deliverable(l) /\ resting \cap Seekers(l) # {} => Noticed(l)

\* In the end all is delivered and acked.
Drains == <>(finished = Messages)
=============================================================================
