------------------------------- MODULE Beat -------------------------------
(* Handles that keep what they have claimed by a heartbeat, and the end of a *)
(* handle whose beat is due. A lane never runs out of items here, so what is *)
(* checked is who has which lane. Whether a beat is due is for anybody's     *)
(* clock to say: of a handle that lives, as often as there may be faults.    *)
EXTENDS Store

CONSTANTS
    Handles,
    Lanes,
    Claims,   \* how many claims there may be
    Numbers,  \* how many beats there may be
    Faults,   \* how many deaths, beats that are left, and beats of the living that somebody's clock takes for due
    Removed   \* the guards that are left out; none in the design

Guard(name, keys) == IF name \in Removed THEN {} ELSE keys
Has(name) == name \notin Removed

VARIABLES
    db,       \* the database
    tx,       \* of each process: its transaction in flight
    beat,     \* of each handle: the number of its beat; 0 = it has none
    mine,     \* of each handle: the claims that it believes to have
    dead,     \* the handles that have died
    numbers, claims, faults,
    \* What follows is seen by the invariants alone.
    live,     \* the claims that were neither settled nor taken over
    over,     \* the numbers whose end has begun
    good      \* no beat was moved after its end had begun, and no end has begun that had not seen the last move

vars == <<db, tx, beat, mine, dead, numbers, claims, faults, live, over, good>>
seen == <<over, good>>

\* A handle beats beside what else it does.
Hearts == {<<"heart", h>> : h \in Handles}
Workers == {<<"work", h>> : h \in Handles}
Processes == Hearts \cup Workers

Lock(l) == <<"lock", l>>
Ready(l) == <<"ready", l>>
Timer(l) == <<"timer", l>>
Row(n) == <<"beat", n>>      \* the beat and its timer, which are written together
Join(n) == <<"join", n>>     \* never there: the right to join the beat
Listed(n, l) == <<"held", n, l>>

There(k) == k \in DOMAIN db
Begun(n) == There(Row(n)) /\ db[Row(n)] = "live"
HeldBy(n) == {l \in Lanes : There(Listed(n, l))}
\* n = 0 is a lease of its own.
Lead(n, l) == IF n = 0 THEN {Timer(l)} ELSE {Listed(n, l)}

Tx(what, reads, sets, clears) ==
    [what |-> what, reads |-> reads, sets |-> sets, clears |-> clears, n |-> 0, lane |-> {}, token |-> 0, stale |-> FALSE]

-----------------------------------------------------------------------------
\* layer/claim_beat.go: moveBeat.
MoveTx(n, anew) ==
    IF ~anew /\ ~Begun(n) THEN NoTx
    ELSE [Tx("move", Guard("beat-move", {Row(n)}), Row(n) :> "live", {}) EXCEPT !.n = n]

\* layer/dequeue.go: take; layer/claim_beat.go: waitJoin. A lane that is free, or whose claim has a lease that has run out.
ClaimTx(h, l) ==
    LET n == IF beat[h] # 0 /\ Begun(beat[h]) THEN beat[h] ELSE 0
        free == ~There(Lock(l)) /\ There(Ready(l))
        lapsed == There(Lock(l)) /\ db[Lock(l)].n = 0 /\ There(Timer(l))
    IN IF ~free /\ ~lapsed THEN NoTx
       ELSE [Tx("claim", {Lock(l)} \cup (IF n = 0 THEN {} ELSE Guard("beat-join", {Join(n)})),
               (Lock(l) :> [token |-> claims + 1, n |-> n])
                   @@ (IF n # 0 /\ ~Has("held") THEN None ELSE [k \in Lead(n, l) |-> 0]),
               {Ready(l)} \cup (IF n = 0 THEN {} ELSE {Timer(l)}))
             EXCEPT !.n = n, !.lane = {l}, !.token = claims + 1]

\* layer/settlement.go: take, finish.
AckTx(c) ==
    IF ~There(Lock(c.lane)) \/ db[Lock(c.lane)].token # c.token THEN NoTx
    ELSE [Tx("ack", {Lock(c.lane)}, Ready(c.lane) :> 0, {Lock(c.lane)} \cup Lead(db[Lock(c.lane)].n, c.lane))
          EXCEPT !.lane = {c.lane}, !.token = c.token]

\* layer/group_beat.go: endBeat. A page is one claim.
EndTx(n) ==
    LET page == HeldBy(n)
        reads == Guard("beat-end", {Row(n)})
        last == page = {} \/ ~Has("beat-page")
        \* Once the end has begun nothing joins any more, and every page sees all that is left.
        all == IF Begun(n) THEN Guard("beat-last", {Listed(n, l) : l \in Lanes}) ELSE {}
    IN IF page = {} THEN {[Tx("end", reads \cup all, None, {Row(n), Join(n)}) EXCEPT !.n = n]}
       ELSE {LET by == There(Lock(l)) /\ db[Lock(l)].n = n
             IN [Tx("end", reads \cup Guard("beat-lock", {Lock(l)}),
                    (IF last THEN None ELSE Row(n) :> "ended")
                        @@ (IF by THEN (Lock(l) :> [db[Lock(l)] EXCEPT !.n = 0]) @@ (Timer(l) :> 0) ELSE None),
                    {Join(n), Listed(n, l)} \cup (IF last THEN {Row(n)} ELSE {}))
                 EXCEPT !.n = n] : l \in page}

-----------------------------------------------------------------------------
Init ==
    /\ db = [k \in {Ready(l) : l \in Lanes} |-> 0]
    /\ tx = [p \in Processes |-> NoTx]
    /\ beat = [h \in Handles |-> 0] /\ mine = [h \in Handles |-> {}] /\ dead = {}
    /\ numbers = 0 /\ claims = 0 /\ faults = Faults
    /\ live = {} /\ over = {} /\ good = TRUE

Idle(p) == tx[p].what = "none" /\ p[2] \notin dead
Fault == faults > 0 /\ faults' = faults - 1
\* Nobody moves the beat any more.
Silent(n) == \A h \in Handles \ dead : beat[h] # n

\* A handle begins a beat, in a transaction of which it has the outcome before it claims.
BeginBeat(h) ==
    /\ Idle(<<"heart", h>>) /\ Idle(<<"work", h>>) /\ beat[h] = 0 /\ numbers < Numbers
    /\ numbers' = numbers + 1
    /\ tx' = [tx EXCEPT ![<<"heart", h>>] = MoveTx(numbers + 1, TRUE)]
    /\ UNCHANGED <<db, beat, mine, dead, claims, faults, live, seen>>

Move(h) ==
    /\ Idle(<<"heart", h>>) /\ beat[h] # 0
    /\ LET t == MoveTx(beat[h], FALSE)
       IN IF t.what = "none" THEN beat' = [beat EXCEPT ![h] = 0] /\ UNCHANGED tx
          ELSE tx' = [tx EXCEPT ![<<"heart", h>>] = t] /\ UNCHANGED beat
    /\ UNCHANGED <<db, mine, dead, numbers, claims, faults, live, seen>>

Claim(h) ==
    /\ Idle(<<"work", h>>) /\ claims < Claims
    /\ \E l \in Lanes : ClaimTx(h, l).what # "none" /\ tx' = [tx EXCEPT ![<<"work", h>>] = ClaimTx(h, l)]
    /\ UNCHANGED <<db, beat, mine, dead, numbers, claims, faults, live, seen>>

Ack(h) ==
    /\ Idle(<<"work", h>>)
    /\ \E c \in mine[h] :
        IF AckTx(c).what = "none" THEN mine' = [mine EXCEPT ![h] = @ \ {c}] /\ UNCHANGED tx
        ELSE tx' = [tx EXCEPT ![<<"work", h>>] = AckTx(c)] /\ UNCHANGED mine
    /\ UNCHANGED <<db, beat, dead, numbers, claims, faults, live, seen>>

End(h) ==
    /\ Idle(<<"work", h>>)
    /\ \E n \in 1..Numbers :
        /\ There(Row(n))
        /\ IF Silent(n) \/ db[Row(n)] = "ended" THEN UNCHANGED faults ELSE Fault
        /\ \E t \in EndTx(n) : tx' = [tx EXCEPT ![<<"work", h>>] = t]
    /\ UNCHANGED <<db, beat, mine, dead, numbers, claims, live, seen>>

\* layer/claim_beat.go: leaveIfUnsettled. What was claimed by the beat is forgotten, or extended by whoever has it.
Leave(h) ==
    /\ Idle(<<"work", h>>) /\ Idle(<<"heart", h>>) /\ beat[h] # 0 /\ Fault
    /\ beat' = [beat EXCEPT ![h] = 0]
    /\ \E left \in {{}, mine[h]} : mine' = [mine EXCEPT ![h] = left]
    /\ UNCHANGED <<db, tx, dead, numbers, claims, live, seen>>

\* A commit under way may still land.
Die(h) ==
    /\ h \notin dead /\ Handles \ dead # {h} /\ Fault
    /\ dead' = dead \cup {h} /\ mine' = [mine EXCEPT ![h] = {}]
    /\ UNCHANGED <<db, tx, beat, numbers, claims, live, seen>>

Commit(p) ==
    LET t == tx[p]
        h == p[2]
        it == [lane |-> CHOOSE l \in t.lane : TRUE, token |-> t.token]
        rest == Without([tx EXCEPT ![p] = NoTx], t)
    IN /\ t.what # "none"
       /\ db' = Apply(db, t)
       /\ tx' = IF t.what # "move" THEN rest
                ELSE [q \in Processes |-> IF rest[q].what = "end" /\ rest[q].n = t.n THEN [rest[q] EXCEPT !.stale = TRUE]
                                          ELSE rest[q]]
       /\ beat' = IF t.what = "move" /\ h \notin dead /\ beat[h] = 0 THEN [beat EXCEPT ![h] = t.n] ELSE beat
       /\ mine' = CASE t.what = "claim" /\ h \notin dead -> [mine EXCEPT ![h] = @ \cup {it}]
                    [] t.what = "ack" -> [mine EXCEPT ![h] = @ \ {it}]
                    [] OTHER -> mine
       /\ claims' = IF t.what = "claim" THEN claims + 1 ELSE claims
       /\ live' = CASE t.what = "claim" -> {c \in live : c.lane # it.lane} \cup {it}
                    [] t.what = "ack" -> live \ {it}
                    [] OTHER -> live
       /\ over' = IF t.what = "end" THEN over \cup {t.n} ELSE over
       /\ good' = (good /\ ~(t.what = "move" /\ t.n \in over) /\ ~(t.what = "end" /\ t.stale))
       /\ UNCHANGED <<dead, numbers, faults>>

Next ==
    \/ \E h \in Handles : BeginBeat(h) \/ Move(h) \/ Claim(h) \/ Ack(h) \/ End(h) \/ Leave(h) \/ Die(h)
    \/ \E p \in Processes : Commit(p)
Spec == Init /\ [][Next]_vars
Fair == Spec /\ (\A h \in Handles : SF_vars(End(h)) /\ WF_vars(Move(h))) /\ \A p \in Processes : SF_vars(Commit(p))

-----------------------------------------------------------------------------
(* What must hold.                                                           *)

\* I1: a lane that nobody has is ready; one that somebody has has what ends the claim if nobody settles it.
Reachable ==
    \A l \in Lanes :
        IF ~There(Lock(l)) THEN There(Ready(l))
        ELSE LET n == db[Lock(l)].n IN \A k \in Lead(n, l) : There(k) /\ (n # 0 => There(Row(n)))
\* What leads to a lane leads to a claim that is there.
Lists == \A n \in 1..Numbers : \A l \in HeldBy(n) : There(Lock(l)) /\ db[Lock(l)].n = n
\* The records name those who have the lanes, and no others.
Exclusion == live = {[lane |-> l, token |-> db[Lock(l)].token] : l \in {k \in Lanes : There(Lock(k))}}
\* A handle that was ended does not go on beating, and none is ended that has just beaten.
Told == good

\* What a handle had that nobody beats for is free for others.
Ends == <>[](\A l \in Lanes : There(Lock(l)) /\ db[Lock(l)].n # 0 => ~Silent(db[Lock(l)].n))
=============================================================================
