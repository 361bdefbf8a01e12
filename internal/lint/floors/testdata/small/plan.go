package small

import "fdbfifo/internal/lint/floors/testdata/small/internal/lanes"

// Config has what a queue can be.
type Config struct {
	Facets []string
	Fair   bool
}

func (c Config) unfair() bool { return !c.Fair }

type retro struct{ on, off bool }

func (t table) asks(p lanes.Plan, c *Config, lane string) bool {
	if p.IsPlain() || len(c.Facets) > 0 {
		return lanes.IsHold(lane)
	}
	r := retro{on: c.Fair, off: p.Intersect("a", "b")}
	r.on = lane == ""
	item, _ := lanes.HoldOf(lane)
	_, ok := lanes.HoldOf(item)
	return r.on && len(p.Facets()) > 0 && c.Fair && r.off && ok && t != (table{})
}
