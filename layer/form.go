package layer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Form says which message a value of type T is: its body, its group and its facets. A nested path is a function: func(b
// Booking) string { return b.Flight.Number }. A Form is a Codec, too. It is a plain value: copy it, and change or add a
// field, for a form that is nearly the same.
type Form[T any] struct {
	Body   Codec[T]                  // turns a value into the body, and back; nil = JSON
	Group  func(T) string            // the group of a value; nil = the default group, ""
	Facets map[string]func(T) string // by name: each facet of the queue, and no other; nil = the queue has none
}

// Check returns an error unless the form has a function for each facet that the configuration c of a queue has, and for
// no other. It does not look at Body and Group. Example: call f.Check(q.Config()) when a program starts.
//
// Errors: *ValueError for a facet without a function and for a function without a facet; *LimitError, *ValueError and
// ErrInvalidUTF8 for a name that can be no facet.
func (f Form[T]) Check(c Config) error {
	names := slices.Sorted(maps.Keys(f.Facets))
	if err := checkFacets(names); err != nil {
		return wrap("check form", err)
	}
	allowed := "the queue's facets: " + cmp.Or(strings.Join(c.Facets, ", "), "none")
	for _, name := range names {
		if !slices.Contains(c.Facets, name) {
			return wrap("check form", &ValueError{What: "facet", Got: name, Allowed: allowed})
		}
	}
	for _, name := range c.Facets {
		if f.Facets[name] == nil {
			return wrap("check form", &ValueError{
				What: "facets", Got: strings.Join(names, ", "), Allowed: allowed + "; without a function is " + name,
			})
		}
	}
	return nil
}

// Template returns the facets of a value by name, as the headers of its message have them. In a queue with a view of
// all facets this is also the template that matches the message. nil = the form has no facets.
func (f Form[T]) Template(v T) Template {
	if len(f.Facets) == 0 {
		return nil
	}
	t := make(Template, len(f.Facets))
	for name, of := range f.Facets {
		if of != nil {
			t[name] = of(v)
		}
	}
	return t
}

// Message makes the message of a value, for Enqueue. Errors: the codec's; *LimitError and ErrInvalidUTF8 for the value
// of a facet.
func (f Form[T]) Message(v T) (Message, error) {
	body, err := f.Encode(v)
	if err != nil {
		return Message{}, wrap("message", err)
	}
	m := Message{Body: body, Headers: f.Template(v)}
	if f.Group != nil {
		m.Group = f.Group(v)
	}
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		if err := checkFacetValue(name, m.Headers[name]); err != nil {
			return Message{}, wrap("message", err)
		}
	}
	return m, nil
}

// Encode makes a body of a value, by the codec Body.
func (f Form[T]) Encode(v T) ([]byte, error) {
	body, err := f.codec().Encode(v)
	if err != nil {
		return nil, fmt.Errorf("encode body: %w", err)
	}
	return body, nil
}

// Decode makes a value of a body, by the codec Body.
func (f Form[T]) Decode(body []byte) (T, error) { return f.codec().Decode(body) }

// codec returns Body, or JSON if Body is nil.
func (f Form[T]) codec() Codec[T] {
	if f.Body == nil {
		return JSON[T]()
	}
	return f.Body
}

// Codec turns values into bodies and back.
type Codec[T any] interface {
	Encode(T) ([]byte, error)
	Decode([]byte) (T, error)
}

// JSON is the codec of encoding/json.
func JSON[T any]() Codec[T] { return jsonCodec[T]{} }

type jsonCodec[T any] struct{}

// Encode and Decode are those of a Codec, by package json.
func (jsonCodec[T]) Encode(v T) ([]byte, error) { return json.Marshal(v) }

func (jsonCodec[T]) Decode(body []byte) (v T, err error) {
	err = json.Unmarshal(body, &v)
	return v, err
}
