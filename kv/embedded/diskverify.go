package embedded

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"

	"fdbfifo/kv"
)

// verifyDatabase reads the whole file before it is opened for writing. bbolt panics on a damaged page, partly in
// goroutines of its own, and a page behind the end of a truncated file is a memory fault. verifyDatabase returns
// ErrCorrupt for both. If another process has the file open to write, wait bounds the time until ErrTimeout. The end of
// ctx ends the reading, with its cause.
func (d *dir) verifyDatabase(ctx context.Context, wait time.Duration) (err error) {
	var begin, end uintptr // of the file in memory
	defer func() {
		var f *pageFault
		if errors.As(err, &f) && (f.address < begin || f.address >= end) {
			err = fmt.Errorf("%w: a page outside the file", ErrCorrupt)
		}
	}()
	defer recoverCorrupt(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	o := boltOptions()
	o.ReadOnly, o.Timeout = true, wait
	db, file, err := d.openBolt(fileName, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	// The size is read behind the lock: until then another process may have enlarged the file.
	info, err := file.Stat()
	if err != nil {
		return err
	}
	begin = db.Info().Data
	end = begin + uintptr(info.Size())
	return db.View(func(tx *bbolt.Tx) error {
		if info.Size() < tx.Size() {
			return fmt.Errorf("%w: truncated: %d of %d bytes", ErrCorrupt, info.Size(), tx.Size())
		}
		if err := checkMeta(tx.Bucket(metaBucket)); err != nil {
			return err
		}
		return checkData(ctx, tx.Bucket(dataBucket))
	})
}

func checkMeta(meta *bbolt.Bucket) error {
	if meta == nil {
		return fmt.Errorf("%w: not made by this engine", ErrCorrupt)
	}
	format, version := meta.Get(formatKey), meta.Get(versionKey)
	if len(format) != 4 {
		return fmt.Errorf("%w: no format number", ErrCorrupt)
	}
	if f := binary.BigEndian.Uint32(format); f > formatVersion {
		return fmt.Errorf("%w: %d, known up to %d", ErrNewerFormat, f, formatVersion)
	}
	if len(version) != 8 {
		return fmt.Errorf("%w: no version", ErrCorrupt)
	}
	return nil
}

// checkedAtOnce is how many keys checkData visits before it looks at its context again: a few milliseconds of work.
const checkedAtOnce = 4096

// checkData visits every page. The order of the keys also proves that the walk comes to an end.
func checkData(ctx context.Context, data *bbolt.Bucket) error {
	if data == nil {
		return fmt.Errorf("%w: no data bucket", ErrCorrupt)
	}
	var last []byte
	c := data.Cursor()
	visited := 0
	for k, v := c.First(); k != nil; k, v = c.Next() {
		if visited%checkedAtOnce == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		visited++
		if k[0] != keyMark || len(k) > 1+kv.MaxKeySize || len(v) > kv.MaxValueSize {
			return fmt.Errorf("%w: impossible pair", ErrCorrupt)
		}
		if last != nil && bytes.Compare(last, k) >= 0 {
			return fmt.Errorf("%w: keys out of order", ErrCorrupt)
		}
		last = append(last[:0], k...)
	}
	return nil
}
