------------------------------- MODULE Lanes -------------------------------
(* One group of a queue with facets: enqueues, claims by template and of the *)
(* whole group, advances in place, and hints that are put aside under a lock. *)
(* What lanes share with groups alone (marks, early heads, late commits and   *)
(* receipts) is Group.tla; who waits by template is Waits.tla.                *)
EXTENDS Store

CONSTANTS
    Messages,     \* numbers; each is enqueued once, by a producer of its own
    Stored,       \* those that are there from the beginning
    Paid,         \* those that begin in the state paid; the others are new
    Workers,
    Views,        \* of "whole", "state" and "region"
    ByWhole, ByState, ByRegion,  \* the workers that receive by these views
    Max,          \* how many items a claim takes at most
    LastDue,      \* leases and delays end at 1..LastDue; a clock shows 0..LastDue
    Faults,       \* how many nacks, delays, extends, deaths, overtaken holders and unknown commits
    Moves,        \* how many advances
    Operations,   \* how many times an operator cancels an item, edits its state, or sweeps hints
    Removed       \* the guards that are left out, by their names in layer/internal/guard; none in the code

Guard(name, keys) == IF name \in Removed THEN {} ELSE keys
Has(name) == name \notin Removed

VARIABLES
    db,       \* the database
    tx,       \* of each process: its transaction in flight
    asked,    \* of each worker: the claim whose commit has landed, and whose outcome it does not know
    claim,    \* of each worker: the claim that it believes to hold
    clock,    \* the read version, as far as indexes tell it
    claims,   \* the read version, as far as tokens tell it
    faults, moves, operations,  \* how many more there may be
    \* What follows is seen by the invariants alone.
    landed,   \* the messages that were enqueued
    finished, \* the messages whose ack, or cancel, has been committed
    live,     \* the claims, each with the end of its lease, that were neither settled nor ended by others
    last,     \* of each lane: its last token
    ordered   \* no claim has passed over what its lane had before

stored == <<db, tx, asked, claim, clock, claims, faults, moves, operations>>
seen == <<landed, finished, live, last, ordered>>
vars == <<stored, seen>>

Producers == {<<"enqueue", m>> : m \in Messages \ Stored}
Holders == {<<"worker", w>> : w \in Workers}
Operator == <<"operator", 0>>
Processes == Producers \cup Holders \cup {Operator}

-----------------------------------------------------------------------------
(* Lanes: layer/internal/lanes. The facets are state and region; all items are *)
(* of one region. An item's value is its state.                              *)

States == {"new", "paid"}
Whole == <<"whole", "*">>
Lane(view) == CASE view = "whole" -> {Whole} [] view = "state" -> {<<view, s>> : s \in States} [] OTHER -> {<<view, "EU">>}
Lanes == UNION {Lane(v) : v \in Views}
Asks(p) ==
    {l \in Lanes : CASE l[1] = "whole" -> p[2] \in ByWhole [] l[1] = "state" -> p[2] \in ByState [] OTHER -> p[2] \in ByRegion}

\* layer/internal/lanes/plan.go: Intersect. Unless a facet of both differs.
Intersect(a, b) == a[1] # b[1] \/ a = b
\* layer/internal/lanes/plan.go: LanesOf.
LanesOf(state) == {l \in Lanes : l[1] = "state" => l[2] = state}

-----------------------------------------------------------------------------
(* Keys: layer/subspace.go, layer/store_lane.go.                             *)

Indexes == 1..(Cardinality(Messages) + 2)
Item(i, m) == <<"item", i, m>>
AllItems == {Item(i, m) : i \in Indexes, m \in Messages}
\* Of the whole group the item itself is the key that says: it is in the lane.
LaneItem(l, k) == IF l = Whole THEN k ELSE <<"lane", l, k[2], k[3]>>
AllOf(l) == {LaneItem(l, k) : k \in AllItems}
Lock(l) == <<"lock", l>>
Ready(l, i) == <<"ready", l, i>>
Timer(l, d) == <<"timer", l, d>>
Aside(holder, l, i) == <<"kept", holder, l, i>>
AllAside(holder) == {Aside(holder, l, i) : l \in Lanes, i \in Indexes}
\* A write conflict on the lock of the whole group, which every claim reads, is a key of its own here.
Excluding == <<"excluding">>

There(k) == k \in DOMAIN db
Items == {k \in DOMAIN db : k[1] = "item"}
In(l) == {k \in Items : There(LaneItem(l, k))}
Hints(l) == {k \in DOMAIN db : k[1] = "ready" /\ k[2] = l}
Timers(l) == {k \in DOMAIN db : k[1] = "timer" /\ k[2] = l}
Under(holder) == {k \in DOMAIN db : k[1] = "kept" /\ k[2] = holder}

Before(a, b) == a[2] < b[2] \/ (a[2] = b[2] /\ a[3] < b[3])
First(s) == CHOOSE k \in s : \A j \in s : j = k \/ Before(k, j)
Last(s) == CHOOSE k \in s : \A j \in s : j = k \/ Before(j, k)

NoLock == [kind |-> "none", token |-> 0, owner |-> <<"nobody", 0>>, end |-> LastDue + 1, out |-> {}]
Held(l) == IF There(Lock(l)) THEN db[Lock(l)] ELSE NoLock
\* The claim that a lock stands for, with the end of its lease.
Lease(l, r) == IF r.kind = "claim" THEN {[lane |-> l, token |-> r.token, owner |-> r.owner, end |-> r.end]} ELSE {}
\* The locks that may share an item with a lane. layer/internal/lanes/plan.go: Excluding.
Over(l) ==
    {Excluding} \cup (IF l # Whole /\ ~Has("over-lock") THEN {Lock(l)} ELSE {Lock(o) : o \in {o \in Lanes : Intersect(o, l)}})
NoClaim == [lane |-> Whole, token |-> 0, out |-> {}]

-----------------------------------------------------------------------------
(* Transactions. `sees` is what the lane has at the read version of a claim.  *)

Part(reads, sets, clears) ==
    [reads |-> reads, sets |-> sets, clears |-> clears, starts |-> {}, ends |-> {}, out |-> {}, sees |-> {}, done |-> {}]
Nothing == Part({}, None, {})
\* The sets of b win over the clears of a, as b comes later in the transaction.
Plus(a, b) ==
    [reads |-> a.reads \cup b.reads, sets |-> b.sets @@ [k \in DOMAIN a.sets \ b.clears |-> a.sets[k]],
     clears |-> a.clears \cup b.clears, starts |-> a.starts \cup b.starts, ends |-> a.ends \cup b.ends,
     out |-> a.out \cup b.out, sees |-> a.sees \cup b.sees, done |-> a.done \cup b.done]
Tx(what, part) == part @@ [what |-> what]

\* layer/tx_wake.go: readKept, putBackKept. Of a lock that is released, or ends earlier than it did.
PutBack(l) ==
    Part(Guard("kept", AllAside(l)), [r \in {Ready(k[3], k[4]) : k \in Under(l)} |-> 0], Under(l))

\* layer/group.go: put; layer/tx_wake.go: unlock. Of a record that goes.
Unlock(l) == [Plus(Part({}, None, {Lock(l), Timer(l, Held(l).end)}), PutBack(l)) EXCEPT !.ends = Lease(l, Held(l))]

\* The hints put aside have their timers at the old end.
Moved(l, end) == IF end < Held(l).end /\ Has("kept-end") THEN PutBack(l) ELSE Nothing

\* layer/group.go: leave. rest is what the transaction leaves in the lane.
Leave(l, rest, empty) ==
    IF rest = {} THEN Part(Guard(empty, AllOf(l)), None, {}) ELSE Part({}, Ready(l, First(rest)[2]) :> 0, {})

\* layer/enqueue.go: joinLanes; layer/enqueue.go: begin.
EnqueueTx(m) ==
    LET state == IF m \in Paid THEN "paid" ELSE "new"
        tail == Last(Items)
        index == IF Items = {} \/ tail[2] < clock THEN clock ELSE tail[2] + 1
        k == Item(index, m)
        full == {l \in LanesOf(state) : In(l) # {}}
    IN Tx("enqueue", Part(
            UNION {Guard(IF l = Whole THEN "tail" ELSE "lane-tail", {LaneItem(l, Last(In(l)))}) : l \in full},
            [j \in {k} \cup {LaneItem(l, k) : l \in LanesOf(state)} \cup {Ready(l, index) : l \in LanesOf(state) \ full} |->
                IF j = k THEN state ELSE 0], {}))

\* layer/claim_search.go: readMore. What leads to the lane: hints, due timers, or the caller names the group.
Candidates(l, now) ==
    {[key |-> {k}, kind |-> "hint", index |-> k[3]] : k \in Hints(l)}
    \cup {[key |-> {k}, kind |-> db[k][1], index |-> db[k][2]] : k \in {j \in Timers(l) : j[3] <= now}}
    \cup {[key |-> {}, kind |-> "named", index |-> 0]}

Takes(l) == {k \in In(l) : Cardinality({j \in In(l) : Before(j, k)}) < Max}

\* layer/group_verdict.go: assess, dispose; layer/group_lane.go: assessOthers.
ClaimTx(p, l, c, now, end) ==
    LET r == Held(l)
        locked == r.kind # "none"
        over == locked /\ r.end <= now
        others == {o \in Lanes \ {l} : Intersect(o, l) /\ There(Lock(o))}
        ended == {o \in others : Held(o).end <= now}
        lead == Part({}, None, c.key)
    IN CASE (locked /\ ~over) \/ (~locked /\ c.kind \in {"claim", "delay"}) ->  \* verdictStale
            IF c.key = {} THEN {} ELSE {Tx("look", Plus(Part(Guard("stale-lock", {Lock(l)}), None, {}), lead))}
         [] In(l) = {} ->  \* verdictEmpty
            IF c.key = {} /\ ~locked THEN {}
            ELSE {Tx("look", Plus(Part(Guard("stale-empty", AllOf(l)) \cup (IF locked THEN Guard("empty-lock", {Lock(l)}) ELSE {}),
                                       None, c.key), IF locked THEN Unlock(l) ELSE Nothing))}
         [] ended # {} ->  \* verdictOther. layer/group_lane.go: endOther. The lane is not taken over.
            {Tx("look", Plus(Part(Guard("other-lock", {Lock(o)}), None, {}),
                             Plus(Leave(o, In(o), "free-empty"), Unlock(o)))) : o \in ended}
         [] others # {} ->  \* verdictExcluded. layer/group_lane.go: disposeExcluded.
            IF c.key = {} THEN {}
            ELSE {Tx("look", Plus(lead, Part(Guard("kept-lock", {Lock(o)}),
                        (Aside(o, l, c.index) :> 0)
                        @@ (IF Has("kept-timer") THEN Timer(l, Held(o).end) :> <<"head", c.index>> ELSE None), {})))
                  : o \in others}
         [] OTHER ->  \* layer/dequeue.go: take, hold
            LET out == Takes(l)
                token == IF claims < r.token THEN r.token + 1 ELSE claims + 1
                next == [kind |-> "claim", token |-> token, owner |-> p, end |-> end, out |-> out]
                head == First(In(l))[2]
            IN {Tx("claim", [Plus(Part(Guard("claim-lock", Over(l)),
                    (Lock(l) :> next) @@ (Timer(l, end) :> <<"claim", head>>),
                    c.key \cup (IF locked THEN {Timer(l, r.end)} ELSE {}) \cup (IF c.key = {} THEN {Ready(l, head)} ELSE {})),
                    IF locked THEN Moved(l, end) ELSE Nothing)
                    EXCEPT !.starts = Lease(l, next), !.ends = Lease(l, r), !.out = out, !.sees = {k \in Items : l \in LanesOf(db[k])}])}

\* layer/settlement.go: apply. The fencing check.
Mine(p) == LET r == Held(claim[p].lane) IN r.kind = "claim" /\ (r.token = claim[p].token \/ ~Has("token"))

Fenced(l) == Part(Guard("settle-lock", {Lock(l)}), None, {})
\* What the end of the claim of l says of it, though it may by now be another's.
Mending(p, part) ==
    [part EXCEPT !.ends = IF @ = {} THEN {} ELSE Lease(claim[p].lane, [Held(claim[p].lane) EXCEPT !.token = claim[p].token, !.owner = p])]

\* layer/settlement.go: take, readNext, finish. ids leave the claim; gone are the keys by which they leave their lanes.
EndTx(l, ids, gone, rest) ==
    LET r == Held(l)
    IN IF r.out \ ids # {} THEN Plus(Fenced(l), Part({}, Lock(l) :> [r EXCEPT !.out = @ \ ids], gone))
       ELSE Plus(Fenced(l), Plus(Part({}, None, gone), Plus(Leave(l, rest, "release-empty"), Unlock(l))))

AckTx(p, ids) ==
    LET l == claim[p].lane
        gone == ids \cup UNION {{LaneItem(o, k) : o \in LanesOf(db[k])} : k \in ids}
    IN Tx("ack", [Mending(p, EndTx(l, ids, gone, In(l) \ ids)) EXCEPT !.out = ids, !.done = {k[3] : k \in ids}])

\* layer/advance.go: rewrite. k joins lanes by its new state, the transaction having left them as they are.
Join(k, state) ==
    LET joins == LanesOf(state) \ LanesOf(db[k])
        tails == {l \in joins : In(l) # {}}
        firsts == {l \in joins : In(l) = {} \/ Before(k, First(In(l)))}
    IN Part(UNION {Guard("lane-tail", {LaneItem(l, Last(In(l)))}) : l \in tails},
            [j \in {k} \cup {LaneItem(l, k) : l \in joins} \cup {Ready(l, k[2]) : l \in firsts} |-> IF j = k THEN state ELSE 0], {})

\* layer/advance.go: leaveLanes, conclude.
AdvanceTx(p, k, state) ==
    LET l == claim[p].lane
        gone == {LaneItem(o, k) : o \in LanesOf(db[k]) \ LanesOf(state)}
        rest == In(l) \ (IF l \in LanesOf(state) THEN {} ELSE {k})
    IN Tx("advance", [Plus(Mending(p, EndTx(l, {k}, gone, rest)), Join(k, state)) EXCEPT !.out = {k}])

\* layer/settle_back.go, layer/settle_keep.go: carryOut.
NackTx(p) ==
    LET l == claim[p].lane IN Tx("nack", Mending(p, Plus(Fenced(l), Plus(Part({}, Ready(l, First(Held(l).out)[2]) :> 0, {}), Unlock(l)))))
HoldTx(p, what, end) ==
    LET l == claim[p].lane
        r == Held(l)
        next == IF what = "extend" THEN [r EXCEPT !.end = end] ELSE [NoLock EXCEPT !.kind = "delay", !.token = r.token, !.end = end]
    IN Tx(what, [Mending(p, [Plus(Fenced(l), Plus(Part({}, None, {Timer(l, r.end)}),
            Plus(Part({}, (Lock(l) :> next) @@ (Timer(l, end) :> <<IF what = "extend" THEN "claim" ELSE "delay", First(r.out)[2]>>), {}),
                 Moved(l, end)))) EXCEPT !.ends = Lease(l, r)])
        EXCEPT !.starts = Lease(l, next)])

\* layer/admin_items.go: waitingItem, takeOut, edit. Of an item that nobody has; state "" cancels it.
WaitingTx(k, state) ==
    LET gone == {LaneItem(o, k) : o \in LanesOf(db[k]) \ LanesOf(state)} \cup (IF state = "" THEN {k} ELSE {})
        heads == {l \in LanesOf(db[k]) : First(In(l)) = k /\ (There(Lock(l)) => state = "" /\ Held(l).kind = "delay")}
        rest(l) == In(l) \ (IF state # "" /\ l \in LanesOf(state) THEN {} ELSE {k})
        free == [l \in heads |-> Plus(Leave(l, rest(l), "free-empty"), IF There(Lock(l)) THEN Unlock(l) ELSE Nothing)]
        exclude == Guard(IF state = "" THEN "take-out-exclude" ELSE "edit-exclude", {Excluding})
        base == Part(Guard("item-lock", {Lock(l) : l \in Lanes}) \cup UNION {free[l].reads : l \in heads},
                     [j \in UNION {DOMAIN free[l].sets : l \in heads} |-> 0],
                     gone \cup exclude \cup UNION {free[l].clears : l \in heads})
    IN IF state = "" THEN Tx("cancel", [base EXCEPT !.done = {k[3]}]) ELSE Tx("edit", Plus(base, Join(k, state)))

\* layer/job_sweep.go: replaceStale.
SweepTx(l, h) ==
    IF In(l) = {} THEN Tx("sweep", Part(Guard("stale-empty", AllOf(l)), None, {h}))
    ELSE LET right == Ready(l, First(In(l))[2])
         IN Tx("sweep", Part(Guard("stale-empty", {right}), IF There(right) THEN None ELSE right :> 0, {h}))

-----------------------------------------------------------------------------
Init ==
    /\ db = [k \in UNION {{Item(m, m)} \cup {LaneItem(l, Item(m, m)) : l \in LanesOf(IF m \in Paid THEN "paid" ELSE "new")} : m \in Stored}
                   \cup UNION {{Ready(l, CHOOSE m \in Stored : (l[1] = "state" => (l[2] = "paid" <=> m \in Paid))
                                   /\ \A n \in Stored : (l[1] = "state" => (l[2] = "paid" <=> n \in Paid)) => m <= n)}
                               : l \in {l \in Lanes : \E m \in Stored : l[1] = "state" => (l[2] = "paid" <=> m \in Paid)}}
             |-> IF k[1] = "item" THEN (IF k[3] \in Paid THEN "paid" ELSE "new") ELSE 0]
    /\ tx = [p \in Processes |-> NoTx]
    /\ asked = [p \in Holders |-> NoClaim]
    /\ claim = [p \in Holders |-> NoClaim]
    /\ clock = Cardinality(Stored) + 1 /\ claims = 0 /\ faults = Faults /\ moves = Moves /\ operations = Operations
    /\ landed = Stored /\ finished = {} /\ live = {} /\ ordered = TRUE
    /\ last = [l \in Lanes |-> 0]

Free(p) == tx[p].what = "none"
Fault == faults > 0 /\ faults' = faults - 1

(* The attempts.                                                             *)
Enqueue(p) ==
    /\ p \in Producers /\ Free(p) /\ p[2] \notin landed
    /\ tx' = [tx EXCEPT ![p] = EnqueueTx(p[2])]
    /\ UNCHANGED <<db, asked, claim, clock, claims, faults, moves, operations, seen>>

Claim(p, l) ==
    /\ p \in Holders /\ Free(p) /\ claim[p].token = 0 /\ asked[p].token = 0 /\ l \in Asks(p)
    /\ \E now \in 0..LastDue, end \in 1..LastDue : \E c \in Candidates(l, now) : \E t \in ClaimTx(p, l, c, now, end) :
        LET overtaken == \E h \in Holders : claim[h].token # 0 /\ \E e \in t.ends : e.owner = h /\ e.lane = claim[h].lane
        IN /\ end = 1 \/ t.starts # {}  \* else the end does not matter
           /\ IF overtaken THEN Fault ELSE faults' = faults
           /\ tx' = [tx EXCEPT ![p] = t]
    /\ UNCHANGED <<db, asked, claim, clock, claims, moves, operations, seen>>

Settle(p) ==
    /\ p \in Holders /\ Free(p) /\ claim[p].token # 0 /\ Mine(p)
    /\ \/ \E ids \in SUBSET (claim[p].out \cap Held(claim[p].lane).out) \ {{}} :
            tx' = [tx EXCEPT ![p] = AckTx(p, ids)] /\ UNCHANGED <<faults, moves>>
       \/ /\ moves > 0 /\ moves' = moves - 1 /\ faults' = faults
          /\ \E k \in claim[p].out \cap Held(claim[p].lane).out : \E s \in States \ {db[k]} : tx' = [tx EXCEPT ![p] = AdvanceTx(p, k, s)]
       \/ Fault /\ moves' = moves /\ tx' = [tx EXCEPT ![p] = NackTx(p)]
       \/ Fault /\ moves' = moves /\ \E end \in 1..LastDue, what \in {"extend", "delay"} : tx' = [tx EXCEPT ![p] = HoldTx(p, what, end)]
    /\ UNCHANGED <<db, asked, claim, clock, claims, operations, seen>>

\* The claim is lost: the answer needs no commit.
Lost(p) ==
    /\ p \in Holders /\ Free(p) /\ claim[p].token # 0 /\ (~Mine(p) \/ claim[p].out \cap Held(claim[p].lane).out = {})
    /\ claim' = [claim EXCEPT ![p] = NoClaim]
    /\ UNCHANGED <<db, tx, asked, clock, claims, faults, moves, operations, seen>>

InHand == UNION {Held(l).out : l \in Lanes}
Operate ==
    /\ Free(Operator) /\ operations > 0 /\ operations' = operations - 1
    /\ \/ \E k \in Items \ InHand : \E state \in ({""} \cup States) \ {db[k]} : tx' = [tx EXCEPT ![Operator] = WaitingTx(k, state)]
       \/ \E l \in Lanes : \E h \in Hints(l) :
            /\ In(l) # {} => h # Ready(l, First(In(l))[2])
            /\ tx' = [tx EXCEPT ![Operator] = SweepTx(l, h)]
    /\ UNCHANGED <<db, asked, claim, clock, claims, faults, moves, seen>>

-----------------------------------------------------------------------------
(* Commits.                                                                  *)

Holding(p, t) ==
    CASE t.what = "claim" -> LET c == CHOOSE c \in t.starts : TRUE IN [lane |-> c.lane, token |-> c.token, out |-> t.out]
      [] t.what \in {"ack", "advance"} -> IF claim[p].out \subseteq t.out THEN NoClaim ELSE [claim[p] EXCEPT !.out = @ \ t.out]
      [] t.what \in {"nack", "delay"} -> NoClaim
      [] OTHER -> claim[p]

Effect(p, t) ==
    LET started == IF t.what = "claim" THEN t.starts ELSE {}
    IN /\ db' = Apply(db, t)
       /\ tx' = Without([tx EXCEPT ![p] = NoTx], t)
       /\ clock' = IF t.what = "enqueue" THEN clock + 1 ELSE clock
       /\ claims' = IF started = {} THEN claims ELSE LET c == CHOOSE c \in started : TRUE IN IF c.token > claims THEN c.token ELSE claims
       /\ landed' = IF t.what = "enqueue" THEN landed \cup {p[2]} ELSE landed
       /\ finished' = finished \cup t.done
       /\ live' = (live \ t.ends) \cup t.starts
       /\ last' = [l \in Lanes |-> IF \E c \in started : c.lane = l THEN (CHOOSE c \in started : TRUE).token ELSE last[l]]
       /\ ordered' = (ordered /\ \A c \in started : c.token > last[c.lane]
                        /\ \A a \in t.sees \ t.out : a \in Items => \A b \in t.out : Before(b, a))

Commit(p) ==
    /\ tx[p].what # "none"
    /\ Effect(p, tx[p])
    /\ claim' = IF p \in Holders THEN [claim EXCEPT ![p] = Holding(p, tx[p])] ELSE claim
    /\ UNCHANGED <<asked, faults, moves, operations>>

\* A claim's commit has landed, and its worker is not told. (One that did not land is as one in conflict.)
Unknown(p) ==
    /\ p \in Holders /\ tx[p].what = "claim" /\ Fault
    /\ Effect(p, tx[p])
    /\ asked' = [asked EXCEPT ![p] = Holding(p, tx[p])]
    /\ UNCHANGED <<claim, moves, operations>>

\* layer/claim_hold.go: reload. The receipt of the claim is found.
Found(p) ==
    /\ p \in Holders /\ asked[p].token # 0
    /\ LET r == Held(asked[p].lane)
       IN claim' = [claim EXCEPT ![p] = IF r.kind = "claim" /\ (r.token = asked[p].token \/ ~Has("reload-token"))
                                        THEN [asked[p] EXCEPT !.token = r.token, !.out = r.out] ELSE NoClaim]
    /\ asked' = [asked EXCEPT ![p] = NoClaim]
    /\ UNCHANGED <<db, tx, clock, claims, faults, moves, operations, seen>>

\* A worker dies with its claim; another takes its place.
Die(p) ==
    /\ p \in Holders /\ Free(p) /\ claim[p].token # 0 /\ Fault
    /\ claim' = [claim EXCEPT ![p] = NoClaim]
    /\ UNCHANGED <<db, tx, asked, clock, claims, moves, operations, seen>>

Next ==
    \/ \E p \in Processes :
        \/ Enqueue(p) \/ Settle(p) \/ Lost(p) \/ Commit(p) \/ Unknown(p) \/ Found(p) \/ Die(p)
        \/ \E l \in Lanes : Claim(p, l)
    \/ Operate

Spec == Init /\ [][Next]_vars

\* Each worker goes on asking by each of its templates, whatever it finds by the others.
Fair ==
    /\ Spec
    /\ \A p \in Processes : WF_vars(Enqueue(p) \/ Settle(p) \/ Lost(p) \/ Commit(p) \/ Found(p))
    /\ \A p \in Holders : \A l \in Lanes : SF_vars(Claim(p, l))

-----------------------------------------------------------------------------
(* What must hold.                                                           *)

\* I1: each lane with items has a hint, or its own lock, or a hint put aside under an intersecting lane's lock, and a timer
\* of its own not later than the end of that lock.
Reachable ==
    \A l \in Lanes : In(l) # {} =>
        \/ Hints(l) # {} \/ There(Lock(l))
        \/ \E o \in Lanes : There(Lock(o)) /\ (\E k \in Under(o) : k[3] = l) /\ (\E t \in Timers(l) : t[3] <= Held(o).end)
LockTimer == \A l \in Lanes : There(Lock(l)) => There(Timer(l, Held(l).end))
\* A hint is put aside under a lock that is there, of a lane that intersects.
KeptUnderLock == \A l \in Lanes : \A k \in Under(l) : There(Lock(l)) /\ Intersect(l, k[3])
\* The keys of the lanes are those of the items' facets.
LaneKeys ==
    /\ \A k \in Items, l \in Lanes : There(LaneItem(l, k)) <=> l \in LanesOf(db[k])
    /\ \A k \in {j \in DOMAIN db : j[1] = "lane"} : Item(k[3], k[4]) \in Items
\* What a claim has outstanding is in its lane.
LockItems == \A l \in Lanes : Held(l).out \subseteq In(l)

\* G1: a claim takes the first of its lane, and its tokens grow.
Order == ordered

\* G2: no two locks could share an item; and the live claims are those of the locks.
Disjoint == \A a, b \in Lanes : a # b /\ Intersect(a, b) => ~(There(Lock(a)) /\ There(Lock(b)))
Exclusion == live = UNION {Lease(l, Held(l)) : l \in Lanes}

\* No two workers take the same claim for their own.
Hands == \A p, q \in Holders : p # q /\ claim[p].token # 0 => <<claim[p].lane, claim[p].token>> # <<claim[q].lane, claim[q].token>>

\* G3: what has landed is there until it is acked, once.
Kept ==
    /\ \A m \in landed \ finished : \E k \in Items : k[3] = m
    /\ \A k \in Items : k[3] \notin finished

\* In the end everything is delivered and acked.
Drains == <>[](Items = {} /\ finished = Messages)

Symmetry == Permutations(Workers)
=============================================================================
