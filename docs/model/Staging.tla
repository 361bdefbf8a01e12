------------------------------ MODULE Staging ------------------------------
(* The waiting line: requests, grants to them, wakes, withdrawals and sweeps, *)
(* over groups of which no more is told than that they have an item or not.  *)
(* What a group itself goes through is Group.tla.                            *)
EXTENDS Store

CONSTANTS
    Groups,    \* into each, one item is enqueued
    Handles,   \* each has one receive at a time, which waits
    Mortal,    \* the handles that may die
    Faults,    \* how many deaths, given up waits, nacks, and requests or leases that end too early by somebody's clock
    Removed    \* the guards that are left out, by their names in layer/internal/guard; none in the code

Guard(name, keys) == IF name \in Removed THEN {} ELSE keys
Has(name) == name \notin Removed

VARIABLES
    db,        \* the database
    tx,        \* of each process: its transaction in flight
    alive,     \* the handles that have not died
    waiting,   \* the handles that have a receive that waits
    request,   \* the handles that believe to have a request
    resting,   \* the handles that wait for their watch
    holds,     \* of each handle: its claim
    claims,    \* the read version, as far as tokens tell it
    faults,    \* how many more there may be
    \* What follows is seen by the invariants alone.
    live,      \* the claims that were neither settled nor taken over
    enqueued, finished

local == <<alive, waiting, request, resting, holds>>
seen == <<live, enqueued, finished>>
vars == <<db, tx, local, claims, faults, seen>>

Producer(g) == <<"producer", g>>
Receiver(h) == <<"handle", h>>
Processes == {Producer(g) : g \in Groups} \cup {Receiver(h) : h \in Handles}

-----------------------------------------------------------------------------
(* Keys: layer/subspace.go. A timer's time and a request's place are left    *)
(* out: any timer may be due, and any request be the oldest.                 *)

Item(g) == <<"item", g>>
Lock(g) == <<"lock", g>>
Ready(g) == <<"ready", g>>
Timer(g) == <<"timer", g>>
Request(h) == <<"request", h>>
Grant(h, g) == <<"grant", h, g>>
Wake(h) == <<"wake", h>>

There(k) == k \in DOMAIN db
NoLock == [kind |-> "none", token |-> 0, owner |-> 0]
Held(g) == IF There(Lock(g)) THEN db[Lock(g)] ELSE NoLock
Granted(h) == {g \in Groups : There(Grant(h, g))}
\* Requests that want; the value of one is how many groups it wants.
Wanting == {h \in Handles : There(Request(h)) /\ db[Request(h)] > 0}
NoClaim == [group |-> 0, token |-> 0]

-----------------------------------------------------------------------------
(* Transactions.                                                             *)

Part(reads, sets, clears) ==
    [reads |-> reads, sets |-> sets, clears |-> clears, starts |-> NoClaim, ends |-> {}, change |-> "keep"]
Empty == Part({}, None, {})
Plus(a, b) ==
    [reads |-> a.reads \cup b.reads, sets |-> b.sets @@ a.sets, clears |-> a.clears \cup b.clears,
     starts |-> IF a.starts = NoClaim THEN b.starts ELSE a.starts, ends |-> a.ends \cup b.ends,
     change |-> IF b.change = "keep" THEN a.change ELSE b.change]
Tx(what, part) == part @@ [what |-> what]

\* layer/tx.go: wakeOldest. At snapshot; here, any request that wants.
Woken == IF Wanting = {} THEN {None} ELSE {Wake(h) :> 0 : h \in Wanting}

\* The end of a lock by its time: a fault if somebody has it in flight who lives.
MayExpire(g) ==
    LET l == Held(g)
    IN CASE l.kind = "grant" /\ ~Has("grant-lease") -> "never"
         [] l.owner \in alive /\ There(Grant(l.owner, g)) -> "fault"
         [] l.owner \in alive /\ holds[l.owner] = [group |-> g, token |-> l.token] -> "fault"
         [] OTHER -> "free"

\* layer/dequeue.go: take, hold. from is the key that led here.
Take(h, g, from) ==
    LET l == Held(g)
        token == claims + 1
    IN [Part({Lock(g)},
             (Lock(g) :> [kind |-> "claim", token |-> token, owner |-> h]) @@ (Timer(g) :> 0),
             {from} \cup (IF l.kind = "grant" /\ (Has("clear-grant") \/ l.owner = h) THEN {Grant(l.owner, g)} ELSE {}))
        EXCEPT !.starts = [group |-> g, token |-> token],
               !.ends = IF l.kind = "claim" THEN {[group |-> g, token |-> l.token]} ELSE {}]

\* layer/group_verdict.go: dispose. Of a group without items.
SettleEmpty(g, from) ==
    LET l == Held(g)
    IN [Part({Item(g)} \cup (IF l.kind = "none" THEN {} ELSE {Lock(g)}), None,
             {from} \cup (CASE l.kind = "none" -> {}
                            [] l.kind = "claim" -> {Lock(g), Timer(g)}
                            [] OTHER -> {Lock(g), Timer(g), Grant(l.owner, g)}))
        EXCEPT !.ends = IF l.kind = "claim" THEN {[group |-> g, token |-> l.token]} ELSE {}]

Stale(g, from) == Part({Lock(g)}, None, {from})

\* layer/claim_hold.go: accept; layer/group_verdict.go: assess. Of a grant to the handle.
Accept(h, g) ==
    LET l == Held(g)
        ours == l.kind = "grant" /\ l.token = db[Grant(h, g)]
    IN CASE ~ours /\ Has("accept") -> Stale(g, Grant(h, g))
         [] ~There(Item(g)) -> SettleEmpty(g, Grant(h, g))
         [] OTHER -> Take(h, g, Grant(h, g))

\* layer/group_verdict.go: assess. Of a hint.
Look(h, g) ==
    CASE Held(g).kind # "none" -> Stale(g, Ready(g))
      [] ~There(Item(g)) -> SettleEmpty(g, Ready(g))
      [] OTHER -> Take(h, g, Ready(g))

\* layer/group_verdict.go: assess. Of a due timer.
Due(h, g) ==
    CASE Held(g).kind = "none" -> Stale(g, Timer(g))
      [] ~There(Item(g)) -> SettleEmpty(g, Timer(g))
      [] OTHER -> Take(h, g, Timer(g))

\* layer/claim_hold.go: grantOthers, grantFrom.
GrantTo(other, g) ==
    LET token == claims + 1
    IN Part(Guard("grant-lock", {Lock(g)}) \cup Guard("grant-request", {Request(other)}),
            (Lock(g) :> [kind |-> "grant", token |-> token, owner |-> other]) @@ (Timer(g) :> 0)
            @@ (Grant(other, g) :> token) @@ (Request(other) :> db[Request(other)] - 1) @@ (Wake(other) :> 0),
            {Ready(g)})

\* layer/staging_request.go: stage. left: grants that nobody took.
Stage(h, served, left) ==
    CASE ~served /\ h \notin request -> [Part({}, Request(h) :> 1, {}) EXCEPT !.change = "registered"]
      [] served /\ h \in request /\ (left = {} \/ ~Has("grants-left")) ->
            [Part(Guard("request-clear", {Request(h)}), None, {Request(h)}) EXCEPT !.change = "gone"]
      [] OTHER -> Empty

-----------------------------------------------------------------------------
Init ==
    /\ db = None /\ tx = [p \in Processes |-> NoTx]
    /\ alive = Handles /\ waiting = {} /\ request = {} /\ resting = {}
    /\ holds = [h \in Handles |-> NoClaim]
    /\ claims = 0 /\ faults = Faults
    /\ live = {} /\ enqueued = {} /\ finished = {}

Free(h) == h \in alive /\ tx[Receiver(h)].what = "none"
Fault == faults > 0 /\ faults' = faults - 1
Costs(c) == c # "never" /\ (IF c = "fault" THEN Fault ELSE faults' = faults)

Begin(p, t) == tx' = [tx EXCEPT ![p] = t]

\* layer/enqueue.go, into an empty group.
Enqueue(g) ==
    /\ tx[Producer(g)].what = "none" /\ g \notin enqueued
    /\ \E w \in Woken : Begin(Producer(g), Tx("enqueue", Part({}, (Item(g) :> 0) @@ (Ready(g) :> 0) @@ w, {})))
    /\ UNCHANGED <<db, local, claims, faults, seen>>

\* layer/pipeline_tx.go: submit.
Receive(h) ==
    /\ Free(h) /\ h \notin waiting /\ holds[h] = NoClaim /\ finished # Groups
    /\ waiting' = waiting \cup {h}
    /\ UNCHANGED <<db, tx, alive, request, resting, holds, claims, faults, seen>>

\* What a turn does for its own receive.
Own(h) ==
    IF h \in request /\ Granted(h) # {} THEN {<<Accept(h, g), g, "free">> : g \in Granted(h)}
    ELSE {<<Look(h, g), g, "free">> : g \in {f \in Groups : There(Ready(f))}}
         \cup {<<Due(h, g), g, MayExpire(g)>> : g \in {f \in Groups : There(Timer(f)) /\ Held(f).kind # "none"}}
         \cup {<<Due(h, g), g, "free">> : g \in {f \in Groups : There(Timer(f)) /\ Held(f).kind = "none"}}

\* What it grants to others beside; all that can be granted, or what looked dead is passed over.
Others(h, g) ==
    {Empty} \cup {GrantTo(o, f) : o \in Wanting \ {h},
                                 f \in {f \in Groups \ {g} : There(Ready(f)) /\ There(Item(f)) /\ ~There(Lock(f))}}

\* layer/staging.go: takeTurn. If there is nothing to write it rests, and its watch holds from its read version on.
Turn(h) ==
    /\ Free(h) /\ h \in waiting /\ h \notin resting
    /\ \/ \E own \in Own(h) : \E others \in Others(h, own[2]) :
            LET served == own[1].starts # NoClaim
                staged == Stage(h, served, Granted(h) \ {own[2]})
            IN /\ Costs(own[3])
               /\ Begin(Receiver(h), Tx("turn", Plus(Plus(own[1], others), staged)))
               /\ resting' = resting
       \/ /\ \A own \in Own(h) : own[3] # "free"
          /\ faults' = faults
          /\ IF h \in request THEN resting' = resting \cup {h} /\ tx' = tx
             ELSE resting' = resting /\ Begin(Receiver(h), Tx("turn", Stage(h, FALSE, {})))
    /\ UNCHANGED <<db, alive, waiting, request, holds, claims, seen>>

\* layer/staging.go: rest. The poll.
Poll(h) ==
    /\ Has("poll") /\ h \in resting /\ h \in alive
    /\ resting' = resting \ {h}
    /\ UNCHANGED <<db, tx, alive, waiting, request, holds, claims, faults, seen>>

\* layer/staging_request.go: renew.
Renew(h) ==
    /\ Free(h) /\ h \in waiting /\ h \in request /\ (There(Request(h)) => db[Request(h)] = 0)
    /\ IF There(Request(h))
       THEN /\ Begin(Receiver(h), Tx("renew", Part(Guard("renew-request", {Request(h)}), Request(h) :> 1, {})))
            /\ UNCHANGED <<request, resting>>
       ELSE tx' = tx /\ request' = request \ {h} /\ resting' = resting \ {h}
    /\ UNCHANGED <<db, alive, waiting, holds, claims, faults, seen>>

\* layer/internal/line/pipeline.go: stopWaiting.
GiveUp(h) ==
    /\ Free(h) /\ h \in waiting /\ Fault
    /\ waiting' = waiting \ {h} /\ resting' = resting \ {h}
    /\ UNCHANGED <<db, tx, alive, request, holds, claims, seen>>

\* layer/staging_request.go: withdraw. A grant's lock is given back as a claim's is released.
Withdraw(h) ==
    /\ Free(h) /\ h \notin waiting /\ h \in request
    /\ LET granted == Granted(h)
           ours == {g \in granted : Held(g).kind = "grant" /\ Held(g).token = db[Grant(h, g)]}
           ready == {g \in ours : There(Item(g))}
       IN \E w \in IF ready = {} THEN {None} ELSE Woken :
            Begin(Receiver(h), Tx("withdraw", [Part(
                Guard("withdraw-request", {Request(h)}) \cup Guard("withdraw-lock", {Lock(g) : g \in granted})
                \cup {Item(g) : g \in ours},
                [k \in {Ready(g) : g \in ready} |-> 0] @@ w,
                {Request(h), Wake(h)} \cup {Grant(h, g) : g \in granted}
                \cup {Lock(g) : g \in ours} \cup {Timer(g) : g \in ours})
                EXCEPT !.change = "gone"]))
    /\ UNCHANGED <<db, local, claims, faults, seen>>

\* layer/staging_request.go: sweepRequests.
Sweep(h) ==
    /\ Free(h) /\ h \in waiting
    /\ \E other \in Handles \ {h} :
        /\ There(Request(other))
        /\ Costs(IF other \in alive THEN "fault" ELSE "free")
        /\ Begin(Receiver(h), Tx("sweep", Part(Guard("sweep-request", {Request(other)}), None,
                 {Request(other), Wake(other)} \cup {Grant(other, g) : g \in Groups})))
    /\ UNCHANGED <<db, local, claims, seen>>

\* layer/settlement.go. The ack of all, or a nack; the fencing check tells a claim that was lost.
Settle(h) ==
    /\ Free(h) /\ holds[h] # NoClaim
    /\ LET g == holds[h].group
           mine == Held(g).kind = "claim" /\ Held(g).token = holds[h].token
       IN \/ /\ mine /\ faults' = faults /\ holds' = holds
             /\ Begin(Receiver(h), Tx("ack", [Part({Lock(g), Item(g)}, None, {Item(g), Lock(g), Timer(g)})
                                             EXCEPT !.ends = {holds[h]}, !.change = "settled"]))
          \/ /\ mine /\ Fault /\ holds' = holds
             /\ \E w \in Woken :
                    Begin(Receiver(h), Tx("nack", [Part({Lock(g)}, (Ready(g) :> 0) @@ w, {Lock(g), Timer(g)})
                                                  EXCEPT !.ends = {holds[h]}, !.change = "settled"]))
          \/ ~mine /\ holds' = [holds EXCEPT ![h] = NoClaim] /\ UNCHANGED <<tx, faults>>
    /\ UNCHANGED <<db, alive, waiting, request, resting, claims, seen>>

\* A handle dies. Its transaction in flight may land yet.
Die(h) ==
    /\ h \in Mortal /\ h \in alive /\ Fault
    /\ alive' = alive \ {h} /\ waiting' = waiting \ {h} /\ resting' = resting \ {h}
    /\ UNCHANGED <<db, tx, request, holds, claims, seen>>

Commit(p) ==
    LET t == tx[p]
        woken == {h \in Handles : Wake(h) \in DOMAIN t.sets}
    IN /\ t.what # "none"
       /\ db' = Apply(db, t)
       /\ tx' = Without([tx EXCEPT ![p] = NoTx], t)
       /\ IF p[1] = "handle" /\ p[2] \in alive
          THEN LET h == p[2]
               IN /\ holds' = CASE t.starts # NoClaim -> [holds EXCEPT ![h] = t.starts]
                                [] t.change = "settled" -> [holds EXCEPT ![h] = NoClaim]
                                [] OTHER -> holds
                  /\ waiting' = IF t.starts # NoClaim THEN waiting \ {h} ELSE waiting
                  /\ request' = CASE t.change = "registered" -> request \cup {h}
                                  [] t.change = "gone" -> request \ {h}
                                  [] OTHER -> request
          ELSE UNCHANGED <<holds, waiting, request>>
       /\ resting' = resting \ woken
       /\ claims' = IF \E k \in DOMAIN t.sets : k[1] = "lock" THEN claims + 1 ELSE claims
       /\ live' = (live \ t.ends) \cup (IF t.starts = NoClaim THEN {} ELSE {t.starts})
       /\ enqueued' = IF t.what = "enqueue" THEN enqueued \cup {p[2]} ELSE enqueued
       /\ finished' = IF t.what = "ack" THEN finished \cup {g \in Groups : Item(g) \in t.clears} ELSE finished
       /\ UNCHANGED <<alive, faults>>

Next ==
    \/ \E g \in Groups : Enqueue(g)
    \/ \E h \in Handles :
        \/ Receive(h) \/ Turn(h) \/ Poll(h) \/ Renew(h) \/ GiveUp(h)
        \/ Withdraw(h) \/ Sweep(h) \/ Settle(h) \/ Die(h)
    \/ \E p \in Processes : Commit(p)

Spec == Init /\ [][Next]_vars

Fair ==
    /\ Spec
    /\ \A g \in Groups : WF_vars(Enqueue(g)) /\ WF_vars(Commit(Producer(g)))
    /\ \A h \in Handles :
        /\ WF_vars(Receive(h)) /\ WF_vars(Poll(h)) /\ WF_vars(Settle(h)) /\ WF_vars(Withdraw(h))
        /\ WF_vars(Commit(Receiver(h)))
        /\ SF_vars(Turn(h)) /\ SF_vars(Renew(h))  \* though it sweeps, or rests, between

-----------------------------------------------------------------------------
(* What must hold.                                                           *)

\* I1.
Reachable == \A g \in Groups : There(Item(g)) => There(Ready(g)) \/ There(Lock(g))
LockTimer == \A g \in Groups : There(Lock(g)) => There(Timer(g))

\* A grant is to a request, and is the lock's.
GrantHasRequest == \A h \in Handles, g \in Groups : There(Grant(h, g)) => There(Request(h))
GrantIsTheLock ==
    \A h \in Handles, g \in Groups :
        There(Grant(h, g)) => Held(g) = [kind |-> "grant", token |-> db[Grant(h, g)], owner |-> h]

\* A handle that lives knows of its request: otherwise others grant to nobody until it is swept.
RequestIsKnown == \A h \in alive : There(Request(h)) => h \in request

\* G2: the live claims are those of the locks.
Exclusion == live = {[group |-> g, token |-> Held(g).token] : g \in {f \in Groups : Held(f).kind = "claim"}}

\* G3.
Kept == \A g \in enqueued \ finished : There(Item(g))

\* In the end all is delivered and acked, by the handles that live.
Drains == <>(finished = Groups)

Symmetry == Permutations(Handles \ Mortal) \cup Permutations(Mortal) \cup Permutations(Groups)
=============================================================================
