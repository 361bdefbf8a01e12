package layer

// Admin is what an operator does with a queue, beside the programs that use it: look into it, change what waits, pause,
// repair, configure. It is a view of the handle and as good as that: copy it, use it from several goroutines, and let
// it end with the handle's Close. Its calls work while the queue is in use.
type Admin struct{ q *Queue }

// Admin returns the operator's side of the handle.
func (q *Queue) Admin() Admin { return Admin{q: q} }
