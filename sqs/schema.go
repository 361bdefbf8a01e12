package sqs

import (
	"bytes"
	"cmp"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/traits"
)

// tree is a request or an answer, between the wire and the structs of shapes.go. It has the types of encoding/json:
// map[string]any, []any, string, json.Number, bool.
type tree = any

// wireName is the name of a member in the Query protocol.
func wireName(s *smithy.Schema, name string) string {
	if t, ok := smithy.SchemaDirectTrait[*traits.XMLName](s); ok {
		return t.Name
	}
	return name
}

// params are the parameters of a Query request, by the parts of their names. Example: Attribute.1.Name=DelaySeconds
// has the value DelaySeconds at Attribute, 1, Name.
type params struct {
	name  string // of the parameter up to here, such as Attribute.1
	value *string
	parts map[string]*params
	bad   *error // of a parameter that has no place in the request; all params of a request share it
}

// maxParts is one more than the greatest depth of the service's parameter names.
const maxParts = 8

func newParams(form url.Values) *params {
	root := &params{bad: new(error)}
	for name, values := range form {
		at := root
		for _, part := range strings.SplitN(name, ".", maxParts) {
			if at.parts == nil {
				at.parts = make(map[string]*params)
			}
			if at.parts[part] == nil {
				at.parts[part] = &params{name: strings.TrimPrefix(at.name+"."+part, "."), bad: at.bad}
			}
			at = at.parts[part]
		}
		at.value = &values[0]
	}
	return root
}

// refuse notes that the parameter has no place in the request.
func (p *params) refuse() {
	*p.bad = cmp.Or(*p.bad, fmt.Errorf("the parameter %q has no value, or no number from 1 in its list", p.name))
}

// entries are the entries of a list or a map: the parts named 1, 2, 3, …, in order. Gaps are allowed. An entry without
// a number is the only one, and has the members of a shape: older clients send AttributeName=All, or
// Attribute.Name=DelaySeconds. AttributeName= is an empty list. Each other part is refused. It could be a message of a
// batch whose client counts from 0.
func (p *params) entries(of *smithy.Schema) (all []*params) {
	known := make(map[string]bool)
	for name, member := range of.Members() {
		known[wireName(member, name)] = true
	}
	var numbers []int
	for name, part := range p.parts {
		if n, err := strconv.Atoi(name); err == nil && n > 0 && strconv.Itoa(n) == name {
			numbers = append(numbers, n)
		} else if !known[name] {
			part.refuse()
		}
	}
	for _, n := range slices.Sorted(slices.Values(numbers)) {
		all = append(all, p.parts[strconv.Itoa(n)])
	}
	if p.value != nil && *p.value != "" || len(p.parts) > len(numbers) {
		if all = append(all, p); len(numbers) > 0 {
			p.refuse()
		}
	}
	return all
}

// tree reads a shape from the parameters; nil if there is none of it. It refuses an entry of a map without a key, and a
// text that has parts instead of a value.
func (p *params) tree(s *smithy.Schema) tree {
	if p == nil {
		return nil
	}
	switch s.Type() {
	case smithy.ShapeTypeStructure:
		members := make(map[string]any)
		for name, member := range s.Members() {
			if v := p.parts[wireName(member, name)].tree(member); v != nil {
				members[name] = v
			}
		}
		return members
	case smithy.ShapeTypeList:
		var list []any
		for _, entry := range p.entries(s.ListMember()) {
			list = append(list, entry.tree(s.ListMember()))
		}
		if list == nil {
			return nil
		}
		return list
	case smithy.ShapeTypeMap:
		entries := make(map[string]any)
		for _, entry := range p.entries(s) {
			key := entry.parts[wireName(s.MapKey(), "key")]
			if key == nil || key.value == nil || entry.value != nil {
				entry.refuse()
				continue
			}
			if _, twice := entries[*key.value]; twice { // the operation refuses it, as it does in JSON
				return json.RawMessage(fmt.Sprintf("{%[1]s: 0, %[1]s: 0}", marshal(*key.value)))
			}
			entries[*key.value] = entry.parts[wireName(s.MapValue(), "value")].tree(s.MapValue())
		}
		if len(entries) == 0 {
			return nil
		}
		return entries
	}
	if p.value == nil {
		p.refuse()
		return nil
	}
	switch s.Type() {
	case smithy.ShapeTypeInteger, smithy.ShapeTypeLong:
		if _, err := strconv.ParseInt(*p.value, 10, 64); err == nil {
			return json.Number(*p.value)
		}
	case smithy.ShapeTypeBoolean:
		if v, err := strconv.ParseBool(*p.value); err == nil {
			return v
		}
	}
	return *p.value
}

// listed is a tree as the Query protocol has it in JSON, if that is asked for: maps are lists of names and values,
// and the list of messages has a small letter.
func listed(s *smithy.Schema, t tree) tree {
	switch s.Type() {
	case smithy.ShapeTypeStructure:
		members := make(map[string]any)
		for name, v := range t.(map[string]any) {
			member := s.Member(name)
			if name == "Messages" {
				name = "messages"
			}
			members[name] = listed(member, v)
		}
		return members
	case smithy.ShapeTypeList:
		list := []any{}
		for _, v := range t.([]any) {
			list = append(list, listed(s.ListMember(), v))
		}
		return list
	case smithy.ShapeTypeMap:
		list, entries := []any{}, t.(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(entries)) {
			list = append(list, map[string]any{
				wireName(s.MapKey(), "key"):     key,
				wireName(s.MapValue(), "value"): listed(s.MapValue(), entries[key]),
			})
		}
		return list
	}
	return t
}

// writeXML writes a tree of a shape, as elements named name. It writes members in the order of their names.
func writeXML(b *bytes.Buffer, s *smithy.Schema, name string, t tree) {
	switch s.Type() {
	case smithy.ShapeTypeList:
		for _, v := range t.([]any) {
			writeXML(b, s.ListMember(), name, v)
		}
		return
	case smithy.ShapeTypeMap:
		entries := t.(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(entries)) {
			fmt.Fprintf(b, "<%s>", name)
			writeXML(b, s.MapKey(), wireName(s.MapKey(), "key"), key)
			writeXML(b, s.MapValue(), wireName(s.MapValue(), "value"), entries[key])
			fmt.Fprintf(b, "</%s>", name)
		}
		return
	}
	fmt.Fprintf(b, "<%s>", name)
	if s.Type() == smithy.ShapeTypeStructure {
		writeMembers(b, s, t)
	} else {
		_ = xml.EscapeText(b, []byte(fmt.Sprint(t))) // a Buffer never fails
	}
	fmt.Fprintf(b, "</%s>", name)
}

func writeMembers(b *bytes.Buffer, s *smithy.Schema, t tree) {
	members := t.(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if member := s.Member(name); member != nil {
			writeXML(b, member, wireName(member, name), members[name])
		}
	}
}
