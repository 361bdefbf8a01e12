package embedded

import "os"

// Usage is what a database holds on behalf of transactions and watches: what must go back to where it was when they
// are gone.
type Usage struct {
	Snapshots    int   // views of the store: the newest, if it was read, and older ones still read from
	Transactions int   // transactions that hold a snapshot
	Watches      int   // outstanding
	FileSize     int64 // bytes; 0 in memory
}

// Usage returns what the database holds now.
func (db *DB) Usage() Usage {
	var u Usage
	db.mu.Lock()
	u.Snapshots = len(db.old)
	for _, s := range db.old {
		u.Transactions += s.refs
	}
	if db.current != nil {
		u.Snapshots++
		u.Transactions += db.current.refs
	}
	db.mu.Unlock()
	db.watches.mu.Lock()
	u.Watches = db.watches.slots
	db.watches.mu.Unlock()
	if s, ok := db.store.(*diskStore); ok {
		if info, err := os.Stat(s.file.Path()); err == nil {
			u.FileSize = info.Size()
		}
	}
	return u
}
