package console

import (
	"context"

	"fdbfifo/layer"
)

func (c *Console) holdersPage(ctx context.Context, in input) (any, error) {
	return ask(c, ctx, in.queue(), "holders", func(ctx context.Context, q *layer.Queue) (layer.HoldersPage, error) {
		return q.Admin().Holders(ctx)
	})
}
