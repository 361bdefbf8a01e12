------------------------------- MODULE Holds -------------------------------
(* One group of an unordered queue: claims of the whole group, in order, and *)
(* of single items that nobody holds. The rest is as in Lanes.tla.           *)
EXTENDS Store

CONSTANTS
    Messages,     \* numbers; each is enqueued once, by a producer of its own
    Stored,       \* those that are there from the beginning
    Ordered, Unordered,  \* the workers that receive the group, and those that receive items
    Max,          \* how many items a receive takes at most
    Faults,       \* how many nacks, extends, deaths, and overtaken holders
    Removed       \* the guards that are left out, by their names in layer/internal/guard; none in the code

Guard(name, keys) == IF name \in Removed THEN {} ELSE keys
Has(name) == name \notin Removed

VARIABLES
    db,       \* the database
    tx,       \* of each process: its transaction in flight
    claim,    \* of each worker: the claims that it believes to have
    clock, claims,  \* the read version, as far as indexes, and tokens, tell it
    faults,   \* how many more there may be
    \* What follows is seen by the invariants alone.
    landed, finished,
    live,     \* the claims that were neither settled nor ended by others
    ordered   \* no claim of the group has passed over an item

vars == <<db, tx, claim, clock, claims, faults, landed, finished, live, ordered>>
seen == <<landed, finished, live, ordered>>

Workers == Ordered \cup Unordered
Producers == {<<"enqueue", m>> : m \in Messages \ Stored}
Holders == {<<"worker", w>> : w \in Workers}
Processes == Producers \cup Holders

-----------------------------------------------------------------------------
(* Keys: layer/subspace.go, layer/store_lane.go, layer/store_hold.go. What is *)
(* locked is the whole group, or an item; what hints lead to is the whole     *)
(* group, or its free items. Leases end at 1, and a clock shows 0 or 1.      *)

Indexes == 1..(Cardinality(Messages) + 2)
Item(i, m) == <<"item", i, m>>
AllItems == {Item(i, m) : i \in Indexes, m \in Messages}
Whole == <<"whole">>
Free == <<"free">>
LaneItem(l, k) == IF l = Whole THEN k ELSE <<"lane", k[2], k[3]>>
AllOf(l) == {LaneItem(l, k) : k \in AllItems}
Lock(l) == <<"lock", l>>
Ready(l, i) == <<"ready", l, i>>
\* A timer leads to what is locked, and, beside a hint put aside, to the whole group or its free items.
Timer(l) == <<"timer", l>>
Aside(holder, l, i) == <<"kept", holder, l, i>>
AllAside(holder) == {Aside(holder, l, i) : l \in {Whole, Free}, i \in Indexes}

There(k) == k \in DOMAIN db
Items == {k \in DOMAIN db : k[1] = "item"}
In(l) == {k \in Items : There(LaneItem(l, k))}
Hints(l) == {k \in DOMAIN db : k[1] = "ready" /\ k[2] = l}
Under(holder) == {k \in DOMAIN db : k[1] = "kept" /\ k[2] = holder}
Holds == {k \in Items : There(Lock(k))}

Before(a, b) == a[2] < b[2] \/ (a[2] = b[2] /\ a[3] < b[3])
First(s) == CHOOSE k \in s : \A j \in s : j = k \/ Before(k, j)
Last(s) == CHOOSE k \in s : \A j \in s : j = k \/ Before(j, k)
FirstOf(s) == {k \in s : Cardinality({j \in s : Before(j, k)}) < Max}

NoLock == [token |-> 0, owner |-> <<"nobody", 0>>, out |-> {}]
Held(l) == IF There(Lock(l)) THEN db[Lock(l)] ELSE NoLock
Lease(l) == IF There(Lock(l)) THEN {[lane |-> l, token |-> Held(l).token, owner |-> Held(l).owner]} ELSE {}

-----------------------------------------------------------------------------
(* Transactions.                                                             *)

Part(reads, sets, clears) ==
    [reads |-> reads, sets |-> sets, clears |-> clears, starts |-> {}, ends |-> {}, done |-> {}]
Nothing == Part({}, None, {})
\* The sets of b win over the clears of a, as b comes later in the transaction.
Plus(a, b) ==
    [reads |-> a.reads \cup b.reads, sets |-> b.sets @@ [k \in DOMAIN a.sets \ b.clears |-> a.sets[k]],
     clears |-> a.clears \cup b.clears, starts |-> a.starts \cup b.starts, ends |-> a.ends \cup b.ends,
     done |-> a.done \cup b.done]
Tx(what, part) == part @@ [what |-> what]

\* layer/group.go: put; layer/tx_wake.go: unlock, putBackKept.
Unlock(l) ==
    [Part(Guard("kept", AllAside(l)), [r \in {Ready(k[3], k[4]) : k \in Under(l)} |-> 0], {Lock(l), Timer(l)} \cup Under(l))
        EXCEPT !.ends = Lease(l)]

\* layer/group.go: leave. rest is what the transaction leaves in the lane.
Leave(l, rest, empty) ==
    IF rest = {} THEN Part(Guard(empty, AllOf(l)), None, {}) ELSE Part({}, Ready(l, First(rest)[2]) :> 0, {})

\* layer/group_hold.go: letGo.
LetGo(k) == Part({}, (LaneItem(Free, k) :> 0) @@ (Ready(Free, k[2]) :> 0), {})
\* layer/group.go: free. Of a lock whose lease has run out.
End(l) == Plus(Unlock(l), IF l = Whole THEN Leave(Whole, In(Whole), "free-empty") ELSE LetGo(l))

\* layer/enqueue.go: begin, joinLanes.
EnqueueTx(m) ==
    LET tail == Last(Items)
        index == IF Items = {} \/ tail[2] < clock THEN clock ELSE tail[2] + 1
        k == Item(index, m)
        full == {l \in {Whole, Free} : In(l) # {}}
    IN Tx("enqueue", Part(
            UNION {Guard(IF l = Whole THEN "tail" ELSE "lane-tail", {LaneItem(l, Last(In(l)))}) : l \in full},
            [j \in {k, LaneItem(Free, k)} \cup {Ready(l, index) : l \in {Whole, Free} \ full} |-> 0], {}))

Candidates(l, now) ==
    {[key |-> {k}, index |-> k[3]] : k \in Hints(l)}
    \cup (IF now = 1 /\ There(Timer(l)) THEN {[key |-> {Timer(l)}, index |-> db[Timer(l)]]} ELSE {})
    \cup {[key |-> {}, index |-> 0]}

Claims(l, p, out) == [token |-> claims + 1, owner |-> p, out |-> out]
Begin(ls, p) == {[lane |-> l, token |-> claims + 1, owner |-> p] : l \in ls}

\* layer/group_verdict.go: assess, dispose; layer/group_lane.go: endOther, disposeExcluded. other is what is in the way.
Stands(l, c, other, now) ==
    IF now = 1 THEN Tx("look", Plus(Part(Guard("other-lock", {Lock(other)}), None, {}), End(other)))
    ELSE IF c.key = {} THEN NoTx
    ELSE Tx("look", Part(Guard("kept-lock", {Lock(other)}), (Aside(other, l, c.index) :> 0) @@ (Timer(l) :> c.index), c.key))

Emptied(l, c) == IF c.key = {} THEN NoTx ELSE Tx("look", Part(Guard("stale-empty", AllOf(l)), None, c.key))

\* layer/dequeue.go: take; layer/group_hold.go: meetHold, fenceHolds.
ClaimTx(p, c, now) ==
    LET cut == {k \in Items : \A h \in Holds : Before(k, h)}  \* up to the first that is held
        out == FirstOf(cut)
        locked == There(Lock(Whole))
    IN CASE locked /\ now = 0 -> IF c.key = {} THEN NoTx ELSE Tx("look", Part(Guard("stale-lock", {Lock(Whole)}), None, c.key))
         [] Items = {} -> Emptied(Whole, c)
         [] Items # {} /\ cut = {} /\ ~locked -> Stands(Whole, c, First(Items), now)
         [] OTHER ->
            Tx("claim", [Part(Guard("claim-lock", {Lock(Whole)}) \cup Guard("holds", {Lock(k) : k \in {j \in AllItems : ~Before(Last(out), j)}}),
                    (Lock(Whole) :> Claims(Whole, p, out)) @@ (Timer(Whole) :> First(out)[2]),
                    c.key \cup (IF c.key = {} THEN {Ready(Whole, First(out)[2])} ELSE {}))
                EXCEPT !.starts = Begin({Whole}, p), !.ends = Lease(Whole)])

\* layer/claim_hold.go: takeHolds.
TakeTx(p, c, now) ==
    LET out == FirstOf(In(Free))
    IN CASE In(Free) = {} -> Emptied(Free, c)
         [] In(Free) # {} /\ There(Lock(Whole)) -> Stands(Free, c, Whole, now)
         [] OTHER ->
            Tx("claim", [Plus(Part(Guard("claim-lock", {Lock(Whole)}) \cup Guard("hold", {Lock(k) : k \in out}),
                    [j \in {Lock(k) : k \in out} \cup {Timer(k) : k \in out} |->
                        IF j[1] = "lock" THEN Claims(j[2], p, {j[2]}) ELSE j[2][2]],
                    c.key \cup {LaneItem(Free, k) : k \in out}),
                    Leave(Free, In(Free) \ out, "hold-empty"))
                EXCEPT !.starts = Begin(out, p)])

\* layer/claim_hold.go: endHold.
EndTx(k) == Tx("look", Plus(Part(Guard("hold-end", {Lock(k)}), None, {}), End(k)))

\* layer/settlement.go: take, finish; layer/settle_back.go: carryOut. The fencing check is always made.
Mine(p) == {c \in claim[p] : Held(c.lane).token = c.token}
SettleTx(what, l) ==
    LET out == Held(l).out
        gone == out \cup {LaneItem(Free, k) : k \in out}
        fence == Part(Guard("settle-lock", {Lock(l)}), None, {})
    IN CASE what = "ack" ->
            Tx(what, [Plus(fence, Plus(Part({}, None, gone),
                        Plus(Unlock(l), IF l = Whole THEN Leave(Whole, Items \ out, "release-empty") ELSE Nothing)))
                      EXCEPT !.done = {k[3] : k \in out}])
         [] what = "nack" ->
            Tx(what, Plus(fence, Plus(Unlock(l), IF l = Whole THEN Part({}, Ready(Whole, First(out)[2]) :> 0, {}) ELSE LetGo(l))))
         [] OTHER -> Tx(what, Plus(fence, Part({}, Lock(l) :> Held(l), {})))

-----------------------------------------------------------------------------
Init ==
    /\ db = [k \in {Item(m, m) : m \in Stored} \cup {LaneItem(Free, Item(m, m)) : m \in Stored}
                   \cup (IF Stored = {} THEN {} ELSE {Ready(l, CHOOSE m \in Stored : \A n \in Stored : m <= n) : l \in {Whole, Free}}) |-> 0]
    /\ tx = [p \in Processes |-> NoTx]
    /\ claim = [p \in Holders |-> {}]
    /\ clock = Cardinality(Stored) + 1 /\ claims = 0 /\ faults = Faults
    /\ landed = Stored /\ finished = {} /\ live = {} /\ ordered = TRUE

Idle(p) == tx[p].what = "none"
Fault == faults > 0 /\ faults' = faults - 1

Enqueue(p) ==
    /\ p \in Producers /\ Idle(p) /\ p[2] \notin landed
    /\ tx' = [tx EXCEPT ![p] = EnqueueTx(p[2])]
    /\ UNCHANGED <<db, claim, clock, claims, faults, seen>>

Receive(p) ==
    /\ p \in Holders /\ Idle(p) /\ claim[p] = {}
    /\ \E now \in 0..1 :
        \E t \in {ClaimTx(p, c, now) : c \in IF p[2] \in Ordered THEN Candidates(Whole, now) ELSE {}}
                 \cup {TakeTx(p, c, now) : c \in IF p[2] \in Unordered THEN Candidates(Free, now) ELSE {}}
                 \cup {EndTx(k) : k \in IF p[2] \in Unordered /\ now = 1 THEN Holds ELSE {}} :
            /\ t.what # "none"
            /\ IF \E h \in Holders : \E c \in claim[h] : \E e \in t.ends : e.lane = c.lane /\ e.token = c.token
               THEN Fault ELSE faults' = faults
            /\ tx' = [tx EXCEPT ![p] = t]
    /\ UNCHANGED <<db, claim, clock, claims, seen>>

Settle(p) ==
    /\ p \in Holders /\ Idle(p)
    /\ \E c \in Mine(p) :
        \/ faults' = faults /\ tx' = [tx EXCEPT ![p] = SettleTx("ack", c.lane)]
        \/ Fault /\ \E what \in {"nack", "extend"} : tx' = [tx EXCEPT ![p] = SettleTx(what, c.lane)]
    /\ UNCHANGED <<db, claim, clock, claims, seen>>

Lost(p) ==
    /\ p \in Holders /\ Idle(p) /\ claim[p] # Mine(p)
    /\ claim' = [claim EXCEPT ![p] = Mine(p)]
    /\ UNCHANGED <<db, tx, clock, claims, faults, seen>>

Die(p) ==
    /\ p \in Holders /\ Idle(p) /\ claim[p] # {} /\ Fault
    /\ claim' = [claim EXCEPT ![p] = {}]
    /\ UNCHANGED <<db, tx, clock, claims, seen>>

Commit(p) ==
    LET t == tx[p]
        out == UNION {IF Lock(e.lane) \in DOMAIN t.sets THEN t.sets[Lock(e.lane)].out ELSE {} : e \in t.starts}
    IN /\ t.what # "none"
       /\ db' = Apply(db, t)
       /\ tx' = Without([tx EXCEPT ![p] = NoTx], t)
       /\ claim' = CASE t.what = "claim" -> [claim EXCEPT ![p] = {[lane |-> s.lane, token |-> s.token] : s \in t.starts}]
                     [] t.what \in {"ack", "nack"} -> [claim EXCEPT ![p] = {c \in @ : \A e \in t.ends : e.lane # c.lane}]
                     [] OTHER -> claim
       /\ clock' = IF t.what = "enqueue" THEN clock + 1 ELSE clock
       /\ claims' = IF t.what = "claim" THEN claims + 1 ELSE claims
       /\ landed' = IF t.what = "enqueue" THEN landed \cup {p[2]} ELSE landed
       /\ finished' = finished \cup t.done
       /\ live' = (live \ t.ends) \cup t.starts
       \* No item before those of a claim of the group is in another's hand.
       /\ ordered' = (ordered /\ ((\E s \in t.starts : s.lane = Whole) =>
                        \A h \in live \ t.ends : h.lane # Whole => \A k \in out : Before(k, h.lane)))
       /\ UNCHANGED faults

Next == \E p \in Processes : Enqueue(p) \/ Receive(p) \/ Settle(p) \/ Lost(p) \/ Die(p) \/ Commit(p)
Spec == Init /\ [][Next]_vars
Fair == Spec /\ \A p \in Processes : WF_vars(Enqueue(p) \/ Settle(p) \/ Lost(p) \/ Commit(p)) /\ SF_vars(Receive(p))

-----------------------------------------------------------------------------
(* What must hold.                                                           *)

\* I1: items have something that leads to them as a group, and free ones as free ones.
Reachable ==
    \A l \in {Whole, Free} : In(l) # {} =>
        \/ Hints(l) # {} \/ (l = Whole /\ There(Lock(Whole)))
        \/ \E h \in Holds \cup {Whole} : There(Lock(h)) /\ There(Timer(l)) /\ \E k \in Under(h) : k[3] = l
LockTimer == \A h \in Holds \cup {Whole} : There(Lock(h)) => There(Timer(h))
KeptUnderLock == \A k \in DOMAIN db : k[1] = "kept" => There(Lock(k[2]))
\* The free items are those that nobody holds by themselves.
FreeItems == \A k \in Items : There(LaneItem(Free, k)) <=> ~There(Lock(k))
\* What is in flight is there, and in one hand.
Disjoint ==
    /\ Held(Whole).out \subseteq Items \ Holds
    /\ \A k \in AllItems : There(Lock(k)) => k \in Items
Exclusion == live = UNION {Lease(h) : h \in {j \in AllItems : There(Lock(j))} \cup {Whole}}
Order == ordered
Kept ==
    /\ \A m \in landed \ finished : \E k \in Items : k[3] = m
    /\ \A k \in Items : k[3] \notin finished

Drains == <>[](Items = {} /\ finished = Messages)
=============================================================================
