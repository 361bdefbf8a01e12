package main

import (
	"context"
	"errors"

	"fdbfifo/worker"
)

// worker books orders until ctx ends; then each handler finishes the order that it is at, and the rest of its claims
// is given back. Beside that it serves what each process serves.
func (p *process) worker(ctx context.Context) error {
	w, err := p.newWorker()
	if err != nil {
		return err
	}
	w.Start()
	err = p.serve(ctx, p.operator())
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	return errors.Join(err, w.Stop(stopping))
}

func (p *process) newWorker() (*worker.Worker, error) {
	return worker.New(p.shop.queue, worker.HandleTx(p.shop.book), worker.Options{Lease: p.lease})
}
