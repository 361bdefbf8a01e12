package callback

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// module is the path of this module, with a slash.
var module = strings.TrimSuffix(reflect.TypeFor[PanicError]().PkgPath(), "internal/callback")

// joined is the type of the errors of errors.Join.
var joined = reflect.TypeOf(errors.Join(errors.ErrUnsupported))

// Meant returns the error that a handler has meant by err. A nil pointer to an error type of the packages kv, layer and
// worker, such as a nil *kv.Error, is not equal to nil in Go, but a handler that returns it has met no error. Then, and
// if errors.Join has joined only such pointers, Meant returns nil, and slip says what the handler must return instead.
// The type of any other nil pointer is unknown here, so Meant returns the pointer as it is.
func Meant(err error) (meant, slip error) {
	found := nilIn(err)
	if found == nil {
		return err, nil
	}
	return nil, fmt.Errorf(
		"a nil %T was returned as an error, and counts as nil: return nil, and declare the result as error", found)
}

// nilIn returns a nil pointer to an error type of this module if err is one, or joins nothing else; nil = err is an
// error.
func nilIn(err error) (found error) {
	t := reflect.TypeOf(err)
	switch {
	case err == nil:
	case t.Kind() == reflect.Pointer && reflect.ValueOf(err).IsNil():
		if hasOwnErrors(t.Elem().PkgPath()) {
			return err
		}
	case t == joined:
		for _, inner := range err.(interface{ Unwrap() []error }).Unwrap() {
			slip := nilIn(inner)
			if slip == nil {
				return nil
			}
			found = cmp.Or(found, slip)
		}
	}
	return found
}

// hasOwnErrors reports whether a package is kv, layer or worker of this module. A program may have a module of its own
// that is called worker.
func hasOwnErrors(path string) bool {
	name, own := strings.CutPrefix(path, module)
	return own && (name == "kv" || name == "layer" || name == "worker")
}
