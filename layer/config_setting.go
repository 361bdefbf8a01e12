package layer

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// setting describes a field of Config: its name, its texts, and how it is read, written and checked.
type setting struct {
	name    string
	allowed string                             // what its text may be, for people
	help    string                             // what it is for, for people
	sparse  bool                               // left out of the stored document while it is the default
	fixed   bool                               // fixed at creation: no other value may replace the stored one
	lasting string                             // the text of a value that no other may replace; empty = there is none
	value   func(c *Config) any                // returns the value as it is in JSON
	parse   func(c *Config, text string) error // sets the field from a text; limits are left to settle
	settle  func(c *Config) error              // puts the default in place of zero, and checks the limits
}

// leftOut returns the setting, left out of the stored document while it is the default: so the document of a queue that
// does not use the setting does not change, and earlier versions can read it.
func (s setting) leftOut() setting {
	s.sparse = true
	return s
}

// fixedAtCreation returns the setting, fixed at creation: Configure refuses another value, and Ensure leaves the stored
// one. The help says so.
func (s setting) fixedAtCreation() setting {
	s.fixed, s.help = true, s.help+"; "+fixedText
	return s
}

// fixedText says of a setting that it is fixed at creation.
const fixedText = "fixed at creation"

// neverTakenBack returns the setting, one of whose values is never taken back: once the value with the given text is
// stored, no other value may replace it. The help says so.
func (s setting) neverTakenBack(text string) setting {
	s.lasting, s.help = text, s.help+"; never taken back"
	return s
}

// text returns the text of the setting's value in c.
func (s setting) text(c *Config) string { return fmt.Sprint(s.value(c)) }

// keeps returns why no other value may replace the stored one, for people; empty = another may. The parameter stored is
// the text of the stored value.
func (s setting) keeps(stored string) string {
	switch {
	case s.fixed:
		return fixedText
	case s.lasting != "" && s.lasting == stored:
		return "which is never taken back"
	}
	return ""
}

// mendable reports whether Ensure may replace the stored value. The parameter stored is the text of this value. Shards
// is not mendable, because only an operator raises it.
func (s setting) mendable(stored string) bool {
	return s.name != settingShards && s.keeps(stored) == ""
}

// settingNamed returns the setting with the name. Errors: *UnknownSettingError.
func settingNamed(name string) (setting, error) {
	for _, s := range settings {
		if s.name == name {
			return s, nil
		}
	}
	return setting{}, &UnknownSettingError{Names: []string{name}}
}

// isDefault reports whether c has the setting's default: the zero value, or the value that zero means.
func (s setting) isDefault(c *Config) bool {
	var usual Config
	if s.value(c) == s.value(&usual) {
		return true
	}
	return s.settle(&usual) == nil && s.value(c) == s.value(&usual)
}

// intSetting describes a setting whose field is a number from low to high. The parameter otherwise is the default, for
// which a field of 0 stands.
func intSetting(name string, field func(*Config) *int, otherwise, low, high int, help string) setting {
	s := setting{name: name, allowed: fmt.Sprintf("%d to %d", low, high), help: help}
	s.value = func(c *Config) any { return *field(c) }
	s.parse = func(c *Config, text string) error {
		n, err := strconv.Atoi(text)
		if err != nil {
			return &ValueError{What: name, Got: text, Allowed: s.allowed}
		}
		*field(c) = n
		return nil
	}
	s.settle = func(c *Config) error {
		f := field(c)
		if *f == 0 {
			*f = otherwise
		}
		if *f < low || *f > high {
			return &LimitError{What: name, Got: int64(*f), Min: int64(low), Max: int64(high)}
		}
		return nil
	}
	return s
}

// attemptsSetting describes a setting whose field is a number of attempts. A field of 0 means the default, and
// Unlimited no bound. As text and in JSON "0" means Unlimited.
func attemptsSetting(name string, field func(*Config) *int, help string) setting {
	s := intSetting(name, field, defaultMaxAttempts, 0, maxMaxAttempts, help)
	s.value = func(c *Config) any {
		switch n := *field(c); n {
		case Unlimited:
			return 0
		case 0:
			return defaultMaxAttempts
		default:
			return n
		}
	}
	parse, settle := s.parse, s.settle
	s.parse = func(c *Config, text string) error {
		err := parse(c, text)
		switch f := field(c); {
		case err != nil:
			return err
		case *f == 0:
			*f = Unlimited
		case *f < 0:
			return &ValueError{What: name, Got: text, Allowed: s.allowed}
		}
		return nil
	}
	s.settle = func(c *Config) error {
		if *field(c) == Unlimited {
			return nil
		}
		return settle(c)
	}
	return s
}

// boolSetting describes a setting whose field is true or false; the default is false. There is nothing to settle: no
// default to put in, and no bound to check.
func boolSetting(name string, field func(*Config) *bool, help string) setting {
	s := setting{name: name, allowed: "true, false", help: help}
	s.value = func(c *Config) any { return *field(c) }
	s.parse = func(c *Config, text string) error {
		v, err := strconv.ParseBool(text)
		if err != nil {
			return &ValueError{What: name, Got: text, Allowed: s.allowed}
		}
		*field(c) = v
		return nil
	}
	s.settle = func(*Config) error { return nil }
	return s
}

// durationSetting describes a setting whose field is a duration from low to high. The parameter otherwise is the
// default, for which a field of 0 stands. As text and in JSON a duration is, for example, "30s".
func durationSetting(
	name string, field func(*Config) *time.Duration, otherwise, low, high time.Duration, help string,
) setting {
	s := setting{name: name, allowed: durationText(low) + " to " + durationText(high), help: help}
	s.value = func(c *Config) any { return durationText(*field(c)) }
	s.parse = func(c *Config, text string) error {
		d, err := time.ParseDuration(text)
		if err != nil {
			return &ValueError{What: name, Got: text, Allowed: "a duration, " + s.allowed}
		}
		*field(c) = d
		return nil
	}
	s.settle = func(c *Config) error {
		f := field(c)
		if *f == 0 {
			*f = otherwise
		}
		if *f < low || *f > high {
			return durationLimit(name, *f, low, high)
		}
		return nil
	}
	return s
}

// eitherSetting describes a setting whose field is true or false, and whose text is one of two words. The parameter yes
// is the word for true. The parameter no is the word for false, the default.
func eitherSetting(name string, field func(*Config) *bool, no, yes, help string) setting {
	s := setting{name: name, allowed: no + ", " + yes, help: help, settle: func(*Config) error { return nil }}
	s.value = func(c *Config) any {
		if *field(c) {
			return yes
		}
		return no
	}
	s.parse = func(c *Config, text string) error {
		if text != no && text != yes {
			return &ValueError{What: name, Got: text, Allowed: s.allowed}
		}
		*field(c) = text == yes
		return nil
	}
	return s
}

// choiceSetting describes a setting whose field has one of a few values. They are the numbers from 0 on, in the order
// of their names; the default is 0.
func choiceSetting[T ~int](name string, field func(*Config) *T, names []string, help string) setting {
	s := setting{name: name, allowed: strings.Join(names, ", "), help: help}
	s.value = func(c *Config) any { return nameOf(*field(c), names) }
	s.parse = func(c *Config, text string) error {
		i := slices.Index(names, text)
		if i < 0 {
			return &ValueError{What: name, Got: text, Allowed: s.allowed}
		}
		*field(c) = T(i)
		return nil
	}
	s.settle = func(c *Config) error {
		if v := *field(c); v < 0 || int(v) >= len(names) {
			return &ValueError{What: name, Got: nameOf(v, names), Allowed: s.allowed}
		}
		return nil
	}
	return s
}

// unknownSettings returns an *UnknownSettingError that names the members of a JSON object, in order; nil if there are
// none.
func unknownSettings[V any](members map[string]V) error {
	if len(members) == 0 {
		return nil
	}
	return &UnknownSettingError{Names: slices.Sorted(maps.Keys(members))}
}
