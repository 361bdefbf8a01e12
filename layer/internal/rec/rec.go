// Package rec has the values that a queue stores, and the states of a group.
//
// Each value has a type, a Pack method and an Unpack function. Example: UnpackRecord reads the value of a lock. A few
// plain values need no type: PackInt and UnpackInt, for example. The form of a value is part of the database. A change
// of a form needs a new stored format, or a reader that accepts the old form too.
//
// A Record says what keeps a group: a claim, a grant, a delay, or a mark. Record.At returns the condition of the group
// at a time. Step returns an error for a change that the table steps does not allow.
//
// The package reads no key, begins no transaction and has no clock. The caller passes times, in milliseconds since 1970
// (the suffix MS). A field named Clock or Place is a version of the database plus the queue's offset, like the index of
// an item. Index and Random tell an item from the others of its group.
//
// An Unpack function (except UnpackStrings) returns an error that wraps ErrCorrupt and names the key that the caller
// passes, unless the value has exactly the form that Pack writes or an earlier version wrote. The results may alias the
// value.
package rec

import (
	"errors"
	"fmt"

	"github.com/google/uuid"

	"fdbfifo/kv/tuple"
)

// ErrCorrupt means that a key or a value does not have the required form. It is layer.ErrCorrupt.
var ErrCorrupt = errors.New("corrupt data")

// Corrupt returns the error of a key, or of the value of a key, that cannot be read. It wraps ErrCorrupt and err, and
// names the key as fdbcli prints keys.
func Corrupt(key []byte, err error) error {
	return fmt.Errorf("%w: key %s: %w", ErrCorrupt, tuple.Printable(key), err)
}

// Decoder reads the elements of a tuple in order and keeps the first error. After an error each method returns a zero
// value. So one expression reads a whole value, and End checks it. Example, the value of the note of a sweep:
//
//	d := Decode(value)
//	n := SweepNote{BegunMS: d.Int(), Random: d.UUID()}
//	return n, d.End(key)
type Decoder struct {
	rest []byte
	err  error
}

// Decode returns a decoder of the packed elements of a tuple.
func Decode(packed []byte) Decoder { return Decoder{rest: packed} }

// End returns the first error, as Corrupt does for key. Bytes that are left over are an error: otherwise two different
// values could mean the same.
func (d *Decoder) End(key []byte) error {
	if err := d.Left(); err != nil {
		return Corrupt(key, err)
	}
	return nil
}

// Left returns the first error, without the key and without ErrCorrupt; as for End, bytes that are left over are an
// error. It is for bytes whose key is not known.
func (d *Decoder) Left() error {
	if d.err == nil && len(d.rest) > 0 {
		d.err = fmt.Errorf("%d bytes too many", len(d.rest))
	}
	return d.err
}

// Err returns the first error. Bytes that are left over are no error.
func (d *Decoder) Err() error { return d.err }

// Unread returns the bytes that are not read yet.
func (d *Decoder) Unread() []byte { return d.rest }

// More reports whether elements follow.
func (d *Decoder) More() bool { return d.err == nil && len(d.rest) > 0 }

// Check makes the value corrupt if ok is false: End then returns an error with the text. args are used as fmt.Errorf
// uses them. An earlier error stays.
func (d *Decoder) Check(ok bool, text string, args ...any) {
	if d.err == nil && !ok {
		d.err = fmt.Errorf(text, args...)
	}
}

// Text reads a string.
func (d *Decoder) Text() (v string) {
	if d.err == nil {
		v, d.rest, d.err = tuple.DecodeString(d.rest)
	}
	return v
}

// Bytes reads a byte string.
func (d *Decoder) Bytes() (v []byte) {
	if d.err == nil {
		v, d.rest, d.err = tuple.DecodeBytes(d.rest)
	}
	return v
}

// Int reads an integer.
func (d *Decoder) Int() (v int64) {
	if d.err == nil {
		v, d.rest, d.err = tuple.DecodeInt(d.rest)
	}
	return v
}

// UUID reads a UUID.
func (d *Decoder) UUID() (v uuid.UUID) {
	if d.err == nil {
		v, d.rest, d.err = tuple.DecodeUUID(d.rest)
	}
	return v
}

// Versionstamp reads a versionstamp.
func (d *Decoder) Versionstamp() (v tuple.Versionstamp) {
	if d.err == nil {
		v, d.rest, d.err = tuple.DecodeVersionstamp(d.rest)
	}
	return v
}

// timeAtEnd reads the time that withTime has added; 0 = there is none.
func (d *Decoder) timeAtEnd() (ms int64) {
	if d.More() {
		ms = d.Int()
		d.Check(ms > 0, "time %d", ms)
	}
	return ms
}

// withTime returns t with a time at the end. The time 0 is left out.
func withTime(t tuple.Tuple, ms int64) tuple.Tuple {
	if ms > 0 {
		t = append(t, ms)
	}
	return t
}

// The type codes of the tuple encoding by which Decoder.Follows tells elements apart.
const (
	codeNull   = 0x00 // nil; inside a nested tuple: the end of the tuple
	CodeString = 0x02
	CodeUUID   = 0x30
	CodeNested = 0x05 // a nested tuple
)

// Follows reports whether the next element begins with the type code.
func (d *Decoder) Follows(code byte) bool { return d.More() && d.rest[0] == code }

// null reports whether the next element is nil. If it is, null reads it.
func (d *Decoder) null() bool {
	is := d.Follows(codeNull)
	if is {
		d.rest = d.rest[1:]
	}
	return is
}

// List reads a nested tuple. It calls read until the tuple ends. Each call of read must read at least one element. No
// element may be nil, because a nested tuple encodes a nil in another way.
func (d *Decoder) List(read func()) {
	d.Check(d.Follows(CodeNested), "no nested tuple")
	for begun := false; d.err == nil; begun = true {
		switch {
		case !begun:
			d.rest = d.rest[1:]
		case d.Follows(codeNull):
			d.rest = d.rest[1:]
			return
		default:
			read()
		}
	}
}

// AppendNested appends packed elements as a nested tuple. The elements must be strings, integers and UUIDs, because a
// nested tuple encodes these as a plain tuple does.
func AppendNested(dst []byte, packed string) []byte {
	return append(append(append(dst, CodeNested), packed...), codeNull)
}

// PackStrings packs strings one after the other. Example: the values of an item's facets.
func PackStrings(values []string) string {
	var b []byte
	for _, v := range values {
		b = tuple.AppendString(b, v)
	}
	return string(b)
}

// UnpackStrings returns the strings that PackStrings has packed.
func UnpackStrings(packed string) (values []string) {
	for d := Decode([]byte(packed)); d.More(); {
		values = append(values, d.Text())
	}
	return values
}
