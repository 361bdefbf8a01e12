package fdbkv

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/apple/foundationdb/bindings/go/src/fdb"

	"fdbfifo/kv"
)

// Errors of Open and Ping. They are wrapped together with the file, or whatever else is to blame.
var (
	// ErrAPIVersion: the process has selected no API version, or one below MinAPIVersion.
	ErrAPIVersion = errors.New("unusable FoundationDB API version")
	// ErrNoClusterFile: there is no file at the path that was given or found.
	ErrNoClusterFile = errors.New("no cluster file")
	// ErrClusterFile: the file cannot be read, or holds no connection string.
	ErrClusterFile = errors.New("bad cluster file")
	// ErrUnreachable: the cluster gave no answer in time.
	ErrUnreachable = errors.New("cluster unreachable")
	// ErrClosed: the DB was closed. It wraps kv.ErrClosed.
	ErrClosed = fmt.Errorf("database %w", kv.ErrClosed)
)

// failure is an error that the adapter itself answers with, in the C client's place.
func failure(code int) error { return &kv.Error{Code: code, Cause: fdb.Error{Code: code}} }

// converted turns the binding's error into a *kv.Error that wraps it: kv.Run finds the one, the binding's Transact
// the other. Any other error is returned as it is.
func converted(err error) error {
	if err == nil {
		return nil // as a rule; and what follows is not for nothing
	}
	var e fdb.Error
	if kv.Code(err) == 0 && errors.As(err, &e) {
		return &kv.Error{Code: e.Code, Cause: e}
	}
	return err
}

// oversize is the first write of a transaction whose key or value is too large. The C client fails the reads after it,
// and the commit, with an error that names no key.
type oversize struct{ first atomic.Pointer[kv.Error] }

func (o *oversize) note(key, value []byte) {
	err := kv.TooLarge(key, value)
	if err == nil {
		return // as a rule; and what follows is not for nothing
	}
	if e := new(kv.Error); errors.As(err, &e) {
		o.first.CompareAndSwap(nil, e)
	}
}

// forget begins another attempt of the transaction.
func (o *oversize) forget() { o.first.Store(nil) }

// named adds the key and the size to an error of the transaction, if the write is its cause.
func (o *oversize) named(err error) error {
	if e := o.first.Load(); e != nil && kv.Code(err) == e.Code {
		return caused(e, err)
	}
	return err
}

// caused returns e, which wraps err too, so that the binding's Transact finds its own error.
func caused(e *kv.Error, err error) error {
	return &kv.Error{Code: e.Code, Cause: fmt.Errorf("%w: %w", e.Cause, errors.Unwrap(err))}
}

// codeOf finds the code of an engine's error in err, whichever type carries it.
func codeOf(err error) (code int, ok bool) {
	if code := kv.Code(err); code != 0 {
		return code, true
	}
	var theirs fdb.Error
	if errors.As(err, &theirs) {
		return theirs.Code, true
	}
	return 0, false
}
