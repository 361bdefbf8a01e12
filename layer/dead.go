package layer

import (
	"encoding/binary"
	"fmt"

	"fdbfifo/kv/tuple"
)

// The value of a dead letter is what is known of its failure, and then the item's value as it was:
//
//	byte 0       version: 1
//	uvarint      length of the tuple that follows, in bytes
//	tuple        (reason, last error, attempts, first (ms), last (ms), parked (ms))
//	rest         the value of the item, see envelope.go
//
// The texts are cut so that this stays below FoundationDB's limit for a value. The parts of a large body stay under
// the item's own key, which the dead letter has too: they belong to it.
const deadVersion = 1

type dead struct {
	reason   string
	lastErr  string
	attempts int
	firstMS  int64 // of the failures
	lastMS   int64
	parkedMS int64
	item     []byte // the item's value
}

func (d *dead) pack() []byte {
	packed := tuple.Tuple{d.reason, d.lastErr, int64(d.attempts), d.firstMS, d.lastMS, d.parkedMS}.Pack()
	value := append(make([]byte, 0, 4+len(packed)+len(d.item)), deadVersion)
	value = binary.AppendUvarint(value, uint64(len(packed)))
	return append(append(value, packed...), d.item...)
}

// unpackDead takes the value of a dead letter apart; item aliases value.
func unpackDead(key, value []byte) (*dead, error) {
	if len(value) == 0 || value[0] != deadVersion {
		return nil, corrupt(key, fmt.Errorf("dead letter of unknown version"))
	}
	packed, item, ok := cutCounted(value[1:])
	if !ok {
		return nil, corrupt(key, fmt.Errorf("dead letter cut short"))
	}
	d := &dead{item: item}
	t := keyDecoder{rest: packed}
	d.reason, d.lastErr, d.attempts = t.str(), t.str(), int(t.int())
	d.firstMS, d.lastMS, d.parkedMS = t.int(), t.int(), t.int()
	if t.err == nil && len(t.rest) > 0 {
		t.err = fmt.Errorf("%d bytes too many", len(t.rest))
	}
	if t.err != nil {
		return nil, corrupt(key, t.err)
	}
	return d, nil
}
