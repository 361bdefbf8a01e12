package sim

import (
	"context"
	"slices"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// changeable are the settings that operators and stewards change; in a queue with retroactive delay the delay, too.
var changeable = []string{"lease", "max_attempts", "max_rate", "shards"}

// openAgain opens a handle of a queue that is there: with Open, or, each second one, with Ensure, which must find the
// queue as it was created, except for settings that an actor may have changed.
func (w *world) openAgain(
	ctx context.Context, db kv.DB, prefix []byte, name string, o layer.Options,
) (*layer.Queue, error) {
	if len(w.handles)%2 == 1 {
		return layer.Open(ctx, db, prefix, name, o)
	}
	q, different, err := layer.Ensure(ctx, db, prefix, name, o)
	for _, d := range different {
		redelayed := d.Setting == "delay" && w.knobs.config.RetroactiveDelay
		if !redelayed && !slices.Contains(changeable, d.Setting) {
			w.violation("ensure: %+v", d)
		}
	}
	if err == nil {
		w.mark("ensured")
	}
	return q, err
}
