package embedded

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"

	"fdbfifo/kv"
)

// verifyDatabase reads the whole file before it is opened for writing. bbolt panics on a damaged page, partly in
// goroutines of its own, where a panic ends the process, and a page behind the end of a truncated file is a memory
// fault. verifyDatabase returns ErrCorrupt for both. If another process has the file open to write, wait bounds the
// time until ErrTimeout. The end of ctx ends the reading, with its cause.
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
		size := int64(db.Info().PageSize)
		return (&fileCheck{ctx, file, size, make([]bool, tx.Size()/size)}).buckets(tx)
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

func checkData(k, v []byte) error {
	if v == nil || k[0] != keyMark || len(k) > 1+kv.MaxKeySize || len(v) > kv.MaxValueSize {
		return fmt.Errorf("%w: impossible pair", ErrCorrupt)
	}
	return nil
}

// checkOther checks a pair of another bucket than the one of the data.
func checkOther(_, v []byte) error {
	if v == nil {
		return fmt.Errorf("%w: a bucket in a bucket", ErrCorrupt)
	}
	return nil
}

// fileCheck finds each fault that bbolt would find when it looks for the free pages. bbolt does that in a goroutine of
// its own, whose panic ends the process, and follows a page that is below itself until the memory is used up.
type fileCheck struct {
	ctx     context.Context
	file    io.ReaderAt
	size    int64  // of a page
	reached []bool // by the number of the page
}

// buckets checks all buckets: first that of the names of the others, and the one that tells the format of the file.
func (f *fileCheck) buckets(tx *bbolt.Tx) error {
	var names [][]byte
	err := f.bucket(tx.Cursor().Bucket(), func(name, _ []byte) error {
		names = append(names, bytes.Clone(name))
		return nil
	})
	if err != nil {
		return err
	}
	meta := tx.Bucket(metaBucket)
	if err := f.bucket(meta, checkOther); err != nil {
		return err
	}
	if err := checkMeta(meta); err != nil {
		return err
	}
	if tx.Bucket(dataBucket) == nil {
		return fmt.Errorf("%w: no data bucket", ErrCorrupt)
	}
	for _, name := range names {
		pair := checkOther
		switch {
		case bytes.Equal(name, metaBucket):
			continue
		case bytes.Equal(name, dataBucket):
			pair = checkData
		}
		if err := f.bucket(tx.Bucket(name), pair); err != nil {
			return err
		}
	}
	return nil
}

// bucketCheck checks a bucket. It reads branch pages from the file, and pairs with bbolt's cursor. It visits the pages
// in the order in which the cursor does, so the cursor never comes to a page before the check.
type bucketCheck struct {
	*fileCheck
	read func() (k, v []byte) // the next pair
	next func() (k, v []byte) // the pair after the first
	last []byte               // key
	pair func(k, v []byte) error
}

// bucket visits each page of a bucket. It calls pair for each pair. v is nil for a bucket.
func (f *fileCheck) bucket(b *bbolt.Bucket, pair func(k, v []byte) error) error {
	if b == nil {
		return nil
	}
	cursor := b.Cursor()
	c := &bucketCheck{fileCheck: f, read: cursor.First, next: cursor.Next, pair: pair}
	if b.Root() != 0 {
		return c.page(uint64(b.Root()), 0, nil, nil)
	}
	for { // the bucket lies in a page of the bucket of its name
		if k, err := c.key(); k == nil || err != nil {
			return err
		}
	}
}

// key checks the next pair, and returns its key, nil after the last one.
func (c *bucketCheck) key() ([]byte, error) {
	k, v := c.read()
	c.read = c.next
	if k == nil {
		return nil, nil
	}
	if c.last != nil && bytes.Compare(c.last, k) >= 0 {
		return nil, errOrder
	}
	c.last = append(c.last[:0], k...)
	return k, c.pair(k, v)
}

var errOrder = fmt.Errorf("%w: keys out of order", ErrCorrupt)

// A page begins with its number, its flag, the number of its elements, and the number of further pages that belong to
// it. An element of a branch page has the place of its key, counted from the element, the length of the key, and the
// number of the page below.
const (
	pageFlag, pageElements, pageMore, pageHead = 8, 10, 12, 16
	branchLength, branchPage, branchElement    = 4, 8, 16
	branchFlag, leafFlag, metaFlag, freeFlag   = 1, 2, 4, 16

	// maxDepth is more than any tree has: a branch page has two elements or more.
	maxDepth = 64
	// maxBranch is more bytes than a branch page has: bbolt splits a page of more than four keys.
	maxBranch = 1 << 20
)

// page checks a page and those below it. All their keys must be at least from, and less than until; nil is no bound.
func (c *bucketCheck) page(id uint64, depth int, from, until []byte) error {
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	if id >= uint64(len(c.reached)) {
		return fmt.Errorf("%w: a page outside the file", ErrCorrupt)
	}
	var head [pageHead]byte
	if _, err := c.file.ReadAt(head[:], int64(id)*c.size); err != nil {
		return err
	}
	native := binary.NativeEndian
	flag, count := native.Uint16(head[pageFlag:]), int(native.Uint16(head[pageElements:]))
	end := id + 1 + uint64(native.Uint32(head[pageMore:]))
	if flag != branchFlag && flag != leafFlag {
		if flag != metaFlag && flag != freeFlag {
			_, _ = c.read() // bbolt panics, or the system says that it cannot read the page
		}
		return fmt.Errorf("%w: page %d has no data", ErrCorrupt, id)
	}
	if native.Uint64(head[:]) != id || end > uint64(len(c.reached)) || depth > maxDepth {
		return fmt.Errorf("%w: page %d is in the wrong place", ErrCorrupt, id)
	}
	for i := id; i < end; i++ {
		if c.reached[i] {
			return fmt.Errorf("%w: page %d is reached twice", ErrCorrupt, i)
		}
		c.reached[i] = true
	}
	if flag == branchFlag {
		return c.branch(id, end, count, depth, from, until)
	}
	for i := range count {
		k, err := c.key()
		switch {
		case err != nil:
			return err
		case k == nil:
			return fmt.Errorf("%w: fewer pairs than a page says", ErrCorrupt)
		case i == 0 && bytes.Compare(k, from) < 0, i == count-1 && until != nil && bytes.Compare(k, until) >= 0:
			return errOrder
		}
	}
	return nil
}

// branch checks the branch page with the numbers from id to end.
func (c *bucketCheck) branch(id, end uint64, count, depth int, from, until []byte) error {
	size := int64(end-id) * c.size
	if count == 0 || size > maxBranch {
		return fmt.Errorf("%w: page %d is no branch page", ErrCorrupt, id)
	}
	page := make([]byte, size)
	if _, err := c.file.ReadAt(page, int64(id)*c.size); err != nil {
		return err
	}
	native := binary.NativeEndian
	keys := make([][]byte, count, count+1)
	for i := range keys {
		at := pageHead + i*branchElement
		if at+branchElement > len(page) {
			return fmt.Errorf("%w: page %d has too many elements", ErrCorrupt, id)
		}
		begin := int64(at) + int64(native.Uint32(page[at:]))
		length := int64(native.Uint32(page[at+branchLength:]))
		if begin+length > size {
			return fmt.Errorf("%w: page %d has a key outside", ErrCorrupt, id)
		}
		k := page[begin : begin+length]
		switch {
		case i == 0 && bytes.Compare(k, from) < 0,
			i > 0 && bytes.Compare(k, keys[i-1]) <= 0,
			until != nil && bytes.Compare(k, until) >= 0:
			return errOrder
		}
		keys[i] = k
	}
	keys = append(keys, until)
	for i := range count {
		below := native.Uint64(page[pageHead+i*branchElement+branchPage:])
		if err := c.page(below, depth+1, keys[i], keys[i+1]); err != nil {
			return err
		}
	}
	return nil
}
