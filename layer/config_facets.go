package layer

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"fdbfifo/layer/internal/lanes"
)

// A queue may be received from by template: see docs/lanes.md. A facet is a header that every message of the queue must
// have. A view is a set of facets, and a template gives a value for each facet of a view. The items of a group that
// agree with a template are a lane. Example: Facets {"state"} and Views "*; state" let one worker receive
// Where{"state": "NEW"} while another receives the same group's items Where{"state": "PAID"}; the view "*" is for
// receives of whole groups.

// Limits of facets.
const (
	// maxFacets bounds Config.Facets.
	maxFacets = 4
	// maxViews bounds the views of Config.Views, not counting "*", because each view costs a key per message.
	maxViews = 3
	// MaxFacetSize bounds the name and the value of a facet, because values are in keys.
	MaxFacetSize = 64 // bytes of UTF-8
)

// Names of settings that errors name.
const (
	settingFacets = "facets"
	settingViews  = "views"

	settingUnordered = "unordered"
	settingLeasePer  = "lease_per"
)

// unnamed are characters that a facet's name must not have, in addition to separators.
const unnamed = "=?"

// facetsSetting is the setting for Config.Facets, the names of the facets. Like viewsSetting it is left out of the
// stored document while empty, so that the document of a queue without facets does not change.
func facetsSetting(help string) setting {
	s := setting{name: settingFacets, allowed: "names of headers, with commas", help: help, sparse: true}
	s.value = func(c *Config) any { return strings.Join(c.Facets, ",") }
	s.parse = func(c *Config, text string) error {
		var facets []string
		if text != "" {
			facets = splitTrimmed(text, ",")
		}
		if checkFacets(facets) != nil {
			return &ValueError{What: settingFacets, Got: text, Allowed: s.allowed}
		}
		c.Facets = facets
		return nil
	}
	s.settle = func(c *Config) error { return checkFacets(c.Facets) }
	return s
}

// viewsSetting is the setting for Config.Views, the views as one text.
func viewsSetting(help string) setting {
	s := setting{name: settingViews, allowed: "sets of facets; *", help: help, sparse: true}
	s.value = func(c *Config) any { return c.Views }
	s.parse = func(c *Config, text string) error {
		if strings.ContainsAny(text, unnamed) {
			return &ValueError{What: settingViews, Got: text, Allowed: s.allowed}
		}
		c.Views = text
		return nil
	}
	s.settle = func(c *Config) error { return c.settleViews() }
	return s
}

// unorderedSetting is the setting for Config.Unordered, left out of the stored document while it is false. It refuses
// the settings that do not go with it (ErrOptions).
func unorderedSetting(help string) setting {
	s := boolSetting(settingUnordered, func(c *Config) *bool { return &c.Unordered }, help).leftOut()
	s.settle = func(c *Config) error {
		switch {
		case !c.Unordered:
			return nil
		case len(c.Facets) > 0:
			return fmt.Errorf("%w: %s in a queue with facets", ErrOptions, settingUnordered)
		case !c.MaxRate.isNone():
			return fmt.Errorf("%w: max_rate in a queue that is %s", ErrOptions, settingUnordered)
		case c.OnFailure == HaltGroup:
			return fmt.Errorf("%w: on_failure=halt_group in a queue that is %s", ErrOptions, settingUnordered)
		}
		return nil
	}
	return s
}

// The texts of the setting lease_per.
const leasePerClaim, leasePerItem = "claim", "item"

// leasePerSetting is the setting for Config.LeasePerItem, left out of the stored document while it is false. It refuses
// the settings that do not go with it (ErrOptions).
func leasePerSetting(help string) setting {
	field := func(c *Config) *bool { return &c.LeasePerItem }
	s := eitherSetting(settingLeasePer, field, leasePerClaim, leasePerItem, help).leftOut()
	s.settle = func(c *Config) error {
		if !c.LeasePerItem {
			return nil
		}
		beside := ""
		switch {
		case len(c.Facets) > 0:
			beside = settingFacets
		case c.Unordered:
			beside = settingUnordered
		case !c.MaxRate.isNone():
			beside = "max_rate"
		case c.OnFailure == HaltGroup:
			beside = "on_failure=halt_group"
		default:
			return nil
		}
		return fmt.Errorf("%w: %s in a queue with %s=%s, which is without facets, unordered, max_rate and halt_group",
			ErrOptions, beside, settingLeasePer, leasePerItem)
	}
	return s
}

// planOf returns the plan of a queue with the given configuration: it says which lanes an item is in, and which claims
// exclude each other. See lanes.Plan. The views of c must have been checked.
func planOf(c *Config) lanes.Plan {
	s := lanes.Settings{Facets: c.Facets, Unordered: c.Unordered, PerItem: c.LeasePerItem}
	for _, text := range splitTrimmed(c.Views, ";") {
		s.Views = append(s.Views, lanes.View{Text: text, Facets: splitTrimmed(text, ",")})
	}
	return lanes.New(s)
}

// splitTrimmed splits text at each separator, and removes the spaces around each part. An empty text has one part,
// which is empty.
func splitTrimmed(text, separator string) []string {
	parts := strings.Split(text, separator)
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

// checkFacets returns the error for a list of facets that no queue may have: too many, twice the same, or a name that
// is too long, not UTF-8, or has a character that texts of views and templates need.
func checkFacets(facets []string) error {
	if len(facets) > maxFacets {
		return &LimitError{What: settingFacets, Unit: "names", Got: int64(len(facets)), Max: maxFacets}
	}
	for i, name := range facets {
		switch {
		case len(name) > MaxFacetSize:
			return &LimitError{What: "facet", Unit: "bytes", Got: int64(len(name)), Min: 1, Max: MaxFacetSize}
		case !utf8.ValidString(name):
			return fmt.Errorf("%w: facet %q", ErrInvalidUTF8, name)
		case name == "" || strings.ContainsAny(name, ",;* \t\n"+unnamed):
			return &ValueError{What: "facet", Got: name, Allowed: "a name without , ; * = ? and spaces"}
		case slices.Contains(facets[:i], name):
			return &ValueError{What: settingFacets, Got: name + " twice", Allowed: "each name once"}
		}
	}
	return nil
}

// reservedHeaders begin the names of headers which the library sets itself, see ReplayHeader.
const reservedHeaders = "fdbfifo-"

// checkNewFacets returns a *ValueError for reserved names of facets, in a queue that is about to be created. Earlier
// versions allowed such names, and a queue that has one continues with it. If the facet is ReplayHeader, a replay keeps
// the message's own value.
func (c *Config) checkNewFacets() error {
	for _, name := range c.Facets {
		if strings.HasPrefix(name, reservedHeaders) {
			return &ValueError{What: "facet", Got: name, Allowed: "a name that does not begin with " + reservedHeaders}
		}
	}
	return nil
}

// settleViews checks c.Views, and sets c.Views to the same views with the facets of each in the order of c.Facets. So
// equal views have equal texts. c.Facets must have been checked. Errors: *ValueError, *LimitError for too many views,
// and ErrOptions if a queue with facets has a MaxRate.
func (c *Config) settleViews() error {
	if len(c.Facets) == 0 {
		if c.Views != "" {
			return &ValueError{What: settingViews, Got: c.Views, Allowed: "none in a queue without facets"}
		}
		return nil
	}
	if !c.MaxRate.isNone() {
		return fmt.Errorf("%w: max_rate in a queue with facets", ErrOptions)
	}
	var all []string
	for _, text := range splitTrimmed(c.Views, ";") {
		view, err := c.settleView(text)
		if err != nil {
			return err
		}
		if slices.Contains(all, view) {
			return &ValueError{What: settingViews, Got: view + " twice", Allowed: "each view once"}
		}
		all = append(all, view)
	}
	n := len(all)
	if slices.Contains(all, lanes.WholeView) {
		n--
	}
	if n > maxViews {
		return &LimitError{What: settingViews, Unit: "views beside *", Got: int64(n), Max: maxViews}
	}
	c.Views = strings.Join(all, "; ")
	return nil
}

// settleView returns the text of one view with its facets in the order of c.Facets; "*" stays. A *ValueError means that
// the view has a name twice, or one that is no facet.
func (c *Config) settleView(text string) (string, error) {
	if text == lanes.WholeView {
		return text, nil
	}
	names := splitTrimmed(text, ",")
	var ordered []string
	for _, facet := range c.Facets {
		if slices.Contains(names, facet) {
			ordered = append(ordered, facet)
		}
	}
	if len(ordered) != len(names) {
		return "", &ValueError{
			What: settingViews, Got: text, Allowed: "* and sets of the facets " + strings.Join(c.Facets, ", "),
		}
	}
	return strings.Join(ordered, ","), nil
}

// Template says which items of a group to receive: those whose facets have these values. A template names exactly the
// facets of one of the queue's views; nil stands for whole groups, the view "*". Two templates intersect, so that they
// exclude each other in a group, unless a facet in both has different values.
type Template map[string]string

// ParseTemplate reads the text of a template, "state=NEW,region=EU"; "*" is nil, whole groups. Errors: *ValueError,
// also for an empty text.
func ParseTemplate(text string) (Template, error) {
	if text == lanes.WholeView {
		return nil, nil
	}
	t := make(Template)
	for _, part := range splitTrimmed(text, ",") {
		name, value, ok := strings.Cut(part, "=")
		if _, twice := t[name]; !ok || twice {
			return nil, wrap("parse template", &ValueError{What: "template", Got: text, Allowed: "FACET=VALUE,…"})
		}
		t[name] = value
	}
	return t, nil
}

// String returns the template as text, the facets in the order of their names; "*" for whole groups.
func (t Template) String() string {
	if t == nil {
		return lanes.WholeView
	}
	parts := make([]string, 0, len(t))
	for _, name := range slices.Sorted(maps.Keys(t)) {
		parts = append(parts, name+"="+t[name])
	}
	return strings.Join(parts, ",")
}

// TemplateError: a template does not fit to the queue's views. TemplateError wraps ErrOptions. Nothing was done.
type TemplateError struct {
	Template Template
	Views    string // what the queue has, as Config.Views; "" = the queue has no facets
}

func (e *TemplateError) Error() string {
	if e == nil {
		return "<nil>"
	}
	words := e.Template.String()
	if words == "" {
		words = "{}"
	}
	if e.Views == "" {
		return fmt.Sprintf("template %s: the queue has no facets", words)
	}
	return fmt.Sprintf("template %s is of no view of the queue: allowed are %s", words, e.Views)
}

// Unwrap returns ErrOptions.
func (e *TemplateError) Unwrap() error { return ErrOptions }

// checkFacetValue returns the error for a value that the facet name cannot have, in a message or a template:
// *LimitError for its size, ErrInvalidUTF8.
func checkFacetValue(name, value string) error {
	if len(value) < 1 || len(value) > MaxFacetSize {
		return &LimitError{
			What: fmt.Sprintf("facet %q", name), Unit: "bytes", Got: int64(len(value)), Min: 1, Max: MaxFacetSize,
		}
	}
	if !utf8.ValidString(value) {
		return fmt.Errorf("%w: facet %q", ErrInvalidUTF8, name)
	}
	return nil
}

// checkFacetsOf returns the error for the headers of a message that lack a facet of the queue, or have a value that the
// facet cannot have: that of checkFacetValue.
func (c *Config) checkFacetsOf(headers map[string]string) error {
	for _, name := range c.Facets {
		if err := checkFacetValue(name, headers[name]); err != nil {
			return err
		}
	}
	return nil
}

// CheckFacets returns an error unless t is a template to which a message can be advanced (Delivery.AdvanceTo): each
// name in t must be a facet of the queue, with a value that a message may have, and t must have at least one. Errors:
// *ValueError, *LimitError, ErrInvalidUTF8.
func (c Config) CheckFacets(t Template) error {
	known := 0
	for _, name := range c.Facets {
		value, ok := t[name]
		if !ok {
			continue
		}
		if err := checkFacetValue(name, value); err != nil {
			return err
		}
		known++
	}
	if known == len(t) && known > 0 {
		return nil
	}
	allowed := "values of the queue's facets: " + cmp.Or(strings.Join(c.Facets, ", "), "none")
	return &ValueError{What: "facets", Got: t.String(), Allowed: allowed}
}
