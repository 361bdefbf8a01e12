package small

// Config has what a queue can be.
type Config struct {
	Facets []string
	Fair   bool
}

func (c Config) unfair() bool { return !c.Fair }

type lanePlan struct {
	facets []string
	whole  bool
	fair   bool
}

func newLanePlan(c *Config) *lanePlan {
	if len(c.Facets) == 0 { // the question is at home here
		return nil
	}
	return &lanePlan{facets: c.Facets, whole: true}
}

func isHold(lane string) bool { return lane == "hold" }

func (t table) asks(p *lanePlan, c *Config, lane string) bool {
	if p == nil || len(c.Facets) > 0 {
		return isHold(lane)
	}
	p.whole = lane == ""
	q := lanePlan{whole: p.whole, fair: c.Fair}
	return q.whole && (nil != p) && c.Fair && q.fair && t != (table{})
}
