package sqs

import (
	"bytes"
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
}

// maxParts is one more than the greatest depth of the service's parameter names.
const maxParts = 8

func newParams(form url.Values) *params {
	root := &params{}
	for name, values := range form {
		at := root
		for _, part := range strings.SplitN(name, ".", maxParts) {
			if at.parts == nil {
				at.parts = make(map[string]*params)
			}
			if at.parts[part] == nil {
				at.parts[part] = &params{name: strings.TrimPrefix(at.name+"."+part, ".")}
			}
			at = at.parts[part]
		}
		at.value = &values[0]
	}
	return root
}

// entries are the entries of a list or a map: the parts named 1, 2, 3, …, in order. Gaps are allowed. An entry without
// a number is the only one, and its parts have only the names in known: older clients send AttributeName=All, or
// Attribute.Name=DelaySeconds. AttributeName= is an empty list.
//
// Any other part is an error. It could be an entry of a batch whose client counts from 0.
func (p *params) entries(known ...string) ([]*params, error) {
	var numbers []int
	var others []string
	for _, name := range slices.Sorted(maps.Keys(p.parts)) {
		if n, err := strconv.Atoi(name); err == nil && n > 0 && strconv.Itoa(n) == name {
			numbers = append(numbers, n)
		} else if !slices.Contains(known, name) {
			return nil, fmt.Errorf("the parameter %q is no entry: the first is %q", p.parts[name].name, p.name+".1")
		} else {
			others = append(others, name)
		}
	}
	forms := 0
	for _, has := range []bool{len(numbers) > 0, len(others) > 0, p.value != nil} {
		if has {
			forms++
		}
	}
	switch {
	case forms > 1:
		return nil, fmt.Errorf("the parameter %q has entries of two forms", p.name)
	case len(others) > 0, p.value != nil && *p.value != "":
		return []*params{p}, nil
	}
	slices.Sort(numbers)
	all := make([]*params, len(numbers))
	for i, n := range numbers {
		all[i] = p.parts[strconv.Itoa(n)]
	}
	return all, nil
}

// tree reads a shape from the parameters; nil if there is none of it. The error names the parameter that it cannot
// read as a part of the shape.
func (p *params) tree(s *smithy.Schema) (tree, error) {
	if p == nil {
		return nil, nil
	}
	switch s.Type() {
	case smithy.ShapeTypeStructure:
		members := make(map[string]any)
		for name, member := range s.Members() {
			v, err := p.parts[wireName(member, name)].tree(member)
			if err != nil {
				return nil, err
			}
			if v != nil {
				members[name] = v
			}
		}
		return members, nil
	case smithy.ShapeTypeList:
		return p.list(s)
	case smithy.ShapeTypeMap:
		return p.mapping(s)
	}
	return p.scalar(s), nil
}

// list reads a list from the parameters; nil if there is none of it.
func (p *params) list(s *smithy.Schema) (tree, error) {
	var known []string
	for name, member := range s.ListMember().Members() {
		known = append(known, wireName(member, name))
	}
	entries, err := p.entries(known...)
	if err != nil || len(entries) == 0 {
		return nil, err
	}
	list := make([]any, len(entries))
	for i, entry := range entries {
		if list[i], err = entry.tree(s.ListMember()); err != nil {
			return nil, err
		}
		if list[i] == nil {
			return nil, fmt.Errorf("the parameter %q has no value", entry.name)
		}
	}
	return list, nil
}

// mapping reads a map from the parameters; nil if there is none of it.
func (p *params) mapping(s *smithy.Schema) (tree, error) {
	nameOfKey, nameOfValue := wireName(s.MapKey(), "key"), wireName(s.MapValue(), "value")
	all, err := p.entries(nameOfKey, nameOfValue)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	entries := make(map[string]any)
	for _, entry := range all {
		key := entry.parts[nameOfKey]
		if key == nil || key.value == nil {
			return nil, fmt.Errorf("the parameter %q is missing", entry.name+"."+nameOfKey)
		}
		if _, twice := entries[*key.value]; twice {
			return nil, fmt.Errorf("the parameter %q names %q again", key.name, *key.value)
		}
		if entries[*key.value], err = entry.parts[nameOfValue].tree(s.MapValue()); err != nil {
			return nil, err
		}
	}
	return entries, nil
}

// scalar reads a text, a number or a truth; nil if there is none.
func (p *params) scalar(s *smithy.Schema) tree {
	if p.value == nil {
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
