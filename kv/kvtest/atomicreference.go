package kvtest

import (
	"bytes"
	"math/big"
	"slices"

	"fdbfifo/kv"
)

// foldAtomic is the reference for atomic operations: the value of a key that held existing (nil = absent) after op
// with operand p. It is written with big integers, unlike any engine, and covers every operation but the two
// versionstamped ones.
func foldAtomic(op kv.MutationType, existing, p []byte) []byte {
	fit := func(n *big.Int) []byte { return toLittleEndian(n, len(p)) }
	e, operand := fromLittleEndian(cut(existing, len(p))), fromLittleEndian(p)
	switch op {
	case kv.Add:
		return fit(new(big.Int).Add(e, operand))
	case kv.BitAnd:
		if existing == nil {
			return present(p)
		}
		return fit(new(big.Int).And(e, operand))
	case kv.BitOr:
		return fit(new(big.Int).Or(e, operand))
	case kv.BitXor:
		return fit(new(big.Int).Xor(e, operand))
	case kv.Max:
		if e.Cmp(operand) > 0 {
			return fit(e)
		}
		return present(p)
	case kv.Min:
		if existing != nil && e.Cmp(operand) < 0 {
			return fit(e)
		}
		return present(p)
	case kv.AppendIfFits:
		if len(existing)+len(p) > kv.MaxValueSize {
			return existing
		}
		return append(present(existing), p...)
	case kv.ByteMin:
		if existing != nil && bytes.Compare(existing, p) < 0 {
			return existing
		}
		return present(p)
	case kv.ByteMax:
		if existing != nil && bytes.Compare(existing, p) > 0 {
			return existing
		}
		return present(p)
	case kv.CompareAndClear:
		if bytes.Equal(existing, p) {
			return nil
		}
		return existing
	case kv.SetVersionstampedKey, kv.SetVersionstampedValue:
	}
	panic("kvtest: not a plain atomic operation")
}

// present returns a copy of v that is never nil.
func present(v []byte) []byte { return append([]byte{}, v...) }

func cut(v []byte, n int) []byte { return v[:min(n, len(v))] }

func fromLittleEndian(v []byte) *big.Int {
	b := slices.Clone(v)
	slices.Reverse(b)
	return new(big.Int).SetBytes(b)
}

// toLittleEndian returns the low n bytes of v.
func toLittleEndian(v *big.Int, n int) []byte {
	b := new(big.Int).Mod(v, new(big.Int).Lsh(big.NewInt(1), uint(8*n))).FillBytes(make([]byte, n))
	slices.Reverse(b)
	return b
}
