package small

import "fdbfifo/kv"

func top(q *Queue, tx kv.Tx) { q.Two(tx) }

type generic[T any] struct{ value T }

func (g generic[T]) get() T { return g.value }
