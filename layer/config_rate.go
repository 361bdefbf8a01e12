package layer

import (
	"strconv"
	"strings"
	"time"
)

// Rate is a number of items per time. The zero value means none.
//
// As text, in a configuration too, a Rate reads "10/s", "100/m", "5/h" or "3/10s"; none reads "0".
type Rate struct {
	Count int           // 1 to MaxRateCount
	Per   time.Duration // MinRatePer to MaxRatePer, in whole milliseconds
}

// Limits of a rate.
const (
	MaxRateCount = 1_000_000
	MinRatePer   = time.Second
	MaxRatePer   = 24 * time.Hour
)

// rateUnits are the units which may stand without a number: "10/s" means 10 per 1s.
var rateUnits = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}

// rateAllowed says what the text of a rate may be.
const rateAllowed = "COUNT/TIME, as 10/s or 3/10s; 0"

// ParseRate reads the text of a rate. Limits are not checked. Errors: *ValueError.
func ParseRate(text string) (Rate, error) {
	if text == "0" {
		return Rate{}, nil
	}
	bad := wrap("parse rate", &ValueError{What: "rate", Got: text, Allowed: rateAllowed})
	count, per, ok := strings.Cut(text, "/")
	n, err := strconv.Atoi(count)
	if !ok || err != nil {
		return Rate{}, bad
	}
	d, ok := rateUnits[per]
	if !ok {
		if d, err = time.ParseDuration(per); err != nil {
			return Rate{}, bad
		}
	}
	return Rate{Count: n, Per: d}, nil
}

// String returns the text for ParseRate.
func (r Rate) String() string {
	if r == (Rate{}) {
		return "0"
	}
	per := durationText(r.Per)
	for unit, d := range rateUnits {
		if r.Per == d {
			per = unit
		}
	}
	return strconv.Itoa(r.Count) + "/" + per
}

func (r Rate) isNone() bool { return r == Rate{} }

func (r Rate) check(name string) error {
	switch {
	case r.isNone():
		return nil
	case r.Count < 1 || r.Count > MaxRateCount:
		return &LimitError{What: name, Unit: "items", Got: int64(r.Count), Min: 1, Max: MaxRateCount}
	case r.Per < MinRatePer || r.Per > MaxRatePer:
		return durationLimit("time of "+name, r.Per, MinRatePer, MaxRatePer)
	case r.Per%time.Millisecond != 0:
		return &ValueError{What: "time of " + name, Got: r.Per.String(), Allowed: "whole milliseconds"}
	}
	return nil
}

// burst is how many items may start at once: a second's worth, but at least 1.
func (r Rate) burst() int64 { return max(1, int64(r.Count)*int64(time.Second)/int64(r.Per)) }

// rateSetting describes a setting whose field is a rate; the default is none.
func rateSetting(name string, field func(*Config) *Rate, help string) setting {
	s := setting{name: name, allowed: rateAllowed, help: help}
	s.value = func(c *Config) any { return field(c).String() }
	s.parse = func(c *Config, text string) error {
		r, err := ParseRate(text)
		if err != nil {
			return &ValueError{What: name, Got: text, Allowed: s.allowed}
		}
		*field(c) = r
		return nil
	}
	s.settle = func(c *Config) error { return field(c).check(name) }
	return s
}
