------------------------------- MODULE Store -------------------------------
(* A transaction as FoundationDB has it: it reads everything at one version, *)
(* which is the step that builds it, and commits in a later step, if no key  *)
(* that it declares a read conflict on was written between the two. What it  *)
(* reads at snapshot declares none. A clear counts as a write also where     *)
(* there was nothing.                                                        *)
(*                                                                           *)
(* The database is a function from the keys that are there to their values.  *)
(* A key is a tuple that begins with its name in layer/subspace.go.          *)
EXTENDS Naturals, FiniteSets, TLC

None == [k \in {} |-> 0]

\* No transaction: of the fields that the modules add, `what` says so.
NoTx == [what |-> "none"]

Written(t) == DOMAIN t.sets \cup t.clears

\* The clears come before the sets, as in the code wherever both touch a key.
Apply(d, t) ==
    [k \in (DOMAIN d \ t.clears) \cup DOMAIN t.sets |->
        IF k \in DOMAIN t.sets THEN t.sets[k] ELSE d[k]]

\* What is left of the transactions in flight s once t has committed. One that
\* is in conflict can have no effect any more; it is taken away at once.
Without(s, t) ==
    [p \in DOMAIN s |->
        IF s[p].what # "none" /\ s[p].reads \cap Written(t) # {} THEN NoTx ELSE s[p]]
=============================================================================
