------------------------------- MODULE Items -------------------------------
(* One group of which each message in flight has a deadline and a token of its *)
(* own, and which delivers from its head up to the first message in flight. The *)
(* layer has it with a record for each item: layer/group_hold.go, README.md. *)
EXTENDS Store

CONSTANTS
    Messages,     \* numbers; each is enqueued once, by a producer of its own
    Stored,       \* those that are there from the beginning
    Workers,
    Max,          \* how many items a receive takes at most
    LastDue,      \* leases end at 1..LastDue; a clock shows 0..LastDue
    Faults,       \* how many items given back, extends, deaths, and overtaken holders
    Removed       \* the guards that are left out; none in the design

Guard(name, keys) == IF name \in Removed THEN {} ELSE keys
Has(name) == name \notin Removed

VARIABLES
    db,       \* the database
    tx,       \* of each process: its transaction in flight
    hand,     \* of each worker: the items that it believes to hold, each with its token
    clock,    \* the read version, as far as indexes tell it
    claims,   \* the read version, as far as tokens tell it
    faults,   \* how many more there may be
    \* What follows is seen by the invariants alone.
    landed, finished,
    live,     \* the holdings, each with its end, that were neither settled nor taken over
    ordered   \* nothing was delivered behind an item in another's hand, and the tokens of an item have grown

vars == <<db, tx, hand, clock, claims, faults, landed, finished, live, ordered>>
seen == <<landed, finished, live, ordered>>

Producers == {<<"enqueue", m>> : m \in Messages \ Stored}
Holders == {<<"worker", w>> : w \in Workers}
Processes == Producers \cup Holders

-----------------------------------------------------------------------------
(* Keys. The record of the group has its holdings by item, and the time of    *)
(* the group's timer: the end of the head's holding, for nothing can be       *)
(* delivered before the head is free; 0 = the head is free, and has a hint.   *)

Indexes == 1..(Cardinality(Messages) + 2)
Item(i, m) == <<"item", i, m>>
AllItems == {Item(i, m) : i \in Indexes, m \in Messages}
Lock == <<"lock">>
Ready(i) == <<"ready", i>>
Timer(d) == <<"timer", d>>

There(k) == k \in DOMAIN db
Items == {k \in DOMAIN db : k[1] = "item"}
Hints == {k \in DOMAIN db : k[1] = "ready"}
Before(a, b) == a[2] < b[2] \/ (a[2] = b[2] /\ a[3] < b[3])
First(s) == CHOOSE k \in s : \A j \in s : j = k \/ Before(k, j)
Last(s) == CHOOSE k \in s : \A j \in s : j = k \/ Before(j, k)
UpTo(k) == {j \in AllItems : ~Before(k, j)}

NoRecord == [held |-> None, due |-> 0]
Record == IF There(Lock) THEN db[Lock] ELSE NoRecord
InHand == DOMAIN Record.held
Of(k, h) == [item |-> k, token |-> h.token, owner |-> h.owner, end |-> h.end]

-----------------------------------------------------------------------------
(* Transactions.                                                             *)

Tx(what, reads, sets, clears) ==
    [what |-> what, reads |-> reads, sets |-> sets, clears |-> clears, starts |-> {}, ends |-> {}, done |-> {}]

\* layer/group.go: put, leave; layer/group_hold.go: noteTurn, leadBackAll, leadBack, fenceTurn. The code has a record for
\* each item, and a conflict on the group's lock in the place of the one record below.
\* The only writer of the record: with holdings next, and rest the items that are left. It keeps the timer, and leaves a
\* hint if the head has become free.
Put(t, next, rest) ==
    LET old == Record
        held == rest # {} /\ First(rest) \in DOMAIN next
        due == IF held THEN next[First(rest)].end ELSE 0
        empty == DOMAIN next = {}
    IN [t EXCEPT
        !.sets = @ @@ (IF empty THEN None ELSE Lock :> [held |-> next, due |-> due])
                   @@ (IF held /\ Has("next-timer") THEN Timer(due) :> 0 ELSE None)
                   @@ (IF rest # {} /\ ~held /\ Has("head-hint") THEN Ready(First(rest)[2]) :> 0 ELSE None),
        !.clears = @ \cup (IF empty THEN {Lock} ELSE {}) \cup (IF old.due = 0 THEN {} ELSE {Timer(old.due)}),
        \* Who leaves the group empty conflicts with what comes to it; and who leaves a head in flight, with what lands before it.
        !.reads = @ \cup (IF rest = {} THEN Guard("release-empty", AllItems)
                          ELSE IF held THEN Guard("gap", UpTo(First(rest))) ELSE {})]

\* layer/enqueue.go: begin.
EnqueueTx(m) ==
    LET tail == Last(Items)
        index == IF Items = {} \/ tail[2] < clock THEN clock ELSE tail[2] + 1
    IN Tx("enqueue", IF Items = {} THEN {} ELSE Guard("tail", {tail}),
          (Item(index, m) :> 0) @@ (IF Items = {} THEN Ready(index) :> 0 ELSE None), {})

\* layer/claim_search.go: readMore. What leads to the group: hints, the due timer, or the caller names it.
Candidates(now) == {{k} : k \in Hints} \cup {{k} : k \in {j \in DOMAIN db : j[1] = "timer" /\ j[2] <= now}} \cup {{}}

\* layer/group_hold.go: meetHold. What is free at a time: from the head up to the first that is in flight.
Taken(k, now) == k \in InHand /\ Record.held[k].end > now
Free(now) == {k \in Items : \A j \in Items : (j = k \/ (Before(j, k) /\ Has("prefix"))) => ~Taken(j, now)}
Takes(now) == {k \in Free(now) : Cardinality({j \in Free(now) : Before(j, k)}) < Max}

\* layer/claim_hold.go: takeHolds, endHold.
ReceiveTx(p, c, now, end) ==
    LET out == Takes(now)
        head == First(Items)
        token == claims + 1
        mine == [token |-> token, owner |-> p, end |-> end]
        next == [k \in (IF Has("merge") THEN InHand ELSE {}) \cup out |-> IF k \in out THEN mine ELSE Record.held[k]]
    IN CASE Items = {} -> IF c = {} THEN NoTx ELSE Tx("look", Guard("stale-empty", AllItems), None, c)
         [] Items # {} /\ out = {} ->  \* The head is in flight. What lands before it has a hint, which may be this very key.
            \* layer/group_hold.go: disposeInHand.
            IF c = {} \/ c = {Timer(Record.due)} THEN NoTx
            ELSE Tx("look", Guard("stale-lock", {Lock}) \cup Guard("gap", UpTo(head)), None, c)
         [] OTHER ->
            [Put(Tx("receive", Guard("claim-lock", {Lock}), None, c \cup (IF c = {} THEN {Ready(head[2])} ELSE {})), next, Items)
                EXCEPT !.starts = {Of(k, mine) : k \in out}, !.ends = {Of(k, Record.held[k]) : k \in out \cap InHand}]

\* layer/settlement.go: apply. A worker's items are settled one by one, or together; those of them that are lost are left out.
Mine(p) == {h.item : h \in {h \in hand[p] : h.item \in InHand /\ (Record.held[h.item].token = h.token \/ ~Has("token"))}}

\* layer/settlement.go: finish; layer/settle_back.go, layer/settle_keep.go: carryOut.
SettleTx(p, what, ids, end) ==
    LET r == Record
        gone == IF what = "ack" THEN ids ELSE {}
        next == [k \in (IF what = "extend" THEN InHand ELSE InHand \ ids) |->
                    IF k \in ids THEN [r.held[k] EXCEPT !.end = end] ELSE r.held[k]]
        was == {[h EXCEPT !.owner = p] : h \in {[Of(h.item, r.held[h.item]) EXCEPT !.token = h.token] : h \in {h \in hand[p] : h.item \in ids}}}
    IN [Put(Tx(what, Guard("settle-lock", {Lock}), None, gone), next, Items \ gone)
            EXCEPT !.ends = was, !.starts = IF what = "extend" THEN {[h EXCEPT !.end = end] : h \in was} ELSE {},
                   !.done = {k[3] : k \in gone}]

-----------------------------------------------------------------------------
Init ==
    /\ db = [k \in {Item(m, m) : m \in Stored} \cup (IF Stored = {} THEN {} ELSE {Ready(CHOOSE m \in Stored : \A n \in Stored : m <= n)}) |-> 0]
    /\ tx = [p \in Processes |-> NoTx]
    /\ hand = [p \in Holders |-> {}]
    /\ clock = Cardinality(Stored) + 1 /\ claims = 0 /\ faults = Faults
    /\ landed = Stored /\ finished = {} /\ live = {} /\ ordered = TRUE

Idle(p) == tx[p].what = "none"
Fault == faults > 0 /\ faults' = faults - 1

Enqueue(p) ==
    /\ p \in Producers /\ Idle(p) /\ p[2] \notin landed
    /\ tx' = [tx EXCEPT ![p] = EnqueueTx(p[2])]
    /\ UNCHANGED <<db, hand, clock, claims, faults, seen>>

Receive(p) ==
    /\ p \in Holders /\ Idle(p) /\ hand[p] = {}
    /\ \E now \in 0..LastDue, end \in 1..LastDue : \E c \in Candidates(now) :
        LET t == ReceiveTx(p, c, now, end)
            overtaken == \E e \in t.ends : [item |-> e.item, token |-> e.token] \in hand[e.owner]
        IN /\ t.what # "none"
           /\ end = 1 \/ t.starts # {}
           /\ IF overtaken THEN Fault ELSE faults' = faults
           /\ tx' = [tx EXCEPT ![p] = t]
    /\ UNCHANGED <<db, hand, clock, claims, seen>>

Settle(p) ==
    /\ p \in Holders /\ Idle(p) /\ Mine(p) # {}
    /\ \/ faults' = faults /\ \E ids \in SUBSET Mine(p) \ {{}} : tx' = [tx EXCEPT ![p] = SettleTx(p, "ack", ids, 0)]
       \/ Fault /\ \E k \in Mine(p) : tx' = [tx EXCEPT ![p] = SettleTx(p, "release", {k}, 0)]
       \/ Fault /\ \E k \in Mine(p), end \in 1..LastDue : tx' = [tx EXCEPT ![p] = SettleTx(p, "extend", {k}, end)]
    /\ UNCHANGED <<db, hand, clock, claims, seen>>

\* What is lost is told by an answer that needs no commit.
Lost(p) ==
    /\ p \in Holders /\ Idle(p) /\ hand[p] # {} /\ Mine(p) = {}
    /\ hand' = [hand EXCEPT ![p] = {}]
    /\ UNCHANGED <<db, tx, clock, claims, faults, seen>>

Die(p) ==
    /\ p \in Holders /\ Idle(p) /\ hand[p] # {} /\ Fault
    /\ hand' = [hand EXCEPT ![p] = {}]
    /\ UNCHANGED <<db, tx, clock, claims, seen>>

Commit(p) ==
    LET t == tx[p]
        got == {[item |-> h.item, token |-> h.token] : h \in t.starts}
        ended == {h.item : h \in t.ends}
    IN /\ t.what # "none"
       /\ db' = Apply(db, t)
       /\ tx' = Without([tx EXCEPT ![p] = NoTx], t)
       /\ hand' = CASE t.what = "receive" -> [hand EXCEPT ![p] = got]
                    [] t.what \in {"ack", "release"} -> [hand EXCEPT ![p] = {h \in @ : h.item \notin ended}]
                    [] OTHER -> hand
       /\ clock' = IF t.what = "enqueue" THEN clock + 1 ELSE clock
       /\ claims' = IF t.what = "receive" THEN claims + 1 ELSE claims
       /\ landed' = IF t.what = "enqueue" THEN landed \cup {p[2]} ELSE landed
       /\ finished' = finished \cup t.done
       /\ live' = (live \ t.ends) \cup t.starts
       /\ ordered' = (ordered /\ (t.what = "receive" =>
                        \A h \in t.starts : \A o \in live : (o.item = h.item => o.token < h.token)
                                                            /\ (Before(o.item, h.item) => o \in t.ends)))
       /\ UNCHANGED faults

Next == \E p \in Processes : Enqueue(p) \/ Receive(p) \/ Settle(p) \/ Lost(p) \/ Die(p) \/ Commit(p)
Spec == Init /\ [][Next]_vars
Fair == Spec /\ \A p \in Processes : WF_vars(Enqueue(p) \/ Receive(p) \/ Settle(p) \/ Lost(p) \/ Commit(p))

-----------------------------------------------------------------------------
(* What must hold.                                                           *)

\* I1: a head that is free has a hint, and one in flight a timer at the end of its holding.
Reachable ==
    Items # {} => IF First(Items) \in InHand THEN There(Timer(Record.held[First(Items)].end)) \/ Hints # {} ELSE Hints # {}
\* No item is in two hands: the live holdings are those of the record. They are of items that are there.
Exclusion == live = {Of(k, Record.held[k]) : k \in InHand}
HeldItems == InHand \subseteq Items
\* No item is delivered while one before it is in flight, and the tokens of an item grow.
Order == ordered
\* What has landed is there until it is acked, once.
Kept ==
    /\ \A m \in landed \ finished : \E k \in Items : k[3] = m
    /\ \A k \in Items : k[3] \notin finished

Drains == <>[](Items = {} /\ finished = Messages)

Symmetry == Permutations(Workers)
=============================================================================
