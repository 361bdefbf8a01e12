package layer

import (
	"encoding/binary"
	"sync"

	"github.com/google/uuid"

	crand "crypto/rand"
	"math/rand/v2"
)

// entropy is the handle's source of random numbers and UUIDs: cryptographic unless seeded.
type entropy struct {
	mu   sync.Mutex
	src  *rand.ChaCha8 // guarded by mu
	rand *rand.Rand    // over src; guarded by mu
}

func newEntropy(seed uint64) *entropy {
	var s [32]byte
	if seed == 0 {
		crand.Read(s[:]) // never fails
	} else {
		binary.LittleEndian.PutUint64(s[:], seed)
	}
	src := rand.NewChaCha8(s)
	return &entropy{src: src, rand: rand.New(src)}
}

func (e *entropy) n(below int) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rand.IntN(below)
}

// float is in [0, 1).
func (e *entropy) float() float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rand.Float64()
}

func (e *entropy) uuid() (id uuid.UUID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.draw(&id)
	return id
}

func (e *entropy) uuids(n int) []uuid.UUID {
	e.mu.Lock()
	defer e.mu.Unlock()
	ids := make([]uuid.UUID, n)
	for i := range ids {
		e.draw(&ids[i])
	}
	return ids
}

// draw sets id. mu is held.
func (e *entropy) draw(id *uuid.UUID) {
	e.src.Read(id[:])         // never fails
	id[6] = id[6]&0x0f | 0x40 // version 4, random
	id[8] = id[8]&0x3f | 0x80 // variant of RFC 4122
}
