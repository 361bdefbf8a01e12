package kv

import "context"

// Done returns a future whose result is there already: for engines that read without waiting.
func Done[T any](v T, err error) Future[T] { return &done[T]{v, err} }

type done[T any] struct {
	v   T
	err error
}

func (d *done[T]) Wait(context.Context) (T, error) { return d.v, d.err }
func (d *done[T]) Ready() bool                     { return true }
func (d *done[T]) Cancel()                         {}
