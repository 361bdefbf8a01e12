package fdbkv

import (
	"errors"

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
	// ErrClosed: the DB was closed.
	ErrClosed = errors.New("database closed")
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
	if errors.As(err, &e) {
		return &kv.Error{Code: e.Code, Cause: e}
	}
	return err
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
