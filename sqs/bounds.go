package sqs

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
)

const (
	// maxValues bounds the values of a request, or its parameters in the Query protocol. A full batch has about 500.
	maxValues = 2000
	// maxNames bounds the attributes that a request asks for by name, maxName the length of a name.
	maxNames = 100
	maxName  = 256 // bytes
)

var errTooMany = fmt.Errorf("it has more than %d values", maxValues)

// checkValues refuses JSON with too many values before memory is spent on them. It counts the characters that come
// before a value: commas and opening brackets outside of texts.
func checkValues(text []byte) error {
	n, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch b := text[i]; {
		case quoted && b == '\\':
			i++
		case b == '"':
			quoted = !quoted
		case !quoted && (b == ',' || b == '[' || b == '{'):
			if n++; n > maxValues {
				return errTooMany
			}
		}
	}
	return nil
}

// checkParameters refuses a request of the Query protocol with a parameter of two values.
func checkParameters(form url.Values) error {
	for name, values := range form {
		if slices.ContainsFunc(values, func(v string) bool { return v != values[0] }) {
			return fmt.Errorf("the parameter %q has two values", name)
		}
	}
	return nil
}

// names are the attributes that a request asks for.
type names []string

// UnmarshalJSON refuses more than maxNames names, and names of more than maxName bytes, with an apiError.
func (n *names) UnmarshalJSON(text []byte) error {
	var all []string
	if err := json.Unmarshal(text, &all); err != nil {
		return err
	}
	if len(all) > maxNames || slices.ContainsFunc(all, func(name string) bool { return len(name) > maxName }) {
		return invalid("A list of attribute names has at most %d names, of at most %d bytes each.", maxNames, maxName)
	}
	*n = all
	return nil
}
