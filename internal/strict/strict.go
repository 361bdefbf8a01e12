// Package strict reads JSON in which each member has one meaning. Package encoding/json takes the last of two members
// of the same name, and takes "statement" for Statement. So a text can say one thing to its author and another thing to
// the program: {"Statement": DENY, "Statement": ALLOW}.
package strict

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"unicode/utf16"
	"unicode/utf8"
)

// Whole reports whether a decoder keeps every character of a text of JSON. It does not keep bytes that are no UTF-8,
// and escapes of half a surrogate pair. Each becomes U+FFFD, so two different texts could become the same.
func Whole(text []byte) bool {
	if !utf8.Valid(text) {
		return false
	}
	for {
		i := bytes.IndexByte(text, '\\')
		if i < 0 {
			return true
		}
		text = text[i:]
		if r := escaped(text); utf16.IsSurrogate(r) {
			if text = text[len(`\uXXXX`):]; utf16.DecodeRune(r, escaped(text)) == utf8.RuneError {
				return false
			}
		}
		text = text[min(2, len(text)):] // the rest of an escape is plain
	}
}

// escaped returns the character that text begins with as an escape, such as \uD83D; 0 = it begins with none.
func escaped(text []byte) rune {
	if len(text) < len(`\uXXXX`) || text[0] != '\\' || text[1] != 'u' {
		return 0
	}
	n, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	if err != nil {
		return 0
	}
	return rune(n)
}

// Unmarshal is json.Unmarshal, and returns an error if an object anywhere in the text has a member twice, or a member
// whose name differs from a field of v only in case. It then leaves v as it is.
func Unmarshal(text []byte, v any) error {
	if err := check(text, v); err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}

// UnmarshalKnown is Unmarshal, and also returns an error if there is a member for which v has no field. After that
// error v has the members before it.
func UnmarshalKnown(text []byte, v any) error {
	if err := check(text, v); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(v)
}

func check(text []byte, v any) error {
	if !json.Valid(text) {
		return json.Unmarshal(text, new(json.RawMessage))
	}
	return (&reader{text: text}).value(reflect.TypeOf(v))
}

// reader walks through a valid text of JSON. It decodes nothing but the names of members.
type reader struct {
	text []byte
	at   int // of the next byte
}

// next returns the next byte that means anything, and stays before it.
func (r *reader) next() byte {
	for bytes.IndexByte([]byte(" \t\r\n,:"), r.text[r.at]) >= 0 {
		r.at++
	}
	return r.text[r.at]
}

// quoted reads a text, and returns it with its quotes.
func (r *reader) quoted() []byte {
	begin := r.at
	for r.at++; r.text[r.at] != '"'; r.at++ {
		if r.text[r.at] == '\\' {
			r.at++
		}
	}
	r.at++
	return r.text[begin:r.at]
}

// value reads a value that is decoded as a t. nil = as any.
func (r *reader) value(t reflect.Type) error {
	switch r.next() {
	case '{':
		return r.object(t)
	case '[':
		t = element(t)
		for r.at++; r.next() != ']'; {
			if err := r.value(t); err != nil {
				return err
			}
		}
		r.at++
	case '"':
		r.quoted()
	default:
		for r.at < len(r.text) && bytes.IndexByte([]byte(" \t\r\n,]}"), r.text[r.at]) < 0 {
			r.at++
		}
	}
	return nil
}

func (r *reader) object(t reflect.Type) error {
	fields, of := fieldsOf(t), element(t)
	seen := make(map[string]bool)
	for r.at++; r.next() != '}'; {
		var name string
		if err := json.Unmarshal(r.quoted(), &name); err != nil {
			return err
		}
		if seen[name] {
			return fmt.Errorf("the member %.200q is there twice", name)
		}
		seen[name] = true
		if fields != nil {
			of = fields[name]
			for field := range fields {
				if of == nil && strings.EqualFold(field, name) {
					return fmt.Errorf("the member %.200q is written %q", name, field)
				}
			}
		}
		if err := r.value(of); err != nil {
			return err
		}
	}
	r.at++
	return nil
}

// plain returns the type that a value is decoded as. It returns nil if that is any, or if the type decodes itself.
func plain(t reflect.Type) reflect.Type {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return nil
	}
	return t
}

// element returns the type of the elements of a list, or of the members of a map.
func element(t reflect.Type) reflect.Type {
	if t = plain(t); t == nil {
		return nil
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Array, reflect.Map:
		return t.Elem()
	}
	return nil
}

// known has the fields of structs that were asked for: map[string]reflect.Type by reflect.Type.
var known sync.Map

// fieldsOf returns the types of a struct's fields by their names in JSON. It returns nil if t is no struct.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	if t = plain(t); t == nil || t.Kind() != reflect.Struct {
		return nil
	}
	if fields, ok := known.Load(t); ok {
		return fields.(map[string]reflect.Type)
	}
	fields := make(map[string]reflect.Type)
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" && f.Anonymous || name == "-" || !f.IsExported() {
			continue
		}
		if name == "" {
			name = f.Name
		}
		fields[name] = f.Type
	}
	known.Store(t, fields)
	return fields
}
