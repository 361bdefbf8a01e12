------------------------------- MODULE Group -------------------------------
(* One group: enqueues, claims, settlements and the operator's pause, each   *)
(* as the transaction that the layer runs, with its read conflicts.          *)
EXTENDS Store

CONSTANTS
    Messages,     \* numbers; each is enqueued once, by a producer of its own
    Workers,
    Early,        \* the messages that are kept back until the clock says LastDue
    Max,          \* how many items a claim takes at most
    LastDue,      \* timers are due at 1..LastDue; a clock shows 0..LastDue
    Faults,       \* how many nacks, extends, deaths, overtaken holders and unknown commits
    LateCommits,  \* a commit of unknown outcome may still land while its retry runs
    Pauses,       \* how often an operator pauses and resumes the group
    Removed       \* the guards that are left out, by their names in layer/internal/guard; none in the code

Guard(name, keys) == IF name \in Removed THEN {} ELSE keys
Has(name) == name \notin Removed

VARIABLES
    db,       \* the database
    tx,       \* of each process: its transaction in flight
    late,     \* of each process: a commit of unknown outcome that has neither landed nor vanished
    op,       \* of each process: the operation that is run again after such a commit
    claim,    \* of each worker: the claim that it believes to hold
    clock,    \* the read version, as far as indexes tell it: it grows when an item is written
    claims,   \* the read version, as far as tokens tell it: it grows when a claim is written
    faults,   \* how many more there may be
    pauses,   \* likewise, pauses
    \* What follows is seen by the invariants alone.
    landed,   \* of each message: how often an item was written for it
    finished, \* the messages whose ack has been committed
    earlier,  \* of each message: those that were there when its enqueue began
    live,     \* the claims, each with the end of its lease, that were neither settled nor taken over
    gone,     \* the tokens of claims whose holders died, or were not told of them
    effects,  \* of each process: how often the operation under way has landed
    honest    \* every caller was told what had happened

stored == <<db, tx, late, op, claim, clock, claims, faults, pauses>>
seen == <<landed, finished, earlier, live, gone, effects, honest>>
vars == <<stored, seen>>

Producers == {<<"enqueue", m>> : m \in Messages}
Holders == {<<"worker", w>> : w \in Workers}
Operator == <<"operator", 0>>
Processes == Producers \cup Holders \cup {Operator}

-----------------------------------------------------------------------------
(* Keys: layer/subspace.go.                                                  *)

Indexes == 1..(Cardinality(Messages) + 2)
Item(i, m) == <<"item", i, m>>
AllItems == {Item(i, m) : i \in Indexes, m \in Messages}
Lock == <<"lock">>
Ready(i) == <<"ready", i>>
Timer(d) == <<"timer", d>>
Receipt(p) == <<"receipt", p>>

Items == {k \in DOMAIN db : k[1] = "item"}
Hints == {k \in DOMAIN db : k[1] = "ready"}
Timers == {k \in DOMAIN db : k[1] = "timer"}

Before(a, b) == a[2] < b[2] \/ (a[2] = b[2] /\ a[3] < b[3])
First(s) == CHOOSE k \in s : \A j \in s : j = k \/ Before(k, j)
Last(s) == CHOOSE k \in s : \A j \in s : j = k \/ Before(j, k)
UpTo(k) == {j \in AllItems : ~Before(k, j)}
Between(s) == {j \in AllItems : ~Before(j, First(s)) /\ ~Before(Last(s), j)}
\* The gap that an enqueue may fill that saw the group empty, or begins before its head.
Gap(s) == IF s = {} THEN AllItems ELSE UpTo(First(s))

Nobody == <<"nobody", 0>>
NoEnd == LastDue + 1
NoLock == [kind |-> "none", token |-> 0, owner |-> Nobody, end |-> NoEnd, out |-> {}, marked |-> FALSE]
Held == IF Lock \in DOMAIN db THEN db[Lock] ELSE NoLock
MarkOf(l) == [NoLock EXCEPT !.kind = "pause", !.token = l.token, !.marked = TRUE]
\* The claim that a lock stands for, with the end of its lease.
Lease(l) == IF l.kind = "claim" THEN {[token |-> l.token, owner |-> l.owner, end |-> l.end]} ELSE {}
NoClaim == [token |-> 0, out |-> {}]
NoOp == [what |-> "none"]

-----------------------------------------------------------------------------
(* Transactions. `what` is the operation's, `ids` the items that it finishes, *)
(* `end` the end of the lock that it writes, `starts` and `ends` the leases   *)
(* that begin and end with it, `out` what is delivered.                       *)

Op(what) == [what |-> what, ids |-> {}, end |-> 0]
Tx(o, reads, sets, clears) ==
    [what |-> o.what, op |-> o, reads |-> reads, sets |-> sets, clears |-> clears,
     starts |-> {}, ends |-> {}, out |-> {}]

\* layer/tx.go: onceKnown. An operation leaves a receipt, and a retry looks for it first. It is among the read conflicts of
\* the first attempt too, so that this one, still on its way, and a retry exclude each other.
Looked(p, t) ==
    IF op[p].what = "none" \/ ~Has("receipt") THEN t
    ELSE [t EXCEPT !.reads = @ \cup Guard("receipt-conflict", {Receipt(p)})]
Receipted(p, t, kept) ==
    IF ~Has("receipt") THEN t
    ELSE Looked(p, [t EXCEPT
        !.sets = @ @@ (Receipt(p) :> kept),
        !.reads = @ \cup (IF op[p].what = "none" THEN Guard("receipt-late", {Receipt(p)}) ELSE {})])

\* layer/enqueue.go: readTails, begin, accept.
EnqueueTx(p) ==
    LET m == p[2]
        empty == Items = {}
        tail == Last(Items)
        index == IF empty \/ tail[2] < clock THEN clock ELSE tail[2] + 1
        led == CASE ~empty -> None
                 [] empty /\ m \in Early -> Timer(LastDue) :> "head"
                 [] OTHER -> Ready(index) :> 0
    IN Receipted(p, Tx(Op("enqueue"),
            IF empty THEN {} ELSE Guard("tail", {tail}),
            (Item(index, m) :> 0) @@ led, {}), 0)

\* layer/claim_search.go: readMore. What leads to the group: hints, due timers, or the caller names it.
Candidates(now) ==
    {[key |-> {k}, kind |-> "hint"] : k \in Hints}
    \cup {[key |-> {k}, kind |-> db[k]] : k \in {j \in Timers : j[2] <= now}}
    \cup {[key |-> {}, kind |-> "named"]}

IsEarly(k, now) == k[3] \in Early /\ now < LastDue

\* What a claim takes: from the head on, up to one that is kept back.
Takes(now) ==
    {k \in Items : /\ Cardinality({j \in Items : Before(j, k)}) < Max
                   /\ \A j \in Items : Before(k, j) \/ ~IsEarly(j, now)}

\* layer/group_verdict.go: assess, dispose. The lock that was, l, goes with its timer (layer/group.go: put).
ClaimTx(p, c, now, end) ==
    LET l == Held
        o == Op("claim")
        locked == l.kind # "none"
        expired == locked /\ l.end <= now
        over == IF locked THEN {Timer(l.end)} ELSE {}
        ended == Lease(l)
    IN CASE (locked /\ ~expired) \/ (~locked /\ c.kind \notin {"hint", "head", "named"}) ->
            \* Held by another, or the timer of a lock that is gone: the hint or timer is stale.
            IF c.key = {} THEN NoTx ELSE Tx(o, Guard("stale-lock", {Lock}), None, c.key)
         [] Items = {} ->  \* verdictEmpty
            IF c.key = {} /\ ~locked THEN NoTx
            ELSE [Tx(o, Guard("stale-empty", AllItems) \cup (IF locked THEN Guard("empty-lock", {Lock}) ELSE {}),
                     None, c.key \cup over \cup (IF locked THEN {Lock} ELSE {})) EXCEPT !.ends = ended]
         [] Items # {} /\ expired /\ l.marked ->  \* verdictEnds
            [Tx(o, Guard("mark-lock", {Lock}), Lock :> MarkOf(l), c.key \cup over) EXCEPT !.ends = ended]
         [] Items # {} /\ ~(expired /\ l.marked) /\ IsEarly(First(Items), now) ->  \* layer/group_verdict.go: disposeEarly; layer/group.go: awaitHead
            IF c.key = {} /\ ~locked THEN NoTx
            ELSE [Tx(o, Guard("early-lock", {Lock}) \cup Guard("early-gap", Gap(Items)), Timer(LastDue) :> "head",
                     c.key \cup over \cup (IF locked THEN {Lock} ELSE {})) EXCEPT !.ends = ended]
         [] OTHER ->  \* take, hold
            LET out == Takes(now)
                token == claims + 1
                next == [kind |-> "claim", token |-> token, owner |-> p, end |-> end, out |-> out, marked |-> FALSE]
                at == Ready(First(Items)[2])
            IN Receipted(p, [Tx(o, Guard("claim-lock", {Lock}),
                     (Lock :> next) @@ (IF Has("lock-timer") THEN Timer(end) :> "claim" ELSE None),
                     c.key \cup over \cup (IF c.key = {} THEN {at} ELSE {}))
                     EXCEPT !.starts = Lease(next), !.ends = ended, !.out = out], token)

\* layer/settlement.go: apply. The fencing check.
Mine(p) == Held.kind = "claim" /\ (Held.token = claim[p].token \/ ~Has("token"))

\* layer/settlement.go: take, readNext; layer/settle_back.go, layer/settle_keep.go: carryOut; layer/group.go: leave.
SettleTx(p, o) ==
    LET l == Held
        reads == Guard("settle-lock", {Lock})
        over == {Timer(l.end)}
        left == l.out \ o.ids
        rest == Items \ o.ids
        after == IF l.marked THEN Lock :> MarkOf(l) ELSE None
        unlock == IF l.marked THEN over ELSE over \cup {Lock}
        acked == IF Has("exact-clear") THEN o.ids ELSE o.ids \cup (Between(o.ids) \ l.out)
        holding == Lease([l EXCEPT !.token = claim[p].token, !.owner = p])
        t == CASE o.what = "ack" /\ left # {} ->
                    Tx(o, reads, Lock :> [l EXCEPT !.out = left], acked)
               [] o.what = "ack" /\ left = {} ->
                    Tx(o, reads \cup (CASE l.marked -> {}
                                        [] ~l.marked /\ rest = {} -> Guard("release-empty", AllItems)
                                        [] OTHER -> Guard("release-gap", Gap(rest))),
                       after @@ (IF l.marked \/ rest = {} THEN None ELSE Ready(First(rest)[2]) :> 0),
                       acked \cup unlock)
               [] o.what = "nack" ->
                    Tx(o, reads, after @@ (IF l.marked THEN None ELSE Ready(First(left)[2]) :> 0), unlock)
               [] o.what = "delay" ->
                    IF l.marked THEN Tx(o, reads, after, unlock)
                    ELSE Tx(o, reads, (Lock :> [NoLock EXCEPT !.kind = "delay", !.token = l.token, !.end = o.end])
                                      @@ (Timer(o.end) :> "delay"), over)
               [] o.what = "extend" ->
                    Tx(o, reads, (Lock :> [l EXCEPT !.end = o.end]) @@ (Timer(o.end) :> "claim"), over)
    IN Receipted(p, [t EXCEPT !.ends = IF o.what = "ack" /\ left # {} THEN {} ELSE holding,
                              !.starts = IF o.what = "extend" THEN Lease([l EXCEPT !.end = o.end]) ELSE {}], claim[p].token)

\* layer/group_mark.go: mark, unmark; layer/group.go: free.
PauseTx ==
    LET l == Held
    IN IF l.kind = "claim" THEN Tx(Op("pause"), Guard("mark-group", {Lock}), Lock :> [l EXCEPT !.marked = TRUE], {})
       ELSE Tx(Op("pause"), Guard("mark-group", {Lock}), Lock :> MarkOf(l), IF l.kind = "delay" THEN {Timer(l.end)} ELSE {})
ResumeTx ==
    LET l == Held
    IN IF l.kind = "claim" THEN Tx(Op("resume"), Guard("mark-group", {Lock}), Lock :> [l EXCEPT !.marked = FALSE], {})
       ELSE Tx(Op("resume"),
               Guard("mark-group", {Lock}) \cup Guard(IF Items = {} THEN "free-empty" ELSE "free-gap", Gap(Items)),
               IF Items = {} THEN None ELSE Ready(First(Items)[2]) :> 0, {Lock})

-----------------------------------------------------------------------------
Init ==
    /\ db = None
    /\ tx = [p \in Processes |-> NoTx]
    /\ late = [p \in Processes |-> NoTx]
    /\ op = [p \in Processes |-> NoOp]
    /\ claim = [p \in Holders |-> NoClaim]
    /\ clock = 1 /\ claims = 0 /\ faults = Faults /\ pauses = Pauses
    /\ landed = [m \in Messages |-> 0]
    /\ finished = {} /\ live = {} /\ gone = {} /\ honest = TRUE
    /\ earlier = [m \in Messages |-> {}]
    /\ effects = [p \in Processes |-> 0]

Free(p) == tx[p].what = "none"
\* A new operation; not while an old commit may still land, to keep the model small.
Idle(p) == Free(p) /\ op[p].what = "none" /\ late[p].what = "none"
\* A retry after a commit of unknown outcome.
Again(p, what) == Free(p) /\ op[p].what = what /\ (LateCommits \/ late[p].what = "none")

Fault == faults > 0 /\ faults' = faults - 1

There == {m \in Messages : landed[m] > 0}

\* What a caller is told when its operation has ended. effects counts what landed before.
Tell(p, truth) ==
    /\ honest' = (honest /\ truth)
    /\ effects' = [effects EXCEPT ![p] = 0]
    /\ op' = [op EXCEPT ![p] = NoOp]

(* The attempts. Each reads, at one version, all that its transaction is      *)
(* made of.                                                                  *)
Enqueue(p) ==
    /\ p \in Producers
    /\ \/ Idle(p) /\ landed[p[2]] = 0
       \/ Again(p, "enqueue") /\ (Receipt(p) \notin DOMAIN db)
    /\ tx' = [tx EXCEPT ![p] = EnqueueTx(p)]
    \* "fresh-version": without it the enqueue begins after its read version was taken, see Begin.
    /\ earlier' = IF op[p].what = "none" /\ Has("fresh-version") THEN [earlier EXCEPT ![p[2]] = There] ELSE earlier
    /\ UNCHANGED <<db, late, op, claim, clock, claims, faults, pauses, landed, finished, live, gone, effects, honest>>

Begin(p) ==
    /\ p \in Producers /\ ~Has("fresh-version") /\ ~Free(p)
    /\ earlier' = [earlier EXCEPT ![p[2]] = There]
    /\ UNCHANGED <<stored, landed, finished, live, gone, effects, honest>>

Claim(p) ==
    /\ p \in Holders /\ claim[p].token = 0
    /\ \/ Idle(p)
       \/ Again(p, "claim") /\ Receipt(p) \notin DOMAIN db
    /\ \E now \in 0..LastDue, end \in 1..LastDue : \E c \in Candidates(now) :
        LET t == ClaimTx(p, c, now, end)
            overtaken == \E h \in Holders : claim[h].token # 0 /\ \E e \in t.ends : e.token = claim[h].token
        IN /\ t.what # "none"
           /\ end = 1 \/ t.starts # {}  \* else the end does not matter
           /\ IF overtaken THEN Fault ELSE faults' = faults
           /\ tx' = [tx EXCEPT ![p] = Looked(p, t)]
    /\ UNCHANGED <<db, late, op, claim, clock, claims, pauses, seen>>

Settle(p) ==
    /\ p \in Holders /\ claim[p].token # 0 /\ Mine(p)
    /\ \/ /\ Idle(p)
          /\ \/ \E ids \in SUBSET claim[p].out \ {{}} :
                  /\ ids \subseteq Held.out
                  /\ tx' = [tx EXCEPT ![p] = SettleTx(p, [Op("ack") EXCEPT !.ids = ids])]
                  /\ faults' = faults
             \/ Fault /\ tx' = [tx EXCEPT ![p] = SettleTx(p, Op("nack"))]
             \/ Fault /\ \E end \in 1..LastDue, what \in {"delay", "extend"} :
                  tx' = [tx EXCEPT ![p] = SettleTx(p, [Op(what) EXCEPT !.end = end])]
       \/ /\ op[p].what # "none" /\ Again(p, op[p].what) /\ Receipt(p) \notin DOMAIN db
          /\ op[p].ids \subseteq Held.out
          /\ tx' = [tx EXCEPT ![p] = SettleTx(p, op[p])]
          /\ faults' = faults
    /\ UNCHANGED <<db, late, op, claim, clock, claims, pauses, seen>>

\* The claim is lost: the answer needs no commit.
Lost(p) ==
    /\ p \in Holders /\ claim[p].token # 0 /\ Free(p)
    /\ late[p].what = "none" \/ LateCommits
    /\ op[p].what # "none" => Receipt(p) \notin DOMAIN db
    /\ ~Mine(p) \/ (op[p].what # "none" /\ ~(op[p].ids \subseteq Held.out))
    /\ claim' = [claim EXCEPT ![p] = NoClaim]
    /\ Tell(p, effects[p] = 0)
    /\ UNCHANGED <<db, tx, late, clock, claims, faults, pauses, landed, finished, earlier, live, gone>>

\* A retry of a receive that finds nothing to do.
Nothing(p) ==
    /\ p \in Holders /\ Again(p, "claim") /\ Receipt(p) \notin DOMAIN db
    /\ Hints = {}
    /\ honest' = (honest /\ effects[p] = 0)
    /\ effects' = [effects EXCEPT ![p] = 0]
    \* Its first commit may land after all, see README.md: then the group waits until the lease ends.
    /\ op' = [op EXCEPT ![p] = IF late[p].what = "none" THEN NoOp ELSE Op("given up")]
    /\ UNCHANGED <<db, tx, late, claim, clock, claims, faults, pauses, landed, finished, earlier, live, gone>>

Operate ==
    /\ Free(Operator) /\ pauses > 0
    /\ tx' = [tx EXCEPT ![Operator] = IF Held.marked THEN ResumeTx ELSE PauseTx]
    /\ UNCHANGED <<db, late, op, claim, clock, claims, faults, pauses, seen>>

-----------------------------------------------------------------------------
(* Commits.                                                                  *)

\* What a worker holds after its operation o has had its effect.
Holding(p, o, t) ==
    CASE o.what = "claim" /\ t.starts = {} -> NoClaim
      [] o.what = "claim" /\ t.starts # {} -> [token |-> (CHOOSE c \in t.starts : TRUE).token, out |-> t.out]
      [] o.what = "ack" -> IF claim[p].out = o.ids THEN NoClaim ELSE [claim[p] EXCEPT !.out = @ \ o.ids]
      [] o.what = "extend" -> claim[p]
      [] OTHER -> NoClaim

\* The effect of a transaction that commits. A receipt that nobody will look for any more is gone at once; in the
\* code the handle's next transaction clears it.
Effect(p, t, awaited) ==
    /\ db' = [k \in DOMAIN Apply(db, t) \ (IF awaited THEN {} ELSE {Receipt(p)}) |-> Apply(db, t)[k]]
    /\ clock' = IF t.what = "enqueue" THEN clock + 1 ELSE clock
    /\ claims' = IF t.what = "claim" /\ t.starts # {} THEN claims + 1 ELSE claims
    /\ landed' = IF t.what = "enqueue" THEN [landed EXCEPT ![p[2]] = @ + 1] ELSE landed
    /\ finished' = finished \cup {k[3] : k \in t.op.ids}
    /\ live' = (live \ t.ends) \cup t.starts

Commit(p) ==
    LET t == tx[p]
        others == [tx EXCEPT ![p] = NoTx]
        looked == t.what = "claim" /\ t.starts = {}  \* cleared what was stale, and looks on
    IN /\ t.what # "none"
       /\ Effect(p, t, looked)
       /\ tx' = Without(others, t)
       /\ late' = Without(late, t)
       /\ claim' = IF p \in Holders THEN [claim EXCEPT ![p] = Holding(p, t.op, t)] ELSE claim
       /\ IF looked THEN UNCHANGED <<honest, effects, op>> ELSE Tell(p, effects[p] = 0)
       /\ pauses' = IF t.what = "resume" THEN pauses - 1 ELSE pauses
       /\ UNCHANGED <<faults, earlier, gone>>

\* The commit's outcome is unknown: the operation runs again. (A look that only cleared what was stale does no harm
\* either way, and is not told apart.)
Unknown(p) ==
    /\ tx[p].what # "none" /\ p # Operator /\ (tx[p].what = "claim" => tx[p].starts # {})
    /\ late[p].what = "none" /\ Fault
    /\ late' = [late EXCEPT ![p] = tx[p]]
    /\ op' = [op EXCEPT ![p] = tx[p].op]
    /\ tx' = [tx EXCEPT ![p] = NoTx]
    /\ UNCHANGED <<db, claim, clock, claims, pauses, seen>>

Land(p) ==
    LET t == late[p]
    IN /\ t.what # "none"
       /\ Effect(p, t, op[p].what = t.what)
       /\ tx' = Without(tx, t)
       /\ late' = Without([late EXCEPT ![p] = NoTx], t)
       \* After its caller was told otherwise, it should not have landed.
       /\ honest' = (honest /\ op[p].what # "none")
       /\ effects' = IF op[p].what \in {"none", "given up"} THEN effects ELSE [effects EXCEPT ![p] = @ + 1]
       /\ op' = IF op[p].what = "given up" THEN [op EXCEPT ![p] = NoOp] ELSE op
       /\ gone' = IF op[p].what = "given up" THEN gone \cup {c.token : c \in t.starts} ELSE gone
       /\ UNCHANGED <<claim, faults, pauses, earlier>>

Vanish(p) ==
    /\ late[p].what # "none"
    /\ late' = [late EXCEPT ![p] = NoTx]
    /\ op' = IF op[p].what = "given up" THEN [op EXCEPT ![p] = NoOp] ELSE op
    /\ UNCHANGED <<db, tx, claim, clock, claims, faults, pauses, seen>>

\* layer/tx.go: onceKnown. The receipt of an earlier attempt is found. layer/claim_hold.go: reload.
Found(p) ==
    /\ Free(p) /\ op[p].what \notin {"none", "given up"} /\ Has("receipt") /\ Receipt(p) \in DOMAIN db
    /\ LateCommits \/ late[p].what = "none"
    /\ claim' = CASE op[p].what = "claim" ->
                        [claim EXCEPT ![p] = IF Held.kind = "claim" /\ Held.token = db[Receipt(p)]
                                             THEN [token |-> Held.token, out |-> Held.out] ELSE NoClaim]
                  [] op[p].what = "enqueue" -> claim
                  [] OTHER -> [claim EXCEPT ![p] = Holding(p, op[p], NoTx)]
    /\ Tell(p, effects[p] = 1)
    /\ db' = [k \in DOMAIN db \ {Receipt(p)} |-> db[k]]
    /\ UNCHANGED <<tx, late, clock, claims, faults, pauses, landed, finished, earlier, live, gone>>

\* A worker dies with its claim, or before it knows what became of its last operation; another takes its place.
Die(p) ==
    /\ p \in Holders /\ Free(p) /\ op[p].what # "given up" /\ Fault
    /\ claim[p].token # 0 \/ op[p].what # "none"
    /\ claim' = [claim EXCEPT ![p] = NoClaim]
    /\ gone' = gone \cup ({claim[p].token} \ {0}) \cup (IF Held.owner = p THEN {Held.token} ELSE {})
    /\ op' = [op EXCEPT ![p] = IF late[p].what = "none" THEN NoOp ELSE Op("given up")]
    /\ effects' = [effects EXCEPT ![p] = 0]
    /\ db' = [k \in DOMAIN db \ {Receipt(p)} |-> db[k]]
    /\ UNCHANGED <<tx, late, clock, claims, pauses, landed, finished, earlier, live, honest>>

Next ==
    \/ \E p \in Processes :
        \/ Enqueue(p) \/ Begin(p) \/ Claim(p) \/ Settle(p) \/ Lost(p) \/ Nothing(p)
        \/ Commit(p) \/ Unknown(p) \/ Land(p) \/ Vanish(p) \/ Found(p) \/ Die(p)
    \/ Operate

Spec == Init /\ [][Next]_vars

\* Every process goes on, and what may happen to it need not. Each look of a worker that writes nothing is no step.
Fair ==
    /\ Spec
    /\ \A p \in Processes :
        WF_vars(Enqueue(p) \/ Claim(p) \/ Settle(p) \/ Lost(p) \/ Nothing(p) \/ Commit(p) \/ Found(p) \/ Vanish(p))
    /\ WF_vars(Operate)

-----------------------------------------------------------------------------
(* What must hold. G1 to G3 and I1 are those of the design.                  *)

\* I1: a group with items has a hint, a lock, or its head's timer.
Reachable ==
    Items # {} => \/ Hints # {} \/ Held.kind # "none"
                  \/ First(Items)[3] \in Early /\ \E k \in Timers : db[k] = "head"
LockTimer == Held.kind \in {"claim", "delay"} => Timer(Held.end) \in DOMAIN db
\* What a claim has outstanding is in the group.
LockItems == Held.out \subseteq Items

\* G1: what was committed before another enqueue began has the smaller key, and is not passed over by a claim.
Order ==
    /\ \A a, b \in Items : a[3] \in earlier[b[3]] => Before(a, b)
    /\ \A b \in Held.out : \A a \in Items \ Held.out : a[3] \notin earlier[b[3]]

\* G2: the one live claim is the lock's. It ends by its own settlement, or by who saw this very lease run out.
Exclusion == live = Lease(Held)

\* G3: what has landed is there until it is acked,
Kept == \A m \in There : m \in finished \/ \E k \in Items : k[3] = m
Once ==   \* and lands once, and not again once it is acked;
    /\ \A m \in Messages : landed[m] <= 1
    /\ \A k \in Items : k[3] \notin finished
Honest == honest  \* a caller is told what happened to its operation, whatever became of its commits;
ForSomebody ==   \* and no claim is for nobody but a dead worker.
    Held.kind = "claim" =>
        \/ Held.token \in gone
        \/ claim[Held.owner].token = Held.token
        \/ op[Held.owner].what = "claim"

\* In the end everything is delivered and acked.
Drains == <>[](Items = {} /\ finished = Messages)

Symmetry == Permutations(Workers)

=============================================================================
