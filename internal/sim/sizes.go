package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"fdbfifo/layer"
)

// In one of 16 runs the names and messages have sizes near the limits of the layer: groups, dedup ids, headers and
// bodies. Most faults of sizes need two things at once, such as a long name and a retry.

// sizeKnobs is what a seed chooses for sizes.
type sizeKnobs struct {
	nearLimit bool
}

// drawSizes uses the seed alone, so that a seed keeps its other choices.
func (k *knobs) drawSizes(seed uint64) { k.nearLimit = seed%16 == 3 }

// groupName names a group by its number.
func (w *world) groupName(n int) string {
	return w.knobs.near(fmt.Sprintf("g%d", n), layer.MaxGroupSize)
}

// near makes a text as long as a limit allows, in a run near the limits. The padding is bytes which a key doubles. It
// comes first, so that two such texts differ only at the end.
func (k *knobs) near(text string, limit int) string {
	if !k.nearLimit {
		return text
	}
	return strings.Repeat("\x00", limit-len(text)) + text
}

// paddingHeader makes the headers of a message nearly as large as they may be: an advance puts longer values in.
const (
	paddingHeader = "padding"
	longerHeaders = 100
)

// enlarge makes the parts of a message as large as the limits allow, in a run near the limits. room is how
// much larger the messages of the enqueue may still become.
func (k *knobs) enlarge(rng *rand.Rand, m *layer.Message, room *int) {
	if !k.nearLimit {
		return
	}
	if m.DedupID != "" {
		m.DedupID = k.near(m.DedupID, layer.MaxDedupIDSize)
	}
	padding, body := 0, 0
	if rng.IntN(16) == 0 {
		padding = layer.MaxHeadersSize - longerHeaders - len(paddingHeader)
		for name, value := range m.Headers {
			padding -= len(name) + len(value)
		}
	}
	switch rng.IntN(1000) {
	case 0:
		body = layer.MaxBodySize - 8*layer.MaxHeadersSize
	case 1, 2, 3, 4, 5, 6:
		body = 75_000 + rng.IntN(30_000) // about as much as a value can have, with the headers or without them
	}
	if body+padding > *room {
		return
	}
	*room -= body + padding
	if padding > 0 {
		m.Headers[paddingHeader] = strings.Repeat("h", padding)
	}
	if body > len(m.Body) {
		m.Body = append(m.Body, make([]byte, body-len(m.Body))...)
	}
}
