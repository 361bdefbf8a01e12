package sqs

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/service/sqs/schemas"

	"fdbfifo/internal/strict"
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
// before a value: commas and opening brackets outside of texts. It also refuses what the decoder would replace: bytes
// that are no UTF-8, and halves of surrogate pairs. Two different messages could else become the same.
func checkValues(text []byte) error {
	if !strict.Whole(text) {
		return fail(schemas.InvalidMessageContents, "%s", badCharacters)
	}
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

// checkParameters refuses a request of the Query protocol with a parameter of two values, or that is no UTF-8.
func checkParameters(form url.Values) error {
	for name, values := range form {
		if !utf8.ValidString(name) || !utf8.ValidString(values[0]) {
			return fail(schemas.InvalidMessageContents, "%s", badCharacters)
		}
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

// settings are attributes or tags by their names.
type settings map[string]string

// UnmarshalJSON refuses null, and the missing value of the Query protocol, with an apiError: a program whose variable
// is not set would remove a policy.
func (s *settings) UnmarshalJSON(text []byte) error {
	var all map[string]*string
	if err := json.Unmarshal(text, &all); err != nil {
		return err
	}
	*s = make(settings, len(all))
	for name, value := range all {
		if value == nil {
			return invalid("The value of %q is missing.", name)
		}
		(*s)[name] = *value
	}
	return nil
}
