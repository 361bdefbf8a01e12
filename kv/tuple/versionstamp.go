package tuple

import (
	"encoding/binary"
	"errors"
	"fmt"
)

const versionstampLen = 12 // bytes: ten of the database and two of the client

// Versionstamp orders what transactions wrote by their commits, and within one transaction by User.
type Versionstamp struct {
	Stamp [10]byte // commit version and place in its batch, big-endian; all 0xff while incomplete
	User  uint16
}

var incomplete = [10]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// IncompleteVersionstamp returns a stamp whose place the database fills in at commit.
func IncompleteVersionstamp(user uint16) Versionstamp {
	return Versionstamp{Stamp: incomplete, User: user}
}

// Complete reports whether v holds a stamp of the database.
func (v Versionstamp) Complete() bool { return v.Stamp != incomplete }

// ErrIncomplete says that a tuple holds no incomplete versionstamp, or more than the one that can be filled in.
var ErrIncomplete = errors.New("tuple: want exactly one incomplete versionstamp")

// PackWithVersionstamp returns prefix and t as the key or operand of a SetVersionstamped mutation: behind the
// encoding stand four bytes, little-endian, with the place of the stamp.
func PackWithVersionstamp(prefix []byte, t Tuple) ([]byte, error) {
	p := packer{buf: append(make([]byte, 0, len(prefix)+64), prefix...)}
	p.elements(t)
	if p.incomplete != 1 {
		return nil, fmt.Errorf("%w, have %d", ErrIncomplete, p.incomplete)
	}
	return binary.LittleEndian.AppendUint32(p.buf, uint32(p.stampAt)), nil
}
