package layer

// Admin is the operator's side of a queue, beside the programs which use the queue: look inside, change waiting
// messages, pause, repair, configure. Admin is a view of the handle: copy an Admin freely, use an Admin from several
// goroutines. Admin ends with the handle's Close. All calls work while the queue is in use.
type Admin struct{ q *Queue }

// Admin returns the operator's side of the handle.
func (q *Queue) Admin() Admin { return Admin{q: q} }
